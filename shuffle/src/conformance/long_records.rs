//! Records of many fragments, from many sources at once.

use std::collections::HashMap;

use crate::config::{Shares, StreamOptions};

use super::schedule::{Replay, seeds, sim_with_eager};
use super::world::World;

/// Long records of `bytes` from every source to one target, all at once.
fn long_records(world: &mut World, target: u32, sources: &[usize], each: u32, bytes: usize) {
    let mut sent = vec![0u32; world.size() as usize];
    let mut steps = 0;
    while sources.iter().any(|&source| sent[source] < each) {
        for &source in sources {
            if sent[source] == each {
                continue;
            }
            if world.send(source as u32, target, sent[source], bytes) {
                sent[source] += 1;
            }
        }
        world.step();
        steps += 1;
        if steps > 200_000 {
            world.give_up(&format!("long records are stuck: {sent:?}"));
        }
    }
    world.fence();
    let mut counts = HashMap::new();
    for &source in sources {
        counts.insert((source as u32, target), u64::from(each));
    }
    world.check(&counts, false);
}

#[test]
fn announced_batches_of_others_never_keep_a_long_record_from_going_on() {
    for seed in seeds(3) {
        let replay = Replay(seed);
        let mut world = World::new(
            &[2; 7],
            &StreamOptions::default(),
            seed,
            sim_with_eager(seed, 16 << 10),
            false,
            true,
        );
        long_records(&mut world, 1, &[4, 5, 8, 9, 12, 13], 10, 200_000);
        std::mem::forget(replay);
    }
}

#[test]
fn announced_batches_wait_for_reassembly_without_a_deadlock() {
    for seed in seeds(3) {
        let replay = Replay(seed);
        let options = StreamOptions {
            given_shares: Some(Shares {
                reassembly_bytes: 1,
                ..Shares::default()
            }),
            ..StreamOptions::default()
        };
        let mut world = World::new(
            &[1; 6],
            &options,
            seed,
            sim_with_eager(seed, 16 << 10),
            false,
            true,
        );
        long_records(&mut world, 0, &[1, 2, 3, 4, 5], 6, 400_000);
        std::mem::forget(replay);
    }
}

#[test]
fn few_send_buffers_are_enough_for_long_records_in_all_directions() {
    for seed in seeds(2) {
        let replay = Replay(seed);
        let options = StreamOptions {
            given_shares: Some(Shares {
                send_pool_bytes: 1,
                ..Shares::default()
            }),
            remote_maxrpc: 8,
            ..StreamOptions::default()
        };
        let mut world = World::new(
            &[2; 5],
            &options,
            seed,
            sim_with_eager(seed, 16 << 10),
            false,
            true,
        );
        let sent = world.exchange(4, |_| 300_000);
        world.fence();
        world.check(&sent, false);
        std::mem::forget(replay);
    }
}
