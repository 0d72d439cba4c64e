//! One rank's part of a job that never waits: its link, its streams, their common progress.

mod agreed;
mod collectives;
mod membership;
mod need;
mod priorities;
mod relay;
mod round;
mod sizes;

pub(crate) use agreed::Agreed;
pub(crate) use collectives::{Channel, FENCES};
pub(crate) use need::Need;
use sizes::check_item;
pub(crate) use sizes::{StreamSizes, check_memory, is_on_demand};

use std::sync::Arc;

use trihop_transport::link::{Access, Completion, Link, Mover};
use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::tags::{TAG_BITS, Tags};
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::census::Counts;
use trihop_transport::ring::{Inbox, InboxLayout};
use trihop_transport::secret::Secret;
use trihop_transport::topology::Topology;

use crate::config::{Options, PoolLimits, StreamOptions};
use crate::engine::at_once::OwnSend;
use crate::engine::inbound::{CONTROL_BYTES, LinkPlan, Links};
use crate::engine::outbound::Outbound;
use crate::engine::queues::Queues;
use crate::engine::rounds::Rounds;
use crate::engine::sink::{Handlers, Sink};
use crate::engine::{Inbound, StreamState};
pub(crate) use crate::engine::{SYSTEM_STREAM, StreamId};
use crate::error::{Error, Result};
use crate::member::{Loss, Members};
use crate::queue::lanes::Lanes;
use crate::queue::limits::{LinkTerms, StageOptions};
use crate::queue::remote::{BatchSizes, Identity};
use crate::queue::remotes::Remotes;
use crate::queue::shared::LEAST_BYTES;
use crate::route::{EndpointId, JobRoute, RouteName, ends_of};
use crate::stats::Stats;
use crate::terminate::collective::Collectives;
use crate::terminate::round::Round;
use crate::trace::Trace;
use need::{link_plan, send_slots};

/// What the cookie in headers is derived from the job's secret by.
pub(crate) const WIRE_LABEL: &str = "wire";

/// Bound of a stream's spill where nobody has said what memory there is: in the simulation.
const SPILL_SHARE_BYTES: usize = 1 << 30;

/// A stream that is to be opened, before anything of it is shared.
pub(crate) struct Plan {
    pub name: String,
    pub options: StreamOptions,
    pub route: JobRoute,
    /// What its pools may take.
    pub pools: PoolLimits,
    item_bytes: usize,
    /// What this endpoint has for long records behind its inbox.
    pub block_bytes: usize,
    stream_sizes: StreamSizes,
}

impl Plan {
    /// What must be equal on all ranks.
    pub fn agreed(&self, job: &Options) -> Agreed {
        Agreed::new(
            &self.name,
            self.item_bytes,
            &self.options,
            job,
            self.stream_sizes.clone(),
        )
    }
}

/// A stream whose inbox exists and whose peers' inboxes are still to be attached.
pub(crate) struct Prepared {
    plan: Plan,
    layout: InboxLayout,
    pub segment: Arc<Segment>,
    inbox: Inbox,
}

impl Prepared {
    /// Bytes of an inbox of this stream on this node, and of those with the most behind it.
    pub fn segment_bytes(&self) -> [usize; 2] {
        let bytes = self.layout.segment_bytes();
        [bytes, bytes + self.plan.options.shares().block_bytes]
    }
}

/// One rank's part of a job that never waits: its link, its streams, their common progress. The
/// thread that has it uses it directly: there are no cells in it, and no lock but that of blocks,
/// which channels use too.
pub(crate) struct Engine {
    pub topology: Topology,
    /// What only the members of the job know.
    pub secret: Secret,
    /// What every header shows, so that jobs are not mixed up.
    pub cookie: u64,
    pub link: Option<Box<dyn Link>>,
    /// Way of the collectives, whatever the route of the other streams is.
    tree: JobRoute,
    /// The epoch in which this endpoint has joined.
    epoch: Epoch,
    members: Arc<Members>,
    /// All streams that were ever opened, but for what they send: that stands in `outs` at the same
    /// places.
    streams: Vec<StreamState>,
    outs: Vec<Outbound>,
    /// Places of the open streams in the order of priorities, which is that of progress; that of
    /// the collectives is the first.
    open: Vec<usize>,
    /// Places of the streams that are closed on all ranks, kept for others with the same options:
    /// the provider takes no posted receive back. Nothing of them moves but control messages that
    /// come late.
    closed: Vec<usize>,
    /// What closed streams have sent and delivered, for fences of all streams: a thread may close
    /// one beside them, which ranks do at different times.
    retired: Counts,
    /// Streams that could not be opened on all ranks: libfabric takes no posted receives back.
    given_up: Vec<usize>,
    /// Place of the stream with each number, where one was opened.
    places: Vec<Option<usize>>,
    /// What came while a stream was opened, for the next round of progress.
    completions: Vec<Completion>,
    /// Something came as a sender looked for room; and what has failed then, for that round.
    has_heard: bool,
    heard: Option<Error>,
    /// Receives that all streams have posted together.
    posted: usize,
    /// Of a relay: the round that it takes part in, by place of the stream.
    joined: Vec<Option<Round>>,
    pub collectives: Collectives,
    /// Who is lost. Whatever collectives say that they miss is no error then.
    lost: Arc<[Loss]>,
    /// Of these, the endpoints that this one has exchanged anything with.
    lost_ends: Vec<EndpointId>,
    /// Bound of a stream's spill where its options say none.
    pub spill_share_bytes: usize,
    /// Makes the segments of inboxes: shared with the node's processes, unless all its ranks live
    /// in this one.
    pub create_segment: fn(usize) -> Result<Arc<Segment>, trihop_transport::Error>,
    /// Where events of the streams that are opened from now on go.
    pub trace: Trace,
}

