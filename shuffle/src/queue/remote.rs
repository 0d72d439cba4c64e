//! Output over the fabric: one open batch per link, full batches waiting for credit, batches in
//! flight.

mod announced;

use std::collections::VecDeque;
use std::sync::Arc;

use trihop_transport::link::{Link, Mover, Peer, PostError, Tag, Token};
use trihop_transport::memory::pool::{Buffer, Pool};
use trihop_transport::protocol::credit::Sending;
use trihop_transport::protocol::eager::{Passage, choose};
use trihop_transport::protocol::tags::{TagClass, Tags, token};
use trihop_transport::protocol::wire::{
    BATCH_HEADER_BYTES, BatchHeader, BatchKind, ClearToSend, Counters, Epoch, run_flags,
};

use super::counters::{QueueCounters, SendReason};
use super::offer::{Offer, Sent};
use super::{FragmentGuard, Input};
use crate::error::{Error, Result};
use crate::route::{EndpointId, Stage};
use crate::trace::{OfBatch, Trace};
use announced::{Announced, Exposed, Ready, announce};

/// After this long without anything to send, large slots go back to their receiver.
const IDLE_NS: u64 = 20_000_000;

/// A batch that is not accepted after so long may be lost with the connection that it went over:
/// the other end is told each time how many have left, and finds out.
const OVERDUE_NS: u64 = 5_000_000_000;

/// Sizes that all links of a stream share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BatchSizes {
    /// Batches that may be in flight on any one link.
    pub most_in_flight: u32,
    /// Size of a batch buffer.
    pub buffer_bytes: usize,
    /// Size of a small receive slot.
    pub small_bytes: usize,
    /// Size of a large receive slot; a longer message is announced.
    pub large_bytes: usize,
    /// Links have no small slots of their own, and ask for large ones.
    pub on_demand: bool,
}

impl BatchSizes {
    /// Whether a batch may be longer than the slots that it may find, and is fetched then.
    pub fn has_long_batches(&self) -> bool {
        match self.on_demand {
            true => self.buffer_bytes > self.large_bytes,
            false => self.buffer_bytes > self.small_bytes,
        }
    }
}

/// What the links of one stage may have on their way, the same at both ends of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct LinkLimits {
    /// A batch is sealed when it holds this much (`buftarget`).
    pub target_bytes: usize,
    /// Batches that may be in flight on a link (`maxrpc`).
    pub maxrpc: u32,
}

/// What identifies our side in every header of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub stream: u16,
    /// The endpoint that sends, and how often it has joined.
    pub own: EndpointId,
    pub epoch: Epoch,
    pub cookie: u64,
    pub tags: Tags,
    pub mover: Mover,
}

impl Identity {
    /// Tag of this stream's messages of a class.
    pub fn tag(&self, class: TagClass, number: u32) -> Tag {
        self.tags.tag(self.stream, class, number)
    }
}

/// The queue of one link: everything that goes on behind it.
pub(crate) struct RemoteQueue {
    /// The endpoint at the other end, and the epoch in which it has joined.
    pub end: EndpointId,
    pub epoch: Epoch,
    pub stage: Stage,
    /// It leads to another node.
    pub is_beyond: bool,
    /// The endpoint at the other end is lost: what is added is dropped, and nothing is sent.
    pub is_lost: bool,
    pub peer: Peer,
    pub credit: Sending,
    open: Option<(Buffer, u32)>,
    ready: VecDeque<Ready>,
    exposed: VecDeque<Exposed>,
    /// What the other end, which is lost, may still be reading.
    left_behind: Vec<Announced>,
    fragments: FragmentGuard,
    target_bytes: usize,
    sizes: Arc<BatchSizes>,
    /// In the list of queues that have something to do.
    pub busy: bool,
    /// The receiver wants slots back that are not used.
    pub recalled: bool,
    /// Virtual or monotonic time at which the open batch was first seen, 0 when none.
    open_since_ns: u64,
    /// Time since which nothing was sent, 0 while something is.
    idle_since_ns: u64,
    pub counters: QueueCounters,
    /// Bytes handed to the fabric since the start, headers included.
    pub wire_bytes: u64,
    /// When each batch in flight was posted.
    posted_ns: VecDeque<u64>,
    /// When a control message last said how many batches have left.
    told_ns: u64,
    /// Numbers of the batches, open or unacknowledged, that hold sends of this rank's own; kept
    /// where these are limited.
    own: VecDeque<u64>,
    pub trace: Trace,
}

