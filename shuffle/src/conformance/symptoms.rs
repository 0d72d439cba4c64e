//! What other systems of this kind fail at, each named after the symptom. Most were seen in Charm++'s
//! TRAM: its staged completion is our round, its completion detection our step.

use std::collections::HashMap;

use trihop_transport::link::Mover;

use super::schedule::{real, real_providers, sim, sim_with_eager, tiny};
use super::world::World;
use crate::config::StreamOptions;
use crate::engine::contribution::Contributors;
use crate::route::{Rails, RouteName};
use crate::terminate::step::Step;

/// Messages by source and target, and what has been sent of them.
type Sent = HashMap<(u32, u32), u64>;

/// Sends a message, and lets ranks take turns until it finds room.
fn send(world: &mut World, sent: &mut Sent, (source, target): (u32, u32), bytes: usize) {
    let number = sent.entry((source, target)).or_default();
    while !world.send(source, target, *number as u32, bytes) {
        world.step();
    }
    *number += 1;
}

/// All ranks end a round, after which all that was sent is there.
fn round(world: &mut World, sent: &Sent) {
    if let Err(error) = world.job.round_of_all() {
        world.give_up(&error.to_string());
    }
    world.check(sent, false);
}

/// What a rank has sent over all its links.
fn wire_bytes(world: &mut World, rank: u32) -> u64 {
    let links = world.out(rank).queues.remotes.iter();
    links.map(|link| link.wire_bytes).sum()
}

/// A job over this route with queues of a few records, and another of it with the usual ones.
fn worlds(route: RouteName, sizes: &[u32]) -> [World; 2] {
    [tiny(2), StreamOptions::default()].map(|options| {
        let seed = sizes.len() as u64;
        World::routed(route, sizes, &options, seed, sim(seed), false, true)
    })
}

/// Batches to oneself that leave because they are full, and not because somebody flushes, are no
/// news for a count that others wait for; on grids of nodes they go where any other goes.
#[test]
fn a_round_ends_though_ranks_have_filled_many_batches_to_themselves() {
    for route in RouteName::several() {
        for sizes in [&[8][..], &[4, 4], &[3, 3, 2], &[1, 1, 1, 1]] {
            for mut world in worlds(route, sizes) {
                let mut sent = Sent::new();
                for _ in 0..2 {
                    for rank in 0..world.size() {
                        (0..60).for_each(|_| send(&mut world, &mut sent, (rank, rank), 8));
                        let next = (rank + 1) % world.size();
                        send(&mut world, &mut sent, (rank, next), 8);
                    }
                    round(&mut world, &sent);
                }
                (0..40).for_each(|_| send(&mut world, &mut sent, (0, 0), 8));
                world.fence();
                world.check(&sent, false);
            }
        }
    }
}

/// Ranks of one node, in three and four dimensions: each is corrected, and each has marks of its
/// own.
#[test]
fn no_dimension_of_a_grid_inside_a_node_is_skipped() {
    for (route, ranks) in [("mesh:2x2x2", 8), ("mesh:2x2x2x2", 16), ("mesh:2x3x2", 11)] {
        for mut world in worlds(route.parse().unwrap(), &[ranks]) {
            let mut sent = Sent::new();
            for source in 0..ranks {
                (0..ranks).for_each(|target| send(&mut world, &mut sent, (source, target), 8));
            }
            round(&mut world, &sent);
            let batches = |world: &mut World| world.out(0).queues.remotes.len();
            assert_eq!(batches(&mut world), 0, "all of it goes over lanes");
        }
    }
}

/// An item that is longer than any buffer is cut, counted and waited for like any other.
#[test]
fn a_round_ends_with_records_that_are_longer_than_every_buffer() {
    for route in RouteName::several() {
        for mut world in worlds(route, &[3, 3, 2]) {
            let mut sent = Sent::new();
            for source in 0..world.size() {
                for target in [source, (source + 3) % world.size()] {
                    send(&mut world, &mut sent, (source, target), 100_000);
                    send(&mut world, &mut sent, (source, target), 8);
                }
            }
            round(&mut world, &sent);
        }
    }
}

/// Records of each length: the last that fits a run, a frame or a batch, and the first that does
/// not.
#[test]
fn records_that_fill_a_buffer_to_its_last_byte_or_pass_it_by_one_arrive() {
    for options in [
        tiny(2),
        StreamOptions {
            run_bytes: 512,
            ..tiny(2)
        },
    ] {
        let mut world = World::new(&[2, 2], &options, 1, sim(1), false, true);
        let mut sent = Sent::new();
        for bytes in 0..1200 {
            for target in 0..4 {
                send(&mut world, &mut sent, (0, target), bytes);
            }
        }
        world.fence();
        world.check(&sent, false);
    }
}

/// Offsets and lengths inside a batch are no 16-bit numbers.
#[test]
fn records_of_any_length_fill_batches_of_a_mebibyte() {
    let options = StreamOptions {
        remote_buftarget_bytes: 1 << 20,
        remote_maxrpc: 1,
        ..StreamOptions::default()
    };
    for bytes in [0, 1, 40, 12_000] {
        let mut world = World::new(
            &[2, 2],
            &options,
            1,
            sim_with_eager(1, 1 << 20),
            false,
            true,
        );
        let mut sent = Sent::new();
        let (mut before, mut longest) = (0, 0);
        let mut look = |world: &mut World| {
            let now = wire_bytes(world, 1);
            (before, longest) = (now, longest.max(now - before));
        };
        for _ in 0..3 * (1 << 20) / bytes.max(64) {
            send(&mut world, &mut sent, (0, 3), bytes);
            look(&mut world);
        }
        for _ in 0..2000 {
            world.step();
            look(&mut world);
        }
        world.fence();
        world.check(&sent, false);
        assert!(longest > 1 << 16, "{longest} bytes at once");
    }
}

