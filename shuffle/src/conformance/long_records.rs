//! Records of many fragments, from many sources at once.

use std::cell::RefCell;
use std::collections::HashMap;

use trihop_transport::topology::{Rank, Topology};

use crate::config::{Shares, StreamOptions};
use crate::error::Error;
use crate::queue::audience::BroadcastTo;
use crate::route::RouteName;
use crate::simulation::{Simulation, SimulationOptions};

use super::schedule::{Replay, seeds, sim_with_eager, tiny};
use super::world::{World, at_random};

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

/// Bytes of an item: whom it is from, its number, whether it is an answer, and a filling that
/// follows.
fn item(source: u32, number: u32, is_answer: bool, bytes: usize) -> Vec<u8> {
    let head = [source, number, is_answer.into()];
    let mut item: Vec<u8> = head.into_iter().flat_map(u32::to_le_bytes).collect();
    item.extend((item.len()..bytes).map(|at| (at as u32 ^ source ^ number) as u8));
    item
}

/// Items of any length go to all ranks, also as a broadcast, and are answered by handlers.
fn long_items(route: RouteName, sizes: &[u32], item_bytes: usize, options: StreamOptions) {
    const EACH: u32 = 3;
    let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
    let size = topology.size();
    let options = SimulationOptions {
        item_bytes,
        ..at_random(item_bytes as u64, route, options)
    };
    let heard: RefCell<HashMap<(u32, u32, bool), Vec<u32>>> = RefCell::default();
    let mut job = Simulation::new(&topology, options, |here, message, outbox| {
        let word = |at: usize| u32::from_le_bytes(message.bytes[4 * at..][..4].try_into().unwrap());
        let (source, number, is_answer) = (word(0), word(1), word(2) == 1);
        assert_eq!(source, message.source.0);
        let expected = item(source, number, is_answer, item_bytes);
        assert!(message.bytes == expected, "{number} of {source} on {route}");
        let mut heard = heard.borrow_mut();
        let numbers = heard.entry((source, here.0, is_answer)).or_default();
        numbers.push(number);
        if !is_answer {
            let answer = item(here.0, number, true, item_bytes);
            outbox.send(message.source, 0, &answer).unwrap();
        }
    })
    .unwrap();
    let mut send = |source: u32, target: Option<u32>, number: u32| {
        let item = item(source, number, false, item_bytes);
        let source = Rank(source);
        for _ in 0..1_000_000 {
            let sent = match target {
                Some(target) => job.try_send(source, Rank(target), 0, &item),
                None => job.try_broadcast(source, 0, &item, BroadcastTo::Everyone),
            };
            match sent {
                Ok(()) => return,
                Err(Error::WouldBlock) => drop(job.step().unwrap()),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("{route}: no room");
    };
    for number in 0..EACH {
        for source in 0..size {
            (0..size).for_each(|target| send(source, Some(target), number));
        }
    }
    (0..size).for_each(|source| send(source, None, EACH));
    job.fence().unwrap();
    drop(job);
    let heard = heard.into_inner();
    assert_eq!(heard.len() as u32, 2 * size * size);
    for (of, numbers) in heard {
        assert_eq!(numbers, (0..=EACH).collect::<Vec<_>>(), "{of:?}");
    }
}

#[test]
fn items_longer_than_a_frame_arrive_over_every_route() {
    for route in RouteName::several() {
        for sizes in [&[3][..], &[2, 2], &[1, 2, 1]] {
            for item_bytes in [12, 1000, 4095, 40_001] {
                for options in [tiny(2), tiny(3), StreamOptions::default()] {
                    long_items(route, sizes, item_bytes, options);
                }
            }
        }
    }
}
