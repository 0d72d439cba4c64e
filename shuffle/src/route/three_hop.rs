//! Source, its representative, the target's representative, target: each hop skipped where both
//! ends are the same.

use super::{EndpointId, Next, Reach, Route, Stage, StageSpec, other_local, stage};
use trihop_transport::topology::{NodeId, Rank, Topology};

/// To a rank of the node, which gets the run or represents its node.
const ORIGIN: Stage = Stage(1);
/// To another node.
const REMOTE: Stage = Stage(2);
/// To a rank of the node that the run has come to.
const RELAY: Stage = Stage(3);

/// The stages of three hops.
pub(super) const STAGES: [StageSpec; 3] = [
    StageSpec::shared(stage::ORIGIN),
    StageSpec::fabric(stage::REMOTE),
    StageSpec::shared(stage::RELAY),
];

/// The three-hop route of DeltaFS Shuffle, with the representatives that nexus would choose.
///
/// A rank has one remote edge per node that it represents: every `local_size`-th node.
#[derive(Debug, Clone)]
pub struct ThreeHop {
    topology: Topology,
}

impl ThreeHop {
    /// The route as seen from this rank of `topology`.
    pub fn new(topology: Topology) -> Self {
        Self { topology }
    }

    /// Number that the own node has among the nodes that this rank represents, if it is one of
    /// them.
    fn own_place(&self) -> Option<u32> {
        let node = self.topology.node();
        self.represents(node)
            .then(|| node.0 / self.topology.local_size())
    }

    /// Whether this rank speaks with a node for its own, or would if that were another one.
    fn represents(&self, node: NodeId) -> bool {
        node.0 % self.topology.local_size() == self.topology.local_rank()
    }

    /// Other nodes that this rank represents.
    fn represented(&self) -> u32 {
        let (first, step) = (self.topology.local_rank(), self.topology.local_size());
        let all = (self.topology.nodes() + step - 1 - first) / step;
        all - u32::from(self.own_place().is_some())
    }

    /// The rank at the other end of the edge to the `number`-th of them.
    fn remote(&self, number: u32) -> EndpointId {
        let place = match self.own_place() {
            Some(own) if own <= number => number + 1,
            _ => number,
        };
        let node = place * self.topology.local_size() + self.topology.local_rank();
        self.topology.target_representative(NodeId(node)).into()
    }
}

impl Route for ThreeHop {
    #[inline]
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let here = &self.topology;
        if target == here.rank() {
            return Some(match at {
                Stage::SOURCE => Next::To(target.into(), ORIGIN),
                _ => Next::Deliver,
            });
        }
        let node = here.node_of(target);
        if node == here.node() {
            return match at {
                Stage::SOURCE => Some(Next::To(target.into(), ORIGIN)),
                REMOTE => Some(Next::To(target.into(), RELAY)),
                _ => None,
            };
        }
        let speaker = node.0 % here.local_size();
        match at {
            Stage::SOURCE | ORIGIN if speaker == here.local_rank() => {
                Some(Next::To(here.target_representative(node).into(), REMOTE))
            }
            Stage::SOURCE => Some(Next::To(here.rank_at(here.node(), speaker).into(), ORIGIN)),
            _ => None,
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        match (stage, reach) {
            (RELAY, Reach::Node) if self.topology.nodes() == 1 => 0, // nothing comes from elsewhere
            (ORIGIN | RELAY, Reach::Node) => self.topology.local_size() - 1,
            (REMOTE, Reach::Beyond) => self.represented(),
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
        let here = &self.topology;
        let node = here.node_of_endpoint(peer);
        match stage {
            RELAY if here.nodes() == 1 => false,
            ORIGIN | RELAY => node == here.node() && peer != here.endpoint(),
            REMOTE => {
                node != here.node()
                    && self.represents(node)
                    && EndpointId::from(here.target_representative(node)) == peer
            }
            _ => false,
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        match (stage, reach) {
            (RELAY, Reach::Node) if self.topology.nodes() == 1 => 0,
            (ORIGIN | RELAY, Reach::Node) => self.topology.most_local() - 1,
            (REMOTE, Reach::Beyond) => self.topology.nodes().div_ceil(self.topology.fewest_local()),
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, _: Rank) -> u32 {
        let others = self.topology.local_size() - 1;
        match at {
            Stage::SOURCE => self.represented() + others,
            ORIGIN => self.represented(),
            REMOTE => others,
            _ => 0,
        }
    }

    fn copy(&self, at: Stage, _: Rank, number: u32) -> (EndpointId, Stage) {
        if at == REMOTE {
            return (other_local(&self.topology, number), RELAY);
        }
        match number.checked_sub(self.represented()) {
            None => (self.remote(number), REMOTE),
            Some(number) => (other_local(&self.topology, number), ORIGIN),
        }
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let node = self.topology.node_of(source);
        let is_local = node == self.topology.node();
        match at {
            ORIGIN => is_local,
            REMOTE => !is_local && self.represents(node),
            RELAY => !is_local && !self.represents(node),
            _ => false,
        }
    }

    fn ranks_behind(&self, end: EndpointId) -> Option<u64> {
        let node = self.topology.node_of_endpoint(end);
        Some(self.topology.local_size_of(node).into())
    }
}
