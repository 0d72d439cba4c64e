//! Source, its representative, the target's representative, target: each hop skipped where both ends are the same.

use super::{Hop, LinkClass, Place, Route, other_local};
use trihop_transport::topology::{NodeId, Rank, Topology};

/// The three-hop route of DeltaFS Shuffle, with the representatives that nexus would choose.
///
/// A rank has one link per node that it represents: every `local_size`-th node.
#[derive(Debug, Clone)]
pub struct ThreeHop {
    topology: Topology,
}

impl ThreeHop {
    /// The route as seen from this rank of `topology`.
    pub fn new(topology: Topology) -> Self {
        Self { topology }
    }

    /// Number that the own node would have among the nodes of this rank's links, if this rank represents it.
    fn own_place(&self) -> Option<u32> {
        self.place_of(self.topology.node())
    }

    /// Number of a node among all that this rank represents, its own included.
    fn place_of(&self, node: NodeId) -> Option<u32> {
        let (first, step) = (self.topology.local_rank(), self.topology.local_size());
        (node.0 % step == first).then_some(node.0 / step)
    }

    /// The link to a node, if this rank represents it.
    fn link_to_node(&self, node: NodeId) -> Option<u32> {
        let place = self.place_of(node)?;
        match self.own_place() {
            Some(own) if own == place => None,
            Some(own) if own < place => Some(place - 1),
            _ => Some(place),
        }
    }
}

impl Route for ThreeHop {
    fn next_hop(&self, at: Place, target: Rank) -> Option<Hop> {
        let here = &self.topology;
        if target == here.rank() {
            return Some(match at {
                Place::Source => Hop::Local(here.local_rank()),
                _ => Hop::Deliver,
            });
        }
        let node = here.node_of(target);
        if node == here.node() {
            return match at {
                Place::Source | Place::TargetRep => Some(Hop::Local(here.local_rank_of(target))),
                Place::SourceRep | Place::Target => None,
            };
        }
        match (at, self.link_to_node(node)) {
            (Place::Source | Place::SourceRep, Some(link)) => Some(Hop::Fabric(link)),
            (Place::Source, None) => Some(Hop::Local(here.local_rank_of(here.source_representative(node)))),
            _ => None,
        }
    }

    fn links(&self) -> u32 {
        let (first, step) = (self.topology.local_rank(), self.topology.local_size());
        let represented = (self.topology.nodes() + step - 1 - first) / step;
        represented - u32::from(self.own_place().is_some())
    }

    fn peer(&self, link: u32) -> Rank {
        assert!(link < self.links(), "link {link} of {}", self.links());
        let place = match self.own_place() {
            Some(own) if own <= link => link + 1,
            _ => link,
        };
        let node = place * self.topology.local_size() + self.topology.local_rank();
        self.topology.target_representative(NodeId(node))
    }

    fn link_to(&self, rank: Rank, class: LinkClass) -> Option<u32> {
        if class != LinkClass::Remote {
            return None;
        }
        let node = self.topology.node_of(rank);
        let link = self.link_to_node(node)?;
        (self.topology.target_representative(node) == rank).then_some(link)
    }

    fn copies(&self, at: Place) -> u32 {
        let others = self.topology.local_size() - 1;
        match at {
            Place::Source => self.links() + others,
            Place::SourceRep => self.links(),
            Place::TargetRep => others,
            Place::Target => 0,
        }
    }

    fn copy(&self, at: Place, number: u32) -> Hop {
        let links = if at == Place::TargetRep { 0 } else { self.links() };
        match number.checked_sub(links) {
            None => Hop::Fabric(number),
            Some(number) => other_local(&self.topology, number),
        }
    }

    fn passes(&self, at: Place, source: Rank) -> bool {
        let node = self.topology.node_of(source);
        let is_local = node == self.topology.node();
        match at {
            Place::SourceRep => is_local,
            Place::TargetRep => self.link_to_node(node).is_some(),
            Place::Target => !is_local && self.link_to_node(node).is_none(),
            Place::Source => false,
        }
    }

    fn most_links(&self) -> u32 {
        self.topology.nodes().div_ceil(self.topology.fewest_local())
    }
}
