//! The placement against an array of one node per rank.

use super::*;
use proptest::prelude::*;

/// Nodes of all ranks, dense: what the array model is made of.
fn placements() -> impl Strategy<Value = Vec<u32>> {
    let equal = (1_u32..9, 1_u32..9)
        .prop_map(|(nodes, local)| (0..nodes * local).map(|r| r / local).collect());
    let cyclic = (1_u32..9, 1_u32..40)
        .prop_map(|(nodes, size)| (0..size.max(nodes)).map(|r| r % nodes).collect());
    let unequal = prop::collection::vec(1_usize..6, 1..9).prop_map(|sizes| {
        (0..)
            .zip(sizes)
            .flat_map(|(node, size)| vec![node; size])
            .collect()
    });
    let irregular = prop::collection::vec(0_u32..6, 1..40).prop_map(|mut nodes: Vec<u32>| {
        let used: std::collections::BTreeSet<u32> = nodes.iter().copied().collect();
        let dense: Vec<u32> = used.into_iter().collect();
        nodes
            .iter_mut()
            .for_each(|n| *n = dense.binary_search(n).unwrap() as u32);
        nodes
    });
    prop_oneof![equal, cyclic, unequal, irregular]
}

fn check_against_array(topology: &Topology, array: &[u32]) {
    assert_eq!(topology.size() as usize, array.len());
    let nodes = array.iter().max().unwrap() + 1;
    assert_eq!(topology.nodes(), nodes);
    let local_sizes: Vec<u32> = (0..nodes)
        .map(|n| topology.local_size_of(NodeId(n)))
        .collect();
    assert_eq!(Some(&topology.fewest_local()), local_sizes.iter().min());
    assert_eq!(Some(&topology.most_local()), local_sizes.iter().max());
    for node in 0..nodes {
        let ranks: Vec<u32> = (0..array.len() as u32)
            .filter(|r| array[*r as usize] == node)
            .collect();
        assert_eq!(topology.local_size_of(NodeId(node)) as usize, ranks.len());
        assert_eq!(
            topology
                .ranks_of(NodeId(node))
                .map(|r| r.0)
                .collect::<Vec<_>>(),
            ranks
        );
        for (local, rank) in (0..).zip(&ranks) {
            assert_eq!(topology.node_of(Rank(*rank)), NodeId(node));
            assert_eq!(topology.local_rank_of(Rank(*rank)), local);
            assert_eq!(topology.rank_at(NodeId(node), local), Rank(*rank));
            assert_eq!(topology.is_local(Rank(*rank)), node == topology.node().0);
        }
        for towards in 0..nodes {
            let expected = ranks[towards as usize % ranks.len()];
            assert_eq!(
                topology.representative(NodeId(node), NodeId(towards)),
                Rank(expected)
            );
        }
        let mine = topology.node();
        assert_eq!(
            topology.target_representative(NodeId(node)),
            topology.representative(NodeId(node), mine)
        );
        assert_eq!(
            topology.source_representative(NodeId(node)),
            topology.representative(mine, NodeId(node))
        );
    }
}

