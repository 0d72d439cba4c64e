//! Items that are merged before they leave: where many items for one rank have the same key, one of
//! them travels.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use trihop_transport::topology::Rank;
use zerocopy::IntoBytes;

use crate::engine::untaken;
use crate::error::{Error, Result};
use crate::face::stream::{Item, Stream};
use crate::seat::Seat;

/// Places in which an item may be.
const WAYS: usize = 4;

/// Of a place without an item.
const NOBODY: u32 = u32::MAX;

/// Of a place whose item is leaving.
const LEAVING: u32 = u32::MAX - 1;

/// The table of [`Merging`], for items whose size is known at run time only: for bindings to other
/// languages. A send may wait and make progress, and handlers that run then may use the same table.
pub struct MergingTable {
    table: Lent,
}

/// A table is lent for moments, and never while an item leaves.
enum Lent {
    ToOneThread(RefCell<Table>),
    ToAny(Mutex<Table>),
}

struct Table {
    item_bytes: usize,
    /// Ranks of the job.
    size: u32,
    /// Whom the item of each place is for: sets of [`WAYS`], a power of two of them.
    targets: Box<[u32]>,
    /// The items, each from a word on.
    items: Box<[u64]>,
    /// Which of a set leaves next where it is full.
    turn: usize,
    merged: u64,
    held: usize,
    /// Memory for an item that leaves.
    spare: Vec<u64>,
}

/// What became of an item.
enum Kept {
    Here,
    /// There is room once this one has left.
    After(Leaving),
    /// All that are in its places are leaving.
    Nowhere,
}

/// A copy of an item whose place is taken until it has left: handlers may run meanwhile, and use
/// the table.
struct Leaving {
    place: usize,
    target: Rank,
    item: Vec<u64>,
    bytes: usize,
}

impl MergingTable {
    /// A table of `places`, rounded up to a power of two and to four, for a job of `size` ranks;
    /// several threads may use it at once if it is shared.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(places: usize, item_bytes: usize, size: u32, is_shared: bool) -> Result<Self> {
        let table = Table::new(places, item_bytes, size)?;
        let table = match is_shared {
            true => Lent::ToAny(Mutex::new(table)),
            false => Lent::ToOneThread(RefCell::new(table)),
        };
        Ok(Self { table })
    }

    #[inline(always)] // as `push`
    fn lend<V>(&self, call: impl FnOnce(&mut Table) -> V) -> Result<V> {
        match &self.table {
            Lent::ToOneThread(table) => match table.try_borrow_mut() {
                Ok(mut table) => Ok(call(&mut table)),
                Err(_) => Err(Error::Nested("merging inside of a key or a merge")),
            },
            Lent::ToAny(table) => {
                let table = table.lock();
                Ok(call(&mut table.unwrap_or_else(PoisonError::into_inner)))
            }
        }
    }

    /// Keeps an item, or merges it with one that is kept; what has to leave for it goes to `send`.
    ///
    /// # Errors
    /// A bad rank; those of `send`: then the item is not kept, and nothing has left.
    #[inline(always)] // so that an item's size is a constant
    pub fn push<E: From<Error>>(
        &self,
        target: Rank,
        item: &[u8],
        key: impl Fn(&[u8]) -> u64,
        mut merge: impl FnMut(&mut [u8], &[u8]),
        mut send: impl FnMut(Rank, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            match self.lend(|table| table.keep(target, item, &key, &mut merge))?? {
                Kept::Here => return Ok(()),
                Kept::After(leaving) => self.leave(leaving, &mut send)?,
                Kept::Nowhere => return send(target, item),
            }
        }
    }

    /// Hands the items of all places to `send`, once around the table: what handlers push meanwhile
    /// may stay.
    ///
    /// # Errors
    /// The first of `send`: what has not left then stays, and all others have left.
    pub fn flush<E: From<Error>>(
        &self,
        mut send: impl FnMut(Rank, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut from, mut outcome) = (0, Ok(()));
        while let Some(leaving) = self.lend(|table| table.begin_from(from))? {
            from = leaving.place + 1;
            // A rank may be gone, in a job that goes on: it is in nobody's way.
            let left = self.leave(leaving, &mut send);
            outcome = outcome.and(left);
        }
        outcome
    }

    #[inline]
    fn leave<E: From<Error>>(
        &self,
        leaving: Leaving,
        send: &mut impl FnMut(Rank, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let sent = send(leaving.target, &leaving.item.as_bytes()[..leaving.bytes]);
        self.lend(|table| table.end(leaving, sent.is_ok()))?;
        sent
    }

    /// Items that joined another one instead of travelling.
    ///
    /// # Errors
    /// [`Error::Nested`].
    pub fn merged(&self) -> Result<u64> {
        self.lend(|table| table.merged)
    }

    /// Items in the table.
    ///
    /// # Errors
    /// [`Error::Nested`].
    pub fn held(&self) -> Result<usize> {
        self.lend(|table| table.held)
    }
}

