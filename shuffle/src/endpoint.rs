//! One rank's part of a job that never waits: its link, its streams, their common progress.

mod agreed;
mod collectives;
mod need;
mod shape;

pub(crate) use agreed::Agreed;
pub(crate) use need::Need;
pub(crate) use shape::{Shape, check_memory};

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use trihop_transport::link::{Access, Completion, Link, Mover, Peer};
use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::tags::{self, TAG_BITS, Tags};
use trihop_transport::ring::{Bell, Inbox, InboxLayout};
use trihop_transport::secret::Secret;
use trihop_transport::topology::{Rank, Topology};

use crate::config::{Options, StreamOptions};
use crate::engine::inbound::{CONTROL_BYTES, Links};
use crate::engine::outbound::Outbound;
use crate::engine::queues::Queues;
use crate::engine::sink::Sink;
use crate::engine::{Core, Inbound, LANES_PER_RANK, LaneClass, lane_of};
use crate::error::{Error, Result};
use crate::queue::lanes::{Lanes, Neighbours};
use crate::queue::remote::{BatchSizes, Identity};
use crate::queue::remotes::Remotes;
use crate::route::{Chosen, LinkClass, Route};
use crate::terminate::collective::Collectives;
use need::{link_plan, send_slots};

/// Stream that carries the collectives.
pub(crate) const SYSTEM_STREAM: u16 = 0;

/// What the cookie in headers is derived from the job's secret by.
pub(crate) const WIRE_LABEL: &str = "wire";

/// Bound of a stream's spill where nobody has said what memory there is: in the simulation.
const SPILL_SHARE_BYTES: usize = 1 << 30;

/// A stream that is to be opened, before anything of it is shared.
pub(crate) struct Plan {
    name: String,
    options: StreamOptions,
    item_bytes: usize,
    shape: Shape,
}

impl Plan {
    /// What must be equal on all ranks.
    pub fn agreed(&self, job: &Options) -> Agreed {
        Agreed::new(&self.name, self.item_bytes, &self.options, job, self.shape)
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
    /// Bytes of every rank's inbox of this stream on this node.
    pub fn segment_bytes(&self) -> usize {
        self.layout.segment_bytes()
    }
}

/// Messages of collectives that have arrived: source, kind and bytes.
type Heard = Rc<RefCell<VecDeque<(Rank, u32, Vec<u8>)>>>;

thread_local! {
    /// Completions of the round of progress under way: one buffer for all endpoints of a thread, empty between rounds.
    static COMPLETIONS: Cell<Vec<Completion>> = const { Cell::new(Vec::new()) };
}

/// One rank's part of a job. One thread uses it at a time: that which made it, or whoever has the turn (`threaded`).
pub(crate) struct Endpoint<'h> {
    pub topology: Topology,
    /// What only the members of the job know.
    pub secret: Secret,
    /// What every header shows, so that jobs are not mixed up.
    pub cookie: u64,
    pub link: RefCell<Option<Box<dyn Link>>>,
    pub route: Chosen,
    /// The other ends of this rank's links, by link.
    peers: Rc<[Peer]>,
    bells: Arc<[Arc<Bell>]>,
    /// The open streams in the order of priorities, which is that of progress; that of the collectives is the first.
    pub streams: RefCell<Vec<Rc<Core<'h>>>>,
    /// Streams that are closed on all ranks, kept for others with the same options: the provider takes no posted receive
    /// back. Nothing of them moves but control messages that come late.
    closed: RefCell<Vec<Rc<Core<'h>>>>,
    /// What came while a stream was opened, for the next round of progress.
    completions: RefCell<Vec<Completion>>,
    busy: Cell<bool>,
    /// Receives that all streams have posted together.
    posted: Cell<usize>,
    pub collectives: RefCell<Collectives>,
    heard: Heard,
    next_stream: Cell<u16>,
    /// Bound of a stream's spill where its options say none.
    pub spill_share_bytes: usize,
    /// Makes the segments of inboxes: shared with the node's processes, unless all its ranks live in this one.
    pub create_segment: fn(usize) -> Result<Arc<Segment>, trihop_transport::Error>,
}

