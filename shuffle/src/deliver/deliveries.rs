//! What waits for one delivery thread: a queue for each stream that it serves.

use std::collections::VecDeque;
use std::time::Duration;

use trihop_transport::park::{Content, Mail, Mailbox};
use trihop_transport::protocol::wire::BadRun;
use trihop_transport::ring::Block;

use super::handover::Chunk;
use super::queue::Whole;
use super::{Delivery, DeliveryQueue};
use crate::config::StreamOptions;
use crate::error::Error;

/// Longest wait of fewer records than `deliverq_threshold`.
const PATIENCE: Duration = Duration::from_millis(1);

/// Bytes that are not kept waiting for more, or half of the queue.
const MUCH_BYTES: usize = 256 << 10;

/// Records of another stream that a caller which waits for one of them takes at a time, by whole
/// runs: what it waits for may be over behind them.
const OTHERS_RECORDS: usize = 64;

/// How often in a row it takes what is of that one, while others have something.
const FAVOURED: u32 = 4;

/// What is called on a delivery thread, between two calls of handlers.
type Call = Box<dyn FnOnce() + Send>;

/// The queues of the streams that share a delivery thread. It takes what is in them, and so do
/// callers that wait for handlers: one at a time, until it is through with that.
pub(crate) struct Deliveries(Mailbox<Slots>);

struct Slots {
    /// What the thread is to call before it goes on.
    calls: VecDeque<Call>,
    /// By the numbers that handovers have.
    pending: Vec<Option<Pending>>,
    /// Whose turn is next: a stream with much to deliver does not keep the others waiting.
    next: usize,
    /// How often in a row a caller has taken what is of the stream that it waits for.
    favoured: u32,
    /// Somebody has taken something, and is not through with it.
    busy: bool,
    /// Of which stream that is, where it is of one, and how many were taken by then.
    of: Option<usize>,
    taken: u64,
    /// Callers that take what comes, for as long as they are awake.
    attended: u32,
}

impl Slots {
    /// Whether there is enough for the delivery thread to go on.
    fn content(&self) -> Content {
        let all = self.pending.iter().flatten();
        match self.calls.is_empty() {
            true => all
                .map(|of| self.left_of(of))
                .max()
                .unwrap_or(Content::Nothing),
            false => Content::Enough,
        }
    }

    /// What a stream has for the delivery thread: callers that attend take what is enough for a
    /// handler.
    fn left_of(&self, pending: &Pending) -> Content {
        match pending.content() {
            Content::Enough if self.attended > 0 && !pending.queue.is_empty() => Content::Nothing,
            content => content,
        }
    }
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
    piece_bytes: usize,
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
            favoured: 0,
            busy: false,
            of: None,
            taken: 0,
            attended: 0,
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

    /// Uses the queue of a stream; `change` says beside its result whether the delivery thread is
    /// to hear what is in it now.
    #[inline]
    pub(super) fn with<R>(&self, slot: usize, change: impl FnOnce(&mut Pending) -> (R, bool)) -> R {
        self.0.with(|slots| {
            let lives = "the queue of a handover lives as long as that";
            let (result, shows) = change(slots.pending[slot].as_mut().expect(lives));
            let content = match &slots.pending[slot] {
                Some(pending) if shows => slots.left_of(pending),
                _ => Content::Nothing,
            };
            (result, content)
        })
    }

    /// Has the delivery thread make a call, before what waits for handlers.
    ///
    /// # Errors
    /// The call, where the thread has ended, or is about to.
    pub fn call(&self, call: Call) -> Result<(), Call> {
        let mut call = Some(call);
        self.0.post(|slots| {
            slots.calls.extend(call.take());
            Content::Enough
        });
        call.map_or(Ok(()), Err)
    }

    /// The delivery thread: sleeps until there is something to do, and takes what it is done with;
    /// `None` once there will be no more. It is through with what it has taken before.
    pub fn next(&self, chunk: &mut Chunk, has_taken: bool) -> Option<NextDelivery> {
        debug_assert!(chunk.entries.is_empty());
        let mut is_through = has_taken;
        self.0.wait(|slots, late| {
            if std::mem::take(&mut is_through) {
                slots.busy = false;
            }
            if slots.busy {
                return Mail::Nothing; // who is tells when it is through
            }
            let next = slots.next(chunk, late);
            if let Mail::Taken(next) = &next {
                let of = match next {
                    NextDelivery::Deliver(slot) => Some(*slot),
                    NextDelivery::Call(_) | NextDelivery::End(_) => None,
                };
                slots.begin(of);
            }
            next
        })
    }

