//! One stream on one rank: drains lanes and links, forwards, delivers, returns credits. Never waits.

pub(crate) mod broadcasts;
mod counters;
mod forward;
pub(crate) mod inbound;
pub(crate) mod incoming;
pub(crate) mod long;
pub(crate) mod marks;
pub(crate) mod outbound;
pub(crate) mod outbox;
pub(crate) mod queues;
mod reasons;
pub(crate) mod sink;
mod waiting;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use trihop_transport::link::{Completion, Link};
use trihop_transport::park::Gauge;
use trihop_transport::protocol::tags::TagClass;
pub(crate) use trihop_transport::protocol::wire::BadRun;
use trihop_transport::protocol::wire::{BATCH_HEADER_BYTES, Run};
use trihop_transport::ring::Inbox;
use trihop_transport::topology::Topology;

use crate::config::StreamOptions;
use crate::deliver::{Handover, Reassembly};
use crate::error::{Error, Result};
use crate::queue::Feeder;
use crate::queue::remote::Identity;
use crate::queue::tally::Why;
use crate::route::Place;
use crate::stats::Stats;
use forward::Begun;
use inbound::Links;
use incoming::Arrival;
use outbound::Outbound;
use sink::Sink;

/// Class of a lane; an inbox has one lane per local rank and class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneClass {
    Origin = 0,
    Relay = 1,
}

/// Lanes that each local rank writes in an inbox: one per class.
pub(crate) const LANES_PER_RANK: u32 = 2;

/// Lane of an inbox that the local rank `producer` writes in this class.
pub(crate) fn lane_of(producer: u32, class: LaneClass) -> u32 {
    LANES_PER_RANK * producer + class as u32
}

/// Frames that one lane may move per round, so that no lane starves the others.
const FRAMES_PER_ROUND: usize = 4096;

/// Lanes that are known to hold frames.
#[derive(Debug, Default)]
struct Backlog {
    lanes: Vec<u32>,
}

/// What a rank receives on one stream.
pub(crate) struct Inbound {
    pub inbox: Inbox,
    backlog: [Backlog; 2],
    listed: Vec<bool>,
    active: Vec<u32>,
    pub links: Option<Links>,
    pub reassembly: Reassembly,
    begun: Begun,
    /// Times that each lane was seen empty.
    drained: Vec<u64>,
}

impl Inbound {
    pub fn new(inbox: Inbox, links: Option<Links>, options: &StreamOptions) -> Self {
        let lanes = inbox.layout().lanes() as usize;
        Self {
            inbox,
            backlog: Default::default(),
            listed: vec![false; lanes],
            active: Vec::with_capacity(lanes),
            links,
            reassembly: Reassembly::new(options.shares().reassembly_bytes, options.max_message_bytes),
            begun: Begun::default(),
            drained: vec![0; lanes],
        }
    }

    /// Whether a lane is known to hold runs that have not moved on.
    pub fn is_listed(&self, lane: u32) -> bool {
        self.listed[lane as usize]
    }

    /// Whether any lane or link holds runs that have not moved on.
    pub fn has_backlog(&self) -> bool {
        self.backlog.iter().any(|b| !b.lanes.is_empty()) || self.inbox.any_active()
    }

    fn take_active(&mut self) {
        self.inbox.take_active(&mut self.active);
        for lane in self.active.drain(..) {
            if let Some(listed) = self.listed.get_mut(lane as usize)
                && !*listed
            {
                *listed = true;
                self.backlog[(lane % LANES_PER_RANK) as usize].lanes.push(lane);
            }
        }
    }
}

/// One stream on one rank.
pub(crate) struct Core<'h> {
    pub id: u16,
    pub name: String,
    pub topology: Topology,
    pub options: StreamOptions,
    /// Bytes of an item, 0 on a byte shuffle.
    pub item_bytes: usize,
    pub identity: Identity,
    /// Longest frame of this stream.
    pub frame_bytes: usize,
    pub out: RefCell<Outbound>,
    pub inbound: RefCell<Inbound>,
    pub sink: RefCell<Sink<'h>>,
    pub stats: RefCell<Stats>,
    /// Spill that the stream's handler has overfilled: the next delivery waits until that is relieved.
    pub waits_for: RefCell<Option<Arc<Gauge>>>,
    /// Says whether the stream's spill is pressed.
    pub gauge: Arc<Gauge>,
    /// Way to the stream's delivery thread, if it has one.
    pub handover: Option<Arc<Handover>>,
    /// Records delivered here without a delivery thread (or queued for an application without a handler, or discarded).
    pub taken: Cell<u64>,
    /// Flushes and fences that want partial runs and batches out now.
    pub urgent: Cell<u32>,
    /// Small sends for announcements, where there are links.
    pub notices: Option<trihop_transport::memory::pool::Pool>,
    /// Memory of the link's operations in flight, which all streams share.
    pub endpoint_bytes: usize,
}

