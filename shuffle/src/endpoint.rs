//! One rank's part of a job that never waits: its link, its streams, their common progress.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use trihop_transport::link::{Completion, Link, Peer};
use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::wire::{BATCH_HEADER_BYTES, BadRun};
use trihop_transport::ring::{Bell, Inbox, InboxLayout};
use trihop_transport::topology::Topology;

use crate::collective::{Collectives, Operation, Ticket};
use crate::config::StreamOptions;
use crate::deliver::{Delivery, MIN_FRAGMENT_FRAME, Sink};
use crate::engine::inbound::{CONTROL_BYTES, LinkPlan, Links};
use crate::engine::outbound::{Outbound, batch_buffer_bytes};
use crate::engine::queues::Queues;
use crate::engine::tags;
use crate::engine::{Core, Inbound, LANES_PER_RANK, LaneClass, lane_of};
use crate::error::{Error, Result};
use crate::queue::lanes::{Lanes, Neighbours};
use crate::queue::remote::{BatchSizes, Identity};
use crate::queue::remotes::{BUFFERS_PER_LINK, Remotes};
use crate::route::{Chosen, LinkClass, Route, RouteName};

/// Small sends that may be on their way per link, up to 32 links: announcements and control messages.
const NOTICES_PER_LINK: usize = 8;

/// Stream that carries the collectives.
pub(crate) const SYSTEM_STREAM: u16 = 0;

/// Sizes that follow from a job's shape and a stream's options, equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub lane_bytes: u32,
    pub frame_bytes: usize,
    /// A batch is sealed when it holds this much, by class of its link.
    pub target_bytes: [usize; 3],
    pub batch_bytes: usize,
    /// Batches that may be in flight on a link, by its class.
    pub maxrpc: [u32; 3],
}

impl Shape {
    /// Lanes share `lane_budget_bytes` on the fullest node, batches `send_pool_bytes` where links are most; a frame is at
    /// most a quarter of a lane, and fits a batch.
    pub fn new(topology: &Topology, route: &Chosen, options: &StreamOptions) -> Self {
        let affordable = options.lane_budget_bytes / (2 * topology.most_local() as usize);
        let lane_bytes = floor_power_of_two(affordable).clamp(4096, 65536) as u32;
        let links = route.most_links().max(1) as usize;
        let affordable = floor_power_of_two(options.send_pool_bytes / (BUFFERS_PER_LINK * links))
            .max(options.small_slot_bytes);
        let (remote, maxrpc) = (options.remote_buftarget_bytes, options.remote_maxrpc);
        let (targets, maxrpc) = match route.name() {
            RouteName::ThreeHop | RouteName::Direct => ([remote; 3], [maxrpc; 3]),
            RouteName::FabricOnly => (
                [
                    remote,
                    options.origin_buftarget_bytes,
                    options.relay_buftarget_bytes,
                ],
                [maxrpc, options.origin_maxrpc, options.relay_maxrpc],
            ),
        };
        let target_bytes = targets.map(|bytes| bytes.clamp(BATCH_HEADER_BYTES + 1, affordable));
        let frame_bytes = (lane_bytes as usize / 4).min(affordable - BATCH_HEADER_BYTES) & !7;
        debug_assert!(frame_bytes >= MIN_FRAGMENT_FRAME);
        Self {
            lane_bytes,
            frame_bytes,
            target_bytes,
            batch_bytes: batch_buffer_bytes(target_bytes.into_iter().fold(0, usize::max), frame_bytes),
            maxrpc: maxrpc.map(|batches| batches.min(LINK_MAXRPC)),
        }
    }
}

/// Batches that may be in flight on one link, whatever is asked for lanes.
const LINK_MAXRPC: u32 = 1024;

/// Refuses a route whose links need more memory for batches than they may have. (Representatives have as few
/// links as there can be, and get what these need.)
pub(crate) fn check_memory(route: &Chosen, options: &StreamOptions) -> Result<()> {
    let links = route.most_links() as usize;
    let needed = BUFFERS_PER_LINK * links * options.small_slot_bytes;
    if route.name() == RouteName::ThreeHop || needed <= options.send_pool_bytes {
        return Ok(());
    }
    let why = format!(
        "`{}` with {links} links needs {needed} bytes for batches, send_pool_bytes is {}; use `three-hop`, or raise it",
        route.name(),
        options.send_pool_bytes
    );
    Err(Error::config("route", why))
}

