//! One stream on one rank: drains lanes and links, forwards, delivers, returns credits. Never
//! waits.

pub(crate) mod at_once;
pub(crate) mod broadcasts;
pub(crate) mod contribution;
mod counters;
mod drain;
mod forward;
pub(crate) mod inbound;
pub(crate) mod incoming;
pub(crate) mod long;
pub(crate) mod marks;
pub(crate) mod outbound;
pub(crate) mod outbox;
pub(crate) mod queues;
pub(crate) mod reasons;
pub(crate) mod rounds;
pub(crate) mod sink;
pub(crate) mod untaken;
mod waiting;

use std::sync::Arc;

use trihop_transport::link::{Completion, Link};
use trihop_transport::protocol::tags::TagClass;
pub(crate) use trihop_transport::protocol::wire::BadRun;
use trihop_transport::protocol::wire::RUN_HEADER_BYTES;
use trihop_transport::ring::Inbox;
use trihop_transport::ring::census::{COLOURS, Counts};
use trihop_transport::topology::{Rank, Topology};

use crate::config::{PoolLimits, StreamOptions};
use crate::deliver::{Handover, Reassembly};
use crate::error::{Error, Result};
use crate::queue::Input;
use crate::queue::counters::SendReason;
use crate::queue::remote::Identity;
use crate::route::{EndpointId, JobRoute, Stage, StageSpec};
use crate::stats::Stats;
use drain::{Lanes, drain_links, writer_of};
use forward::{Begun, Forwarding};
use inbound::Links;
use outbound::Outbound;
use rounds::Rounds;
use sink::{Handlers, Sink};

/// Lanes of a stage that are known to hold frames.
#[derive(Debug)]
struct Backlog {
    stage: Stage,
    lanes: Vec<u32>,
}

/// What a rank receives on one stream.
pub(crate) struct Inbound {
    pub inbox: Inbox,
    /// One for each stage that has lanes: that of a lane is its number modulo theirs.
    backlog: Vec<Backlog>,
    listed: Vec<bool>,
    active: Vec<u32>,
    stages: &'static [StageSpec],
    pub links: Option<Links>,
    pub reassembly: Reassembly,
    begun: Begun,
    /// Times that each lane was seen empty.
    drained: Vec<u64>,
    /// Of endpoints that are lost: inputs of which not all has moved on that had come, and from
    /// when on nothing more is to be expected of them.
    pub lost: Vec<(Input, u64)>,
}

impl Inbound {
    pub fn new(
        inbox: Inbox,
        links: Option<Links>,
        route: &JobRoute,
        options: &StreamOptions,
    ) -> Self {
        let lanes = inbox.layout().lanes() as usize;
        let backlog = |stage| Backlog {
            stage,
            lanes: Vec::new(),
        };
        Self {
            inbox,
            backlog: route.lane_stages().iter().copied().map(backlog).collect(),
            listed: vec![false; lanes],
            active: Vec::new(),
            stages: route.stages(),
            links,
            reassembly: Reassembly::new(
                options.shares().reassembly_bytes,
                options.max_message_bytes,
            ),
            begun: Begun::default(),
            drained: vec![0; lanes],
            lost: Vec::new(),
        }
    }

    /// Whether all that an input has shown has moved on.
    fn is_drained(&mut self, input: Input) -> bool {
        let lanes = self.inbox.layout().lanes();
        let at = input.0 - Input::lane(0).0;
        if at < lanes {
            return !self.is_listed(at) && self.inbox.lane(at).is_empty();
        }
        let links = self.links.as_mut();
        let incoming = links.and_then(|links| links.incoming.get_mut((at - lanes) as usize));
        incoming.is_none_or(|incoming| !incoming.listed && !incoming.front_is_here())
    }

    /// Place of the endpoint that writes a lane, and the lane's stage.
    pub fn writer_of(&self, lane: u32) -> (u32, Stage) {
        writer_of(&self.backlog, lane)
    }

    /// Whether a long record of this input has begun, here or in a queue, and not ended.
    pub fn is_in_record(&self, out: &Outbound, input: Input) -> bool {
        let queues = &out.queues;
        let mut holders = queues.lanes.iter().map(|lane| lane.holder());
        let mut beyond = queues.remotes.iter().map(|link| link.holder());
        self.reassembly.record_bytes(input) > 0
            || holders.any(|holder| holder == Some(input))
            || beyond.any(|holder| holder == Some(input))
    }

