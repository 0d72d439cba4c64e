//! What a route asks of all ranks of a job: links, hops, relayed pairs. Exact, without looking at every pair.
//!
//! A link carries what the ranks behind its one end send to the ranks behind its other end, and the same backwards:
//! all ranks of two nodes with three hops, its two ends alone on the direct route. So it is enough to look at each
//! link once, and with three hops ranks of equal local rank on nodes of equal size represent the same nodes.

use std::collections::HashMap;

use trihop::route::{Chosen, LinkClass, Route, RouteName};
use trihop::{Rank, Topology};

use super::tally::Tally;

/// Most hops of any route.
pub const HOPS_MAX: usize = 3;

/// What a route asks of all ranks of a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Fabric links of a rank.
    pub links: Tally,
    /// Other ranks of a rank's node, to which it has lanes.
    pub local_peers: Tally,
    /// Ordered pairs whose messages a rank, being neither end, passes from its node to the fabric.
    pub source_relayed: Tally,
    /// Ordered pairs whose messages a rank, being neither end, passes from the fabric to its node.
    pub target_relayed: Tally,
    /// Ordered pairs by the number of hops between them; 0 is a rank and itself.
    pub hops: [u64; HOPS_MAX + 1],
}

impl Load {
    /// Counts over all ranks of `topology`: time follows ranks + nodes x distinct numbers of ranks on a node.
    pub fn new(topology: &Topology, route: RouteName) -> Self {
        let mut load = Self::default();
        let mut behind = Behind::default();
        for rank in (0..topology.size()).map(Rank) {
            let here = topology.seen_from(rank).expect("a rank of this job");
            let route = Chosen::new(route, &here);
            let local_peers = u64::from(here.local_size()) - 1;
            load.links.add(u64::from(route.links()));
            // Those to other nodes.
            let links = match &route {
                Chosen::FabricOnly(_) => u64::from(route.links()) - 2 * local_peers,
                _ => u64::from(route.links()),
            };
            // Ranks behind this end of each link, and behind all other ends together.
            let (near, far) = match &route {
                Chosen::Direct(_) => (1, links),
                Chosen::ThreeHop(_) | Chosen::FabricOnly(_) => {
                    (local_peers + 1, behind.other_ends(&here, &route))
                }
            };
            load.local_peers.add(local_peers);
            // Every link is used both ways, so a rank relays as many pairs to its node as from it.
            load.source_relayed.add((near - 1) * far);
            load.target_relayed.add(far * (near - 1));
            load.hops[0] += 1;
            load.hops[1] += local_peers + links;
            load.hops[2] += (near - 1) * links + (far - links);
            load.hops[3] += (near - 1) * (far - links);
        }
        load
    }

    /// Mean number of hops between two ranks, over all ordered pairs of different ones.
    pub fn mean_hops(&self) -> f64 {
        let (mut hops, mut pairs) = (0, 0);
        for (number, count) in (0u64..).zip(&self.hops).skip(1) {
            hops += number * count;
            pairs += count;
        }
        hops as f64 / pairs.max(1) as f64
    }
}

/// Ranks on all nodes that a rank represents, its own included, by its local rank and the size of its node.
#[derive(Default)]
struct Behind(HashMap<(u32, u32), u64>);

