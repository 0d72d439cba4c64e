//! What a stream has counted.

use super::StreamState;
use super::outbound::Outbound;
use crate::route::stage;
use crate::stats::{DetailedStats, StageStats, Stats};

impl StreamState {
    /// Counters of this moment.
    pub fn snapshot(&self, out: &Outbound) -> Stats {
        let mut stats = self.stats.clone();
        stats.undelivered = self.handover.as_ref().map_or(0, |h| h.undelivered());
        let dropped = stats.discarded + stats.undelivered;
        stats.delivered = self.delivered().saturating_sub(dropped);
        stats.sent = out.sent;
        stats.sent_bytes = out.sent_bytes;
        stats.would_block = out.would_block;
        stats.broadcasts = out.broadcasts;
        let queues = &out.queues;
        stats.broadcast_copies = queues.copies;
        for stage in queues.route.numbers() {
            stats.limit_hits += queues.limit_hits(stage);
        }
        let frames = |name| {
            let stage = queues.route.stage_named(name);
            let edges = stage.into_iter().flat_map(|stage| queues.of_stage(stage));
            edges.map(|queue| queue.counters().frames()).sum()
        };
        stats.origin_frames = frames(stage::ORIGIN);
        stats.remote_frames = frames(stage::REMOTE);
        stats.relay_frames = frames(stage::RELAY);
        let lanes = queues.lanes.iter().map(|lane| (&lane.counters, false));
        let links = queues
            .remotes
            .iter()
            .map(|link| (&link.counters, link.is_beyond));
        for (counters, is_beyond) in lanes.chain(links) {
            stats.queue_waits += counters.waits();
            stats.forwarded_bytes += counters.forwarded_bytes();
            if is_beyond {
                stats.runs_to_fabric += counters.forwarded();
                stats.batches_sent += counters.sends();
            } else {
                stats.runs_from_fabric += counters.forwarded();
            }
        }
        stats.wire_bytes = queues.remotes.iter().map(|r| r.wire_bytes).sum();
        stats
    }

    /// Counters of this moment, of the stream and of each of its queues.
    pub fn detailed(&self, out: &Outbound) -> DetailedStats {
        let mut detailed = DetailedStats {
            stream: self.name.clone(),
            rank: self.topology.rank().0,
            totals: self.snapshot(out),
            ..DetailedStats::default()
        };
        let queues = &out.queues;
        let stage_stats = |stage| {
            let edges = queues.of_stage(stage);
            let stats = edges.map(|queue| queue.counters().stats(queue.peer().0, queues.now_ns));
            StageStats::of(
                queues.route.stage_name(stage),
                stats,
                queues.limit_hits(stage),
            )
        };
        detailed.stages = queues.route.numbers().map(stage_stats).collect();
        detailed
    }
}
