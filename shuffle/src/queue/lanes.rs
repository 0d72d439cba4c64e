//! The lanes from a rank to those of its node, of all stages that have lanes, each opened when it
//! is first used.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use trihop_transport::link::{Access, Link, Mover};
use trihop_transport::memory::lent::Registered;
use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::{Bell, Block, BlockArea, BlockPlace, Blocks, InboxLayout, Producer};
use trihop_transport::sync::{Mutex, PoisonError};

use super::counters::{QueueCounters, SendReason};
use super::edge::push_sparingly;
use super::lane::LaneQueue;
use super::limits::StageOptions;
use crate::error::Result;
use crate::route::{EndpointId, Stage};

/// Output lanes, numbered in the order in which they were opened.
pub(crate) struct Lanes {
    queues: Vec<LaneQueue>,
    /// Numbers of those to endpoints that have left.
    left: Vec<usize>,
    /// The inboxes of the members of the node, by place; all of one layout.
    segments: Box<[Option<Arc<Segment>>]>,
    layout: InboxLayout,
    /// What this endpoint shares behind its own inbox.
    blocks: Option<Arc<Mutex<Blocks>>>,
    /// What others share behind theirs, by place, where something of it has come.
    areas: Box<[Option<BlockArea>]>,
    /// By place: whether the link has registered them, so that it sends out of them or receives
    /// into them.
    lending: Box<[Lending]>,
    /// One is wanted.
    wants_lending: bool,
    /// By stage.
    stages: Vec<StageLanes>,
    /// Endpoint whose inbox could not be written to, and why.
    failed: Option<(EndpointId, String)>,
}

/// Whether the blocks behind an inbox may be lent to the link.
#[derive(Debug, Clone, Default)]
pub(crate) enum Lending {
    #[default]
    Unasked,
    /// Somebody has asked.
    Wanted,
    Registered(Arc<Registered>),
    Refused,
}

/// What all lanes of a stage have in common.
#[derive(Debug)]
struct StageLanes {
    publish_bytes: usize,
    limit_bytes: usize,
    /// Bytes that may be unconsumed in all of them together.
    sender_limit_bytes: usize,
    /// Bytes of the frame that was refused for that, until one as long has been taken.
    limited_bytes: usize,
    /// Times that this happened.
    limit_hits: u64,
}

impl StageLanes {
    fn new(options: &StageOptions) -> Self {
        let times = |count: u32| options.buftarget_bytes.saturating_mul(count as usize);
        Self {
            publish_bytes: options.buftarget_bytes,
            limit_bytes: times(options.maxrpc),
            sender_limit_bytes: match options.sender_limit {
                0 => usize::MAX,
                limit => times(limit),
            },
            limited_bytes: 0,
            limit_hits: 0,
        }
    }
}

impl Lanes {
    /// No lane open yet, to inboxes of this layout at so many places of the node, none of which has
    /// come; `options` are those of the route's stages.
    pub fn new(places: u32, layout: InboxLayout, options: &[StageOptions]) -> Self {
        Self {
            queues: Vec::new(),
            left: Vec::new(),
            segments: vec![None; places as usize].into(),
            layout,
            blocks: None,
            areas: vec![None; places as usize].into(),
            lending: vec![Lending::default(); places as usize].into(),
            wants_lending: false,
            stages: options.iter().map(StageLanes::new).collect(),
            failed: None,
        }
    }

    /// Whether the limit of all lanes of its stage together admits a frame of this rank's own to
    /// lane `number`; one frame always may.
    #[inline]
    pub fn admits(&mut self, number: usize, bytes: usize) -> bool {
        let stage = self.queues[number].stage;
        self.stages[stage.index()].sender_limit_bytes == usize::MAX || self.fits_limit(stage, bytes)
    }

    #[cold]
    fn fits_limit(&mut self, stage: Stage, bytes: usize) -> bool {
        let limit = self.stages[stage.index()].sender_limit_bytes;
        let fits = |used: usize| used == 0 || used + bytes <= limit;
        let mut admitted = fits(self.in_use_bytes(stage));
        if !admitted {
            // Shown to their consumers, so that these can make room. A position that cannot be true
            // stays as it was, and the lane's next push reports it.
            for lane in self.queues.iter_mut().filter(|lane| lane.stage == stage) {
                lane.publish(SendReason::Full);
                let _ = lane.consumed();
            }
            admitted = fits(self.in_use_bytes(stage));
        }
        let lanes = &mut self.stages[stage.index()];
        if !admitted {
            lanes.limit_hits += u64::from(lanes.limited_bytes == 0);
            lanes.limited_bytes = bytes;
        } else if bytes >= lanes.limited_bytes {
            lanes.limited_bytes = 0; // a shorter frame passes one that waits still
        }
        admitted
    }

