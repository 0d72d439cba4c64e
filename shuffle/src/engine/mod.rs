//! One stream on one rank: drains lanes and links, forwards, delivers, returns credits. Never waits.

pub(crate) mod broadcasts;
pub(crate) mod inbound;
pub(crate) mod incoming;
pub(crate) mod long;
pub(crate) mod outbound;
pub(crate) mod queues;
pub(crate) mod tags;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use trihop_transport::link::{Completion, Link};
pub(crate) use trihop_transport::protocol::wire::BadRun;
use trihop_transport::protocol::wire::{BATCH_HEADER_BYTES, Run};
use trihop_transport::ring::Inbox;
use trihop_transport::topology::{Rank, Topology};

use crate::collective::Ticket;
use crate::config::StreamOptions;
use crate::deliver::{Assembled, Delivery, Handover, Outbox, Reassembly, Sink};
use crate::error::{Error, Result};
use crate::flush::Fence;
use crate::queue::Feeder;
use crate::queue::lane::LaneQueue;
use crate::queue::lanes::Lanes;
use crate::queue::remote::{Identity, RemoteQueue};
use crate::queue::tally::Why;
use crate::route::{Place, Route};
use crate::stats::{ClassStats, DetailedStats, Stats};
use broadcasts::Copying;
use inbound::Links;
use incoming::Arrival;
use outbound::Outbound;
use tags::TagClass;

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

/// Front runs that have moved on in part.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// Records that the handler has taken, where it paused inside the run.
    taken: HashMap<Feeder, usize>,
    /// Copies of broadcasts.
    copying: HashMap<Feeder, Copying>,
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
            reassembly: Reassembly::new(options.reassembly_bytes, options.max_message_bytes),
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
    pub identity: Identity,
    /// Longest frame of this stream.
    pub frame_bytes: usize,
    pub out: RefCell<Outbound>,
    pub inbound: RefCell<Inbound>,
    pub sink: RefCell<Sink<'h>>,
    pub stats: RefCell<Stats>,
    /// Way to the stream's delivery thread, if it has one.
    pub handover: Option<Arc<Handover>>,
    /// Records delivered here without a delivery thread (or queued for an application without a handler, or discarded).
    pub taken: Cell<u64>,
    /// Flushes and fences that want partial runs and batches out now.
    pub urgent: Cell<u32>,
    /// A fence that gave way to deliveries.
    pub fence: Cell<Option<Fence>>,
    /// A barrier that gave way to deliveries.
    pub barrier: Cell<Option<Ticket>>,
    /// Small sends for announcements, where there are links.
    pub notices: Option<trihop_transport::memory::pool::Pool>,
}

