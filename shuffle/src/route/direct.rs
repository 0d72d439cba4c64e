//! One hop: a lane to every rank of the node, a link to every other rank.

use super::{Hop, LinkClass, Place, Route, other_local};
use trihop_transport::topology::{Rank, Topology};

/// The route without representatives. What a hop costs is measured against it; its memory grows with the job.
#[derive(Debug, Clone)]
pub struct Direct {
    topology: Topology,
    /// Ranks of this node, ascending: links are numbered by rank, these left out.
    local: Vec<u32>,
}

impl Direct {
    /// The route as seen from this rank of `topology`.
    pub fn new(topology: Topology) -> Self {
        let local = topology.ranks_of(topology.node()).map(|rank| rank.0).collect();
        Self { topology, local }
    }

    /// The link to a rank of another node.
    fn link_over(&self, rank: Rank) -> Option<u32> {
        let before = self.local.partition_point(|&local| local < rank.0);
        let is_local = self.local.get(before) == Some(&rank.0);
        (!is_local).then(|| rank.0 - before as u32)
    }
}

impl Route for Direct {
    fn next_hop(&self, at: Place, target: Rank) -> Option<Hop> {
        let here = &self.topology;
        if target == here.rank() {
            return Some(match at {
                Place::Source => Hop::Local(here.local_rank()),
                _ => Hop::Deliver,
            });
        }
        match (at, self.link_over(target)) {
            (Place::Source, Some(link)) => Some(Hop::Fabric(link)),
            (Place::Source, None) => Some(Hop::Local(here.local_rank_of(target))),
            _ => None,
        }
    }

    fn links(&self) -> u32 {
        self.topology.size() - self.topology.local_size()
    }

    fn peer(&self, link: u32) -> Rank {
        assert!(link < self.links(), "link {link} of {}", self.links());
        let rank = self
            .local
            .iter()
            .fold(link, |rank, &local| rank + u32::from(local <= rank));
        Rank(rank)
    }

    fn link_to(&self, rank: Rank, class: LinkClass) -> Option<u32> {
        match class {
            LinkClass::Remote => self.link_over(rank),
            LinkClass::Origin | LinkClass::Relay => None,
        }
    }

    fn copies(&self, at: Place) -> u32 {
        match at {
            Place::Source => self.topology.size() - 1,
            _ => 0,
        }
    }

    fn copy(&self, _: Place, number: u32) -> Hop {
        match number.checked_sub(self.links()) {
            None => Hop::Fabric(number),
            Some(number) => other_local(&self.topology, number),
        }
    }

    fn passes(&self, at: Place, source: Rank) -> bool {
        match at {
            Place::SourceRep => self.link_over(source).is_none(),
            Place::TargetRep => self.link_over(source).is_some(),
            Place::Source | Place::Target => false,
        }
    }

    fn most_links(&self) -> u32 {
        self.topology.size() - self.topology.fewest_local()
    }
}
