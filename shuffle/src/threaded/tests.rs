// Counters between threads of a test; nothing here is modelled.
#![allow(clippy::disallowed_types)]

mod failures;
mod long_records;
mod long_waits;
mod many_threads;
mod polls;

use std::io::Write;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trihop_transport::bootstrap::Launcher;
use trihop_transport::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, thread};

use super::*;
use crate::config::{ShimOptions, StreamOptions};
use crate::error::Error;
use crate::queue::audience::BroadcastTo;
use crate::seat::Seating;
use crate::terminate::flush::Queues;

fn job() -> Job {
    Job::start(Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    })
    .unwrap()
}

/// After this time a test is taken for hanging.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Waits for a condition that must come true.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + WATCHDOG;
    while !condition() {
        assert!(
            std::time::Instant::now() < deadline,
            "waited in vain: {what}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the progress thread sleeps, so that only a bell wakes it.
fn until_asleep(job: &Job) {
    until("the progress thread sleeps", || {
        job.seat().sleeps_deeply() == Some(true)
    });
}

type Heard = Arc<Mutex<Vec<(u32, Vec<u8>)>>>;

/// Opens a shuffle that keeps what it hears.
fn listening(job: &Job, name: &str) -> (Shuffle, Heard) {
    let heard = Heard::default();
    let keep = Arc::clone(&heard);
    let shuffle = job
        .shuffle(name)
        .handler(move |m, _| keep.lock().unwrap().push((m.kind, m.bytes.to_vec())))
        .open()
        .unwrap();
    (shuffle, heard)
}

#[test]
fn records_of_all_lengths_arrive_in_order_before_a_fence_returns() {
    let job = job();
    let (shuffle, heard) = listening(&job, "all lengths");
    let lengths = [0usize, 1, 24, 600, 5_000, 100_000, 3_000_000];
    for (kind, &length) in (0..).zip(&lengths) {
        shuffle
            .send(Rank(0), kind, &vec![kind as u8; length])
            .unwrap();
    }
    shuffle.fence().unwrap();
    let expected: Vec<_> = (0..)
        .zip(&lengths)
        .map(|(kind, &l)| (kind, vec![kind as u8; l]))
        .collect();
    assert!(*heard.lock().unwrap() == expected);
    let stats = shuffle.stats().unwrap();
    assert_eq!(stats.delivered, lengths.len() as u64);
    assert_eq!(
        stats.frames_received, stats.origin_frames,
        "all went to oneself"
    );
    assert!(job.rounds().unwrap() > 0);
    assert!(matches!(
        shuffle.send(Rank(1), 0, b""),
        Err(Error::Rank { rank: 1, size: 1 })
    ));
    job.shutdown().unwrap();
    assert!(matches!(shuffle.fence(), Err(Error::Closed(_))));
}

#[test]
fn what_is_sent_arrives_although_the_application_never_calls_again() {
    let job = job();
    let (tell, told) = mpsc::channel();
    let shuffle = job
        .shuffle("by age")
        .handler(move |m, _| tell.send(m.kind).unwrap())
        .open()
        .unwrap();
    for kind in 0..3 {
        until_asleep(&job);
        shuffle.send(Rank(0), kind, b"on its own").unwrap();
        assert_eq!(told.recv_timeout(WATCHDOG), Ok(kind));
    }
    job.shutdown().unwrap();
}

#[test]
fn a_blocked_handler_with_a_thread_of_its_own_holds_up_no_other_stream() {
    let job = job();
    let (open_gate, gate) = mpsc::channel::<()>();
    let options = StreamOptions {
        deliverq_max: 64,
        own_thread: true,
        ..StreamOptions::default()
    };
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let bulk = job
        .shuffle("bulk")
        .options(options)
        .handler(move |_, _| {
            if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                let _ = gate.recv_timeout(WATCHDOG);
            }
        })
        .open()
        .unwrap();
    let (urgent, heard) = listening(&job, "urgent");
    const RECORDS: u64 = 100_000;
    let stuck = Arc::new(AtomicBool::new(true));
    let sender = thread::spawn({
        let (bulk, stuck) = (bulk.clone(), Arc::clone(&stuck));
        move || {
            for _ in 0..RECORDS {
                bulk.send(Rank(0), 0, &[7; 100]).unwrap();
            }
            stuck.store(false, Ordering::Relaxed);
        }
    });
    until("deliveries are blocked", || {
        bulk.stats().unwrap().blocked_deliveries > 0
    });
    for kind in 0..50 {
        urgent.send(Rank(0), kind, b"now").unwrap();
        urgent.flush(Queues::ORIGIN).unwrap();
        urgent.flush(Queues::Delivery).unwrap();
        assert_eq!(heard.lock().unwrap().len() as u32, kind + 1);
    }
    assert!(stuck.load(Ordering::Relaxed), "the queues took everything");
    assert!(count.load(Ordering::Relaxed) <= 1);
    open_gate.send(()).unwrap();
    sender.join().unwrap();
    bulk.fence().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), RECORDS);
    job.shutdown().unwrap();
}

