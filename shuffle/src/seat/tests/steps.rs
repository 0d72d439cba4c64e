//! Steps that call the program when they begin and when they are over.

#![allow(clippy::disallowed_types, reason = "a program's own, beside its calls")]

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use trihop_transport::bootstrap::Custom;

use super::{LONG, Shape, block_on, over_network, single};
use crate::conformance::ranks::ranks;
use crate::{
    Contributors, End, Error, Inline, Job, Outbox, Rank, Result, Shuffle, Stream, StreamOptions,
    threaded,
};

/// Contributors of one rank, of either kind.
fn of(step: u64, count: u64) -> Contributors {
    match step % 2 {
        0 => Contributors::Local(count),
        _ => Contributors::All(count),
    }
}

#[test]
fn a_step_that_begins_the_next_at_its_end_does_so_for_ever() {
    const STEPS: u64 = 50_000;
    /// Begins a step that sends on, and another one when it is over.
    fn chain<'h>(stream: &Stream<'h, u64>, left: &'h Cell<u64>, heard: &'h Cell<u64>) {
        let step = stream.step(of(left.get(), 2)).at_start(|stream| {
            stream.push(Rank(0), 3).unwrap();
            stream.done(2).unwrap();
        });
        let next = move |stream: &Stream<'h, u64>| {
            assert_eq!(heard.replace(0), 4, "all of the step is handled");
            left.set(left.get() - 1);
            if left.get() > 0 {
                chain(stream, left, heard);
            }
        };
        drop(step.at_end(next).begin().unwrap());
    }
    let (left, heard) = (Cell::new(STEPS), Cell::new(0));
    let job = Job::start(single()).unwrap();
    let stream = job.stream::<u64>("chain").handler(|_, items, outbox| {
        for &item in items {
            heard.set(heard.get() + 1);
            if item > 0 {
                outbox.push(Rank(0), item - 1).unwrap();
            }
        }
    });
    let stream = stream.open().unwrap();
    chain(&stream, &left, &heard);
    for asked in 0.. {
        match (left.get(), asked % 3) {
            (0, _) => break,
            (_, 0) => stream.wait().unwrap(),
            (_, 1) => drop(stream.test().unwrap()),
            _ => drop(stream.poll().unwrap()),
        }
    }
    // The last one was told to its call alone, and says so once.
    let _ = stream.test();
    assert!(matches!(stream.test(), Err(Error::Misuse { .. })));
    stream.fence().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn what_is_called_at_an_end_is_bound_by_the_step_that_it_begins() {
    let (heard, calls) = (Cell::new(0), Cell::new(0));
    let job = Job::start(single()).unwrap();
    let stream = job
        .stream::<u64>("bound")
        .handler(|_, items, _| heard.set(heard.get() + items.len()));
    let stream = stream.open().unwrap();
    let (heard, calls) = (&heard, &calls);
    let step = stream.step(Contributors::Local(0)).at_end(|stream| {
        let is_misuse = |outcome: Result<()>| matches!(outcome, Err(Error::Misuse { .. }));
        assert!(is_misuse(stream.done(1)), "no step has begun");
        drop(stream.begin_step(Contributors::Local(2)).unwrap());
        stream.push(Rank(0), 1).unwrap();
        stream.done(2).unwrap();
        // All that may send are done.
        assert!(is_misuse(stream.push(Rank(0), 2)) && is_misuse(stream.done(1)));
        assert!(is_misuse(stream.try_push(Rank(0), 3)));
        assert!(is_misuse(stream.extend([(Rank(0), 4)])));
        calls.set(calls.get() + 1);
    });
    drop(step.begin().unwrap());
    while calls.get() == 0 {
        job.progress().unwrap();
    }
    stream.wait().unwrap();
    assert_eq!((heard.get(), calls.get()), (1, 1));
    job.shutdown().unwrap();
}

