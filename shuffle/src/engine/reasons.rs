//! Why nothing of a stream moves on this rank, in words: for whoever waits for it.

use super::Core;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::queue::lane::LaneQueue;
use crate::queue::remote::RemoteQueue;

impl Core {
    /// What keeps messages of this stream from leaving this rank or from being delivered here: for whom, and at which stage.
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
        let lanes = [("origin", &out.queues.origin), ("relay", &out.queues.relay)];
        for (class, lanes) in lanes {
            let stuck = lanes.iter().filter(|lane| lane.in_use_bytes() > 0);
            reasons.extend(stuck.map(|lane| self.lane_reason(class, lane)));
        }
        let queues = &out.queues.remotes;
        reasons.extend(queues.iter_busy().filter_map(remote_reason));
        if out.large_bytes() > 0 {
            let bytes = out.large_bytes();
            reasons.push(format!("{bytes} bytes of a long record find no room in a queue"));
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

    fn lane_reason(&self, class: &str, lane: &LaneQueue) -> String {
        let rank = self.topology.rank_at(self.topology.node(), lane.local);
        let bytes = lane.in_use_bytes();
        if rank == self.topology.rank() {
            return format!("{class} lane: {bytes} bytes for this rank itself are not delivered");
        }
        format!("{class} lane: rank {rank} has not taken {bytes} bytes")
    }
}

fn remote_reason(remote: &RemoteQueue) -> Option<String> {
    let (rank, class) = (remote.rank, remote.class);
    let (ready, in_flight) = (remote.ready_batches(), remote.credit.in_flight());
    match (ready, in_flight) {
        (0, 0) => None,
        (0, _) => Some(format!(
            "{class} link: rank {rank} has not acknowledged {in_flight} batches"
        )),
        (_, 0) => Some(format!(
            "{class} link: {ready} batches wait for credit of rank {rank}"
        )),
        _ => Some(format!(
            "{class} link: rank {rank} has not acknowledged {in_flight} batches, and {ready} wait for its credit"
        )),
    }
}