    /// As [`Deliveries::next`], for a caller that attends and does not sleep for it: the number of
    /// a stream whose handler is to be handed the chunk. A caller that waits for one stream takes
    /// what that has first, and now and then some of another; one that waits for all takes from
    /// each in turn.
    pub fn take(&self, awaited: Option<usize>, chunk: &mut Chunk) -> Option<usize> {
        debug_assert!(chunk.entries.is_empty());
        self.0.with(|slots| {
            let may = !slots.busy && slots.calls.is_empty();
            let slot = may.then(|| slots.take_next(awaited, chunk)).flatten();
            if slot.is_some() {
                slots.begin(slot);
            }
            (slot, Content::Nothing)
        })
    }

    /// What somebody hands to the handler of this stream now, as a number that others do not have.
    pub fn under_way(&self, slot: usize) -> Option<u64> {
        self.0.with(|slots| {
            let is_of = slots.busy && slots.of == Some(slot);
            (is_of.then_some(slots.taken), Content::Nothing)
        })
    }

    /// A caller is through with what it has taken.
    pub fn give_back(&self) {
        self.0.with(|slots| {
            slots.busy = false;
            ((), slots.content())
        });
    }

    /// A caller takes what comes from now on, or no more.
    pub fn attend(&self, begins: bool) {
        self.0.with(|slots| {
            match begins {
                true => slots.attended += 1,
                false => slots.attended -= 1,
            }
            ((), slots.content())
        });
    }

    /// Lets the delivery thread end once nothing is left.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Slots {
    fn begin(&mut self, of: Option<usize>) {
        (self.busy, self.of) = (true, of);
        self.taken += 1;
    }

    fn next(&mut self, chunk: &mut Chunk, late: bool) -> Mail<NextDelivery> {
        if let Some(call) = self.calls.pop_front() {
            return Mail::Taken(NextDelivery::Call(call));
        }
        let count = self.pending.len();
        let mut waits = false;
        for step in 0..count {
            let slot = (self.next + step) % count;
            let content = self.pending[slot].as_ref().map(|of| self.left_of(of));
            match content {
                None | Some(Content::Nothing) => continue,
                Some(Content::Something) if !late => {
                    waits = true;
                    continue;
                }
                _ => {}
            }
            self.next = slot + 1;
            return Mail::Taken(match self.take_of(slot, usize::MAX, chunk) {
                true => NextDelivery::Deliver(slot),
                false => NextDelivery::End(slot),
            });
        }
        match waits {
            true => Mail::Soon(PATIENCE),
            false => Mail::Nothing,
        }
    }

    /// Takes what is enough for a handler, of the stream that is waited for or of the next one that
    /// has that; which one it is.
    fn take_next(&mut self, awaited: Option<usize>, chunk: &mut Chunk) -> Option<usize> {
        let count = self.pending.len();
        let has_enough = |slot: &usize| {
            let of = self.pending[*slot].as_ref();
            of.is_some_and(|of| of.content() == Content::Enough && !of.queue.is_empty())
        };
        let favours = self.favoured < FAVOURED;
        if let Some(slot) = awaited.filter(has_enough).filter(|_| favours) {
            self.favoured += 1;
            self.take_of(slot, usize::MAX, chunk);
            return awaited;
        }
        self.favoured = 0;
        let mut slots = (self.next..count).chain(0..self.next.min(count));
        let slot = slots.find(has_enough)?;
        self.next = slot + 1;
        self.take_of(slot, awaited.map_or(usize::MAX, |_| OTHERS_RECORDS), chunk);
        Some(slot)
    }