impl Engine {
    /// An engine without streams, of an endpoint that joins in this epoch. All members are away
    /// until [`Engine::attach_here`] and [`Engine::attach_end`] say otherwise, itself included.
    pub fn new(
        topology: Topology,
        secret: Secret,
        link: Option<Box<dyn Link>>,
        epoch: Epoch,
    ) -> Self {
        Self {
            collectives: Collectives::new(&topology),
            members: Arc::new(Members::new(topology.places())),
            tree: JobRoute::tree(&topology),
            topology,
            cookie: secret.derive(WIRE_LABEL),
            secret,
            link,
            epoch,
            streams: Vec::new(),
            outs: Vec::new(),
            open: Vec::new(),
            closed: Vec::new(),
            retired: Counts::default(),
            given_up: Vec::new(),
            places: Vec::new(),
            completions: Vec::new(),
            has_heard: false,
            heard: None,
            posted: 0,
            joined: Vec::new(),
            lost: Arc::new([]),
            lost_ends: Vec::new(),
            spill_share_bytes: SPILL_SHARE_BYTES,
            create_segment: Segment::create,
            trace: Trace::default(),
        }
    }

    /// The open streams in the order of progress: that of the collectives first.
    pub fn open_streams(&self) -> impl Iterator<Item = (&StreamState, &Outbound)> {
        self.open
            .iter()
            .map(|&at| (&self.streams[at], &self.outs[at]))
    }

    /// The open streams without that of the collectives, by their names for handles, in the order
    /// of their numbers: the same on all ranks, as priorities need not be.
    pub fn open_ids(&self) -> Vec<StreamId> {
        let mut open: Vec<usize> = self.open.iter().copied().skip(1).collect();
        open.sort_unstable_by_key(|&at| self.streams[at].id);
        open.into_iter().map(|at| self.id_of(at)).collect()
    }

    /// Name of the stream in a place.
    pub fn name_of(&self, stream: usize) -> String {
        self.streams
            .get(stream)
            .map_or_else(String::new, |state| state.name.clone())
    }

    /// Whether all streams were closed, that of the collectives too.
    pub fn has_ended(&self) -> bool {
        self.open.is_empty() && !self.streams.is_empty()
    }

    fn id_of(&self, stream: usize) -> StreamId {
        StreamId {
            job: self.cookie,
            stream,
            opened: self.streams[stream].opened,
        }
    }

    /// Whether a handle of this engine's names a stream that was not closed and opened anew since.
    #[inline]
    fn is_current(&self, id: StreamId) -> bool {
        self.outs
            .get(id.stream)
            .is_some_and(|out| out.opened == id.opened)
    }

    /// A stream of this engine's.
    ///
    /// # Errors
    /// It was shut down, and another one has its place.
    pub fn stream(&self, id: StreamId) -> Result<(&StreamState, &Outbound)> {
        match self.is_current(id) {
            true => Ok((&self.streams[id.stream], &self.outs[id.stream])),
            false => Err(replaced()),
        }
    }

    /// Records of all streams that wait for the application's calls, or that such calls have.
    pub fn untaken(&self) -> usize {
        let untaken = |state: &StreamState| match &state.sink {
            Sink::Queue(queue) => queue.records(),
            _ => 0,
        };
        self.streams.iter().map(untaken).sum()
    }

