//! Elements that move when others do not expect it.

use std::time::Duration;

use super::{Bytes, loopback, ranks};
use crate::face::codec::Plain;
use crate::{End, Error, Job, Rank, Result, Seat, over, threaded};
use trihop_transport::bootstrap::Custom;

const RANKS: u32 = 3;

/// Elements that move as soon as they are inserted: their owner hears first that they have come
/// somewhere.
fn move_early<S: Seat>(
    job: over::Job<S>,
    array: over::Array<Vec<u8>, Vec<u8>, Bytes, S>,
) -> Result<usize> {
    const KEY: u64 = 2; // of rank 2
    const LONG: usize = 6_000; // goes past the open runs, in which short records are kept back
    if job.rank() == Rank(0) {
        array.insert(KEY, vec![7; LONG])?;
        array.insert(KEY + u64::from(RANKS), vec![7; LONG])?;
        array.migrate(KEY, Rank(1))?;
        array.migrate(KEY + u64::from(RANKS), Rank(1))?;
        std::thread::sleep(Duration::from_millis(50));
    } else {
        (0..2_000).try_for_each(|_| job.progress().map(drop))?;
    }
    array.fence()?;
    array.push(KEY, &vec![job.rank().0 as u8])?;
    array.fence()?;
    // It was inserted once, which is noticed all the same.
    if job.rank() == Rank(2) {
        let again = array.insert(KEY, Vec::new());
        assert!(matches!(again, Err(Error::Misuse { .. })), "{again:?}");
    }
    let here = array.shutdown()?;
    for (_, bytes) in here.iter().filter(|(key, _)| *key == KEY) {
        assert_eq!(bytes.len(), LONG + RANKS as usize);
    }
    job.shutdown()?;
    Ok(here.len())
}

fn move_early_inline(_: u32, bootstrap: Custom) -> Result<usize> {
    let job = Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job.array("bytes", Bytes);
    let array = array.open(|_, to, item, _| to.extend(item))?;
    move_early(job, array)
}

fn move_early_threaded(_: u32, bootstrap: Custom) -> Result<usize> {
    let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job.array("bytes", Bytes);
    let array = array.open(|_, to, item, _| to.extend(item))?;
    move_early(job, array)
}

#[test]
fn an_element_may_move_before_its_owner_has_heard_of_it() {
    for run in [move_early_inline, move_early_threaded] as [fn(u32, Custom) -> Result<usize>; 2] {
        let had = ranks(RANKS, |_| 0, run).into_iter();
        let mut had: Vec<(u32, usize)> = had.map(|(rank, had)| (rank, had.unwrap())).collect();
        had.sort_unstable();
        assert_eq!(had, [(0, 0), (1, 2), (2, 0)]);
    }
}

/// At the end of a step each rank sends all of its elements on, many more than a round takes, while
/// those of others come.
fn balance<S: Seat>(
    job: over::Job<S>,
    array: over::Array<[u64; 16], u64, Plain, S>,
    mut moves_at_end: impl FnMut(&over::Array<[u64; 16], u64, Plain, S>) -> Result<()>,
) -> Result<usize> {
    const EACH: u64 = 3_000;
    let rank = u64::from(job.rank().0);
    for number in 0..EACH {
        array.insert(number * u64::from(RANKS) + rank, [number; 16])?;
    }
    array.fence()?;
    moves_at_end(&array)?;
    array.fence()?;
    for number in 0..EACH {
        array.push(number * u64::from(RANKS) + rank, &1)?;
    }
    array.fence()?;
    let here = array.shutdown()?;
    for (key, element) in &here {
        assert_eq!(key % u64::from(RANKS), (rank + 2) % u64::from(RANKS));
        assert_eq!(element[0], key / u64::from(RANKS) + 1);
    }
    job.shutdown()?;
    Ok(here.len())
}

/// Defines what moves all elements at the end of a step.
macro_rules! move_at_end {
    ($name:ident, $job:ty) => {
        fn $name(_: u32, bootstrap: Custom) -> Result<usize> {
            let job = <$job>::start_with(loopback(), Box::new(bootstrap))?;
            let array = job.array("elements", Plain);
            let array = array.open(|_, sum: &mut [u64; 16], item: u64, _| sum[0] += item)?;
            let (rank, next) = (u64::from(job.rank().0), Rank((job.rank().0 + 1) % RANKS));
            balance(job, array, |array| {
                let step = array.step_of(End::Fence)?.at_end(move |array| {
                    let keys = array.with(|key, _| key).unwrap().into_iter();
                    // Those of faster ranks may have come already.
                    for key in keys.filter(|key| key % u64::from(RANKS) == rank) {
                        array.migrate(key, next).unwrap();
                    }
                });
                let step = step.begin()?;
                drop(step);
                array.wait().map(drop)
            })
        }
    };
}
move_at_end!(balance_inline, Job<'static>);
move_at_end!(balance_threaded, threaded::Job);

#[test]
fn all_elements_move_at_the_end_of_a_step() {
    for run in [balance_inline, balance_threaded] as [fn(u32, Custom) -> Result<usize>; 2] {
        for (_, had) in ranks(RANKS, |_| 0, run) {
            assert_eq!(had.unwrap(), 3_000);
        }
    }
}
