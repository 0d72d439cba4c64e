//! One rank's part of a job that never waits: its link, its streams, their common progress.

mod collectives;
mod shape;

pub(crate) use shape::{Shape, check_memory};

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use trihop_transport::link::{Completion, Link, Peer};
use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::tags;
use trihop_transport::ring::{Bell, Inbox, InboxLayout};
use trihop_transport::secret::Secret;
use trihop_transport::topology::Topology;

use crate::config::StreamOptions;
use crate::engine::inbound::{CONTROL_BYTES, LinkPlan, Links};
use crate::engine::outbound::Outbound;
use crate::engine::queues::Queues;
use crate::engine::sink::Sink;
use crate::engine::{Core, Inbound, LANES_PER_RANK, LaneClass, lane_of};
use crate::error::{Error, Result};
use crate::queue::lanes::{Lanes, Neighbours};
use crate::queue::remote::{BatchSizes, Identity};
use crate::queue::remotes::{BUFFERS_PER_LINK, Remotes};
use crate::route::{Chosen, LinkClass, Route};
use crate::terminate::collective::Collectives;

/// Small sends that may be on their way per link, up to 32 links: announcements and control messages.
const NOTICES_PER_LINK: usize = 8;

/// Stream that carries the collectives.
pub(crate) const SYSTEM_STREAM: u16 = 0;

/// What the cookie in headers is derived from the job's secret by.
pub(crate) const WIRE_LABEL: &str = "wire";

/// A stream whose inbox exists and whose peers' inboxes are still to be attached.
pub(crate) struct Prepared {
    pub id: u16,
    pub name: String,
    pub options: StreamOptions,
    pub item_bytes: usize,
    shape: Shape,
    layout: InboxLayout,
    pub segment: Arc<Segment>,
    inbox: Inbox,
}

impl Prepared {
    /// Bytes of every rank's inbox of this stream on this node.
    pub fn segment_bytes(&self) -> usize {
        self.layout.segment_bytes()
    }

    /// What must be equal on all ranks, as one word.
    pub fn agreement(&self, eager_bytes: usize) -> u64 {
        let text = format!(
            "{}/{}/{}/{:?}/{}/{}/{}",
            self.id,
            self.name,
            self.item_bytes,
            self.shape,
            self.options.small_slot_bytes,
            self.options.max_message_bytes,
            eager_bytes,
        );
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        })
    }
}

/// Messages of collectives that have arrived: kind and bytes.
type Heard = Rc<RefCell<VecDeque<(u32, Vec<u8>)>>>;

thread_local! {
    /// Completions of the round of progress under way: one buffer for all endpoints of a thread, empty between rounds.
    static COMPLETIONS: Cell<Vec<Completion>> = const { Cell::new(Vec::new()) };
}