#[test]
fn a_fence_counts_what_handlers_send_and_a_handler_may_not_wait_for_itself() {
    let job = job();
    let slot: Arc<Mutex<Option<Shuffle>>> = Arc::default();
    let (answers, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let shuffle = job
        .shuffle("answers")
        .handler({
            let (slot, answers, refused) = (
                Arc::clone(&slot),
                Arc::clone(&answers),
                Arc::clone(&refused),
            );
            move |m, _| {
                let guard = slot.lock().unwrap();
                let shuffle = guard.as_ref().unwrap();
                match m.kind {
                    // A chain of sends, far beyond what is gathered in one run.
                    1.. => shuffle.send(Rank(0), m.kind - 1, &[1; 200]).unwrap(),
                    0 => _ = answers.fetch_add(1, Ordering::Relaxed),
                }
                let nested = [shuffle.fence(), shuffle.flush(Queues::Delivery)];
                let all = nested.iter().all(|n| matches!(n, Err(Error::Nested(_))));
                refused.fetch_add(u64::from(all), Ordering::Relaxed);
            }
        })
        .open()
        .unwrap();
    *slot.lock().unwrap() = Some(shuffle.clone());
    for _ in 0..1000 {
        shuffle.send(Rank(0), 20, b"").unwrap();
    }
    shuffle.fence().unwrap();
    assert_eq!(answers.load(Ordering::Relaxed), 1000);
    assert_eq!(refused.load(Ordering::Relaxed), 21_000);
    *slot.lock().unwrap() = None;
    job.shutdown().unwrap();
}

#[test]
fn few_records_below_the_threshold_are_delivered_all_the_same() {
    let job = job();
    let options = StreamOptions {
        shim: ShimOptions {
            deliverq_threshold: 1000,
            ..ShimOptions::default()
        },
        ..StreamOptions::default()
    };
    let (tell, told) = mpsc::channel();
    let shuffle = job
        .shuffle("threshold")
        .options(options)
        .handler(move |m, _| tell.send(m.kind).unwrap())
        .open()
        .unwrap();
    shuffle.send(Rank(0), 9, b"few").unwrap();
    assert_eq!(told.recv_timeout(WATCHDOG), Ok(9));
    let impossible = StreamOptions {
        shim: ShimOptions {
            deliverq_threshold: 8,
            ..ShimOptions::default()
        },
        deliverq_max: 4,
        ..StreamOptions::default()
    };
    let refused = job
        .shuffle("impossible")
        .options(impossible)
        .handler(|_, _| {})
        .open()
        .err();
    let text = refused.unwrap().to_string();
    assert!(
        text.contains("deliverq_threshold") && text.contains('3'),
        "{text}"
    );
    job.shutdown().unwrap();
}

#[test]
fn a_handler_that_panics_fails_the_job_with_what_it_said() {
    let job = job();
    let shuffle = job
        .shuffle("fragile")
        .handler(|_, _| panic!("on purpose"))
        .open()
        .unwrap();
    shuffle.send(Rank(0), 0, b"").unwrap();
    let error = shuffle.fence().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("fragile") && text.contains("on purpose"),
        "{text}"
    );
}

