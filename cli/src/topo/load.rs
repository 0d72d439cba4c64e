//! What a route asks of all ranks of a job: links, hops, relayed pairs. Exact, and without looking
//! at every pair: routes along grids are counted dimension by dimension (`mesh`, `along_nodes`),
//! and the others say what goes through their edges.
//!
//! Of those, an edge between nodes carries what some ranks of the one node send to some of the other, and
//! the same backwards. So it is enough to look at each such edge once, and ranks of equal local
//! rank on nodes of equal size carry the same, but for what is left out where a node would speak
//! with itself.

mod along_nodes;
mod mesh;
mod row;

use std::collections::HashMap;

use trihop::route::{EndpointId, JobRoute, Next, Rails, Reach, RouteName, Stage, Through};
use trihop::{Rank, Topology};

use super::tally::Tally;

/// Most hops that a report always has a row for.
const HOPS_SHOWN: usize = 3;

/// What a route asks of all ranks of a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Fabric links of a rank.
    pub links: Tally,
    /// Other ranks of a rank's node, to which it has lanes.
    pub local_peers: Tally,
    /// Ordered pairs whose messages a rank has on its links, either way.
    pub carried: Tally,
    /// Ordered pairs whose messages a rank, being neither end, passes from its node to the fabric.
    pub source_relayed: Tally,
    /// Ordered pairs whose messages a rank, being neither end, passes from the fabric to its node.
    pub target_relayed: Tally,
    /// Ordered pairs by the number of hops between them; 0 is a rank and itself.
    pub hops: Vec<u64>,
}

/// What is counted of a rank.
#[derive(Debug, Clone, Copy, Default)]
struct OfRank {
    links: u64,
    carried: u64,
    source_relayed: u64,
    target_relayed: u64,
}

impl Load {
    /// Counts over all ranks of `topology`. Time follows ranks + nodes x distinct numbers of ranks
    /// on a node; of `mesh` ranks x dimensions x ranks on a node, or lengths of the grid where these
    /// are less; of `node-mesh` nodes x lengths of the grid, of `team-mesh` ranks x these. Of a
    /// route of a program's own, it is ranks x ranks.
    ///
    /// # Errors
    /// The route does not suit the job.
    pub fn new(topology: &Topology, route: RouteName) -> Result<Self, String> {
        Ok(match route.for_job(topology)? {
            RouteName::Mesh(grid) => mesh::load(topology, grid.sizes()),
            RouteName::NodeMesh(grid) => match grid.sizes() {
                // The same, but for its name.
                [_] => Self::carried(topology, RouteName::ThreeHop(Rails::ONE), 1),
                sizes => along_nodes::of_representatives(topology, sizes),
            },
            RouteName::TeamMesh(grid) => along_nodes::of_teams(topology, grid.sizes()),
            route @ (RouteName::ThreeHop(rails) | RouteName::FabricOnly(rails)) => {
                Self::carried(topology, route, rails.number())
            }
            route @ RouteName::Direct => Self::carried(topology, route, 1),
            route @ RouteName::Own(_) => Self::walked(topology, route),
        })
    }

    /// Of a route that says what goes through its edges, over so many rails.
    fn carried(topology: &Topology, route: RouteName, rails: u32) -> Self {
        let mut load = Self::of_stages(route.stages().len());
        let mut carried = Carried {
            rails,
            sums: HashMap::new(),
        };
        for rank in (0..topology.size()).map(Rank) {
            let here = topology.seen_from(rank).expect("a rank of this job");
            let route_here = JobRoute::new(route, &here).expect("a route that suits the job");
            let local_peers = u64::from(here.local_size()) - 1;
            let sum = carried.by(&here, &route_here);
            let of_rank = OfRank {
                links: route_here.links().into(),
                carried: sum.pairs,
                source_relayed: sum.source_relayed,
                target_relayed: sum.target_relayed,
            };
            load.add(here.local_size(), of_rank);
            load.hops[0] += 1;
            load.hops[1] += local_peers;
            for (hops, pairs) in load.hops[1..].iter_mut().zip(sum.hops) {
                *hops += pairs;
            }
        }
        load
    }

