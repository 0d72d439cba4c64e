//! Source, its representative, the target's representative, target: each hop skipped where both
//! ends are the same.
//!
//! Between two nodes there are [`Rails`], of which the target picks one. The links of a node are
//! numbered: those to node 0, those to node 1 and so on, `rails` to each, its own included, and
//! each belongs to the rank whose local rank is its number modulo the ranks of the node. With one
//! rail these are the representatives that nexus chooses.

use super::{EndpointId, Next, Rails, Reach, Route, Stage, StageSpec, Through, other_local, stage};
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

/// The three-hop route of DeltaFS Shuffle, with any number of rails.
#[derive(Debug, Clone)]
pub struct ThreeHop {
    topology: Topology,
    /// Links between two nodes.
    rails: u64,
    /// The nodes to which the same rail belongs to the same local rank lie so many apart.
    apart: u32,
    /// How far on the node is whose rail belongs to the next local rank that gets any of them.
    inverse: u32,
}

/// Links of this rank by their numbers, without those to its own node.
struct Links {
    count: u32,
    /// How many come before its own node's, and how many are that one's.
    before: u32,
    own: u32,
}

/// Nodes that this rank has a rail to, without its own: every `apart`-th.
struct Nodes {
    first: u32,
    count: u32,
    /// How many come before its own, where that is one of them.
    own: Option<u32>,
}

impl ThreeHop {
    /// The route as seen from this rank of `topology`, with so many rails: see
    /// [`Rails::for_job`].
    pub fn new(topology: Topology, rails: Rails) -> Self {
        let (rails, local_size) = (rails.number().max(1), topology.local_size());
        let common = gcd(rails, local_size);
        let apart = local_size / common;
        let rails_apart = u64::from(rails / common % apart);
        let is_inverse = |&number: &u32| {
            let product = rails_apart * u64::from(number) % u64::from(apart);
            product == 1 % u64::from(apart)
        };
        Self {
            inverse: (0..apart).find(is_inverse).expect("they have no divisor"),
            apart,
            rails: rails.into(),
            topology,
        }
    }

    /// Number that a rail to a node has among the links of the node at this end.
    fn link(&self, towards: NodeId, rail: u64) -> u64 {
        u64::from(towards.0) * self.rails + rail
    }

    /// Local rank of this node that a rail to another one belongs to.
    #[inline]
    fn speaker(&self, node: NodeId, rail: u64) -> u32 {
        (self.link(node, rail) % u64::from(self.topology.local_size())) as u32
    }

    /// The rank at the other end.
    #[inline]
    fn listener(&self, node: NodeId, rail: u64) -> Rank {
        let size = u64::from(self.topology.local_size_of(node));
        let local = self.link(self.topology.node(), rail) % size;
        self.topology.rank_at(node, local as u32)
    }

    /// The rail that ends at this local rank of a node with so many, or would.
    fn rail_at(&self, local: u32, ranks: u32, towards: NodeId) -> u64 {
        let (ranks, begin) = (u64::from(ranks), self.link(towards, 0));
        (u64::from(local) + ranks - begin % ranks) % ranks
    }

    /// The rail that a rank of another node picks: the one that ends there, where one does.
    #[inline]
    fn rail_of(&self, target: Rank, node: NodeId) -> u64 {
        if self.rails == 1 {
            return 0;
        }
        let (local, ranks) = (
            self.topology.local_rank_of(target),
            self.topology.local_size_of(node),
        );
        self.rail_at(local, ranks, self.topology.node()) % self.rails
    }

    /// The rail that broadcasts of a rank take.
    fn rail_of_copies(&self, source: Rank) -> u64 {
        match self.rails {
            1 => 0,
            rails => u64::from(self.topology.local_rank_of(source)) % rails,
        }
    }

    /// Links of this rank.
    fn links(&self) -> Links {
        let step = u64::from(self.topology.local_size());
        let first = u64::from(self.topology.local_rank());
        let below = |end: u64| end.saturating_sub(first).div_ceil(step) as u32;
        let own = self.link(self.topology.node(), 0);
        let (before, behind) = (below(own), below(own + self.rails));
        let all = below(self.link(NodeId(self.topology.nodes()), 0));
        Links {
            count: all - (behind - before),
            before,
            own: behind - before,
        }
    }

    /// The rank at the other end of the `number`-th of them.
    fn remote(&self, number: u32) -> EndpointId {
        let Links { before, own, .. } = self.links();
        let place = u64::from(number) + u64::from(if number < before { 0 } else { own });
        let step = u64::from(self.topology.local_size());
        let link = u64::from(self.topology.local_rank()) + place * step;
        let node = NodeId((link / self.rails) as u32);
        self.listener(node, link % self.rails).into()
    }

