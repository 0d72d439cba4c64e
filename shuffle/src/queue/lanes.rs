//! The lanes of one class from a rank to the ranks of its node, each opened when it is first used.

use std::sync::Arc;

use trihop_transport::memory::segment::Segment;
use trihop_transport::ring::{Bell, InboxLayout, Producer};

use super::lane::LaneQueue;
use super::on_demand::OnDemand;
use super::tally::{Tally, Why};

/// Where the inboxes of a node's ranks are, by local rank.
pub(crate) struct Neighbours {
    pub segments: Vec<Arc<Segment>>,
    pub bells: Arc<[Arc<Bell>]>,
    pub layout: InboxLayout,
}

/// Output lanes of one class.
pub(crate) struct Lanes {
    queues: OnDemand<LaneQueue>,
    neighbours: Arc<Neighbours>,
    /// Our lane in every inbox.
    lane: u32,
    publish_bytes: usize,
    limit_bytes: usize,
    /// Bytes that may be unconsumed in all of them together.
    sender_limit_bytes: usize,
    /// Bytes of the frame that was refused for that, until one as long has been taken.
    limited_bytes: usize,
    /// Times that this happened.
    pub limit_hits: u64,
    /// Local rank whose inbox could not be written to, and why.
    failed: Option<(u32, String)>,
}

impl Lanes {
    /// No lane open yet; each publishes every `publish_bytes` and holds at most `maxrpc` times that.
    pub fn new(neighbours: Arc<Neighbours>, lane: u32, publish_bytes: usize, maxrpc: u32) -> Self {
        Self {
            queues: OnDemand::new(neighbours.segments.len()),
            neighbours,
            lane,
            publish_bytes,
            limit_bytes: publish_bytes.saturating_mul(maxrpc as usize),
            sender_limit_bytes: usize::MAX,
            limited_bytes: 0,
            limit_hits: 0,
            failed: None,
        }
    }

    /// At most `batches` times the bytes of a publish may be unconsumed in all lanes together; 0 for no such limit.
    pub fn limit(mut self, batches: u32) -> Self {
        if batches > 0 {
            self.sender_limit_bytes = self.publish_bytes.saturating_mul(batches as usize);
        }
        self
    }

    /// Whether the limit of all lanes together admits a frame; one frame always may.
    #[inline]
    pub fn admits(&mut self, bytes: usize) -> bool {
        self.sender_limit_bytes == usize::MAX || self.fits_limit(bytes)
    }

    #[cold]
    fn fits_limit(&mut self, bytes: usize) -> bool {
        let limit = self.sender_limit_bytes;
        let fits = |used: usize| used == 0 || used + bytes <= limit;
        let mut admitted = fits(self.iter().map(LaneQueue::in_use_bytes).sum());
        if !admitted {
            // Shown to their consumers, so that these can make room. A position that cannot be true stays as it was, and
            // the lane's next push reports it.
            for lane in self.queues.iter_mut() {
                lane.publish(Why::Full);
                let _ = lane.consumed();
            }
            admitted = fits(self.iter().map(LaneQueue::in_use_bytes).sum());
        }
        if !admitted {
            self.limit_hits += u64::from(self.limited_bytes == 0);
            self.limited_bytes = bytes;
        } else if bytes >= self.limited_bytes {
            self.limited_bytes = 0; // a shorter frame passes one that waits still
        }
        admitted
    }

    /// What users see of it counts from now on.
    pub fn begin_again(&mut self) {
        self.limit_hits = 0;
        self.queues
            .iter_mut()
            .for_each(|lane| lane.tally = Tally::default());
    }

    /// Whether a frame waits for the limit: any release may be what it waits for.
    pub fn is_limited(&self) -> bool {
        self.limited_bytes > 0
    }

    /// The queue to a local rank, opened if need be; `None` for no such rank, or where its inbox is damaged.
    #[inline]
    pub fn to(&mut self, local: u32) -> Option<&mut LaneQueue> {
        if local as usize >= self.queues.keys() {
            return None;
        }
        let (neighbours, lane) = (&self.neighbours, self.lane);
        let (publish, limit) = (self.publish_bytes, self.limit_bytes);
        let opened = self.queues.number(local, || {
            let segment = Arc::clone(&neighbours.segments[local as usize]);
            let bell = Arc::clone(&neighbours.bells[local as usize]);
            tracing::trace!(to = local, lane, "first use of a lane to a local rank");
            let producer = Producer::new(segment, neighbours.layout, lane, bell)?;
            Ok::<_, trihop_transport::Error>(LaneQueue::new(local, producer, publish, limit))
        });
        match opened {
            Ok(number) => Some(&mut self.queues[number]),
            Err(error) => {
                self.failed = Some((local, error.to_string()));
                None
            }
        }
    }

    /// Bytes that may be in use of a lane: of its nursery and its ring.
    pub fn most_bytes(&self) -> usize {
        self.neighbours.layout.max_in_use_bytes()
    }

    /// Local rank whose inbox is damaged, and how.
    pub fn failure(&self) -> Option<(u32, String)> {
        let corrupt = || {
            self.queues
                .iter()
                .find_map(|lane| Some((lane.local, lane.corrupt.as_ref()?.to_string())))
        };
        self.failed.clone().or_else(corrupt)
    }

    /// The lanes that are open.
    pub fn iter(&self) -> impl Iterator<Item = &LaneQueue> {
        self.queues.iter()
    }

    /// As [`Lanes::iter`], to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut LaneQueue> {
        self.queues.iter_mut()
    }
}