    /// As [`Engine::stream`], to use it, with the collectives.
    pub fn stream_mut(
        &mut self,
        id: StreamId,
    ) -> Result<(&mut StreamState, &mut Outbound, &mut Collectives)> {
        match self.is_current(id) {
            true => Ok((
                &mut self.streams[id.stream],
                &mut self.outs[id.stream],
                &mut self.collectives,
            )),
            false => Err(replaced()),
        }
    }

    /// What a stream of this engine's sends.
    ///
    /// # Errors
    /// As [`Engine::stream`].
    #[inline(always)] // part of every send
    pub fn out(&mut self, id: StreamId) -> Result<&mut Outbound> {
        match self.outs.get_mut(id.stream) {
            Some(out) if out.opened == id.opened => Ok(out),
            _ => Err(replaced()),
        }
    }

    /// See [`StreamState::deliver_own`].
    ///
    /// # Errors
    /// As that, and [`Engine::stream`].
    pub fn deliver_own(
        &mut self,
        id: StreamId,
        handlers: &mut impl Handlers,
        send: OwnSend<'_>,
    ) -> Result<bool> {
        self.stream(id)?;
        self.streams[id.stream].deliver_own(&mut self.outs, id.stream, handlers, send)
    }

    /// Begins to open a stream: says what it needs, and shares nothing yet.
    pub fn plan(&self, name: &str, options: &StreamOptions, item_bytes: usize) -> Result<Plan> {
        options.check()?;
        // That of the collectives is the first.
        let route = match self.streams.is_empty() {
            true => self.tree.clone(),
            false => {
                let route = JobRoute::new(options.route, &self.topology)?;
                check_memory(&route, options)?;
                route
            }
        };
        if route.links() > 0 && self.link.is_none() {
            let why = format!(
                "`{}` needs the fabric, which a job on one node does not open for `{}`: set TRIHOP_ROUTE, or \
                 the route among the options of the job",
                route.name(),
                RouteName::default(),
            );
            return Err(Error::config("route", why));
        }
        let stream_sizes = StreamSizes::new(&self.topology, &route, options);
        check_item(item_bytes, options)?;
        let block_bytes = need::block_bytes(&self.topology, options, item_bytes);
        let mut options = options.clone();
        if options.spill_bytes == 0 {
            options.spill_bytes = self
                .spill_share_bytes
                .max(options.shares().spill_mark_bytes);
        }
        Ok(Plan {
            name: name.to_owned(),
            options,
            pools: PoolLimits::default(),
            item_bytes,
            block_bytes,
            stream_sizes,
            route,
        })
    }

    /// The other ends of the links of all open streams, ascending.
    pub fn ends(&self) -> Vec<EndpointId> {
        let routes = self.open_streams().map(|(_, out)| &out.queues.route);
        ends_of(&routes.collect::<Vec<_>>())
    }

    /// The other ends of the links of a stream that is to be opened which are not attached yet:
    /// those come first, by [`Engine::attach_end`].
    pub fn ends_missing(&self, plan: &Plan) -> Vec<EndpointId> {
        let mut ends = ends_of(&[&plan.route]);
        ends.retain(|&end| !self.members.has_end(end));
        ends
    }

    /// The first closed stream that this one could be opened in the place of: with the same
    /// options, and of records where it is, or of items that are as much as its.
    pub fn reusable(&self, plan: &Plan) -> Option<u16> {
        let are_short = |bytes| (1..LEAST_BYTES).contains(&bytes);
        let closed = self.closed.iter().map(|&at| &self.streams[at]);
        let fits = closed.filter(|state| {
            let (before, now) = (state.item_bytes, plan.item_bytes);
            let is_like = before == now || are_short(before) && are_short(now);
            state.options == plan.options && is_like
        });
        fits.map(|state| state.id).min()
    }

    /// Opens a stream in the place of the closed stream `id`: its lanes, links, pools and posted
    /// receives go on, and so do their counters on both sides. Nobody sends before all ranks have
    /// come so far.
    pub fn reopen(&mut self, id: u16, plan: Plan, sink: Sink) -> Result<StreamId> {
        let at = self.closed.iter().position(|&at| self.streams[at].id == id);
        let stream = at
            .map(|at| self.closed.swap_remove(at))
            .ok_or_else(|| gone(id))?;
        let out = &mut self.outs[stream];
        self.streams[stream].begin_again(out, plan.name, plan.item_bytes, sink);
        self.lose_again(stream);
        self.insert(stream);
        Ok(self.id_of(stream))
    }