/// What leaves with one item in it is not as long as its buffer.
#[test]
fn a_flushed_batch_of_one_item_is_no_longer_than_that() {
    let options = StreamOptions::default();
    let mut world = World::new(
        &[1, 1],
        &options,
        1,
        sim_with_eager(1, 1 << 16),
        false,
        true,
    );
    let mut sent = Sent::new();
    send(&mut world, &mut sent, (0, 1), 8);
    world.settle();
    world.check(&sent, false);
    let bytes = wire_bytes(&mut world, 0);
    assert!((1..=100).contains(&bytes), "{bytes} bytes for one of 8");
}

/// A link that has much to do does not keep a batch on another one waiting: time is the network's.
#[test]
fn a_cold_link_waits_for_no_hot_one() {
    const LINGER_NS: u64 = 50_000;
    let options = StreamOptions {
        linger_us: LINGER_NS / 1000,
        ..StreamOptions::default()
    };
    for route in ["direct", "mesh:1d", "three-hop:1"] {
        let route = route.parse().unwrap();
        let fabric = sim_with_eager(3, 4096);
        let mut world = World::routed(route, &[1, 1, 1], &options, 3, fabric, false, true);
        let mut sent = Sent::new();
        while world.heard(1, 0).is_empty() {
            send(&mut world, &mut sent, (0, 1), 900);
            world.step();
        }
        send(&mut world, &mut sent, (0, 2), 8);
        let begin_ns = world.job.now_ns();
        while world.heard(2, 0).is_empty() {
            send(&mut world, &mut sent, (0, 1), 900);
            world.step();
            let waited_ns = world.job.now_ns() - begin_ns;
            assert!(waited_ns < 20 * LINGER_NS, "{route}: {waited_ns} ns");
        }
        world.fence();
        world.check(&sent, false);
    }
}

/// More sends at once than anybody has slots for: credits stop the sender, and nothing stands still.
#[test]
fn a_burst_of_a_hundred_thousand_sends_comes_through() {
    for sizes in [&[2][..], &[1, 1]] {
        let options = StreamOptions::default();
        let mut world = World::new(sizes, &options, 1, sim_with_eager(1, 4096), false, true);
        let mut sent = Sent::new();
        (0..100_000).for_each(|_| send(&mut world, &mut sent, (0, 1), 8));
        round(&mut world, &sent);
    }
}

/// As above, and with messages longer than any buffer, on what this machine has: where TRAM stands
/// still on libfabric's shm behind some hundred sends.
#[test]
fn a_burst_comes_through_over_libfabric() {
    for provider in real_providers() {
        for (route, sizes) in [
            (RouteName::Direct, &[1, 1][..]),
            (RouteName::ThreeHop(Rails::ONE), &[2, 2]),
        ] {
            let fabric = real(provider, Mover::Read, None, sizes.iter().sum());
            let options = StreamOptions::default();
            let mut world = World::routed(route, sizes, &options, 1, fabric, false, true);
            let mut sent = Sent::new();
            let last = world.size() - 1;
            (0..100_000).for_each(|_| send(&mut world, &mut sent, (0, last), 8));
            (0..200).for_each(|_| send(&mut world, &mut sent, (last, 0), 70_000));
            round(&mut world, &sent);
        }
    }
}

/// What has been counted passes 32 bits in any step of a long job.
#[test]
fn fences_and_steps_end_beyond_counts_of_32_bits() {
    const BEFORE: u64 = (1 << 32) - 20;
    let options = StreamOptions::default();
    let mut world = World::new(&[2, 1], &options, 5, sim(5), true, true);
    for rank in 0..world.size() {
        world.out(rank).sent = BEFORE;
        world.core(rank).taken = BEFORE;
    }
    let sent = world.exchange(50, |_| 8);
    world.fence();
    world.check(&sent, true);
    let stats: Vec<_> = (0..world.size()).map(|rank| world.stats(rank)).collect();
    let all: u64 = stats.iter().map(|stats| stats.sent).sum();
    assert_eq!(all, 3 * BEFORE + 2 * 150, "each was answered");
    assert_eq!(stats.iter().map(|stats| stats.delivered).sum::<u64>(), all);
    // A step of 2^33 contributors, a third of which are done on each rank.
    let contributors = 3 << 33;
    let mut steps = Vec::new();
    for member in &mut world.job.members {
        let (state, out, collectives) = member.stream_mut();
        let of = Contributors::All(contributors);
        steps.push(Step::begin(of, state, out, collectives).unwrap());
    }
    for rank in 0..world.size() {
        for member in 0..world.size() {
            let (state, out, collectives) = world.job.members[member as usize].stream_mut();
            let is_over = steps[member as usize].poll(state, out, collectives);
            assert!(!is_over, "{rank} of 3 ranks are done");
        }
        (0..500).for_each(|_| world.step());
        world.out(rank).done(contributors / 3).unwrap();
    }
    world.until("step", |rank, member| {
        let (state, out, collectives) = member.stream_mut();
        steps[rank as usize].poll(state, out, collectives)
    });
}
