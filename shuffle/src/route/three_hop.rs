//! Source, its representative, the target's representative, target: each hop skipped where both
//! ends are the same.
//!
//! Between two nodes there are [`Rails`], of which the target picks one. The links of a node are
//! numbered: those to node 0, those to node 1 and so on, `rails` to each, its own included, and
//! each belongs to the rank whose local rank is its number modulo the ranks of the node. With one
//! rail these are the representatives that nexus chooses. A broadcast takes all rails, since it
//! may not overtake, nor be overtaken by, what its source sends to one rank alone.

use std::sync::Arc;

use super::{EndpointId, Next, Rails, Reach, Route, Stage, StageSpec, Through, other_local, stage};
use trihop_transport::topology::{NodeId, Rank, Topology};

/// To a rank of the node, which gets the run or represents its node.
pub(super) const ORIGIN: Stage = Stage(1);
/// To another node.
pub(super) const REMOTE: Stage = Stage(2);
/// To a rank of the node that the run has come to.
pub(super) const RELAY: Stage = Stage(3);

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
    /// This rank's links, where some of those that are dealt out are not there: between nodes of
    /// which one has fewer ranks than there are rails.
    listed: Option<Arc<[u64]>>,
}

/// Links of this rank by their numbers, without those to its own node.
struct Links {
    count: u32,
    /// How many come before its own node's, and how many are that one's.
    before: u32,
    own: u32,
}

impl ThreeHop {
    /// The route as seen from this rank of `topology`, with so many rails as they are
    /// [for the job](Rails::for_job).
    pub fn new(topology: Topology, rails: Rails) -> Self {
        let mut route = Self {
            rails: rails.for_job(&topology).map_or(1, Rails::number).into(),
            listed: None,
            topology,
        };
        if route.rails > u64::from(route.topology.fewest_local()) {
            let numbers = 0..route.links().count;
            let links = numbers.map(|number| route.dealt_out(number));
            let is_there = |&link: &u64| {
                let (node, rail) = route.split(link);
                rail < route.rails_to(node)
            };
            route.listed = Some(links.filter(is_there).collect());
        }
        route
    }

    /// Whether anything that has come from another node goes on inside of its own.
    fn relays(&self) -> bool {
        let ranks = self.topology.fewest_local();
        let all_equal = ranks == self.topology.most_local();
        self.topology.nodes() > 1 && !(all_equal && self.rails >= u64::from(ranks))
    }

