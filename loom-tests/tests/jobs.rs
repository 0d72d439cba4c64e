//! Whole jobs among threads, as they ship: ranks of one node whose application, progress and
//! delivery threads all belong to one model. Sleeps never end by themselves, naps do, so a wake-up
//! that is lost is a model that never ends.
#![cfg(trihop_shuttle)]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Wake, Waker};

use shuttle::sync::Barrier;
use trihop_loom_tests::shuttled::explore_jobs;
use trihop_shuffle::channel::{Return, Timeout};
use trihop_shuffle::threaded::{Job, Shuffle};
use trihop_shuffle::{
    ChannelLimits, Contributors, End, Options, Plain, Queues, Rank, Reduce, Shares, ShimOptions,
    StreamOptions,
};
use trihop_transport::bootstrap::{Allgather, Custom, Launcher};
use trihop_transport::sync::{Arc, Condvar, Mutex, thread};

/// Records that each rank sends.
const RECORDS: u32 = 4;

/// What the ranks of a job have in place of a launcher.
struct Gathering {
    table: Mutex<Vec<u8>>,
    barrier: Barrier,
}

impl Gathering {
    /// The allgather of one rank.
    fn callback(self: Arc<Self>, rank: usize) -> Allgather {
        Box::new(move |mine, all| {
            {
                let mut table = self.table.lock().unwrap();
                table.resize(all.len(), 0);
                table[rank * mine.len()..][..mine.len()].copy_from_slice(mine);
            }
            self.barrier.wait();
            all.copy_from_slice(&self.table.lock().unwrap());
            self.barrier.wait();
            Ok(())
        })
    }
}

/// Runs a job of `size` ranks of one node, each of which does `part`.
fn run(size: usize, part: impl Fn(Job) + Clone + Send + Sync + 'static) {
    let gathering = Arc::new(Gathering {
        table: Mutex::default(),
        barrier: Barrier::new(size),
    });
    let rank = move |number: usize, gathering: Arc<Gathering>| {
        let bootstrap =
            Custom::new(number as u32, size as u32, 0, gathering.callback(number)).unwrap();
        let options = Options {
            launcher: Some(Launcher::Custom),
            ..Options::default()
        };
        let job = Job::start_with(options, Box::new(bootstrap)).unwrap();
        part(job);
    };
    let others: Vec<_> = (1..size)
        .map(|number| {
            let (rank, gathering) = (rank.clone(), Arc::clone(&gathering));
            thread::spawn(move || rank(number, gathering))
        })
        .collect();
    rank(0, gathering);
    for other in others {
        other.join().unwrap();
    }
}

/// What a handler has heard.
#[derive(Default)]
struct Heard {
    kinds: Mutex<Vec<u32>>,
    more: Condvar,
}

impl Heard {
    fn add(&self, kind: u32) {
        self.kinds.lock().unwrap().push(kind);
        self.more.notify_all();
    }

    fn wait_for(&self, records: usize) {
        let mut kinds = self.kinds.lock().unwrap();
        while kinds.len() < records {
            kinds = self.more.wait(kinds).unwrap();
        }
    }

    fn check(&self) {
        assert_eq!(
            *self.kinds.lock().unwrap(),
            (0..RECORDS).collect::<Vec<_>>()
        );
    }
}

fn listening(job: &Job, options: StreamOptions) -> (Shuffle, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let keep = Arc::clone(&heard);
    let shuffle = job
        .shuffle("all")
        .options(options)
        .handler(move |message, _| keep.add(message.kind))
        .open()
        .unwrap();
    (shuffle, heard)
}

/// So little room that everybody waits for everybody: one record waits for the handler, one is on
/// its way.
fn tiny() -> StreamOptions {
    StreamOptions {
        deliverq_max: 1,
        run_bytes: 24,
        origin_maxrpc: 1,
        origin_buftarget_bytes: 1,
        relay_maxrpc: 1,
        relay_buftarget_bytes: 1,
        ..StreamOptions::default()
    }
}

/// Sends to the next rank.
fn send_all(job: &Job, shuffle: &Shuffle) {
    let target = Rank((job.rank().0 + 1) % job.size());
    for kind in 0..RECORDS {
        shuffle.send(target, kind, b"record").unwrap();
    }
}

/// Each of `size` ranks sends to the next one and does `then`; all hear what they shall.
fn exchange(size: usize, options: fn() -> StreamOptions, then: fn(&Shuffle, &Heard)) {
    explore_jobs(move || {
        run(size, move |job| {
            let (shuffle, heard) = listening(&job, options());
            send_all(&job, &shuffle);
            then(&shuffle, &heard);
            heard.wait_for(RECORDS as usize);
            heard.check();
            drop(shuffle);
            job.shutdown().unwrap();
        });
    });
}