    /// The lanes that the endpoint at a place of the node writes.
    pub fn lanes_of(&self, place: u32) -> std::ops::Range<u32> {
        let stages = self.backlog.len() as u32;
        place * stages..(place + 1) * stages
    }

    /// Name of the stage of an edge.
    pub fn stage_name(&self, stage: Stage) -> &'static str {
        self.stages[stage.index()].name
    }

    /// Whether a lane is known to hold runs that have not moved on.
    pub fn is_listed(&self, lane: u32) -> bool {
        self.listed[lane as usize]
    }

    /// Whether any lane or link holds runs that have not moved on.
    pub fn has_backlog(&self) -> bool {
        self.backlog.iter().any(|b| !b.lanes.is_empty()) || self.inbox.any_active()
    }

    /// Has a lane looked at.
    pub fn list(&mut self, lane: u32) {
        let stages = self.backlog.len();
        if !std::mem::replace(&mut self.listed[lane as usize], true) {
            self.backlog[lane as usize % stages].lanes.push(lane);
        }
    }

    /// Lists the lanes that have shown something.
    fn take_active(&mut self) -> &mut Self {
        self.inbox.take_active(&mut self.active);
        let stages = self.backlog.len();
        for lane in self.active.drain(..) {
            if let Some(listed) = self.listed.get_mut(lane as usize)
                && !*listed
            {
                *listed = true;
                self.backlog[lane as usize % stages].lanes.push(lane);
            }
        }
        self
    }
}

/// An open stream, as its handles name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamId {
    /// Cookie of the job.
    pub job: u64,
    /// Its place among the engine's streams.
    pub stream: usize,
    /// How many others were opened there before.
    pub opened: u32,
}

/// Stream that carries the collectives.
pub(crate) const SYSTEM_STREAM: u16 = 0;

/// One stream on one rank, but for what it sends: that is [`Outbound`], beside those of the other
/// streams, because a handler may send on each.
pub(crate) struct StreamState {
    pub id: u16,
    /// How many streams have been opened in this place.
    pub opened: u32,
    pub name: String,
    pub topology: Topology,
    pub options: StreamOptions,
    /// What its pools may take.
    pub pools: PoolLimits,
    /// Bytes of an item, 0 on a byte shuffle.
    pub item_bytes: usize,
    /// What this endpoint has for long records behind its inbox.
    pub block_bytes: usize,
    pub identity: Identity,
    /// Place among others: that of its options, or of a step that has one.
    pub priority: u8,
    /// Longest frame of this stream.
    pub frame_bytes: usize,
    pub inbound: Inbound,
    pub sink: Sink,
    pub stats: Stats,
    /// Stream whose spill the handler has overfilled: the next delivery waits until that is
    /// relieved.
    pub waits_for: Option<usize>,
    /// Way to the stream's delivery thread, if it has one.
    pub handover: Option<Arc<Handover>>,
    /// Records delivered here without a delivery thread (or queued for an application without a
    /// handler, or discarded).
    pub taken: u64,
    /// Runs that have come to be delivered here, by their colour; more where they had to wait.
    pub heard: [u64; COLOURS],
    /// Flushes and fences that want partial runs and batches out now.
    pub urgent: u32,
    /// How far the rounds have come.
    pub rounds: Rounds,
    /// Small sends for announcements, where there are links.
    pub notices: Option<trihop_transport::memory::pool::Pool>,
    /// Memory of the link's operations in flight, which all streams share.
    pub endpoint_bytes: usize,
    /// Memory for the run of a message that this rank sends to itself and handles at once.
    pub own_run: Vec<u64>,
}

impl StreamState {
    /// The stream was closed on all ranks, and another one takes its place: what it has counted
    /// begins anew, but for what both ends of its lanes and links have counted.
    pub fn begin_again(&mut self, out: &mut Outbound, name: String, item_bytes: usize, sink: Sink) {
        self.handover = sink.handover();
        out.begin_again(&name, item_bytes, sink.gauge(), &self.options);
        self.item_bytes = item_bytes;
        self.name = name;
        self.opened += 1;
        self.sink = sink;
        self.stats = Stats::default();
        self.waits_for = None;
        self.taken = 0;
        self.priority = self.options.priority;
        self.urgent = 0;
        self.rounds = Rounds::new(&out.queues.route);
    }

    /// Whether anything of this stream goes over links.
    pub fn has_links(&self) -> bool {
        self.inbound.links.is_some()
    }