impl<'h> Core<'h> {
    /// The stream was closed on all ranks, and another one takes its place: what it has counted begins anew, but for what
    /// both ends of its lanes and links have counted.
    pub fn begin_again(&mut self, name: String, sink: Sink<'h>) {
        let handover = match &sink {
            Sink::Thread(handover) => Some(Arc::clone(handover)),
            _ => None,
        };
        self.gauge = handover
            .as_ref()
            .map_or_else(Arc::default, |h| Arc::clone(&h.gauge));
        let gauge = Arc::clone(&self.gauge);
        self.out.get_mut().begin_again(&name, gauge, &self.options);
        self.name = name;
        self.sink = RefCell::new(sink);
        self.stats = RefCell::default();
        self.waits_for = RefCell::default();
        self.handover = handover;
        self.taken = Cell::new(0);
        self.urgent = Cell::new(0);
    }

    /// Whether the next delivery has to wait for a spill that the handler has overfilled.
    fn waits_for_spill(&self) -> bool {
        let mut waits_for = self.waits_for.borrow_mut();
        match &*waits_for {
            None => false,
            Some(gauge) if gauge.is_pressed() => {
                gauge.note_waiting();
                true
            }
            Some(_) => {
                *waits_for = None;
                false
            }
        }
    }

    /// Takes a completion of this stream.
    pub fn complete(&self, class: TagClass, number: u32, completion: Completion) -> Result<()> {
        let mut inbound = self.inbound.borrow_mut();
        let Some(links) = &mut inbound.links else {
            return Ok(());
        };
        let mut out = self.out.borrow_mut();
        let mut stats = self.stats.borrow_mut();
        links.complete(class, number, completion, &mut out.queues, &mut stats)
    }

    /// One bounded round of progress; true when anything moved. Later hops first, so that room travels backwards.
    pub fn progress(&self, link: Option<&mut dyn Link>, now_ns: u64) -> Result<bool> {
        let mut worked = {
            let mut out = self.out.borrow_mut();
            out.queues.now_ns = now_ns;
            out.retry()
        };
        if let Some(handover) = &self.handover {
            worked |= handover.take_freed()?;
        }
        let before = self.moved();
        {
            let mut inbound = self.inbound.borrow_mut();
            let mut sink = self.sink.borrow_mut();
            inbound.take_active();
            worked |= self.drain_lanes(&mut inbound, &mut sink, LaneClass::Relay)?;
            worked |= self.drain_links(&mut inbound, &mut sink)?;
            worked |= self.drain_lanes(&mut inbound, &mut sink, LaneClass::Origin)?;
        }
        // A run that could move on only in part has moved.
        worked |= self.moved() != before;
        if let Some(handover) = &self.handover {
            // While rounds move something, more of them follow, here or on the progress thread: see `Handover::show_much`.
            if worked {
                handover.show_much();
            } else {
                handover.show();
            }
        }
        let mut out = self.out.borrow_mut();
        worked |= out.relieve(now_ns);
        if let Some(error) = out.failure() {
            return Err(error);
        }
        let urgent = self.urgent.get() > 0;
        if urgent {
            out.close_runs();
        }
        out.age(now_ns, !worked, if urgent { Why::Flush } else { Why::Age });
        if let Some((local, why)) = out.queues.failure() {
            return Err(Error::bad_peer(
                self.topology.rank_at(self.topology.node(), local).0,
                why,
            ));
        }
        if urgent && !worked {
            out.queues.remotes.seal(Why::Flush);
        }
        if let Some(link) = link {
            worked |= self.transmit(&mut out, link, !worked, now_ns)?;
        }
        Ok(worked)
    }

    /// Copies of broadcasts, records and runs that have moved so far, where a run that did not move on whole counts too.
    fn moved(&self) -> (u64, u64, u64) {
        let copies = self.out.borrow().queues.copies;
        (copies, self.taken.get(), self.stats.borrow().runs_delivered)
    }

    /// Posts batches, fetches, grants and control messages.
    fn transmit(&self, out: &mut Outbound, link: &mut dyn Link, idle: bool, now_ns: u64) -> Result<bool> {
        let mut inbound = self.inbound.borrow_mut();
        let (Some(links), Some(notices)) = (&mut inbound.links, &self.notices) else {
            return Ok(false);
        };
        let mut worked = false;
        let remotes = &mut out.queues.remotes;
        links.advance(link, remotes)?;
        for at in 0..remotes.busy_len() {
            let Some(index) = remotes.busy(at) else { break };
            let remote = &mut remotes[index];
            let incoming = &mut links.incoming[index];
            if remote.may_give_back(now_ns) && remote.credit.give_back_large() > 0 {
                incoming.news = true;
            }
            let returned = remote.credit.large_returned();
            let (told, sequence) = (incoming.told(), remote.credit.next_sequence());
            let posted = remote.transmit(link, &self.identity, notices, now_ns, |wanted| {
                incoming.counters(returned, wanted)
            })?;
            if remote.credit.next_sequence() == sequence {
                incoming.untell(told); // headers were written, none was sent
            }
            worked |= posted > 0;
        }
        let mut stats = self.stats.borrow_mut();
        worked |= links.tell(link, remotes, notices, idle, &mut stats)?;
        remotes.rest(|index| links.may_rest(index));
        Ok(worked)
    }