#[test]
fn a_fence_ends_after_everything_was_handled() {
    exchange(2, tiny, |shuffle, heard| {
        shuffle.fence().unwrap();
        heard.check();
    });
}

#[test]
fn a_rank_alone_flushes_what_it_sends_to_itself() {
    exchange(1, tiny, |shuffle, heard| {
        shuffle.flush(Queues::ORIGIN).unwrap();
        shuffle.flush(Queues::Delivery).unwrap();
        heard.check();
    });
}

#[test]
fn a_flush_ends_after_everything_was_taken() {
    exchange(2, tiny, |shuffle, _| {
        for queues in [
            Queues::ORIGIN,
            Queues::REMOTE,
            Queues::RELAY,
            Queues::Delivery,
        ] {
            shuffle.flush(queues).unwrap();
        }
    });
}

/// Two threads of each rank send, and flush; what one of them moves, the other one may wait for.
#[test]
fn threads_that_flush_at_once_end_both() {
    explore_jobs(|| {
        run(2, |job| {
            let (shuffle, heard) = listening(&job, tiny());
            let other = thread::spawn({
                let (job, shuffle) = (job.clone(), shuffle.clone());
                move || {
                    send_all(&job, &shuffle);
                    shuffle.flush(Queues::ORIGIN).unwrap();
                    shuffle.flush(Queues::Delivery).unwrap();
                }
            });
            send_all(&job, &shuffle);
            shuffle.flush(Queues::ORIGIN).unwrap();
            other.join().unwrap();
            heard.wait_for(2 * RECORDS as usize);
            drop(shuffle);
            job.shutdown().unwrap();
        });
    });
}

/// A waker that keeps the progress thread from its work for a while, without the turn.
struct Dawdler;

impl Wake for Dawdler {
    fn wake(self: std::sync::Arc<Self>) {
        dawdle();
    }
}

fn dawdle() {
    (0..100).for_each(|_| thread::yield_now());
}

/// Two threads wait for the same record to be taken, while the progress thread is awake and does
/// something else. What one of them has seen nobody finds any more: the other one has to hear of
/// it before the progress thread sleeps.
#[test]
fn threads_that_flush_the_same_record_end_both() {
    explore_jobs(|| {
        let flushed = Arc::new(Heard::default());
        run(2, move |job| {
            let (shuffle, _) = listening(&job, tiny());
            let step = job.shuffle("step").handler(|_, _| ()).open().unwrap();
            for kind in 0..RECORDS {
                let mut over = step.begin_step(Contributors::Local(0)).unwrap();
                let mut is_over = false;
                if job.rank() == Rank(0) {
                    let waker = Waker::from(std::sync::Arc::new(Dawdler));
                    let mut context = Context::from_waker(&waker);
                    is_over = Pin::new(&mut over).poll(&mut context).is_ready();
                    shuffle.send(Rank(1), kind, b"record").unwrap();
                    let other = thread::spawn({
                        let shuffle = shuffle.clone();
                        move || shuffle.flush(Queues::ORIGIN).unwrap()
                    });
                    shuffle.flush(Queues::ORIGIN).unwrap();
                    other.join().unwrap();
                    flushed.add(kind);
                }
                // Further calls of the other rank would send something.
                flushed.wait_for(kind as usize + 1);
                if !is_over {
                    step.wait().unwrap();
                }
            }
            drop((shuffle, step));
            job.shutdown().unwrap();
        });
    });
}

/// A fence calls the handler of its stream, and that of another one of the same thread, or the
/// delivery thread does.
#[test]
fn a_fence_of_one_stream_keeps_no_handler_of_another_waiting() {
    explore_jobs(|| {
        run(2, |job| {
            let (shuffle, heard) = listening(&job, tiny());
            let other = Arc::new(Heard::default());
            let keep = Arc::clone(&other);
            let beside = job
                .shuffle("beside")
                .options(tiny())
                .handler(move |message, _| {
                    dawdle();
                    keep.add(message.kind);
                })
                .open()
                .unwrap();
            send_all(&job, &beside);
            send_all(&job, &shuffle);
            shuffle.fence().unwrap();
            heard.check();
            other.wait_for(RECORDS as usize);
            other.check();
            drop((shuffle, beside));
            job.shutdown().unwrap();
        });
    });
}

