//! What holds for every route of the table.

use super::*;
use proptest::prelude::*;

/// A job: the processes of each node, and how many ranks each has beside a relay; 0 where there
/// are no relays, and processes are ranks. Where relays are agents, nodes have some ranks more.
#[derive(Debug, Clone)]
struct Shape {
    sizes: Vec<u32>,
    ranks: u32,
    more: Option<u32>,
}

impl Shape {
    fn new(sizes: &[u32], ranks: u32) -> Self {
        Self {
            sizes: sizes.to_vec(),
            ranks,
            more: None,
        }
    }

    fn seen_by(&self, end: EndpointId) -> Topology {
        let topology = Topology::from_node_sizes(&self.sizes, Rank(0)).unwrap();
        let topology = match (self.ranks, self.more) {
            (0, _) => topology,
            (ranks, None) => topology.with_relays(ranks).unwrap(),
            (ranks, Some(more)) => {
                let of_node = |(node, agents): (u32, &u32)| agents * ranks + more * (node + 1) % 5;
                let of_nodes: Vec<u32> = (0..).zip(&self.sizes).map(of_node).collect();
                topology.with_agents(&of_nodes).unwrap()
            }
        };
        topology.seen_by(end).unwrap()
    }

    fn route(&self, name: RouteName, end: EndpointId) -> JobRoute {
        JobRoute::new(name, &self.seen_by(end)).unwrap()
    }

    fn total(&self) -> u32 {
        self.seen_by(EndpointId(0)).size()
    }

    fn endpoints(&self) -> u32 {
        self.seen_by(EndpointId(0)).endpoints()
    }

    /// Those that it can have.
    fn routes(&self) -> Vec<RouteName> {
        let is_one =
            |name: &RouteName| self.ranks == 0 || !matches!(name, RouteName::FabricOnly(_));
        let turned = ["three-hop:+1", "three-hop:1+1", "three-hop:2+3"];
        let turned = turned.map(|name| name.parse().unwrap());
        let turned = turned.into_iter().filter(|_| self.ranks > 0);
        let all = RouteName::several().into_iter().filter(is_one);
        all.chain(turned).collect()
    }

    /// Follows all copies of a broadcast; returns how often each endpoint got it, and how many
    /// copies crossed links.
    fn follow_copies(&self, name: RouteName, source: u32) -> (Vec<u32>, u32) {
        let mut got = vec![0; self.endpoints() as usize];
        let mut crossed = 0;
        let mut under_way = vec![(EndpointId(source), Stage::SOURCE)];
        while let Some((here, stage)) = under_way.pop() {
            let route = self.route(name, here);
            if stage != Stage::SOURCE {
                got[here.0 as usize] += 1;
                assert!(route.passes(stage, Rank(source)), "{here} at {stage}");
            }
            for number in 0..route.copies(stage, Rank(source)) {
                let next = route.copy(stage, Rank(source), number);
                assert!(next.1 > stage && next.0 != here);
                crossed += u32::from(!route.is_lane(next.0, next.1));
                under_way.push(next);
            }
        }
        (got, crossed)
    }

    /// The edges that a message from `source` takes to `target`.
    fn way(&self, name: RouteName, source: u32, target: u32) -> Vec<(EndpointId, Stage)> {
        let mut way = vec![(EndpointId(source), Stage::SOURCE)];
        loop {
            let (here, stage) = way[way.len() - 1];
            let route = self.route(name, here);
            match route.next(stage, Rank(target)).expect("a route") {
                Next::To(next, over) => way.push((next, over)),
                Next::Deliver => return way.split_off(1),
            }
        }
    }

    /// Follows a message from `source` to `target`; returns the endpoints that it passed on its
    /// way.
    fn follow(&self, name: RouteName, source: u32, target: u32) -> Vec<u32> {
        let (mut here, mut stage) = (EndpointId(source), Stage::SOURCE);
        let mut passed = vec![source];
        while let Next::To(next, over) = self
            .route(name, here)
            .next(stage, Rank(target))
            .expect("a route")
        {
            let route = self.route(name, here);
            assert!(over > stage);
            if next == here {
                assert_eq!(
                    (next, stage),
                    (EndpointId(target), Stage::SOURCE),
                    "only one's own stays"
                );
                assert!(over == Stage::FIRST && route.is_lane(next, over));
            } else {
                assert!(route.has_edge(over, next), "{next} at {over} of {here}");
                assert!(!passed.contains(&next.0), "{next} is passed twice");
                passed.push(next.0);
            }
            (here, stage) = (next, over);
        }
        assert_eq!(here, EndpointId(target));
        passed
    }
}

