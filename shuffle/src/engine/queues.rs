//! The output queues of all edges, and which of them a run goes into.

mod shared;

pub(crate) use shared::{Passing, SHARED_RUN_BYTES};

use std::ops::RangeInclusive;
use std::sync::Arc;

use trihop_transport::protocol::wire::{Epoch, RUN_HEADER_BYTES, RunHeader, paint, run_flags};
use trihop_transport::ring::CensusLine;
use trihop_transport::ring::census::Counts;
use trihop_transport::topology::{Rank, Topology};

use crate::error::{Error, Result};
use crate::member::Members;
use crate::queue::Input;
use crate::queue::census::{Census, Found, Part, Stand};
use crate::queue::counters::SendReason;
use crate::queue::edge::{Edge, EdgeNumber, EdgeTable};
use crate::queue::lane::LaneQueue;
use crate::queue::lanes::Lanes;
use crate::queue::remote::RemoteQueue;
use crate::queue::remotes::Remotes;
use crate::route::{EndpointId, JobRoute, Next, Stage, Tree};

/// The queues of all edges.
pub(crate) struct Queues {
    pub route: JobRoute,
    pub members: Arc<Members>,
    topology: Topology,
    /// Which edge has which queue.
    numbers: EdgeTable,
    /// Queues of edges to this node's ranks over shared memory; the own one carries messages to
    /// oneself.
    pub lanes: Lanes,
    /// Queues of this rank's links.
    pub remotes: Remotes,
    /// By which fences end; a relay is in none.
    census: Option<Census>,
    /// Ranks of the job.
    pub size: u32,
    /// Bytes of the records that are offered over links.
    offers: RangeInclusive<usize>,
    /// Copies of broadcasts' frames that this rank has added.
    pub copies: u64,
    /// Time of the last round of progress.
    pub now_ns: u64,
    /// Something was added, or refused, since all lanes were shown.
    pub is_stirred: bool,
    /// Endpoints that are lost; and of these, those from which nothing is taken any more.
    pub lost: Vec<EndpointId>,
    pub cut: Vec<EndpointId>,
}

/// Where the queue of an edge stood at a moment.
pub(crate) struct Mark {
    edge: EdgeNumber,
    /// The endpoint at its other end.
    peer: EndpointId,
    epoch: Epoch,
    position: u64,
}

impl Mark {
    /// Whether it is where a link stood.
    pub fn is_of_link(&self) -> bool {
        matches!(self.edge, Edge::Link(_))
    }
}

impl Queues {
    /// The queues of a route's edges, none of them open.
    pub fn new(
        route: JobRoute,
        members: Arc<Members>,
        topology: Topology,
        lanes: Lanes,
        remotes: Remotes,
        offers: RangeInclusive<usize>,
    ) -> Self {
        let census = (!topology.is_relay()).then(|| {
            let speaker = (topology.nodes() > 1).then(|| {
                let speaker = Tree::speaker(&topology);
                topology.place_of(speaker.into())
            });
            let (ranks, place) = (topology.local_size(), topology.place());
            Census::new(ranks, place, lanes.layout(), speaker)
        });
        Self {
            route,
            members,
            numbers: EdgeTable::new(),
            lanes,
            remotes,
            census,
            size: topology.size(),
            offers,
            topology,
            copies: 0,
            now_ns: 0,
            is_stirred: false,
            lost: Vec::new(),
            cut: Vec::new(),
        }
    }

    /// An endpoint is lost: what is added for it from now on is dropped, and what it has not taken
    /// is with it.
    pub fn lose(&mut self, end: EndpointId) {
        self.lost.push(end);
        self.lanes.lose(end);
        self.remotes.lose(end);
    }

    /// What users see of it counts from now on.
    pub fn begin_again(&mut self) {
        self.copies = 0;
        self.lanes.begin_again();
        self.remotes.begin_again();
    }

    /// Whether what comes from an endpoint counts no more: its links are cut, or it had none.
    pub fn is_late(&self, end: EndpointId) -> bool {
        let has_link = || self.remotes.iter().any(|link| link.end == end);
        self.lost.contains(&end) && (self.cut.contains(&end) || !has_link())
    }