/// One rank's part of a job. One thread uses it at a time: that which made it, or whoever has the turn (`threaded`).
pub(crate) struct Endpoint<'h> {
    pub topology: Topology,
    /// What only the members of the job know.
    #[expect(dead_code, reason = "peers on other connections will be checked by it")]
    pub secret: Secret,
    /// What every header shows, so that jobs are not mixed up.
    pub cookie: u64,
    pub link: RefCell<Option<Box<dyn Link>>>,
    pub route: Chosen,
    /// The other ends of this rank's links, by link.
    peers: Rc<[Peer]>,
    bells: Arc<[Arc<Bell>]>,
    pub streams: RefCell<Vec<Rc<Core<'h>>>>,
    /// Places in `streams` in the order of priorities: the order of progress.
    order: RefCell<Vec<u16>>,
    /// What came while a stream was opened, for the next round of progress.
    completions: RefCell<Vec<Completion>>,
    busy: Cell<bool>,
    /// Receives that all streams have posted together.
    posted: Cell<usize>,
    pub collectives: RefCell<Collectives>,
    heard: Heard,
    next_stream: Cell<u16>,
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
            order: RefCell::default(),
            completions: RefCell::default(),
            busy: Cell::new(false),
            posted: Cell::new(0),
            collectives,
            heard: Rc::default(),
            next_stream: Cell::new(0),
            create_segment: Segment::create,
        }
    }

    /// First half of opening a stream: makes this rank's inbox. Streams get their ids in the order of these calls.
    pub fn prepare(&self, name: &str, options: &StreamOptions, item_bytes: usize) -> Result<Prepared> {
        // The number is taken first, so that a stream that fails here has the same number as on the other ranks.
        let id = self.next_stream.get();
        self.next_stream.set(
            id.checked_add(1)
                .ok_or_else(|| Error::config("stream", "65,536 streams are open"))?,
        );
        options.check()?;
        if id != SYSTEM_STREAM {
            check_memory(&self.route, options)?;
        }
        let shape = Shape::new(&self.topology, &self.route, options);
        let largest_item = shape.frame_bytes - 64;
        if item_bytes > largest_item {
            return Err(Error::TooLarge {
                bytes: item_bytes,
                limit: largest_item,
            });
        }
        let layout = InboxLayout::new(LANES_PER_RANK * self.topology.local_size(), shape.lane_bytes)?;
        let segment = (self.create_segment)(layout.segment_bytes())?;
        let inbox = Inbox::new(Arc::clone(&segment), layout)?;
        let (name, options) = (name.to_owned(), options.clone());
        Ok(Prepared {
            id,
            name,
            options,
            item_bytes,
            shape,
            layout,
            segment,
            inbox,
        })
    }

    /// Second half: attaches the inboxes of the node's ranks (by local rank, the own one included) and the links.
    pub fn connect(
        &self,
        prepared: Prepared,
        segments: &[Arc<Segment>],
        sink: Sink<'h>,
    ) -> Result<Rc<Core<'h>>> {
        let Prepared {
            id,
            name,
            options,
            item_bytes,
            shape,
            layout,
            mut inbox,
            ..
        } = prepared;
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
        .limit(options.origin_sender_limit);
        let relay = lanes(
            LaneClass::Relay,
            options.relay_buftarget_bytes,
            options.relay_maxrpc,
        );
        let mut link = self.link.borrow_mut();
        let mover = link
            .as_ref()
            .map_or(trihop_transport::link::Mover::Read, |l| l.limits().mover);
        let identity = Identity {
            stream: id,
            rank: self.topology.rank().0,
            cookie: self.cookie,
            mover,
        };
        let count = self.peers.len();
        let (mut sizes, mut batches, mut notices, mut links) = (BatchSizes::default(), None, None, None);
        if let Some(link) = link.as_deref_mut().filter(|_| count > 0) {
            let eager = link.limits().eager_bytes.max(options.small_slot_bytes);
            sizes = BatchSizes {
                target_bytes: shape.target_bytes,
                maxrpc: shape.maxrpc,
                buffer_bytes: shape.batch_bytes,
                small_bytes: options.small_slot_bytes.next_multiple_of(64),
                large_bytes: shape.batch_bytes.min(eager).next_multiple_of(64),
            };
            let least = BUFFERS_PER_LINK * count;
            let slots = (options.send_pool_bytes / sizes.buffer_bytes)
                .clamp(least, (count * (sizes.most_in_flight() as usize + 1)).max(least));
            batches = Some(link.create_pool(sizes.buffer_bytes, slots)?);
            notices = Some(link.create_pool(CONTROL_BYTES, NOTICES_PER_LINK * count.min(32))?);
            let plan = LinkPlan {
                links: count,
                sizes,
                in_flight: (0..count as u32)
                    .map(|link| shape.maxrpc[self.route.class(link) as usize] as usize)
                    .sum(),
                receive_pool_bytes: options.receive_pool_bytes,
                posted: self.posted.get(),
            };
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
                .limit(LinkClass::Remote, options.remote_sender_limit)
                .limit(LinkClass::Origin, options.origin_sender_limit),
            size: self.topology.size(),
            copies: 0,
            now_ns: 0,
        };
        let (rank, size) = (self.topology.rank().0, self.topology.size());
        let out = Outbound::new(queues, rank, size, item_bytes, shape.frame_bytes, &options);
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
            identity,
            frame_bytes: shape.frame_bytes,
            out: RefCell::new(out),
            inbound: RefCell::new(inbound),
            sink: RefCell::new(sink),
            stats: RefCell::default(),
            handover,
            taken: Cell::new(0),
            urgent: Cell::new(u32::from(id == SYSTEM_STREAM)),
            notices,
        });
        let mut streams = self.streams.borrow_mut();
        let mut order = self.order.borrow_mut();
        // Behind its equals; the collectives come first.
        let later =
            |&at: &u16| at != SYSTEM_STREAM && streams[at as usize].options.priority < core.options.priority;
        let at = order.iter().position(later).unwrap_or(order.len());
        order.insert(at, streams.len() as u16);
        streams.push(Rc::clone(&core));
        Ok(core)
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
            let mut completions = COMPLETIONS.take();
            completions.append(&mut self.completions.take());
            worked |= link.poll(&mut completions)? > 0;
            // One that fails takes no other with it: the rest are batches that came.
            let mut outcome = Ok(());
            for completion in completions.drain(..) {
                outcome = outcome.and(self.dispatch(completion));
            }
            COMPLETIONS.set(completions);
            outcome?;
        }
        let mut at = 0;
        // The lists may grow while we walk them, never shrink.
        loop {
            let number = self.order.borrow().get(at).copied();
            let Some(core) = number.and_then(|n| self.streams.borrow().get(n as usize).map(Rc::clone)) else {
                break;
            };
            // `as_deref_mut` would fix the box's lifetime to this borrow's, hence the match.
            worked |= match &mut *link {
                Some(link) => core.progress(Some(&mut **link), now_ns)?,
                None => core.progress(None, now_ns)?,
            };
            at += 1;
        }
        worked |= self.pump_collectives()?;
        Ok(worked)
    }

    fn dispatch(&self, completion: Completion) -> Result<()> {
        let token = match &completion {
            Completion::Sent { token, .. }
            | Completion::Received { token, .. }
            | Completion::Read { token, .. } => Some(*token),
            Completion::Failed { token, .. } => *token,
        };
        let streams = self.streams.borrow();
        match token.and_then(tags::split) {
            Some((stream, class, number)) => match streams.iter().find(|s| s.id == stream) {
                Some(core) => core.complete(class, number, completion),
                None => Ok(()),
            },
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

/// Ends the busy state when dropped.
pub(crate) struct Busy<'a>(&'a Cell<bool>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