impl<'h> Endpoint<'h> {
    /// An endpoint without streams. `peers` are the other ends of the route's links, `bells` those of the node's ranks, by
    /// local rank.
    pub fn new(
        topology: Topology,
        route: Chosen,
        secret: Secret,
        link: Option<Box<dyn Link>>,
        peers: Rc<[Peer]>,
        bells: Arc<[Arc<Bell>]>,
    ) -> Self {
        debug_assert_eq!(peers.len(), route.links() as usize);
        let collectives = RefCell::new(Collectives::new(&topology));
        Self {
            topology,
            cookie: secret.derive(WIRE_LABEL),
            secret,
            link: RefCell::new(link),
            route,
            peers,
            bells,
            streams: RefCell::default(),
            closed: RefCell::default(),
            completions: RefCell::default(),
            busy: Cell::new(false),
            posted: Cell::new(0),
            collectives,
            heard: Rc::default(),
            next_stream: Cell::new(0),
            spill_share_bytes: SPILL_SHARE_BYTES,
            create_segment: Segment::create,
        }
    }

    /// Begins to open a stream: says what it needs, and shares nothing yet.
    pub fn plan(&self, name: &str, options: &StreamOptions, item_bytes: usize) -> Result<Plan> {
        options.check()?;
        let is_system = self.streams.borrow().is_empty();
        if !is_system {
            check_memory(&self.route, options)?;
        }
        let shape = Shape::new(&self.topology, &self.route, options);
        shape.check_item(item_bytes, &self.topology, &self.route, options)?;
        let mut options = options.clone();
        if options.spill_bytes == 0 {
            options.spill_bytes = self.spill_share_bytes.max(options.shares().spill_mark_bytes);
        }
        Ok(Plan {
            name: name.to_owned(),
            options,
            item_bytes,
            shape,
        })
    }

    /// The first closed stream that this one could be opened in the place of: with the same options, and no handle left.
    pub fn reusable(&self, plan: &Plan) -> Option<u16> {
        let closed = self.closed.borrow();
        let fits = closed.iter().filter(|core| {
            Rc::strong_count(core) == 1 && core.options == plan.options && core.item_bytes == plan.item_bytes
        });
        fits.map(|core| core.id).min()
    }