    /// Whether there are links to who is lost that are not cut yet.
    pub fn has_uncut(&self) -> bool {
        let mut links = self.remotes.iter();
        links.any(|link| link.is_lost && !self.cut.contains(&link.end))
    }

    /// Adds a frame to the queue of its next hop. `None` when no route leads there from this stage.
    pub fn push(
        &mut self,
        at: Stage,
        target: Rank,
        frame: &[u8],
        flags: u16,
        input: Input,
    ) -> Option<bool> {
        self.push_with(at, target, frame.len(), flags, input, |space| {
            space.copy_from_slice(frame)
        })
    }

    /// Adds a frame that `write` fills in place.
    pub fn push_with(
        &mut self,
        at: Stage,
        target: Rank,
        bytes: usize,
        flags: u16,
        input: Input,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        match self.route.next(at, target)? {
            Next::Deliver => None,
            Next::To(end, stage) => Some(self.push_to(end, stage, bytes, flags, input, write)),
        }
    }

    /// Adds copies of the frame of a broadcast of `source` to its next hops from number `next` on;
    /// returns the number of the first that has no room. A copy that has left is complete: nothing
    /// is held for the others.
    pub fn push_copies(
        &mut self,
        at: Stage,
        source: Rank,
        mut next: u32,
        frame: &[u8],
        input: Input,
    ) -> u32 {
        while next < self.route.copies(at, source) {
            let (end, stage) = self.route.copy(at, source, next);
            let write = |space: &mut [u8]| space.copy_from_slice(frame);
            if !self.push_to(end, stage, frame.len(), run_flags::BROADCAST, input, write) {
                break;
            }
            self.copies += 1;
            next += 1;
        }
        next
    }

    /// Adds a frame to the queue of the edge of this stage to `end`.
    #[inline]
    pub fn push_to(
        &mut self,
        end: EndpointId,
        stage: Stage,
        bytes: usize,
        flags: u16,
        input: Input,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        self.is_stirred = true;
        let own = input == Input::APPLICATION;
        self.hide_census();
        let colour = match &self.census {
            Some(census) if own => census.colour(),
            _ => 0,
        };
        let write = |space: &mut [u8]| {
            write(space);
            if colour > 0 {
                paint(space, colour);
            }
        };
        // An endpoint that is away takes nothing, nor does a damaged inbox; `failure` says that.
        let Some(edge) = self
            .numbers
            .get(end, stage)
            .or_else(|| self.open(end, stage))
        else {
            return false;
        };
        let (added, counters) = match edge {
            Edge::Lane(number) => {
                let number = number as usize;
                if own && !self.lanes.admits(number, bytes) {
                    return false;
                }
                let lane = &mut self.lanes[number];
                (
                    lane.push_with(bytes, flags, input, write),
                    &mut lane.counters,
                )
            }
            Edge::Link(number) => {
                let number = number as usize;
                if self.remotes[number].is_lost {
                    let counters = &mut self.remotes[number].counters;
                    counters.added(input.is_own(), bytes, self.now_ns);
                    counters.dropped();
                    return true;
                }
                self.remotes.wake(number);
                if own && !self.remotes.admits(number, bytes) {
                    return false;
                }
                let needs = self.remotes[number].needs_buffer(bytes);
                let pool = if needs {
                    self.remotes.pool_for(number).cloned()
                } else {
                    None
                };
                let added =
                    self.remotes[number].push_with(bytes, flags, input, pool.as_ref(), write);
                if own && added {
                    self.remotes.added_own(number);
                }
                (added, &mut self.remotes[number].counters)
            }
        };
        match added {
            true => counters.added(input.is_own(), bytes, self.now_ns),
            false => counters.refused(self.now_ns),
        }
        added
    }

