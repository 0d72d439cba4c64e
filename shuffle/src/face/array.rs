//! Arrays: elements with keys, each on some rank, to which items are sent by key.
//!
//! An element begins where it is inserted, and may move. The owner of its key, which a function
//! of the program's names, knows where it is; so does, for a step, a rank that it has left. Who
//! does not sends what comes for it to the owner. A rank tells the owner of an element once that
//! has arrived there: until then the owner sends to where it was, which sends on behind the
//! element itself, so that nothing overtakes it on its way. All of that are messages of one
//! stream: a fence, or a step, ends when the last is where it belongs.

mod keeper;
mod table;
#[cfg(test)]
mod tests;

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;

use trihop_transport::topology::Rank;

use super::codec::{Codec, encode, with_scratch};
use super::shuffle::{Shuffle, ShuffleBuilder, each_message};
use crate::config::StreamOptions;
use crate::endpoint::Channel;
use crate::engine::contribution::Contributors;
use crate::engine::outbound::Outbound;
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::queue::audience::BroadcastTo;
use crate::seat::{self, Handle, Inline, Seating};
use crate::terminate::End;
use crate::terminate::reduce::Reduce;
use keeper::Keeper;
use table::{Local, Table};

// What a record is, by its kind.
const ITEM: u32 = 1;
const ELEMENT: u32 = 2;
const MOVED: u32 = 3;
const GONE: u32 = 4;
const EVERY: u32 = 5;
const INSERTED: u32 = 6;

fn with_words<R>(words: &[u64], send: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    with_scratch(|bytes| {
        words
            .iter()
            .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        send(bytes)
    })
}

/// The rank whose number a key has, modulo ranks.
fn cyclic(key: u64, size: u32) -> Rank {
    Rank((key % u64::from(size)) as u32)
}

type Owner<'h> = Rc<dyn Fn(u64) -> Rank + 'h>;

/// Opens an [`Array`]: owners, options, handler.
pub struct ArrayBuilder<'h, E, T, C> {
    shuffle: ShuffleBuilder<Inline<'h>>,
    codec: C,
    owner: Owner<'h>,
    size: u32,
    of: PhantomData<fn() -> (E, T)>,
}

impl<'h, E: 'h, T: 'h, C> ArrayBuilder<'h, E, T, C>
where
    C: Codec<E> + Codec<T> + Clone + 'h,
{
    pub(crate) fn new(seat: &Inline<'h>, name: &str, size: u32, codec: C) -> Self {
        Self {
            shuffle: ShuffleBuilder::new(seat, name),
            codec,
            owner: Rc::new(move |key| cyclic(key, size)),
            size,
            of: PhantomData,
        }
    }

    /// Who knows where the element of a key is: the same on all ranks, and for any key, since
    /// those of other ranks are asked for too. Without this, the ranks in turn, by key. What is
    /// sent to an element that is with its owner goes straight there.
    pub fn owner(mut self, owner: impl Fn(u64) -> Rank + 'h) -> Self {
        self.owner = Rc::new(owner);
        self
    }

    /// Options of this array's stream instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.shuffle = self.shuffle.options(options);
        self
    }

    /// Opens the array, without elements; collective. `handler` is called for each item with the
    /// key and the element that it was sent to.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(
        self,
        handler: impl FnMut(u64, &mut E, T, &mut ArrayOutbox<'_, T, C>) + 'h,
    ) -> Result<Array<'h, E, T, C>> {
        let table = Rc::new(RefCell::new(Table::new()));
        let mut keeper = Keeper {
            table: Rc::clone(&table),
            codec: self.codec.clone(),
            owner: Rc::clone(&self.owner),
            handler,
            of: PhantomData,
        };
        let shuffle = self
            .shuffle
            .handle_by(Box::new(move |delivery, done, outbox| {
                each_message(delivery, done, |message, first| {
                    if !first && outbox.has_overfilled() {
                        return Ok(false);
                    }
                    keeper.take(message, outbox)?;
                    Ok(true)
                })
            }));
        Ok(Array {
            handle: shuffle.open()?.handle,
            table,
            codec: self.codec,
            owner: self.owner,
            size: self.size,
            of: PhantomData,
        })
    }
}