    /// Takes what a stream has, about so many records at most; false where it has nothing, and its
    /// handler is to be dropped.
    fn take_of(&mut self, slot: usize, most: usize, chunk: &mut Chunk) -> bool {
        let Some(pending) = &mut self.pending[slot] else {
            return false;
        };
        pending.ended = pending.queue.is_empty();
        let records = pending.piece_records.min(most);
        pending.queue.take(records, &mut chunk.entries);
        !pending.ended
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
            piece_bytes: MUCH_BYTES.min(options.shares().deliverq_bytes / 2),
            threshold: options.shim.deliverq_threshold,
        }
    }

    pub fn keep(&mut self, block: Block, whole: Whole) {
        self.queue.keep(block, whole);
        self.handed += 1;
    }

    pub fn push(&mut self, delivery: &Delivery<'_>) -> Result<(), BadRun> {
        let before = self.queue.records();
        self.queue.push(delivery)?;
        self.handed += (self.queue.records() - before) as u64;
        Ok(())
    }

    /// Records that the handler is through with.
    pub fn passed(&self) -> u64 {
        self.done + self.undelivered
    }

    /// Whether there is a piece of the queue, or somebody waits for the handler.
    pub fn is_much(&self) -> bool {
        let queue = &self.queue;
        queue.records() >= self.piece_records
            || queue.bytes() >= self.piece_bytes
            || queue.is_blocked()
            || self.awaited > self.passed()
    }

    /// Whether there is enough for whoever hands it to the handler.
    fn content(&self) -> Content {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::LongBytes;

    /// A stream of which so many records wait, each a chunk.
    fn with_records(deliveries: &Deliveries, records: u32) -> usize {
        with_pieces(deliveries, records, 1)
    }

    /// A stream of which so many records wait, of which a chunk has so many at most.
    fn with_pieces(deliveries: &Deliveries, records: u32, piece_records: usize) -> usize {
        let record = Delivery::Record {
            source: 0,
            kind: 0,
            bytes: LongBytes::Lent(b"abc"),
        };
        let pending = Pending::new(&StreamOptions::default(), piece_records);
        let slot = deliveries.insert(pending);
        deliveries.with(slot, |pending| {
            (0..records).for_each(|_| pending.push(&record).unwrap());
            ((), true)
        });
        slot
    }

    #[test]
    fn who_attends_takes_what_all_streams_have_by_turns() {
        let deliveries = Deliveries::new();
        let [one, other] = [2, 1].map(|records| with_records(&deliveries, records));
        let left = || {
            deliveries
                .0
                .with(|slots| (slots.content(), Content::Nothing))
        };
        assert_eq!(left(), Content::Enough);
        deliveries.attend(true);
        assert_eq!(
            left(),
            Content::Nothing,
            "the thread leaves that to who attends"
        );
        let mut chunk = Chunk::default();
        let mut takes = |ends: bool| {
            let slot = deliveries.take(None, &mut chunk);
            chunk.entries.clear();
            if ends {
                deliveries.give_back();
            }
            slot
        };
        assert_eq!(takes(true), Some(one));
        assert_eq!(takes(false), Some(other));
        assert_eq!(takes(true), None, "another caller has taken something");
        assert_eq!(takes(true), Some(one));
        assert_eq!(takes(true), None, "nothing is left");
        // A handler is dropped by the thread, whoever attends.
        deliveries.with(other, |pending| {
            pending.closed = true;
            ((), true)
        });
        assert_eq!(takes(true), None);
        match deliveries.next(&mut Chunk::default(), false) {
            Some(NextDelivery::End(slot)) => assert_eq!(slot, other),
            _ => panic!("nothing for the thread"),
        }
    }

    #[test]
    fn who_waits_for_a_stream_takes_that_ones_first_and_little_of_others() {
        let deliveries = Deliveries::new();
        let [other, awaited] = [1, FAVOURED + 1].map(|records| with_records(&deliveries, records));
        let much = with_pieces(&deliveries, 300, 1000);
        deliveries.attend(true);
        let mut chunk = Chunk::default();
        let mut takes = || {
            let slot = deliveries.take(Some(awaited), &mut chunk);
            let taken = chunk.entries.len();
            chunk.entries.clear();
            deliveries.give_back();
            (slot, taken)
        };
        let first = (0..FAVOURED).map(|_| takes());
        assert!(first.into_iter().all(|taken| taken == (Some(awaited), 1)));
        assert_eq!(takes(), (Some(other), 1), "which has waited for long");
        assert_eq!(takes(), (Some(awaited), 1), "the last of it");
        assert_eq!(takes(), (Some(much), OTHERS_RECORDS));
    }

    #[test]
    fn the_thread_makes_a_call_once_a_caller_is_through() {
        let deliveries = Deliveries::new();
        let one = with_records(&deliveries, 1);
        deliveries.attend(true);
        assert_eq!(deliveries.take(None, &mut Chunk::default()), Some(one));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| deliveries.next(&mut Chunk::default(), false));
            assert!(deliveries.call(Box::new(|| ())).is_ok());
            // It has found that a handler is called, and sleeps by now, most likely.
            std::thread::sleep(Duration::from_millis(50));
            deliveries.give_back();
            assert!(matches!(
                thread.join().unwrap(),
                Some(NextDelivery::Call(_))
            ));
        });
    }

    #[test]
    fn the_thread_goes_on_once_a_caller_attends_no_more() {
        let deliveries = Deliveries::new();
        let [one, other] = [1, 1].map(|records| with_records(&deliveries, records));
        deliveries.attend(true);
        let mut chunk = Chunk::default();
        assert_eq!(deliveries.take(None, &mut chunk), Some(one));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| match deliveries.next(&mut Chunk::default(), false) {
                Some(NextDelivery::Deliver(slot)) => slot,
                _ => panic!("nothing for the thread"),
            });
            // It sleeps by now, most likely.
            std::thread::sleep(Duration::from_millis(50));
            deliveries.give_back();
            deliveries.attend(false);
            assert_eq!(thread.join().unwrap(), other);
        });
    }
}