#[test]
fn items_of_a_size_known_at_run_time() {
    let job = job();
    let sum = Arc::new(AtomicU64::new(0));
    let add = Arc::clone(&sum);
    let items = job
        .untyped("items", 12)
        .handler(move |items, _| {
            assert_eq!(
                (items.source, items.bytes.len()),
                (Rank(0), 12 * items.count)
            );
            for item in items.bytes.chunks(12) {
                add.fetch_add(u64::from(item[11]), Ordering::Relaxed);
            }
        })
        .open()
        .unwrap();
    items.push(Rank(0), &[1; 12]).unwrap();
    assert_eq!(items.push_many(&[0; 1000], &[2; 12_000]), (1000, Ok(())));
    assert!(items.push_many(&[0; 2], &[0; 23]).1.is_err());
    let (taken, outcome) = items.push_many(&[0, 0, 7, 0], &[0; 48]);
    assert_eq!((taken, outcome), (2, Err(Error::Rank { rank: 7, size: 1 })));
    assert!(items.push(Rank(1), &[0; 12]).is_err());
    for refused in [
        items.send(Rank(0), 0, &[0; 12]),
        items.try_send(Rank(0), 0, &[0; 12]),
        items.send_filled(Rank(0), 0, 12, |_| ()),
        items.broadcast(1, &[0; 12], BroadcastTo::Everyone),
    ] {
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    }
    items.fence().unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), 2001);
    items.shutdown().unwrap();
    let records = job.untyped("records", 0).handler(|_, _| {}).open().unwrap();
    assert!(records.push(Rank(0), &[]).is_err() && records.push_many(&[], &[]).1.is_err());
    records.send(Rank(0), 3, b"any length").unwrap();
    records.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn without_a_handler_any_thread_takes_what_has_come() {
    let job = job();
    let shuffle = job.shuffle("taken").open().unwrap();
    let mut kinds = Vec::new();
    for kind in 0..1000 {
        shuffle.send(Rank(0), kind, b"x").unwrap();
    }
    let taking = thread::spawn({
        let shuffle = shuffle.clone();
        move || {
            until("all have come", || {
                shuffle.take(|message| kinds.push(message.kind)).unwrap();
                kinds.len() == 1000
            });
            kinds
        }
    });
    let kinds = taking.join().unwrap();
    assert_eq!(kinds, (0..1000).collect::<Vec<_>>());
    shuffle.fence().unwrap();
    shuffle.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn a_signal_makes_the_progress_thread_dump_into_a_file_per_rank() {
    let job = job();
    let (shuffle, _) = listening(&job, "looked at");
    shuffle.send(Rank(0), 0, b"record").unwrap();
    shuffle.fence().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let output = DumpOutput::Files(directory.path().join("dump"));
    job.dump_on(libc::SIGUSR2, output).unwrap();
    assert!(job.dump_on(libc::SIGKILL, DumpOutput::Stderr).is_err());
    // SAFETY: raising a signal that has a handler has no requirements.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    let file = directory.path().join("dump.0");
    let whole = |text: &String| text.contains("thread deliver: ");
    let mut text = String::new();
    until("a dump is written", || {
        text = std::fs::read_to_string(&file).unwrap_or_default();
        whole(&text)
    });
    assert!(
        text.contains("stream 1 `looked at`") && text.contains("thread progress"),
        "{text}"
    );
    let names: Vec<_> = job.threads().into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["progress", "deliver"]);
    job.shutdown().unwrap();
}