impl RemoteQueue {
    /// An empty queue with one small slot granted, as both ends agree at the start, or none where
    /// slots are shared.
    pub fn new(
        end: EndpointId,
        stage: Stage,
        is_beyond: bool,
        (epoch, peer): (Epoch, Peer),
        limits: LinkLimits,
        sizes: Arc<BatchSizes>,
    ) -> Self {
        let mut credit = Sending::new(limits.maxrpc);
        let granted = Counters {
            small_granted: u32::from(!sizes.on_demand),
            ..Counters::default()
        };
        credit.update(&granted).expect("nothing accepted yet");
        Self {
            end,
            epoch,
            stage,
            is_beyond,
            is_lost: false,
            peer,
            credit,
            open: None,
            ready: VecDeque::new(),
            exposed: VecDeque::new(),
            left_behind: Vec::new(),
            fragments: FragmentGuard::default(),
            target_bytes: limits.target_bytes,
            sizes,
            busy: false,
            recalled: false,
            open_since_ns: 0,
            idle_since_ns: 0,
            counters: QueueCounters::default(),
            wire_bytes: 0,
            posted_ns: VecDeque::new(),
            told_ns: 0,
            own: VecDeque::new(),
            trace: Trace::default(),
        }
    }

    /// The endpoint at the other end is lost, and whatever it has not taken with it. What the
    /// provider has stays with that.
    pub fn lose(&mut self) {
        self.is_lost = true;
        self.busy = false;
        (self.open, self.open_since_ns) = (None, 0);
        self.ready.clear();
        // The other end may be reading still, where it lives.
        let exposed = self.exposed.drain(..).map(|exposed| exposed.what);
        let read = |what: &Announced| match what {
            Announced::Record(offer) => offer.is_read(),
            Announced::Batch {
                buffer, segment, ..
            } => buffer.is_some() && segment.is_none(),
        };
        self.left_behind.extend(exposed.filter(read));
        self.own.clear();
        self.fragments = FragmentGuard::default();
    }

    /// Nothing is to be expected of the other end any more, which is lost.
    pub fn cut(&mut self) {
        self.left_behind.clear();
    }

    /// Batches with sends of this rank's own, open or unacknowledged.
    pub fn own_batches(&self) -> usize {
        self.own.len()
    }

    /// Whether a frame fits the open batch, and that holds sends of this rank's own already.
    pub fn has_own_open(&self, bytes: usize) -> bool {
        !self.needs_buffer(bytes) && self.own.back() == Some(&self.sealed())
    }

    /// The open batch, or the one that the last frame filled, holds a send of this rank's own.
    pub fn note_own(&mut self) {
        let number = self.sealed() - u64::from(self.open.is_none());
        if self.own.back() != Some(&number) {
            self.own.push_back(number);
        }
    }

    /// Whether a frame needs a new batch buffer.
    #[inline]
    pub fn needs_buffer(&self, bytes: usize) -> bool {
        match &self.open {
            Some((_, used)) => *used as usize + bytes > self.sizes.buffer_bytes,
            None => true,
        }
    }