/// Jobs with relays and without, of fewer than so many nodes.
fn shapes(nodes: usize) -> impl Strategy<Value = Shape> {
    let sizes = proptest::collection::vec(1u32..6, 1..nodes);
    let more = prop_oneof![Just(None), (0_u32..5).prop_map(Some)];
    (sizes, prop_oneof![3 => Just(0), 3 => 1u32..4], more).prop_map(|(sizes, ranks, more)| Shape {
        sizes,
        ranks,
        more,
    })
}

proptest! {
    #![proptest_config(crate::seed::properties())]

    /// Every route ends at its target, over each stage once at most, and no endpoint is passed
    /// twice.
    #[test]
    fn every_route_ends_at_its_target(shape in shapes(9), picks: (u32, u32)) {
        let total = shape.total();
        let (source, target) = (picks.0 % total, picks.1 % total);
        for name in shape.routes() {
            let stages = shape.route(name, EndpointId(0)).stages().len();
            prop_assert!(shape.follow(name, source, target).len() <= 1 + stages);
        }
        let shape = Shape { ranks: 0, ..shape };
        let (source, target) = (source % shape.total(), target % shape.total());
        prop_assert!(shape.follow(RouteName::Direct, source, target).len() <= 2);
        let [lanes, fabric] = [RouteName::default(), RouteName::FabricOnly(Rails::default())]
            .map(|name| shape.follow(name, source, target));
        prop_assert_eq!(lanes, fabric, "the same way");
    }

    /// A broadcast reaches every other rank once, and an endpoint and stage that it does not reach
    /// know that.
    #[test]
    fn copies_of_a_broadcast_make_a_tree(shape in shapes(9), pick: u32) {
        let source = pick % shape.total();
        for name in shape.routes() {
            let (got, _) = shape.follow_copies(name, source);
            for (end, &times) in (0..).map(EndpointId).zip(&got) {
                let is_relay = end.0 >= shape.total();
                prop_assert!(is_relay || times == u32::from(end.0 != source), "{}", end);
                let route = shape.route(name, end);
                let passed = route.numbers().filter(|&stage| route.passes(stage, Rank(source))).count();
                let expected = if is_relay { times as usize } else { 1 };
                prop_assert_eq!(passed, expected, "{} of {:?} from {}", end, shape, source);
            }
        }
    }

    /// A broadcast does not overtake, and is not overtaken by, what its source sends to one rank
    /// alone: both go the same way.
    #[test]
    fn copies_go_the_ways_of_messages(shape in shapes(7), pick: u32) {
        let source = pick % shape.total();
        for name in shape.routes() {
            let mut under_way = vec![(EndpointId(source), Stage::SOURCE, Vec::new())];
            while let Some((here, stage, passed)) = under_way.pop() {
                if stage != Stage::SOURCE && here.0 < shape.total() {
                    let way = shape.way(name, source, here.0);
                    prop_assert_eq!(&passed, &way, "{} {:?}", name, shape);
                }
                let route = shape.route(name, here);
                for number in 0..route.copies(stage, Rank(source)) {
                    let (next, over) = route.copy(stage, Rank(source), number);
                    under_way.push((next, over, [&passed[..], &[(next, over)]].concat()));
                }
            }
        }
    }

    /// Over each rail that a rank of the other node picks once where there are representatives.
    #[test]
    fn copies_of_a_broadcast_cross_as_few_links_as_the_route_allows(shape in shapes(9), pick: u32) {
        let source = pick % shape.total();
        let topology = shape.seen_by(EndpointId(source));
        let (ends, sizes) = (topology.processes(), &shape.sizes);
        let most = Rails::default().for_job(&ends).unwrap().number();
        let nodes = (0..ends.nodes()).filter(|&node| node != ends.node().0);
        let own = ends.local_size();
        let over_rails = nodes.map(|node| sizes[node as usize].min(own).min(most)).sum::<u32>();
        for (name, links) in [
            (RouteName::default(), over_rails),
            (RouteName::ThreeHop(Rails::ONE), topology.nodes() - 1),
        ] {
            prop_assert_eq!(shape.follow_copies(name, source).1, links, "{}", name);
        }
        let shape = Shape { ranks: 0, ..shape };
        let (source, total) = (ends.rank().0, ends.size());
        for (name, links) in [
            (RouteName::Direct, total - own),
            (RouteName::FabricOnly(Rails::ONE), total - 1),
        ] {
            prop_assert_eq!(shape.follow_copies(name, source).1, links, "{}", name);
        }
    }

    /// Both ends of an edge know each other, and what each counts is what there is; the same for
    /// the collectives' tree.
    #[test]
    fn edges_have_two_ends(shape in shapes(9), pick: u32) {
        let total = shape.endpoints();
        let own = EndpointId(pick % total);
        let named = shape.routes().into_iter().map(Some);
        for name in named.chain([None]) {
            let at_end = |end| match name {
                Some(name) => shape.route(name, end),
                None => JobRoute::tree(&shape.seen_by(end)),
            };
            let route = at_end(own);
            let mut seen = std::collections::BTreeSet::new();
            for stage in route.numbers() {
                for reach in Reach::BOTH {
                    prop_assert!(route.edges(stage, reach) <= rule!(route.most_edges(stage, reach)));
                    for number in 0..route.edges(stage, reach) {
                        let peer = route.edge(stage, reach, number);
                        prop_assert!(peer != own && seen.insert((peer, stage)));
                        prop_assert_eq!(shape.seen_by(own).is_here(peer), reach == Reach::Node);
                        let other = at_end(peer);
                        prop_assert!(rule!(other.has_edge(stage, own)), "{} of {}", peer, route.name());
                        prop_assert_eq!(other.is_lane(own, stage), route.is_lane(peer, stage));
                    }
                }
                for end in (0..total).map(EndpointId) {
                    prop_assert_eq!(rule!(route.has_edge(stage, end)), seen.contains(&(end, stage)));
                }
            }
            let links: Vec<_> = route.each_link().collect();
            prop_assert!(links.len() as u32 == route.links() && route.links() <= route.most_links());
            prop_assert!(links.is_empty() || own.0 >= shape.total() || shape.ranks == 0, "a mini-rank has none");
            let counted = seen.iter().filter(|(peer, stage)| !route.is_lane(*peer, *stage)).count();
            prop_assert_eq!(links.len(), counted);
            for (peer, stage) in links {
                prop_assert!(route.has_link(peer, stage));
                    prop_assert_eq!(route.stage_numbered(stage.number()), Some(stage));
            }
            prop_assert!(!route.has_link(own, Stage::FIRST) && !route.has_link(EndpointId(total), Stage::FIRST));
            prop_assert_eq!(route.stage_numbered(0).or(route.stage_numbered(255)), None);
        }
    }

    /// What the collectives' tree says to a neighbour ends there, over relays too.
    #[test]
    fn neighbours_in_the_tree_reach_each_other(shape in shapes(9), pick: u32) {
        let source = EndpointId(pick % shape.total());
        let tree = Tree::new(shape.seen_by(source));
        for &target in tree.children().iter().chain(&tree.parent()) {
            let (mut here, mut stage) = (source, Stage::SOURCE);
            loop {
                let route = JobRoute::tree(&shape.seen_by(here));
                match route.next(stage, target).expect("a way") {
                    Next::Deliver => break,
                    Next::To(next, over) => {
                        prop_assert!(over > stage && route.has_edge(over, next));
                        (here, stage) = (next, over);
                    }
                }
            }
            prop_assert_eq!(here, EndpointId::from(target));
            let back = Tree::new(shape.seen_by(here));
            prop_assert!(back.parent() == Some(Rank(source.0)) || back.children().contains(&Rank(source.0)));
        }
    }

    /// Lanes are numbered without gaps, and each knows its writer and its stage.
    #[test]
    fn lanes_are_numbered_by_place_and_stage(shape in shapes(4)) {
        let topology = shape.seen_by(EndpointId(0));
        for name in shape.routes() {
            let route = JobRoute::new(name, &topology).unwrap();
            let mut next = 0;
            for place in 0..topology.places() {
                for &stage in route.lane_stages() {
                    prop_assert_eq!(route.lane_slot(place, stage), next);
                    prop_assert_eq!((next / route.lanes_per_rank(), route.stage_of_lane(next)), (place, stage));
                    next += 1;
                }
            }
        }
    }
}

