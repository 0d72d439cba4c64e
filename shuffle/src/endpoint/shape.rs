//! Sizes of a stream's queues, as they follow from the shape of the job.

use trihop_transport::link::Limits;
use trihop_transport::protocol::wire::BATCH_HEADER_BYTES;
use trihop_transport::topology::Topology;

use crate::config::StreamOptions;
use crate::deliver::MIN_FRAGMENT_FRAME;
use crate::engine::outbound::batch_buffer_bytes;
use crate::error::{Error, Result};
use crate::queue::remote::BatchSizes;
use crate::queue::remotes::BUFFERS_PER_LINK;
use crate::route::{Chosen, Route, RouteName};

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

impl Shape {
    /// Sizes of batches over a link with these limits.
    pub fn batch_sizes(&self, options: &StreamOptions, limits: &Limits) -> BatchSizes {
        let eager = limits.eager_bytes.max(options.small_slot_bytes);
        BatchSizes {
            target_bytes: self.target_bytes,
            maxrpc: self.maxrpc,
            buffer_bytes: self.batch_bytes,
            small_bytes: options.small_slot_bytes.next_multiple_of(64),
            large_bytes: self.batch_bytes.min(eager).next_multiple_of(64),
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