    /// Moves runs out of the lanes of one class.
    fn drain_lanes(&self, inbound: &mut Inbound, sink: &mut Sink<'h>, class: LaneClass) -> Result<bool> {
        let at = if class == LaneClass::Relay {
            Place::Target
        } else {
            Place::SourceRep
        };
        let mut worked = false;
        let mut position = 0;
        while let Some(&lane) = inbound.backlog[class as usize].lanes.get(position) {
            let (moved, empty) = self.drain_lane(inbound, sink, lane, at)?;
            worked |= moved;
            if empty {
                inbound.drained[lane as usize] += 1;
                inbound.listed[lane as usize] = false;
                inbound.backlog[class as usize].lanes.swap_remove(position);
            } else {
                position += 1;
            }
        }
        Ok(worked)
    }

    /// Moves runs out of one lane; says whether any moved, and whether the lane is empty now.
    fn drain_lane(
        &self,
        inbound: &mut Inbound,
        sink: &mut Sink<'h>,
        lane: u32,
        at: Place,
    ) -> Result<(bool, bool)> {
        let rank = self
            .topology
            .rank_at(self.topology.node(), lane / LANES_PER_RANK)
            .0;
        let mut consumer = inbound.inbox.lane(lane);
        let mut moved = 0;
        let empty = loop {
            if moved == FRAMES_PER_ROUND {
                break false;
            }
            let Some(frame) = consumer.front().map_err(|why| Error::bad_peer(rank, why))? else {
                break true;
            };
            let taken = Run::split(frame, self.topology.size()).and_then(|(run, _)| {
                self.forward(
                    at,
                    &run,
                    Feeder::lane(lane),
                    sink,
                    &mut inbound.reassembly,
                    &mut inbound.begun,
                )
            });
            if !taken.map_err(|why| Error::bad_run(rank, why))? {
                break false;
            }
            consumer.pop();
            moved += 1;
        };
        if moved > 0 {
            consumer.release();
            self.stats.borrow_mut().frames_received += moved as u64;
        }
        Ok((moved > 0, empty))
    }

    /// Moves runs out of the batches that have arrived.
    fn drain_links(&self, inbound: &mut Inbound, sink: &mut Sink<'h>) -> Result<bool> {
        let lanes = inbound.inbox.layout().lanes();
        let Inbound {
            links: Some(links),
            reassembly,
            begun,
            ..
        } = inbound
        else {
            return Ok(false);
        };
        let mut worked = false;
        let mut position = 0;
        while let Some(&index) = links.arrived.get(position) {
            let index = index as usize;
            let mut blocked = false;
            while !blocked {
                let incoming = &mut links.incoming[index];
                let Some(Arrival::Here { buffer, bytes, .. }) = incoming.window.front() else {
                    break;
                };
                let runs = &buffer[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + *bytes as usize];
                let at = self.out.borrow().queues.remotes[index].class.arrival();
                let before = incoming.cursor as usize;
                let (mut cursor, mut moved) = (before, 0);
                while cursor < runs.len() {
                    let feeder = Feeder::link(lanes, index);
                    match self.forward_arrived(at, &runs[cursor..], feeder, sink, reassembly, begun) {
                        Ok(Some(length)) => {
                            cursor += length;
                            moved += 1;
                        }
                        Ok(None) => {
                            blocked = true;
                            break;
                        }
                        Err(why) => {
                            // What has moved on shall not move on again.
                            links.incoming[index].cursor = cursor as u32;
                            let rank = self.out.borrow().queues.remotes[index].rank;
                            return Err(Error::bad_run(rank, why));
                        }
                    }
                }
                worked |= cursor > before || !blocked;
                if at != Place::TargetRep {
                    self.stats.borrow_mut().frames_received += moved;
                }
                incoming.cursor = cursor as u32;
                if !blocked {
                    links.accept(index);
                }
            }
            if blocked {
                position += 1;
            } else {
                links.incoming[index].listed = false;
                links.arrived.swap_remove(position);
            }
        }
        Ok(worked)
    }

    /// Records that were delivered here: the handler has returned, or (without one) the application may take them.
    pub fn delivered(&self) -> u64 {
        self.taken.get() + self.handover.as_ref().map_or(0, |h| h.done())
    }

    /// Somebody wants everything out at once, until as many calls of [`calm`](Self::calm).
    pub fn hurry(&self) {
        self.urgent.set(self.urgent.get() + 1);
    }

    /// See [`hurry`](Self::hurry).
    pub fn calm(&self) {
        self.urgent.set(self.urgent.get() - 1);
    }

    /// Closes a stream without a handler for deliveries; returns the records that were waiting to be taken.
    pub fn give_up_untaken(&self) -> Option<u64> {
        let mut sink = self.sink.borrow_mut();
        let Sink::Queue(queue) = &*sink else { return None };
        let waiting = queue.records() as u64;
        *sink = Sink::Closed;
        Some(waiting)
    }
}
