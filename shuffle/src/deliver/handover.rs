//! From the thread that makes progress to a delivery thread, which calls the handler outside of
//! every lock.

use std::cell::Cell;
use std::sync::Arc;

use trihop_transport::park::Gauge;
use trihop_transport::protocol::wire::BadRun;
use trihop_transport::ring::{Bell, Block};
use trihop_transport::sync::Flag;

use super::deliveries::{Deliveries, Pending};
use super::queue::{Entry, Whole};
use super::{Delivery, take_overfilled};
use crate::config::StreamOptions;
use crate::error::{Error, Result};

/// Part of the delivery queue's bound that a delivery thread takes at a time: room comes back in
/// such pieces.
const PIECES: usize = 8;

/// Deliveries on their way to a delivery thread. What it has in its hands counts as waiting until
/// its calls return.
pub(crate) struct Handover {
    /// The queues of its delivery thread, and which of them is this stream's.
    deliveries: Arc<Deliveries>,
    slot: usize,
    /// Wakes the thread that makes progress.
    bell: Arc<Bell>,
    /// The delivery thread has done something that progress or a flush waits for. Written before
    /// the bell is rung, whose fence pairs with that of the sleep which looks here once more.
    freed: Flag,
    /// Something was handed over, or found no room, since deliveries were last shown. Only the
    /// thread that makes progress uses it.
    unshown: Flag,
    /// Says whether the stream's spill is pressed: handlers that have sent on it wait before their
    /// next call.
    pub gauge: Arc<Gauge>,
    /// The handler is called no more. Pairs with the look before each of its calls.
    discards: Flag,
}

/// Deliveries in the hands of a delivery thread.
#[derive(Default)]
pub(crate) struct Chunk {
    pub(super) entries: Vec<Entry>,
}

/// The handler's calls for one chunk.
pub(crate) struct Calls<'a> {
    discards: &'a Flag,
    /// Records whose handler has returned: known also where the handler panics.
    returned: Cell<u64>,
}

impl Calls<'_> {
    /// Makes a call of the handler for so many records; false, without it, if there are to be no
    /// more. Waits before it for a spill that the last call has overfilled.
    #[inline]
    pub fn make(&self, records: u64, call: impl FnOnce()) -> bool {
        if let Some(gauge) = take_overfilled() {
            gauge.wait();
        }
        if self.discards.is_raised() {
            return false;
        }
        call();
        self.returned.set(self.returned.get() + records);
        true
    }
}

impl Chunk {
    /// Hands each delivery to `take`; an error comes with the source.
    pub fn each(
        &self,
        job_size: u32,
        mut take: impl FnMut(Delivery<'_>) -> Result<(), BadRun>,
    ) -> Result<(), (u32, BadRun)> {
        self.entries.iter().try_for_each(|entry| {
            let mut from = 0;
            let outcome = entry.hand_to(job_size, |delivery| {
                from = delivery.source();
                take(delivery)
            });
            outcome.map_err(|why| (from, why))
        })
    }
}

impl Handover {
    /// To the thread that `deliveries` are for.
    pub fn new(options: &StreamOptions, bell: Arc<Bell>, deliveries: Arc<Deliveries>) -> Self {
        let piece_records = options.deliverq_max.div_ceil(PIECES);
        Self {
            slot: deliveries.insert(Pending::new(options, piece_records)),
            deliveries,
            bell,
            freed: Flag::default(),
            unshown: Flag::default(),
            gauge: Arc::default(),
            discards: Flag::default(),
        }
    }

    /// What waits for the delivery thread.
    pub fn deliveries(&self) -> &Arc<Deliveries> {
        &self.deliveries
    }

    /// What is handed to the handler now, as a number that others do not have.
    pub fn under_way(&self) -> Option<u64> {
        self.deliveries.under_way(self.slot)
    }

    /// Which of the thread's queues is this stream's.
    pub fn slot(&self) -> usize {
        self.slot
    }

    fn with<R>(&self, change: impl FnOnce(&mut Pending) -> R) -> R {
        self.deliveries
            .with(self.slot, |pending| (change(pending), true))
    }

    /// As `with`, for a caller that calls [`show`](Self::show) before long: waking per delivery
    /// would cost more than the delivery.
    fn with_quietly<R>(&self, change: impl FnOnce(&mut Pending) -> R) -> R {
        self.unshown.raise();
        self.deliveries
            .with(self.slot, |pending| (change(pending), false))
    }

    /// Wakes the delivery thread if it sleeps and there is something for it that it was not shown
    /// yet.
    pub fn show(&self) {
        if self.unshown.is_raised() {
            self.unshown.lower();
            self.with(|_| ());
        }
    }

    /// As [`show`](Self::show), but lets what is little wait: after a round of progress that has
    /// moved something. A waiting call makes rounds until one moves nothing, and that one shows
    /// all. After a single round, in the passing of a send, the progress thread makes the next one:
    /// within a millisecond, where it naps.
    pub fn show_much(&self) {
        if !self.unshown.is_raised() {
            return;
        }
        let much = self.deliveries.with(self.slot, |pending| {
            let is_much = pending.is_much();
            (is_much, is_much)
        });
        if much {
            self.unshown.lower();
        }
    }

