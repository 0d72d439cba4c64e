//! What the links of a stream need to receive, allocated and posted when the stream is opened.

use trihop_transport::link::{Access, Completion, Link};
use trihop_transport::memory::pool::Pool;
use trihop_transport::protocol::control;
use trihop_transport::protocol::credit::Shared;
use trihop_transport::protocol::rendezvous::Fetches;
use trihop_transport::protocol::tags::{TagClass, token};

use super::{CONTROL_BYTES, Links};
use crate::engine::incoming::Arrival;
use crate::error::{Error, Result};
use crate::queue::remote::{BatchSizes, Identity};

/// What to allocate for the links of a stream.
pub(crate) struct LinkPlan {
    pub links: usize,
    pub sizes: BatchSizes,
    /// Batches that may be in flight on all links together.
    pub in_flight: usize,
    pub receive_pool_bytes: usize,
    /// Receives that the endpoint's other streams post.
    pub posted: usize,
}

impl LinkPlan {
    /// Whether a batch may be longer than the slot that every link always has.
    fn has_long_batches(&self) -> bool {
        self.sizes.buffer_bytes > self.sizes.small_bytes
    }

    /// Buffers for batches that are fetched: one for the front batch of each link, whatever the
    /// others hold, and a few to read ahead.
    fn fetch_slots(&self) -> usize {
        if self.has_long_batches() {
            self.links + 2 * self.links.min(4)
        } else {
            0
        }
    }
}

impl LinkPlan {
    /// Receives that are posted whatever the pool of large slots is, and buffers for fetches.
    fn needed(&self) -> usize {
        self.controls() + self.links + self.fetch_slots()
    }

    fn controls(&self) -> usize {
        self.links * control::PER_LINK as usize
    }

    /// Large slots, of which no more than `left` receives can be posted.
    fn large_slots(&self, left: usize) -> usize {
        if self.has_long_batches() {
            (self.receive_pool_bytes / self.sizes.large_bytes)
                .clamp(1, left.max(1))
                .min(self.in_flight)
        } else {
            0
        }
    }

    /// A window has a place per batch in flight.
    fn window_bytes(&self) -> usize {
        self.in_flight * size_of::<Option<Arrival>>()
    }

    /// What [`Links::open`] allocates where the provider takes `posted_receives` more, pages not
    /// rounded up.
    pub fn bytes(&self, posted_receives: usize) -> usize {
        let large = self.large_slots(posted_receives.saturating_sub(self.needed()));
        self.controls() * CONTROL_BYTES
            + self.links * self.sizes.small_bytes
            + large * self.sizes.large_bytes
            + self.fetch_slots() * self.sizes.buffer_bytes
            + self.window_bytes()
    }
}

impl Links {
    /// Allocates and posts all receive slots.
    /// What other streams complete meanwhile is appended to `completions`.
    pub fn open(
        link: &mut dyn Link,
        identity: Identity,
        plan: &LinkPlan,
        completions: &mut Vec<Completion>,
    ) -> Result<Self> {
        let LinkPlan { links, sizes, .. } = *plan;
        let controls = plan.controls();
        let posted_max = link.limits().posted_receives.saturating_sub(plan.posted);
        let fetch_slots = plan.fetch_slots();
        let needed = plan.needed();
        let left = posted_max.saturating_sub(needed);
        if left == 0 {
            return Err(Error::config(
                "posted receives",
                format!(
                    "{links} links need {} more, and {} offers {posted_max}; open fewer streams, start more ranks per node \
                     (each then has fewer links), or choose another provider",
                    needed + 1,
                    link.name()
                ),
            ));
        }
        let large = plan.large_slots(left);
        let classes = [
            (TagClass::Control, CONTROL_BYTES, controls),
            (TagClass::Small, sizes.small_bytes, links),
            (TagClass::Large, sizes.large_bytes, large),
        ];
        let mut posted_pools = Vec::new();
        for (class, bytes, count) in classes.into_iter().filter(|&(_, _, count)| count > 0) {
            let pool = link.create_pool(bytes, count, Access::Arrivals)?;
            post_pool(link, &identity, class, &pool, completions)?;
            posted_pools.push(pool);
        }
        let fetch_pool = match fetch_slots {
            0 => None,
            slots => Some(link.create_pool(sizes.buffer_bytes, slots, Access::Arrivals)?),
        };
        let pools: usize = posted_pools
            .iter()
            .chain(&fetch_pool)
            .map(Pool::bytes)
            .sum();
        Ok(Self {
            incoming: Vec::new(),
            arrived: Vec::new(),
            links,
            identity,
            sizes,
            shared: Shared::new(large as u32, sizes.most_in_flight),
            fetches: Fetches::new(fetch_slots),
            fetch_pool,
            holding: 0,
            _posted_pools: posted_pools,
            unposted: Vec::new(),
            fetch_refused: false,
            turn: 0,
            strangers_told: false,
            pool_bytes: pools + plan.window_bytes(),
            posted: controls + links + large + fetch_slots,
        })
    }
}

/// Posts every buffer of `pool` as a receive. Nobody sends before the stream is open on all ranks,
/// so that waiting for the provider keeps nobody waiting.
fn post_pool(
    link: &mut dyn Link,
    identity: &Identity,
    class: TagClass,
    pool: &Pool,
    completions: &mut Vec<Completion>,
) -> Result<()> {
    let (tag, mark) = (identity.tag(class, 0), token(identity.stream, class, 0));
    let mut left = pool.slots();
    for _ in 0..1000 {
        left -= link.post_receives(tag, pool, left, mark)?;
        if left == 0 {
            return Ok(());
        }
        link.poll(completions)?;
    }
    Err(Error::config(
        "posted receives",
        format!("{} takes {left} fewer than it offers", link.name()),
    ))
}