impl Behind {
    /// Ranks on the nodes at the other ends of a rank's links.
    fn other_ends(&mut self, here: &Topology, route: &Chosen) -> u64 {
        let own = match here.representative(here.node(), here.node()) == here.rank() {
            true => u64::from(here.local_size()),
            false => 0,
        };
        let all = self
            .0
            .entry((here.local_rank(), here.local_size()))
            .or_insert_with(|| {
                let node_of = |link| here.node_of(route.peer(link));
                let remote = (0..route.links()).filter(|&link| route.class(link) == LinkClass::Remote);
                let others = remote.map(|link| u64::from(here.local_size_of(node_of(link))));
                own + others.sum::<u64>()
            });
        *all - own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use trihop::route::{Hop, Place};

    /// Follows every pair, hop by hop, as the engine does.
    fn brute_force(topology: &Topology, name: RouteName) -> Load {
        let size = topology.size();
        let seen: Vec<Topology> = (0..size).map(|r| topology.seen_from(Rank(r)).unwrap()).collect();
        let routes: Vec<Chosen> = seen.iter().map(|here| Chosen::new(name, here)).collect();
        let mut hops = [0; HOPS_MAX + 1];
        let (mut source, mut target) = (vec![0u64; size as usize], vec![0u64; size as usize]);
        for from in 0..size {
            for to in 0..size {
                let (mut at, mut place, mut count) = (from as usize, Place::Source, 0);
                loop {
                    let hop = routes[at].next_hop(place, Rank(to)).expect("a route");
                    let before = place;
                    (at, place) = match hop {
                        Hop::Deliver => break,
                        Hop::Local(local) => {
                            let next = seen[at].rank_at(seen[at].node(), local).0 as usize;
                            let from_fabric = before == Place::TargetRep;
                            target[at] += u64::from(from_fabric);
                            (
                                next,
                                if from_fabric {
                                    Place::Target
                                } else {
                                    Place::SourceRep
                                },
                            )
                        }
                        Hop::Fabric(link) => {
                            source[at] += u64::from(before == Place::SourceRep);
                            target[at] += u64::from(before == Place::TargetRep);
                            (routes[at].peer(link).0 as usize, routes[at].class(link).arrival())
                        }
                    };
                    count += usize::from(from != to);
                }
                assert_eq!(at, to as usize);
                hops[count] += 1;
            }
        }
        let tally = |values: &mut dyn Iterator<Item = u64>| {
            let mut tally = Tally::default();
            values.for_each(|value| tally.add(value));
            tally
        };
        Load {
            links: tally(&mut routes.iter().map(|route| u64::from(route.links()))),
            local_peers: tally(&mut seen.iter().map(|here| u64::from(here.local_size()) - 1)),
            source_relayed: tally(&mut source.into_iter()),
            target_relayed: tally(&mut target.into_iter()),
            hops,
        }
    }

    fn agrees(topology: &Topology) -> Result<(), TestCaseError> {
        for name in RouteName::ALL {
            let load = Load::new(topology, name);
            prop_assert_eq!(&load, &brute_force(topology, name), "{} of {:?}", name, topology);
            let pairs = u64::from(topology.size()).pow(2);
            prop_assert_eq!(load.hops.iter().sum::<u64>(), pairs);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn counting_links_agrees_with_following_every_pair(sizes in proptest::collection::vec(1u32..6, 1..10)) {
            agrees(&Topology::from_node_sizes(&sizes, Rank(0)).unwrap())?;
        }

        #[test]
        fn ranks_may_be_dealt_out_over_the_nodes(places in proptest::collection::vec(0u32..5, 1..24)) {
            // Nodes without a rank are closed up.
            let mut used: Vec<u32> = places.clone();
            used.sort_unstable();
            used.dedup();
            let nodes: Vec<u32> = places.iter().map(|p| used.binary_search(p).unwrap() as u32).collect();
            agrees(&Topology::from_node_of(&nodes, Rank(0)).unwrap())?;
        }
    }

    #[test]
    fn the_example_of_deltafs_has_313_links_at_most() {
        let topology = Topology::from_node_sizes(&[32; 10_000], Rank(0)).unwrap();
        let load = Load::new(&topology, RouteName::ThreeHop);
        let links = load.links.summary();
        assert_eq!((links.max, links.total), (313, 10_000 * 9_999));
        assert_eq!(load.local_peers.summary().max, 31);
        assert_eq!(load.hops.iter().sum::<u64>(), 320_000 * 320_000);
        // Every remote pair is relayed unless its source is the representative.
        let remote = 10_000u64 * 9_999 * 32 * 32;
        assert_eq!(load.source_relayed.summary().total, remote / 32 * 31);
    }
}