    /// A stream is closed on all ranks, with nothing of it under way.
    pub fn retire(&mut self, id: StreamId) {
        if let Some(at) = self.open.iter().position(|&at| at == id.stream) {
            let counts = self.streams[id.stream].counts(&self.outs[id.stream]);
            self.retired.add(counts);
            self.closed.push(self.open.remove(at));
        }
    }

    /// A stream could not be opened on all ranks: it takes and delivers nothing, and its place is
    /// nobody's again.
    pub fn give_up(&mut self, id: StreamId) {
        self.open.retain(|&at| at != id.stream);
        self.given_up.push(id.stream);
        self.streams[id.stream].sink = Sink::Closed;
        self.outs[id.stream].close();
    }

    /// Takes and delivers nothing more, on any stream.
    pub fn close_streams(&mut self) {
        for at in self.open.drain(..) {
            self.streams[at].sink = Sink::Closed;
            self.outs[at].close();
        }
    }

    /// What the streams need that hold memory, by name: those that are open, those that are kept
    /// for others, and those that were given up.
    pub fn needs(&self) -> Result<Vec<(&str, Need)>> {
        let limits = self.link.as_ref().map(|link| link.limits());
        let all = self.open.iter().chain(&self.closed).chain(&self.given_up);
        let needs = all.map(|&at| {
            let (state, out) = (&self.streams[at], &self.outs[at]);
            let links = state.inbound.links.as_ref();
            let on_demand = links.is_some_and(|links| links.is_on_demand());
            let route = &out.queues.route;
            let (options, pools) = (&state.options, &state.pools);
            let need = Need::of(&self.topology, route, options, pools, on_demand, limits)?;
            Ok((&*state.name, need.sharing(state.block_bytes)))
        });
        needs.collect()
    }

    /// First half of opening a new stream: makes this rank's inbox.
    pub fn prepare(&self, plan: Plan) -> Result<Prepared> {
        let lane_bytes = plan.stream_sizes.lane_bytes;
        let lanes = plan.route.lanes_per_rank() * self.topology.places();
        let layout = InboxLayout::new(lanes, lane_bytes)?;
        let segment = (self.create_segment)(layout.segment_bytes() + plan.block_bytes)?;
        let inbox = Inbox::new(Arc::clone(&segment), layout)?;
        Ok(Prepared {
            plan,
            layout,
            segment,
            inbox,
        })
    }

    /// Receives that this endpoint takes more; any number where it has no link.
    pub fn receives(&self) -> usize {
        let left = |most: usize| most.saturating_sub(self.posted);
        let link = self.link.as_ref();
        link.map_or(usize::MAX, |link| left(link.limits().posted_receives))
    }

    /// The same with whatever else links do differently.
    pub fn link_terms(&self) -> LinkTerms {
        let link = self.link.as_ref();
        link.map_or(LinkTerms::ANY, |link| {
            LinkTerms::of(self.receives() as u64, link.limits().mover)
        })
    }

    /// The number of a new stream. All ranks take it at the same time, whatever comes of the
    /// stream.
    pub fn take_number(&mut self) -> Result<u16> {
        let number = u16::try_from(self.places.len())
            .ok()
            .filter(|&number| number < u16::MAX - 1);
        let why = "65,534 streams of different options were open; close those that are not used, and use few options";
        let number = number.ok_or_else(|| Error::config("stream", why))?;
        self.places.push(None);
        Ok(number)
    }