    /// Adds a frame with these run flags, which `write` fills in place; without a pool only into
    /// the open batch. False when there is no room or another input's record is being sent.
    pub fn push_with(
        &mut self,
        bytes: usize,
        flags: u16,
        input: Input,
        pool: Option<&Pool>,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        if !self.fragments.admits(input) || !self.make_room(bytes, pool) {
            return false;
        }
        let (buffer, used) = self.open.as_mut().expect("make_room opened a batch");
        let start = *used as usize;
        let space = &mut buffer[start..start + bytes];
        write(space);
        space[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
        *used += bytes as u32;
        let full = *used as usize >= self.target_bytes;
        self.fragments.added(input, flags);
        // What follows a long record in its batch might wait for another one, and the slot with it
        // that this needs.
        let is_last = flags & (run_flags::LAST | run_flags::CUT) != 0;
        if full || is_last && (self.sizes.on_demand || self.credit.in_flight() == 0) {
            self.seal(SendReason::Full);
        }
        true
    }

    fn make_room(&mut self, bytes: usize, pool: Option<&Pool>) -> bool {
        if !self.needs_buffer(bytes) {
            return true;
        }
        self.seal(SendReason::Full);
        if self.is_full() {
            return false;
        }
        match pool.and_then(Pool::take) {
            Some(buffer) => {
                self.open = Some((buffer, BATCH_HEADER_BYTES as u32));
                true
            }
            None => false,
        }
    }

    /// Seals a partial batch that has waited long enough: at once while nothing else moves and
    /// nothing is on its way, by age while the link has nothing better to send. Keeps the time by
    /// which idleness is judged.
    pub fn age(&mut self, now_ns: u64, idle: bool, linger_ns: u64, why: SendReason) {
        if self.has_open() {
            if self.open_since_ns == 0 {
                self.open_since_ns = now_ns.max(1);
            }
            let aged = now_ns.saturating_sub(self.open_since_ns) >= linger_ns;
            if (idle && self.is_idle()) || (aged && self.ready.is_empty()) {
                self.seal(why);
            }
        }
        if !self.is_idle() || self.has_open() || !self.credit.has_large() {
            self.idle_since_ns = 0;
        } else if self.idle_since_ns == 0 {
            self.idle_since_ns = now_ns.max(1);
        }
    }

    /// Closes the open batch, if it holds anything.
    pub fn seal(&mut self, why: SendReason) {
        if let Some(batch) = self.open.take() {
            let (number, bytes) = (self.sealed(), batch.1 as usize - BATCH_HEADER_BYTES);
            self.trace
                .batch(OfBatch::Sealed, self.end, self.stage, number, bytes);
            self.ready.push_back(Ready::Batch(batch.0, batch.1));
            self.counters.sent(why);
            self.open_since_ns = 0;
        }
    }

    /// Send buffers that this queue holds at most: open, ready, or in flight.
    pub fn held_buffers(&self) -> usize {
        usize::from(self.open.is_some()) + self.ready.len() + self.credit.in_flight() as usize
    }

    /// Send buffers that this queue holds for certain: open, ready, or announced and not yet sent.
    pub fn kept_buffers(&self) -> usize {
        let announced = self.exposed.iter().filter(|e| e.holds_buffer());
        let ready = self.ready.iter();
        let ready = ready.filter(|ready| matches!(ready, Ready::Batch(..)));
        usize::from(self.open.is_some()) + ready.count() + announced.count()
    }

    /// Whether nothing waits here, is on its way, or is to be continued.
    pub fn is_done(&self) -> bool {
        self.is_idle() && !self.has_open() && self.exposed.is_empty() && self.holder().is_none()
    }

    /// The input whose record occupies the queue.
    pub fn holder(&self) -> Option<Input> {
        self.fragments.holder()
    }

    /// Whether records wait in an open batch.
    pub fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether nothing waits to be posted and nothing is unacknowledged.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.credit.in_flight() == 0
    }

    /// Whether a batch waits for a slot, and none is granted.
    pub fn is_without_slots(&self) -> bool {
        !self.ready.is_empty()
            && self.credit.may_start()
            && !self.credit.has_small()
            && !self.credit.has_large()
    }

    /// Whether the link has been idle long enough to give its large slots back.
    pub fn may_give_back(&self, now_ns: u64) -> bool {
        self.idle_since_ns > 0 && now_ns.saturating_sub(self.idle_since_ns) >= IDLE_NS
    }

    /// Whether shared slots are waited for, to be asked for again in time.
    pub fn waits_for_slots(&self) -> bool {
        self.sizes.on_demand && self.is_without_slots()
    }