/// What the handler of an [`Array`] gets to send with: as [`Outbox`].
pub struct ArrayOutbox<'a, T, C> {
    outbox: Outbox<'a>,
    codec: &'a C,
    owner: &'a dyn Fn(u64) -> Rank,
    sent: &'a mut u64,
    migrates: &'a mut Option<Rank>,
    item: PhantomData<fn() -> T>,
}

impl<T, C: Codec<T>> ArrayOutbox<'_, T, C> {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.outbox.rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.outbox.size()
    }

    /// Sends an item to the element of a key, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; an item that the codec refuses.
    pub fn push(&mut self, key: u64, item: &T) -> Result<()> {
        let target = (self.owner)(key);
        with_words(&[key], |bytes| {
            encode(self.codec, item, bytes)?;
            self.outbox.send(target, ITEM, bytes)
        })
    }

    /// Sends an item to every element, or spills it.
    ///
    /// # Errors
    /// As [`ArrayOutbox::push`].
    pub fn broadcast(&mut self, item: &T) -> Result<()> {
        let number = *self.sent + 1;
        with_words(&[number], |bytes| {
            encode(self.codec, item, bytes)?;
            self.outbox.broadcast(EVERY, bytes, BroadcastTo::Everyone)
        })?;
        *self.sent = number;
        Ok(())
    }

    /// Has the element for which the handler was called move to another rank, as soon as the
    /// handler has returned.
    ///
    /// # Errors
    /// A rank that is not in the job.
    pub fn migrate(&mut self, to: Rank) -> Result<()> {
        self.outbox.check(to, 0)?;
        *self.migrates = Some(to);
        Ok(())
    }

    /// So many contributors of the array's step are done: see [`Array::begin_step`].
    ///
    /// # Errors
    /// As [`crate::Shuffle::done`].
    pub fn done(&mut self, contributors: u64) -> Result<()> {
        self.outbox.done(contributors)
    }
}

/// While it lives, no call on this thread makes progress.
struct Quiet<'a, 'h>(Option<&'a Inline<'h>>);

impl<'a, 'h> Quiet<'a, 'h> {
    fn begin(seat: &'a Inline<'h>) -> Self {
        // Where a call hands out deliveries already, that call ends it.
        Self(seat.begin_taking().is_ok().then_some(seat))
    }
}

impl Drop for Quiet<'_, '_> {
    fn drop(&mut self) {
        if let Some(seat) = self.0 {
            seat.end_taking();
        }
    }
}

fn in_use<E>(table: &RefCell<Table<E>>) -> RefMut<'_, Table<E>> {
    match table.try_borrow_mut() {
        Ok(table) => table,
        Err(_) => panic!(
            "an array is in use: it was called inside of its handler, or inside of its `with`"
        ),
    }
}

/// Elements with keys of 64 bits, of which each rank of an inline job has some, and to which
/// items are sent by key: the cells of a grid, the vertices of a graph, the patients of a
/// simulation. An element may move to another rank, between steps or while items are on their way
/// to it: they are sent on to where it is, each exactly once. What is sent to one element keeps
/// its order as long as that stays.
///
/// All ranks insert their elements and then [fence](Array::fence) before anybody sends to them. A
/// rank keeps the broadcasts of the step and of the one before, for elements that come to it:
/// steps end by calls of the array, not by [`Job::fence`](crate::Job::fence) alone. Items and
/// elements travel by the [`Codec`] of the array.
///
/// ```
/// use trihop_shuffle::{Job, Options, Plain, Rank};
///
/// let job = Job::start(Options::from_env()?)?;
/// // Counters, to which numbers are added. Each moves to the next rank when it has had enough.
/// let counters = job.array::<u64, u64, _>("counters", Plain).open(|_key, sum, number, outbox| {
///     *sum += number;
///     if *sum % 1000 == 0 {
///         let next = Rank((outbox.rank().0 + 1) % outbox.size());
///         outbox.migrate(next).expect("a rank of the job");
///     }
/// })?;
/// for key in (0..100).filter(|key| key % u64::from(job.size()) == u64::from(job.rank().0)) {
///     counters.insert(key, 0)?;
/// }
/// counters.fence()?;
/// for number in 0..10_000 {
///     counters.push(number % 100, &number)?;
/// }
/// counters.fence()?;
/// let sum: u64 = counters.with(|_key, sum| *sum).iter().sum();
/// assert!(job.size() > 1 || sum == 9_999 * 5_000);
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Array<'h, E, T, C> {
    handle: Handle<Inline<'h>>,
    table: Rc<RefCell<Table<E>>>,
    codec: C,
    owner: Owner<'h>,
    size: u32,
    of: PhantomData<fn() -> T>,
}