/// One thread waits for a message, which another one of its process sends: nothing rings for it.
#[test]
fn a_get_hears_of_a_message_of_another_thread() {
    explore_jobs(|| {
        run(1, |job| {
            let channels = job.channels("between threads").open().unwrap();
            let inbox = channels.create(ChannelLimits::default()).unwrap();
            let sender = thread::spawn({
                let outbox = channels.attach(&inbox.descriptor()).unwrap();
                move || {
                    let (when, timeout) = (Return::WhenReceived, Timeout::Never);
                    outbox.send(7, b"news", when, timeout).unwrap();
                }
            });
            assert_eq!(inbox.get(Timeout::Never).unwrap().kind, 7);
            sender.join().unwrap();
            drop(inbox);
            channels.shutdown().unwrap();
            job.shutdown().unwrap();
        });
    });
}

/// One thread waits for a message and sleeps for the job, while another one waits for room: it says
/// that itself.
#[test]
fn a_send_finds_room_beside_a_thread_that_waits_for_something_else() {
    explore_jobs(|| {
        run(2, |job| {
            let channels = job.channels("between threads").open().unwrap();
            let (shuffle, heard) = listening(&job, tiny());
            if job.rank() == Rank(0) {
                let inbox = channels.create(ChannelLimits::default()).unwrap();
                let sender = thread::spawn({
                    let outbox = channels.attach(&inbox.descriptor()).unwrap();
                    let (job, shuffle) = (job.clone(), shuffle.clone());
                    move || {
                        send_all(&job, &shuffle);
                        shuffle.flush(Queues::ORIGIN).unwrap();
                        let (when, timeout) = (Return::WhenReceived, Timeout::Never);
                        outbox.send(7, b"all is sent", when, timeout).unwrap();
                    }
                });
                assert_eq!(inbox.get(Timeout::Never).unwrap().kind, 7);
                sender.join().unwrap();
            } else {
                heard.wait_for(RECORDS as usize);
            }
            channels.shutdown().unwrap();
            drop(shuffle);
            job.shutdown().unwrap();
        });
    });
}

/// Rounds of two ranks, each of which sends two records in each; `end` ends one of them, and is
/// given how many records have been handled then.
fn rounds(end: fn(&Shuffle, &Heard, usize)) {
    explore_jobs(move || {
        run(2, move |job| {
            let (shuffle, heard) = listening(&job, tiny());
            let target = Rank((job.rank().0 + 1) % job.size());
            for kinds in [0..2, 2..RECORDS] {
                let records = kinds.end as usize;
                kinds.for_each(|kind| shuffle.send(target, kind, b"record").unwrap());
                end(&shuffle, &heard, records);
                let handled = heard.kinds.lock().unwrap().len();
                assert!(handled >= records, "{handled} of {records} are handled");
            }
            heard.check();
            drop(shuffle);
            job.shutdown().unwrap();
        });
    });
}

#[test]
fn a_round_ends_after_everything_of_it_was_handled() {
    rounds(|shuffle, _, _| shuffle.round().unwrap());
}

/// Until a rank has asked, nothing of the next round is handled there, though others are in it.
#[test]
fn a_round_that_was_started_ends_when_it_is_asked_for() {
    rounds(|shuffle, heard, records| {
        shuffle.start(End::Round).unwrap();
        loop {
            let handled = heard.kinds.lock().unwrap().len();
            assert!(
                handled <= records,
                "{handled} are handled, {records} of this round"
            );
            if shuffle.test().unwrap() {
                break;
            }
            thread::yield_now();
        }
    });
}

/// A rank starts the end of its round and makes no call until all others have heard of theirs.
#[test]
fn a_round_that_was_started_ends_for_others_though_no_caller_comes_back() {
    explore_jobs(|| {
        let over = Arc::new(Heard::default());
        run(2, move |job| {
            let (shuffle, heard) = listening(&job, tiny());
            send_all(&job, &shuffle);
            if job.rank() == Rank(0) {
                shuffle.start(End::Round).unwrap();
                over.wait_for(1);
                shuffle.wait().unwrap();
            } else {
                shuffle.round().unwrap();
                over.add(0);
            }
            heard.check();
            drop(shuffle);
            job.shutdown().unwrap();
        });
    });
}

#[test]
fn what_was_sent_is_handled_though_no_caller_comes_back() {
    exchange(2, tiny, |_, _| ());
}

/// A queue of which one record is too little to be shown by a round that has moved something.
#[test]
fn what_one_round_in_passing_leaves_unshown_is_handled_though_no_caller_comes_back() {
    let roomy = || StreamOptions {
        deliverq_max: 64,
        ..StreamOptions::default()
    };
    exchange(1, roomy, |_, _| ());
    exchange(2, roomy, |_, _| ());
}

/// Fewer records than the threshold wait for more, or for somebody who waits for them.
#[test]
fn a_flush_is_kept_waiting_by_no_threshold() {
    let thrifty = || StreamOptions {
        deliverq_max: 64,
        shim: ShimOptions {
            deliverq_threshold: 60,
            ..ShimOptions::default()
        },
        ..StreamOptions::default()
    };
    exchange(2, thrifty, |shuffle, heard| {
        shuffle.fence().unwrap();
        heard.check();
    });
}