    /// Whether the slots that this side holds go back, because the receiver has recalled them, and
    /// nothing here can use them at once.
    pub fn take_recall(&mut self) -> bool {
        std::mem::take(&mut self.recalled) && (self.ready.is_empty() || !self.credit.may_start())
    }

    /// Whether a batch waits for the provider alone, not for credit.
    pub fn may_post(&self) -> bool {
        let (small, large) = (self.sizes.small_bytes, self.sizes.large_bytes);
        let announced = self.exposed.iter().any(Exposed::may_post);
        let ready = self.ready.front();
        announced
            || ready
                .is_some_and(|ready| choose(&self.credit, ready.bytes(), small, large).is_some())
    }

    /// Whether nothing of this queue moves, waits or is held.
    pub fn may_rest(&self) -> bool {
        self.is_idle() && !self.has_open() && !self.credit.has_large() && self.exposed.is_empty()
    }

    /// Number of the batch behind everything that was sealed so far.
    pub fn sealed(&self) -> u64 {
        self.credit.next_sequence() + self.ready.len() as u64
    }

    /// Whether all batches before this number have been sent, and need nothing more of this rank: a
    /// long one does until it is fetched.
    pub fn has_posted(&self, number: u64) -> bool {
        let waits = |e: &Exposed| e.sequence < number && e.is_needed();
        self.credit.next_sequence() >= number && !self.exposed.iter().any(waits)
    }

    /// Number and age of each batch in flight, the oldest first.
    pub fn batches_in_flight(&self, now_ns: u64) -> impl Iterator<Item = (u64, u64)> {
        let ages = self
            .posted_ns
            .iter()
            .map(move |&posted| now_ns.saturating_sub(posted));
        (self.credit.accepted()..).zip(ages)
    }

    /// Whether the other end is to be told how many batches have left: it has not accepted one of
    /// them for long.
    pub fn is_overdue(&self, now_ns: u64) -> bool {
        let posted = self.posted_ns.front().filter(|_| !self.is_lost);
        posted.is_some_and(|&posted| now_ns.saturating_sub(posted.max(self.told_ns)) >= OVERDUE_NS)
    }

    /// A control message has said it.
    pub fn told(&mut self, now_ns: u64) {
        self.told_ns = now_ns;
    }

    /// What contradicts itself in this queue, if anything does.
    pub fn contradiction(&self) -> Option<String> {
        let (listed, counted) = (self.posted_ns.len() as u64, self.credit.in_flight());
        let most = u64::from(self.credit.max_in_flight());
        let (open, room) = (
            self.open_bytes(),
            self.sizes.buffer_bytes - BATCH_HEADER_BYTES,
        );
        if self.is_lost {
            None
        } else if listed != counted {
            Some(format!(
                "{listed} batches in flight are listed, {counted} counted"
            ))
        } else if counted > most {
            Some(format!("{counted} batches are in flight, {most} may be"))
        } else if open > room {
            Some(format!("{open} bytes are open in a batch of {room}"))
        } else if !self.busy && !self.may_rest() {
            Some("it has something to do and is not looked at".to_owned())
        } else {
            None
        }
    }

    /// Batches that are sealed but not posted.
    pub fn ready_batches(&self) -> usize {
        self.ready.len()
    }

    /// Bytes that wait in the open batch.
    pub fn open_bytes(&self) -> usize {
        self.open
            .as_ref()
            .map_or(0, |(_, used)| *used as usize - BATCH_HEADER_BYTES)
    }

    /// Slots that this queue could use, for the header; with those that `leaving` batches use up,
    /// which are not counted yet. Where slots are shared, only what waits here: a slot that is not
    /// used keeps others waiting.
    pub fn wanted(&self, leaving: u64) -> u16 {
        let (here, in_flight) = (
            self.ready.len() as u64 + u64::from(self.open.is_some()),
            self.credit.in_flight(),
        );
        let wanted = match self.sizes.on_demand {
            true => {
                let most = u64::from(self.credit.max_in_flight());
                here.min(most.saturating_sub(in_flight + leaving))
            }
            false => here + in_flight + leaving,
        };
        wanted.min(u64::from(u16::MAX)) as u16
    }