    /// Adds the mark that ends a round to the edge of this stage to `end`, and shows or seals it,
    /// so that nothing follows it in its batch; where the queue stands behind it. `None` while that
    /// has no room.
    pub fn push_mark(&mut self, end: EndpointId, stage: Stage) -> Option<Mark> {
        let header = RunHeader {
            target: end.0,
            source: self.topology.endpoint().0,
            count: 0,
            flags: run_flags::MARK,
        };
        let write = |space: &mut [u8]| header.write(RUN_HEADER_BYTES, space);
        let (bytes, flags) = (RUN_HEADER_BYTES, run_flags::MARK);
        match self.push_to(end, stage, bytes, flags, Input::ROUNDS, write) {
            true => Some(self.mark_edge(self.numbers.get(end, stage)?, SendReason::Flush)),
            false => None,
        }
    }

    /// Opens the queue of an edge that has none; `None` while the endpoint at its other end is
    /// away, and where its inbox is damaged.
    #[cold]
    fn open(&mut self, end: EndpointId, stage: Stage) -> Option<EdgeNumber> {
        let here = &self.topology;
        let edge = if self.route.is_lane(end, stage) {
            let slot = self.route.lane_slot(here.place(), stage);
            let place = here.place_of(end);
            let member = self.members.at(place)?;
            let opened = self.lanes.open(end, place, member, stage, slot)?;
            Edge::Lane(opened as u32)
        } else {
            let member = self.members.end(end)?;
            let opened = self.remotes.open(end, stage, !here.is_here(end), member);
            Edge::Link(opened as u32)
        };
        self.numbers.add(end, stage, edge);
        if self.lost.contains(&end) {
            self.lanes.lose(end);
            self.remotes.lose(end);
            let links = self.remotes.iter().filter(|link| link.end == end);
            if links.count() == 1 {
                // What comes over it counts no more, as when there was none.
                self.cut.push(end);
            }
        }
        Some(edge)
    }

    /// The edges to an endpoint that has left are open no more.
    pub fn forget(&mut self, end: EndpointId) {
        self.numbers.remove(end);
        if let Some(census) = &mut self.census
            && self.topology.is_here(end)
        {
            census.forget(self.topology.place_of(end));
        }
    }

    /// A fence begins; this rank may be in a count of all nodes for it.
    pub fn begin_census(&mut self, is_in_count: bool) {
        if let Some(census) = &mut self.census {
            census.begin(is_in_count, self.lanes.segments());
        }
    }

    /// Looks how the fence stands that was begun last; `counts` are those of this rank, where
    /// nothing of the stream waits here.
    pub fn look_at_census(&mut self, counts: Option<Counts>) -> Found {
        let (segments, bells) = (self.lanes.segments(), self.members.bells());
        match &mut self.census {
            Some(census) => census.look(counts, segments, bells, self.now_ns),
            None => Found::Nothing,
        }
    }

    /// A handler is about to be called: this rank has something to handle.
    #[inline]
    pub fn hide_census(&mut self) {
        if let Some(census) = &mut self.census
            && census.must_hide()
        {
            census.hide();
        }
    }

    /// Whether the job has several nodes.
    pub fn has_other_nodes(&self) -> bool {
        self.topology.nodes() > 1
    }

    /// They are of the job's own stream: its fences are those of all others together.
    pub fn of_all_streams(mut self) -> Self {
        self.census = self.census.map(Census::of_all);
        self
    }

    /// Where this rank shows what it has to the others of its node.
    pub fn census_line(&mut self) -> Option<CensusLine> {
        let census = self.census.as_mut()?;
        census.own_line(self.lanes.segments())
    }

    /// See [`Census::hide_with`].
    pub fn hide_with_census(&mut self, job_line: &CensusLine) {
        if let Some(census) = &mut self.census {
            census.hide_with(job_line);
        }
    }

    /// Whether a fence that this rank waits for waits for time.
    pub fn is_census_paused(&self) -> bool {
        self.census.as_ref().is_some_and(Census::is_paused)
    }

    /// The census of this node, unless this is a relay.
    pub fn census_mut(&mut self) -> Option<&mut Census> {
        self.census.as_mut()
    }

    /// The fence is over, after a look that has found this.
    pub fn end_census(&mut self, found: Found) {
        if let Some(census) = &mut self.census {
            census.end(found, self.members.bells());
        }
    }