#[test]
fn the_rail_to_a_mini_rank_ends_at_its_own_relay_where_there_are_as_many_as_processes() {
    let shape = Shape::new(&[2, 2], 3);
    // Rank 4 lives in process 1, rank 10 in process 3; the relays are 12 to 15.
    let way = shape.way(RouteName::default(), 4, 10);
    assert_eq!(
        way.iter().map(|(end, _)| end.0).collect::<Vec<_>>(),
        [13, 15, 10]
    );
    let near = shape.way(RouteName::default(), 4, 0);
    assert_eq!(
        near,
        [(EndpointId(0), Stage::FIRST)],
        "no relay inside a node"
    );
}

#[test]
fn turned_rails_lead_over_the_relays_that_follow() {
    let by = |shape: &Shape, name: &str, (source, target)| {
        let way = shape.way(name.parse().unwrap(), source, target);
        way.iter().map(|(end, _)| end.0).collect::<Vec<_>>()
    };
    // Three processes of two ranks on each of two nodes; the relays are 12 to 17.
    let equal = Shape::new(&[3, 3], 2);
    assert_eq!(by(&equal, "three-hop", (2, 8)), [13, 16, 8]);
    assert_eq!(by(&equal, "three-hop:+1", (2, 8)), [14, 17, 8]);
    assert_eq!(by(&equal, "three-hop:+2", (2, 8)), [12, 15, 8]);
    assert_eq!(by(&equal, "three-hop:+3", (2, 8)), [13, 16, 8]);
    // Of nodes with different numbers, each turns as far as it can. The relays are 8 to 11.
    let unequal = Shape::new(&[1, 3], 2);
    assert_eq!(by(&unequal, "three-hop", (0, 2)), [8, 9, 2]);
    assert_eq!(by(&unequal, "three-hop:+1", (0, 2)), [8, 10, 2]);
    assert_eq!(by(&unequal, "three-hop:+1", (2, 0)), [10, 8, 0]);
    let alone = JobRoute::new(
        "three-hop:+1".parse().unwrap(),
        &Shape::new(&[2, 2], 0).seen_by(EndpointId(0)),
    );
    let why = alone.unwrap_err().to_string();
    assert!(
        why.contains("no relays, which `three-hop:+1` turns"),
        "{why}"
    );
}