#[test]
fn what_is_called_at_an_end_may_send_and_begin_but_not_wait() {
    let (calls, heard) = (Cell::new(0), Cell::new(0));
    let job = Job::start(single()).unwrap();
    let stream = job
        .stream::<u64>("steps")
        .handler(|_, items, _| heard.set(heard.get() + items.len()));
    let mut stream = stream.open().unwrap();
    stream.own_at_once().unwrap();
    let job_of = job.clone();
    let (calls, heard) = (&calls, &heard);
    let step = stream.step(Contributors::Local(1)).at_end(move |stream| {
        calls.set(calls.get() + 1);
        let is_nested = |outcome: Result<()>| matches!(outcome, Err(Error::Nested(_)));
        assert!(is_nested(stream.wait()) && is_nested(stream.fence()));
        assert!(is_nested(stream.test().map(drop)) && is_nested(stream.round()));
        assert!(is_nested(job_of.barrier()) && is_nested(stream.clone().shutdown()));
        assert!(is_nested(stream.flush(crate::Queues::ORIGIN)));
        let before = heard.get();
        stream.push(Rank(0), 1).unwrap();
        assert_eq!(heard.get(), before, "not at once");
        // More than any queue holds: it is spilled.
        stream
            .extend((0..100_000).map(|item| (Rank(0), item)))
            .unwrap();
    });
    assert_eq!(calls.get(), 0);
    let ended = step.begin().unwrap();
    stream.done(1).unwrap();
    stream.wait().unwrap();
    assert_eq!(calls.get(), 1);
    assert!(
        matches!(stream.wait(), Err(Error::Misuse { .. })),
        "it is said once"
    );
    block_on(ended).0.unwrap();
    stream.fence().unwrap();
    assert_eq!(heard.get(), 100_001);
    // Any call that makes progress makes it, and a start that fails calls nothing.
    let begin = |of| {
        let step = stream.step(of).at_start(|_| calls.set(calls.get() + 10));
        step.at_end(|_| calls.set(calls.get() + 100)).begin()
    };
    let ended = begin(Contributors::Local(0)).unwrap();
    assert_eq!(calls.get(), 11);
    while calls.get() == 11 {
        job.progress().unwrap();
    }
    assert_eq!(calls.get(), 111);
    block_on(ended).0.unwrap();
    stream.start(End::Fence).unwrap();
    assert!(matches!(
        begin(Contributors::Local(0)),
        Err(Error::Misuse { .. })
    ));
    stream.wait().unwrap();
    assert_eq!(calls.get(), 111);
    // The end of the job finds one that nobody has asked for.
    drop(begin(Contributors::Local(0)).unwrap());
    job.shutdown().unwrap();
    assert_eq!(calls.get(), 221);
}

#[test]
fn a_call_that_panics_ends_the_job_as_a_handler_does() {
    let failure = Error::Handler {
        stream: "steps".to_owned(),
        why: "on purpose".to_owned(),
    };
    let job = Job::start(single()).unwrap();
    let stream = job.stream::<u64>("steps").open().unwrap();
    let step = stream.step(Contributors::Local(0));
    drop(step.at_end(|_| panic!("on purpose")).begin().unwrap());
    assert!(catch_unwind(AssertUnwindSafe(|| stream.wait())).is_err());
    assert_eq!(stream.fence(), Err(failure.clone()));
    assert_eq!(job.shutdown(), Err(failure.clone()));

    for has_handler in [true, false] {
        let job = threaded::Job::start(single()).unwrap();
        let stream = job.stream::<u64>("steps");
        let stream = match has_handler {
            true => stream.handler(|_, _, _| {}),
            false => stream,
        };
        let stream = stream.open().unwrap();
        let step = stream.step(Contributors::Local(0));
        drop(step.at_end(|_| panic!("on purpose")).begin().unwrap());
        let failed = (0..).find_map(|_| {
            thread::yield_now();
            // Until the step is over no fence may begin.
            let failed = stream.fence().err();
            failed.filter(|error| !matches!(error, Error::Misuse { .. }))
        });
        assert_eq!(failed, Some(failure.clone()));
        assert_eq!(job.shutdown(), Err(failure.clone()));
    }
}

#[test]
fn what_a_call_owns_goes_with_a_job_that_ends_before() {
    let owned = Arc::new(());
    let job = Job::start(single()).unwrap();
    let stream = job.stream::<u64>("steps").open().unwrap();
    let keep = (Arc::clone(&owned), stream.clone());
    let step = stream
        .step(Contributors::Local(1))
        .at_end(move |_| drop(keep));
    drop(step.begin().unwrap());
    drop((stream, job));
    assert_eq!(Arc::strong_count(&owned), 1);

    let job = threaded::Job::start(single()).unwrap();
    let stream = job.stream::<u64>("steps").open().unwrap();
    let keep = Arc::clone(&owned);
    let step = stream
        .step(Contributors::Local(1))
        .at_end(move |_| drop(keep));
    drop(step.begin().unwrap());
    drop((stream, job));
    assert_eq!(Arc::strong_count(&owned), 1);
}