    /// The receiver is ready for the announced batch `sequence` in its segment slot. False for a
    /// batch that is not announced: a peer's fault.
    pub fn clear_to_send(&mut self, notice: &ClearToSend) -> bool {
        let exposed = self
            .exposed
            .iter_mut()
            .find(|e| e.sequence as u32 == notice.sequence.get());
        match exposed.map(|exposed| &mut exposed.what) {
            Some(Announced::Batch {
                buffer: Some(_),
                bytes,
                segment,
            }) => {
                let is_it = segment.is_none()
                    && notice.first.get() == 0
                    && notice.bytes.get() as usize == *bytes;
                if is_it {
                    *segment = Some(notice.slot.get());
                }
                is_it
            }
            Some(Announced::Record(offer)) => offer.ask(notice),
            _ => false,
        }
    }

    /// Whether a record of an input may be [offered](RemoteQueue::offer) now.
    pub fn may_offer(&self, input: Input) -> bool {
        let waiting = self.ready.len() as u64 + u64::from(self.has_open());
        let most = u64::from(self.credit.max_in_flight());
        self.fragments.admits(input) && waiting + self.credit.in_flight() <= most
    }

    /// Whether as much waits as may.
    fn is_full(&self) -> bool {
        self.ready.len() as u64 + self.credit.in_flight() > u64::from(self.credit.max_in_flight())
    }

    /// Offers a record to the other end, behind what was added before.
    pub fn offer(&mut self, offer: Offer) {
        self.seal(SendReason::Full);
        let number = self.sealed();
        self.trace
            .batch(OfBatch::Sealed, self.end, self.stage, number, offer.bytes());
        self.ready.push_back(Ready::Record(Box::new(offer)));
        self.counters.sent(SendReason::Full);
    }

    /// Whether the system, or the adapter, has what was offered.
    pub fn has_left(&self) -> bool {
        let is_gone = |e: &Exposed| match &e.what {
            Announced::Batch { .. } => true,
            Announced::Record(offer) => offer.has_left(),
        };
        let mut ready = self.ready.iter();
        ready.all(|ready| matches!(ready, Ready::Batch(..))) && self.exposed.iter().all(is_gone)
    }

    /// Forgets batches that the receiver has taken.
    pub fn release(&mut self) {
        let accepted = self.credit.accepted();
        let in_flight = self.credit.in_flight() as usize;
        let done = self.posted_ns.len().saturating_sub(in_flight);
        self.posted_ns.drain(..done);
        for number in accepted.saturating_sub(done as u64)..accepted {
            self.trace
                .batch(OfBatch::Acknowledged, self.end, self.stage, number, 0);
        }
        self.trace_credit();
        while self.own.front().is_some_and(|&number| number < accepted) {
            self.own.pop_front();
        }
        while self.exposed.front().is_some_and(|e| e.sequence < accepted) {
            self.exposed.pop_front();
        }
    }

    fn trace_credit(&self) {
        let (free, in_flight) = (self.credit.free_slots(), self.credit.in_flight());
        self.trace.credit(self.end, self.stage, free, in_flight);
    }