proptest! {
    #![proptest_config(crate::seed::properties())]

    #[test]
    fn look_ups_agree_with_an_array(array in placements(), seat in any::<prop::sample::Index>()) {
        let me = Rank(seat.index(array.len()) as u32);
        let topology = Topology::from_node_of(&array, me).unwrap();
        check_against_array(&topology, &array);
        prop_assert_eq!(topology.rank(), me);
        prop_assert_eq!(topology.node(), NodeId(array[me.0 as usize]));
        prop_assert_eq!(topology.local_rank(), topology.local_rank_of(me));
        prop_assert_eq!(topology.local_size(), topology.local_size_of(topology.node()));
        prop_assert!(topology.blocks().len() <= array.len());
        check_against_array(&topology.seen_from(Rank(0)).unwrap(), &array);
        check_against_array(&Topology::new(topology.blocks().to_vec(), me).unwrap(), &array);
    }

    #[test]
    fn the_mapping_comes_back_from_its_text(array in placements()) {
        let text = Topology::from_node_of(&array, Rank(0)).unwrap().process_mapping();
        let again = Topology::from_process_mapping(&text, array.len() as u32, Rank(0)).unwrap();
        check_against_array(&again, &array);
    }

    #[test]
    fn tuples_repeat_until_all_ranks_are_placed(
        tuples in prop::collection::vec((0_u32..6, 1_u32..4, 1_u32..4), 1..5),
        size in 1_u32..60,
    ) {
        let pass = tuples.iter().flat_map(|(first, nodes, local)| {
            (*first..first + nodes).flat_map(move |n| vec![n; *local as usize])
        });
        let placed: Vec<u32> = pass.collect::<Vec<_>>().into_iter().cycle().take(size as usize).collect();
        let used: std::collections::BTreeSet<u32> = placed.iter().copied().collect();
        let dense: Vec<u32> = used.into_iter().collect();
        let array: Vec<u32> = placed.iter().map(|n| dense.binary_search(n).unwrap() as u32).collect();
        let text = ProcessMapping::of(tuples.clone()).to_string();
        let topology = Topology::from_process_mapping(&text, size, Rank(size - 1)).unwrap();
        check_against_array(&topology, &array);
        // As MPICH 5 writes it.
        let word = |&(node, nodes, local): &(u32, u32, u32)| match (nodes, local) {
            (1, 1) => node.to_string(),
            _ => format!("({node},{nodes},{local})"),
        };
        let words: Vec<String> = tuples.iter().map(word).collect();
        let words = words.join(",");
        for text in [format!("(vector,{words})"), format!("(vector,[{words}]x2)"), format!("(vector,{words},[{words}]x3)")] {
            let topology = Topology::from_process_mapping(&text, size, Rank(size - 1)).unwrap();
            check_against_array(&topology, &array);
        }
    }

    #[test]
    fn arbitrary_mappings_never_panic(
        text in prop_oneof![".{0,40}", "\\(vector(,\\([0-9]{1,11},[0-9]{1,11},[0-9]{1,11}\\)){1,3}\\)",
            "\\(vector(,\\[?(\\([0-9]{1,2},[0-9]{1,2},[0-9]\\)|[0-9]{1,2})(\\]x[0-9]{1,10})?){1,4}\\)"],
        size in prop_oneof![any::<u32>(), 0_u32..100],
        me in any::<u32>(),
    ) {
        let _ = Topology::from_process_mapping(&text, size, Rank(me));
        let _ = Topology::from_process_mapping(&text, size, Rank(0));
    }

    #[test]
    fn arbitrary_blocks_never_panic(
        blocks in prop::collection::vec((any::<u32>(), 0_u32..9, any::<u32>(), 0_u32..9), 0..4),
        me in any::<u32>(),
    ) {
        let blocks = blocks.into_iter().map(|(first_rank, nodes, ranks_per_node, first_node)| Block {
            first_rank, nodes, ranks_per_node, first_node,
        });
        let _ = Topology::new(blocks.collect(), Rank(me));
    }
}

#[test]
fn a_large_regular_job_is_one_block() {
    let topology = Topology::from_node_sizes(&vec![32; 10_000], Rank(319_999)).unwrap();
    assert_eq!(topology.blocks().len(), 1);
    assert_eq!(
        (topology.node(), topology.local_rank()),
        (NodeId(9_999), 31)
    );
    let cyclic =
        Topology::from_process_mapping("(vector,(0,10000,1))", 320_000, Rank(10_001)).unwrap();
    assert_eq!(cyclic.blocks().len(), 32);
    assert_eq!(
        (cyclic.node(), cyclic.local_rank(), cyclic.local_size()),
        (NodeId(1), 1, 32)
    );
}

#[test]
fn one_node_stays_one_block_whatever_the_size() {
    let topology = Topology::from_process_mapping("(vector,(0,1,1))", u32::MAX, Rank(7)).unwrap();
    assert_eq!(
        (topology.blocks().len(), topology.local_size()),
        (1, u32::MAX)
    );
}

#[test]
fn a_mapping_that_would_fill_memory_is_refused() {
    let text = Topology::from_process_mapping("(vector,(0,2,1))", u32::MAX, Rank(0))
        .unwrap_err()
        .to_string();
    assert!(text.contains("blocks"), "{text}");
}

#[test]
fn impossible_placements_are_refused() {
    let block = |first_rank, nodes, ranks_per_node, first_node| Block {
        first_rank,
        nodes,
        ranks_per_node,
        first_node,
    };
    for (blocks, why) in [
        (vec![], "no rank"),
        (vec![block(1, 1, 1, 0)], "rank 1"),
        (vec![block(0, 1, 1, 1)], "dense"),
        (vec![block(0, 1, 1, 0), block(1, 1, 1, 2)], "dense"),
        (vec![block(0, 2, 0, 0)], "0 ranks"),
        (vec![block(0, 1, 1, 0), block(3, 1, 1, 1)], "rank 3"),
        (vec![block(0, u32::MAX, u32::MAX, 0)], "2^32"),
    ] {
        let text = Topology::new(blocks, Rank(0)).unwrap_err().to_string();
        assert!(text.contains(why), "{text} lacks {why}");
    }
    assert!(Topology::from_node_sizes(&[2, 0, 2], Rank(0)).is_err());
    assert!(Topology::from_node_sizes(&[2], Rank(2)).is_err());
    assert!(Topology::from_node_sizes(&[], Rank(0)).is_err());
}