#[test]
fn a_thread_calls_at_the_ends_of_steps_and_may_begin_the_next() {
    const STEPS: u64 = 2000;
    fn chain(
        stream: &threaded::Stream<u64>,
        left: u64,
        heard: Arc<AtomicU64>,
        end: mpsc::Sender<()>,
    ) {
        let step = stream.step(of(left, 1)).at_end(move |stream| {
            assert_eq!(heard.swap(0, Ordering::Relaxed), 3);
            assert!(matches!(stream.wait(), Err(Error::Nested(_))));
            assert!(matches!(stream.test(), Err(Error::Nested(_))));
            match left {
                0 => end.send(()).unwrap(),
                _ => chain(stream, left - 1, heard, end),
            }
        });
        drop(step.begin().unwrap());
        stream.push(Rank(0), 2).unwrap();
        stream.done(1).unwrap();
    }
    let job = threaded::Job::start(single()).unwrap();
    let heard = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&heard);
    let stream = job.stream::<u64>("chain").handler(move |_, items, stream| {
        for &item in items {
            counting.fetch_add(1, Ordering::Relaxed);
            if item > 0 {
                stream.push(Rank(0), item - 1).unwrap();
            }
        }
    });
    let stream = stream.open().unwrap();
    let (end, ended) = mpsc::channel();
    chain(&stream, STEPS, heard, end);
    ended.recv_timeout(LONG).expect("the chain hangs");
    // A stream without a handler has a thread for it too, and its shutdown waits for the call.
    let untaken = job.stream::<u64>("untaken").open().unwrap();
    for _ in 0..20 {
        let was_called = Arc::new(AtomicBool::new(false));
        let calling = Arc::clone(&was_called);
        let step = untaken.step(Contributors::Local(0)).at_end(move |_| {
            thread::yield_now();
            calling.store(true, Ordering::Relaxed);
        });
        block_on(step.begin().unwrap()).0.unwrap();
        let other = job.stream::<u64>("other").open().unwrap();
        let own = Arc::new(AtomicBool::new(false));
        let calling = Arc::clone(&own);
        let step = other.step(Contributors::Local(0)).at_end(move |_| {
            thread::yield_now();
            calling.store(true, Ordering::Relaxed);
        });
        drop(step.begin().unwrap());
        other.shutdown().unwrap();
        assert!(own.load(Ordering::Relaxed) && was_called.load(Ordering::Relaxed));
    }
    job.shutdown().unwrap();
}

/// Steps of either kind, begun by the calls at the ends of those before; each item is sent on to
/// the next rank, twice.
fn play(rank: u32, bootstrap: Custom) -> Result<u64> {
    const STEPS: u64 = 60;
    struct Seen {
        heard: RefCell<Vec<u64>>,
        over: Cell<u64>,
    }
    fn begin<'h>(shuffle: &Shuffle<'h>, seen: &'h Seen, step: u64) {
        let size = u64::from(shuffle.size());
        let rank = u64::from(shuffle.rank().0);
        let count = 1 + (rank + step) % 3;
        let contributors = match step % 2 {
            0 => Contributors::Local(count),
            _ => Contributors::All((0..size).map(|rank| 1 + (rank + step) % 3).sum()),
        };
        let at_end = move |shuffle: &Shuffle<'h>| {
            let all = (0..size).map(|rank| 1 + (rank + step) % 3);
            // Each contributor sends one to each rank, which is sent on twice.
            let mine = all.sum::<u64>() * 3;
            assert_eq!(seen.heard.borrow()[step as usize], mine, "step {step}");
            seen.over.set(step + 1);
            if step + 1 < STEPS {
                begin(shuffle, seen, step + 1);
            }
        };
        let contribute = |shuffle: &Shuffle<'h>| {
            for _ in 0..count {
                for target in 0..shuffle.size() {
                    shuffle
                        .send(Rank(target), (step << 8) as u32 | 2, b"item")
                        .unwrap();
                }
                shuffle.done(1).unwrap();
            }
        };
        let step = shuffle.step(contributors).at_start(contribute);
        drop(
            step.priority(step_priority(rank))
                .at_end(at_end)
                .begin()
                .unwrap(),
        );
    }
    let seen = Seen {
        heard: RefCell::new(vec![0; STEPS as usize]),
        over: Cell::new(0),
    };
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let on_message = |message: crate::Message<'_>, outbox: &mut Outbox<'_>| {
        let (step, left) = (message.kind >> 8, message.kind & 255);
        seen.heard.borrow_mut()[step as usize] += 1;
        if left > 0 {
            let next = Rank((outbox.rank().0 + 1) % outbox.size());
            outbox.send(next, message.kind - 1, message.bytes).unwrap();
        }
    };
    let shuffle = job.shuffle("steps").handler(on_message).open()?;
    begin(&shuffle, &seen, 0);
    while seen.over.get() < STEPS {
        match rank % 2 {
            0 => shuffle.wait()?,
            _ => drop(job.progress()?),
        }
    }
    let _ = shuffle.test(); // whoever has waited for the last one knows
    job.barrier()?;
    job.shutdown()?;
    Ok(seen.over.get())
}

/// Ranks differ.
fn step_priority(rank: u64) -> u8 {
    rank as u8
}