    /// Posts what credit and provider allow. `header` gives the counters of this moment; returns
    /// batches posted.
    pub fn transmit(
        &mut self,
        link: &mut dyn Link,
        identity: &Identity,
        notices: &Pool,
        now_ns: u64,
        mut counters: impl FnMut(u16) -> Counters,
    ) -> Result<usize> {
        let mut posted = self.post_segments(link, identity)?;
        while let Some(ready) = self.ready.front() {
            let (small, large) = (self.sizes.small_bytes, self.sizes.large_bytes);
            let Some(passage) = choose(&self.credit, ready.bytes(), small, large) else {
                break;
            };
            let sequence = self.credit.next_sequence();
            let mut header = BatchHeader {
                kind: BatchKind::Eager,
                stream: identity.stream,
                epoch: identity.epoch,
                source: identity.own,
                bytes: 0,
                stage: self.stage.number(),
                sequence,
                counters: counters(self.wanted(1)),
            };
            let ready = self.ready.pop_front().expect("front is there");
            let (slot, outcome, message_bytes) = match (passage, ready) {
                (Passage::Eager(slot), Ready::Batch(mut buffer, bytes)) => {
                    header.bytes = bytes - BATCH_HEADER_BYTES as u32;
                    header.write(identity.cookie, &mut buffer);
                    let tag = identity.tag(TagClass::of(slot), 0);
                    let mark = token(identity.stream, TagClass::Sent, 0);
                    let sent = link.post_send(self.peer, tag, buffer, bytes as usize, mark);
                    let sent = sent.map_err(|refused| match refused {
                        PostError::WouldBlock(buffer) => Ok(Ready::Batch(buffer, bytes)),
                        PostError::Failed(_, error) => Err(error),
                    });
                    (slot, sent, bytes as usize)
                }
                (Passage::Announce(slot) | Passage::Eager(slot), ready) => {
                    let Some(notice) = notices.take() else {
                        self.ready.push_front(ready);
                        break;
                    };
                    let tag = identity.tag(TagClass::of(slot), 0);
                    let (what, notice, end) = announce(ready, header, identity, notice);
                    let bytes = match &what {
                        Announced::Batch { bytes, .. } => *bytes,
                        Announced::Record(offer) => offer.bytes(),
                    };
                    let mark = token(identity.stream, TagClass::Sent, 0);
                    match link.post_send(self.peer, tag, notice, end, mark) {
                        Ok(()) => {
                            self.exposed.push_back(Exposed { sequence, what });
                            (slot, Ok(()), end + bytes)
                        }
                        Err(PostError::WouldBlock(_)) => (slot, Err(Ok(what.into_ready())), 0),
                        Err(PostError::Failed(_, error)) => return Err(error.into()),
                    }
                }
            };
            match outcome {
                Ok(()) => {
                    let started = self.credit.start(slot);
                    debug_assert_eq!(started, sequence);
                    self.posted_ns.push_back(now_ns);
                    self.wire_bytes += message_bytes as u64;
                    posted += 1;
                    self.trace.batch(
                        OfBatch::Posted,
                        self.end,
                        self.stage,
                        sequence,
                        message_bytes,
                    );
                    self.trace_credit();
                }
                Err(Ok(ready)) => {
                    self.ready.push_front(ready);
                    break;
                }
                Err(Err(error)) => return Err(Error::from(error)),
            }
        }
        Ok(posted)
    }

    /// Sends of what was announced that for which a clear-to-send came.
    fn post_segments(&mut self, link: &mut dyn Link, identity: &Identity) -> Result<usize> {
        let mut posted = 0;
        for exposed in &mut self.exposed {
            let (waiting, bytes, slot) = match &mut exposed.what {
                Announced::Record(offer) => {
                    let (parts, sent) = offer.post(link, self.peer, identity)?;
                    posted += parts;
                    if offer.has_left() {
                        // Its memory is its source's again.
                        exposed.what = Announced::Batch {
                            buffer: None,
                            bytes: 0,
                            segment: None,
                        };
                        continue;
                    }
                    match sent {
                        Sent::All => continue,
                        Sent::Partly => break,
                        Sent::Twice => {
                            let why = "part of a record that it asks for twice";
                            return Err(Error::bad_peer(self.end.0, why));
                        }
                    }
                }
                Announced::Batch {
                    buffer,
                    bytes,
                    segment: Some(slot),
                } => (buffer, *bytes, *slot),
                Announced::Batch { segment: None, .. } => continue,
            };
            let Some(buffer) = waiting.take() else {
                continue;
            };
            let tag = identity.tag(TagClass::Segment, slot);
            let mark: Token = token(identity.stream, TagClass::Sent, 0);
            match link.post_send(self.peer, tag, buffer, bytes, mark) {
                Ok(()) => posted += 1,
                Err(PostError::WouldBlock(buffer)) => {
                    *waiting = Some(buffer);
                    break;
                }
                Err(PostError::Failed(_, error)) => return Err(error.into()),
            }
        }
        Ok(posted)
    }
}
