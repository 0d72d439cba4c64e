//! Output over a lane.

use std::collections::VecDeque;

use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::{Corrupt, Producer};
use trihop_transport::topology::EndpointId;

use super::counters::{QueueCounters, SendReason};
use super::{FragmentGuard, Input};
use crate::route::Stage;

/// One lane as an output queue: bounded by `maxrpc x buftarget`, published once per `buftarget`.
pub(crate) struct LaneQueue {
    /// None while the endpoint at the other end is away, and where it is lost.
    producer: Option<Producer>,
    /// It is lost: what is added is dropped.
    is_lost: bool,
    fragments: FragmentGuard,
    limit_bytes: usize,
    publish_bytes: usize,
    /// Bytes that lie elsewhere, for which frames stand that were added since it was last shown.
    beside_bytes: usize,
    /// Where records for a relay end in the lane that it has not taken, and their bytes.
    for_relay: VecDeque<(u64, usize)>,
    /// One more waits until it has.
    waits_for_relay: bool,
    /// Bytes of the frame that found no room, until it does.
    wanted_bytes: usize,
    /// What the consumer had released when that was asked last.
    told_consumed: u64,
    /// Endpoint at the other end, and the epoch in which it has joined.
    pub peer: EndpointId,
    pub epoch: Epoch,
    pub stage: Stage,
    /// Set once the consumer has written a position that cannot be true.
    pub corrupt: Option<Box<Corrupt>>,
    pub counters: QueueCounters,
}

/// What a relay has not taken of long records in shared memory, before it gets more.
const MOST_FOR_RELAY_BYTES: usize = 512 << 10;

impl LaneQueue {
    /// A queue to a rank of the node over `producer` that publishes every `publish_bytes` and holds
    /// at most `limit_bytes`.
    pub fn new(
        peer: EndpointId,
        epoch: Epoch,
        stage: Stage,
        producer: Producer,
        publish_bytes: usize,
        limit_bytes: usize,
    ) -> Self {
        Self {
            peer,
            epoch,
            stage,
            producer: Some(producer),
            is_lost: false,
            fragments: FragmentGuard::default(),
            limit_bytes,
            publish_bytes,
            beside_bytes: 0,
            for_relay: VecDeque::new(),
            waits_for_relay: false,
            wanted_bytes: 0,
            told_consumed: 0,
            corrupt: None,
            counters: QueueCounters::default(),
        }
    }

    /// The endpoint at the other end has left, with nothing of this lane's to take.
    pub fn detach(&mut self) {
        self.producer = None;
        self.fragments = FragmentGuard::default();
        (self.wanted_bytes, self.beside_bytes) = (0, 0);
        self.for_relay.clear();
        self.waits_for_relay = false;
    }

    /// The endpoint at the other end is lost, and whatever it has not taken with it.
    pub fn lose(&mut self) {
        self.detach();
        self.is_lost = true;
        self.corrupt = None;
    }

    /// It has joined again.
    pub fn attach(&mut self, epoch: Epoch, producer: Producer) {
        self.epoch = epoch;
        self.producer = Some(producer);
    }

    /// Whether all that was added has been taken, and nothing of it is to be continued.
    pub fn is_done(&mut self) -> bool {
        let is_taken = match &mut self.producer {
            Some(producer) => producer.consumed() == Ok(producer.produced()),
            None => true,
        };
        is_taken && self.holder().is_none()
    }

    /// The input whose record occupies the lane.
    pub fn holder(&self) -> Option<Input> {
        self.fragments.holder()
    }

    /// Adds a frame with these run flags, which `write` fills in place; false when there is no room
    /// or another input's record is being sent. To an endpoint that is lost there always is.
    #[inline]
    pub fn push_with(
        &mut self,
        bytes: usize,
        flags: u16,
        input: Input,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        if !self.fragments.admits(input) {
            self.publish(SendReason::Full);
            return false;
        }
        if !self.fits(bytes) {
            return self.refuse(bytes);
        }
        let Some(producer) = &mut self.producer else {
            return false;
        };
        let Some(space) = producer.reserve(bytes) else {
            return self.refuse(bytes);
        };
        write(space);
        producer.commit(bytes);
        self.fragments.added(input, flags);
        if bytes >= self.wanted_bytes {
            self.wanted_bytes = 0; // a smaller frame passed one that waits still
        }
        if producer.pending_bytes() >= self.publish_bytes {
            self.publish(SendReason::Full);
        }
        true
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = |producer: &mut Producer| producer.has_room(bytes);
        self.fits(bytes) && self.producer.as_mut().is_some_and(has_room)
    }

    /// What was added last stands for so many bytes, which lie elsewhere: they count for when it is
    /// shown.
    pub fn added_beside(&mut self, bytes: usize) {
        self.beside_bytes += bytes;
        if self.beside_bytes >= self.publish_bytes {
            self.publish(SendReason::Full);
        }
    }