#[test]
fn ranks_go_from_step_to_step_by_calls_at_their_ends() {
    let shapes: [Shape; 4] = [(1, |_| 0), (2, |_| 0), (5, |_| 0), (4, |rank| rank / 2)];
    for (count, node) in shapes {
        for (rank, outcome) in ranks(count, node, play) {
            match outcome {
                Err(Error::NoProvider { why }) => eprintln!("skipped: {why}"),
                Ok(over) => assert_eq!(over, 60, "rank {rank}"),
                Err(error) => panic!("rank {rank} of {count}: {error}"),
            }
        }
    }
}

#[test]
fn a_step_brings_the_priority_of_its_stream_and_gives_it_back() {
    let (heard, checked) = (RefCell::new(Vec::new()), Cell::new(false));
    let job = Job::start(single()).unwrap();
    let open = |name: &'static str, priority| {
        let heard = &heard;
        let options = StreamOptions {
            priority,
            ..StreamOptions::default()
        };
        let shuffle = job.shuffle(name).options(options);
        let shuffle = shuffle.handler(move |_, _| heard.borrow_mut().push(name));
        shuffle.open().unwrap()
    };
    let streams: [Shuffle<'_>; 3] = [open("bulk", 0), open("usual", 5), open("urgent", 9)];
    // In which order they are served.
    let served = || {
        use crate::queue::counters::SendReason;
        heard.borrow_mut().clear();
        for stream in &streams {
            stream.send(Rank(0), 0, b"").unwrap();
            let show = |out: &mut crate::engine::outbound::Outbound| {
                out.close_runs();
                out.publish(SendReason::Flush);
                Ok(())
            };
            stream.handle.with_out("a test", show).unwrap();
        }
        job.progress().unwrap();
        heard.borrow().join(" ")
    };
    let begin = |priority| {
        let step: crate::over::StepBuilder<'_, _, Inline<'_>> =
            streams[0].step(Contributors::Local(1));
        drop(step.priority(priority).begin().unwrap());
    };
    assert_eq!(served(), "urgent usual bulk");
    begin(200);
    assert_eq!(served(), "bulk urgent usual");
    streams[0].done(1).unwrap();
    streams[0].wait().unwrap();
    assert_eq!(served(), "urgent usual bulk");
    begin(7);
    assert_eq!(served(), "urgent bulk usual");
    streams[0].done(1).unwrap();
    // Whoever tells of the end: here what is called then.
    streams[0].wait().unwrap();
    let step = streams[0].step(Contributors::Local(0)).priority(10);
    let told = |_: &Shuffle<'_>| checked.set(true);
    drop(step.at_end(told).begin().unwrap());
    while !checked.get() {
        job.progress().unwrap();
    }
    assert_eq!(served(), "urgent usual bulk");
    job.shutdown().unwrap();
}

/// Whoever has waited for a step, or was told that it is over, uses what its call has made.
#[test]
fn a_wait_for_a_step_is_over_once_its_call_has_returned() {
    let job = threaded::Job::start(single()).unwrap();
    let shuffle = job.shuffle("steps").handler(|_, _| ()).open().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    for turn in 0..300 {
        let end = match turn % 3 {
            0 => End::Round,
            1 => End::Fence,
            _ => End::Completion(Contributors::Local(0)),
        };
        let called = Arc::clone(&calls);
        let step = shuffle.step(end).at_end(move |_| {
            if turn % 7 == 0 {
                thread::yield_now();
            }
            called.fetch_add(1, Ordering::Relaxed);
        });
        let step = step.begin().unwrap();
        match turn % 4 {
            0 => shuffle.wait().unwrap(),
            1 => while !shuffle.test().unwrap() {},
            _ => block_on(step).0.unwrap(),
        }
        assert_eq!(calls.load(Ordering::Relaxed), turn + 1, "{end} {turn}");
    }
    shuffle.shutdown().unwrap();
    job.shutdown().unwrap();
}

/// Whoever awaits a step is woken where its call begins the next one, though it has not returned.
#[test]
fn an_awaited_step_is_over_though_its_call_has_begun_the_next() {
    let job = threaded::Job::start(single()).unwrap();
    let shuffle = job.shuffle("steps").handler(|_, _| ()).open().unwrap();
    for turn in 0..300 {
        let step = shuffle.step(End::Fence).at_end(move |shuffle| {
            (0..turn % 20).for_each(|_| thread::yield_now());
            drop(shuffle.step(End::Fence).begin().unwrap());
        });
        block_on(step.begin().unwrap()).0.unwrap();
        shuffle.wait().unwrap();
    }
    shuffle.shutdown().unwrap();
    job.shutdown().unwrap();
}