/// Items that were merged and have not left are lost: a fence does not know of them.
impl Drop for MergingTable {
    fn drop(&mut self) {
        let held = match &mut self.table {
            Lent::ToOneThread(table) => table.get_mut().held,
            Lent::ToAny(table) => table.get_mut().unwrap_or_else(PoisonError::into_inner).held,
        };
        untaken::warn_of_merged(held);
    }
}

impl Table {
    fn new(places: usize, item_bytes: usize, size: u32) -> Result<Self> {
        let places = places.max(WAYS).checked_next_power_of_two();
        let words = item_bytes.div_ceil(size_of::<u64>());
        let bytes = |places: usize| places.checked_mul(words * size_of::<u64>() + size_of::<u32>());
        let none = || {
            let bytes = places.and_then(bytes).unwrap_or(usize::MAX);
            Error::NoMemory { bytes }
        };
        let (mut targets, mut items) = (Vec::new(), Vec::new());
        let (Some(places), Some(_)) = (places, places.and_then(bytes)) else {
            return Err(none());
        };
        targets.try_reserve_exact(places).map_err(|_| none())?;
        items
            .try_reserve_exact(places * words)
            .map_err(|_| none())?;
        targets.resize(places, NOBODY);
        items.resize(places * words, 0);
        Ok(Self {
            item_bytes,
            size,
            targets: targets.into(),
            items: items.into(),
            turn: 0,
            merged: 0,
            held: 0,
            spare: Vec::new(),
        })
    }

    /// The item of a place, aligned to 8.
    #[inline(always)] // as `push`
    fn item(&mut self, place: usize) -> &mut [u8] {
        let words = self.item_bytes.div_ceil(size_of::<u64>());
        let item = &mut self.items[place * words..][..words];
        &mut item.as_mut_bytes()[..self.item_bytes]
    }

