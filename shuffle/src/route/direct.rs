//! One hop: an edge to every rank of the node, one to every other rank.

use super::{EndpointId, Next, Reach, Route, Stage, StageSpec, Through, other_local, stage};
use trihop_transport::topology::{Rank, Topology};

/// To a rank of the node.
pub(super) const ORIGIN: Stage = Stage(1);
/// To any other rank.
pub(super) const REMOTE: Stage = Stage(2);

/// The stages of one hop: which of them a run goes over follows from where its target is.
pub(super) const STAGES: [StageSpec; 2] = [
    StageSpec::shared(stage::ORIGIN),
    StageSpec::fabric(stage::REMOTE),
];

/// The route without representatives. What a hop costs is measured against it; its memory grows
/// with the job.
#[derive(Debug, Clone)]
pub struct Direct {
    topology: Topology,
    /// For each rank of this node, ascending, how many of the ranks before it live elsewhere: edges
    /// beyond the node are numbered by rank, its own ranks left out.
    elsewhere: Vec<u32>,
}

impl Direct {
    /// The route as seen from this rank of `topology`.
    pub fn new(topology: Topology) -> Self {
        let local = (0..).zip(topology.ranks_of(topology.node()));
        let elsewhere = local.map(|(before, rank)| rank.0 - before).collect();
        Self {
            topology,
            elsewhere,
        }
    }

    /// Ranks of other nodes.
    fn beyond(&self) -> u32 {
        self.topology.size() - self.topology.local_size()
    }

    fn remote(&self, number: u32) -> EndpointId {
        let before = self
            .elsewhere
            .partition_point(|&elsewhere| elsewhere <= number);
        EndpointId(number + before as u32)
    }
}

impl Route for Direct {
    #[inline]
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        match at {
            Stage::SOURCE if self.topology.is_local(target) => {
                Some(Next::To(target.into(), ORIGIN))
            }
            Stage::SOURCE => Some(Next::To(target.into(), REMOTE)),
            _ => (target == self.topology.rank()).then_some(Next::Deliver),
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        match (stage, reach) {
            (ORIGIN, Reach::Node) => self.topology.local_size() - 1,
            (REMOTE, Reach::Beyond) => self.beyond(),
            _ => 0,
        }
    }

    fn edge(&self, _: Stage, reach: Reach, number: u32) -> EndpointId {
        match reach {
            Reach::Node => other_local(&self.topology, number),
            Reach::Beyond => self.remote(number),
        }
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        match stage {
            ORIGIN => self.topology.is_here(peer) && peer != self.topology.endpoint(),
            REMOTE => !self.topology.is_here(peer),
            _ => false,
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        match (stage, reach) {
            (ORIGIN, Reach::Node) => self.topology.most_local() - 1,
            (REMOTE, Reach::Beyond) => self.topology.size() - self.topology.fewest_local(),
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, _: Rank) -> u32 {
        match at {
            Stage::SOURCE => self.topology.size() - 1,
            _ => 0,
        }
    }

    fn copy(&self, _: Stage, _: Rank, number: u32) -> (EndpointId, Stage) {
        match number.checked_sub(self.beyond()) {
            None => (self.remote(number), REMOTE),
            Some(number) => (other_local(&self.topology, number), ORIGIN),
        }
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        match at {
            ORIGIN => self.topology.is_local(source),
            REMOTE => !self.topology.is_local(source),
            _ => false,
        }
    }

    fn through(&self, _: EndpointId) -> Option<[Through; 2]> {
        let one = Through {
            sources: 1,
            targets: 1,
        };
        Some([one; 2])
    }
}