    /// Takes a completion of this stream.
    pub fn complete(
        &mut self,
        out: &mut Outbound,
        class: TagClass,
        number: u32,
        completion: Completion,
    ) -> Result<()> {
        match &mut self.inbound.links {
            Some(links) => {
                links.complete(class, number, completion, &mut out.queues, &mut self.stats)
            }
            None => Ok(()),
        }
    }

    /// One bounded round of progress; true when anything moved. Later hops first, so that room
    /// travels backwards. What the stream sends is number `own` of `outs`.
    pub fn progress(
        &mut self,
        outs: &mut [Outbound],
        own: usize,
        handlers: &mut impl Handlers,
        link: Option<&mut dyn Link>,
        now_ns: u64,
    ) -> Result<bool> {
        let mut worked = outs[own].retry();
        if let Some(handover) = &self.handover {
            worked |= handover.take_freed()?;
        }
        let before = self.moved(&outs[own]);
        worked |= self.drain(outs, own, handlers)?;
        // A run that could move on only in part has moved.
        worked |= self.moved(&outs[own]) != before;
        if !self.inbound.lost.is_empty() {
            worked |= self.cut_lost(&mut outs[own], now_ns);
        }
        if let Some(handover) = &self.handover {
            // While rounds move something, more of them follow, here or on the progress thread: see
            // `Handover::show_much`.
            if worked {
                handover.show_much();
            } else {
                handover.show();
            }
        }
        let out = &mut outs[own];
        worked |= out.relieve(now_ns);
        if let Some(error) = out.failure() {
            return Err(error);
        }
        let urgent = self.urgent > 0;
        if urgent {
            out.close_runs();
        }
        out.age(
            now_ns,
            !worked,
            if urgent {
                SendReason::Flush
            } else {
                SendReason::Age
            },
        );
        if let Some((rank, why)) = out.queues.failure() {
            return Err(Error::bad_peer(rank.0, why));
        }
        if urgent && !worked {
            out.queues.remotes.seal(SendReason::Flush);
        }
        if let Some(link) = link {
            worked |= self.transmit(out, link, !worked, now_ns)?;
        }
        Ok(worked)
    }

    /// Copies of broadcasts, records and runs that have moved so far, where a run that did not move
    /// on whole counts too.
    fn moved(&self, out: &Outbound) -> (u64, u64, u64) {
        (out.queues.copies, self.taken, self.stats.runs_delivered)
    }

    /// Posts batches, fetches, grants and control messages.
    fn transmit(
        &mut self,
        out: &mut Outbound,
        link: &mut dyn Link,
        idle: bool,
        now_ns: u64,
    ) -> Result<bool> {
        let (Some(links), Some(notices)) = (&mut self.inbound.links, &self.notices) else {
            return Ok(false);
        };
        let mut worked = out.queues.lanes.register(link, self.topology.place());
        links.advance(link, &mut out.queues)?;
        let remotes = &mut out.queues.remotes;
        for at in remotes.places_from(self.topology.endpoint()) {
            let Some(index) = remotes.busy(at) else { break };
            let remote = &mut remotes[index];
            let incoming = &mut links.incoming[index];
            let is_recalled = remote.take_recall();
            if (is_recalled || remote.may_give_back(now_ns)) && remote.credit.give_back_large() > 0
            {
                incoming.news = true;
                incoming.must_tell |= is_recalled;
            }
            let returned = remote.credit.large_returned();
            let (told, sequence) = (incoming.told(), remote.credit.next_sequence());
            let posted = remote.transmit(link, &self.identity, notices, now_ns, |wanted| {
                incoming.counters(returned, wanted)
            })?;
            if remote.credit.next_sequence() == sequence {
                incoming.take_back(told); // headers were written, none was sent
            }
            if remote.waits_for_slots() {
                incoming.ask(now_ns);
            }
            worked |= posted > 0;
        }
        worked |= links.send_controls(link, remotes, notices, (idle, now_ns), &mut self.stats)?;
        remotes.rest(|index| links.may_rest(index));
        Ok(worked)
    }

