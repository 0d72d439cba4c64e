//! What waits for one delivery thread: a queue for each stream that it serves.

use std::collections::VecDeque;
use std::time::Duration;

use trihop_transport::park::{Content, Mail, Mailbox};
use trihop_transport::protocol::wire::BadRun;

use super::handover::Chunk;
use super::{Delivery, DeliveryQueue};
use crate::config::StreamOptions;
use crate::error::Error;

/// Longest wait of fewer records than `deliverq_threshold`.
const PATIENCE: Duration = Duration::from_millis(1);

/// Bytes that are not kept waiting for more.
const MUCH_BYTES: usize = 64 << 10;

/// What is called on a delivery thread, between two calls of handlers.
type Call = Box<dyn FnOnce() + Send>;

/// The queues of the streams that share a delivery thread, which is their one reader.
pub(crate) struct Deliveries(Mailbox<Slots>);

struct Slots {
    /// What the thread is to call before it goes on.
    calls: VecDeque<Call>,
    /// By the numbers that handovers have.
    pending: Vec<Option<Pending>>,
    /// Whose turn is next: a stream with much to deliver does not keep the others waiting.
    next: usize,
}

/// What waits of one stream.
pub(super) struct Pending {
    pub queue: DeliveryQueue,
    /// Records that were handed over since the stream was opened.
    pub handed: u64,
    /// Records whose handler has returned.
    pub done: u64,
    /// Records that were dropped instead, because the handler is called no more.
    pub undelivered: u64,
    /// A flush or a fence waits until `passed` has come so far.
    pub awaited: u64,
    /// What the handler failed with.
    pub failure: Option<Error>,
    /// Nothing comes any more: the thread drops the handler once the queue is empty.
    pub closed: bool,
    /// It was told to.
    ended: bool,
    piece_records: usize,
    threshold: usize,
}

/// What a delivery thread does next.
pub(crate) enum NextDelivery {
    /// It makes this call.
    Call(Call),
    /// It hands a chunk to the handler of the stream with this number.
    Deliver(usize),
    /// It drops the handler of that stream.
    End(usize),
}

impl Deliveries {
    /// Nothing waits, for no stream.
    pub fn new() -> Self {
        Self(Mailbox::new(Slots {
            calls: VecDeque::new(),
            pending: Vec::new(),
            next: 0,
        }))
    }

    /// Adds the queue of a stream; its number.
    pub(super) fn insert(&self, pending: Pending) -> usize {
        self.0.with(|slots| {
            let free = slots.pending.iter().position(Option::is_none);
            let slot = free.unwrap_or(slots.pending.len());
            if slot == slots.pending.len() {
                slots.pending.push(None);
            }
            slots.pending[slot] = Some(pending);
            (slot, Content::Nothing)
        })
    }

    /// Forgets the queue of a stream that nobody uses any more.
    pub(super) fn remove(&self, slot: usize) {
        let queue = self
            .0
            .with(|slots| (slots.pending[slot].take(), Content::Nothing));
        drop(queue); // with nothing locked
    }

    /// Uses the queue of a stream; `change` says beside its result what is in it now.
    #[inline]
    pub(super) fn with<R>(
        &self,
        slot: usize,
        change: impl FnOnce(&mut Pending) -> (R, Content),
    ) -> R {
        self.0.with(|slots| {
            let pending = slots.pending[slot].as_mut();
            change(pending.expect("the queue of a handover lives as long as that"))
        })
    }

    /// Has the delivery thread make a call, before what waits for handlers; false where it has
    /// ended, or is about to.
    pub fn call(&self, call: Call) -> bool {
        self.0.post(|slots| {
            slots.calls.push_back(call);
            Content::Enough
        })
    }

    /// The delivery thread: sleeps until there is something to do, and takes what it is done with;
    /// `None` once there will be no more.
    pub fn next(&self, chunk: &mut Chunk) -> Option<NextDelivery> {
        debug_assert!(chunk.entries.is_empty());
        self.0.wait(|slots, late| {
            if let Some(call) = slots.calls.pop_front() {
                return Mail::Taken(NextDelivery::Call(call));
            }
            let count = slots.pending.len();
            let mut waits = false;
            for step in 0..count {
                let slot = (slots.next + step) % count;
                let Some(pending) = &mut slots.pending[slot] else {
                    continue;
                };
                match pending.content() {
                    Content::Nothing => continue,
                    Content::Something if !late => {
                        waits = true;
                        continue;
                    }
                    _ => {}
                }
                slots.next = slot + 1;
                if pending.queue.is_empty() {
                    pending.ended = true;
                    return Mail::Taken(NextDelivery::End(slot));
                }
                let piece_records = pending.piece_records;
                pending.queue.take(piece_records, &mut chunk.entries);
                return Mail::Taken(NextDelivery::Deliver(slot));
            }
            match waits {
                true => Mail::Soon(PATIENCE),
                false => Mail::Nothing,
            }
        })
    }

    /// Lets the delivery thread end once nothing is left.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Pending {
    pub fn new(options: &StreamOptions, piece_records: usize) -> Self {
        Self {
            queue: DeliveryQueue::new(options),
            handed: 0,
            done: 0,
            undelivered: 0,
            awaited: 0,
            failure: None,
            closed: false,
            ended: false,
            piece_records,
            threshold: options.shim.deliverq_threshold,
        }
    }

    pub fn push(&mut self, delivery: &Delivery<'_>) -> Result<(), BadRun> {
        let before = self.queue.records();
        self.queue.push(delivery)?;
        self.handed += (self.queue.records() - before) as u64;
        Ok(())
    }

    /// Records that the thread is through with.
    pub fn passed(&self) -> u64 {
        self.done + self.undelivered
    }

    /// Whether there is a piece of the queue, or somebody waits for the handler.
    pub fn is_much(&self) -> bool {
        let queue = &self.queue;
        queue.records() >= self.piece_records
            || queue.bytes() >= MUCH_BYTES
            || queue.is_blocked()
            || self.awaited > self.passed()
    }

    /// Whether there is enough for the delivery thread to begin.
    pub fn content(&self) -> Content {
        let queue = &self.queue;
        if self.ended || queue.is_empty() && !self.closed {
            Content::Nothing
        } else if queue.records() < self.threshold
            && self.awaited <= self.passed()
            && !queue.is_blocked()
            && !self.closed
        {
            Content::Something
        } else {
            Content::Enough
        }
    }
}
