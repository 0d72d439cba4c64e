//! Why nothing of a stream moves on this rank, in words: for a call that waits for it.

use std::fmt::Display;

use super::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::queue::edge::Edge;
use crate::queue::lane::LaneQueue;
use crate::queue::remote::RemoteQueue;

/// Reasons, of which so many are written down; the others are counted.
#[derive(Debug)]
pub struct Reasons {
    texts: Vec<String>,
    most: usize,
    more: usize,
}

impl Reasons {
    /// None yet.
    pub fn at_most(most: usize) -> Self {
        Self {
            texts: Vec::new(),
            most,
            more: 0,
        }
    }

    /// One more.
    pub fn add(&mut self, reason: impl FnOnce() -> String) {
        match self.texts.len() < self.most {
            true => self.texts.push(reason()),
            false => self.more += 1,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.more == 0
    }

    /// Those that are written down, and how many there are beside them.
    pub fn into_texts(mut self) -> Vec<String> {
        if self.more > 0 {
            self.texts.push(format!("and {} more", self.more));
        }
        self.texts
    }
}

/// As many of these as are read at a glance, and how many more there are.
pub fn at_a_glance(mut all: impl Iterator<Item = impl Display>) -> String {
    let shown: Vec<String> = all.by_ref().take(8).map(|one| one.to_string()).collect();
    let shown = shown.join(", ");
    match all.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl StreamState {
    /// What keeps messages of this stream from leaving this rank or from being delivered here: for
    /// whom, and at which stage.
    pub fn add_reasons(&self, out: &Outbound, reasons: &mut Reasons) {
        let name = &self.name;
        let mut add =
            |reason: &dyn Fn() -> String| reasons.add(|| format!("`{name}`: {}", reason()));
        if let Some(reason) = self.delivery_reason() {
            add(&|| reason.clone());
        }
        if !out.spill.is_empty() {
            let (runs, bytes) = (out.spill.len(), out.spill.used_bytes());
            let pause = if out.gauge().is_pressed() {
                ", and deliveries wait for that"
            } else {
                ""
            };
            add(&|| {
                format!(
                    "spill: {runs} runs and records of handlers ({bytes} bytes) find no room in a queue{pause}"
                )
            });
        }
        let (route, queues) = (&out.queues.route, &out.queues);
        for stage in route.numbers() {
            let name = route.stage_name(stage);
            for queue in queues.of_stage(stage).filter(|queue| is_stuck(queue)) {
                add(&|| match queue {
                    Edge::Lane(lane) => format!("{name} {}", self.lane_reason(lane)),
                    Edge::Link(link) => format!("{name} {}", link_reason(link)),
                });
            }
        }
        if out.large_bytes() > 0 {
            let bytes = out.large_bytes();
            add(&|| format!("{bytes} bytes of a long record find no room in a queue"));
        }
    }

    fn delivery_reason(&self) -> Option<String> {
        let (records, whose) = match &self.sink {
            Sink::Thread(handover) => (handover.waiting().0, "the handler"),
            Sink::Queue(queue) => (queue.records(), "a call of `take`"),
            Sink::Handler | Sink::Collectives(_) | Sink::Closed => return None,
        };
        (records > 0).then(|| format!("delivery: {records} records wait for {whose} on this rank"))
    }

    fn lane_reason(&self, lane: &LaneQueue) -> String {
        let (rank, bytes) = (lane.peer, lane.in_use_bytes());
        if rank == self.topology.endpoint() {
            return format!(
                "lane: the last {bytes} bytes for this rank itself may not be delivered"
            );
        }
        let name = self.topology.name_of(rank);
        format!("lane: {name} may not have taken the last {bytes} bytes")
    }
}

fn is_stuck(queue: &Edge<&LaneQueue, &RemoteQueue>) -> bool {
    match queue {
        Edge::Lane(lane) => lane.in_use_bytes() > 0,
        Edge::Link(link) => link.ready_batches() > 0 || link.credit.in_flight() > 0,
    }
}

fn link_reason(remote: &RemoteQueue) -> String {
    let rank = remote.end;
    let (ready, in_flight) = (remote.ready_batches(), remote.credit.in_flight());
    match (ready, in_flight) {
        (0, _) => format!("link: rank {rank} has not acknowledged {in_flight} batches"),
        (_, 0) if remote.may_post() => format!(
            "link: the provider does not take {ready} batches for rank {rank}: it has no \
             connection, or no room"
        ),
        (_, 0) => format!("link: {ready} batches wait for credit of rank {rank}"),
        _ => format!(
            "link: rank {rank} has not acknowledged {in_flight} batches, and {ready} wait for its credit"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_beyond_a_bound_are_counted_and_not_written() {
        let mut reasons = Reasons::at_most(2);
        assert!(reasons.is_empty());
        reasons.add(|| "one".to_owned());
        reasons.add(|| "two".to_owned());
        reasons.add(|| unreachable!("it is not written"));
        reasons.add(|| unreachable!("nor is this"));
        assert_eq!(reasons.into_texts(), ["one", "two", "and 2 more"]);
        assert!(
            !Reasons {
                texts: Vec::new(),
                most: 0,
                more: 1
            }
            .is_empty()
        );
    }
}
