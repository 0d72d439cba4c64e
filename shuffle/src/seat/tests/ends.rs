//! Rounds and fences that call the program when they begin and when they are over, and what calls
//! at ends keep waiting.

#![allow(clippy::disallowed_types, reason = "a program's own, beside its calls")]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use trihop_transport::bootstrap::Custom;

use super::{LONG, Shape, block_on, over_network, single};
use crate::conformance::ranks::ranks;
use crate::{Contributors, End, Error, Job, Rank, Result, Stream, StreamOptions, threaded};

/// How many rounds and fences a rank goes through. Each third is a fence, in which handlers send
/// on.
const ENDS: u64 = 90;

/// A rank that ends its rounds and fences by calls.
struct Ended {
    over: AtomicU64,
    /// Items of each that have come.
    heard: Vec<AtomicU64>,
}

impl Ended {
    fn new() -> Self {
        Self {
            over: AtomicU64::new(0),
            heard: (0..ENDS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn end(step: u64) -> End {
        match step % 3 {
            2 => End::Fence,
            _ => End::Round,
        }
    }

    /// An item of this step has come; whether the handler sends on.
    fn hear(&self, item: u64) -> bool {
        let (step, is_first) = (item >> 1, item & 1 == 1);
        let over = self.over.load(Ordering::Relaxed);
        assert!(step >= over, "an item of step {step} in step {over}");
        if step > 0 && Self::end(step - 1) == End::Round {
            assert_eq!(step, over, "before the call at the end of that round");
        }
        self.heard[step as usize].fetch_add(1, Ordering::Relaxed);
        is_first && Self::end(step) == End::Fence
    }

    /// A step is over; whether another follows.
    fn is_over(&self, step: u64, size: u64) -> bool {
        assert_eq!(self.over.swap(step + 1, Ordering::Relaxed), step);
        let heard = self.heard[step as usize].load(Ordering::Relaxed);
        // Each rank sends twice to each.
        let all = match Self::end(step) {
            End::Round => 2 * size,
            _ => 4 * size,
        };
        assert_eq!(heard, all, "step {step}");
        step + 1 < ENDS
    }
}

/// Begins a step whose call at the end begins the next.
macro_rules! go_through_ends {
    ($begin:ident, [$($life:tt)*], $stream:ty, $ended:ty) => {
        fn $begin$($life)*(stream: &$stream, ended: $ended, step: u64) {
            let size = u64::from(stream.size());
            let of_step = ended.clone();
            let push = move |stream: &$stream| {
                for target in (0..stream.size()).chain(0..stream.size()) {
                    stream.push(Rank(target), step << 1 | 1).unwrap();
                }
            };
            let at_end = move |stream: &$stream| {
                if of_step.is_over(step, size) {
                    $begin(stream, of_step, step + 1);
                }
            };
            let step = stream.step(Ended::end(step)).at_start(push);
            drop(step.priority(3).at_end(at_end).begin().unwrap());
        }
    };
}

go_through_ends!(end_inline, [<'h>], Stream<'h, u64>, &'h Ended);
go_through_ends!(end_threaded, [], threaded::Stream<u64>, Arc<Ended>);

fn play_ends_inline(rank: u32, bootstrap: Custom) -> Result<u64> {
    let ended = Ended::new();
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let stream = job.stream::<u64>("ends").handler(|_, items, outbox| {
        for &item in items {
            if ended.hear(item) {
                let next = Rank((outbox.rank().0 + 1) % outbox.size());
                outbox.push(next, item & !1).unwrap();
            }
        }
    });
    let stream = stream.open()?;
    end_inline(&stream, &ended, 0);
    while ended.over.load(Ordering::Relaxed) < ENDS {
        match rank % 2 {
            0 => stream.wait()?,
            _ => drop(job.progress()?),
        }
    }
    let _ = stream.test();
    job.barrier()?;
    job.shutdown()?;
    Ok(ended.over.load(Ordering::Relaxed))
}

fn play_ends_threaded(_: u32, bootstrap: Custom) -> Result<u64> {
    let ended = Arc::new(Ended::new());
    let job = threaded::Job::start_with(over_network(), Box::new(bootstrap))?;
    let of_handler = Arc::clone(&ended);
    let stream = job.stream::<u64>("ends").handler(move |_, items, stream| {
        for &item in items {
            if of_handler.hear(item) {
                let next = Rank((stream.rank().0 + 1) % stream.size());
                stream.push(next, item & !1).unwrap();
            }
        }
    });
    let stream = stream.open()?;
    end_threaded(&stream, Arc::clone(&ended), 0);
    let begun = std::time::Instant::now();
    while ended.over.load(Ordering::Relaxed) < ENDS {
        assert!(begun.elapsed() < LONG, "it hangs");
        thread::yield_now();
    }
    job.barrier()?;
    stream.shutdown()?;
    job.shutdown()?;
    Ok(ended.over.load(Ordering::Relaxed))
}

#[test]
fn ranks_go_from_round_to_fence_by_calls_at_their_ends() {
    let shapes: [Shape; 4] = [(1, |_| 0), (2, |_| 0), (5, |_| 0), (4, |rank| rank / 2)];
    for (count, node) in shapes {
        for play in [play_ends_inline, play_ends_threaded] {
            for (rank, outcome) in ranks(count, node, play) {
                match outcome {
                    Err(Error::NoProvider { why }) => eprintln!("skipped: {why}"),
                    Ok(over) => assert_eq!(over, ENDS, "rank {rank}"),
                    Err(error) => panic!("rank {rank} of {count}: {error}"),
                }
            }
        }
    }
}

/// Rank 1 sends behind a round that rank 0 ends by a call, and which no other end follows there.
fn hears_what_follows(rank: u32, heard: &AtomicU64, mut progress: impl FnMut()) {
    let begun = std::time::Instant::now();
    while rank == 0 && heard.load(Ordering::Relaxed) == 0 {
        assert!(
            begun.elapsed() < LONG,
            "what follows a round is held for ever"
        );
        progress();
    }
}

fn follow_inline(rank: u32, bootstrap: Custom) -> Result<u64> {
    let (heard, ended) = (AtomicU64::new(0), Cell::new(false));
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let stream = job
        .stream::<u64>("follow")
        .handler(|_, _, _| {
            assert!(ended.get(), "an item of the next round");
            heard.fetch_add(1, Ordering::Relaxed);
        })
        .open()?;
    drop(
        stream
            .step(End::Round)
            .at_end(|_| ended.set(true))
            .begin()?,
    );
    while !ended.get() {
        job.progress()?;
    }
    if rank == 1 {
        stream.push(Rank(0), 1)?;
        stream.flush(crate::Queues::ORIGIN)?;
    }
    hears_what_follows(rank, &heard, || {
        job.progress().unwrap();
    });
    job.barrier()?;
    job.shutdown()?;
    Ok(heard.load(Ordering::Relaxed))
}

fn follow_threaded(rank: u32, bootstrap: Custom) -> Result<u64> {
    let heard = Arc::new(AtomicU64::new(0));
    let (end, ended) = mpsc::channel();
    let job = threaded::Job::start_with(over_network(), Box::new(bootstrap))?;
    let counting = Arc::clone(&heard);
    let stream = job.stream::<u64>("follow").handler(move |_, _, _| {
        counting.fetch_add(1, Ordering::Relaxed);
    });
    let stream = stream.open()?;
    let step = stream.step(End::Round);
    let step = step.at_end(move |_| {
        thread::sleep(Duration::from_millis(50)); // the others' items come meanwhile
        end.send(()).unwrap();
    });
    drop(step.begin()?);
    if rank == 1 {
        while !stream.test()? {}
        stream.push(Rank(0), 1)?;
        stream.flush(crate::Queues::ORIGIN)?;
    }
    ended.recv_timeout(LONG).expect("the call is made");
    hears_what_follows(rank, &heard, || thread::sleep(Duration::from_millis(5)));
    job.barrier()?;
    job.shutdown()?;
    Ok(heard.load(Ordering::Relaxed))
}

#[test]
fn what_follows_a_round_is_handled_once_its_call_has_returned() {
    for play in [follow_inline, follow_threaded] {
        for node in [|_| 0, |rank| rank] {
            for (rank, outcome) in ranks(2, node, play) {
                match outcome {
                    Err(Error::NoProvider { why }) => eprintln!("skipped: {why}"),
                    Ok(heard) => assert_eq!(heard, u64::from(rank == 0)),
                    Err(error) => panic!("rank {rank}: {error}"),
                }
            }
        }
    }
}

#[test]
fn a_stream_is_shut_down_behind_what_is_called_at_its_ends() {
    fn chain(stream: &threaded::Stream<u64>, left: u64) {
        let end = match left % 3 {
            0 => End::Round,
            1 => End::Fence,
            _ => Contributors::Local(0).into(),
        };
        let step = stream.step(end).at_end(move |stream| {
            thread::yield_now();
            stream.push(Rank(0), left).unwrap();
            if left > 0 {
                chain(stream, left - 1);
            }
        });
        drop(step.begin().unwrap());
    }
    for times in 0..60 {
        let heard = Arc::new(AtomicU64::new(0));
        let counting = Arc::clone(&heard);
        let job = threaded::Job::start(single()).unwrap();
        let stream = job.stream::<u64>("ends").handler(move |_, items, _| {
            counting.fetch_add(items.len() as u64, Ordering::Relaxed);
        });
        let stream = stream.open().unwrap();
        chain(&stream, times % 5);
        match times % 2 {
            0 => stream.shutdown().unwrap(),
            _ => drop(stream),
        }
        job.shutdown().unwrap();
        assert_eq!(heard.load(Ordering::Relaxed), times % 5 + 1);
    }
}

#[test]
fn a_round_that_a_call_begins_needs_no_memory_for_all_of_it() {
    const ITEMS: u64 = 1 << 19;
    fn begin<'h>(stream: &Stream<'h, u64>, left: &'h Cell<u64>) {
        let step = stream.step(End::Round).at_start(|stream| {
            (0..ITEMS).for_each(|item| stream.push(Rank(0), item).unwrap());
        });
        let next = |stream: &Stream<'h, u64>| {
            left.set(left.get() - 1);
            if left.get() > 0 {
                begin(stream, left);
            }
        };
        drop(step.at_end(next).begin().unwrap());
    }
    let (heard, left) = (Cell::new(0), Cell::new(3));
    let job = Job::start(single()).unwrap();
    let options = StreamOptions {
        spill_bytes: 1 << 20,
        ..StreamOptions::default()
    };
    let stream = job.stream::<u64>("much").options(options);
    let stream = stream.handler(|_, items, _| heard.set(heard.get() + items.len() as u64));
    let stream = stream.open().unwrap();
    begin(&stream, &left);
    while left.get() > 0 {
        job.progress().unwrap();
    }
    assert_eq!(heard.get(), 3 * ITEMS);
    job.shutdown().unwrap();
}

#[test]
fn a_round_calls_at_its_start_unless_it_may_not_begin() {
    let (heard, calls) = (Cell::new(0), Cell::new(0));
    let job = Job::start(single()).unwrap();
    let stream = job
        .stream::<u64>("rounds")
        .handler(|_, items, _| heard.set(heard.get() + items.len()));
    let stream = stream.open().unwrap();
    let begin = |end: End| {
        let step = stream.step(end).at_start(|stream| {
            stream.push(Rank(0), 1).unwrap();
            calls.set(calls.get() + 1);
        });
        step.begin()
    };
    for (at, end) in [End::Round, End::Fence, End::Round].into_iter().enumerate() {
        let ended = begin(end).unwrap();
        assert!(matches!(begin(end), Err(Error::Misuse { .. })));
        assert!(matches!(stream.push(Rank(0), 1), Err(Error::Misuse { .. })));
        block_on(ended).0.unwrap();
        assert_eq!((calls.get(), heard.get()), (at + 1, at + 1));
    }
    // A call at the start that takes the place of the step.
    let step = stream.step(End::Fence);
    let step = step.at_start(|stream| stream.start(End::Round).unwrap());
    assert!(matches!(step.begin(), Err(Error::Misuse { .. })));
    stream.wait().unwrap();
    job.shutdown().unwrap();
}

/// Rank 0 has started a fence, of a stream or of all, to which the other one comes once nothing
/// moves there any more.
fn hear_of_the_end(rank: u32, bootstrap: Custom, of_all: bool) -> Result<()> {
    static OF: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let rests = &OF[usize::from(of_all)];
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let stream = job.stream::<u64>("fenced").handler(|_, _, _| ()).open()?;
    let begun = Instant::now();
    if rank == 1 {
        while rests.load(Ordering::Relaxed) == 0 {
            assert!(begun.elapsed() < LONG, "rank 0 does not rest");
            thread::yield_now();
        }
        match of_all {
            true => job.fence()?,
            false => stream.fence()?,
        }
        return job.shutdown();
    }
    match of_all {
        true => job.start_fence()?,
        false => stream.start(End::Fence)?,
    }
    let mut rounds = 0;
    while rounds < 1000 {
        rounds = if job.progress()? { 0 } else { rounds + 1 };
    }
    rests.store(1, Ordering::Relaxed);
    // Who waits elsewhere for the end is told by that.
    while !job.progress()? {
        assert!(begun.elapsed() < LONG, "the end has not been said");
        thread::yield_now();
    }
    // That was said, and is no news for ever.
    assert!((0..100).any(|_| matches!(job.progress(), Ok(false))));
    match of_all {
        true => job.wait_fence()?,
        false => stream.wait()?,
    }
    job.shutdown()
}

#[test]
fn the_end_of_a_fence_is_progress_though_nothing_comes() {
    for of_all in [false, true] {
        let hear = move |rank, bootstrap| hear_of_the_end(rank, bootstrap, of_all);
        for (rank, outcome) in ranks(2, |_| 0, hear) {
            outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        }
    }
}

macro_rules! send_to_who_leaves {
    ($job:expr, $rank:expr, $bytes:expr) => {{
        let job = $job;
        let _first = job.shuffle("first").handler(|_, _| ()).open()?;
        let untaken = job.shuffle("untaken").open()?;
        if $rank == 0 {
            for _ in 0..20_000 {
                untaken.send(Rank(1), 0, &[7; $bytes])?;
            }
        }
        job.shutdown()
    }};
}

/// One rank sends more than there is room for, on a stream that nobody takes from, and the other
/// leaves the job, where another stream was opened first.
#[test]
fn a_rank_that_leaves_waits_for_nobody_who_sends_to_what_it_does_not_take() {
    const BYTES: usize = 1000;
    for route in ["on one node", "on two nodes"] {
        let threaded = |rank: u32, bootstrap: Custom| -> Result<()> {
            let job = threaded::Job::start_with(single(), Box::new(bootstrap))?;
            send_to_who_leaves!(job, rank, BYTES)
        };
        let inline = |rank: u32, bootstrap: Custom| -> Result<()> {
            let job = Job::start_with(single(), Box::new(bootstrap))?;
            send_to_who_leaves!(job, rank, BYTES)
        };
        let node = match route {
            "on one node" => |_| 0,
            _ => |rank| rank,
        };
        let outcomes = [ranks(2, node, inline), ranks(2, node, threaded)];
        for (rank, outcome) in outcomes.into_iter().flatten() {
            assert_eq!(outcome, Ok(()), "rank {rank}, {route}");
        }
    }
}