    /// Nothing yet, of a route with so many stages.
    fn of_stages(stages: usize) -> Self {
        Self {
            hops: vec![0; 1 + HOPS_SHOWN.max(stages)],
            ..Self::default()
        }
    }

    /// Adds a rank of a node with so many.
    fn add(&mut self, local_size: u32, rank: OfRank) {
        self.local_peers.add(u64::from(local_size) - 1);
        self.links.add(rank.links);
        self.carried.add(rank.carried);
        self.source_relayed.add(rank.source_relayed);
        self.target_relayed.add(rank.target_relayed);
    }

    /// Follows every pair, hop by hop, as the engine does.
    fn walked(topology: &Topology, name: RouteName) -> Self {
        let mut load = Self::of_stages(name.stages().len());
        let seen = |rank| topology.seen_from(Rank(rank)).expect("a rank of this job");
        let ranks: Vec<(Topology, JobRoute)> = (0..topology.size())
            .map(|rank| {
                let route = JobRoute::new(name, &seen(rank));
                (seen(rank), route.expect("a route that suits the job"))
            })
            .collect();
        let mut sums = vec![OfRank::default(); ranks.len()];
        for from in (0..topology.size()).map(Rank) {
            for to in (0..topology.size()).map(Rank) {
                let (mut at, mut stage, mut count) = (from, Stage::SOURCE, 0);
                while let Some(hop) = hop(&ranks[at.0 as usize], stage, to) {
                    let sum = &mut sums[at.0 as usize];
                    let relayed = u64::from(stage != Stage::SOURCE);
                    match hop.stays {
                        true => sum.target_relayed += relayed,
                        false => {
                            sum.source_relayed += relayed;
                            sum.carried += 1;
                            sums[hop.next.0 as usize].carried += 1;
                        }
                    }
                    count += usize::from(hop.next != at);
                    (at, stage) = (hop.next, hop.over);
                }
                load.hops[count] += 1;
            }
        }
        for ((here, route), sum) in ranks.iter().zip(sums) {
            let links = route.links().into();
            load.add(here.local_size(), OfRank { links, ..sum });
        }
        load
    }

    /// Most hops between two ranks.
    pub fn most_hops(&self) -> usize {
        self.hops.iter().rposition(|&pairs| pairs > 0).unwrap_or(0)
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

/// Where a message goes next.
pub struct Hop {
    pub next: Rank,
    /// The stage that it has then.
    pub over: Stage,
    /// Whether both are of one node.
    pub stays: bool,
    /// Whether it goes over a lane.
    pub is_lane: bool,
}

/// The next hop of a message for `to` that a rank has, of this stage; none where it is delivered.
/// The rank is given by the job as it sees that, and its route.
pub fn hop((here, route): &(Topology, JobRoute), stage: Stage, to: Rank) -> Option<Hop> {
    match route.next(stage, to).expect("a route leads on") {
        Next::Deliver => None,
        Next::To(end, over) => {
            let next = here.rank_of(end);
            Some(Hop {
                next,
                over,
                stays: here.is_local(next),
                is_lane: route.is_lane(end, over),
            })
        }
    }
}

/// The other ends of a rank's edges to other nodes.
fn crossing(route: &JobRoute) -> impl Iterator<Item = EndpointId> + '_ {
    route.numbers().flat_map(move |stage| {
        let edges = 0..route.edges(stage, Reach::Beyond);
        edges.map(move |number| route.edge(stage, Reach::Beyond, number))
    })
}

/// What the edges of a rank to other nodes carry, in ordered pairs.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    /// All of them, both ways.
    pairs: u64,
    source_relayed: u64,
    target_relayed: u64,
    /// Those that go out, by the number of hops, from 1 on.
    hops: [u64; 3],
}