    /// Whether the fence that this rank waits for has come further, so that it is to look.
    #[inline]
    pub fn has_census_news(&self) -> bool {
        self.census.as_ref().is_some_and(Census::has_news)
    }

    /// This rank gives up the fence by a census that it has begun.
    pub fn give_up_census(&mut self) {
        if let Some(census) = &mut self.census {
            census.give_up();
        }
    }

    /// This rank's part in censuses, for when it leaves and joins again.
    pub fn part(&self) -> Part {
        self.census
            .as_ref()
            .map(Census::part)
            .cloned()
            .unwrap_or_default()
    }

    /// It joins again, with the part that it had.
    pub fn join_again(&mut self, part: Part) {
        if let Some(census) = &mut self.census {
            census.join_again(part, self.lanes.segments());
        }
    }

    /// So many collective calls of the stream have begun here, with those fences that have a ticket
    /// of a count of all nodes.
    pub fn has_called(&mut self, begun: u64) {
        let counts_fences = self.has_other_nodes();
        if let Some(census) = &mut self.census {
            let fences = match counts_fences {
                true => census.come().censuses,
                false => 0,
            };
            census.set_calls(begun.saturating_sub(fences), self.lanes.segments());
        }
    }

    /// The rank that has come to the fence that this one waits for, and has called something else
    /// of the stream before.
    pub fn odd_in_census(&self) -> Option<Rank> {
        let place = self.census.as_ref()?.odd()?;
        Some(self.topology.rank_of(self.topology.endpoint_at(place)))
    }

    /// The rank that has begun another collective call of the stream than the fence that this one
    /// waits for; looked for now and then.
    pub fn elsewhere_in_census(&mut self) -> Option<Rank> {
        let place = self.census.as_mut()?.elsewhere(self.now_ns)?;
        Some(self.topology.rank_of(self.topology.endpoint_at(place)))
    }

    /// The ranks that stand so with the fence that this one waits for.
    pub fn standing(&self, stand: Stand) -> impl Iterator<Item = EndpointId> {
        let stands = self.census.iter().flat_map(Census::stands);
        let such = (0..).zip(stands).filter(move |(_, of)| *of == stand);
        such.map(|(place, _)| self.topology.endpoint_at(place))
    }

    /// The ranks that have come to a fence to which this one has not.
    pub fn ahead_in_census(&self) -> impl Iterator<Item = EndpointId> {
        let census = self.census.iter();
        let places = census.flat_map(|census| census.ahead(self.lanes.segments()));
        places.map(|place| self.topology.endpoint_at(place))
    }