/// Above the kinds of messages, those of their answers.
const ANSWER: u32 = 1 << 31;

/// Handlers answer each message on the stream that they hear, whose queues have no room for it: the
/// answers are spilled, and the next call waits until they have left.
fn answers(size: usize, then: fn(&Shuffle)) {
    let options = || StreamOptions {
        given_shares: Some(Shares {
            spill_mark_bytes: 1,
            ..Shares::default()
        }),
        ..tiny()
    };
    explore_jobs(move || {
        run(size, move |job| {
            let (heard, answered) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
            let shuffle = job
                .shuffle("answers")
                .options(options())
                .handler({
                    let (heard, answered) = (Arc::clone(&heard), Arc::clone(&answered));
                    move |message, shuffle| {
                        if message.kind >= ANSWER {
                            return answered.add(message.kind - ANSWER);
                        }
                        shuffle
                            .send(message.source, message.kind + ANSWER, b"answer")
                            .unwrap();
                        heard.add(message.kind);
                    }
                })
                .open()
                .unwrap();
            send_all(&job, &shuffle);
            then(&shuffle);
            for side in [&heard, &answered] {
                side.wait_for(RECORDS as usize);
                side.check();
            }
            drop(shuffle);
            job.shutdown().unwrap();
        });
    });
}

#[test]
fn answers_that_are_spilled_are_handled_before_a_fence_ends() {
    answers(2, |shuffle| shuffle.fence().unwrap());
}

#[test]
fn answers_that_are_spilled_are_handled_though_no_caller_comes_back() {
    answers(1, |_| ());
    answers(2, |_| ());
}

/// The handler of one rank fails, before or while all wait in a fence: each of them ends by that.
#[test]
fn a_fence_ends_when_a_handler_fails() {
    explore_jobs(|| {
        run(2, |job| {
            let fails = job.rank() == Rank(1);
            let shuffle = job
                .shuffle("fragile")
                .options(tiny())
                .handler(move |message, _| assert!(!fails || message.kind < 2, "on purpose"))
                .open()
                .unwrap();
            // Nobody sends before all have opened; the failure may be there before a rank knows
            // that all have.
            let opened = job.barrier();
            let send = |kind| shuffle.send(Rank(1), kind, b"record");
            let sent = opened.and_then(|()| (0..RECORDS).try_for_each(send));
            assert!(sent.and_then(|()| shuffle.fence()).is_err());
            assert!(job.shutdown().is_err());
        });
    });
}

/// Handlers of one stream send on another: a fence of all streams that was started ends behind what
/// these cause, and collectives are called beside it.
#[test]
fn a_fence_of_all_streams_that_was_started_ends_after_everything_was_handled() {
    explore_jobs(|| {
        run(2, |job| {
            let (second, heard) = listening(&job, tiny());
            let first = job
                .shuffle("first")
                .options(tiny())
                .handler(move |message, _| {
                    second
                        .send(message.source, message.kind, b"answer")
                        .unwrap();
                })
                .open()
                .unwrap();
            send_all(&job, &first);
            job.start_fence().unwrap();
            job.barrier().unwrap();
            while !job.test_fence().unwrap() {
                thread::yield_now();
            }
            heard.check();
            job.start_fence().unwrap();
            job.wait_fence().unwrap();
            drop(first);
            job.shutdown().unwrap();
        });
    });
}

/// Elements change places while items are on their way to them: these come late, and are sent on.
#[test]
fn elements_that_move_have_each_item_once() {
    const ITEMS: u64 = 3;
    explore_jobs(|| {
        run(2, |job| {
            let size = u64::from(job.size());
            let array = job
                .array::<u64, u64, _>("elements", Plain)
                .options(tiny())
                .open(|_, sum, item, outbox| {
                    *sum += item;
                    if item < ITEMS {
                        let other = Rank(1 - outbox.rank().0);
                        outbox.migrate(other).unwrap();
                    }
                })
                .unwrap();
            array.insert(u64::from(job.rank().0), 0).unwrap();
            array.fence().unwrap();
            for item in 1..=ITEMS {
                (0..size).for_each(|key| array.push(key, &item).unwrap());
            }
            array.start_fence().unwrap();
            array.wait().unwrap();
            let sums = array.with(|_, sum| *sum).unwrap();
            let mut all = [sums.iter().sum(), sums.len() as u64];
            job.allreduce(&mut all, Reduce::Sum).unwrap();
            assert_eq!(all, [size * size * ITEMS * (ITEMS + 1) / 2, size]);
            array.shutdown().unwrap();
            job.shutdown().unwrap();
        });
    });
}
