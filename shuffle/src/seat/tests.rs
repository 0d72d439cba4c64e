//! What only shows in whole jobs on the inline seat.

mod at_once;
mod behind;
mod ends;
mod records;
mod relays;
mod silent;
mod steps;

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::{Custom, Launcher};
use trihop_transport::park::Awake;

use super::{Polls, Seating, Yields};
use crate::config::{Options, StreamOptions};
use crate::conformance::ranks::ranks;
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::{Contributors, Job, Rank, State, UntypedOutbox};

/// Long enough for a machine that does much else.
const LONG: Duration = Duration::from_secs(120);

/// Ranks of a job, and the node of each.
type Shape = (u32, fn(u32) -> u32);

#[test]
fn a_handler_that_panics_ends_the_job_and_is_called_no_more() {
    let calls = Cell::new(0);
    let job = Job::start(single()).unwrap();
    let shuffle = job.shuffle("fragile").handler(|_, _| {
        calls.set(calls.get() + 1);
        panic!("on purpose");
    });
    let shuffle = shuffle.open().unwrap();
    for _ in 0..3 {
        shuffle.send(Rank(0), 0, b"x").unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| shuffle.fence())).is_err());
    let failure = Error::Handler {
        stream: "fragile".to_owned(),
        why: "on purpose".to_owned(),
    };
    assert_eq!(shuffle.fence(), Err(failure.clone()));
    assert_eq!(shuffle.send(Rank(0), 0, b"x"), Err(failure.clone()));
    assert_eq!(job.shutdown(), Err(failure));
    assert_eq!(calls.get(), 1);
}

#[test]
fn a_handler_may_take_the_records_of_a_run_at_once() {
    let (calls, heard) = (Cell::new(0), Cell::new(0));
    let job = Job::start(single()).unwrap();
    // Each request is answered once.
    let shuffle = job.shuffle("runs").run_handler(|messages, outbox| {
        calls.set(calls.get() + 1);
        let source = messages.source();
        for message in messages {
            heard.set(heard.get() + 1);
            if message.kind == 0 {
                outbox.send(source, 1, message.bytes).unwrap();
            }
        }
    });
    let shuffle = shuffle.open().unwrap();
    for _ in 0..1000 {
        shuffle.send(Rank(0), 0, b"request").unwrap();
    }
    shuffle.fence().unwrap();
    assert_eq!(heard.get(), 2000);
    assert!(calls.get() < 1000, "{} calls", calls.get());
    job.shutdown().unwrap();
}

/// Of a job of one rank, a stream of items that adds them up.
fn adding<'h>(job: &Job<'h>, name: &str, sum: &'h Cell<u64>) -> crate::Stream<'h, u64> {
    let stream = job.stream::<u64>(name).handler(|_, items, _| {
        sum.set(sum.get() + items.iter().sum::<u64>());
    });
    stream.open().unwrap()
}