    /// Whether all that this rank has sent to itself was taken out of the lane for that.
    pub fn has_taken_own(&mut self) -> bool {
        match self.numbers.get(self.topology.endpoint(), Stage::FIRST) {
            Some(Edge::Lane(number)) => self.lanes[number as usize].is_done(),
            Some(Edge::Link(_)) => false,
            None => true,
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.topology.rank()
    }

    /// Whether there is such an endpoint besides this one.
    pub fn has_peer(&self, end: EndpointId) -> bool {
        self.topology.has_endpoint(end) && end != self.topology.endpoint()
    }

    /// Number of the queue of the link of this stage to `end`, opened if need be; `None` where
    /// there is no such link.
    pub fn open_to(&mut self, end: EndpointId, stage: u8) -> Option<usize> {
        let stage = self.route.stage_numbered(stage)?;
        let edge = match self.numbers.get(end, stage) {
            Some(edge) => edge,
            None if self.route.has_link(end, stage) => self.open(end, stage)?,
            None => return None,
        };
        match edge {
            Edge::Link(number) => Some(number as usize),
            Edge::Lane(_) => None,
        }
    }

    /// The queues of a stage that are open.
    pub fn of_stage(&self, stage: Stage) -> impl Iterator<Item = Edge<&LaneQueue, &RemoteQueue>> {
        let lanes = self.lanes.iter().filter(move |lane| lane.stage == stage);
        let links = self.remotes.iter().filter(move |link| link.stage == stage);
        lanes.map(Edge::Lane).chain(links.map(Edge::Link))
    }

    /// The queue with this number, to change it.
    fn queue_mut(&mut self, edge: EdgeNumber) -> Edge<&mut LaneQueue, &mut RemoteQueue> {
        match edge {
            Edge::Lane(number) => Edge::Lane(&mut self.lanes[number as usize]),
            Edge::Link(number) => Edge::Link(&mut self.remotes[number as usize]),
        }
    }

    /// Shows or seals what is in the queues of a stage, and says where they stand then. What is
    /// opened later has nothing that was added before.
    pub fn mark(&mut self, stage: Stage, why: SendReason) -> Vec<Mark> {
        let lanes = self.lanes.iter().enumerate();
        let lanes = lanes.filter(|(_, lane)| lane.stage == stage);
        let lanes = lanes.map(|(number, _)| Edge::Lane(number as u32));
        let links = self.remotes.iter().enumerate();
        let links = links.filter(|(_, link)| link.stage == stage);
        let links = links.map(|(number, _)| Edge::Link(number as u32));
        let edges: Vec<EdgeNumber> = lanes.chain(links).collect();
        let mark = |edge| self.mark_edge(edge, why);
        edges.into_iter().map(mark).collect()
    }

    fn mark_edge(&mut self, edge: EdgeNumber, why: SendReason) -> Mark {
        let mut queue = self.queue_mut(edge);
        queue.seal(why);
        Mark {
            edge,
            peer: queue.peer(),
            epoch: queue.epoch(),
            position: queue.position(),
        }
    }

    /// Whether what was there at the marks has left this rank: nobody needs its progress for it.
    pub fn has_left(&self, marks: &[Mark]) -> bool {
        marks.iter().all(|mark| match mark.edge {
            Edge::Lane(_) => true, // it was shown
            Edge::Link(number) => {
                let link = &self.remotes[number as usize];
                (link.end, link.epoch) != (mark.peer, mark.epoch) || link.has_posted(mark.position)
            }
        })
    }

    /// Whether the system, or the adapter, has all of what was there at the marks. Where something
    /// was sent behind one that is not asked: it may wait for the end of a round itself.
    pub fn is_with_system(&self, marks: &[Mark]) -> bool {
        let is_last = |mark: &Mark| match mark.edge {
            Edge::Lane(_) => true,
            Edge::Link(number) => {
                let link = &self.remotes[number as usize];
                let is_gone = (link.end, link.epoch) != (mark.peer, mark.epoch);
                is_gone || (link.sealed() <= mark.position && !link.has_open())
            }
        };
        !marks.iter().all(is_last) || self.remotes.has_left()
    }

    /// Whether the other ends have taken what was there at the marks. An endpoint that has left
    /// since had.
    ///
    /// # Errors
    /// A position in shared memory that cannot be true.
    pub fn has_passed(&mut self, marks: &[Mark]) -> Result<bool> {
        for mark in marks {
            let mut queue = self.queue_mut(mark.edge);
            if (queue.peer(), queue.epoch()) != (mark.peer, mark.epoch) {
                continue;
            }
            let taken = queue.taken();
            let taken = taken.map_err(|why| Error::bad_peer(queue.peer().0, why))?;
            if taken < mark.position {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Times that own sends met the limits of a stage.
    pub fn limit_hits(&self, stage: Stage) -> u64 {
        self.lanes.limit_hits(stage) + self.remotes.limit_hits(stage)
    }

    /// Rank whose inbox is damaged, and how.
    pub fn failure(&self) -> Option<(EndpointId, String)> {
        let of_census = || {
            let (place, why) = self.census.as_ref()?.damage.clone()?;
            let end = self.topology.endpoint_at(place);
            (!self.lost.contains(&end)).then_some((end, why))
        };
        self.lanes.failure().or_else(of_census)
    }

    /// All lanes that are open.
    pub fn lanes_mut(&mut self) -> impl Iterator<Item = &mut LaneQueue> {
        self.lanes.iter_mut()
    }
}