impl<'h, E, T, C: Codec<E> + Codec<T>> Array<'h, E, T, C> {
    /// Puts an element here. Everybody sends to it after the next fence, not before.
    ///
    /// # Errors
    /// [`Error::Misuse`] where this rank has the key, or knows where else it is; as
    /// [`crate::Shuffle::send`]. Where only its owner finds that another rank has it, the job
    /// ends.
    pub fn insert(&self, key: u64, element: E) -> Result<()> {
        let owner = self.owner_of(key)?;
        let mut element = Some(element);
        self.attempt(|out| {
            let mut table = in_use(&self.table);
            if table.knows(key) {
                let why = format!("element {key} is here, has left, or was removed not long ago");
                return Err(Error::misuse(&self.handle.name, why));
            }
            if owner != self.handle.rank {
                with_words(&[key], |bytes| out.try_send(owner, INSERTED, bytes))?;
            }
            if let Some(element) = element.take() {
                let local = Local {
                    element,
                    moves: 0,
                    ahead: HashMap::new(),
                };
                table.here.insert(key, local);
                table.inserted += 1;
            }
            Ok(())
        })
    }

    /// Takes an element that is here away; `None` where it is not. What is sent to it later ends
    /// the job. Its key may be inserted again once three steps, or fences, are over.
    ///
    /// # Errors
    /// As [`crate::Shuffle::send`].
    pub fn remove(&self, key: u64) -> Result<Option<E>> {
        let owner = self.owner_of(key)?;
        let mut removed = None;
        self.attempt(|out| {
            let mut table = in_use(&self.table);
            let Some(local) = table.here.get(&key) else {
                return Ok(());
            };
            let moves = local.moves + 1;
            if owner != self.handle.rank {
                with_words(&[key, moves], |bytes| out.try_send(owner, GONE, bytes))?;
            }
            removed = table.here.remove(&key);
            table.inserted -= 1;
            table.gone(key, moves);
            Ok(())
        })?;
        Ok(removed.map(|local| local.element))
    }

    /// Sends an item to the element of a key, wherever that is; waits as
    /// [`Shuffle::send`](crate::Shuffle::send) does.
    ///
    /// # Errors
    /// As that; an item that the codec refuses. Where no rank has the element, the job ends.
    pub fn push(&self, key: u64, item: &T) -> Result<()> {
        let owner = self.owner_of(key)?;
        with_words(&[key], |bytes| {
            encode(&self.codec, item, bytes)?;
            self.send(owner, ITEM, bytes)
        })
    }

    /// Sends an item to every element, each of which gets it once, also one that moves meanwhile.
    ///
    /// # Errors
    /// As [`Array::push`].
    pub fn broadcast(&self, item: &T) -> Result<()> {
        self.attempt(|out| {
            let mut table = in_use(&self.table);
            let number = table.sent + 1;
            with_words(&[number], |bytes| {
                encode(&self.codec, item, bytes)?;
                out.try_broadcast(BroadcastTo::Everyone, EVERY, bytes)
            })?;
            table.sent = number;
            Ok(())
        })
    }

    /// Has an element that is here move to another rank.
    ///
    /// # Errors
    /// [`Error::Misuse`] where it is not here; as [`Array::push`], with the element still here.
    pub fn migrate(&self, key: u64, to: Rank) -> Result<()> {
        self.attempt(|out| {
            out.check(to, 0)?;
            let mut table = in_use(&self.table);
            if !table.here.contains_key(&key) {
                let why = format!("element {key} is not here, or has moved already");
                return Err(Error::misuse(&self.handle.name, why));
            }
            if to == self.handle.rank {
                return Ok(());
            }
            with_scratch(|bytes| {
                table.departure(key, &self.codec, bytes)?;
                out.try_send(to, ELEMENT, bytes)
            })?;
            table.depart(key, to);
            Ok(())
        })
    }

    /// Uses every element that is here, in no order; what comes of each. `each` may push, to this
    /// array and on any stream, but no progress is made meanwhile: where there is no room, that is
    /// [`Error::WouldBlock`].
    ///
    /// # Panics
    /// Where `each` makes another call of the array.
    pub fn with<R>(&self, mut each: impl FnMut(u64, &mut E) -> R) -> Vec<R> {
        let mut table = in_use(&self.table);
        let _quiet = Quiet::begin(&self.handle.seat);
        let all = table.here.iter_mut();
        all.map(|(&key, local)| each(key, &mut local.element))
            .collect()
    }