#[test]
fn pushes_that_look_at_no_state_are_there_for_every_other_call() {
    let (sum, other_sum) = (Cell::new(0), Cell::new(0));
    let job = Job::start(single()).unwrap();
    let stream = adding(&job, "items", &sum);
    let other = adding(&job, "others", &other_sum);
    let is_open = |stream: &crate::Stream<'_, u64>| stream.handle.of.is_open();
    stream.push(Rank(0), 1).unwrap();
    assert!(!is_open(&stream), "the first push says nothing of a second");
    stream.push(Rank(0), 2).unwrap();
    assert!(is_open(&stream));
    stream.push(Rank(0), 3).unwrap();
    stream.try_push(Rank(0), 4).unwrap();
    assert!(is_open(&stream));
    let stats = stream.stats().unwrap();
    assert!(!is_open(&stream));
    assert_eq!((stats.sent, stats.sent_bytes), (4, 32));
    // Two streams in turn: neither has the way to itself.
    for item in 5..10 {
        stream.push(Rank(0), item).unwrap();
        other.push(Rank(0), item).unwrap();
        assert!(!is_open(&stream) && !is_open(&other));
    }
    // Where nothing goes through it, it is opened less and less.
    let mut opened = 0;
    for _ in 0..1000 {
        other.push(Rank(0), 0).unwrap();
        opened += u32::from(is_open(&other));
        let _ = other.stats();
    }
    assert!((1..12).contains(&opened), "{opened} times");
    // Once something has gone through it, two pushes in a row open it again; unless this thread has
    // waited for its core in between, and a round of progress is due.
    let opens_again = (0..100).any(|_| {
        while !is_open(&other) {
            other.push(Rank(0), 0).unwrap();
        }
        other.push(Rank(0), 0).unwrap();
        let _ = other.stats();
        other.push(Rank(0), 0).unwrap();
        other.push(Rank(0), 0).unwrap();
        is_open(&other)
    });
    assert!(opens_again);
    other.push(Rank(0), 10).unwrap();
    other.push(Rank(0), 11).unwrap();
    assert!(stream.push(Rank(1), 0).is_err(), "no such rank");
    // Progress is made now and then, while there is still room in the run.
    let rounds = job.rounds().unwrap();
    for item in 0..600 {
        stream.push(Rank(0), item % 2).unwrap();
    }
    assert_eq!(job.rounds().unwrap(), rounds + 1);
    let before = sum.get();
    for item in 0..3_400 {
        stream.push(Rank(0), item % 2).unwrap();
    }
    assert!(sum.get() > before, "delivered without any other call");
    stream.start(crate::End::Round).unwrap();
    assert!(matches!(stream.push(Rank(0), 1), Err(Error::Misuse { .. })));
    stream.wait().unwrap();
    for item in 0..3 {
        stream.push(Rank(0), item).unwrap();
    }
    assert!(is_open(&stream));
    job.fence().unwrap();
    assert_eq!(sum.get(), (1..10).sum::<u64>() + 2_000 + 3);
    assert_eq!(other_sum.get(), (5..12).sum::<u64>());
    stream.push(Rank(0), 1).unwrap();
    stream.push(Rank(0), 1).unwrap();
    let copy = stream.clone();
    job.shutdown().unwrap();
    assert!(!is_open(&copy));
    assert!(matches!(copy.push(Rank(0), 1), Err(Error::Closed(_))));
}

/// Nothing rings for what only time sends on.
#[test]
fn who_sleeps_beside_what_waits_for_time_naps() {
    let sum = Cell::new(0);
    let job = Job::start(single()).unwrap();
    let stream = adding(&job, "items", &sum);
    let naps = || job.seat().look(JobState::prepare_to_sleep).unwrap();
    assert!(!naps());
    stream.push(Rank(0), 1).unwrap();
    assert!(naps());
    stream.fence().unwrap();
    assert!(!naps());
    job.shutdown().unwrap();
}

#[test]
fn what_is_left_of_a_job_that_was_dropped_takes_nothing() {
    let sum = Cell::new(0);
    let job = Job::start(single()).unwrap();
    let stream = adding(&job, "items", &sum);
    for item in 0..3 {
        stream.push(Rank(0), item).unwrap();
    }
    drop(job);
    for _ in 0..3 {
        assert!(matches!(stream.push(Rank(0), 1), Err(Error::Closed(_))));
    }
}

/// Awaits a future on this thread; how often it was polled.
fn block_on<F: Future>(future: F) -> (F::Output, u64) {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    for polls in 1.. {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return (output, polls);
        }
        thread::park_timeout(Duration::from_secs(60));
    }
    unreachable!("it is polled again and again")
}

fn over_network() -> Options {
    Options {
        loopback: true,
        ..Options::default()
    }
}

/// Whatever cores the machine has: by the rule for ranks that have one each.
#[test]
fn waits_learn_whether_yields_are_dear() {
    let job = Job::start(single()).unwrap();
    let waits = |costly: u32| {
        let (mut before, later) = (
            Yields::of_one_thread(Awake::new(1.0, 1)),
            Instant::now() + LONG,
        );
        (0..costly).for_each(|_| before.note((later, later + Duration::from_millis(5))));
        *job.seat().yields() = before.clone();
        let waited = job.seat().wait_awake("a test", |_| Ok(None::<()>));
        assert_eq!(waited, Ok(None));
        let yields = job.seat().yields().clone();
        yields != before
    };
    assert!(waits(1), "what a yield has cost counts");
    assert!(!waits(3), "who has given three slices away yields no more");
    job.shutdown().unwrap();
}