#[test]
fn streams_share_a_delivery_thread_but_those_that_ask_for_their_own() {
    let job = job();
    let names = || -> Vec<String> { job.threads().into_iter().map(|t| t.name).collect() };
    assert_eq!(names(), ["progress"]);
    let threads = Arc::new(Mutex::new(Vec::new()));
    let open = |name: &str, own_thread| {
        let (threads, dropped) = (Arc::clone(&threads), Arc::new(()));
        let alive = Arc::downgrade(&dropped);
        let options = StreamOptions {
            own_thread,
            ..StreamOptions::default()
        };
        let shuffle = job.shuffle(name).options(options).handler(move |_, _| {
            let _owned = &dropped;
            threads.lock().unwrap().push(thread::current().id());
        });
        (shuffle.open().unwrap(), alive)
    };
    let (first, first_lives) = open("first", false);
    let (second, _) = open("second", false);
    let (own, _) = open("own", true);
    assert_eq!(names(), ["progress", "deliver", "deliver own"]);
    let called_on = |shuffle: &Shuffle| {
        shuffle.send(Rank(0), 0, b"record").unwrap();
        // A fence would call the handler itself.
        until("the handler is called", || {
            !threads.lock().unwrap().is_empty()
        });
        shuffle.fence().unwrap();
        let called = std::mem::take(&mut *threads.lock().unwrap());
        assert_eq!(called.len(), 1, "{}", shuffle.name());
        called[0]
    };
    let common = called_on(&first);
    assert_eq!(called_on(&second), common);
    assert_ne!(called_on(&own), common);
    // The thread goes on without a stream that is shut down, whose handler is gone.
    own.shutdown().unwrap();
    first.shutdown().unwrap();
    assert!(first_lives.upgrade().is_none());
    assert_eq!(called_on(&second), common);
    let (third, _) = open("third", false);
    assert_eq!(called_on(&third), common);
    assert_eq!(names(), ["progress", "deliver"]);
    job.shutdown().unwrap();
}

/// Several threads end steps of their streams, which share a delivery thread, while records come:
/// the handlers are called by those threads too, and by one at a time.
#[test]
fn who_waits_for_a_handler_calls_it_and_nobody_else_does_meanwhile() {
    const STEPS: u32 = 500;
    let job = job();
    let calling = Arc::new(AtomicU32::new(0));
    let mut streams = Vec::new();
    for name in ["first", "second"] {
        let called = Arc::new(Mutex::new(Vec::new()));
        let (calls, calling) = (Arc::clone(&called), Arc::clone(&calling));
        let shuffle = job.shuffle(name).handler(move |message, shuffle| {
            assert_eq!(
                calling.fetch_add(1, Ordering::SeqCst),
                0,
                "two calls at once"
            );
            assert!(matches!(shuffle.fence(), Err(Error::Nested(_))));
            let number = u32::from_le_bytes(message.bytes.try_into().unwrap());
            calls.lock().unwrap().push((number, thread::current().id()));
            thread::yield_now();
            calling.fetch_sub(1, Ordering::SeqCst);
        });
        streams.push((shuffle.open().unwrap(), called));
    }
    // Who waits for one of them may call the other's handler, too.
    let by_callers = AtomicU32::new(0);
    let callers = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (shuffle, called) in &streams {
            let (by_callers, callers) = (&by_callers, &callers);
            scope.spawn(move || {
                callers.lock().unwrap().push(thread::current().id());
                for step in 0..STEPS {
                    shuffle.send(Rank(0), 0, &step.to_le_bytes()).unwrap();
                    match step % 3 {
                        0 => shuffle.fence().unwrap(),
                        1 => shuffle.round().unwrap(),
                        _ => shuffle.flush(Queues::ORIGIN).unwrap(),
                    }
                }
                shuffle.fence().unwrap();
                let called = called.lock().unwrap();
                let numbers: Vec<_> = called.iter().map(|(number, _)| *number).collect();
                assert_eq!(numbers, (0..STEPS).collect::<Vec<_>>());
                let callers = callers.lock().unwrap();
                let by_them = called.iter().filter(|(_, by)| callers.contains(by));
                by_callers.fetch_add(by_them.count() as u32, Ordering::SeqCst);
            });
        }
    });
    let by_callers = by_callers.into_inner();
    assert!(by_callers > 0, "never by who waits");
    drop(streams);
    job.shutdown().unwrap();
}