    /// Bytes that are unconsumed in all lanes of a stage.
    fn in_use_bytes(&self, stage: Stage) -> usize {
        let lanes = self.queues.iter().filter(|lane| lane.stage == stage);
        lanes.map(LaneQueue::in_use_bytes).sum()
    }

    /// Times that an own send met the limit of a stage.
    pub fn limit_hits(&self, stage: Stage) -> u64 {
        self.stages[stage.index()].limit_hits
    }

    /// What users see of it counts from now on.
    pub fn begin_again(&mut self) {
        self.stages
            .iter_mut()
            .for_each(|lanes| lanes.limit_hits = 0);
        self.queues
            .iter_mut()
            .for_each(|lane| lane.counters = QueueCounters::default());
    }

    /// Whether a frame waits for a limit: any release may be what it waits for.
    pub fn is_limited(&self) -> bool {
        self.stages.iter().any(|lanes| lanes.limited_bytes > 0)
    }

    /// The inbox of the member at a place of the node has come.
    pub fn attach(&mut self, place: u32, segment: Arc<Segment>) {
        self.segments[place as usize] = Some(segment);
    }

    /// So many bytes behind the inbox of this endpoint, which is `own`, are for blocks.
    pub fn share(&mut self, own: Arc<Segment>, bytes: usize) -> Result<()> {
        if bytes > 0 {
            let blocks = Blocks::new(BlockArea::new(own, self.layout, bytes)?)?;
            self.blocks = Some(Arc::new(Mutex::new(blocks)));
        }
        Ok(())
    }

    /// The blocks of this endpoint.
    pub fn blocks(&self) -> Option<&Arc<Mutex<Blocks>>> {
        self.blocks.as_ref()
    }

    /// Memory of this endpoint's for a record; `None` where it has none, or no room.
    pub fn take_block(&self, bytes: usize) -> Option<Block> {
        let blocks = self.blocks.as_ref()?;
        let mut blocks = blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.take(bytes)
    }

    /// Claims what was passed on to this endpoint and lies behind the inbox at a place of the node;
    /// `None` for what cannot be.
    pub fn claim(&mut self, place: u32, at: BlockPlace) -> Option<Block> {
        Block::claim(self.area(place)?, at)
    }

    fn area(&mut self, place: u32) -> Option<&BlockArea> {
        let area = self.areas.get_mut(place as usize)?;
        if area.is_none() {
            let segment = self.segments[place as usize].as_ref()?;
            *area = BlockArea::behind(Arc::clone(segment), self.layout).ok();
        }
        area.as_ref()
    }

    /// Whether what lies behind the inbox at a place of the node may be lent to the link: that is
    /// found out at the next round of progress after it was first asked.
    pub fn lending(&mut self, place: u32) -> &Lending {
        let lending = &mut self.lending[place as usize];
        if matches!(lending, Lending::Unasked) {
            *lending = Lending::Wanted;
            self.wants_lending = true;
        }
        lending
    }

    /// Registers what is wanted, if anything is, which this returns; `own` is the place of this
    /// endpoint, which receives there, too.
    #[inline]
    pub fn register(&mut self, link: &mut dyn Link, own: u32) -> bool {
        let wants = std::mem::take(&mut self.wants_lending);
        if wants {
            self.register_areas(link, own);
        }
        wants
    }

    #[cold]
    fn register_areas(&mut self, link: &mut dyn Link, own: u32) {
        let is_read = link.limits().mover == Mover::Read;
        for place in 0..self.lending.len() as u32 {
            if !matches!(self.lending[place as usize], Lending::Wanted) {
                continue;
            }
            let access = match (place == own, is_read) {
                (true, true) => Access::All,
                (true, false) => Access::Messages,
                (false, true) => Access::Readable,
                (false, false) => Access::Departures,
            };
            let Some(area) = self.area(place).filter(|area| area.bytes() > 0) else {
                self.lending[place as usize] = Lending::Refused;
                continue;
            };
            let registered = area.part().and_then(|part| link.register(&part, access));
            self.lending[place as usize] = match registered {
                Ok(registered) => Lending::Registered(registered),
                Err(error) => {
                    let why = error.to_string();
                    tracing::info!(place, why, "long records of this place leave in pieces");
                    Lending::Refused
                }
            };
        }
    }

