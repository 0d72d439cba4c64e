//! The remote queues of all links of a stream. A queue is made when its link is first used, and looked at only while
//! it has something to do: a rank may have hundreds of links of which few are busy.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use trihop_transport::link::Peer;
use trihop_transport::memory::pool::Pool;

use super::on_demand::OnDemand;
use super::remote::{BatchSizes, RemoteQueue};
use super::tally::{Tally, Why};
use crate::route::{Chosen, LinkClass, Route};

/// Send buffers that every link can count on, whatever the others hold.
pub(crate) const BUFFERS_PER_LINK: usize = 2;

/// Remote queues, numbered in the order in which they were opened.
pub(crate) struct Remotes {
    queues: OnDemand<RemoteQueue>,
    busy: Vec<u32>,
    peers: Arc<[Peer]>,
    sizes: Arc<BatchSizes>,
    batches: Option<Pool>,
    /// By class of the links.
    limits: [SenderLimit; 3],
}

/// How many batches with own sends may be outstanding in all queues of a class together.
#[derive(Debug, Clone, Copy, Default)]
struct SenderLimit {
    /// 0 for no limit.
    batches: usize,
    /// A frame was refused for that, and none has been taken since.
    met: bool,
    hits: u64,
}

impl Remotes {
    /// No queue open yet; `peers` are the other ends, by link.
    pub fn new(peers: Arc<[Peer]>, sizes: BatchSizes, batches: Option<Pool>) -> Self {
        Self {
            queues: OnDemand::new(peers.len()),
            busy: Vec::new(),
            peers,
            sizes: Arc::new(sizes),
            batches,
            limits: Default::default(),
        }
    }

    /// At most `batches` batches with own sends may be outstanding in all queues of a class together; 0 for no such limit.
    pub fn limit(mut self, class: LinkClass, batches: u32) -> Self {
        self.limits[class as usize].batches = batches as usize;
        self
    }

    /// Times that an own send met the limit of its class.
    pub fn limit_hits(&self, class: LinkClass) -> u64 {
        self.limits[class as usize].hits
    }

    /// Whether the limit of its class admits a frame of this rank's own to queue `number`.
    #[inline]
    pub fn admits(&mut self, number: usize, bytes: usize) -> bool {
        self.limits[self.queues[number].class as usize].batches == 0 || self.fits_limit(number, bytes)
    }

    #[cold]
    fn fits_limit(&mut self, number: usize, bytes: usize) -> bool {
        let class = self.queues[number].class;
        // A queue that rests has none outstanding.
        let of_class = self.iter_busy().filter(|queue| queue.class == class);
        let outstanding: usize = of_class.map(RemoteQueue::own_batches).sum();
        let admitted = self.queues[number].has_own_open(bytes);
        let limit = &mut self.limits[class as usize];
        let admitted = admitted || outstanding < limit.batches;
        limit.hits += u64::from(!admitted && !limit.met);
        limit.met = !admitted;
        admitted
    }

    /// A frame of this rank's own was added to queue `number`.
    #[inline]
    pub fn added_own(&mut self, number: usize) {
        let queue = &mut self.queues[number];
        if self.limits[queue.class as usize].batches > 0 {
            queue.note_own();
        }
    }

    /// What users see of it counts from now on.
    pub fn begin_again(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.hits = 0);
        for queue in self.queues.iter_mut() {
            queue.tally = Tally::default();
            queue.wire_bytes = 0;
        }
    }

    /// Links of the stream, open or not.
    pub fn links(&self) -> usize {
        self.queues.keys()
    }

    /// Queues that are open.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// The queue of a link of `route`, opened if need be.
    #[inline]
    pub fn open(&mut self, link: u32, route: &Chosen) -> usize {
        let (peers, sizes) = (&self.peers, &self.sizes);
        let make = || {
            let (rank, class, peer) = (route.peer(link).0, route.class(link), peers[link as usize]);
            tracing::debug!(target: "trihop_shuffle::engine::inbound", rank, link, "first use of a link");
            Ok::<_, std::convert::Infallible>(RemoteQueue::new(rank, class, peer, Arc::clone(sizes)))
        };
        let Ok(number) = self.queues.number(link, make);
        number
    }

    /// From now on the queue is looked at, until [`Remotes::rest`].
    #[inline]
    pub fn wake(&mut self, number: usize) {
        let queue = &mut self.queues[number];
        if !queue.busy {
            queue.busy = true;
            self.busy.push(number as u32);
        }
    }

    /// Number of the `at`-th queue that has something to do.
    #[inline]
    pub fn busy(&self, at: usize) -> Option<usize> {
        self.busy.get(at).map(|&number| number as usize)
    }

    /// Queues that have something to do.
    pub fn busy_len(&self) -> usize {
        self.busy.len()
    }

    /// The queues that have something to do.
    pub fn iter_busy(&self) -> impl Iterator<Item = &RemoteQueue> {
        self.busy.iter().map(|&number| &self.queues[number as usize])
    }

    /// The open queues of a class.
    pub fn of_class(&self, class: LinkClass) -> impl Iterator<Item = &RemoteQueue> {
        self.iter().filter(move |queue| queue.class == class)
    }

    /// All open queues, in order of opening.
    pub fn iter(&self) -> impl Iterator<Item = &RemoteQueue> {
        self.queues.iter()
    }

    /// Looks no longer at queues that have nothing to do, if `also` says the same of their numbers.
    pub fn rest(&mut self, mut also: impl FnMut(usize) -> bool) {
        let queues = &mut self.queues;
        self.busy.retain(|&number| {
            let queue = &mut queues[number as usize];
            queue.busy = !(queue.may_rest() && also(number as usize));
            queue.busy
        });
    }

    /// Seals every open batch.
    pub fn seal(&mut self, why: Why) {
        for class in LinkClass::ALL {
            self.seal_class(class, why);
        }
    }

    /// Seals every open batch of this class.
    pub fn seal_class(&mut self, class: LinkClass, why: Why) {
        for &number in &self.busy {
            let queue = &mut self.queues[number as usize];
            if queue.class == class {
                queue.seal(why);
            }
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
        self.batches.as_ref().is_none_or(|p| p.free_slots() == p.slots())
    }

    /// The pool from which queue `number` may take a buffer now: always up to its own two, beyond them only what no other
    /// link is due.
    pub fn pool_for(&self, number: usize) -> Option<&Pool> {
        let pool = self.batches.as_ref()?;
        let free = pool.free_slots();
        if self.queues[number].held_buffers() < BUFFERS_PER_LINK || free > BUFFERS_PER_LINK * self.links() {
            return Some(pool);
        }
        // Queues that rest hold none.
        let held = self.iter_busy().map(|q| q.held_buffers().min(BUFFERS_PER_LINK));
        let due = BUFFERS_PER_LINK * self.links() - held.sum::<usize>();
        (free > due).then_some(pool)
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