/// By the same rule.
#[test]
fn polls_that_find_nothing_are_counted_until_one_finds_something() {
    let job = Job::start(single()).unwrap();
    let stream = job.stream::<u64>("polled").handler(|_, _, _| ());
    let stream = stream.open().unwrap();
    stream.fence().unwrap();
    let at_leisure = || *job.seat().polls() = Polls::new(Awake::new(1.0, 1));
    let fruitless = || job.seat().polls().fruitless();
    at_leisure();
    while fruitless() < 3 {
        let before = fruitless();
        match job.progress().unwrap() {
            true => assert_eq!(fruitless(), 0),
            false => assert_eq!(fruitless(), before + 1),
        }
    }
    stream.push(Rank(0), 1).unwrap();
    while stream.poll().unwrap() == 0 {}
    assert_eq!(fruitless(), 0);
    stream.shutdown().unwrap();
    job.shutdown().unwrap();
}

fn single() -> Options {
    Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    }
}

/// Each item comes back until it is 0, whose handler is a contributor.
#[test]
fn a_step_is_awaited_and_misuse_is_told() {
    let heard = Cell::new(0);
    let job = Job::start(single()).unwrap();
    let stream = job.stream::<u64>("step").handler(|_, items, outbox| {
        for &item in items {
            heard.set(heard.get() + 1);
            match item.checked_sub(1) {
                Some(less) => outbox.push(Rank(0), less).unwrap(),
                None => outbox.done(1).unwrap(),
            }
        }
    });
    let stream = stream.open().unwrap();
    let is_misuse = |outcome: Result<()>| matches!(outcome, Err(Error::Misuse { .. }));
    assert!(is_misuse(stream.done(1)), "no step");
    for step in 1..=3000u64 {
        let of = match step % 2 {
            0 => Contributors::All(3),
            _ => Contributors::Local(3),
        };
        let ended = stream.begin_step(of).unwrap();
        assert!(is_misuse(stream.begin_step(of).map(drop)), "two at once");
        assert!(is_misuse(stream.round()) && is_misuse(stream.fence()));
        assert!(is_misuse(stream.barrier()) && is_misuse(job.fence()));
        stream.push(Rank(0), 5).unwrap();
        assert!(!stream.test().unwrap());
        stream.push(Rank(0), 6).unwrap();
        stream.done(1).unwrap();
        block_on(ended).0.unwrap();
        assert_eq!(heard.get(), 13 * step);
        assert!(is_misuse(stream.done(1)) && is_misuse(stream.wait()));
    }
    stream.begin_step(Contributors::Local(1)).unwrap();
    assert!(is_misuse(stream.done(2)));
    stream.done(1).unwrap();
    assert!(is_misuse(stream.done(1)) && is_misuse(stream.push(Rank(0), 0)));
    stream.wait().unwrap();
    // What handlers say too early counts, and too much of it is told before anything has begun.
    stream.push(Rank(0), 0).unwrap();
    stream.push(Rank(0), 0).unwrap();
    stream.fence().unwrap();
    assert!(is_misuse(
        stream.begin_step(Contributors::Local(1)).map(drop)
    ));
    assert!(is_misuse(stream.done(1)) && is_misuse(stream.wait()));
    stream.begin_step(Contributors::Local(3)).unwrap();
    stream.push(Rank(0), 7).unwrap();
    stream.wait().unwrap();
    stream.begin_step(Contributors::All(1)).unwrap();
    let failed = stream.done(2).and_then(|()| stream.wait());
    assert!(matches!(failed, Err(Error::Mismatch { .. })), "{failed:?}");
}

