//! Arrays: elements with keys, each on some rank, to which items are sent by key.
//!
//! An element begins where it is inserted, and may move. The owner of its key, which a function
//! of the program's names, knows where it is; so does, for a step, a rank that it has left. Who
//! does not sends what comes for it to the owner. A rank tells the owner of an element once that
//! has arrived there: until then the owner sends to where it was, which sends on behind the
//! element itself, so that nothing overtakes it on its way. All of that are messages of one
//! stream: a fence, or a step, ends when the last is where it belongs.

mod builder;
mod elements;
mod keeper;
mod outbox;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::marker::PhantomData;

use trihop_transport::sync::Arc;
use trihop_transport::topology::Rank;

use super::codec::{Codec, encode, with_scratch};
use super::shuffle::Shuffle;
use super::step::StepBuilder;
use crate::endpoint::Channel;
use crate::engine::contribution::Contributors;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::queue::audience::BroadcastTo;
use crate::seat::{self, Handle, Inline, Seat, Seating};
use crate::terminate::End;
use crate::terminate::reduce::Reduce;
pub use builder::ArrayBuilder;
use builder::Owners;
use elements::Elements;
pub(crate) use elements::in_use_here;
pub(crate) use keeper::lock;
pub use outbox::ArrayOutbox;
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

/// While it lives, no call of an inline job makes progress on this thread.
struct Quiet<'a, S: Seating>(Option<&'a S>);

impl<'a, S: Seating> Quiet<'a, S> {
    fn begin(seat: &'a S) -> Self {
        // Where a call hands out deliveries already, that call ends it.
        Self(seat.begin_taking().is_ok().then_some(seat))
    }
}

impl<S: Seating> Drop for Quiet<'_, S> {
    fn drop(&mut self) {
        if let Some(seat) = self.0 {
            seat.end_taking();
        }
    }
}

/// Elements with keys of 64 bits, of which each rank of a job has some, and to which items
/// are sent by key: the cells of a grid, the vertices of a graph, the patients of a
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
/// let sum: u64 = counters.with(|_key, sum| *sum)?.iter().sum();
/// assert!(job.size() > 1 || sum == 9_999 * 5_000);
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Array<E, T, C, S: Seat> {
    handle: Handle<S>,
    elements: Arc<Elements<E>>,
    codec: C,
    owners: Owners<S>,
    of: PhantomData<fn() -> T>,
}

impl<E, T, C: Clone, S: Seat> Clone for Array<E, T, C, S> {
    /// The array itself, once more.
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            elements: Arc::clone(&self.elements),
            codec: self.codec.clone(),
            owners: self.owners.clone(),
            of: PhantomData,
        }
    }
}

