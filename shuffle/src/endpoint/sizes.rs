//! Sizes of a stream's queues, as they follow from the shape of the job.

use trihop_transport::link::Limits;
use trihop_transport::protocol::wire::BATCH_HEADER_BYTES;
use trihop_transport::topology::Topology;

use crate::config::{Shares, StreamOptions};
use crate::deliver::MIN_FRAGMENT_FRAME;
use crate::engine::outbound::batch_buffer_bytes;
use crate::error::{Error, Result};
use crate::queue::limits::StageOptions;
use crate::queue::remote::{BatchSizes, LinkLimits};
use crate::queue::remotes::BUFFERS_PER_LINK;
use crate::route::JobRoute;

/// Sizes that follow from a job's shape and a stream's options, equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StreamSizes {
    pub lane_bytes: u32,
    pub frame_bytes: usize,
    pub batch_bytes: usize,
    /// What links may have on their way, by stage; nothing where a stage has none.
    pub links: Vec<LinkLimits>,
}

impl StreamSizes {
    /// Lanes take their share of `memory_bytes` on the fullest node, batches theirs where links are
    /// most; a frame is at most a quarter of a lane, and fits a batch.
    pub fn new(topology: &Topology, route: &JobRoute, options: &StreamOptions) -> Self {
        let affordable = options.shares().lane_budget_bytes / most_lanes(topology, route);
        let lane_bytes = floor_power_of_two(affordable).clamp(4096, MAX_LANE_BYTES as usize) as u32;
        let links = route.most_links().max(1) as usize;
        let affordable =
            floor_power_of_two(options.shares().send_pool_bytes / (BUFFERS_PER_LINK * links))
                .max(options.shares().small_slot_bytes);
        let limits = |(stage, options): (_, StageOptions)| match route.most_links_of(stage) {
            0 => LinkLimits::default(),
            _ => LinkLimits {
                target_bytes: options
                    .buftarget_bytes
                    .clamp(BATCH_HEADER_BYTES + 1, affordable),
                maxrpc: options.maxrpc.min(LINK_MAXRPC),
            },
        };
        let stages = route
            .numbers()
            .zip(StageOptions::of_all_links(route, options));
        let links: Vec<_> = stages.map(limits).collect();
        let frame_bytes = (lane_bytes as usize / 4).min(affordable - BATCH_HEADER_BYTES) & !7;
        debug_assert!(frame_bytes >= MIN_FRAGMENT_FRAME);
        let target_bytes = links.iter().map(|limits| limits.target_bytes).max();
        Self {
            lane_bytes,
            frame_bytes,
            batch_bytes: batch_buffer_bytes(target_bytes.unwrap_or(0), frame_bytes),
            links,
        }
    }
}

impl StreamSizes {
    /// Sizes of batches over a link with these limits.
    pub fn batch_sizes(
        &self,
        options: &StreamOptions,
        limits: &Limits,
        on_demand: bool,
    ) -> BatchSizes {
        let eager = limits.eager_bytes.max(options.shares().small_slot_bytes);
        BatchSizes {
            most_in_flight: self
                .links
                .iter()
                .map(|limits| limits.maxrpc)
                .max()
                .unwrap_or(0),
            buffer_bytes: self.batch_bytes,
            small_bytes: options.shares().small_slot_bytes.next_multiple_of(64),
            large_bytes: self.batch_bytes.min(eager).next_multiple_of(64),
            on_demand,
        }
    }
}

impl StreamSizes {
    /// Refuses items of which not one fits a frame: runs of items are delivered as they lie there,
    /// and a long record's fragments are of one record.
    ///
    /// # Errors
    /// [`Error::Config`] with the option that makes frames longer, its value here and the least
    /// that would do.
    pub fn check_item(
        &self,
        item_bytes: usize,
        topology: &Topology,
        route: &JobRoute,
        options: &StreamOptions,
    ) -> Result<()> {
        let largest = self.frame_bytes - ITEM_FRAME_BYTES;
        if item_bytes <= largest {
            return Ok(());
        }
        let refuse = |key: &str, remedy: String| {
            let why = format!(
                "an item of {item_bytes} bytes is above {largest}, the most that a frame takes; {remedy}"
            );
            Err(Error::config(key, why))
        };
        if item_bytes > MAX_LANE_BYTES as usize / 4 - ITEM_FRAME_BYTES {
            let most = MAX_LANE_BYTES as usize / 4 - ITEM_FRAME_BYTES;
            let remedy =
                format!("no options make that more than {most}: send records of a shuffle instead");
            return refuse("item_bytes", remedy);
        }
        let frame = item_bytes.next_multiple_of(8) + ITEM_FRAME_BYTES;
        let (ranks, links) = (topology.most_local() as usize, route.most_links() as usize);
        let lanes = (4 * frame).next_power_of_two() * most_lanes(topology, route);
        let batches = (frame + BATCH_HEADER_BYTES).next_power_of_two() * BUFFERS_PER_LINK * links;
        let least = Shares::whole("lane_budget_bytes", lanes)
            .max(Shares::whole("send_pool_bytes", batches));
        let remedy = format!(
            "memory_bytes is {} for {ranks} ranks of a node and {links} links: make it {least}",
            options.memory_bytes
        );
        refuse("memory_bytes", remedy)
    }
}