    /// Second half: attaches this rank's own inbox and the links. Those of the node's other members
    /// follow, by [`Engine::attach_inbox`]. `terms` are those of all endpoints of the job.
    pub fn connect(
        &mut self,
        id: u16,
        prepared: Prepared,
        terms: LinkTerms,
        sink: Sink,
    ) -> Result<StreamId> {
        let Prepared {
            plan,
            layout,
            segment,
            mut inbox,
        } = prepared;
        let Plan {
            name,
            options,
            pools,
            item_bytes,
            block_bytes,
            stream_sizes,
            route,
        } = plan;
        let bells = Arc::clone(self.members.bells());
        inbox.set_bells(bells, route.lanes_per_rank());
        let (mover, tag_bits) = self.link.as_ref().map_or((Mover::Read, TAG_BITS), |l| {
            let limits = l.limits();
            (limits.mover, limits.tag_bits)
        });
        let identity = Identity {
            stream: id,
            own: self.topology.endpoint(),
            epoch: self.epoch,
            cookie: self.cookie,
            tags: Tags::new(&self.secret, tag_bits),
            mover,
        };
        let endpoint_bytes = self.link.as_ref().map_or(0, |l| l.operations_bytes());
        let count = route.links() as usize;
        let (mut sizes, mut batches, mut notices, mut links) =
            (BatchSizes::default(), None, None, None);
        if let Some(link) = self.link.as_deref_mut().filter(|_| count > 0) {
            let on_demand = is_on_demand(&route, &options, terms.receives as usize);
            sizes = stream_sizes.batch_sizes(&options, link.limits(), on_demand);
            let [batch_slots, notice_slots] = send_slots(&options, &pools, &sizes, count);
            // Only what is announced for a read needs to be readable, and short batches are never
            // announced.
            let read = mover == Mover::Read && sizes.buffer_bytes > sizes.small_bytes;
            let access = if read {
                Access::Readable
            } else {
                Access::Departures
            };
            batches = Some(link.create_pool(sizes.buffer_bytes, batch_slots, access)?);
            notices = Some(link.create_pool(CONTROL_BYTES, notice_slots, Access::Departures)?);
            let limits = link.limits();
            let plan = LinkPlan {
                posted: self.posted,
                ..link_plan(&route, &options, &stream_sizes, sizes, &pools, limits)
            };
            let opened = Links::open(link, identity, &plan, &mut self.completions)?;
            self.posted += opened.posted;
            links = Some(opened);
        }
        let stages = StageOptions::of_all_lanes(&route, &options);
        let mut lanes = Lanes::new(self.topology.places(), layout, &stages);
        lanes.attach(self.topology.place(), Arc::clone(&segment));
        lanes.share(segment, block_bytes)?;
        let stages = StageOptions::of_all_links(&route, &options);
        let mut remotes = Remotes::new(count, sizes, &stream_sizes.links, &stages, batches);
        remotes.trace = self.trace.of_stream(id);
        let inbound = Inbound::new(inbox, links, &route, &options);
        let (members, topology) = (Arc::clone(&self.members), self.topology.clone());
        // What is longer than a frame: where nobody offers it, it is in fragments.
        let least = options.shares().least_offer_bytes;
        let offers = least.max(stream_sizes.frame_bytes + 1)..=terms.longest_offer as usize;
        let mut queues = Queues::new(route, members, topology, lanes, remotes, offers);
        if id == SYSTEM_STREAM {
            queues = queues.of_all_streams();
        }
        let rounds = Rounds::new(&queues.route);
        let out = Outbound::new(
            &name,
            sink.gauge(),
            queues,
            &identity,
            item_bytes,
            stream_sizes.frame_bytes,
            &options,
        );
        let state = StreamState {
            id,
            opened: 0,
            name,
            topology: self.topology.clone(),
            inbound,
            priority: options.priority,
            options,
            pools,
            item_bytes,
            block_bytes,
            identity,
            frame_bytes: stream_sizes.frame_bytes,
            handover: sink.handover(),
            sink,
            stats: Stats::default(),
            waits_for: None,
            taken: 0,
            heard: Default::default(),
            urgent: u32::from(id == SYSTEM_STREAM),
            rounds,
            notices,
            endpoint_bytes,
            own_run: Vec::new(),
        };
        let stream = self.streams.len();
        self.streams.push(state);
        self.outs.push(out);
        if let Some(place) = self.places.get_mut(usize::from(id)) {
            *place = Some(stream);
        }
        self.lose_again(stream);
        self.insert(stream);
        Ok(self.id_of(stream))
    }

    /// Whether a sleeping rank has to wake up at once: a lane has news, or room came, or the link
    /// has something.
    pub fn must_stay_awake(&mut self) -> bool {
        let Self {
            open,
            streams,
            outs,
            ..
        } = self;
        open.iter()
            .any(|&at| streams[at].must_stay_awake(&mut outs[at]))
            || self
                .link
                .as_deref_mut()
                .is_some_and(|link| !link.try_wait())
    }

    /// Whether the next round may send on what the last one has seen come.
    pub fn is_fresh(&self) -> bool {
        self.open_streams().any(|(_, out)| out.is_fresh())
    }

    /// Before sleeping: asks the consumers of full lanes to ring. Whether something waits that no
    /// ring announces, but time.
    pub fn prepare_to_sleep(&mut self) -> bool {
        for &at in &self.open {
            self.streams[at].want_space(&mut self.outs[at]);
        }
        self.open_streams()
            .any(|(state, out)| state.waits_for_time(out))
    }
}

/// A handle is older than the stream in its place.
#[cold]
fn replaced() -> Error {
    Error::Closed("(shut down, and its place is another's)".into())
}

/// All ranks have agreed on a closed stream that is not there.
fn gone(id: u16) -> Error {
    let why = "all ranks have agreed to use it again, and it is not there".to_owned();
    Error::Mismatch {
        name: format!("(number {id})"),
        why,
    }
}
