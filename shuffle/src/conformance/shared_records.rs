//! Long records between ranks of a node, which lie in memory of their source's.

use std::cell::Cell;

use trihop_transport::protocol::wire::{
    RUN_HEADER_BYTES, RunHeader, SHARED_RECORD_BYTES, SharedRecord, run_flags,
};
use trihop_transport::ring::{Block, BlockPlace};
use trihop_transport::topology::{Rank, Topology};

use crate::config::{Shares, StreamOptions};
use crate::queue::Input;
use crate::queue::counters::SendReason;
use crate::queue::shared::LEAST_BYTES;
use crate::route::{Next, RouteName, Stage};
use crate::simulation::{Simulation, SimulationOptions};

use super::schedule::{Replay, seeds, sim, sim_with_eager};
use super::world::{World, at_random, payload};

fn options(block_bytes: usize) -> StreamOptions {
    StreamOptions {
        given_shares: Some(Shares {
            block_bytes,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    }
}

fn world(route: &str, sizes: &[u32], block_bytes: usize) -> World {
    let (route, options) = (route.parse().unwrap(), options(block_bytes));
    World::routed(
        route,
        sizes,
        &options,
        1,
        sim_with_eager(1, 65536),
        false,
        true,
    )
}

/// Bytes of its memory that a rank has found taken when it last looked for room.
fn taken(world: &mut World, rank: u32) -> usize {
    world.out(rank).queues.lanes.shared_bytes().0
}

/// Bytes of a record that are still its source's.
fn left(world: &mut World, rank: u32) -> usize {
    world.out(rank).large_bytes()
}

#[test]
fn long_records_for_ranks_of_the_node_lie_in_memory_that_it_shares() {
    let world = |route: &str, sizes: &[u32]| world(route, sizes, 4 << 20);
    let shares = |world: &mut World, target: u32, bytes: usize| {
        // The first has the link register the memory, where one leads there.
        let mut shares = false;
        for number in 0..2 {
            assert!(world.send(0, target, number, bytes));
            shares = taken(world, 0) > 0;
            world.fence();
        }
        assert_eq!(world.heard(target, 0), [0, 1]);
        shares
    };
    for target in [0, 1] {
        assert!(shares(&mut world("three-hop", &[2, 1]), target, 100_000));
        assert!(shares(&mut world("direct", &[2, 1]), target, LEAST_BYTES));
    }
    let short = LEAST_BYTES - 1;
    assert!(!shares(&mut world("three-hop", &[2, 1]), 1, short), "short");
    for route in ["three-hop", "direct"] {
        let far = &mut world(route, &[2, 1]);
        assert!(!shares(far, 2, 100_000), "on another node");
        assert!(shares(&mut world(route, &[2, 1]), 2, 200_000));
    }
    let fabric_only = &mut world("fabric-only", &[2, 1]);
    assert!(!shares(fabric_only, 1, 100_000), "over links");
    // Rank 3 is reached over rank 1 or 2.
    let mesh = &mut world("mesh:2x2", &[4]);
    assert!(!shares(mesh, 3, 100_000), "through another rank");
    assert!(shares(&mut world("mesh:2x2", &[4]), 1, 100_000));
}

/// Without room they go in pieces, in their order; it is free again once handlers have returned.
#[test]
fn long_records_without_room_go_in_pieces() {
    let mut world = world("three-hop", &[2], 200_000);
    for turn in 0..10 {
        world.forget();
        assert!(world.send(0, 1, 0, 100_000));
        assert_eq!((taken(&mut world, 0), left(&mut world, 0)), (100_096, 0));
        assert!(world.send(0, 1, 1, 100_000), "there is a lane");
        let is_cut = left(&mut world, 0) > 0;
        assert!(is_cut && !world.send(0, 1, 2, 100_000), "one at a time");
        world.fence();
        assert_eq!(world.heard(1, 0), [0, 1], "{turn}");
    }
}

#[test]
fn long_and_short_records_keep_their_order_whatever_room_there_is() {
    let lengths = [0, 8, 4000, LEAST_BYTES - 1, LEAST_BYTES, 40_000, 150_000];
    let routes = RouteName::several();
    for seed in seeds(16) {
        let replay = Replay(seed);
        let room = [40_000, 64_000, 200_000, 1 << 20][(seed % 4) as usize];
        let route = routes[seed as usize % routes.len()];
        let sizes: &[u32] = [&[3][..], &[2, 2], &[1, 3]][(seed / 4 % 3) as usize];
        let answers = seed.is_multiple_of(2);
        let (options, fabric) = (options(room), sim(seed));
        let mut world = World::routed(route, sizes, &options, seed, fabric, answers, true);
        let length = |random: u64| lengths[(random % lengths.len() as u64) as usize];
        let sent = world.exchange(40, length);
        world.fence();
        world.check(&sent, answers);
        std::mem::forget(replay);
    }
}

/// A record in rank 0's memory that was passed on, and where it lies.
fn passed(world: &mut World, bytes: &[u8]) -> BlockPlace {
    let block = world.out(0).queues.lanes.take_block(bytes.len());
    let mut block: Block = block.unwrap();
    block.copy_from_slice(bytes);
    block.pass().place()
}

/// What comes of runs that say where records of rank 0's lie, and go to rank 1 from there: what
/// that says, if it refuses one.
fn said(world: &mut World, header: RunHeader, records: &[SharedRecord]) -> Option<String> {
    let bytes = RUN_HEADER_BYTES + SHARED_RECORD_BYTES;
    let queues = &mut world.out(0).queues;
    let Some(Next::To(to, stage)) = queues.route.next(Stage::SOURCE, Rank(1)) else {
        panic!("no way to rank 1");
    };
    for record in records {
        let write = |space: &mut [u8]| {
            header.write(bytes, space);
            record.write(&mut space[RUN_HEADER_BYTES..]);
        };
        let (input, flags) = (Input::APPLICATION, run_flags::SHARED);
        assert!(queues.push_to(to, stage, bytes, flags, input, write));
    }
    queues.mark(stage, SendReason::Full);
    (0..2000).find_map(|_| Some(world.job.step().err()?.to_string()))
}

#[test]
fn records_that_lie_nowhere_are_refused() {
    let header = RunHeader {
        target: 1,
        source: 0,
        count: 1,
        flags: run_flags::SHARED,
    };
    let record = |place| SharedRecord {
        end: 0,
        kind: 7,
        place,
    };
    let new = || {
        let mut world = world("three-hop", &[2, 1], 1 << 20);
        let place = passed(&mut world, &payload(0, 7, 20_000));
        (world, record(place))
    };
    let refused = |text: Option<String>, why: &str| {
        let text = text.expect("it cannot be");
        assert!(text.contains("rank 0") && text.contains(why), "{text}");
    };
    let nowhere = "nothing lies";
    let (mut world, good) = new();
    refused(said(&mut world, header, &[good, good]), nowhere);
    assert_eq!(world.heard(1, 0), [7], "it is claimed once");
    let wrongs: [fn(&mut SharedRecord); 3] = [
        |record| record.place.offset += 64,
        |record| record.place.offset = u64::MAX,
        |record| record.place.word ^= 4,
    ];
    for wrong in wrongs {
        let (mut world, mut record) = new();
        wrong(&mut record);
        refused(said(&mut world, header, &[record]), nowhere);
    }
    let anothers = "another rank's";
    for end in [1, 2, 1000] {
        let (mut world, good) = new();
        let record = SharedRecord { end, ..good };
        refused(said(&mut world, header, &[record]), anothers);
    }
    let (mut world, good) = new();
    let of_another = RunHeader {
        source: 1,
        ..header
    };
    let text = said(&mut world, of_another, &[good]).expect("rank 0 is not rank 1");
    assert!(text.contains(anothers), "{text}");
    // Nor is anything here of which a rank of another node says so.
    for end in [0, 2] {
        let mut world = self::world("direct", &[1, 2], 1 << 20);
        let place = passed(&mut world, &payload(0, 7, 20_000));
        let record = SharedRecord {
            end,
            ..record(place)
        };
        refused(said(&mut world, header, &[record]), "over a link");
    }
    // Rank 1 passes it on.
    let (mut world, good) = new();
    let for_another = RunHeader {
        target: 2,
        ..header
    };
    assert_eq!(said(&mut world, for_another, &[good]), None);
    assert_eq!(world.heard(2, 0), [7]);
    // But none that a frame has room for: nobody passes that on.
    for bytes in [0, 1, 100] {
        let mut world = new().0;
        let place = passed(&mut world, &payload(0, 7, 20_000)[..bytes]);
        refused(said(&mut world, for_another, &[record(place)]), "passed on");
    }
    // Longer than the stream's records may be.
    let short = StreamOptions {
        max_message_bytes: 19_999,
        ..options(1 << 20)
    };
    let fabric = sim_with_eager(1, 65536);
    let mut world = World::new(&[2], &short, 1, fabric, false, true);
    let place = passed(&mut world, &payload(0, 7, 20_000));
    refused(said(&mut world, header, &[record(place)]), "too long");
}

/// What comes of a record of rank 0's on a stream of items of 20,000 bytes, whose run is `bytes`
/// long and has this header.
fn item(header: RunHeader, bytes: usize) -> Result<usize, String> {
    let topology = Topology::from_node_sizes(&[2], Rank(0)).unwrap();
    let options = SimulationOptions {
        item_bytes: 20_000,
        ..at_random(1, RouteName::default(), options(1 << 20))
    };
    let heard = Cell::new(0);
    let mut job = Simulation::new(&topology, options, |_, message, _| {
        assert!(message.bytes == [9; 20_000]);
        heard.set(heard.get() + 1);
    })
    .unwrap();
    let queues = &mut job.members[0].stream_mut().1.queues;
    let fill = |space: &mut [u8]| {
        space.fill(9);
        header.write(bytes, space);
    };
    assert_eq!(queues.push_shared(Rank(1), 0, bytes, fill), Some(true));
    let failed = (0..2000).find_map(|_| Some(job.step().err()?.to_string()));
    drop(job);
    failed.map_or(Ok(heard.get()), Err)
}

#[test]
fn an_item_is_a_run_of_its_source_for_its_target() {
    let header = RunHeader {
        target: 1,
        source: 0,
        count: 1,
        flags: 0,
    };
    let bytes = RUN_HEADER_BYTES + 20_000;
    assert_eq!(item(header, bytes), Ok(1));
    let none = "no item of that rank's";
    for wrong in [
        RunHeader {
            source: 1,
            ..header
        },
        RunHeader {
            target: 0,
            ..header
        },
        RunHeader { count: 2, ..header },
        RunHeader {
            flags: run_flags::LAST,
            ..header
        },
    ] {
        let text = item(wrong, bytes).unwrap_err();
        assert!(text.contains("rank 0") && text.contains(none), "{text}");
    }
    let nobody = RunHeader {
        target: 7,
        ..header
    };
    for (wrong, bytes, why) in [
        (nobody, bytes, "rank 7"),
        (header, bytes - 8, "19992 bytes"),
    ] {
        let text = item(wrong, bytes).unwrap_err();
        assert!(text.contains("rank 0") && text.contains(why), "{text}");
    }
}
