//! Links that are so many that they share receive slots, and ask for them.

use std::cell::Cell;

use trihop_transport::link::Limits;
use trihop_transport::sim::{Net, SimOptions};
use trihop_transport::topology::{Rank, Topology};

use super::schedule::mixed;
use super::world::World;
use crate::config::{Shares, StreamOptions};
use crate::engine::inbound::CONTROL_BYTES;
use crate::route::{Rails, RouteName};
use crate::simulation::{Fabric, Simulation, SimulationOptions};

/// A network whose endpoints take so many receives, and not one more.
fn sim_options(posted_receives: usize, seed: u64) -> SimOptions {
    SimOptions {
        seed,
        kept_bytes: CONTROL_BYTES,
        limits: Limits {
            posted_receives,
            eager_bytes: 4096,
            ..SimOptions::default().limits
        },
        ..SimOptions::default()
    }
}

fn network(posted_receives: usize, seed: u64) -> Fabric {
    Fabric::Simulated(Net::new(sim_options(posted_receives, seed)))
}

#[test]
fn links_need_no_receives_of_their_own() {
    for (route, seed) in [(RouteName::default(), 1), (RouteName::Direct, 2)] {
        let options = StreamOptions::default();
        let fabric = network(200, seed);
        // 69 links of each rank, whose own slots would be some 350 receives.
        let mut world = World::routed(route, &[1; 70], &options, seed, fabric, true, true);
        let sent = world.exchange(20, mixed);
        world.fence();
        world.check(&sent, true);
    }
}

/// The slots of every rank are given to the others' links, which keep theirs until they have been
/// idle for a while: who comes then still gets one.
#[test]
fn slots_that_others_hold_come_back() {
    let options = StreamOptions {
        given_shares: Some(Shares {
            own_slots: 0,
            receive_pool_bytes: 1,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    };
    let mut world = World::new(&[1; 6], &options, 3, network(100, 3), false, true);
    for source in (1..6).chain(1..6) {
        for _ in 0..10 {
            let number = world.heard(0, source).len() as u32;
            assert!(world.send(source, 0, number, 100));
            let deadline = world.job.now_ns() + 1_000_000_000;
            while world.heard(0, source).len() as u32 <= number {
                assert!(world.job.now_ns() < deadline, "{source} gets no slot");
                world.step();
            }
        }
    }
    world.fence();
}

/// Of several streams, the ends of a link do as the one wants that has fewest receives left,
/// though the other has enough for slots of its own.
#[test]
fn ends_with_more_receives_left_do_as_the_others() {
    let sizes: Vec<u32> = [4; 40].into_iter().chain([1]).collect();
    let topology = Topology::from_node_sizes(&sizes, Rank(0)).unwrap();
    let options = SimulationOptions {
        network: sim_options(400, 4),
        stream: StreamOptions {
            route: RouteName::ThreeHop(Rails::ONE),
            ..StreamOptions::default()
        },
        streams: 3,
        ..SimulationOptions::default()
    };
    let came = Cell::new(0);
    let mut job = Simulation::new(&topology, options, |_, _, _| came.set(came.get() + 1)).unwrap();
    let receives: Vec<u64> = job.terms.iter().map(|terms| terms.receives).collect();
    let lone = topology.size() - 1;
    for stream in 0..3 {
        job.use_stream(stream).unwrap();
        for rank in (0..lone).map(Rank) {
            job.try_send(rank, Rank(lone), 0, b"there").unwrap();
            job.try_send(Rank(lone), rank, 0, b"back").unwrap();
            job.settle().unwrap();
        }
        job.fence().unwrap();
    }
    drop(job);
    assert_eq!(came.get(), 3 * 2 * lone);
    // The first has slots of its own for 40 links, the others share them.
    assert!(receives[1] > 40 * 8 && receives[2] < 40 * 6, "{receives:?}");
}

/// A control message that waits for a receive comes behind the batch that followed it: what it says
/// of the peer's demand is old, and a peer that has asked again since is not forgotten.
#[test]
fn a_round_over_shared_slots_waits_for_no_clock() {
    let fabric = Fabric::Simulated(Net::new(SimOptions {
        max_delay: 0,
        ..sim_options(200, 1)
    }));
    let options = StreamOptions::default();
    let mut world = World::routed(
        RouteName::Direct,
        &[1; 100],
        &options,
        1,
        fabric,
        false,
        true,
    );
    for _ in 0..4 {
        let before = world.job.now_ns();
        world.job.round_of_all().unwrap();
        // A peer that is not answered asks again after 20 ms.
        let took_us = (world.job.now_ns() - before) / 1000;
        assert!(took_us < 20_000, "{took_us} us");
    }
}