impl Sum {
    /// Adds what goes through an edge, there and back.
    fn add(&mut self, [there, back]: [Through; 2]) {
        self.pairs += there.sources * there.targets + back.sources * back.targets;
        let (others, at_end) = (there.sources - 1, there.targets.min(1));
        self.source_relayed += others * there.targets;
        self.target_relayed += back.sources * (back.targets - back.targets.min(1));
        self.hops[0] += at_end;
        self.hops[1] += others * at_end + there.targets - at_end;
        self.hops[2] += others * (there.targets - at_end);
    }
}

/// What ranks carry, by what makes a difference: the local rank, the ranks of the node, and which
/// of the node's links, that are dealt out to its ranks in turn, would lead to itself.
struct Carried {
    rails: u32,
    sums: HashMap<(u32, u32, u32), Sum>,
}

impl Carried {
    fn by(&mut self, here: &Topology, route: &JobRoute) -> Sum {
        let (local, ranks) = (here.local_rank(), here.local_size());
        let own = u64::from(here.node().0) * u64::from(self.rails) % u64::from(ranks);
        let place = (local + ranks - own as u32) % ranks;
        let key = (local, ranks, place.min(self.rails));
        *self.sums.entry(key).or_insert_with(|| {
            let mut sum = Sum::default();
            let carried = crossing(route).filter_map(|end| route.through(end));
            carried.for_each(|through| sum.add(through));
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agrees(topology: &Topology) -> Result<(), TestCaseError> {
        let given = [
            "three-hop:1",
            "three-hop:2",
            "fabric-only:3",
            "mesh:1d",
            "mesh:3d",
            "mesh:4d",
            "node-mesh:1d",
            "node-mesh:3d",
            "team-mesh:1d",
            "team-mesh:3d",
        ];
        let given = given.map(|name| name.parse().unwrap());
        all_agree(topology, RouteName::all().into_iter().chain(given))
    }

    fn all_agree(
        topology: &Topology,
        names: impl IntoIterator<Item = RouteName>,
    ) -> Result<(), TestCaseError> {
        for name in names {
            let load = Load::new(topology, name).unwrap();
            prop_assert_eq!(
                &load,
                &Load::walked(topology, name),
                "{} of {:?}",
                name,
                topology
            );
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

        /// Rows that are long or short beside a node, with places that are missing.
        #[test]
        fn counting_along_grids_agrees_whatever_their_lengths_are(
            sizes in proptest::collection::vec(1u32..8, 1..10),
            mut lengths in proptest::collection::vec(1u32..5, 1..5),
            more in 0u32..2,
        ) {
            let topology = Topology::from_node_sizes(&sizes, Rank(0)).unwrap();
            let mut grid = |name: &str, members: u32| {
                let rest: u32 = lengths[1..].iter().product();
                lengths[0] = members.div_ceil(rest) + more;
                let lengths: Vec<_> = lengths.iter().map(u32::to_string).collect();
                format!("{name}:{}", lengths.join("x")).parse().unwrap()
            };
            let nodes = topology.nodes();
            let names = [grid("mesh", topology.size()), grid("node-mesh", nodes), grid("team-mesh", nodes)];
            all_agree(&topology, names)?;
        }
    }

    /// As many ranks as the example of DeltaFS has, along a grid without holes: by symmetry each
    /// carries the same.
    #[test]
    fn a_grid_of_320_000_ranks_is_counted() {
        let topology = Topology::from_node_sizes(&[32; 10_000], Rank(0)).unwrap();
        let ranks = 320_000u64;
        let load = Load::new(&topology, "mesh:100x100x32".parse().unwrap()).unwrap();
        assert_eq!(load.hops.iter().sum::<u64>(), ranks * ranks);
        let (links, carried) = (load.links.summary(), load.carried.summary());
        assert_eq!((links.min, links.max), (198, 198));
        // Of what a rank sends or gets, 99 in 100 cross each of two dimensions.
        let each = 2 * 2 * (ranks - ranks / 100);
        assert_eq!((carried.min, carried.max), (each, each));
        let load = Load::new(&topology, "node-mesh:100x100".parse().unwrap()).unwrap();
        assert_eq!(load.hops.iter().sum::<u64>(), ranks * ranks);
        assert_eq!(load.links.summary().total, 10_000 * 198);
        assert_eq!(load.carried.summary().total, each * ranks);
        // A team of 16 for each dimension: of 99 neighbours each rank sends to those in one, and
        // hears those in the other.
        let load = Load::new(&topology, "team-mesh:100x100".parse().unwrap()).unwrap();
        assert_eq!(load.hops.iter().sum::<u64>(), ranks * ranks);
        let (links, carried) = (load.links.summary(), load.carried.summary());
        assert_eq!((links.min, links.max, load.most_hops()), (198, 198, 4));
        assert_eq!((carried.min, carried.max), (each, each));
        // 17 ranks are missing, which others stand in for.
        let mut sizes = vec![32; 9_999];
        sizes.push(15);
        let topology = Topology::from_node_sizes(&sizes, Rank(0)).unwrap();
        let load = Load::new(&topology, "mesh:100x100x32".parse().unwrap()).unwrap();
        let ranks = ranks - 17;
        assert_eq!(load.hops.iter().sum::<u64>(), ranks * ranks);
        let carried = load.carried.summary();
        assert!(
            carried.min < carried.max && carried.max < 2 * each,
            "{carried:?}"
        );
    }

    /// The busiest carries at most 1.25 times the mean, and nobody is without a link.
    fn is_shared_out(nodes: u32, ranks: u32) {
        let topology = Topology::from_node_sizes(&vec![ranks; nodes as usize], Rank(0)).unwrap();
        let load = Load::new(&topology, RouteName::default()).unwrap();
        let (carried, links) = (load.carried.summary(), load.links.summary());
        let shape = format!("{nodes} x {ranks}: {links:?}, {carried:?}");
        assert!(links.min > 0, "{shape}");
        assert!(carried.max as f64 <= 1.25 * carried.mean, "{shape}");
        let remote = u64::from(nodes) * u64::from(nodes - 1) * u64::from(ranks).pow(2);
        assert_eq!(carried.total, 2 * remote, "{shape}");
    }

    #[test]
    fn rails_share_out_what_a_node_exchanges_with_others() {
        for nodes in [2, 3, 4, 5, 8, 13, 16, 32, 50, 64, 100, 130, 200, 500, 1000] {
            for ranks in [1, 2, 3, 4, 7, 8, 16, 31, 32, 48, 61, 64, 96, 128, 192] {
                if nodes * ranks <= 10_000 {
                    is_shared_out(nodes, ranks);
                }
            }
        }
    }

    #[test]
    fn a_small_node_does_not_keep_the_others_from_sharing_out() {
        for sizes in [
            &[1, 1, 64, 64, 64, 64, 64, 64][..],
            &[58, 64, 64, 64],
            &[1, 32, 32, 32],
        ] {
            let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
            let load = Load::new(&topology, RouteName::default()).unwrap();
            // Of the ranks of nodes that are not the small ones.
            let (carried, links) = (load.carried.summary(), load.links.summary());
            let one = Load::new(&topology, "three-hop:1".parse().unwrap()).unwrap();
            let before = one.carried.summary();
            assert!(
                4 * carried.max <= 3 * before.max,
                "{sizes:?}: {} of {}",
                carried.max,
                before.max
            );
            assert!(
                links.max <= u64::from(topology.nodes()),
                "{sizes:?}: {links:?}"
            );
        }
    }

    #[test]
    fn the_example_of_deltafs_has_313_links_at_most() {
        let topology = Topology::from_node_sizes(&[32; 10_000], Rank(0)).unwrap();
        let load = Load::new(&topology, RouteName::default()).unwrap();
        let links = load.links.summary();
        assert_eq!((links.max, links.total), (313, 10_000 * 9_999));
        assert_eq!(load.local_peers.summary().max, 31);
        assert_eq!(load.hops.iter().sum::<u64>(), 320_000 * 320_000);
        // Every remote pair is relayed unless its source is the representative.
        let remote = 10_000u64 * 9_999 * 32 * 32;
        assert_eq!(load.source_relayed.summary().total, remote / 32 * 31);
    }
}