impl<'h> Core<'h> {
    /// Takes a completion of this stream.
    pub fn complete(&self, class: TagClass, number: u32, completion: Completion, now_ns: u64) -> Result<()> {
        let mut inbound = self.inbound.borrow_mut();
        let Some(links) = &mut inbound.links else {
            return Ok(());
        };
        let mut out = self.out.borrow_mut();
        let mut stats = self.stats.borrow_mut();
        links.complete(class, number, completion, &mut out.queues, &mut stats, now_ns)
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
            let (moved, empty) = self.drain_lane(inbound, sink, lane, at).map_err(|why| {
                Error::bad_peer(
                    self.topology
                        .rank_at(self.topology.node(), lane / LANES_PER_RANK)
                        .0,
                    why,
                )
            })?;
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
    ) -> std::result::Result<(bool, bool), String> {
        let mut consumer = inbound.inbox.lane(lane);
        let mut moved = 0;
        let empty = loop {
            if moved == FRAMES_PER_ROUND {
                break false;
            }
            let Some(frame) = consumer.front().map_err(|e| e.to_string())? else {
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
            if !taken.map_err(|e| e.to_string())? {
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
                let before = incoming.cursor as usize;
                let mut cursor = before;
                while cursor < runs.len() {
                    let feeder = Feeder::link(lanes, index);
                    match self.forward_arrived(&runs[cursor..], feeder, sink, reassembly, begun) {
                        Ok(Some(length)) => cursor += length,
                        Ok(None) => {
                            blocked = true;
                            break;
                        }
                        Err(why) => {
                            let rank = self.out.borrow().queues.remotes[index].rank;
                            return Err(Error::bad_peer(rank, why));
                        }
                    }
                }
                worked |= cursor > before || !blocked;
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

    /// Moves the first of `runs`, which came over a link; its length, or `None` when there is no room for it now.
    fn forward_arrived(
        &self,
        runs: &[u8],
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<Option<usize>, BadRun> {
        let (run, _) = Run::split(runs, self.topology.size())?;
        if run.frame.len() > self.frame_bytes {
            return Err(BadRun::Length {
                length: run.frame.len() as u32,
                present: self.frame_bytes,
            });
        }
        let moved = self.forward(Place::TargetRep, &run, feeder, sink, reassembly, begun)?;
        Ok(moved.then_some(run.frame.len()))
    }

    /// Moves one run a hop further, or delivers it; false when there is no room for it now.
    fn forward(
        &self,
        at: Place,
        run: &Run<'_>,
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<bool, BadRun> {
        if run.is_broadcast() {
            return self.spread(at, run, feeder, sink, reassembly, begun);
        }
        let target = Rank(run.header.target);
        if target == self.topology.rank() {
            return self.deliver(run, feeder, sink, reassembly, begun);
        }
        let pushed = self
            .out
            .borrow_mut()
            .queues
            .push(at, target, run.frame, run.header.flags, feeder);
        match pushed {
            Some(true) => {
                let mut stats = self.stats.borrow_mut();
                if at == Place::TargetRep {
                    stats.runs_from_fabric += 1;
                } else {
                    stats.runs_to_fabric += 1;
                }
                Ok(true)
            }
            Some(false) => Ok(false),
            None => Err(BadRun::Route(target.0)),
        }
    }

    /// Copies a broadcast to its next hops and delivers it; false while there is no room for all of that. What is done is
    /// not done again.
    #[cold]
    fn spread(
        &self,
        at: Place,
        run: &Run<'_>,
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<bool, BadRun> {
        let source = Rank(run.header.source);
        let mut copying = begun.copying.remove(&feeder).unwrap_or_default();
        let mut out = self.out.borrow_mut();
        let route = &out.queues.route;
        if !route.passes(at, source) {
            return Err(BadRun::Broadcast {
                source_rank: source.0,
                why: "it arrived where no copy of it belongs",
            });
        }
        // One that comes back to its source, over its own lane, has its copies.
        let copies = match source == self.topology.rank() {
            true => 0,
            false => route.copies(at),
        };
        if copying.next < copies {
            let before = copying.next;
            copying.next = out.queues.push_copies(at, before, run.frame, feeder);
            let mut stats = self.stats.borrow_mut();
            let runs = if at == Place::TargetRep {
                &mut stats.runs_from_fabric
            } else {
                &mut stats.runs_to_fabric
            };
            *runs += u64::from(copying.next - before);
        }
        drop(out);
        copying.delivered = copying.delivered || self.deliver(run, feeder, sink, reassembly, begun)?;
        let done = copying.delivered && copying.next == copies;
        if !done {
            begun.copying.insert(feeder, copying);
        }
        Ok(done)
    }

    fn deliver(
        &self,
        run: &Run<'_>,
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<bool, BadRun> {
        let records = usize::from(run.header.count).max(1);
        let is_plain = !run.is_fragment();
        let admitted = match sink {
            _ if self.options.deliverq_discard => true,
            Sink::Handler(_) => self.out.borrow().spill.free_bytes() >= self.options.handler_reserve_bytes,
            Sink::Queue(queue) => {
                let bytes = match run.is_fragment() {
                    true => reassembly.record_bytes(feeder),
                    false => run.frame.len(),
                };
                queue.admit(records, bytes)
            }
            Sink::Thread(handover) if is_plain => {
                return Ok(self.handed_over(handover.offer(&Delivery::Run(*run), records, run.frame.len())));
            }
            Sink::Thread(handover) => handover.admit(records, reassembly.record_bytes(feeder)),
            Sink::Closed => true,
        };
        if !admitted {
            self.stats.borrow_mut().blocked_deliveries += 1;
            return Ok(false);
        }
        if is_plain {
            let taken = &mut begun.taken;
            let before = if taken.is_empty() {
                None
            } else {
                taken.remove(&feeder)
            };
            let all = usize::from(run.header.count);
            let done = self.hand_over(Delivery::Run(*run), before.unwrap_or(0), all, sink)?;
            if done < all {
                taken.insert(feeder, done);
                return Ok(false);
            }
            return Ok(true);
        }
        match reassembly.add(feeder, run)? {
            Assembled::Growing => Ok(true),
            Assembled::Later => Ok(false),
            Assembled::Whole(record) => {
                let (source, kind) = (record.source, record.kind);
                self.hand_over(
                    Delivery::Record {
                        source,
                        kind,
                        bytes: &record.bytes,
                    },
                    0,
                    1,
                    sink,
                )?;
                reassembly.give_back(record.bytes);
                Ok(true)
            }
        }
    }

    /// Hands records over from number `done` on; returns how many of `all` are done then.
    fn hand_over(
        &self,
        delivery: Delivery<'_>,
        done: usize,
        all: usize,
        sink: &mut Sink<'h>,
    ) -> std::result::Result<usize, BadRun> {
        let now = match sink {
            _ if self.options.deliverq_discard => {
                self.stats.borrow_mut().discarded += (all - done) as u64;
                all
            }
            Sink::Handler(handler) => {
                let mut outbox = Outbox::with_reserve(&self.out, self.options.handler_reserve_bytes);
                handler(delivery, done, &mut outbox)?
            }
            Sink::Queue(queue) => {
                queue.push(&delivery);
                all
            }
            Sink::Thread(handover) => {
                handover.push(&delivery);
                self.handed_over(true);
                return Ok(all);
            }
            Sink::Closed => all,
        };
        self.taken.set(self.taken.get() + (now - done) as u64);
        if now == all {
            self.stats.borrow_mut().runs_delivered += 1;
        }
        Ok(now)
    }

    /// Counts a run that was, or could not be, handed over to the delivery thread.
    fn handed_over(&self, taken: bool) -> bool {
        let mut stats = self.stats.borrow_mut();
        if taken {
            stats.runs_delivered += 1;
        } else {
            stats.blocked_deliveries += 1;
        }
        taken
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

    /// Whether nothing of this stream moves or waits on this rank.
    pub fn is_quiet(&self) -> bool {
        let (out, inbound) = (self.out.borrow(), self.inbound.borrow());
        let links = inbound.links.as_ref();
        out.is_quiet()
            && !inbound.has_backlog()
            && !links.is_some_and(|links| links.has_backlog(&out.queues.remotes))
            && self.handover.as_ref().is_none_or(|h| h.has_done_all())
    }

    /// Whether a sleeping rank has to wake up at once: a lane has news, or room (or, for a flush, a release) came.
    pub fn must_stay_awake(&self) -> bool {
        if self.inbound.borrow().inbox.any_active() || self.handover.as_ref().is_some_and(|h| h.is_freed()) {
            return true;
        }
        let mut out = self.out.borrow_mut();
        let releases_too = self.urgent.get() > 0 || out.queues.origin.is_limited();
        out.queues
            .lanes_mut()
            .any(|lane| lane.space_came() || (releases_too && lane.release_came()))
    }

    /// Before sleeping: asks the consumers of full lanes to ring.
    pub fn want_space(&self, releases_too: bool) {
        let mut out = self.out.borrow_mut();
        let releases_too = releases_too || out.queues.origin.is_limited();
        for lane in out.queues.lanes_mut() {
            if releases_too && lane.in_use_bytes() > 0 {
                lane.want_release();
            } else {
                lane.want_space();
            }
        }
    }

    /// Whether something waits that only time moves: partial runs or batches, or news for a peer.
    pub fn waits_for_time(&self) -> bool {
        let (out, inbound) = (self.out.borrow(), self.inbound.borrow());
        let links = inbound.links.as_ref();
        // A provider that refused a post says by nothing but taking it that it has room again.
        out.has_partial()
            || out.queues.remotes.iter_busy().any(RemoteQueue::may_post)
            || links.is_some_and(|links| links.owes_news(&out.queues.remotes) || links.may_post())
    }

    /// The peer that has owed us something for longest without a sign of life, with that time.
    pub fn silent_peer(&self, now_ns: u64) -> Option<(u32, u64)> {
        let out = self.out.borrow();
        let mut worst = None;
        for remote in out.queues.remotes.iter_busy() {
            if !remote.owes() || remote.alive_ns == 0 {
                continue;
            }
            let silent = now_ns.saturating_sub(remote.alive_ns);
            if worst.is_none_or(|(_, most)| silent > most) {
                worst = Some((remote.rank, silent));
            }
        }
        worst
    }

    /// Counters of this moment.
    pub fn snapshot(&self) -> Stats {
        let mut stats = self.stats.borrow().clone();
        stats.delivered = self.delivered() - stats.discarded;
        // An open reservation of another handle holds the sending side; its counters are 0 then.
        let Ok(out) = self.out.try_borrow() else {
            return stats;
        };
        stats.sent = out.sent;
        stats.sent_bytes = out.sent_bytes;
        stats.would_block = out.would_block;
        stats.limit_hits = out.queues.origin.limit_hits + out.queues.remotes.limit_hits;
        stats.broadcasts = out.broadcasts;
        stats.broadcast_copies = out.queues.copies;
        stats.origin_frames = out.queues.origin.iter().map(|l| l.tally.frames()).sum();
        stats.relay_frames = out.queues.relay.iter().map(|l| l.tally.frames()).sum();
        stats.remote_frames = out.queues.remotes.iter().map(|r| r.tally.frames()).sum();
        stats.batches_sent = out.queues.remotes.iter().map(|r| r.tally.sends()).sum();
        stats.wire_bytes = out.queues.remotes.iter().map(|r| r.wire_bytes).sum();
        let lanes = out.queues.origin.iter().chain(out.queues.relay.iter());
        let lanes: u64 = lanes.map(|l| l.tally.waits()).sum();
        stats.queue_waits = lanes + out.queues.remotes.iter().map(|r| r.tally.waits()).sum::<u64>();
        stats
    }

    /// Counters of this moment, of the stream and of each of its queues.
    pub fn detailed(&self) -> DetailedStats {
        let mut detailed = DetailedStats {
            stream: self.name.clone(),
            rank: self.identity.rank,
            totals: self.snapshot(),
            ..DetailedStats::default()
        };
        let Ok(out) = self.out.try_borrow() else {
            return detailed;
        };
        let queues = &out.queues;
        let of_lanes = |lanes: &Lanes| {
            let peer = |lane: &LaneQueue| self.topology.rank_at(self.topology.node(), lane.local).0;
            let stats = |lane: &LaneQueue| lane.tally.stats(peer(lane), queues.now_ns);
            ClassStats::of(lanes.iter().map(stats), lanes.limit_hits)
        };
        detailed.origin = of_lanes(&queues.origin);
        detailed.relay = of_lanes(&queues.relay);
        let remotes = queues.remotes.iter();
        detailed.remote = ClassStats::of(
            remotes.map(|remote| remote.tally.stats(remote.rank, queues.now_ns)),
            queues.remotes.limit_hits,
        );
        detailed
    }

    /// Times that every lane was seen empty, and positions of lanes and links, for [`crate::flush`].
    pub(crate) fn marks(&self) -> DeliveryMarks {
        let mut inbound = self.inbound.borrow_mut();
        let lanes = inbound.listed.len() as u32;
        let in_use = inbound.inbox.layout().max_in_use_bytes() as u64;
        let drained = inbound.drained.clone();
        let consumed = (0..lanes)
            .map(|lane| inbound.inbox.lane(lane).consumed() + in_use)
            .collect();
        let links = inbound.links.as_mut();
        let arrived = links.map_or(Vec::new(), |l| {
            l.incoming
                .iter_mut()
                .map(|i| i.window.next() + i.window.iter_mut().count() as u64)
                .collect()
        });
        DeliveryMarks {
            drained,
            consumed,
            arrived,
        }
    }

    /// Whether everything that was here at the marks has moved on.
    pub(crate) fn passed(&self, marks: &DeliveryMarks) -> bool {
        let mut inbound = self.inbound.borrow_mut();
        for lane in 0..inbound.listed.len() {
            let unseen = !inbound.listed[lane] && !inbound.inbox.any_active();
            let drained = inbound.drained[lane] > marks.drained[lane];
            if !unseen && !drained && inbound.inbox.lane(lane as u32).consumed() < marks.consumed[lane] {
                return false;
            }
        }
        let Some(links) = &inbound.links else { return true };
        links
            .incoming
            .iter()
            .zip(&marks.arrived)
            .all(|(i, &arrived)| i.receiving.accepted() >= arrived)
    }
}

/// What had arrived when a delivery flush began.
pub(crate) struct DeliveryMarks {
    drained: Vec<u64>,
    consumed: Vec<u64>,
    arrived: Vec<u64>,
}
