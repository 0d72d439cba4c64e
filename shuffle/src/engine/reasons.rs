//! Why nothing of a stream moves on this rank, in words: for whoever waits for it.

use super::Core;
use crate::engine::sink::Sink;
use crate::queue::edge::Edge;
use crate::queue::lane::LaneQueue;
use crate::queue::remote::RemoteQueue;

impl Core<'_> {
    /// What keeps messages of this stream from leaving this rank or from being delivered here: for whom, and at which stage.
    /// A part that a caller up the stack uses is left out.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Ok(sink) = self.sink.try_borrow() {
            reasons.extend(self.delivery_reason(&sink));
        }
        let Ok(out) = self.out.try_borrow() else {
            return reasons;
        };
        if !out.spill.is_empty() {
            let (runs, bytes) = (out.spill.len(), out.spill.used_bytes());
            let pause = if self.gauge.is_pressed() {
                ", and deliveries wait for that"
            } else {
                ""
            };
            reasons.push(format!(
                "spill: {runs} runs and records of handlers ({bytes} bytes) find no room in a queue{pause}"
            ));
        }
        let (route, queues) = (&out.queues.route, &out.queues);
        for stage in route.numbers() {
            let stuck = queues.of_stage(stage).filter_map(|queue| match queue {
                Edge::Lane(lane) => self.lane_reason(lane),
                Edge::Link(link) => link_reason(link),
            });
            reasons.extend(stuck.map(|reason| format!("{} {reason}", route.stage_name(stage))));
        }
        if out.large_bytes() > 0 {
            let bytes = out.large_bytes();
            reasons.push(format!("{bytes} bytes of a long record find no room in a queue"));
        }
        reasons
    }

    fn delivery_reason(&self, sink: &Sink<'_>) -> Option<String> {
        let (records, whose) = match sink {
            Sink::Thread(handover) => (handover.waiting().0, "the handler"),
            Sink::Queue(queue) => (queue.records(), "a call of `take`"),
            Sink::Handler(_) | Sink::Closed => return None,
        };
        (records > 0).then(|| format!("delivery: {records} records wait for {whose} on this rank"))
    }

    fn lane_reason(&self, lane: &LaneQueue) -> Option<String> {
        let (rank, bytes) = (lane.peer, lane.in_use_bytes());
        match bytes {
            0 => None,
            _ if rank == self.topology.rank() => Some(format!(
                "lane: {bytes} bytes for this rank itself are not delivered"
            )),
            _ => Some(format!("lane: rank {rank} has not taken {bytes} bytes")),
        }
    }
}

fn link_reason(remote: &RemoteQueue) -> Option<String> {
    let rank = remote.rank;
    let (ready, in_flight) = (remote.ready_batches(), remote.credit.in_flight());
    match (ready, in_flight) {
        (0, 0) => None,
        (0, _) => Some(format!(
            "link: rank {rank} has not acknowledged {in_flight} batches"
        )),
        (_, 0) => Some(format!("link: {ready} batches wait for credit of rank {rank}")),
        _ => Some(format!(
            "link: rank {rank} has not acknowledged {in_flight} batches, and {ready} wait for its credit"
        )),
    }
}
