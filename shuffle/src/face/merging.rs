//! Items that are merged before they leave: where many items for one rank have the same key, one of
//! them travels.

use trihop_transport::topology::Rank;

use crate::error::Result;
use crate::face::stream::{Item, Stream};
use crate::seat::Seat;

/// Places in which an item may be.
const WAYS: usize = 4;

/// A [`Stream`] whose items are merged at their sender: a table of so many places keeps the last
/// item for a rank and a key, and what comes for the same two joins it. An item leaves its place
/// when another one needs that, and all do at [`Merging::flush`], so memory is bounded, and what is
/// common travels seldom: counts of a histogram, distances of a search, labels of a graph.
///
/// Items for one rank do not keep their order.
///
/// ```no_run
/// use trihop_shuffle::{Job, Merging, Options, Rank};
///
/// // A place and how often it was hit.
/// type Hits = [u64; 2];
///
/// let job = Job::start(Options::from_env()?)?;
/// let stream = job.stream::<Hits>("hits").handler(|_, hits, _| println!("{hits:?}")).open()?;
/// let mut hits = Merging::over(&stream, 4096, |hit: &Hits| hit[0], |sum, hit| sum[1] += hit[1]);
/// for number in 0..1_000_000u64 {
///     hits.push(Rank((number % u64::from(job.size())) as u32), [number % 100, 1])?;
/// }
/// hits.flush()?;
/// stream.round()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Merging<T, S: Seat, K, M> {
    stream: Stream<T, S>,
    /// Sets of [`WAYS`], a power of two of them.
    places: Box<[Option<(Rank, T)>]>,
    /// Which of a set leaves next where it is full.
    turn: usize,
    key: K,
    merge: M,
    merged: u64,
}

impl<T, S, K, M> Merging<T, S, K, M>
where
    T: Item,
    S: Seat,
    K: Fn(&T) -> u64,
    M: FnMut(&mut T, T),
{
    /// Over a stream, with a table of `places`, rounded up to a power of two and to four; `key` says what an
    /// item is about, `merge` joins another one of the same key to the first.
    pub fn over(stream: &Stream<T, S>, places: usize, key: K, merge: M) -> Self {
        Self {
            stream: stream.clone(),
            places: vec![None; places.max(WAYS).next_power_of_two()].into(),
            turn: 0,
            key,
            merge,
            merged: 0,
        }
    }

    /// Sends an item, or merges it with one that has not left.
    ///
    /// # Errors
    /// As [`Stream::push`], of the item that has to leave for it: then nothing has changed.
    pub fn push(&mut self, target: Rank, item: T) -> Result<()> {
        let key = (self.key)(&item);
        let first = self.set_of(target, key);
        let set = &mut self.places[first..first + WAYS];
        let is_same =
            |(rank, before): &&mut (Rank, T)| *rank == target && (self.key)(before) == key;
        if let Some((_, before)) = set.iter_mut().flatten().find(is_same) {
            (self.merge)(before, item);
            self.merged += 1;
            return Ok(());
        }
        let free = set.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.turn = (self.turn + 1) % WAYS;
            self.turn
        });
        if let Some((rank, before)) = set[at] {
            self.stream.push(rank, before)?;
        }
        set[at] = Some((target, item));
        Ok(())
    }

    /// Lets all items leave that are in the table: before a fence, a round or a flush of the stream,
    /// which know nothing of it.
    ///
    /// # Errors
    /// As [`Stream::push`]; what has not left then stays.
    pub fn flush(&mut self) -> Result<()> {
        for place in &mut self.places {
            if let Some((target, item)) = place {
                self.stream.push(*target, *item)?;
                *place = None;
            }
        }
        Ok(())
    }

    /// Items that joined another one instead of travelling.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// The first place of a set.
    fn set_of(&self, target: Rank, key: u64) -> usize {
        // The uppermost bits of a product with an odd number near 2^64 / 1.618 are well mixed.
        let mix = |word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mix(mix(key).rotate_left(32) ^ u64::from(target.0));
        match (self.places.len() / WAYS).trailing_zeros() {
            0 => 0,
            bits => WAYS * (mixed >> (64 - bits)) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use trihop_transport::bootstrap::Launcher;

    use super::*;
    use crate::error::Error;
    use crate::{Job, Options};

    #[test]
    fn what_is_merged_arrives_once_and_nothing_is_lost_however_small_the_table() {
        for places in [1, 3, 64, 4096] {
            let heard = RefCell::new(HashMap::<u64, (u64, u64)>::new());
            let options = Options {
                launcher: Some(Launcher::Single),
                ..Options::default()
            };
            let job = Job::start(options).unwrap();
            let stream = job
                .stream::<[u64; 2]>("merged")
                .handler(|_, items, _| {
                    for [key, count] in items {
                        let mut heard = heard.borrow_mut();
                        let (times, sum) = heard.entry(*key).or_default();
                        *times += 1;
                        *sum += count;
                    }
                })
                .open()
                .unwrap();
            let mut merging = Merging::over(
                &stream,
                places,
                |item: &[u64; 2]| item[0],
                |sum, item| sum[1] += item[1],
            );
            for number in 0..10_000u64 {
                merging.push(Rank(0), [number * number % 50, 1]).unwrap();
            }
            merging.flush().unwrap();
            stream.fence().unwrap();
            let add = |(a, b), (c, d): &(u64, u64)| (a + c, b + d);
            let (times, sum) = heard.borrow().values().fold((0, 0), add);
            assert_eq!(
                (sum, times + merging.merged()),
                (10_000, 10_000),
                "{places}"
            );
            // A place is kept by what cannot leave it, and the error names it.
            merging.push(Rank(1), [1, 1]).unwrap();
            let refused = merging.flush();
            assert!(matches!(refused, Err(Error::Rank { rank: 1, .. })));
            merging.places.fill(None);
            for number in 0..1000u64 {
                merging.push(Rank(0), [1000 + number % 3, 1]).unwrap();
            }
            merging.flush().unwrap();
            stream.fence().unwrap();
            for key in 1000..1003 {
                let (times, sum) = heard.borrow()[&key];
                assert_eq!(sum, (1000 + 1002 - key) / 3);
                assert_eq!(times, 1, "{key} with {places} places");
            }
            stream.shutdown().unwrap();
            job.shutdown().unwrap();
        }
    }
}