    /// Keeps an item, or merges it with one that is kept; else says what has to leave for it.
    #[inline(always)] // as `push`
    fn keep(
        &mut self,
        target: Rank,
        item: &[u8],
        key: impl Fn(&[u8]) -> u64,
        mut merge: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<Kept> {
        if target.0 >= self.size {
            let (rank, size) = (target.0, self.size);
            return Err(Error::Rank { rank, size });
        }
        let key_of_item = key(item);
        let first = self.set_of(target, key_of_item);
        let mut free = None;
        for place in first..first + WAYS {
            let rank = self.targets[place];
            if rank == NOBODY {
                free = free.or(Some(place));
            } else if rank == target.0 && key(self.item(place)) == key_of_item {
                merge(self.item(place), item);
                self.merged += 1;
                return Ok(Kept::Here);
            }
        }
        let Some(place) = free else {
            self.turn = (self.turn + 1) % WAYS;
            let mut places = (0..WAYS).map(|at| first + (self.turn + at) % WAYS);
            let leaves = places.find(|&place| self.targets[place] != LEAVING);
            return Ok(match leaves {
                Some(place) => Kept::After(self.begin(place)),
                None => Kept::Nowhere,
            });
        };
        self.targets[place] = target.0;
        self.item(place).copy_from_slice(item);
        self.held += 1;
        Ok(Kept::Here)
    }

    /// The item of a place begins to leave.
    #[inline]
    fn begin(&mut self, place: usize) -> Leaving {
        let mut item = std::mem::take(&mut self.spare);
        item.clear();
        let words = self.item_bytes.div_ceil(size_of::<u64>());
        item.extend_from_slice(&self.items[place * words..][..words]);
        let target = std::mem::replace(&mut self.targets[place], LEAVING);
        Leaving {
            place,
            target: Rank(target),
            item,
            bytes: self.item_bytes,
        }
    }

    /// As [`begin`](Self::begin), of the first item from a place on.
    fn begin_from(&mut self, from: usize) -> Option<Leaving> {
        let mut targets = self.targets.get(from..)?.iter();
        let next = targets.position(|&target| target < LEAVING)?;
        Some(self.begin(from + next))
    }

    /// An item has left, or stays.
    #[inline]
    fn end(&mut self, leaving: Leaving, has_left: bool) {
        let target = &mut self.targets[leaving.place];
        if has_left {
            *target = NOBODY;
            self.held -= 1;
        } else {
            *target = leaving.target.0;
        }
        self.spare = leaving.item;
    }

    /// The first place of a set.
    #[inline]
    fn set_of(&self, target: Rank, key: u64) -> usize {
        // The uppermost bits of a product with an odd number near 2^64 / 1.618 are well mixed.
        let mix = |word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mix(mix(key).rotate_left(32) ^ u64::from(target.0));
        match (self.targets.len() / WAYS).trailing_zeros() {
            0 => 0,
            bits => WAYS * (mixed >> (64 - bits)) as usize,
        }
    }
}

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
/// let mut hits = Merging::over(&stream, 4096, |hit: &Hits| hit[0], |sum, hit| sum[1] += hit[1])?;
/// for number in 0..1_000_000u64 {
///     hits.push(Rank((number % u64::from(job.size())) as u32), [number % 100, 1])?;
/// }
/// hits.flush()?;
/// stream.round()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Merging<T, S: Seat, K, M> {
    stream: Stream<T, S>,
    table: MergingTable,
    key: K,
    merge: M,
    item: PhantomData<T>,
}

impl<T, S, K, M> Merging<T, S, K, M>
where
    T: Item,
    S: Seat,
    K: Fn(&T) -> u64,
    M: FnMut(&mut T, T),
{
    /// Over a stream, with a table of `places`, rounded up to a power of two and to four; `key`
    /// says what an item is about, `merge` joins another one of the same key to the first.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn over(stream: &Stream<T, S>, places: usize, key: K, merge: M) -> Result<Self> {
        Ok(Self {
            stream: stream.clone(),
            table: MergingTable::new(places, size_of::<T>(), stream.handle.size, false)?,
            key,
            merge,
            item: PhantomData,
        })
    }

    /// Sends an item, or merges it with one that has not left.
    ///
    /// # Errors
    /// A bad rank. As [`Stream::push`], of the item that has to leave for it: then nothing has
    /// changed.
    pub fn push(&mut self, target: Rank, item: T) -> Result<()> {
        let (stream, key, merge) = (&self.stream, &self.key, &mut self.merge);
        self.table.push(
            target,
            item.as_bytes(),
            |item| T::ref_from_bytes(item).map_or(0, key),
            |before, _| {
                if let Ok(before) = T::mut_from_bytes(before) {
                    merge(before, item);
                }
            },
            |target, item| push_bytes(stream, target, item),
        )
    }

    /// Lets all items leave that are in the table: before a fence, a round or a flush of the stream,
    /// which know nothing of it.
    ///
    /// # Errors
    /// As [`Stream::push`]; what has not left then stays.
    pub fn flush(&mut self) -> Result<()> {
        let stream = &self.stream;
        self.table
            .flush(|target, item| push_bytes(stream, target, item))
    }

    /// Items that joined another one instead of travelling.
    pub fn merged(&self) -> u64 {
        self.table.merged().unwrap_or(0) // never in use here
    }
}

