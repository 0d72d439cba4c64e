//! What the links of a stream need to receive, allocated and posted when the stream is opened.

use trihop_transport::link::{Access, Completion, Link, Mover};
use trihop_transport::memory::pool::Pool;
use trihop_transport::protocol::control;
use trihop_transport::protocol::credit::Shared;
use trihop_transport::protocol::rendezvous::Fetches;
use trihop_transport::protocol::tags::{TagClass, token};

use super::{CONTROL_BYTES, Links};
use crate::engine::incoming::Arrival;
use crate::error::{Error, Result};
use crate::queue::remote::{BatchSizes, Identity};
use crate::route::Stage;

/// What to allocate for the links of a stream.
pub(crate) struct LinkPlan {
    pub links: usize,
    /// The stages that have links.
    pub stages: Vec<Stage>,
    pub sizes: BatchSizes,
    /// Batches that may be in flight on all links together.
    pub in_flight: usize,
    pub receive_pool_bytes: usize,
    /// Receives that the endpoint's other streams post.
    pub posted: usize,
    /// What a frame and a record have at most.
    pub frame_bytes: usize,
    pub most_bytes: usize,
}

/// Receive slots of a stream, and buffers for fetches.
struct Slots {
    controls: usize,
    small: usize,
    large: usize,
    fetch: usize,
    /// Parts of records that may be on their way into blocks: one of each link, where links have
    /// slots of their own, and some more.
    parts: usize,
    more_parts: usize,
}

/// Control receives of a stream whose links share them: what comes before one is free waits in the
/// provider, at most [`control::PER_LINK`] short messages of a link.
const SHARED_CONTROLS: usize = 64;
/// Parts of long records that are on their way into blocks at once, beside the first of each link.
const MOST_PARTS: usize = 16;
/// Fetch buffers of a stream whose links share them, if memory and receives allow as many.
const SHARED_FETCHES: usize = 64;

impl LinkPlan {
    /// Large slots that memory is there for.
    fn affordable(&self) -> usize {
        self.receive_pool_bytes / self.sizes.large_bytes
    }

    /// The slots of a stream to which `offered` receives are left, of which batches that are
    /// fetched take some where they come as messages. Of what is left above the least that it
    /// needs, a part is taken, so that other streams find some; `Err` is that least.
    fn slots(&self, offered: usize, mover: Mover) -> std::result::Result<Slots, usize> {
        match self.sizes.on_demand {
            true => self.shared_slots(offered, mover),
            false => self.own_slots(offered, mover),
        }
    }

    /// A control and a small slot of each link's own, and a pool of large ones.
    fn own_slots(&self, offered: usize, mover: Mover) -> std::result::Result<Slots, usize> {
        let mut slots = Slots {
            controls: self.links * control::PER_LINK as usize,
            small: self.links,
            large: 0,
            fetch: 0,
            parts: 0,
            more_parts: 0,
        };
        if !self.sizes.has_long_batches() {
            let least = slots.receives(mover);
            return if offered < least {
                Err(least)
            } else {
                Ok(slots)
            };
        }
        // One for the front batch of each link, whatever the others hold, and a few to read ahead.
        slots.fetch = self.links + 2 * self.links.min(4);
        let least = slots.receives(mover) + 1;
        let left = offered.checked_sub(least).ok_or(least)?;
        slots.large = (self.affordable().clamp(1, 1 + left / 8)).min(self.in_flight);
        if left / 4 >= self.links {
            slots.more_parts = MOST_PARTS.min(left / 16);
            slots.parts = self.links + slots.more_parts;
        }
        Ok(slots)
    }

    /// Few of each, whatever the links are.
    fn shared_slots(&self, offered: usize, mover: Mover) -> std::result::Result<Slots, usize> {
        let stages = self.stages.len();
        let is_announced = self.sizes.has_long_batches();
        // Two of each stage: one for any link, one for a link whose record has begun.
        let mut slots = Slots {
            controls: 2,
            small: 0,
            large: 2 * stages,
            fetch: if is_announced { 2 * stages } else { 0 },
            parts: 0,
            more_parts: 0,
        };
        let least = slots.receives(mover);
        let left = offered.checked_sub(least).ok_or(least)?;
        let part = left / 32;
        slots.controls += part.min(SHARED_CONTROLS - 2);
        if is_announced {
            slots.fetch += part.min(SHARED_FETCHES);
            slots.more_parts = part.min(MOST_PARTS);
            slots.parts = slots.more_parts;
        }
        let more = self.affordable().min(self.in_flight);
        slots.large += more.saturating_sub(slots.large).min(4 * part);
        Ok(slots)
    }

    /// A window has a place per batch in flight.
    fn window_bytes(&self) -> usize {
        self.in_flight * size_of::<Option<Arrival>>()
    }

    /// What [`Links::open`] allocates where the provider takes `posted_receives` more, pages not
    /// rounded up; nothing where it cannot open.
    pub fn bytes(&self, posted_receives: usize, mover: Mover) -> usize {
        let Ok(slots) = self.slots(posted_receives, mover) else {
            return 0;
        };
        slots.controls * CONTROL_BYTES
            + slots.small * self.sizes.small_bytes
            + slots.large * self.sizes.large_bytes
            + slots.fetch * self.sizes.buffer_bytes
            + self.window_bytes()
    }
}

