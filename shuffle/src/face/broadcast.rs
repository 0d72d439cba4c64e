//! Broadcasts: one record to all ranks, copied along the tree of the route instead of sent to each.
//!
//! A broadcast keeps its place among the sends of its rank: each rank gets it between what was sent
//! to that rank before and after. A fence waits for all copies. Over three hops it crosses each
//! pair of nodes once. A record that is longer than a frame (a quarter of a lane, or less where
//! batches are small) goes to one rank after the other instead, as if it were sent to each: its
//! fragments would keep queues busy that other such records wait for.

use crate::engine::at_once::OwnSend;
use crate::engine::outbound::Pushes;
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::face::shuffle::Shuffle;
use crate::face::stream::{Item, ItemOutbox, Stream};
use crate::queue::audience::BroadcastTo;
use crate::seat::{Handle, Seat, Seating};

impl<S: Seat> Shuffle<S> {
    /// Sends a record to many ranks; waits, with progress and deliveries, until it is taken. That
    /// is before all copies have left: what is sent later waits for them. The bytes are copied.
    ///
    /// In a job of one, [`BroadcastTo::Others`] is nobody, which is no error.
    ///
    /// # Errors
    /// As [`Shuffle::send`].
    ///
    /// # Examples
    /// ```
    /// use std::cell::Cell;
    /// use trihop_shuffle::{BroadcastTo, Job, Options};
    ///
    /// let heard = Cell::new(0);
    /// let job = Job::start(Options::from_env()?)?;
    /// let shuffle = job.shuffle("news").handler(|_, _| heard.set(heard.get() + 1)).open()?;
    /// shuffle.broadcast(7, b"to all of you", BroadcastTo::Everyone)?;
    /// shuffle.fence()?;
    /// assert_eq!(heard.get(), job.size());
    /// job.shutdown()?;
    /// # Ok::<(), trihop_shuffle::Error>(())
    /// ```
    pub fn broadcast(&self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        broadcast(&self.handle, kind, bytes, to)
    }

    /// Sends a record to many ranks if it can be taken now; never waits and makes no progress. What
    /// was sent before must have room to leave before it.
    ///
    /// # Errors
    /// [`crate::Error::WouldBlock`], with nothing taken; a bad length.
    pub fn try_broadcast(&self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        try_broadcast(&self.handle, kind, bytes, to)
    }
}

impl<T: Item, S: Seat> Stream<T, S> {
    /// As [`Shuffle::broadcast`], for an item.
    ///
    /// # Errors
    /// As [`Shuffle::send`].
    pub fn broadcast(&self, item: T, to: BroadcastTo) -> Result<()> {
        broadcast(&self.handle, 0, item.as_bytes(), to)
    }

    /// As [`Shuffle::try_broadcast`], for an item.
    ///
    /// # Errors
    /// As [`Shuffle::try_broadcast`].
    pub fn try_broadcast(&self, item: T, to: BroadcastTo) -> Result<()> {
        try_broadcast(&self.handle, 0, item.as_bytes(), to)
    }
}

/// A broadcast of a record, or of an item.
pub(crate) fn broadcast<S: Seating>(
    handle: &Handle<S>,
    kind: u32,
    bytes: &[u8],
    to: BroadcastTo,
) -> Result<()> {
    match own_at_once(handle, kind, bytes, to, Pushes::Paced) {
        Ok(true) => return Ok(()),
        // The copy of a rank that has to wait for room goes the way of all others.
        Ok(false) | Err(Error::WouldBlock) => {}
        Err(error) => return Err(error),
    }
    handle.send(
        |out| out.try_broadcast(to, kind, bytes),
        |out| out.broadcast_or_spill(to, kind, bytes),
    )
}

/// As [`broadcast`], where there is room now.
pub(crate) fn try_broadcast<S: Seating>(
    handle: &Handle<S>,
    kind: u32,
    bytes: &[u8],
    to: BroadcastTo,
) -> Result<()> {
    match own_at_once(handle, kind, bytes, to, Pushes::Unpaced)? {
        true => Ok(()),
        false => handle.try_send(|out| out.try_broadcast(to, kind, bytes)),
    }
}

/// Sends a broadcast whose own copy is handled at once; false where it has to go the way of all
/// others.
fn own_at_once<S: Seating>(
    handle: &Handle<S>,
    kind: u32,
    bytes: &[u8],
    to: BroadcastTo,
    pushes: Pushes,
) -> Result<bool> {
    let send = OwnSend {
        kind,
        bytes,
        to_others: true,
    };
    let is_asked_for = to == BroadcastTo::Everyone && handle.is_at_once(handle.rank);
    Ok(is_asked_for && handle.deliver_own(send, pushes)?)
}

impl Outbox<'_> {
    /// Sends a record to many ranks, or spills it; in the spill it counts once, however many ranks
    /// get it.
    ///
    /// # Errors
    /// As [`Outbox::send`].
    pub fn broadcast(&mut self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        self.with(|out| out.broadcast_or_spill(to, kind, bytes))
    }
}

impl<T: Item> ItemOutbox<'_, T> {
    /// Sends an item to many ranks, or spills it.
    ///
    /// # Errors
    /// As [`ItemOutbox::push`].
    pub fn broadcast(&mut self, item: T, to: BroadcastTo) -> Result<()> {
        self.outbox.broadcast(0, item.as_bytes(), to)
    }
}