impl<E, T, C: Codec<E> + Codec<T>, S: Seat> Array<E, T, C, S> {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.handle.rank
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.handle.size
    }

    /// What writes and reads its elements and items.
    #[doc(hidden)]
    pub fn codec(&self) -> &C {
        &self.codec
    }

    /// What this rank pushes by this handle, and by those that are cloned from it later, to
    /// elements whose owner it is, is handed to the handler in the push itself, where the element
    /// is here; else it is sent on at once. Other ranks need not do the same. Order is kept, as
    /// [`Stream::own_at_once`](crate::Stream::own_at_once) says. Broadcasts go the usual way, and
    /// so does what is pushed inside of [`Array::with`].
    ///
    /// # Errors
    /// As that.
    pub fn own_at_once(&mut self) -> Result<()> {
        self.handle.handle_own_at_once()
    }

    /// Puts an element here. Everybody sends to it after the next fence, not before.
    ///
    /// # Errors
    /// [`Error::Misuse`] where this rank has the key, or knows where else it is; [`Error::Nested`]
    /// inside the array's handler, any handler of an inline job, and [`Array::with`]; as
    /// [`crate::Shuffle::send`]. Where only its owner finds that another rank has it, the job
    /// ends.
    pub fn insert(&self, key: u64, element: E) -> Result<()> {
        self.insert_with(key, || element)
    }

    /// As [`Array::insert`], of what `make` gives once nothing can fail any more.
    #[doc(hidden)]
    pub fn insert_with(&self, key: u64, make: impl FnOnce() -> E) -> Result<()> {
        let owner = self.owner_of(key)?;
        let tell = |table: &mut Table<E>, bytes: &mut Vec<u8>| {
            if table.knows(key) {
                let why = format!("element {key} is here, has left, or was removed not long ago");
                return Err(Error::misuse(&self.handle.name, why));
            }
            bytes.extend_from_slice(&key.to_le_bytes());
            Ok((owner != self.handle.rank).then_some((owner, INSERTED)))
        };
        self.change("an insertion", tell, |table| {
            let local = Local {
                element: make(),
                moves: 0,
                ahead: HashMap::new(),
            };
            table.here.insert(key, local);
            table.inserted += 1;
        })
    }

    /// Takes an element that is here away; `None` where it is not. What is sent to it later ends
    /// the job. Its key may be inserted again once three steps, or fences, are over.
    ///
    /// # Errors
    /// [`Error::Nested`] as [`Array::insert`]; as [`crate::Shuffle::send`].
    pub fn remove(&self, key: u64) -> Result<Option<E>> {
        let owner = self.owner_of(key)?;
        let mut removed = None;
        let tell = |table: &mut Table<E>, bytes: &mut Vec<u8>| {
            let Some(local) = table.here.get(&key) else {
                return Ok(None);
            };
            for word in [key, local.moves + 1] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            Ok((owner != self.handle.rank).then_some((owner, GONE)))
        };
        self.change("a removal", tell, |table| {
            removed = table.remove(key);
        })?;
        Ok(removed)
    }

    /// Sends an item to the element of a key, wherever that is; waits as
    /// [`Shuffle::send`](crate::Shuffle::send) does.
    ///
    /// # Errors
    /// As that; an item that the codec refuses. Where no rank has the element, the job ends.
    pub fn push(&self, key: u64, item: &T) -> Result<()> {
        self.elements.check_failure()?;
        let owner = self.owner_of(key)?;
        self.with_item(key, item, |bytes| {
            if self.is_sent_here(owner, bytes, Pushes::Paced)? {
                return Ok(());
            }
            self.handle.send(
                |out| out.try_send(owner, ITEM, bytes),
                |out| out.send_or_spill(owner, ITEM, bytes),
            )?;
            self.handle.allow_sends_here(bytes.len(), Pushes::Paced);
            Ok(())
        })
    }

    /// As [`Array::push`], if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken; as [`Array::push`].
    pub fn try_push(&self, key: u64, item: &T) -> Result<()> {
        self.elements.check_failure()?;
        let owner = self.owner_of(key)?;
        self.with_item(key, item, |bytes| {
            if self.is_sent_here(owner, bytes, Pushes::Unpaced)? {
                return Ok(());
            }
            let send = |out: &mut Outbound| out.try_send(owner, ITEM, bytes);
            self.handle.try_send(send)?;
            self.handle.allow_sends_here(bytes.len(), Pushes::Unpaced);
            Ok(())
        })
    }

    /// Sends many items, each to the element of its key.
    ///
    /// # Errors
    /// As [`Array::push`]; items before the failing one are sent.
    pub fn extend<'a>(&self, items: impl IntoIterator<Item = (u64, &'a T)>) -> Result<()>
    where
        T: 'a,
    {
        let mut items = items.into_iter();
        items.try_for_each(|(key, item)| self.push(key, item))
    }

    /// Sends an item to every element, each of which gets it once, also one that moves meanwhile.
    /// A rank keeps those of a step and of the one before, for elements that come: up to the
    /// option `memory_bytes` of them, beside what the stream has; more in a step ends the job with
    /// an error that says so.
    ///
    /// # Errors
    /// As [`Array::push`].
    pub fn broadcast(&self, item: &T) -> Result<()> {
        type Send = fn(&mut Outbound, BroadcastTo, u32, &[u8]) -> Result<()>;
        self.elements.check_failure()?;
        with_words(&[0], |bytes| {
            encode(&self.codec, item, bytes)?;
            let numbered = |bytes: &mut Vec<u8>, out: &mut Outbound, send: Send| {
                self.elements.number(|number| {
                    bytes[..8].copy_from_slice(&number.to_le_bytes());
                    send(out, BroadcastTo::Everyone, EVERY, bytes)
                })
            };
            match self.handle.seat.is_in_handler() {
                true => {
                    (self.handle).spill(|out| numbered(bytes, out, Outbound::broadcast_or_spill))
                }
                false => {
                    (self.handle).send_with(|out| numbered(bytes, out, Outbound::try_broadcast))
                }
            }
        })
    }

    /// Has an element that is here move to another rank.
    ///
    /// # Errors
    /// [`Error::Misuse`] where it is not here; [`Error::Nested`] as [`Array::insert`]; as
    /// [`Array::push`], with the element still here.
    pub fn migrate(&self, key: u64, to: Rank) -> Result<()> {
        self.check_rank(to)?;
        let leave = |table: &mut Table<E>, bytes: &mut Vec<u8>| {
            if !table.here.contains_key(&key) {
                let why = format!("element {key} is not here, or has moved already");
                return Err(Error::misuse(&self.handle.name, why));
            }
            if to == self.handle.rank {
                return Ok(None);
            }
            table.departure(key, &self.codec, bytes)?;
            Ok(Some((to, ELEMENT)))
        };
        self.change("a migration", leave, |table| {
            if to != self.handle.rank {
                table.depart(key, to);
            }
        })
    }

    /// Uses every element that is here, in no order; what comes of each. Handlers wait meanwhile,
    /// or on an inline job no progress is made. `each` may push, to this array and on any stream,
    /// but waits for no room: where there is none, that is [`Error::WouldBlock`].
    ///
    /// # Errors
    /// [`Error::Nested`] inside itself, and in handlers of an array.
    pub fn with<R>(&self, mut each: impl FnMut(u64, &mut E) -> R) -> Result<Vec<R>> {
        let mut table = self.elements.lock("the use of elements")?;
        let _quiet = Quiet::begin(&self.handle.seat);
        let all = table.here.iter_mut();
        Ok(all
            .map(|(&key, local)| each(key, &mut local.element))
            .collect())
    }

    /// Elements that are here.
    ///
    /// # Errors
    /// As [`Array::with`].
    pub fn count(&self) -> Result<usize> {
        Ok(self.elements.lock("the count of elements")?.here.len())
    }

    /// Items that came here for elements elsewhere, and were sent on.
    ///
    /// # Errors
    /// As [`Array::with`].
    pub fn late(&self) -> Result<u64> {
        Ok(self.elements.lock("the count of late items")?.late)
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

    /// Starts a [`fence`](Self::fence), and does not wait: [`Self::test`] and [`Self::wait`] say
    /// when it is over. Until then only handlers push to this array.
    ///
    /// # Errors
    /// As [`Shuffle::start`](crate::Shuffle::start).
    pub fn start_fence(&self) -> Result<()> {
        self.handle.start(End::Fence).map(drop)
    }

    /// Begins a step of which each element is a contributor, wherever it is by then: a rank without
    /// any is done at once. Waits until all ranks do. See
    /// [`Shuffle::begin_step`](crate::Shuffle::begin_step); the step ends by [`Array::test`] or
    /// [`Array::wait`]. A rank that says [`Array::done`] for its own elements counts them before,
    /// behind the last fence or step: items of others may have some move as soon as the step has
    /// begun. Nobody inserts or removes elements meanwhile.
    ///
    /// # Errors
    /// As that.
    pub fn begin_step(&self) -> Result<()> {
        let end = End::Completion(self.count_contributors()?);
        self.settle()?;
        self.handle.start(end).map(drop)
    }

    /// As [`Array::begin_step`], with a priority, and with calls when the step begins and when it is
    /// over: see [`StepBuilder`]. Waits until all ranks count their elements; the step that they
    /// are counted for begins next.
    ///
    /// # Errors
    /// As that.
    pub fn step<'s>(&self) -> Result<StepBuilder<'s, Self, S>>
    where
        C: Clone,
    {
        self.step_of(self.count_contributors()?)
    }

    /// As [`Array::step`], of contributors that the program counts, or as [`Array::start_fence`] by
    /// [`End::Fence`]; it so waits for nobody, and may begin at the end of the step before.
    ///
    /// # Errors
    /// As [`Array::with`], and what handlers could not send; [`Error::Misuse`] for a round, since
    /// elements and items are sent on by handlers.
    pub fn step_of<'s>(&self, end: impl Into<End>) -> Result<StepBuilder<'s, Self, S>>
    where
        C: Clone,
    {
        let end = end.into();
        if end == End::Round {
            let why = "handlers of an array send on: its steps end by a fence or by contributors";
            return Err(Error::misuse(&self.handle.name, why));
        }
        self.settle()?;
        let mut face = self.clone();
        face.handle = self.handle.on_seat(self.handle.seat.for_calls());
        Ok(StepBuilder::new(self.handle.clone(), face, end))
    }

    /// All elements of all ranks, behind what the last step has left.
    fn count_contributors(&self) -> Result<Contributors> {
        let what = "counting elements";
        let mut elements = [self.elements.lock(what)?.inserted];
        let seat = &self.handle.seat;
        seat.one_at_a_time(None, what, || {
            seat::allreduce(seat, Channel::Calls, &mut elements, Reduce::Sum)
        })?;
        Ok(Contributors::All(u64::try_from(elements[0]).unwrap_or(0)))
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
    /// As [`Array::fence`], and the elements go with it: a program that wants them even where a
    /// handler could not send something calls that before, which says so with the array still
    /// there.
    pub fn shutdown(self) -> Result<Vec<(u64, E)>> {
        self.close()
    }

    /// As [`Array::shutdown`], with the array still there where that is refused.
    #[doc(hidden)]
    pub fn close(&self) -> Result<Vec<(u64, E)>> {
        match self.shuffle().shutdown() {
            Ok(()) => self.elements.check_failure()?,
            Err(refused @ (Error::Nested(_) | Error::Misuse { .. })) => return Err(refused),
            Err(failed) => {
                // What is still to be called at an end may have the array for longer.
                drop(self.take_elements());
                return Err(failed);
            }
        }
        self.take_elements()
    }

    fn take_elements(&self) -> Result<Vec<(u64, E)>> {
        let here = std::mem::take(&mut self.elements.lock("shutting down")?.here);
        let elements = here.into_iter();
        Ok(elements.map(|(key, local)| (key, local.element)).collect())
    }

    fn shuffle(&self) -> Shuffle<S> {
        Shuffle {
            handle: self.handle.clone(),
        }
    }

    fn check_rank(&self, rank: Rank) -> Result<()> {
        let (rank, size) = (rank.0, self.handle.size);
        match rank < size {
            true => Ok(()),
            false => Err(Error::Rank { rank, size }),
        }
    }

    fn owner_of(&self, key: u64) -> Result<Rank> {
        let owner = self.owners.of(key);
        self.check_rank(owner).map(|()| owner)
    }

    fn with_item<R>(&self, key: u64, item: &T, send: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
        with_words(&[key], |bytes| {
            encode(&self.codec, item, bytes)?;
            send(bytes)
        })
    }

    /// Whether an item needed nothing but its run, or was handled in the call itself: where it is
    /// for an element that this rank owns.
    #[inline]
    fn is_sent_here(&self, owner: Rank, bytes: &[u8], pushes: Pushes) -> Result<bool> {
        if self.handle.send_here(owner, ITEM, bytes) {
            return Ok(true);
        }
        // Inside of `with` of another job's array, no handler gets its elements.
        Ok(self.handle.is_at_once(owner)
            && !in_use_here()
            && (self.handle).is_handled_at_once(owner, ITEM, bytes, pushes)?)
    }

    /// Changes the table once the record that says so is on its way, whose bytes `tell` writes:
    /// nobody else has the table in between. It is not kept while there is no room: handlers go on,
    /// and the record is written anew.
    fn change(
        &self,
        what: &'static str,
        tell: impl Fn(&mut Table<E>, &mut Vec<u8>) -> Result<Option<(Rank, u32)>>,
        change: impl FnOnce(&mut Table<E>),
    ) -> Result<()> {
        self.elements.check_failure()?;
        let mut change = Some(change);
        let mut attempt = |spills: bool| {
            let mut table = self.elements.lock(what)?;
            with_scratch(|bytes| match tell(&mut table, bytes)? {
                Some((target, kind)) if spills => self
                    .handle
                    .spill_only(|out| out.send_or_spill(target, kind, bytes)),
                Some((target, kind)) => self
                    .handle
                    .try_send(|out| out.try_send(target, kind, bytes)),
                // As a send would be: refused where the job has failed, or is in use.
                None => self.handle.with_out(what, |_| Ok(())),
            })?;
            if let Some(change) = change.take() {
                change(&mut table);
            }
            Ok(())
        };
        let changed = match self.handle.seat.is_in_handler() {
            true => attempt(true),
            false => match attempt(false) {
                Err(Error::WouldBlock) => {
                    // One record of this thread at a time is more than queues take.
                    self.handle.wait_for_spill()?;
                    attempt(true)
                }
                changed => changed,
            },
        };
        // Handlers need the table: there is progress without it alone.
        changed.and_then(|()| self.handle.pass_by())
    }

    /// Leaves behind the steps and fences that are over.
    fn settle(&self) -> Result<()> {
        let what = "the end of a step";
        let stream = self.handle.id.stream;
        let over = |job: &mut JobState| Ok(job.parked.over_on(stream));
        let (steps, here) = (self.handle.seat.with(what, over)?, self.handle.rank);
        let mut table = self.elements.lock(what)?;
        table.settle_until(steps, |key| self.owners.of(key) == here);
        drop(table);
        self.elements.check_failure()
    }
}

impl Outbox<'_> {
    /// What sends to an array of the same job, from inside a handler of something else: by the same
    /// rules.
    ///
    /// # Errors
    /// [`Error::Closed`] where that array was shut down and another stream has its place.
    pub fn to<'a, 'h, E, T, C>(
        &'a mut self,
        array: &'a Array<E, T, C, Inline<'h>>,
    ) -> Result<ArrayOutbox<'a, E, T, C, Inline<'h>>> {
        Ok(ArrayOutbox {
            outbox: self.for_handle(&array.handle)?,
            codec: &array.codec,
            owners: &array.owners,
            elements: &array.elements,
            migrates: None,
            item: PhantomData,
        })
    }
}
