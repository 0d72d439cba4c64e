//! Steps of arrays that call the program when they begin and when they are over.

#![allow(clippy::disallowed_types, reason = "a program's own, beside its calls")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::{loopback, ranks};
use crate::face::codec::Plain;
use crate::terminate::reduce::Reduce;
use crate::{
    Contributors, Error, Inline, Job, Options, Rank, Result, Seat, StreamOptions, over, threaded,
};
use trihop_transport::bootstrap::{Custom, Launcher};

const RANKS: u32 = 3;
const KEYS: u64 = 12;
const STEPS: u64 = 30;

/// The sums of elements, which move as items come.
type Sums<S> = over::Array<u64, u64, Plain, S>;

fn add<S: Seat>(sum: &mut u64, item: u64, outbox: &mut over::ArrayOutbox<'_, u64, u64, Plain, S>) {
    *sum += item;
    if sum.is_multiple_of(3) {
        let next = (outbox.rank().0 + 1) % outbox.size();
        outbox.migrate(Rank(next)).unwrap();
    }
}

/// Defines a chain of steps, each begun at the end of the one before.
macro_rules! chain {
    ($name:ident, $seat:ty) => {
        fn $name(array: &Sums<$seat>, left: &Arc<AtomicU64>) -> Result<()> {
            let step = array.step_of(Contributors::Local(1))?.at_start(|array| {
                (0..KEYS).for_each(|key| array.push(key, &1).unwrap());
                array.broadcast(&2).unwrap();
                array.done(1).unwrap();
            });
            let left = Arc::clone(left);
            let next = move |array: &Sums<$seat>| {
                // Those of this step and the one before, and of the next one from faster ranks.
                let log = array.elements.lock("a test").unwrap().log.len();
                assert!(log <= 3 * RANKS as usize, "{log} broadcasts are kept");
                if left.fetch_sub(1, SeqCst) > 1 {
                    $name(array, &left).unwrap();
                }
            };
            step.at_end(next).begin().map(drop)
        }
    };
}
chain!(chain_inline, Inline<'static>);
chain!(chain_threaded, over::Threaded);

fn run<S: Seat>(
    job: over::Job<S>,
    array: Sums<S>,
    chain: impl Fn(&Sums<S>, &Arc<AtomicU64>) -> Result<()>,
) -> Result<()> {
    let rank = u64::from(job.rank().0);
    for key in (0..KEYS).filter(|key| key % u64::from(RANKS) == rank) {
        array.insert(key, 0)?;
    }
    array.fence()?;
    let left = Arc::new(AtomicU64::new(STEPS));
    chain(&array, &left)?;
    while left.load(SeqCst) > 0 {
        // It gives the processor away. Between two steps none is under way.
        match array.test() {
            Ok(_) | Err(Error::Misuse { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    array.fence()?;
    // Of a step that the elements themselves end, with a future.
    let mut here = [0];
    let step = array.step()?.at_start(|array| {
        here = [array.count().unwrap() as u64];
        array.done(here[0]).unwrap();
    });
    let ended = step.priority(7).begin()?;
    array.wait()?;
    array.done(0)?;
    drop(ended);
    job.allreduce(&mut here, Reduce::Sum)?;
    assert_eq!(here, [KEYS], "no element moves in a step without items");
    let elements = array.shutdown()?;
    for (key, sum) in elements {
        let each = u64::from(RANKS) * 3;
        assert_eq!(sum, STEPS * each, "element {key}");
    }
    job.shutdown()
}

fn inline(_: u32, bootstrap: Custom) -> Result<()> {
    let job = Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job.array("chain", Plain);
    let array = array.open(|_, sum, item, outbox| add(sum, item, outbox))?;
    run(job, array, chain_inline)
}

fn threaded(_: u32, bootstrap: Custom) -> Result<()> {
    let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job.array("chain", Plain);
    let array = array.open(|_, sum, item, outbox| add(sum, item, outbox))?;
    run(job, array, chain_threaded)
}

#[test]
fn steps_of_an_array_follow_each_other_by_calls_at_their_ends() {
    for seat in [inline, threaded] as [fn(u32, Custom) -> Result<()>; 2] {
        for (rank, outcome) in ranks(RANKS, |_| 0, seat) {
            outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        }
    }
}

#[test]
fn broadcasts_are_kept_for_two_steps_within_memory_bytes() {
    let options = Options {
        launcher: Some(Launcher::Single),
        stream: StreamOptions {
            memory_bytes: 256 << 10,
            ..StreamOptions::default()
        },
        ..Options::default()
    };
    let job = Job::start(options).unwrap();
    let array = job.array::<u64, u64, _>("news", Plain);
    let array = array.open(|_, sum, item, _| *sum += item).unwrap();
    array.insert(1, 0).unwrap();
    for _ in 0..20 {
        for at in 0..2_000 {
            array.extend([(1, &0), (1, &at)]).unwrap();
            array.broadcast(&at).unwrap();
        }
        array.fence().unwrap();
    }
    let sums = array.with(|_, sum| *sum).unwrap();
    assert_eq!(sums, [20 * 1_999 * 2_000]);
    let mut never_ending = (0..1_000_000).map(|_| array.broadcast(&1));
    let refused = never_ending
        .find_map(Result::err)
        .expect("memory has an end");
    assert!(
        matches!(refused, Error::BroadcastsFull { bytes, limit_bytes } if bytes > limit_bytes),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("memory_bytes"), "{refused}");
}