/// Sends an item of the table.
#[inline]
fn push_bytes<T: Item, S: Seat>(stream: &Stream<T, S>, target: Rank, item: &[u8]) -> Result<()> {
    match T::read_from_bytes(item) {
        Ok(item) => stream.push(target, item),
        Err(_) => Ok(()), // items of the table are of its size
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use trihop_transport::bootstrap::Launcher;
    use zerocopy::FromBytes;

    use super::*;
    use crate::{Job, Options};

    #[test]
    fn what_leaves_may_bring_handlers_that_push_to_the_table() {
        for is_shared in [false, true] {
            let table = MergingTable::new(4, 16, 3, is_shared).unwrap();
            let sent = RefCell::new(HashMap::<u64, u64>::new());
            let key = |item: &[u8]| <[u64; 2]>::read_from_bytes(item).unwrap()[0];
            let join = |before: &mut [u8], item: &[u8]| {
                let before = <[u64; 2]>::mut_from_bytes(before).unwrap();
                before[1] += <[u64; 2]>::read_from_bytes(item).unwrap()[1];
            };
            let note = |item: &[u8]| {
                let [key, count] = <[u64; 2]>::read_from_bytes(item).unwrap();
                *sent.borrow_mut().entry(key).or_default() += count;
            };
            let mut left = 1000u64;
            let is_failing = std::cell::Cell::new(false);
            for number in 0..1000u64 {
                is_failing.set(number % 7 == 3);
                let item = [number % 23, 1];
                let pushed = table.push(Rank(0), item.as_bytes(), key, join, |_, item| {
                    if is_failing.get() {
                        return Err(Error::WouldBlock);
                    }
                    // As a handler does, more often than there are places.
                    for nested in 0..number % 6 {
                        left += 1;
                        let item = [100 + nested * number % 31, 1];
                        table.push::<Error>(Rank(0), item.as_bytes(), key, join, |_, item| {
                            note(item);
                            Ok(())
                        })?;
                    }
                    note(item);
                    Ok(())
                });
                match pushed {
                    Ok(()) => {}
                    Err(Error::WouldBlock) => left -= 1,
                    Err(error) => panic!("{error}"),
                }
                assert!(table.held().unwrap() <= 4);
            }
            let refused = table.flush(|_, _| Err(Error::WouldBlock));
            assert_eq!(refused, Err(Error::WouldBlock));
            table
                .flush::<Error>(|_, item| {
                    note(item);
                    Ok(())
                })
                .unwrap();
            assert_eq!(table.held().unwrap(), 0);
            assert_eq!(sent.borrow().values().sum::<u64>(), left);
        }
        let table = MergingTable::new(4, 8, 1, false).unwrap();
        let key = |_: &[u8]| {
            assert!(matches!(table.merged(), Err(Error::Nested(_))));
            0
        };
        table
            .push::<Error>(Rank(0), &[0; 8], key, |_, _| {}, |_, _| Ok(()))
            .unwrap();
    }

    #[test]
    fn items_for_a_rank_that_is_gone_keep_no_others_from_leaving() {
        let table = MergingTable::new(64, 8, 3, false).unwrap();
        let key = |item: &[u8]| u64::from(item[0]);
        for number in 0..9u8 {
            let target = Rank(u32::from(number % 3));
            let send = |_, _: &[u8]| panic!("there is room");
            table
                .push::<Error>(target, &[number; 8], key, |_, _| {}, send)
                .unwrap();
        }
        let gone = || Error::PeerDead {
            rank: 1,
            how: String::new(),
        };
        for kept in [6, 0] {
            let mut left = 0;
            let flushed = table.flush(|target, _| match target {
                Rank(1) => Err(gone()),
                _ => {
                    left += 1;
                    Ok(())
                }
            });
            assert_eq!((flushed, left), (Err(gone()), kept));
            assert_eq!(table.held().unwrap(), 3);
        }
    }

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
            )
            .unwrap();
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
            let refused = merging.push(Rank(1), [1, 1]);
            assert!(matches!(refused, Err(Error::Rank { rank: 1, .. })));
            let refused = merging.push(Rank(u32::MAX), [1, 1]);
            assert!(matches!(refused, Err(Error::Rank { .. })));
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
