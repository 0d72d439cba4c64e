//! What holds for every route of the table.

use super::*;
use proptest::prelude::*;

/// Follows all copies of a broadcast; returns how often each rank got it, and how many copies
/// crossed links.
fn follow_copies(name: RouteName, sizes: &[u32], source: u32) -> (Vec<u32>, u32) {
    let at_rank =
        |rank: Rank| JobRoute::new(name, &Topology::from_node_sizes(sizes, rank).unwrap()).unwrap();
    let mut got = vec![0; sizes.iter().sum::<u32>() as usize];
    let mut crossed = 0;
    let mut under_way = vec![(EndpointId(source), Stage::SOURCE)];
    while let Some((here, stage)) = under_way.pop() {
        let route = at_rank(Rank(here.0));
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
fn way(name: RouteName, sizes: &[u32], source: u32, target: u32) -> Vec<(EndpointId, Stage)> {
    let mut way = vec![(EndpointId(source), Stage::SOURCE)];
    loop {
        let (here, stage) = way[way.len() - 1];
        let seen = Topology::from_node_sizes(sizes, Rank(here.0)).unwrap();
        match JobRoute::new(name, &seen)
            .unwrap()
            .next(stage, Rank(target))
            .expect("a route")
        {
            Next::To(next, over) => way.push((next, over)),
            Next::Deliver => return way.split_off(1),
        }
    }
}

/// Follows a message from `source` to `target`; returns the ranks that it passed on its way.
fn follow(name: RouteName, sizes: &[u32], source: u32, target: u32) -> Vec<u32> {
    let at_rank =
        |rank: Rank| JobRoute::new(name, &Topology::from_node_sizes(sizes, rank).unwrap()).unwrap();
    let (mut here, mut stage) = (EndpointId(source), Stage::SOURCE);
    let mut passed = vec![source];
    let at_end = |end: EndpointId| at_rank(Rank(end.0));
    while let Next::To(next, over) = at_end(here).next(stage, Rank(target)).expect("a route") {
        assert!(over > stage);
        if next == here {
            assert_eq!(
                (next, stage),
                (EndpointId(target), Stage::SOURCE),
                "only one's own stays"
            );
            assert!(over == Stage::FIRST && at_end(here).is_lane(next, over));
        } else {
            assert!(!passed.contains(&next.0), "{next} is passed twice");
            passed.push(next.0);
        }
        (here, stage) = (next, over);
    }
    assert_eq!(here, EndpointId(target));
    passed
}

proptest! {
    #![proptest_config(crate::seed::properties())]

    /// Every route ends at its target, over each stage once at most, and no endpoint is passed
    /// twice.
    #[test]
    fn every_route_ends_at_its_target(sizes in proptest::collection::vec(1u32..6, 1..9), picks: (u32, u32)) {
        let total: u32 = sizes.iter().sum();
        let (source, target) = (picks.0 % total, picks.1 % total);
        for name in RouteName::several() {
            prop_assert!(follow(name, &sizes, source, target).len() <= 1 + name.stages().len());
        }
        prop_assert!(follow(RouteName::Direct, &sizes, source, target).len() <= 2);
        let [lanes, fabric] = [RouteName::default(), RouteName::FabricOnly(Rails::default())]
            .map(|name| follow(name, &sizes, source, target));
        prop_assert_eq!(lanes, fabric, "the same way");
    }

    /// A broadcast reaches every other rank once, and an endpoint and stage that it does not reach
    /// know that.
    #[test]
    fn copies_of_a_broadcast_make_a_tree(sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32) {
        let total: u32 = sizes.iter().sum();
        let source = pick % total;
        for name in RouteName::several() {
            let (got, _) = follow_copies(name, &sizes, source);
            for (rank, &times) in got.iter().enumerate() {
                prop_assert_eq!(times, u32::from(rank as u32 != source), "rank {}", rank);
                let here = Topology::from_node_sizes(&sizes, Rank(rank as u32)).unwrap();
                let route = JobRoute::new(name, &here).unwrap();
                let passed = route.numbers().filter(|&stage| route.passes(stage, Rank(source))).count();
                prop_assert_eq!(passed, 1, "rank {} of {:?} from {}", rank, sizes, source);
            }
        }
    }

    /// A broadcast does not overtake, and is not overtaken by, what its source sends to one rank
    /// alone: both go the same way.
    #[test]
    fn copies_go_the_ways_of_messages(
        sizes in proptest::collection::vec(1u32..6, 1..7),
        pick: u32,
    ) {
        let total: u32 = sizes.iter().sum();
        let source = pick % total;
        let at_rank = |rank: u32| Topology::from_node_sizes(&sizes, Rank(rank)).unwrap();
        for name in RouteName::several() {
            let mut under_way = vec![(EndpointId(source), Stage::SOURCE, Vec::new())];
            while let Some((here, stage, passed)) = under_way.pop() {
                if stage != Stage::SOURCE {
                    let way = way(name, &sizes, source, here.0);
                    prop_assert_eq!(&passed, &way, "{} {:?}", name, sizes);
                }
                let route = JobRoute::new(name, &at_rank(here.0)).unwrap();
                for number in 0..route.copies(stage, Rank(source)) {
                    let (next, over) = route.copy(stage, Rank(source), number);
                    under_way.push((next, over, [&passed[..], &[(next, over)]].concat()));
                }
            }
        }
    }

    /// Over each rail that a rank of the other node picks once where there are representatives.
    #[test]
    fn copies_of_a_broadcast_cross_as_few_links_as_the_route_allows(
        sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32,
    ) {
        let total: u32 = sizes.iter().sum();
        let source = pick % total;
        let topology = Topology::from_node_sizes(&sizes, Rank(source)).unwrap();
        let most = Rails::default().for_job(&topology).unwrap().number();
        let nodes = (0..topology.nodes()).filter(|&node| node != topology.node().0);
        let own = topology.local_size();
        let over_rails = nodes.map(|node| sizes[node as usize].min(own).min(most)).sum::<u32>();
        for (name, links) in [
            (RouteName::default(), over_rails),
            (RouteName::ThreeHop(Rails::ONE), topology.nodes() - 1),
            (RouteName::Direct, total - topology.local_size()),
            (RouteName::FabricOnly(Rails::ONE), total - 1),
        ] {
            prop_assert_eq!(follow_copies(name, &sizes, source).1, links, "{}", name);
        }
    }

    /// Both ends of an edge know each other, and what each counts is what there is; the same for
    /// the collectives' tree.
    #[test]
    fn edges_have_two_ends(sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32) {
        let total: u32 = sizes.iter().sum();
        let (me, own) = (Rank(pick % total), EndpointId(pick % total));
        let see = |rank| Topology::from_node_sizes(&sizes, rank).unwrap();
        let named = RouteName::several().into_iter().map(Some);
        for name in named.into_iter().chain([None]) {
            let at_rank = |rank| match name {
                Some(name) => JobRoute::new(name, &see(rank)).unwrap(),
                None => JobRoute::tree(&see(rank)),
            };
            let route = at_rank(me);
            let mut seen = std::collections::BTreeSet::new();
            for stage in route.numbers() {
                for reach in Reach::BOTH {
                    prop_assert!(route.edges(stage, reach) <= rule!(route.most_edges(stage, reach)));
                    for number in 0..route.edges(stage, reach) {
                        let peer = route.edge(stage, reach, number);
                        prop_assert!(peer != own && seen.insert((peer, stage)));
                        prop_assert_eq!(see(me).is_here(peer), reach == Reach::Node);
                        let other = at_rank(Rank(peer.0));
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

    /// Lanes are numbered without gaps, and each knows its writer and its stage.
    #[test]
    fn lanes_are_numbered_by_rank_and_stage(sizes in proptest::collection::vec(1u32..6, 1..4)) {
        let topology = Topology::from_node_sizes(&sizes, Rank(0)).unwrap();
        for name in RouteName::several() {
            let route = JobRoute::new(name, &topology).unwrap();
            let mut next = 0;
            for local in 0..topology.local_size() {
                for &stage in route.lane_stages() {
                    prop_assert_eq!(route.lane_slot(local, stage), next);
                    prop_assert_eq!((next / route.lanes_per_rank(), route.stage_of_lane(next)), (local, stage));
                    next += 1;
                }
            }
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