    /// Moves runs out of lanes and links.
    fn drain(
        &mut self,
        outs: &mut [Outbound],
        own: usize,
        handlers: &mut impl Handlers,
    ) -> Result<bool> {
        let Inbound {
            inbox,
            backlog,
            listed,
            links,
            reassembly,
            begun,
            drained,
            ..
        } = self.inbound.take_active();
        let mut lanes = Lanes {
            inbox,
            backlog,
            listed,
            drained,
        };
        let mut forwarding = Forwarding {
            outs,
            own,
            handlers,
            reassembly,
            begun,
            rounds: &mut self.rounds,
            from: 0,
            sink: &mut self.sink,
            stats: &mut self.stats,
            taken: &mut self.taken,
            heard: &mut self.heard,
            waits_for: &mut self.waits_for,
            topology: &self.topology,
            frame_bytes: self.frame_bytes,
            record: None,
            discards: self.options.shim.deliverq_discard,
        };
        let mut worked = false;
        let stages = forwarding.out().queues.route.numbers();
        for stage in stages.rev() {
            if let Some(links) = &mut *links {
                worked |= drain_links(links, lanes.inbox.layout().lanes(), stage, &mut forwarding)?;
            }
            worked |= lanes.drain(stage, &mut forwarding)?;
        }
        Ok(worked)
    }

    /// Ends the long records of those that are lost, once all that had come of them has moved on;
    /// whether any of these inputs is done. From then on nothing is taken from it.
    #[cold]
    fn cut_lost(&mut self, out: &mut Outbound, now_ns: u64) -> bool {
        let lost = std::mem::take(&mut self.inbound.lost);
        let before = lost.len();
        let is_left = |&(input, from_ns): &(Input, u64)| now_ns < from_ns || !self.cut(out, input);
        let left: Vec<_> = lost.into_iter().filter(is_left).collect();
        self.inbound.lost = left;
        self.inbound.lost.len() < before
    }

    /// The same of one input; whether it is done.
    fn cut(&mut self, out: &mut Outbound, input: Input) -> bool {
        if !self.inbound.is_drained(input) {
            return false;
        }
        let cut = self.inbound.begun.cut(input);
        if let Some((header, (at, _))) = cut.zip(self.writer_of_input(out, input)) {
            let mut frame = [0; RUN_HEADER_BYTES];
            header.write(RUN_HEADER_BYTES, &mut frame);
            let (target, flags) = (Rank(header.target), header.flags);
            if out.queues.push(at, target, &frame, flags, input) == Some(false) {
                return false; // once it has room
            }
        }
        self.inbound.reassembly.forget(input);
        self.inbound.begun.close(input);
        let lanes = self.inbound.inbox.layout().lanes();
        if let (Some(link), Some(links)) = (input.as_link(lanes), &mut self.inbound.links) {
            let remote = &out.queues.remotes[link];
            links.cut(link, remote.credit.max_in_flight());
            let end = remote.end;
            out.queues.remotes[link].cut();
            out.queues.cut.push(end);
        }
        true
    }

    /// Records that have come to their end here: the handler has returned, or is called no more, or
    /// (without one) the application may take them.
    pub fn delivered(&self) -> u64 {
        self.taken + self.handover.as_ref().map_or(0, |h| h.passed())
    }

    /// What this rank has of the stream.
    pub fn counts(&self, out: &Outbound) -> Counts {
        Counts {
            sent: out.sent,
            delivered: self.delivered(),
            heard: self.heard,
        }
    }

    /// Somebody wants everything out at once, until as many calls of [`calm`](Self::calm).
    pub fn hurry(&mut self) {
        self.urgent += 1;
    }

    /// See [`hurry`](Self::hurry).
    pub fn calm(&mut self) {
        self.urgent = self.urgent.saturating_sub(1);
    }

    /// Closes a stream without a handler for deliveries; returns the records that were waiting to
    /// be taken.
    pub fn give_up_untaken(&mut self) -> Option<u64> {
        let Sink::Queue(queue) = &self.sink else {
            return None;
        };
        let waiting = queue.records() as u64;
        self.sink = Sink::Closed;
        Some(waiting)
    }

    /// Whose an input is, and of which stage; nobody's where it is this rank itself.
    pub fn writer_of_input(&self, out: &Outbound, input: Input) -> Option<(Stage, EndpointId)> {
        let at = input.0.checked_sub(Input::lane(0).0)?;
        match at.checked_sub(self.inbound.inbox.layout().lanes()) {
            None => {
                let (place, stage) = self.inbound.writer_of(at);
                Some((stage, self.topology.endpoint_at(place)))
            }
            Some(link) => {
                let remote = &out.queues.remotes[link as usize];
                Some((remote.stage, remote.end))
            }
        }
    }

    /// So many records were still to be taken when the stream, or the job, ended.
    pub fn warn_of_lost(&self, lost: u64) {
        untaken::warn(self.topology.rank(), "records", &self.name, lost);
    }
}