/// The largest power of two that is at most `value`, 0 for 0.
fn floor_power_of_two(value: usize) -> usize {
    value.checked_ilog2().map_or(0, |bits| 1 << bits)
}

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
        cookie: u64,
        link: Option<Box<dyn Link>>,
        peers: Rc<[Peer]>,
        bells: Arc<[Arc<Bell>]>,
    ) -> Self {
        debug_assert_eq!(peers.len(), route.links() as usize);
        let collectives = RefCell::new(Collectives::new(&topology));
        Self {
            topology,
            cookie,
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
            fence: Cell::default(),
            barrier: Cell::default(),
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

    /// Options of the system stream: small, and nothing waits.
    pub fn system_options() -> StreamOptions {
        StreamOptions {
            origin_buftarget_bytes: 1,
            relay_buftarget_bytes: 1,
            origin_maxrpc: 65535,
            relay_maxrpc: 65535,
            remote_buftarget_bytes: 8192,
            remote_maxrpc: 2,
            linger_us: 0,
            lane_budget_bytes: 512 << 10,
            send_pool_bytes: 64 << 10,
            receive_pool_bytes: 64 << 10,
            run_bytes: 512,
            run_table_bytes: 16 << 10,
            small_slot_bytes: 512,
            spill_bytes: 64 << 10,
            handler_reserve_bytes: 0,
            ..StreamOptions::default()
        }
    }

    /// Sink of the system stream: hands collectives' messages to the endpoint.
    pub fn system_sink(&self) -> Sink<'h> {
        let heard = Rc::clone(&self.heard);
        Sink::Handler(Box::new(move |delivery, _, _| {
            let mut records = 1;
            match delivery {
                Delivery::Run(run) => {
                    records = usize::from(run.header.count);
                    for record in run.records() {
                        let (kind, bytes) = record?;
                        heard.borrow_mut().push_back((kind, bytes.to_vec()));
                    }
                }
                Delivery::Record { kind, bytes, .. } => heard.borrow_mut().push_back((kind, bytes.to_vec())),
            }
            Ok::<usize, BadRun>(records)
        }))
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
            for completion in completions.drain(..) {
                self.dispatch(completion, now_ns)?;
            }
            COMPLETIONS.set(completions);
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

    fn dispatch(&self, completion: Completion, now_ns: u64) -> Result<()> {
        let token = match &completion {
            Completion::Sent { token, .. }
            | Completion::Received { token, .. }
            | Completion::Read { token, .. } => Some(*token),
            Completion::Failed { token, .. } => *token,
        };
        let streams = self.streams.borrow();
        match token.and_then(tags::split) {
            Some((stream, class, number)) => match streams.iter().find(|s| s.id == stream) {
                Some(core) => core.complete(class, number, completion, now_ns),
                None => Ok(()),
            },
            None => match (completion, streams.first()) {
                // A failure of which the provider forgot the operation: any stream knows the peer.
                (failed @ Completion::Failed { .. }, Some(core)) => {
                    core.complete(tags::TagClass::Sent, 0, failed, now_ns)
                }
                _ => Ok(()),
            },
        }
    }

    /// Takes in and sends out messages of collectives.
    fn pump_collectives(&self) -> Result<bool> {
        let mut collectives = self.collectives.borrow_mut();
        let mut worked = false;
        while let Some((kind, bytes)) = self.heard.borrow_mut().pop_front() {
            worked = true;
            if !collectives.receive(kind, &bytes) {
                tracing::error!(kind, "a collective message that makes no sense was dropped");
            }
        }
        let streams = self.streams.borrow();
        let Some(system) = streams.first() else {
            return Ok(worked);
        };
        while let Some(message) = collectives.front() {
            match system
                .out
                .borrow_mut()
                .try_send(message.target, message.kind, &message.bytes)
            {
                Ok(()) => {
                    collectives.pop();
                    worked = true;
                }
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(worked)
    }

    /// Contributes to a collective on the job's own channel.
    pub fn begin_collective(&self, operation: Operation, contribution: &[u8]) -> Ticket {
        self.collectives
            .borrow_mut()
            .begin(SYSTEM_STREAM, operation, contribution)
    }

    /// Whether all results of collectives that others wait for have left this rank.
    pub fn has_passed_on_results(&self) -> bool {
        let streams = self.streams.borrow();
        let sent = streams.first().is_none_or(|system| {
            let out = system.out.borrow();
            !out.has_partial() && out.queues.remotes.iter_busy().all(|r| r.ready_batches() == 0)
        });
        sent && self.collectives.borrow().front().is_none()
    }

    /// As [`Endpoint::has_passed_on_results`], and the provider is done with sending them: no progress of this rank is
    /// needed for them to arrive, since nobody relays them and their receivers still wait.
    pub fn has_left_results(&self) -> bool {
        let streams = self.streams.borrow();
        self.has_passed_on_results()
            && streams
                .first()
                .is_none_or(|system| system.out.borrow().queues.remotes.has_left())
    }

    /// Result of a collective, once it is there.
    pub fn collective_result(&self, ticket: Ticket) -> Option<Vec<u8>> {
        self.collectives.borrow_mut().result(ticket)
    }
}

/// Ends the busy state when dropped.
pub(crate) struct Busy<'a>(&'a Cell<bool>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