/// What a handler sends on another stream of the same thread is handled by who waits too, whichever
/// fence that is.
#[test]
fn who_waits_for_a_handler_calls_those_of_other_streams_too() {
    const STEPS: u32 = 500;
    let job = job();
    let called = Arc::new(Mutex::new(Vec::new()));
    let calls = Arc::clone(&called);
    let second = job.stream::<u32>("second").handler(move |_, items, _| {
        let own = thread::current().id();
        calls.lock().unwrap().extend(items.iter().map(|_| own));
    });
    let second = second.open().unwrap();
    let sends_on = second.clone();
    let first = job.stream::<u32>("first").handler(move |source, items, _| {
        sends_on
            .extend(items.iter().map(|&item| (source, item)))
            .unwrap();
    });
    let first = first.open().unwrap();
    for of_all in [false, true] {
        for step in 0..STEPS {
            first.push(Rank(0), step).unwrap();
            match of_all {
                true => job.fence().unwrap(),
                false => {
                    first.fence().unwrap();
                    second.fence().unwrap();
                }
            }
        }
        let called = std::mem::take(&mut *called.lock().unwrap());
        assert_eq!(called.len(), STEPS as usize);
        let own = thread::current().id();
        let by_own = called.iter().filter(|by| **by == own).count();
        assert!(by_own > 0, "never by who waits");
    }
    drop((first, second));
    job.shutdown().unwrap();
}

/// What is called at the end of a step that is not started goes where nothing is in use.
#[test]
fn what_is_not_called_at_an_end_may_own_what_uses_the_job() {
    struct Uses(Shuffle, std::sync::mpsc::Sender<bool>);
    impl Drop for Uses {
        fn drop(&mut self) {
            self.1.send(self.0.stats().is_some()).unwrap();
        }
    }
    let job = job();
    let (shuffle, _) = listening(&job, "steps");
    let (tell, told) = std::sync::mpsc::channel();
    shuffle.start(crate::End::Round).unwrap();
    let uses = Uses(shuffle.clone(), tell);
    let twice = shuffle
        .step(crate::End::Fence)
        .at_end(move |_| drop(uses))
        .begin();
    assert!(matches!(twice.map(drop), Err(Error::Misuse { .. })));
    assert_eq!(told.recv(), Ok(true), "the engine was in use");
    shuffle.wait().unwrap();
    drop(shuffle);
    job.shutdown().unwrap();
}

#[test]
fn what_a_handler_owns_may_panic_as_it_goes_and_the_others_are_called_on() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let job = job();
    let owned = Panics;
    let first = job.shuffle("first").handler(move |_, _| {
        let _ = &owned;
    });
    let first = first.open().unwrap();
    let (second, heard) = listening(&job, "second");
    first.shutdown().unwrap();
    second.send(Rank(0), 3, b"").unwrap();
    second.fence().unwrap();
    assert_eq!(heard.lock().unwrap().len(), 1);
    job.shutdown().unwrap();
}