/// Whether a stream has so many links that these have no receive slots of their own, and share
/// some, where endpoints take so many receives more. Each of its own takes five, those that are
/// fetched included; a quarter is left for others.
pub(crate) fn is_on_demand(route: &JobRoute, options: &StreamOptions, receives: usize) -> bool {
    route.most_links() as usize > options.shares().own_slots.min(receives / 4 * 3 / 5)
}

/// The most lanes into an endpoint of the job.
fn most_lanes(topology: &Topology, route: &JobRoute) -> usize {
    route.lanes_per_rank() as usize * topology.most_places() as usize
}

/// What a frame holds beside an item, headers and rounding included.
const ITEM_FRAME_BYTES: usize = 64;

/// Longest lane of a stream.
const MAX_LANE_BYTES: u32 = 64 << 10;

/// Batches that may be in flight on one link, whatever is asked for lanes.
const LINK_MAXRPC: u32 = 1024;

/// Refuses a route whose links need more memory for batches than they may have. (The default one
/// has few links, and gets what these need.)
pub(crate) fn check_memory(route: &JobRoute, options: &StreamOptions) -> Result<()> {
    let links = route.most_links() as usize;
    let Shares {
        small_slot_bytes,
        send_pool_bytes,
        ..
    } = options.shares();
    let needed = BUFFERS_PER_LINK * links * small_slot_bytes;
    if links <= route.least_links() as usize || needed <= send_pool_bytes {
        return Ok(());
    }
    let why = format!(
        "`{}` with {links} links needs {needed} bytes for batches, and {send_pool_bytes} of memory_bytes ({}) are for \
         them; use `three-hop`, or make it {}",
        route.name(),
        options.memory_bytes,
        Shares::whole(
            "send_pool_bytes",
            BUFFERS_PER_LINK * links * Shares::LARGEST_SMALL_SLOT
        )
    );
    Err(Error::config("route", why))
}

/// The largest power of two that is at most `value`, 0 for 0.
fn floor_power_of_two(value: usize) -> usize {
    value.checked_ilog2().map_or(0, |bits| 1 << bits)
}

#[cfg(test)]
mod tests {
    use trihop_transport::topology::Rank;

    use super::*;
    use crate::route::RouteName;

    /// The error for such items, and the options with what it advises.
    fn refused(
        sizes: &[u32],
        options: &StreamOptions,
        item_bytes: usize,
    ) -> Option<(String, StreamOptions)> {
        let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
        let route = JobRoute::new(RouteName::default(), &topology).unwrap();
        let stream_sizes = StreamSizes::new(&topology, &route, options);
        let error = stream_sizes
            .check_item(item_bytes, &topology, &route, options)
            .err()?
            .to_string();
        let mut advised = options.clone();
        if let Some((text, value)) = error.rsplit_once("make it ") {
            assert!(text.starts_with("option memory_bytes: "), "{error}");
            advised.memory_bytes = value.parse().unwrap();
        }
        advised.check().unwrap();
        Some((error, advised))
    }

    #[test]
    fn an_item_longer_than_a_frame_names_the_option_that_helps() {
        let defaults = StreamOptions::default();
        assert!(refused(&[4; 2], &defaults, 16320).is_none());
        let (text, _) = refused(&[4; 2], &defaults, 16321).unwrap();
        assert!(
            text.contains("16321 bytes is above 16320") && text.contains("records of a shuffle"),
            "{text}"
        );
        // 64 ranks on a node have lanes of 16 KiB, and 500 links of one rank have short batches.
        for sizes in [&[64; 200][..], &[1; 500]] {
            let (text, advised) = refused(sizes, &defaults, 5000).unwrap();
            assert!(
                text.starts_with("option memory_bytes: ") && text.contains("33554432"),
                "{text}"
            );
            assert!(refused(sizes, &advised, 5000).is_none());
        }
    }

    #[test]
    fn what_is_advised_for_long_items_is_enough() {
        let tiny = StreamOptions {
            memory_bytes: 256 << 10,
            ..StreamOptions::default()
        };
        for sizes in [&[1u32][..], &[7], &[3, 9], &[1; 40]] {
            for item_bytes in [100, 200, 961, 1000, 4032, 4033, 8000, 16319, 16320] {
                if let Some((text, advised)) = refused(sizes, &tiny, item_bytes) {
                    assert!(
                        refused(sizes, &advised, item_bytes).is_none(),
                        "{item_bytes} on {sizes:?}: {text}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_advised_for_many_links_is_enough() {
        for (memory_bytes, nodes) in [
            (256 << 10, 200),
            (1 << 20, 512),
            (32 << 20, 600),
            (64 << 20, 3000),
        ] {
            let mut options = StreamOptions {
                memory_bytes,
                ..StreamOptions::default()
            };
            // Two ranks a node: alone on its node, each would be linked with all others anyway.
            let topology = Topology::from_node_sizes(&vec![2; nodes / 2], Rank(0)).unwrap();
            let route = JobRoute::new(RouteName::Direct, &topology).unwrap();
            let text = check_memory(&route, &options).unwrap_err().to_string();
            let (_, value) = text.rsplit_once("make it ").unwrap();
            options.memory_bytes = value.parse().unwrap();
            options.check().unwrap();
            assert!(check_memory(&route, &options).is_ok(), "{text}");
        }
    }
}