#[test]
fn a_mesh_of_processes_begins_and_ends_at_a_ranks_own_relay() {
    // Four nodes of one process of two ranks; the relays are 8 to 11.
    let shape = Shape::new(&[1, 1, 1, 1], 2);
    let way = shape.way("mesh:2x2".parse().unwrap(), 0, 7);
    let (ends, stages): (Vec<_>, Vec<_>) = way.iter().map(|(end, stage)| (end.0, stage.0)).unzip();
    assert_eq!((ends, stages), (vec![8, 9, 11, 7], vec![1, 2, 3, 4]));
    let names = shape.route("mesh:2x2".parse().unwrap(), EndpointId(0));
    let names: Vec<_> = names.stages().iter().map(|spec| spec.name).collect();
    assert_eq!(names, ["origin", "origin2", "remote", "relay"]);
}

#[test]
fn links_of_ranks_are_refused_where_there_are_relays() {
    let shape = Shape::new(&[2, 2], 3);
    for name in RouteName::all() {
        let made = JobRoute::new(name, &shape.seen_by(EndpointId(0)));
        match name {
            RouteName::FabricOnly(_) => {
                let why = made.unwrap_err().to_string();
                assert!(why.contains("mini-ranks have no links"), "{why}");
            }
            _ => drop(made.unwrap()),
        }
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for name in RouteName::several() {
        assert_eq!(name.to_string().parse(), Ok(name));
        let route =
            JobRoute::new(name, &Topology::from_node_sizes(&[1], Rank(0)).unwrap()).unwrap();
        for stage in route.numbers() {
            assert_eq!(
                route.stage_named(route.stage_name(stage)),
                Some(stage),
                "each name once"
            );
        }
    }
    assert!(
        "no-hop"
            .parse::<RouteName>()
            .unwrap_err()
            .contains("three-hop")
    );
}

#[test]
fn a_hypercube_of_a_thousand_ranks_corrects_one_bit_with_each_hop() {
    let shape = Shape::new(&[64; 16], 0);
    let cube: RouteName = "mesh:2x2x2x2x2x2x2x2x2x2".parse().unwrap();
    for (source, target) in [(0, 1023), (5, 5), (77, 78), (1000, 23), (512, 0)] {
        let (mut at, mut corrected) = (source, 0);
        for (next, _) in shape.way(cube, source, target) {
            let hop = (at ^ next.0).count_ones();
            assert!(hop == 1 || (hop, source) == (0, target), "{at} to {next}");
            (at, corrected) = (next.0, corrected + hop);
        }
        assert_eq!((at, corrected), (target, (source ^ target).count_ones()));
    }
}

#[test]
fn grids_of_most_dimensions_reach_every_rank() {
    let shape = Shape::new(&[2, 3, 1], 0);
    for text in ["mesh:20d", "node-mesh:20d", "team-mesh:20d"] {
        let name: RouteName = text.parse().unwrap();
        let name = name.for_job(&shape.seen_by(EndpointId(0))).unwrap();
        for (source, target) in (0..6).flat_map(|s| (0..6).map(move |t| (s, t))) {
            let way = shape.way(name, source, target);
            assert_eq!(way.last().map_or(source, |(end, _)| end.0), target);
        }
    }
}