    /// Opens a stream in the place of the closed stream `id`: its lanes, links, pools and posted receives go on, and so do
    /// their counters on both sides. Nobody sends before all ranks have come so far.
    pub fn reopen(&self, id: u16, plan: Plan, sink: Sink<'h>) -> Result<Rc<Core<'h>>> {
        let mut closed = self.closed.borrow_mut();
        let at = closed.iter().position(|core| core.id == id);
        let mut core = at.map(|at| closed.swap_remove(at)).ok_or_else(|| gone(id))?;
        Rc::get_mut(&mut core)
            .ok_or_else(|| gone(id))?
            .begin_again(plan.name, sink);
        self.insert(Rc::clone(&core));
        Ok(core)
    }

    /// A stream is closed on all ranks, with nothing of it under way.
    pub fn retire(&self, core: &Rc<Core<'h>>) {
        let mut streams = self.streams.borrow_mut();
        if let Some(at) = streams.iter().position(|other| Rc::ptr_eq(other, core)) {
            self.closed.borrow_mut().push(streams.remove(at));
        }
    }

    /// Names and options of the streams that hold memory: those that are open, and those that are kept for others.
    pub fn held(&self) -> Vec<(String, StreamOptions)> {
        let (open, closed) = (self.streams.borrow(), self.closed.borrow());
        let all = open.iter().chain(closed.iter());
        all.map(|core| (core.name.clone(), core.options.clone()))
            .collect()
    }

    /// First half of opening a new stream: makes this rank's inbox.
    pub fn prepare(&self, plan: Plan) -> Result<Prepared> {
        let lane_bytes = plan.shape.lane_bytes;
        let layout = InboxLayout::new(LANES_PER_RANK * self.topology.local_size(), lane_bytes)?;
        let segment = (self.create_segment)(layout.segment_bytes())?;
        let inbox = Inbox::new(Arc::clone(&segment), layout)?;
        Ok(Prepared {
            plan,
            layout,
            segment,
            inbox,
        })
    }

    /// The number of a new stream. All ranks take it at the same time, whatever comes of the stream.
    pub fn take_number(&self) -> Result<u16> {
        let id = self.next_stream.get();
        let why = "65,535 streams of different options were open; close those that are not used, and use few options";
        let next = id.checked_add(1).ok_or_else(|| Error::config("stream", why))?;
        self.next_stream.set(next);
        Ok(id)
    }

    /// Second half: attaches the inboxes of the node's ranks (by local rank, the own one included) and the links.
    pub fn connect(
        &self,
        id: u16,
        prepared: Prepared,
        segments: &[Arc<Segment>],
        sink: Sink<'h>,
    ) -> Result<Rc<Core<'h>>> {
        let Prepared {
            plan,
            layout,
            mut inbox,
            ..
        } = prepared;
        let Plan {
            name,
            options,
            item_bytes,
            shape,
        } = plan;
        let me = self.topology.local_rank();
        inbox.set_bells(Arc::clone(&self.bells), LANES_PER_RANK);
        let neighbours = Rc::new(Neighbours {
            segments: segments.to_vec(),
            bells: Arc::clone(&self.bells),
            layout,
        });
        let lanes =
            |class, publish, maxrpc| Lanes::new(Rc::clone(&neighbours), lane_of(me, class), publish, maxrpc);
        let origin = lanes(
            LaneClass::Origin,
            options.origin_buftarget_bytes,
            options.origin_maxrpc,
        )
        .limit(options.shim.origin_sender_limit);
        let relay = lanes(
            LaneClass::Relay,
            options.relay_buftarget_bytes,
            options.relay_maxrpc,
        );
        let mut link = self.link.borrow_mut();
        let (mover, tag_bits) = link.as_ref().map_or((Mover::Read, TAG_BITS), |l| {
            let limits = l.limits();
            (limits.mover, limits.tag_bits)
        });
        let identity = Identity {
            stream: id,
            rank: self.topology.rank().0,
            cookie: self.cookie,
            tags: Tags::new(&self.secret, tag_bits),
            mover,
        };
        let endpoint_bytes = link.as_ref().map_or(0, |l| l.operations_bytes());
        let count = self.peers.len();
        let (mut sizes, mut batches, mut notices, mut links) = (BatchSizes::default(), None, None, None);
        if let Some(link) = link.as_deref_mut().filter(|_| count > 0) {
            sizes = shape.batch_sizes(&options, link.limits());
            let [batch_slots, notice_slots] = send_slots(&options, &sizes, count);
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
            let plan = link_plan(&self.route, &options, &shape, sizes, self.posted.get());
            let opened = Links::open(link, identity, &plan, &mut self.completions.borrow_mut())?;
            self.posted.set(self.posted.get() + opened.posted);
            links = Some(opened);
        }
        drop(link);
        let queues = Queues {
            route: self.route.clone(),
            origin,
            relay,
            remotes: Remotes::new(Rc::clone(&self.peers), sizes, batches)
                .limit(LinkClass::Remote, options.shim.remote_sender_limit)
                .limit(LinkClass::Origin, options.shim.origin_sender_limit),
            size: self.topology.size(),
            copies: 0,
            now_ns: 0,
        };
        let rank = self.topology.rank().0;
        let gauge = match &sink {
            Sink::Thread(handover) => Arc::clone(&handover.gauge),
            _ => Arc::default(),
        };
        let out = Outbound::new(
            &name,
            Arc::clone(&gauge),
            queues,
            rank,
            item_bytes,
            shape.frame_bytes,
            &options,
        );
        let inbound = Inbound::new(inbox, links, &options);
        let handover = match &sink {
            Sink::Thread(handover) => Some(Arc::clone(handover)),
            _ => None,
        };
        let core = Rc::new(Core {
            id,
            name,
            topology: self.topology.clone(),
            options,
            item_bytes,
            identity,
            frame_bytes: shape.frame_bytes,
            out: RefCell::new(out),
            inbound: RefCell::new(inbound),
            sink: RefCell::new(sink),
            stats: RefCell::default(),
            waits_for: RefCell::default(),
            gauge,
            handover,
            taken: Cell::new(0),
            urgent: Cell::new(u32::from(id == SYSTEM_STREAM)),
            notices,
            endpoint_bytes,
        });
        self.insert(Rc::clone(&core));
        Ok(core)
    }

