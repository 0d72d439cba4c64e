//! Sizes of a stream's queues, as they follow from the shape of the job.

use trihop_transport::link::Limits;
use trihop_transport::protocol::wire::BATCH_HEADER_BYTES;
use trihop_transport::topology::Topology;

use crate::config::{Shares, StreamOptions};
use crate::deliver::{LONGEST_ITEM, MIN_FRAGMENT_FRAME};
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
    /// most; a frame is 16 KiB and a quarter of a lane at most, and fits a batch.
    pub fn new(topology: &Topology, route: &JobRoute, options: &StreamOptions) -> Self {
        let shares = options.shares();
        let affordable = shares.lane_budget_bytes / most_lanes(topology, route);
        let lane_bytes = affordable
            .min(shares.longest_lane_bytes)
            .max(SHORTEST_LANE_BYTES);
        let lane_bytes = floor_power_of_two(lane_bytes) as u32;
        let links = route.most_links().max(1) as usize;
        let affordable = floor_power_of_two(shares.send_pool_bytes / (BUFFERS_PER_LINK * links))
            .max(shares.small_slot_bytes);
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
        let longest = LONGEST_FRAME_BYTES.min(affordable - BATCH_HEADER_BYTES);
        let frame_bytes = (lane_bytes as usize / 4).min(longest) & !7;
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

/// Refuses items that no message may be as long as.
///
/// # Errors
/// [`Error::Config`] with the option that allows them.
pub(super) fn check_item(item_bytes: usize, options: &StreamOptions) -> Result<()> {
    if item_bytes > LONGEST_ITEM {
        let why = format!("an item of {item_bytes} bytes is above {LONGEST_ITEM}");
        return Err(Error::config("item_bytes", why));
    }
    let most = options.max_message_bytes;
    if item_bytes > most {
        let why = format!("{most} is below the {item_bytes} bytes of an item of the stream");
        return Err(Error::config("max_message_bytes", why));
    }
    Ok(())
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

/// Shortest lane of a stream.
const SHORTEST_LANE_BYTES: usize = 4096;

/// Longest frame, however long lanes are.
const LONGEST_FRAME_BYTES: usize = 16 << 10;

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
    use crate::route::{Rails, RouteName};

    #[test]
    fn an_item_that_no_message_may_be_as_long_as_names_the_option() {
        let mut options = StreamOptions::default();
        let most = options.max_message_bytes;
        assert!(check_item(most, &options).is_ok());
        let text = check_item(most + 1, &options).unwrap_err().to_string();
        assert!(
            text.starts_with("option max_message_bytes: 67108864 is below the 67108865 bytes"),
            "{text}"
        );
        options.max_message_bytes = u32::MAX as usize;
        assert!(check_item(LONGEST_ITEM, &options).is_ok());
        let text = check_item(LONGEST_ITEM + 1, &options).unwrap_err();
        assert!(
            text.to_string().starts_with("option item_bytes: "),
            "{text}"
        );
    }

    #[test]
    fn lanes_are_as_long_as_is_asked_for_within_their_share_and_frames_stay_as_they_are() {
        let sizes = |local: u32, longest_lane_bytes: usize| {
            let mut options = StreamOptions::default();
            let shares = Shares {
                longest_lane_bytes,
                ..options.shares()
            };
            options.given_shares = Some(shares);
            let topology = Topology::from_node_sizes(&[local; 2], Rank(0)).unwrap();
            let route = JobRoute::new(RouteName::ThreeHop(Rails::ONE), &topology).unwrap();
            let sizes = StreamSizes::new(&topology, &route, &options);
            (sizes.lane_bytes as usize, sizes.frame_bytes)
        };
        let default = Shares::default().longest_lane_bytes;
        assert_eq!(sizes(2, default), (64 << 10, 16 << 10));
        assert_eq!(sizes(2, 256 << 10), (256 << 10, 16 << 10));
        // 2 MiB are for 32 lanes, and for 2,048.
        assert_eq!(sizes(16, 256 << 10), (64 << 10, 16 << 10));
        assert_eq!(sizes(1024, 256 << 10), (4096, 1024));
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