    /// Elements that are here.
    pub fn len(&self) -> usize {
        in_use(&self.table).here.len()
    }

    /// Whether no element is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items that came here for elements elsewhere, and were sent on.
    pub fn late(&self) -> u64 {
        in_use(&self.table).late
    }

    /// Collective: everything that was sent before is handled, also what handlers sent because of
    /// it, and every element is where it was sent.
    ///
    /// # Errors
    /// As [`Shuffle::fence`](crate::Shuffle::fence), and what handlers could not send.
    pub fn fence(&self) -> Result<()> {
        self.shuffle().fence()?;
        self.settle()
    }

    /// Begins a step of which each element is a contributor, wherever it is by then. Waits until
    /// all ranks do. See [`Shuffle::begin_step`](crate::Shuffle::begin_step); the step ends by
    /// [`Array::test`] or [`Array::wait`]. Nobody inserts or removes elements meanwhile.
    ///
    /// # Errors
    /// As that.
    pub fn begin_step(&self) -> Result<()> {
        let mut elements = [in_use(&self.table).inserted];
        let seat = &self.handle.seat;
        let what = "counting elements";
        seat.one_at_a_time(None, what, || {
            seat::allreduce(seat, Channel::Calls, &mut elements, Reduce::Sum)
        })?;
        let all = u64::try_from(elements[0]).unwrap_or(0);
        let end = End::Completion(Contributors::All(all));
        self.handle.start(end).map(drop)
    }

    /// So many elements have sent what they have to send, on whichever rank they are.
    ///
    /// # Errors
    /// As [`Shuffle::done`](crate::Shuffle::done).
    pub fn done(&self, contributors: u64) -> Result<()> {
        self.handle.done(contributors)
    }

    /// One round of progress, and whether the step is over.
    ///
    /// # Errors
    /// As [`Shuffle::test`](crate::Shuffle::test), and what handlers could not send.
    pub fn test(&self) -> Result<bool> {
        let is_over = self.handle.test()?;
        if is_over {
            self.settle()?;
        }
        Ok(is_over)
    }

    /// Waits until the step is over.
    ///
    /// # Errors
    /// As [`Array::test`].
    pub fn wait(&self) -> Result<()> {
        self.handle.wait()?;
        self.settle()
    }

    /// One round of progress; how many records were handled.
    ///
    /// # Errors
    /// As [`Shuffle::poll`](crate::Shuffle::poll).
    pub fn poll(&self) -> Result<u64> {
        self.handle.poll()
    }

    /// The last fence; the elements that are here then, with their keys. Collective.
    ///
    /// # Errors
    /// As [`Array::fence`].
    pub fn shutdown(self) -> Result<Vec<(u64, E)>> {
        self.shuffle().shutdown()?;
        self.settle()?;
        let here = std::mem::take(&mut in_use(&self.table).here);
        let elements = here.into_iter();
        Ok(elements.map(|(key, local)| (key, local.element)).collect())
    }

    fn shuffle(&self) -> Shuffle<Inline<'h>> {
        Shuffle {
            handle: self.handle.clone(),
        }
    }

    fn owner_of(&self, key: u64) -> Result<Rank> {
        let (owner, size) = ((self.owner)(key), self.size);
        let rank = owner.0;
        match rank < size {
            true => Ok(owner),
            false => Err(Error::Rank { rank, size }),
        }
    }

    fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.attempt(|out| out.try_send(target, kind, bytes))
    }

    /// Sends as soon as there is room. Nobody else uses the table while `send` does.
    fn attempt(&self, send: impl FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        self.check_failure()?;
        self.handle.send_with(send)
    }

    fn settle(&self) -> Result<()> {
        let mut table = in_use(&self.table);
        let here = self.handle.rank;
        table.settle(|key| (self.owner)(key) == here);
        drop(table);
        self.check_failure()
    }

    /// What handlers could not send.
    fn check_failure(&self) -> Result<()> {
        // Inside of `with` the next call says so.
        let table = self.table.try_borrow_mut();
        let failure = table.ok().and_then(|mut table| table.failure.take());
        failure.map_or(Ok(()), Err)
    }
}