    /// What was added last stands for so many bytes, which lie elsewhere, for a relay, which is to take it before much more is added.
    pub fn added_for_relay(&mut self, bytes: usize) {
        self.publish(SendReason::Full);
        let end = self.produced();
        self.for_relay.push_back((end, bytes));
    }

    /// Whether a relay has taken so much of what was [added for it](LaneQueue::added_for_relay)
    /// that more may be: one that stands still shall not have what another one could take.
    pub fn may_add_for_relay(&mut self) -> bool {
        if self.for_relay.is_empty() {
            self.waits_for_relay = false;
            return true;
        }
        // What is corrupt is said by the next push.
        let consumed = self.consumed().unwrap_or(u64::MAX);
        let taken = self.for_relay.partition_point(|&(end, _)| end <= consumed);
        self.for_relay.drain(..taken);
        let bytes: usize = self.for_relay.iter().map(|&(_, bytes)| bytes).sum();
        self.waits_for_relay = bytes >= MOST_FOR_RELAY_BYTES;
        !self.waits_for_relay
    }

    /// Whether the queue's own bound admits a frame: one frame always may, however small the bound.
    fn fits(&mut self, bytes: usize) -> bool {
        let Some(producer) = &mut self.producer else {
            return false;
        };
        let limit = self.limit_bytes;
        let admits = |used: usize| used == 0 || used + bytes <= limit;
        if limit >= producer.capacity_bytes() || admits(producer.in_use_bytes()) {
            return true;
        }
        // A position that cannot be true makes no room; `refuse` keeps it as the error.
        match producer.consumed() {
            Ok(consumed) => admits((producer.produced() - consumed) as usize),
            Err(_) => false,
        }
    }

    /// There is no room for a frame; true where it is dropped.
    #[cold]
    fn refuse(&mut self, bytes: usize) -> bool {
        if self.is_lost {
            self.counters.dropped();
            return true;
        }
        self.wanted_bytes = bytes;
        self.corrupt = self.consumed().err().map(Box::new);
        self.publish(SendReason::Full);
        false
    }

    /// Shows the consumer what was added.
    #[inline]
    pub fn publish(&mut self, why: SendReason) {
        if let Some(producer) = &mut self.producer
            && producer.pending_bytes() > 0
        {
            self.counters.sent(why);
            self.counters.woke(producer.publish());
            self.beside_bytes = 0;
        }
    }

    /// Position behind the last frame added.
    pub fn produced(&self) -> u64 {
        self.producer.as_ref().map_or(0, Producer::produced)
    }

    /// Position up to which the consumer has taken everything; the last one there is where it is
    /// away.
    pub fn consumed(&mut self) -> Result<u64, Corrupt> {
        let producer = self.producer.as_mut();
        producer.map_or(Ok(u64::MAX), Producer::consumed)
    }

    /// Bytes that the consumer has not released yet.
    pub fn in_use_bytes(&self) -> usize {
        self.producer.as_ref().map_or(0, Producer::in_use_bytes)
    }

    /// Before sleeping: asks the consumer to ring when space comes free, if something waits for it.
    pub fn want_space(&mut self) {
        if self.wanted_bytes > 0 || self.waits_for_relay {
            self.want_release();
        }
    }

    /// Asks the consumer to ring at its next release.
    pub fn want_release(&mut self) {
        if let Some(producer) = &mut self.producer {
            producer.want_space();
        }
    }

    /// Whether the consumer has released anything since this was asked last: a push that was
    /// refused meanwhile has looked, too, and has told nobody.
    pub fn release_came(&mut self) -> bool {
        let consumed = match self.in_use_bytes() {
            0 => self.produced(),
            // What is corrupt is said by the next push.
            _ => self.consumed().unwrap_or(u64::MAX),
        };
        std::mem::replace(&mut self.told_consumed, consumed) != consumed
    }