impl Slots {
    /// Receives that are posted for them at most.
    fn receives(&self, mover: Mover) -> usize {
        let fetch = match mover {
            Mover::Read => 0,
            Mover::Segments => self.fetch + self.parts,
        };
        self.controls + self.small + self.large + fetch
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
        let (mover, most) = (link.limits().mover, link.limits().posted_receives);
        let (batch, longest) = (sizes.buffer_bytes, link.limits().max_message_bytes);
        if batch > longest {
            let why = format!(
                "a batch has up to {batch} bytes with its header, and {} sends at most {longest} \
                 at once",
                link.name()
            );
            return Err(Error::config("remote_buftarget_bytes", why));
        }
        let offered = most.saturating_sub(plan.posted);
        let slots = plan.slots(offered, mover).map_err(|least| {
            let why = format!(
                "a stream of {links} links needs {least} receives, and {} has {offered} left \
                 beside those of other streams, closed ones of other options included; use fewer, \
                 start more ranks per node (each then has fewer links), or choose another provider",
                link.name()
            );
            Error::config("provider", why)
        })?;
        let classes = [
            (TagClass::Control, CONTROL_BYTES, slots.controls),
            (TagClass::Small, sizes.small_bytes, slots.small),
            (TagClass::Large, sizes.large_bytes, slots.large),
        ];
        let mut posted_pools = Vec::new();
        for (class, bytes, count) in classes.into_iter().filter(|&(_, _, count)| count > 0) {
            let pool = link.create_pool(bytes, count, Access::Arrivals)?;
            post_pool(link, &identity, class, &pool, completions)?;
            posted_pools.push(pool);
        }
        let fetch_pool = match slots.fetch {
            0 => None,
            count => Some(link.create_pool(sizes.buffer_bytes, count, Access::Arrivals)?),
        };
        let most_in_flight = sizes.most_in_flight;
        let (shared, stages) = match sizes.on_demand {
            false => (
                vec![Shared::new(slots.large as u32, most_in_flight, 0)],
                Vec::new(),
            ),
            true => {
                let count = plan.stages.len();
                let part = |n: usize| slots.large / count + usize::from(n < slots.large % count);
                let pool = |n| Shared::new(part(n) as u32, most_in_flight, 1);
                ((0..count).map(pool).collect(), plan.stages.clone())
            }
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
            shared,
            stages,
            fetches: Fetches::new(slots.fetch + slots.parts),
            fetch_pool,
            more_parts: 0,
            most_more_parts: slots.more_parts,
            takes_parts: slots.parts > 0,
            frame_bytes: plan.frame_bytes,
            most_bytes: plan.most_bytes,
            holding: 0,
            _posted_pools: posted_pools,
            unposted: Vec::new(),
            fetch_refused: false,
            turn: 0,
            strangers_told: false,
            aside_bytes: 0,
            pool_bytes: pools + plan.window_bytes(),
            posted: slots.receives(mover),
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
        "provider",
        format!("{} takes {left} receives fewer than it offers", link.name()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(links: usize, on_demand: bool, posted: usize) -> LinkPlan {
        LinkPlan {
            links,
            stages: vec![Stage::FIRST],
            sizes: BatchSizes {
                most_in_flight: 4,
                buffer_bytes: 64 << 10,
                small_bytes: 4096,
                large_bytes: 16 << 10,
                on_demand,
            },
            in_flight: 4 * links,
            receive_pool_bytes: 4 << 20,
            posted,
            frame_bytes: 16 << 10,
            most_bytes: 64 << 20,
        }
    }

    #[test]
    fn streams_with_any_number_of_links_find_receives_beside_each_other() {
        // As cxi and rxm have them.
        for (mover, offered) in [(Mover::Read, 1024), (Mover::Segments, 2048)] {
            for links in [129, 313, 10_000] {
                let mut left = offered;
                for stream in 0..20 {
                    let plan = plan(links, true, offered - left);
                    let slots = plan.slots(left, mover);
                    let slots = slots.unwrap_or_else(|least| panic!("{stream}: {least}"));
                    assert!(slots.receives(mover) <= left && slots.large >= 2);
                    left -= slots.receives(mover);
                }
            }
            // As many links as may have slots of their own, in one stream or in several.
            for streams in [1, 2, 4, 8] {
                let mut left = offered;
                for stream in 0..streams {
                    let plan = plan(128 / streams, false, offered - left);
                    let slots = plan.slots(left, mover);
                    let slots = slots.unwrap_or_else(|least| panic!("{stream}: {least}"));
                    left -= slots.receives(mover);
                }
            }
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let least = plan(10, false, 0).slots(10, Mover::Read).err();
        assert_eq!(least, Some(41));
        assert!(plan(10, false, 0).slots(41, Mover::Read).is_ok());
        assert_eq!(plan(500, true, 0).slots(3, Mover::Read).err(), Some(4));
        assert!(plan(500, true, 0).slots(4, Mover::Read).is_ok());
    }
}
