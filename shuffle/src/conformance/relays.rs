//! Jobs whose representatives are relays: the same queues, credits and protocols, whoever speaks
//! for a node.

use trihop_transport::topology::{Rank, Topology};

use super::schedule::{Replay, mixed, seeds, sim, tiny};
use super::world::World;
use crate::queue::audience::BroadcastTo;
use crate::route::{Rails, RouteName};

/// Processes of each node, and ranks of each process, or, where these are agents, of each node.
fn shape(seed: u64) -> (&'static [u32], &'static [u32]) {
    let shapes: [(&[u32], &[u32]); 12] = [
        (&[1, 1], &[2]),
        (&[1], &[3]),
        (&[2, 2], &[1]),
        (&[1, 1, 1], &[7]),
        (&[2, 1], &[3]),
        (&[2, 3, 1, 2], &[2]),
        (&[1, 1, 1, 1, 1, 1], &[1]),
        (&[3, 3], &[2]),
        (&[2, 2], &[4, 4]),
        (&[3, 3], &[4, 4]),
        (&[1, 1, 1], &[4, 1, 2]),
        (&[2, 1, 2, 2], &[3, 1, 5, 2]),
    ];
    shapes[(seed % 12) as usize]
}

pub fn placed(seed: u64) -> Topology {
    let (processes, ranks) = shape(seed);
    let topology = Topology::from_node_sizes(processes, Rank(0)).unwrap();
    let placed = match ranks {
        [ranks] => topology.with_relays(*ranks),
        ranks => topology.with_agents(ranks),
    };
    placed.unwrap()
}

/// Over which route.
pub fn route(seed: u64) -> RouteName {
    match seed / 12 % 6 {
        0 => RouteName::ThreeHop(Rails::ONE),
        1 => RouteName::Direct,
        2 => "mesh:2d".parse().unwrap(),
        3 => "node-mesh:2d".parse().unwrap(),
        4 => "team-mesh:2d".parse().unwrap(),
        _ => RouteName::default(),
    }
}

fn world(seed: u64, replies: bool) -> World {
    let (topology, fabric) = (placed(seed), sim(seed));
    let route = route(seed);
    World::placed(route, &topology, &tiny(seed), seed, fabric, replies, true)
}

#[test]
fn random_schedules_over_relays_lose_nothing_and_keep_order() {
    for seed in seeds(72) {
        let replay = Replay(seed);
        let mut world = world(seed, false);
        for _ in 0..2 {
            let sent = world.exchange(40, mixed);
            world.fence();
            world.check(&sent, false);
            world.forget();
        }
        world.settle();
        std::mem::forget(replay);
    }
}

#[test]
fn handlers_that_send_over_relays_are_answered_before_the_fence_ends() {
    for seed in seeds(40) {
        let replay = Replay(seed);
        let mut world = world(seed, true);
        let sent = world.exchange(25, mixed);
        world.fence();
        world.check(&sent, true);
        world.settle();
        std::mem::forget(replay);
    }
}

/// All ranks have had all of a stream and close it, while its last batches may be unacknowledged:
/// that they have is said over other links. A relay that has closed it says no more of it.
#[test]
fn relays_close_a_stream_and_leave_no_other_one_waiting() {
    for seed in seeds(72) {
        let replay = Replay(seed);
        let mut world = world(seed, false);
        let sent: u64 = world.exchange(10, mixed).values().sum();
        let ranks = world.size() as usize;
        let has_all = |world: &World| {
            let had = (0..world.size()).map(|rank| world.stats(rank).delivered);
            had.sum::<u64>() == sent
        };
        while !has_all(&world) {
            world.step();
        }
        let number = world.job.members[ranks].stream().0.id;
        let mut open: Vec<usize> = (ranks..world.job.members.len()).collect();
        let mut close = |world: &mut World| {
            open.retain(|&at| !world.job.members[at].engine.retire_at_relay(number));
            open.is_empty()
        };
        while !close(&mut world) {
            let moves = world.job.step().unwrap();
            assert!(moves || close(&mut world), "relays wait for ever");
        }
        std::mem::forget(replay);
    }
}

#[test]
fn broadcasts_reach_each_mini_rank_once_and_relays_hand_none_out() {
    for seed in seeds(40) {
        let replay = Replay(seed);
        let mut world = world(seed, false);
        let ranks = world.size();
        let source = world.random() as u32 % ranks;
        let data = super::world::payload(source, 0, 24);
        let sent = world
            .job
            .try_broadcast(Rank(source), 0, &data, BroadcastTo::Everyone);
        sent.unwrap();
        world.fence();
        for rank in 0..ranks {
            assert_eq!(world.heard(rank, source), [0], "rank {rank} of {ranks}");
        }
        std::mem::forget(replay);
    }
}

#[test]
fn mini_ranks_have_no_links_and_relays_deliver_nothing() {
    let mut world = world(5, false);
    let sent = world.exchange(20, mixed);
    world.fence();
    world.check(&sent, false);
    let ranks = world.size() as usize;
    let mut carried = 0;
    for (at, member) in world.job.members.iter().enumerate() {
        let (state, out) = member.stream();
        let stats = state.snapshot(out);
        assert_eq!(member.engine.link.is_some(), at >= ranks);
        assert!(!state.has_links() || at >= ranks);
        if at >= ranks {
            assert_eq!((stats.sent, stats.delivered), (0, 0), "relay {at}");
            carried += stats.frames_received;
        }
    }
    assert!(carried > 0, "what goes to other nodes goes through relays");
}

#[test]
fn ranks_leave_and_join_beside_relays() {
    for seed in seeds(16) {
        let replay = Replay(seed);
        let mut world = world(seed, false);
        let rank = Rank(world.random() as u32 % world.size());
        let sent = world.exchange(10, |_| 16);
        world.fence();
        world.check(&sent, false);
        world.forget();
        world.job.leave(rank).unwrap();
        world.job.join(rank).unwrap();
        let sent = world.exchange(10, |_| 16);
        world.fence();
        world.check(&sent, false);
        std::mem::forget(replay);
    }
}