    /// Whether what waits for space would find it now.
    pub fn space_came(&mut self) -> bool {
        if self.waits_for_relay && self.may_add_for_relay() {
            return true;
        }
        let bytes = self.wanted_bytes;
        let came = bytes > 0 && self.has_room(bytes);
        if came {
            self.wanted_bytes = 0; // told once: a sender that still waits finds out by trying
        }
        came
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trihop_transport::memory::segment::Segment;
    use trihop_transport::ring::{Doorbell, Inbox, InboxLayout};

    use super::*;
    use trihop_transport::protocol::wire::run_flags;

    /// Pushes frames of `bytes` until one is refused; how many were taken.
    fn fill(lane: &mut LaneQueue, bytes: usize) -> u32 {
        let push = |lane: &mut LaneQueue| {
            lane.push_with(bytes, 0, Input::APPLICATION, |space| {
                space[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
            })
        };
        (0..1000).take_while(|_| push(lane)).count() as u32
    }

    /// A lane that is shown every `publish_bytes`, and the inbox that it leads into.
    fn lane(publish_bytes: usize) -> (Inbox, LaneQueue) {
        let layout = InboxLayout::new(2, 4096).unwrap();
        let segment = Segment::create(layout.segment_bytes()).unwrap();
        let inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
        let doorbell = Doorbell::create().unwrap();
        let producer = Producer::new(segment, layout, 0, doorbell.bell()).unwrap();
        let (peer, epoch, stage) = (EndpointId(0), Epoch::FIRST, Stage::FIRST);
        let lane = LaneQueue::new(peer, epoch, stage, producer, publish_bytes, usize::MAX);
        (inbox, lane)
    }

    #[test]
    fn a_lane_to_who_is_lost_takes_all_and_keeps_nothing() {
        let (_inbox, mut lane) = lane(64);
        // It is full, in the middle of a record of some input.
        let first = run_flags::FIRST;
        assert!(lane.push_with(64, first, Input::lane(3), |space| space.fill(0)));
        assert!(!lane.push_with(64, 0, Input::APPLICATION, |space| space.fill(0)));
        let more = |lane: &mut LaneQueue| {
            lane.push_with(64, run_flags::MORE, Input::lane(3), |space| space.fill(0))
        };
        assert!((0..1000).any(|_| !more(&mut lane)));
        lane.lose();
        assert!(lane.is_done() && lane.in_use_bytes() == 0);
        for _ in 0..1000 {
            assert!(lane.push_with(64, first, Input::APPLICATION, |_| unreachable!()));
        }
        assert!(more(&mut lane) && lane.is_done() && !lane.space_came());
        assert_eq!(lane.consumed(), Ok(u64::MAX));
        assert_eq!(lane.counters.stats(0, 1).dropped_runs, 1001);
    }

    #[test]
    fn who_takes_nothing_for_others_gets_no_more_until_it_does() {
        let (mut inbox, mut lane) = lane(1000);
        let mut consumer = inbox.lane(0);
        let add = |lane: &mut LaneQueue| {
            assert!(lane.may_add_for_relay());
            assert!(lane.push_with(64, 0, Input::APPLICATION, |space| {
                space[..4].copy_from_slice(&64u32.to_le_bytes());
            }));
            lane.added_for_relay(MOST_FOR_RELAY_BYTES / 2);
        };
        add(&mut lane);
        add(&mut lane);
        assert!(!lane.may_add_for_relay() && !lane.space_came());
        for _ in 0..2 {
            assert!(consumer.front().unwrap().is_some(), "it was shown");
            consumer.pop();
            consumer.release();
            assert!(lane.space_came(), "who waits hears of it");
            assert!(!lane.space_came(), "once");
            add(&mut lane);
            assert!(!lane.may_add_for_relay());
        }
    }

    #[test]
    fn what_lies_elsewhere_counts_for_when_a_lane_is_shown() {
        let (mut inbox, mut lane) = lane(1000);
        let mut consumer = inbox.lane(0);
        for _ in 0..3 {
            for is_last in [false, false, true] {
                assert!(lane.push_with(64, 0, Input::APPLICATION, |space| {
                    space[..4].copy_from_slice(&64u32.to_le_bytes());
                }));
                lane.added_beside(400);
                assert_eq!(consumer.front().unwrap().is_some(), is_last);
            }
            (0..3).for_each(|_| {
                assert!(consumer.front().unwrap().is_some());
                consumer.pop();
            });
            consumer.release();
        }
    }

    #[test]
    fn who_waits_for_a_release_hears_of_one_that_a_refused_frame_has_seen() {
        let (mut inbox, mut lane) = lane(64);
        assert!(lane.push_with(64, 0, Input::APPLICATION, |space| {
            space[..4].copy_from_slice(&64u32.to_le_bytes());
        }));
        assert!(fill(&mut lane, 1000) > 1);
        assert!(!lane.release_came());
        let mut consumer = inbox.lane(0);
        consumer.front().unwrap();
        consumer.pop();
        consumer.release();
        // It looks where the consumer is, and finds too little.
        assert_eq!(fill(&mut lane, 1000), 0);
        assert!(lane.release_came());
        assert!(!lane.release_came(), "once");
    }

    #[test]
    fn a_frame_that_passes_a_longer_one_does_not_end_its_wait() {
        let (mut inbox, mut lane) = lane(64);
        assert!(fill(&mut lane, 1000) > 0);
        assert_eq!(lane.wanted_bytes, 1000);
        let push = |lane: &mut LaneQueue| {
            lane.push_with(64, 0, Input::APPLICATION, |space| {
                space[..4].copy_from_slice(&64u32.to_le_bytes());
            })
        };
        assert!(
            push(&mut lane),
            "a short frame fits where a long one does not"
        );
        assert!(!lane.space_came(), "and there is none for the long one");
        let mut consumer = inbox.lane(0);
        while consumer.front().unwrap().is_some() {
            consumer.pop();
        }
        consumer.release();
        assert!(lane.space_came(), "the long one hears that there is room");
        assert!(!lane.space_came(), "once");
    }
}
