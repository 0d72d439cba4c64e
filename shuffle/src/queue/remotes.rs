//! The queues of all links of a stream. A queue is made when its link is first used, and looked at
//! only while it has something to do: a rank may have hundreds of links of which few are busy.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use trihop_transport::link::Peer;
use trihop_transport::memory::pool::Pool;
use trihop_transport::protocol::wire::Epoch;

use super::counters::{QueueCounters, SendReason};
use super::edge::push_sparingly;
use super::limits::StageOptions;
use super::remote::{BatchSizes, LinkLimits, RemoteQueue};
use crate::route::{EndpointId, Stage};
use crate::trace::Trace;

/// Send buffers that every link can count on, whatever the others hold.
pub(crate) const BUFFERS_PER_LINK: usize = 2;

/// Queues of links, numbered in the order in which they were opened.
pub(crate) struct Remotes {
    queues: Vec<RemoteQueue>,
    /// Numbers of those that have something to do, each behind the endpoint at the other end, in
    /// order.
    busy: Vec<(EndpointId, u32)>,
    /// Numbers of those to endpoints that have left.
    left: Vec<usize>,
    /// Links of the route, open or not.
    links: usize,
    sizes: Arc<BatchSizes>,
    batches: Option<Pool>,
    /// By stage.
    stages: Vec<StageLinks>,
    pub trace: Trace,
}

/// What all links of a stage have in common.
#[derive(Debug, Clone, Copy)]
struct StageLinks {
    limits: LinkLimits,
    sender_limit: SenderLimit,
}

/// How many batches with own sends may be outstanding in all queues of a stage together.
#[derive(Debug, Clone, Copy, Default)]
struct SenderLimit {
    /// 0 for no limit.
    batches: usize,
    /// A frame was refused for that, and none has been taken since.
    met: bool,
    hits: u64,
}

impl Remotes {
    /// No queue open yet, of `links`; limits and options are those of the route's stages.
    pub fn new(
        links: usize,
        sizes: BatchSizes,
        limits: &[LinkLimits],
        options: &[StageOptions],
        batches: Option<Pool>,
    ) -> Self {
        let stage = |(&limits, options): (_, &StageOptions)| StageLinks {
            limits,
            sender_limit: SenderLimit {
                batches: options.sender_limit as usize,
                ..SenderLimit::default()
            },
        };
        Self {
            queues: Vec::new(),
            busy: Vec::new(),
            left: Vec::new(),
            links,
            sizes: Arc::new(sizes),
            batches,
            stages: limits.iter().zip(options).map(stage).collect(),
            trace: Trace::default(),
        }
    }

    /// Times that an own send met the limit of a stage.
    pub fn limit_hits(&self, stage: Stage) -> u64 {
        self.stages[stage.index()].sender_limit.hits
    }

    fn sender_limit(&self, number: usize) -> &SenderLimit {
        &self.stages[self.queues[number].stage.index()].sender_limit
    }

    /// Whether the limit of its stage admits a frame of this rank's own to queue `number`.
    #[inline]
    pub fn admits(&mut self, number: usize, bytes: usize) -> bool {
        self.sender_limit(number).batches == 0 || self.fits_limit(number, bytes)
    }

    /// As [`Remotes::admits`], for a record that is offered: a batch of its own.
    pub fn admits_offer(&mut self, number: usize) -> bool {
        self.admits(number, self.sizes.buffer_bytes)
    }

    #[cold]
    fn fits_limit(&mut self, number: usize, bytes: usize) -> bool {
        let stage = self.queues[number].stage;
        // A queue that rests has none outstanding.
        let of_stage = self.iter_busy().filter(|queue| queue.stage == stage);
        let outstanding: usize = of_stage.map(RemoteQueue::own_batches).sum();
        let admitted = self.queues[number].has_own_open(bytes);
        let limit = &mut self.stages[stage.index()].sender_limit;
        let admitted = admitted || outstanding < limit.batches;
        limit.hits += u64::from(!admitted && !limit.met);
        limit.met = !admitted;
        admitted
    }

    /// A frame of this rank's own was added to queue `number`.
    #[inline]
    pub fn added_own(&mut self, number: usize) {
        if self.sender_limit(number).batches > 0 {
            self.queues[number].note_own();
        }
    }

    /// Whether the other ends of links fetch what is long, at all.
    pub fn takes_offers(&self) -> bool {
        self.sizes.has_long_batches()
    }

    /// What users see of it counts from now on.
    pub fn begin_again(&mut self) {
        self.stages
            .iter_mut()
            .for_each(|links| links.sender_limit.hits = 0);
        for queue in self.queues.iter_mut() {
            queue.counters = QueueCounters::default();
            queue.wire_bytes = 0;
        }
    }

    /// Links of the stream, open or not.
    pub fn links(&self) -> usize {
        self.links
    }

    /// Queues that are open.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Opens the queue of a link of a stage to `end`, which is on this node or beyond it, and which
    /// the provider calls `peer`.
    pub fn open(
        &mut self,
        end: EndpointId,
        stage: Stage,
        is_beyond: bool,
        (epoch, peer): (Epoch, Peer),
    ) -> usize {
        tracing::debug!(target: "trihop_shuffle::engine::inbound", rank = end.0, %stage, "first use of a link");
        let limits = self.stages[stage.index()].limits;
        let sizes = Arc::clone(&self.sizes);
        let mut queue = RemoteQueue::new(end, stage, is_beyond, (epoch, peer), limits, sizes);
        queue.trace = self.trace.clone();
        let queues = &self.queues;
        let is_it = |&number: &usize| (queues[number].end, queues[number].stage) == (end, stage);
        if let Some(at) = self.left.iter().position(is_it) {
            let number = self.left.swap_remove(at);
            let before = &self.queues[number];
            queue.counters = before.counters;
            queue.wire_bytes = before.wire_bytes;
            self.queues[number] = queue;
            return number;
        }
        push_sparingly(&mut self.queues, queue);
        self.queues.len() - 1
    }