    /// Bytes of this endpoint's blocks that were taken when it last looked for room, and of all of
    /// them.
    pub fn shared_bytes(&self) -> (usize, usize) {
        self.blocks.as_ref().map_or((0, 0), |blocks| {
            let blocks = blocks.lock().unwrap_or_else(PoisonError::into_inner);
            (blocks.taken_bytes(), blocks.area().bytes())
        })
    }

    /// Where the blocks of all members of the node lie, by place.
    pub fn block_areas(&self) -> Result<Vec<Option<BlockArea>>> {
        let area = |segment: &Arc<Segment>| BlockArea::behind(Arc::clone(segment), self.layout);
        let areas = self.segments.iter();
        let areas = areas.map(|segment| Ok(segment.as_ref().map(area).transpose()?));
        areas.collect()
    }

    /// The inboxes of the members of the node, by place.
    pub fn segments(&self) -> &[Option<Arc<Segment>>] {
        &self.segments
    }

    /// The layout of all of them.
    pub fn layout(&self) -> InboxLayout {
        self.layout
    }

    /// Whether an endpoint has taken all that was added for it.
    pub fn are_taken_by(&mut self, peer: EndpointId) -> bool {
        let mut lanes = self.queues.iter_mut().filter(|lane| lane.peer == peer);
        lanes.all(LaneQueue::is_done)
    }

    /// The endpoint at a place has left, with nothing to take.
    pub fn detach(&mut self, peer: EndpointId, place: u32) {
        self.segments[place as usize] = None;
        self.areas[place as usize] = None;
        self.lending[place as usize] = Lending::default();
        let lanes = self.queues.iter_mut().enumerate();
        for (number, lane) in lanes.filter(|(_, lane)| lane.peer == peer) {
            lane.detach();
            if !self.left.contains(&number) {
                self.left.push(number);
            }
        }
    }

    /// An endpoint is lost: what is added for it from now on is dropped.
    pub fn lose(&mut self, peer: EndpointId) {
        let lanes = self.queues.iter_mut();
        lanes
            .filter(|lane| lane.peer == peer)
            .for_each(LaneQueue::lose);
        self.failed.take_if(|(failed, _)| *failed == peer);
    }

    /// Opens a lane of a stage to `peer`, whose place on the node is `place`, as lane `slot` of its
    /// inbox; `None` where that has not come, or is damaged.
    pub fn open(
        &mut self,
        peer: EndpointId,
        place: u32,
        (epoch, bell): (Epoch, &Arc<Bell>),
        stage: Stage,
        slot: u32,
    ) -> Option<usize> {
        let segment = Arc::clone(self.segments[place as usize].as_ref()?);
        let bell = Arc::clone(bell);
        tracing::trace!(
            to = peer.0,
            lane = slot,
            "first use of a lane to an endpoint of the node"
        );
        let lanes = &self.stages[stage.index()];
        let producer = match Producer::new(segment, self.layout, slot, bell) {
            Ok(producer) => producer,
            Err(error) => {
                self.failed = Some((peer, error.to_string()));
                return None;
            }
        };
        let queues = &self.queues;
        let is_it = |&number: &usize| (queues[number].peer, queues[number].stage) == (peer, stage);
        if let Some(at) = self.left.iter().position(is_it) {
            let number = self.left.swap_remove(at);
            self.queues[number].attach(epoch, producer);
            return Some(number);
        }
        let lane = LaneQueue::new(
            peer,
            epoch,
            stage,
            producer,
            lanes.publish_bytes,
            lanes.limit_bytes,
        );
        push_sparingly(&mut self.queues, lane);
        Some(self.queues.len() - 1)
    }

    /// Bytes that may be in use of a lane: of its nursery and its ring.
    pub fn most_bytes(&self) -> usize {
        self.layout.max_in_use_bytes()
    }

    /// Endpoint whose inbox is damaged, and how.
    pub fn failure(&self) -> Option<(EndpointId, String)> {
        let corrupt = || {
            self.queues
                .iter()
                .find_map(|lane| Some((lane.peer, lane.corrupt.as_ref()?.to_string())))
        };
        self.failed.clone().or_else(corrupt)
    }

    /// The lanes that are open, in order of opening.
    pub fn iter(&self) -> impl Iterator<Item = &LaneQueue> {
        self.queues.iter()
    }

    /// As [`Lanes::iter`], to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut LaneQueue> {
        self.queues.iter_mut()
    }
}

impl Index<usize> for Lanes {
    type Output = LaneQueue;
    #[inline]
    fn index(&self, number: usize) -> &LaneQueue {
        &self.queues[number]
    }
}

impl IndexMut<usize> for Lanes {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut LaneQueue {
        &mut self.queues[number]
    }
}