    /// The other nodes to which a rail belongs to this rank.
    fn nodes_of(&self, rail: u64) -> Nodes {
        let ranks = self.topology.local_size();
        let local = u64::from(self.topology.local_rank());
        let common = u64::from(ranks / self.apart);
        let behind = (local + u64::from(ranks) - rail % u64::from(ranks)) % u64::from(ranks);
        if behind % common != 0 {
            return Nodes {
                first: 0,
                count: 0,
                own: None,
            };
        }
        let apart = u64::from(self.apart);
        let first = (behind / common * u64::from(self.inverse) % apart) as u32;
        let (nodes, node) = (self.topology.nodes(), self.topology.node().0);
        let own = (node % self.apart == first).then_some(node / self.apart);
        let all = nodes.saturating_sub(first).div_ceil(self.apart);
        Nodes {
            first,
            count: all - u32::from(own.is_some()),
            own,
        }
    }

    /// Where the copy of a broadcast goes that is the `number`-th to another node.
    fn copy_beyond(&self, source: Rank, number: u32) -> EndpointId {
        let rail = self.rail_of_copies(source);
        let Nodes { first, own, .. } = self.nodes_of(rail);
        let place = number + u32::from(own.is_some_and(|own| own <= number));
        self.listener(NodeId(first + place * self.apart), rail)
            .into()
    }

    /// How many copies of a broadcast this rank sends to other nodes.
    fn copies_beyond(&self, source: Rank) -> u32 {
        self.nodes_of(self.rail_of_copies(source)).count
    }

    /// Ranks of a node with so many that pick this rail.
    fn pickers(&self, ranks: u32, rail: u64) -> u64 {
        u64::from(ranks).saturating_sub(rail).div_ceil(self.rails)
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
        let rail = self.rail_of(target, node);
        let speaker = self.speaker(node, rail);
        match at {
            Stage::SOURCE | ORIGIN if speaker == here.local_rank() => {
                Some(Next::To(self.listener(node, rail).into(), REMOTE))
            }
            Stage::SOURCE => Some(Next::To(here.rank_at(here.node(), speaker).into(), ORIGIN)),
            _ => None,
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        match (stage, reach) {
            (RELAY, Reach::Node) if self.topology.nodes() == 1 => 0, // nothing comes from elsewhere
            (ORIGIN | RELAY, Reach::Node) => self.topology.local_size() - 1,
            (REMOTE, Reach::Beyond) => self.links().count,
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
            REMOTE => node != here.node() && self.rail_between(peer, node).is_some(),
            _ => false,
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        let here = &self.topology;
        match (stage, reach) {
            (RELAY, Reach::Node) if here.nodes() == 1 => 0,
            (ORIGIN | RELAY, Reach::Node) => here.most_local() - 1,
            (REMOTE, Reach::Beyond) => {
                let (nodes, ranks) = (u64::from(here.nodes()), u64::from(here.fewest_local()));
                let dealt = (nodes * self.rails).div_ceil(ranks);
                dealt.min((nodes - 1) * self.rails.div_ceil(ranks)) as u32
            }
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, source: Rank) -> u32 {
        let others = self.topology.local_size() - 1;
        match at {
            Stage::SOURCE => self.copies_beyond(source) + others,
            ORIGIN => self.copies_beyond(source),
            REMOTE => others,
            _ => 0,
        }
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        if at == REMOTE {
            return (other_local(&self.topology, number), RELAY);
        }
        match number.checked_sub(self.copies_beyond(source)) {
            None => (self.copy_beyond(source, number), REMOTE),
            Some(number) => (other_local(&self.topology, number), ORIGIN),
        }
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let node = self.topology.node_of(source);
        let is_local = node == self.topology.node();
        let comes_here =
            || self.speaker(node, self.rail_of_copies(source)) == self.topology.local_rank();
        match at {
            ORIGIN => is_local,
            REMOTE => !is_local && comes_here(),
            RELAY => !is_local && !comes_here(),
            _ => false,
        }
    }

    fn through(&self, end: EndpointId) -> Option<[Through; 2]> {
        let node = self.topology.node_of_endpoint(end);
        let rail = self.rail_between(end, node)?;
        let [here, there] = [
            self.topology.local_size(),
            self.topology.local_size_of(node),
        ];
        Some([(here, there), (there, here)].map(|(from, to)| Through {
            sources: from.into(),
            targets: self.pickers(to, rail),
        }))
    }
}

impl ThreeHop {
    /// The rail between this rank and one of another node, if there is one.
    fn rail_between(&self, peer: EndpointId, node: NodeId) -> Option<u64> {
        let here = &self.topology;
        let (own, theirs) = (here.local_size(), here.local_size_of(node));
        // There are no more rails than ranks on the larger node: at that end each has another rank.
        let rail = match own > theirs {
            true => self.rail_at(here.local_rank(), own, node),
            false => self.rail_at(here.place_of(peer), theirs, here.node()),
        };
        let is_one = rail < self.rails
            && self.speaker(node, rail) == here.local_rank()
            && EndpointId::from(self.listener(node, rail)) == peer;
        is_one.then_some(rail)
    }
}

fn gcd(mut one: u32, mut other: u32) -> u32 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