    /// Whether nothing waits for an endpoint or is on its way to it.
    pub fn are_idle_towards(&self, end: EndpointId) -> bool {
        let mut links = self.queues.iter().filter(|link| link.end == end);
        links.all(RemoteQueue::is_done)
    }

    /// The endpoint has left, with nothing on its way. The numbers of the queues that led there:
    /// they are looked at no more.
    pub fn detach(&mut self, end: EndpointId) -> Vec<usize> {
        let all = self.queues.iter().enumerate();
        let of_it = all.filter(|(_, link)| link.end == end);
        let numbers: Vec<usize> = of_it.map(|(number, _)| number).collect();
        for &number in &numbers {
            self.queues[number].busy = false;
            self.queues[number].credit.give_back_large();
            if !self.left.contains(&number) {
                self.left.push(number);
            }
        }
        let queues = &self.queues;
        self.busy
            .retain(|&(_, number)| queues[number as usize].busy);
        numbers
    }

    /// An endpoint is lost: what is added for it from now on is dropped.
    pub fn lose(&mut self, end: EndpointId) {
        let links = self.queues.iter_mut();
        links
            .filter(|link| link.end == end)
            .for_each(RemoteQueue::lose);
        let queues = &self.queues;
        self.busy
            .retain(|&(_, number)| queues[number as usize].busy);
    }

    /// From now on the queue is looked at, until [`Remotes::rest`].
    #[inline]
    pub fn wake(&mut self, number: usize) {
        let queue = &mut self.queues[number];
        if !queue.busy && !queue.is_lost {
            queue.busy = true;
            let entry = (queue.end, number as u32);
            let at = self.busy.partition_point(|before| *before < entry);
            self.busy.insert(at, entry);
        }
    }

    /// Number of the `at`-th queue that has something to do.
    #[inline]
    pub fn busy(&self, at: usize) -> Option<usize> {
        self.busy.get(at).map(|&(_, number)| number as usize)
    }

    /// The first place behind endpoint `own` among the queues that have something to do.
    pub fn first_from(&self, own: EndpointId) -> usize {
        self.busy.partition_point(|&(end, _)| end < own)
    }

    /// The places of the queues that have something to do, in the order in which endpoint `own`
    /// serves them: its next neighbour first. Ranks that have something for all at once would else
    /// serve one target after the other, all the same one.
    pub fn places_from(&self, own: EndpointId) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first_from(own), self.busy.len());
        (first..count).chain(0..first)
    }

    /// Queues that have something to do.
    pub fn busy_len(&self) -> usize {
        self.busy.len()
    }

    /// The queues that have something to do.
    pub fn iter_busy(&self) -> impl Iterator<Item = &RemoteQueue> {
        self.busy
            .iter()
            .map(|&(_, number)| &self.queues[number as usize])
    }

    /// All open queues, in order of opening.
    pub fn iter(&self) -> impl Iterator<Item = &RemoteQueue> {
        self.queues.iter()
    }

    /// Looks no longer at queues that have nothing to do, if `also` says the same of their numbers.
    pub fn rest(&mut self, mut also: impl FnMut(usize) -> bool) {
        let queues = &mut self.queues;
        self.busy.retain(|&(_, number)| {
            let queue = &mut queues[number as usize];
            queue.busy = !(queue.may_rest() && also(number as usize));
            queue.busy
        });
    }

    /// Seals every open batch.
    pub fn seal(&mut self, why: SendReason) {
        for &(_, number) in &self.busy {
            self.queues[number as usize].seal(why);
        }
    }

    /// Memory of the send batches in bytes.
    pub fn pool_bytes(&self) -> usize {
        self.batches.as_ref().map_or(0, Pool::bytes)
    }

    /// Bytes of the send batches that are open, wait, or are still leaving.
    pub fn pool_bytes_in_use(&self) -> usize {
        self.batches.as_ref().map_or(0, Pool::in_use_bytes)
    }

    /// Whether every send buffer is home again: nothing is open, waits, or is still leaving.
    pub fn has_left(&self) -> bool {
        let batches = self.batches.as_ref();
        batches.is_none_or(|p| p.free_slots() == p.slots())
            && self.iter_busy().all(RemoteQueue::has_left)
    }

    /// The pool from which queue `number` may take a buffer now: always up to its own two, beyond
    /// them only what no other link is due.
    pub fn pool_for(&self, number: usize) -> Option<&Pool> {
        let pool = self.batches.as_ref()?;
        let free = pool.free_slots();
        if self.queues[number].held_buffers() < BUFFERS_PER_LINK
            || free > BUFFERS_PER_LINK * self.links()
        {
            return Some(pool);
        }
        // What the links are still due once this one has taken a buffer: those that a batch in
        // flight has may be home already, among the free ones. Queues that rest keep none.
        let kept = self
            .iter_busy()
            .map(|q| q.kept_buffers().min(BUFFERS_PER_LINK));
        let due = BUFFERS_PER_LINK * self.links() - kept.sum::<usize>();
        let own = usize::from(self.queues[number].kept_buffers() < BUFFERS_PER_LINK);
        (free > due - own).then_some(pool)
    }
}

impl Index<usize> for Remotes {
    type Output = RemoteQueue;
    #[inline]
    fn index(&self, number: usize) -> &RemoteQueue {
        &self.queues[number]
    }
}

impl IndexMut<usize> for Remotes {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut RemoteQueue {
        &mut self.queues[number]
    }
}