#[test]
fn handlers_push_through_a_window_that_all_else_closes() {
    let (heard, calls) = (Cell::new(0), Cell::new(0));
    let job = Job::start(single()).unwrap();
    let answers = job.untyped("answers", 8).handler(|arrival, _| {
        heard.set(heard.get() + arrival.count);
    });
    let answers = answers.open().unwrap();
    let (on, calls) = (answers.clone(), &calls);
    let asked = job.untyped("asked", 8).handler(move |_, outbox| {
        let window = Rc::clone(&on.handle.of);
        let push = |outbox: &mut UntypedOutbox<'_>| {
            // SAFETY: it is closed below.
            unsafe { outbox.push_on(&on, Rank(0), &7_u64.to_ne_bytes()) }.unwrap();
            window.is_open()
        };
        assert!(!push(outbox), "the first push says nothing of a second");
        assert!(push(outbox));
        // As a program in C does, which knows the layout.
        assert!(window.push(0, &7_u64.to_ne_bytes()) && window.push(0, &7_u64.to_ne_bytes()));
        assert!(!window.push(0, &[7]) && !window.push(1, &7_u64.to_ne_bytes()));
        outbox.done(0).unwrap();
        assert!(window.is_open(), "that has no runs");
        assert!(outbox.push(Rank(1), &[0; 8]).is_err());
        assert!(!window.is_open() && !push(outbox));
        let opened = (0..7).filter(|_| push(outbox)).count();
        assert_eq!(opened, 4, "nothing has gone through them");
        calls.set(calls.get() + 1);
    });
    let asked = asked.open().unwrap();
    for call in 1..100 {
        asked.push(Rank(0), &[1; 8]).unwrap();
        job.fence().unwrap();
        assert!(!answers.handle.of.is_open());
        assert_eq!((calls.get(), heard.get()), (call, 12 * call));
        let stats = answers.stats().unwrap();
        let sent = 12 * call as u64;
        assert_eq!((stats.sent, stats.sent_bytes), (sent, 8 * sent));
    }
    drop((asked, answers));
    job.shutdown().unwrap();
}

#[test]
fn a_fence_of_all_streams_is_awaited() {
    let job = Job::start(single()).unwrap();
    let heard = Cell::new(0);
    let stream = job.stream::<u64>("inline").handler(|_, items, outbox| {
        for &item in items {
            heard.set(heard.get() + 1);
            if item > 0 {
                outbox.push(Rank(0), item - 1).unwrap();
            }
        }
    });
    let stream = stream.open().unwrap();
    for fence in 1..50 {
        stream.push(Rank(0), 9).unwrap();
        let ended = job.begin_fence().unwrap();
        assert!(matches!(
            job.begin_fence().err(),
            Some(Error::Misuse { .. })
        ));
        block_on(ended).0.unwrap();
        assert_eq!(heard.get(), 10 * fence);
    }
    // One that is over is so for whoever asks late.
    let late = job.begin_fence().unwrap();
    job.wait_fence().unwrap();
    job.start_fence().unwrap();
    block_on(late).0.unwrap();
    job.wait_fence().unwrap();
    job.shutdown().unwrap();

    let job = crate::threaded::Job::start(single()).unwrap();
    let heard = Arc::new(Mutex::new(0));
    let counting = Arc::clone(&heard);
    let stream = job
        .stream::<u64>("threads")
        .handler(move |_, items, stream| {
            for &item in items {
                *counting.lock().unwrap() += 1;
                if item > 0 {
                    stream.push(Rank(0), item - 1).unwrap();
                }
            }
        });
    let stream = stream.open().unwrap();
    for fence in 1..200 {
        stream.push(Rank(0), 9).unwrap();
        let (over, polls) = block_on(job.begin_fence().unwrap());
        over.unwrap();
        assert!(polls < 100, "polled {polls} times");
        assert_eq!(*heard.lock().unwrap(), 10 * fence);
    }
    // Who awaits it hears of a failure: the handler has not come to its end, and so the fence.
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let held = job.stream::<u64>("held").handler(move |_, _, _| {
        let _ = goes.recv_timeout(Duration::from_secs(120));
        panic!("on purpose");
    });
    let held = held.open().unwrap();
    held.push(Rank(0), 1).unwrap();
    let ended = job.begin_fence().unwrap();
    let awaits = thread::spawn(move || block_on(ended).0);
    thread::yield_now();
    go.send(()).unwrap();
    assert!(matches!(awaits.join().unwrap(), Err(Error::Handler { .. })));
    drop(job);
}

#[test]
fn a_thread_wakes_who_awaits_a_step() {
    let job = crate::threaded::Job::start(single()).unwrap();
    let stream = job.stream::<u64>("step").handler(|_, items, stream| {
        for &item in items {
            match item.checked_sub(1) {
                Some(less) => stream.push(Rank(0), less).unwrap(),
                None => stream.done(1).unwrap(),
            }
        }
    });
    let stream = stream.open().unwrap();
    for _ in 0..200 {
        let ended = stream.begin_step(Contributors::All(2)).unwrap();
        stream.push(Rank(0), 20).unwrap();
        let contributor = {
            let stream = stream.clone();
            thread::spawn(move || stream.done(1).unwrap())
        };
        let (over, polls) = block_on(ended);
        over.unwrap();
        assert!(polls < 100, "polled {polls} times");
        contributor.join().unwrap();
    }
    // Whoever hears of it first, who awaits it hears too.
    for _ in 0..200 {
        let ended = stream.begin_step(Contributors::All(1)).unwrap();
        let awaits = thread::spawn(move || block_on(ended).0);
        stream.done(1).unwrap();
        let heard = stream.wait();
        assert!(
            matches!(heard, Ok(()) | Err(Error::Misuse { .. })),
            "{heard:?}"
        );
        awaits.join().unwrap().unwrap();
    }
    // Who awaits hears of the end of the job too.
    let ended = stream.begin_step(Contributors::All(1)).unwrap();
    let _ = stream.done(5);
    assert!(matches!(block_on(ended).0, Err(Error::Mismatch { .. })));
}

