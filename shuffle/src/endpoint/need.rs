//! What a stream takes of a rank's memory whatever is sent: known before it is opened.

use std::fmt;

use trihop_transport::link::Limits;
use trihop_transport::ring::InboxLayout;
use trihop_transport::topology::Topology;

use super::StreamSizes;
use crate::config::{PoolLimits, StreamOptions};
use crate::engine::inbound::{CONTROL_BYTES, LinkPlan};
use crate::error::Result;
use crate::queue::remote::{BatchSizes, LinkLimits};
use crate::queue::remotes::BUFFERS_PER_LINK;
use crate::queue::runs::RunTable;
use crate::queue::shared::LEAST_BYTES;
use crate::route::{JobRoute, RouteName, Stage};

/// Small sends that may be on their way per link, up to 32 links: announcements and control
/// messages.
const NOTICES_PER_LINK: usize = 8;

/// Slots of the pools for batches and for notices of a stream with so many links.
pub(super) fn send_slots(
    options: &StreamOptions,
    pools: &PoolLimits,
    sizes: &BatchSizes,
    links: usize,
) -> [usize; 2] {
    let notices = NOTICES_PER_LINK * links.min(32);
    let least = BUFFERS_PER_LINK * links;
    let most = (links * (sizes.most_in_flight as usize + 1)).max(least);
    let room = pools
        .injection_bytes
        .saturating_sub(notices * CONTROL_BYTES);
    let bytes = options.shares().send_pool_bytes.min(room);
    [(bytes / sizes.buffer_bytes).clamp(least, most), notices]
}

/// What a rank has for long records behind its inbox, if memory affords it: nothing where there are
/// no such records, or no use for it. `item_bytes` are those of an item, 0 of byte records.
pub(super) fn block_bytes(
    topology: &Topology,
    options: &StreamOptions,
    item_bytes: usize,
) -> usize {
    let longest = match item_bytes {
        0 => options.max_message_bytes,
        _ => item_bytes,
    };
    let bytes = options.shares().block_bytes;
    // A relay has them for what comes over its links; items come in pieces.
    let is_relay_of_others = topology.is_relay() && (topology.nodes() == 1 || item_bytes > 0);
    let is_of_use = !is_relay_of_others
        && longest >= LEAST_BYTES
        && bytes > LEAST_BYTES
        && !matches!(options.route, RouteName::FabricOnly(_));
    match is_of_use {
        true => bytes,
        false => 0,
    }
}

/// What the links of a stream need to receive, as the first of an endpoint's.
pub(super) fn link_plan(
    route: &JobRoute,
    options: &StreamOptions,
    stream_sizes: &StreamSizes,
    sizes: BatchSizes,
    pools: &PoolLimits,
    limits: &Limits,
) -> LinkPlan {
    let most =
        |(stage, limits): (_, &LinkLimits)| route.links_of(stage) as usize * limits.maxrpc as usize;
    let has_links = |&stage: &Stage| route.links_of(stage) > 0;
    let mut plan = LinkPlan {
        links: route.links() as usize,
        stages: route.numbers().filter(has_links).collect(),
        sizes,
        in_flight: route.numbers().zip(&stream_sizes.links).map(most).sum(),
        receive_pool_bytes: 0,
        posted: 0,
        frame_bytes: stream_sizes.frame_bytes,
        most_bytes: options.max_message_bytes,
    };
    // Beside what it has without any memory of the pool, which is one large slot at least.
    let least = plan.bytes(limits.posted_receives, limits.mover);
    let room = pools.ejection_bytes.saturating_sub(least);
    let room = room.saturating_add(plan.sizes.large_bytes);
    plan.receive_pool_bytes = options.shares().receive_pool_bytes.min(room);
    plan
}

/// Memory that is a stream's own from its opening on, or may become so by the first messages that
/// come, in bytes. What grows only when somebody falls behind (spill, delivery queue, long records)
/// is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    run_table: usize,
    send_pools: usize,
    inbox: usize,
    receive_pools: usize,
    shared_records: usize,
}

impl Need {
    /// Of a stream with these options, whose links share receive slots or not; `limits` are those
    /// of this rank's link, if it has one.
    pub fn of(
        topology: &Topology,
        route: &JobRoute,
        options: &StreamOptions,
        pools: &PoolLimits,
        on_demand: bool,
        limits: Option<&Limits>,
    ) -> Result<Self> {
        let stream_sizes = StreamSizes::new(topology, route, options);
        let layout = InboxLayout::new(
            route.lanes_per_rank() * topology.places(),
            stream_sizes.lane_bytes,
        )?;
        let table = RunTable::new(
            topology.size(),
            options.run_bytes,
            options.shares().run_table_bytes,
        );
        let mut need = Self {
            run_table: table.bytes(),
            send_pools: 0,
            inbox: layout.segment_bytes(),
            receive_pools: 0,
            shared_records: 0,
        };
        let links = route.links() as usize;
        if let Some(limits) = limits.filter(|_| links > 0) {
            let sizes = stream_sizes.batch_sizes(options, limits, on_demand);
            let [batches, notices] = send_slots(options, pools, &sizes, links);
            let plan = link_plan(route, options, &stream_sizes, sizes, pools, limits);
            need.send_pools = batches * sizes.buffer_bytes + notices * CONTROL_BYTES;
            need.receive_pools = plan.bytes(limits.posted_receives, limits.mover);
        }
        Ok(need)
    }

    /// With so many bytes for long records behind its inbox.
    pub fn sharing(self, shared_records: usize) -> Self {
        Self {
            shared_records,
            ..self
        }
    }

    /// Of it what its links send from, and what they receive into.
    pub fn pools(&self) -> [usize; 2] {
        [self.send_pools, self.receive_pools]
    }

    /// All of it.
    pub fn bytes(&self) -> usize {
        self.run_table + self.send_pools + self.inbox + self.receive_pools + self.shared_records
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            run_table,
            send_pools,
            inbox,
            receive_pools,
            shared_records,
        } = self;
        write!(
            f,
            "run table {run_table} + send pools {send_pools} + inbox {inbox} + \
             receive pools {receive_pools} + shared records {shared_records}"
        )
    }
}
