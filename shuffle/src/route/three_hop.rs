//! Source, its representative, the target's representative, target: each hop skipped where both ends are the same.

use super::{Hop, Place, Route};
use trihop_transport::topology::{Rank, Topology};

/// The three-hop route of DeltaFS Shuffle, with the representatives that nexus would choose.
#[derive(Debug, Clone)]
pub struct ThreeHop {
    topology: Topology,
}

impl ThreeHop {
    /// The route as seen from this rank of `topology`.
    pub fn new(topology: Topology) -> Self {
        Self { topology }
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
        let rep = here.source_representative(node);
        match at {
            Place::Source | Place::SourceRep if rep == here.rank() => Some(Hop::Fabric(node)),
            Place::Source => Some(Hop::Local(here.local_rank_of(rep))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every route ends at its target in at most three hops, and no endpoint is passed twice.
        #[test]
        fn every_route_ends_at_its_target(sizes in proptest::collection::vec(1u32..6, 1..9), picks: (u32, u32)) {
            let total: u32 = sizes.iter().sum();
            let (source, target) = (picks.0 % total, picks.1 % total);
            let at_rank = |rank| Topology::from_node_sizes(&sizes, Rank(rank)).unwrap();
            let (mut here, mut place) = (source, Place::Source);
            let mut visited = vec![source];
            let mut hops = 0;
            loop {
                let topology = at_rank(here);
                let hop = ThreeHop::new(topology.clone()).next_hop(place, Rank(target)).expect("a route");
                let (next, next_place) = match hop {
                    Hop::Deliver => break,
                    Hop::Local(local) => (
                        topology.rank_at(topology.node(), local).0,
                        if place == Place::TargetRep { Place::Target } else { Place::SourceRep },
                    ),
                    Hop::Fabric(node) => (topology.target_representative(node).0, Place::TargetRep),
                };
                prop_assert!(next_place > place);
                if next == here {
                    prop_assert_eq!(next, target, "only a message to oneself stays");
                } else {
                    prop_assert!(!visited.contains(&next), "hop repeated");
                    hops += 1;
                }
                visited.push(next);
                (here, place) = (next, next_place);
            }
            prop_assert_eq!(here, target);
            prop_assert!(hops <= 3);
        }
    }
}