/// Opens a stream again, which fails on rank 0 after all have agreed on it, and ends the job.
fn open_in_vain(rank: u32, bootstrap: Custom) -> Result<Error> {
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    job.shuffle("first").open()?.shutdown()?;
    if rank == 0 {
        job.seat().with("a test", |job| {
            job.engine.create_segment = |_| {
                let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
                Err(TransportError::system("a segment", source))
            };
            Ok(())
        })?;
    }
    // With an option of its own, rank 1 has no closed stream to use again.
    let options = StreamOptions {
        linger_us: 77,
        ..StreamOptions::default()
    };
    let again = match rank {
        0 => job.shuffle("second"),
        _ => job.shuffle("second").options(options),
    };
    let error = again.open().map(drop).expect_err("rank 0 has no memory");
    job.shutdown()?;
    Ok(error)
}

#[test]
fn a_stream_that_one_rank_could_not_open_is_nobodys_and_the_job_ends() {
    for (rank, outcome) in ranks(2, |rank| rank, open_in_vain) {
        match (rank, outcome) {
            (_, Err(Error::NoProvider { why })) => return eprintln!("skipped: {why}"),
            (0, Ok(error)) => assert!(matches!(error, Error::System { .. }), "{error}"),
            (_, Ok(error)) => assert!(matches!(error, Error::Mismatch { .. }), "{error}"),
            (_, Err(error)) => panic!("rank {rank}: {error}"),
        }
    }
}

#[test]
fn a_state_is_changed_by_the_handlers_of_several_streams_and_read_between_calls() {
    let job = Job::start(single()).unwrap();
    // Made after the job, and no cell of the program's own.
    let seen = State::new(vec![0u64; 4]);
    let items = job.stream::<u32>("items");
    let items = items.handler_with(&seen, |seen, source, items, _| {
        assert_eq!(source, Rank(0));
        items.iter().for_each(|&item| seen[item as usize] += 1);
    });
    let items = items.open().unwrap();
    let records = job.shuffle("records");
    let records = records.handler_with(&seen, |seen, message, outbox| {
        seen[0] += u64::from(message.kind);
        if message.kind > 1 {
            outbox.send(Rank(0), message.kind - 1, &[]).unwrap();
        }
    });
    let records = records.open().unwrap();
    for step in 1..=3 {
        items.extend((0..4).map(|item| (Rank(0), item))).unwrap();
        records.send(Rank(0), 3, &[]).unwrap();
        items.fence().unwrap();
        records.fence().unwrap();
        assert_eq!(seen.with(|seen| seen.clone()), [7 * step, step, step, step]);
    }
    let seen = seen.into_inner().expect_err("two handlers have it");
    items.shutdown().unwrap();
    records.shutdown().unwrap();
    assert_eq!(seen.into_inner().unwrap(), [21, 3, 3, 3]);
    job.shutdown().unwrap();
}

#[test]
fn a_state_that_is_in_use_ends_the_job_with_what_was_wrong() {
    let job = Job::start(single()).unwrap();
    let seen = State::new(0);
    let shuffle = job
        .shuffle("s")
        .handler_with(&seen, |seen, _, _| *seen += 1);
    let shuffle = shuffle.open().unwrap();
    shuffle.send(Rank(0), 0, b"x").unwrap();
    let inside = || seen.with(|_| shuffle.fence());
    assert!(catch_unwind(AssertUnwindSafe(inside)).is_err());
    let Err(Error::Handler { stream, why }) = job.shutdown() else {
        panic!("the handler failed");
    };
    assert_eq!(stream, "s");
    assert!(why.starts_with("the state of a handler is in use"), "{why}");
}