#[test]
fn handlers_answer_on_the_stream_that_they_are_given() {
    let job = job();
    let (answers, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (hear, add) = (Arc::clone(&answers), Arc::clone(&sum));
    let records = job.shuffle("records").handler(move |message, shuffle| {
        assert_eq!(
            (shuffle.rank(), shuffle.size(), shuffle.name()),
            (Rank(0), 1, "records")
        );
        match message.kind {
            0 => shuffle.send(message.source, 1, message.bytes).unwrap(),
            _ => {
                hear.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let records = records.open().unwrap();
    // Each item comes back once, smaller by one, until it is 0.
    let items = job
        .stream::<u64>("items")
        .handler(move |source, items, stream| {
            add.fetch_add(items.iter().sum(), Ordering::Relaxed);
            let smaller = items.iter().filter(|item| **item > 0);
            stream
                .extend(smaller.map(|item| (source, item - 1)))
                .unwrap();
        });
    let items = items.open().unwrap();
    for number in 0..1000 {
        records.send(Rank(0), 0, b"a request").unwrap();
        items.push(Rank(0), number % 4).unwrap();
    }
    records.fence().unwrap();
    items.fence().unwrap();
    assert_eq!(answers.load(Ordering::Relaxed), 1000);
    assert_eq!(sum.load(Ordering::Relaxed), 250 * (1 + 3 + 6));
    job.shutdown().unwrap();
}

/// Says that it was dropped.
struct Dropped(mpsc::Sender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn what_a_handler_keeps_of_its_stream_does_not_keep_the_job() {
    let job = job();
    let kept = Arc::new(Mutex::new(None));
    let (tell, told) = mpsc::channel();
    let (keep, dropped) = (Arc::clone(&kept), Dropped(tell));
    let shuffle = job.shuffle("kept").handler(move |_, shuffle| {
        let _ = &dropped;
        *keep.lock().unwrap() = Some(shuffle.clone());
    });
    let shuffle = shuffle.open().unwrap();
    shuffle.send(Rank(0), 0, b"x").unwrap();
    shuffle.fence().unwrap();
    drop(shuffle);
    drop(job);
    // The delivery thread has ended, and the handler is gone.
    told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(kept.lock().unwrap().is_some());
}

#[test]
fn a_handler_may_take_the_records_of_a_run_at_once() {
    let lengths = [0usize, 24, 600, 24, 0, 100_000, 7];
    let job = job();
    let heard = Arc::new(Mutex::new((0, Vec::new())));
    let keep = Arc::clone(&heard);
    let shuffle = job.shuffle("runs").run_handler(move |messages, shuffle| {
        let (calls, lengths) = &mut *keep.lock().unwrap();
        *calls += 1;
        assert_eq!(messages.source(), shuffle.rank());
        let said = messages.len();
        let before = lengths.len();
        lengths.extend(messages.map(|message| (message.kind, message.bytes.len())));
        assert_eq!(lengths.len(), before + said);
    });
    let shuffle = shuffle.open().unwrap();
    for round in 0..100 {
        for length in lengths {
            shuffle.send(Rank(0), round, &vec![1; length]).unwrap();
        }
    }
    shuffle.fence().unwrap();
    let rounds = 0..100u32;
    let expected: Vec<_> = rounds
        .flat_map(|round| lengths.map(|length| (round, length)))
        .collect();
    let (calls, heard) = &*heard.lock().unwrap();
    assert_eq!(*heard, expected);
    assert!(
        *calls < expected.len(),
        "{calls} calls for {} records",
        expected.len()
    );
    job.shutdown().unwrap();
}

#[test]
fn a_state_is_changed_by_handlers_and_read_by_other_threads() {
    let job = job();
    let seen = State::new(vec![0u64; 3]);
    let items = job.stream::<u64>("items");
    let items = items.handler_with(&seen, |seen, source, items, stream| {
        for &item in items {
            seen[item as usize] += 1;
            if item > 0 {
                stream.push(source, item - 1).unwrap();
            }
        }
    });
    let items = items.open().unwrap();
    let records = job.shuffle("records");
    let records = records.handler_with(&seen, |seen, message, shuffle| {
        seen[2] += 10 * u64::from(message.kind) + u64::from(shuffle.size());
    });
    let records = records.open().unwrap();
    items.push(Rank(0), 2).unwrap();
    records.send(Rank(0), 1, &[]).unwrap();
    items.fence().unwrap();
    records.fence().unwrap();
    assert_eq!(seen.with(|seen| seen.clone()), [1, 1, 12]);
    items.shutdown().unwrap();
    records.shutdown().unwrap();
    assert_eq!(seen.into_inner().unwrap(), [1, 1, 12]);
    job.shutdown().unwrap();
}
