//! Three hops on a single transport: the ways of [`ThreeHop`], with links where that has lanes.

use super::{Hop, LinkClass, Place, Route, ThreeHop};
use trihop_transport::topology::{Rank, Topology};

/// The three-hop route where all hops go over the fabric, for nodes on which the provider is faster than shared memory or
/// where both shall be compared. A rank's messages to itself still take its own lane.
///
/// Links are numbered class by class: those between nodes, then one to each other local rank for origin runs, then one for
/// relay runs.
#[derive(Debug, Clone)]
pub struct FabricOnly {
    topology: Topology,
    between_nodes: ThreeHop,
}

impl FabricOnly {
    /// The route as seen from this rank of `topology`.
    pub fn new(topology: Topology) -> Self {
        Self {
            between_nodes: ThreeHop::new(topology.clone()),
            topology,
        }
    }

    /// Other ranks of this node.
    fn neighbours(&self) -> u32 {
        self.topology.local_size() - 1
    }

    /// The origin or relay link to another local rank.
    fn link_to_local(&self, local: u32, class: LinkClass) -> u32 {
        let first = match class {
            LinkClass::Relay => self.between_nodes.links() + self.neighbours(),
            _ => self.between_nodes.links(),
        };
        first + local - u32::from(local > self.topology.local_rank())
    }

    /// The same hop, over a link where it is a lane to another rank.
    fn over_fabric(&self, at: Place, hop: Hop) -> Hop {
        match hop {
            Hop::Local(local) if local != self.topology.local_rank() => {
                let class = match at {
                    Place::TargetRep => LinkClass::Relay,
                    _ => LinkClass::Origin,
                };
                Hop::Fabric(self.link_to_local(local, class))
            }
            same => same,
        }
    }
}

impl Route for FabricOnly {
    fn next_hop(&self, at: Place, target: Rank) -> Option<Hop> {
        let hop = self.between_nodes.next_hop(at, target)?;
        Some(self.over_fabric(at, hop))
    }

    fn links(&self) -> u32 {
        self.between_nodes.links() + 2 * self.neighbours()
    }

    fn peer(&self, link: u32) -> Rank {
        assert!(link < self.links(), "link {link} of {}", self.links());
        let Some(number) = link.checked_sub(self.between_nodes.links()) else {
            return self.between_nodes.peer(link);
        };
        let number = number % self.neighbours();
        let local = number + u32::from(number >= self.topology.local_rank());
        self.topology.rank_at(self.topology.node(), local)
    }

    fn class(&self, link: u32) -> LinkClass {
        match link.checked_sub(self.between_nodes.links()) {
            None => LinkClass::Remote,
            Some(number) if number < self.neighbours() => LinkClass::Origin,
            Some(_) => LinkClass::Relay,
        }
    }

    fn link_to(&self, rank: Rank, class: LinkClass) -> Option<u32> {
        if class == LinkClass::Remote {
            return self.between_nodes.link_to(rank, class);
        }
        let here = &self.topology;
        let is_neighbour = rank != here.rank() && here.node_of(rank) == here.node();
        is_neighbour.then(|| self.link_to_local(here.local_rank_of(rank), class))
    }

    fn copies(&self, at: Place) -> u32 {
        self.between_nodes.copies(at)
    }

    fn copy(&self, at: Place, number: u32) -> Hop {
        self.over_fabric(at, self.between_nodes.copy(at, number))
    }

    fn passes(&self, at: Place, source: Rank) -> bool {
        self.between_nodes.passes(at, source)
    }

    fn most_links(&self) -> u32 {
        self.between_nodes.most_links() + 2 * (self.topology.most_local() - 1)
    }
}