#[test]
fn mappings_of_mpich_5_are_read() {
    // What `mpiexec` of MPICH 5.0.2 says for `-hosts` and `-ppn`, and the nodes of the ranks.
    let said: [(&str, &[u32]); 7] = [
        ("(vector,0)", &[0]),
        ("(vector,(0,2,1),0)", &[0, 1, 0]),
        ("(vector,[(0,2,1)]x2)", &[0, 1, 0, 1]),
        ("(vector,[(0,2,1)]x2,0)", &[0, 1, 0, 1, 0]),
        (
            "(vector,[(0,1,3),(1,1,2)]x2)",
            &[0, 0, 0, 1, 1, 0, 0, 0, 1, 1],
        ),
        ("(vector,[0,(1,1,2),2]x2)", &[0, 1, 1, 2, 0, 1, 1, 2]),
        ("(vector,0,(1,1,2),2,0,(1,1,2))", &[0, 1, 1, 2, 0, 1, 1]),
    ];
    for (text, nodes) in said {
        let topology = Topology::from_process_mapping(text, nodes.len() as u32, Rank(0)).unwrap();
        check_against_array(&topology, nodes);
    }
    // Quickly, although the text is for as many ranks as there can be.
    for text in [
        "(vector,[0]x4294967295)",
        "(vector,[0,(0,1,7)]x4294967294,1)",
    ] {
        Topology::from_process_mapping(text, u32::MAX, Rank(0)).unwrap();
    }
    for (text, why) in [
        ("vector", "it is no vector"),
        ("(vector,)", "something else than numbers"),
        ("(vector,(0,1))", "not three numbers"),
        ("(vector,(0,1,1,1))", "not three numbers"),
        ("(vector,(0,0,1))", "is empty"),
        ("(vector,(0,1,4294967296))", "something else than numbers"),
        ("(vector,[(0,2,1)])", "how often"),
        ("(vector,[(0,2,1)]x0)", "repeated 0 times"),
        ("(vector,[[0]x2]x2)", "something else than numbers"),
        ("(vector,(0,2,1),0", "does not end"),
        ("(vector,(0,2,1)) ,0)", "does not end"),
    ] {
        let refused = Topology::from_process_mapping(text, 4, Rank(0)).unwrap_err();
        assert!(refused.to_string().contains(why), "{text}: {refused}");
    }
}

proptest! {
    #![proptest_config(crate::seed::properties())]

    /// Ranks first, relays behind them; on each node too, where all have places of their own.
    #[test]
    fn relays_are_numbered_behind_the_ranks_and_stand_behind_them_on_their_nodes(
        array in placements(), ranks in 1_u32..5, pick in any::<prop::sample::Index>(),
    ) {
        let processes = Topology::from_node_of(&array, Rank(pick.index(array.len()) as u32)).unwrap();
        let here = processes.with_relays(ranks).unwrap();
        let count = array.len() as u32;
        check_against_array(&here, &array.iter().flat_map(|&n| vec![n; ranks as usize]).collect::<Vec<_>>());
        check_against_array(&here.processes(), &array);
        prop_assert_eq!((here.size(), here.endpoints()), (ranks * count, (ranks + 1) * count));
        prop_assert!(here.has_relays() && !processes.has_relays() && !here.is_relay());
        prop_assert_eq!(here.rank(), Rank(processes.rank().0 * ranks));
        for process in 0..count {
            let relay = here.relay_of(process);
            prop_assert_eq!(relay, EndpointId(ranks * count + process));
            let seen = here.seen_by(relay).unwrap();
            prop_assert!(seen.is_relay() && seen.endpoint() == relay);
            prop_assert_eq!((seen.rank(), here.rank_of(relay)), (Rank(process * ranks), Rank(process * ranks)));
            prop_assert_eq!(seen.node(), NodeId(array[process as usize]));
            prop_assert_eq!(seen.processes().rank(), Rank(process));
            let ends: Vec<EndpointId> = seen.ends_here().collect();
            prop_assert_eq!(ends.len() as u32, seen.places());
            prop_assert!(seen.places() <= seen.most_places() && ends.is_sorted());
            for (place, &end) in (0..).zip(&ends) {
                prop_assert_eq!((seen.place_of(end), seen.endpoint_at(place)), (place, end));
                prop_assert_eq!(seen.seen_by(end).unwrap().place(), place);
                prop_assert!(seen.is_here(end));
            }
            for rank in process * ranks..(process + 1) * ranks {
                prop_assert_eq!(here.process_of(EndpointId(rank)), process);
            }
            prop_assert_eq!(here.process_of(relay), process);
        }
        prop_assert!(!here.has_endpoint(EndpointId(here.endpoints())));
        prop_assert!(here.seen_by(EndpointId(here.endpoints())).is_err());
        prop_assert!(here.seen_from(Rank(here.size())).is_err(), "a relay is no rank");
        prop_assert!(here.with_relays(2).is_err());
    }
}