    /// Puts a stream among the open ones, behind its equals; the collectives come first.
    fn insert(&self, core: Rc<Core<'h>>) {
        let mut streams = self.streams.borrow_mut();
        let later = |other: &Rc<Core<'h>>| {
            other.id != SYSTEM_STREAM && other.options.priority < core.options.priority
        };
        let at = streams.iter().position(later).unwrap_or(streams.len());
        streams.insert(at, core);
    }

    /// Marks the endpoint busy while deliveries are handed out, so that nothing polls inside.
    pub fn enter(&self, call: &'static str) -> Result<Busy<'_>> {
        if self.busy.replace(true) {
            return Err(Error::Nested(call));
        }
        Ok(Busy(&self.busy))
    }

    /// Whether a handler is running, or anything else that must not poll.
    pub fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// One bounded round of progress of all streams; true when anything moved.
    ///
    /// # Errors
    /// The transport's, and [`Error::Nested`] inside a handler.
    pub fn progress(&self, now_ns: u64) -> Result<bool> {
        let _busy = self.enter("poll")?;
        if self
            .streams
            .borrow()
            .iter()
            .any(|core| core.out.try_borrow_mut().is_err())
        {
            return Err(Error::Nested("poll with an open reservation"));
        }
        let mut link = self.link.borrow_mut();
        let mut worked = false;
        if let Some(link) = link.as_deref_mut() {
            // At the exit of the process the calling thread may have lost its buffer already.
            let mut completions = COMPLETIONS.try_with(Cell::take).unwrap_or_default();
            completions.append(&mut self.completions.take());
            worked |= link.poll(&mut completions)? > 0;
            // One that fails takes no other with it: the rest are batches that came.
            let mut outcome = Ok(());
            for completion in completions.drain(..) {
                outcome = outcome.and(self.dispatch(completion));
            }
            let _ = COMPLETIONS.try_with(|buffer| buffer.set(completions));
            outcome?;
        }
        // Nothing opens or closes a stream meanwhile: whoever does is refused inside a handler.
        for core in self.streams.borrow().iter() {
            // `as_deref_mut` would fix the box's lifetime to this borrow's, hence the match.
            worked |= match &mut *link {
                Some(link) => core.progress(Some(&mut **link), now_ns)?,
                None => core.progress(None, now_ns)?,
            };
        }
        worked |= self.pump_collectives()?;
        Ok(worked)
    }

    fn dispatch(&self, completion: Completion) -> Result<()> {
        let token = match &completion {
            Completion::Sent { token, .. }
            | Completion::Received { token, .. }
            | Completion::Read { token, .. }
            | Completion::Broken { token, .. } => Some(*token),
            Completion::Failed { token, .. } => *token,
        };
        let streams = self.streams.borrow();
        match token.and_then(tags::split) {
            Some((stream, class, number)) => {
                let closed = self.closed.borrow();
                let mut all = streams.iter().chain(closed.iter());
                match all.find(|core| core.id == stream) {
                    Some(core) => core.complete(class, number, completion),
                    None => Ok(()),
                }
            }
            None => match (completion, streams.first()) {
                // A failure of which the provider forgot the operation: any stream knows the peer.
                (failed @ Completion::Failed { .. }, Some(core)) => {
                    core.complete(tags::TagClass::Sent, 0, failed)
                }
                _ => Ok(()),
            },
        }
    }
}

/// All ranks have agreed on a closed stream that is not there.
fn gone(id: u16) -> Error {
    let why = "all ranks have agreed to use it again, and it is not there".to_owned();
    Error::Mismatch {
        name: format!("(number {id})"),
        why,
    }
}

/// Ends the busy state when dropped.
pub(crate) struct Busy<'a>(&'a Cell<bool>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
