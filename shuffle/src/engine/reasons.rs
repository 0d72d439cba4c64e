//! Why nothing of a stream moves on this rank, in words: for a call that waits for it.

use super::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::queue::edge::Edge;
use crate::queue::lane::LaneQueue;
use crate::queue::remote::RemoteQueue;

impl StreamState {
    /// What keeps messages of this stream from leaving this rank or from being delivered here: for
    /// whom, and at which stage.
    pub fn reasons(&self, out: &Outbound) -> Vec<String> {
        let mut reasons: Vec<String> = self.delivery_reason().into_iter().collect();
        if !out.spill.is_empty() {
            let (runs, bytes) = (out.spill.len(), out.spill.used_bytes());
            let pause = if out.gauge().is_pressed() {
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
            reasons.push(format!(
                "{bytes} bytes of a long record find no room in a queue"
            ));
        }
        reasons
    }

    fn delivery_reason(&self) -> Option<String> {
        let (records, whose) = match &self.sink {
            Sink::Thread(handover) => (handover.waiting().0, "the handler"),
            Sink::Queue(queue) => (queue.records(), "a call of `take`"),
            Sink::Handler | Sink::Collectives(_) | Sink::Closed => return None,
        };
        (records > 0).then(|| format!("delivery: {records} records wait for {whose} on this rank"))
    }

    fn lane_reason(&self, lane: &LaneQueue) -> Option<String> {
        let (rank, bytes) = (lane.peer, lane.in_use_bytes());
        match bytes {
            0 => None,
            _ if rank == self.topology.endpoint() => Some(format!(
                "lane: {bytes} bytes for this rank itself are not delivered"
            )),
            _ => {
                let name = self.topology.name_of(rank);
                Some(format!("lane: {name} has not taken {bytes} bytes"))
            }
        }
    }
}

fn link_reason(remote: &RemoteQueue) -> Option<String> {
    let rank = remote.end;
    let (ready, in_flight) = (remote.ready_batches(), remote.credit.in_flight());
    match (ready, in_flight) {
        (0, 0) => None,
        (0, _) => Some(format!(
            "link: rank {rank} has not acknowledged {in_flight} batches"
        )),
        (_, 0) => Some(format!(
            "link: {ready} batches wait for credit of rank {rank}"
        )),
        _ => Some(format!(
            "link: rank {rank} has not acknowledged {in_flight} batches, and {ready} wait for its credit"
        )),
    }
}