proptest! {
    #![proptest_config(crate::seed::properties())]

    /// Wherever agents are, each node's ranks are dealt out to them evenly, one after the other.
    #[test]
    fn agents_share_the_ranks_of_their_node(
        array in placements(), more in prop::collection::vec(0_u32..7, 40),
    ) {
        let agents = Topology::from_node_of(&array, Rank(0)).unwrap();
        let nodes = (0..agents.nodes()).map(NodeId);
        let ranks: Vec<u32> = nodes.zip(more).map(|(n, more)| agents.local_size_of(n) + more).collect();
        let here = agents.with_agents(&ranks).unwrap();
        prop_assert!(here.has_agents());
        prop_assert_eq!(here.size(), ranks.iter().sum::<u32>());
        prop_assert_eq!(here.endpoints(), here.size() + agents.size());
        let mut next = 0;
        for agent in 0..agents.size() {
            let relay = here.relay_of(agent);
            let (node, own) = (here.node_of_endpoint(relay), here.ranks_of_process(agent));
            prop_assert_eq!(node, agents.node_of(Rank(agent)));
            let (all, sharers) = (ranks[node.0 as usize], agents.local_size_of(node));
            prop_assert!(own == all / sharers || own == all.div_ceil(sharers));
            prop_assert!(own <= here.most_relayed_ranks());
            prop_assert_eq!((here.first_of_process(agent), here.rank_of(relay)), (Rank(next), Rank(next)));
            for rank in (next..next + own).map(Rank) {
                prop_assert_eq!((here.process_of_rank(rank), here.node_of(rank)), (agent, node));
                let seen = here.seen_from(rank).unwrap();
                prop_assert_eq!((seen.relayed_ranks(), seen.ranks_in_process()), (own, 1));
                prop_assert_eq!(seen.keeper(), here.relay_of(agents.rank_at(node, 0).0));
            }
            let seen = here.seen_by(relay).unwrap();
            prop_assert!(seen.is_relay() && seen.places() <= seen.most_places());
            prop_assert_eq!((seen.local_size(), seen.local_relays()), (all, sharers));
            let ends: Vec<EndpointId> = seen.ends_here().collect();
            prop_assert_eq!(ends.len() as u32, seen.places());
            for (place, &end) in (0..).zip(&ends) {
                prop_assert_eq!((seen.place_of(end), seen.endpoint_at(place)), (place, end));
                prop_assert_eq!(seen.seen_by(end).unwrap().place(), place);
            }
            let processes = seen.processes();
            prop_assert_eq!((processes.rank(), processes.named(Rank(agent))), (Rank(agent), Rank(next)));
            next += own;
        }
        let sizes: Vec<u32> = (0..here.nodes()).map(|n| here.local_size_of(NodeId(n))).collect();
        prop_assert_eq!(&sizes, &ranks);
        prop_assert!(here.with_agents(&ranks).is_err());
    }
}

#[test]
fn a_job_with_equal_nodes_is_one_block_however_many_agents_it_has() {
    for agents in [1, 2, 4] {
        let processes = Topology::from_node_sizes(&[agents; 1000], Rank(0)).unwrap();
        let topology = processes.with_agents(&[4; 1000]).unwrap();
        assert_eq!(topology.blocks().len(), 1, "{agents}");
    }
}

#[test]
fn agents_without_ranks_are_refused() {
    let agents = Topology::from_node_sizes(&[2, 1], Rank(0)).unwrap();
    for (ranks, why) in [
        (&[2, 0][..], "node 1 has 0 ranks and 1 agents"),
        (&[1, 1], "node 0 has 1 ranks and 2 agents"),
        (&[2], "ranks of 1 nodes, of 2"),
        (&[2, u32::MAX], "pass 2^32 - 1"),
    ] {
        let refused = agents.with_agents(ranks).unwrap_err().to_string();
        assert!(refused.contains(why), "{ranks:?}: {refused}");
    }
}

#[test]
fn impossible_numbers_of_ranks_in_a_process_are_refused() {
    let topology = Topology::from_node_sizes(&[2, 3], Rank(1)).unwrap();
    for ranks in [0, u32::MAX, u32::MAX / 3, u32::MAX / 5] {
        assert!(topology.with_relays(ranks).is_err(), "{ranks}");
    }
}