    /// Rails between this node and another one.
    #[inline]
    fn rails_to(&self, node: NodeId) -> u64 {
        let here = &self.topology;
        if self.rails <= u64::from(here.fewest_local()) {
            return self.rails;
        }
        let smaller = here.local_size().min(here.local_size_of(node));
        self.rails.min(smaller.into())
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
        let rail = u64::from(local) + ranks - begin % ranks;
        // For each run: no division where a subtraction does.
        if rail < ranks { rail } else { rail - ranks }
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
        let rail = self.rail_at(local, ranks, self.topology.node());
        let rails = self.rails_to(node);
        if rail < rails { rail } else { rail % rails }
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

    /// The `number`-th of them.
    fn dealt_out(&self, number: u32) -> u64 {
        let Links { before, own, .. } = self.links();
        let place = u64::from(number) + u64::from(if number < before { 0 } else { own });
        let step = u64::from(self.topology.local_size());
        u64::from(self.topology.local_rank()) + place * step
    }

    /// Where a link leads, and which of the rails it is.
    fn split(&self, link: u64) -> (NodeId, u64) {
        (NodeId((link / self.rails) as u32), link % self.rails)
    }

    /// Links that this rank has.
    fn remotes(&self) -> u32 {
        match &self.listed {
            Some(links) => links.len() as u32,
            None => self.links().count,
        }
    }

    /// The rank at the other end of the `number`-th.
    fn remote(&self, number: u32) -> EndpointId {
        let (node, rail) = self.split(match &self.listed {
            Some(links) => links[number as usize],
            None => self.dealt_out(number),
        });
        self.listener(node, rail).into()
    }

    /// The rail by which broadcasts of a rank of another node come to this one, where they do not
    /// come by way of a neighbour.
    fn rail_from(&self, source: Rank) -> Option<u64> {
        let here = &self.topology;
        let node = here.node_of(source);
        let rail = self.rail_at(here.local_rank(), here.local_size(), node);
        (rail < self.rails_to(node)).then_some(rail)
    }

    /// Ranks of a node with so many that pick this one of so many rails.
    fn pickers(ranks: u32, rail: u64, rails: u64) -> u64 {
        u64::from(ranks).saturating_sub(rail).div_ceil(rails)
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
                REMOTE if self.relays() => Some(Next::To(target.into(), RELAY)),
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
            (RELAY, Reach::Node) if !self.relays() => 0,
            (ORIGIN | RELAY, Reach::Node) => self.topology.local_size() - 1,
            (REMOTE, Reach::Beyond) => self.remotes(),
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
            RELAY if !self.relays() => false,
            ORIGIN | RELAY => node == here.node() && peer != here.endpoint(),
            REMOTE => node != here.node() && self.rail_between(peer, node).is_some(),
            _ => false,
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        let here = &self.topology;
        match (stage, reach) {
            (RELAY, Reach::Node) if !self.relays() => 0,
            (ORIGIN | RELAY, Reach::Node) => here.most_local() - 1,
            (REMOTE, Reach::Beyond) => {
                let (nodes, ranks) = (u64::from(here.nodes()), u64::from(here.fewest_local()));
                let dealt = (nodes * self.rails).div_ceil(ranks);
                dealt.min(nodes - 1) as u32
            }
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, source: Rank) -> u32 {
        let others = self.topology.local_size() - 1;
        match at {
            Stage::SOURCE => self.remotes() + others,
            ORIGIN => self.remotes(),
            REMOTE => match self.rail_from(source) {
                Some(rail) => {
                    let rails = self.rails_to(self.topology.node_of(source));
                    Self::pickers(others + 1, rail, rails) as u32 - 1
                }
                None => 0,
            },
            _ => 0,
        }
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        if at == REMOTE {
            // To those that pick the same rail as this one.
            let here = &self.topology;
            let apart = (u64::from(number) + 1) * self.rails_to(here.node_of(source));
            let local = (u64::from(here.local_rank()) + apart) % u64::from(here.local_size());
            return (here.rank_at(here.node(), local as u32).into(), RELAY);
        }
        match number.checked_sub(self.remotes()) {
            None => (self.remote(number), REMOTE),
            Some(number) => (other_local(&self.topology, number), ORIGIN),
        }
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let node = self.topology.node_of(source);
        let is_local = node == self.topology.node();
        match at {
            ORIGIN => is_local,
            REMOTE => !is_local && self.rail_from(source).is_some(),
            RELAY => !is_local && self.rail_from(source).is_none(),
            _ => false,
        }
    }

    fn through(&self, end: EndpointId) -> Option<[Through; 2]> {
        let node = self.topology.node_of_endpoint(end);
        let (rail, rails) = (self.rail_between(end, node)?, self.rails_to(node));
        let [here, there] = [
            self.topology.local_size(),
            self.topology.local_size_of(node),
        ];
        Some([(here, there), (there, here)].map(|(from, to)| Through {
            sources: from.into(),
            targets: Self::pickers(to, rail, rails),
        }))
    }
}

impl ThreeHop {
    /// The rail between this rank and one of another node, if there is one.
    fn rail_between(&self, peer: EndpointId, node: NodeId) -> Option<u64> {
        let here = &self.topology;
        // At either end each rail has another rank.
        let rail = self.rail_at(here.local_rank(), here.local_size(), node);
        let is_one =
            rail < self.rails_to(node) && EndpointId::from(self.listener(node, rail)) == peer;
        is_one.then_some(rail)
    }
}