    /// Whether a delivery of `count` records of together `bytes` may come.
    pub fn admit(&self, count: usize, bytes: usize) -> bool {
        self.discards.is_raised() || self.with_quietly(|pending| pending.queue.admit(count, bytes))
    }

    /// Copies a delivery that was admitted, to be shown later.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn push(&self, delivery: &Delivery<'_>) -> Result<(), BadRun> {
        self.with_quietly(|pending| self.push_or_drop(pending, delivery))
    }

    /// Copies a delivery of `count` records and `bytes` bytes, to be shown later, if it is
    /// admitted; else false.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn offer(
        &self,
        delivery: &Delivery<'_>,
        count: usize,
        bytes: usize,
    ) -> Result<bool, BadRun> {
        self.with_quietly(|pending| {
            let admitted = self.discards.is_raised() || pending.queue.admit(count, bytes);
            if admitted {
                self.push_or_drop(pending, delivery)?;
            }
            Ok(admitted)
        })
    }

    /// Takes a long record that was admitted, in memory that its source shares, to be shown later.
    pub fn keep(&self, block: Block, whole: Whole) {
        let dropped = self.with_quietly(|pending| {
            if !self.discards.is_raised() {
                pending.keep(block, whole);
                return None;
            }
            pending.handed += 1;
            pending.undelivered += 1;
            Some(block)
        });
        drop(dropped);
    }

    /// Drops what nobody would take: looked at with the queue in hand, so that nothing is added
    /// behind the thread's last look.
    fn push_or_drop(&self, pending: &mut Pending, delivery: &Delivery<'_>) -> Result<(), BadRun> {
        if !self.discards.is_raised() {
            return pending.push(delivery);
        }
        let records = delivery.records() as u64;
        pending.handed += records;
        pending.undelivered += records;
        Ok(())
    }

    /// Records that were handed over so far.
    pub fn handed(&self) -> u64 {
        self.with(|pending| pending.handed)
    }

    /// Records whose handler has returned, or that were dropped because it is called no more.
    pub fn passed(&self) -> u64 {
        self.with(|pending| pending.passed())
    }

    /// Records that were dropped because the handler is called no more.
    pub fn undelivered(&self) -> u64 {
        self.with(|pending| pending.undelivered)
    }

    /// Records and bytes that wait, or are in the handler's hands.
    pub fn waiting(&self) -> (usize, usize) {
        self.with(|pending| (pending.queue.records(), pending.queue.bytes()))
    }

    /// Whether the handler is through with the first `count` records, and has not failed. If not,
    /// the delivery thread wakes the thread that makes progress once it is, and waits for no
    /// threshold until then.
    pub fn has_done(&self, count: u64) -> bool {
        self.with(|pending| {
            pending.awaited = pending.awaited.max(count);
            pending.failure.is_none() && pending.passed() >= count
        })
    }

    /// Whether the handler is through with everything; as [`has_done`](Self::has_done).
    pub fn has_done_all(&self) -> bool {
        let handed = self.handed();
        self.has_done(handed)
    }

    /// Whether the delivery thread has made room, or gone as far as somebody waits for, since this
    /// was last asked.
    ///
    /// # Errors
    /// What the handler failed with, whenever this is asked.
    pub fn take_freed(&self) -> Result<bool> {
        if !self.freed.is_raised() {
            return Ok(false);
        }
        // Lowered first: a failure that comes after the look raises it again.
        self.freed.lower();
        if let Some(failure) = self.with(|pending| pending.failure.clone()) {
            self.freed.raise(); // for the next call
            return Err(failure);
        }
        Ok(true)
    }

    /// As [`take_freed`](Self::take_freed), without taking it; asked before a sleep.
    pub fn is_freed(&self) -> bool {
        self.freed.is_raised()
    }

    /// The delivery thread: what the handler is called with.
    pub fn calls(&self) -> Calls<'_> {
        Calls {
            discards: &self.discards,
            returned: Cell::new(0),
        }
    }

    /// The delivery thread: the handler is through with a chunk, for as many records as it was
    /// called for.
    pub fn finish(&self, chunk: &mut Chunk, calls: Calls<'_>) {
        let news = self.with(|pending| {
            let before = pending.passed();
            let wanted = pending.queue.is_blocked();
            let records = pending.queue.finish(&mut chunk.entries) as u64;
            let returned = calls.returned.get();
            pending.done += returned;
            pending.undelivered += records.saturating_sub(returned);
            let awaited = before < pending.awaited && pending.awaited <= pending.passed();
            wanted || awaited
        });
        if news {
            self.wake_progress();
        }
    }

    /// The delivery thread: the handler failed, and is called no more.
    pub fn fail(&self, failure: Error) {
        self.discard();
        self.with(|pending| {
            pending.failure.get_or_insert(failure);
        });
        self.wake_progress();
    }

    /// Calls the handler no more: what waits is dropped and counted, and so is what still comes. A
    /// call that is being made goes on.
    pub fn discard(&self) {
        self.discards.raise();
        self.gauge.end();
    }

    fn wake_progress(&self) {
        self.freed.raise();
        self.bell.ring();
    }

    /// Lets the delivery thread drop the handler once nothing is left.
    pub fn close(&self) {
        self.with(|pending| pending.closed = true);
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        self.deliveries.remove(self.slot);
    }
}
