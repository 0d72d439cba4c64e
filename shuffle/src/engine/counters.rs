//! What a stream has counted.

use super::Core;
use super::outbound::Outbound;
use crate::queue::lane::LaneQueue;
use crate::queue::lanes::Lanes;
use crate::queue::remote::RemoteQueue;
use crate::route::LinkClass;
use crate::stats::{ClassStats, DetailedStats, Stats};

impl Core {
    /// Counters of this moment.
    pub fn snapshot(&self, out: &Outbound) -> Stats {
        let mut stats = self.stats.clone();
        stats.delivered = self.delivered() - stats.discarded;
        stats.undelivered = self.handover.as_ref().map_or(0, |h| h.undelivered());
        stats.sent = out.sent;
        stats.sent_bytes = out.sent_bytes;
        stats.would_block = out.would_block;
        let remotes = &out.queues.remotes;
        let limit_hits = LinkClass::ALL.map(|class| remotes.limit_hits(class));
        stats.limit_hits = out.queues.origin.limit_hits + limit_hits.iter().sum::<u64>();
        stats.broadcasts = out.broadcasts;
        stats.broadcast_copies = out.queues.copies;
        let over = |class| remotes.of_class(class).map(|r| r.tally.frames()).sum::<u64>();
        let on = |lanes: &Lanes| lanes.iter().map(|l| l.tally.frames()).sum::<u64>();
        stats.origin_frames = on(&out.queues.origin) + over(LinkClass::Origin);
        stats.relay_frames = on(&out.queues.relay) + over(LinkClass::Relay);
        stats.remote_frames = over(LinkClass::Remote);
        stats.batches_sent = remotes.of_class(LinkClass::Remote).map(|r| r.tally.sends()).sum();
        stats.wire_bytes = remotes.iter().map(|r| r.wire_bytes).sum();
        let lanes = out.queues.origin.iter().chain(out.queues.relay.iter());
        let lanes: u64 = lanes.map(|l| l.tally.waits()).sum();
        stats.queue_waits = lanes + remotes.iter().map(|r| r.tally.waits()).sum::<u64>();
        stats
    }

    /// Counters of this moment, of the stream and of each of its queues.
    pub fn detailed(&self, out: &Outbound) -> DetailedStats {
        let mut detailed = DetailedStats {
            stream: self.name.clone(),
            rank: self.identity.rank,
            totals: self.snapshot(out),
            ..DetailedStats::default()
        };
        let queues = &out.queues;
        let of_class = |lanes: Option<&Lanes>, class| {
            let peer = |lane: &LaneQueue| self.topology.rank_at(self.topology.node(), lane.local).0;
            let on = |lane: &LaneQueue| lane.tally.stats(peer(lane), queues.now_ns);
            let over = |remote: &RemoteQueue| remote.tally.stats(remote.rank, queues.now_ns);
            let lane_hits = lanes.map_or(0, |lanes| lanes.limit_hits);
            let stats = lanes.into_iter().flat_map(Lanes::iter).map(on);
            ClassStats::of(
                stats.chain(queues.remotes.of_class(class).map(over)),
                lane_hits + queues.remotes.limit_hits(class),
            )
        };
        detailed.origin = of_class(Some(&queues.origin), LinkClass::Origin);
        detailed.relay = of_class(Some(&queues.relay), LinkClass::Relay);
        detailed.remote = of_class(None, LinkClass::Remote);
        detailed
    }
}
