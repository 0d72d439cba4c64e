//! Long records for other nodes, which links offer and their other ends fetch.

use trihop_transport::link::{Completion, Limits, Mover};
use trihop_transport::protocol::tags::{self, TagClass};
use trihop_transport::ring::Block;
use trihop_transport::sim::{Net, SimOptions};
use trihop_transport::topology::EndpointId;

use crate::config::{Shares, StreamOptions};
use crate::route::RouteName;
use crate::simulation::{Fabric, TICK_NS};

use super::schedule::{Replay, seeds, sim, tiny};
use super::world::World;

const BYTES: usize = 100_000;

/// Streams with so much room for blocks, which offer what is a little longer than a frame.
fn options(block_bytes: usize) -> StreamOptions {
    StreamOptions {
        given_shares: Some(Shares {
            block_bytes,
            least_offer_bytes: 20_000,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    }
}

fn network(mover: Mover, seed: u64) -> Net {
    Net::new(SimOptions {
        seed,
        limits: Limits {
            mover,
            eager_bytes: 2000,
            ..SimOptions::default().limits
        },
        ..SimOptions::default()
    })
}

fn world(route: &str, sizes: &[u32], options: &StreamOptions, mover: Mover) -> World {
    let (route, net) = (route.parse().unwrap(), network(mover, 1));
    let mut world = World::routed(
        route,
        sizes,
        options,
        1,
        Fabric::Simulated(net),
        false,
        true,
    );
    register(&mut world);
    world
}

/// All links register the memory that they may lend, which they do else with the first record that
/// is offered, and that goes in pieces.
fn register(world: &mut World) {
    for rank in 0..world.size() {
        let lanes = &mut world.out(rank).queues.lanes;
        for place in 0..lanes.segments().len() as u32 {
            lanes.lending(place);
        }
        world.round(rank, 0).unwrap();
    }
}

fn send(world: &mut World, source: u32, target: u32, number: u32, bytes: usize) {
    let mut steps = 0..10_000;
    while !world.send(source, target, number, bytes) {
        assert!(steps.next().is_some(), "it is never taken");
        world.step();
    }
}

/// Sends a record to another rank, where it is alone: whether it was put together there out of
/// fragments.
fn comes_in_pieces(world: &mut World, source: u32, target: u32, bytes: usize) -> bool {
    world.forget();
    send(world, source, target, 0, bytes);
    let mut in_pieces = false;
    let mut steps = 0..10_000;
    while world.heard(target, source).is_empty() {
        assert!(steps.next().is_some(), "it never comes");
        world.step();
        in_pieces |= world.core(target).inbound.reassembly.reserved_bytes() > 0;
    }
    assert_eq!(world.heard(target, source), [0]);
    world.fence();
    in_pieces
}

/// Whatever its hops are: over the source's own link, another's, to the end of a link and beyond.
#[test]
fn long_records_for_other_nodes_are_fetched_into_memory_where_they_are_read() {
    for mover in [Mover::Read, Mover::Segments] {
        for route in [
            "three-hop",
            "three-hop:1",
            "direct",
            "node-mesh:2d",
            "mesh:3d",
        ] {
            let sizes: &[u32] = &[2, 2, 2, 2];
            let mut world = world(route, sizes, &options(1 << 20), mover);
            for (source, target) in [(0, 7), (1, 6), (3, 4), (5, 0)] {
                for bytes in [BYTES, 300_001] {
                    let in_pieces = comes_in_pieces(&mut world, source, target, bytes);
                    let why = format!("{route}, {mover:?}, {bytes} bytes, {source} to {target}");
                    assert!(!in_pieces, "{why}");
                }
            }
        }
    }
}

/// A block of a rank, if there is one; its owner does not look each time when there was none.
fn block(world: &mut World, rank: u32, bytes: usize) -> Option<Block> {
    let lanes = &world.out(rank).queues.lanes;
    (0..100).find_map(|_| lanes.take_block(bytes))
}

/// From rank 6 over a link to the other node, over one back, over a lane to rank 1, and over a link
/// again: rank 1 gets what its node's rank 6 has sent out of memory of another one's.
#[test]
fn a_record_passes_its_sources_node_on_its_way_to_another() {
    for mover in [Mover::Read, Mover::Segments] {
        let mut world = world("mesh:2x2x2x2", &[7, 3], &options(1 << 20), mover);
        for (source, target) in [(6, 9), (9, 6), (5, 8)] {
            assert!(
                !comes_in_pieces(&mut world, source, target, BYTES),
                "{mover:?}"
            );
        }
    }
}

/// All blocks of a rank, for as long as they are held.
fn hoard(world: &mut World, rank: u32) -> Vec<Block> {
    let mut all = Vec::new();
    for bytes in [1 << 16, 1 << 10, 1] {
        all.extend(std::iter::from_fn(|| block(world, rank, bytes)));
    }
    all
}

#[test]
fn without_room_where_it_arrives_a_record_goes_on_in_pieces() {
    for mover in [Mover::Read, Mover::Segments] {
        let mut world = world("three-hop:1", &[2, 2], &options(1 << 20), mover);
        // Both may be the end of the link.
        let hoards = [2, 3].map(|rank| hoard(&mut world, rank));
        for bytes in [BYTES, 1_000_000] {
            assert!(comes_in_pieces(&mut world, 0, 3, bytes), "{mover:?}");
        }
        drop(hoards);
        for rank in [2, 3] {
            assert!(block(&mut world, rank, 1).is_some(), "it is free again");
        }
        assert!(!comes_in_pieces(&mut world, 0, 3, BYTES), "{mover:?}");
    }
}

/// Where processors copy what links send, pieces stay in their caches.
#[test]
fn what_is_longest_is_offered_only_where_adapters_read_it() {
    for (mover, in_pieces) in [(Mover::Read, false), (Mover::Segments, true)] {
        let mut world = world("three-hop:1", &[2, 2], &options(4 << 20), mover);
        let longest = 512 << 10;
        assert!(!comes_in_pieces(&mut world, 1, 3, longest), "{mover:?}");
        let is_cut = comes_in_pieces(&mut world, 1, 3, longest + 1);
        assert_eq!(is_cut, in_pieces, "{mover:?}");
    }
}

#[test]
fn what_the_link_cannot_register_goes_in_pieces() {
    for mover in [Mover::Read, Mover::Segments] {
        let net = Net::new(SimOptions {
            refuses_areas: true,
            limits: Limits {
                mover,
                ..SimOptions::default().limits
            },
            ..SimOptions::default()
        });
        let (route, fabric) = ("three-hop:1".parse().unwrap(), Fabric::Simulated(net));
        let options = options(1 << 20);
        let mut world = World::routed(route, &[2, 2], &options, 1, fabric, false, true);
        for source in [0, 1] {
            assert!(comes_in_pieces(&mut world, source, 3, BYTES));
        }
    }
}

#[test]
fn offered_records_and_all_others_keep_their_order_whatever_room_there_is() {
    let lengths = [0, 8, 4000, 19_999, 20_000, 40_000, 150_000];
    let routes = RouteName::several();
    for seed in seeds(16) {
        let replay = Replay(seed);
        // Beside what the network makes of the seed.
        let dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let room = [40_000, 64_000, 200_000, 1 << 20][(dice % 4) as usize];
        let route = routes[seed as usize % routes.len()];
        let sizes: &[u32] = [&[3, 1][..], &[2, 2], &[1, 3], &[2, 2, 2]][(seed / 4 % 4) as usize];
        let answers = seed.is_multiple_of(2);
        let kind = dice / 4 % 3;
        let options = match kind {
            0 => StreamOptions {
                given_shares: Some(Shares {
                    block_bytes: room,
                    least_offer_bytes: 0,
                    ..tiny(seed).shares()
                }),
                ..tiny(seed)
            },
            // No link has slots of its own.
            1 => StreamOptions {
                given_shares: Some(Shares {
                    own_slots: 0,
                    ..options(room).shares()
                }),
                ..StreamOptions::default()
            },
            _ => options(room),
        };
        let fabric = sim(seed);
        let mut world = World::routed(route, sizes, &options, seed, fabric, answers, true);
        let most = if kind == 0 { 20_000 } else { usize::MAX };
        let length = |random: u64| lengths[(random % lengths.len() as u64) as usize].min(most);
        let sent = world.exchange(30, length);
        world.fence();
        world.check(&sent, answers);
        std::mem::forget(replay);
    }
}

/// Two that offer much and then send nothing of it, because they compute, keep nobody else waiting.
#[test]
fn who_sends_nothing_of_what_it_offers_keeps_no_other_link_waiting() {
    for own_slots in [0, usize::MAX] {
        let net = network(Mover::Segments, 1);
        let fabric = Fabric::Simulated(net.clone());
        let options = StreamOptions {
            given_shares: Some(Shares {
                own_slots,
                ..options(16 << 20).shares()
            }),
            ..StreamOptions::default()
        };
        let sizes = [1; 4];
        let mut world = World::new(&sizes, &options, 1, fabric, false, true);
        register(&mut world);
        for source in 1..3 {
            for number in 0..3 {
                send(&mut world, source, 0, number, 500_000);
            }
        }
        // Until they have announced it, and no longer.
        for tick in 1..40 {
            net.tick();
            for rank in 1..3 {
                world.round(rank, tick * TICK_NS).unwrap();
            }
        }
        for number in 0..3 {
            send_alone(&mut world, &net, number);
        }
        assert_eq!(world.heard(0, 3), [0, 1, 2], "{own_slots}");
        world.fence();
        assert_eq!(world.heard(0, 1), [0, 1, 2]);
    }
}

/// A record from rank 3 to rank 0, while no other makes progress.
fn send_alone(world: &mut World, net: &Net, number: u32) {
    let mut is_taken = false;
    for tick in 0..2000 {
        is_taken |= !is_taken && world.send(3, 0, number, 300_000);
        net.tick();
        for rank in [0, 3] {
            world.round(rank, (100 + tick) * TICK_NS).unwrap();
        }
        if world.heard(0, 3).len() > number as usize {
            return;
        }
    }
    panic!("number {number} does not come");
}

/// What comes of parts of a record that rank 0 offers, at rank 1: `meddle` gets the slot of the
/// first and its buffer, and says how that is said to end.
fn part(meddle: impl Fn(Completion) -> Completion) -> (Result<(), String>, u64) {
    let net = network(Mover::Segments, 1);
    let fabric = Fabric::Simulated(net.clone());
    let options = options(1 << 20);
    let mut world = World::new(&[1, 1], &options, 1, fabric, false, true);
    register(&mut world);
    send(&mut world, 0, 1, 0, BYTES);
    let bad = world.stats(1).bad_headers;
    let mut completions = Vec::new();
    for tick in 1..10_000 {
        net.tick();
        world.round(0, tick * TICK_NS).unwrap();
        let engine = &mut world.job.members[1].engine;
        engine
            .link
            .as_mut()
            .unwrap()
            .poll(&mut completions)
            .unwrap();
        for completion in completions.drain(..) {
            let (class, number) = class_of(&completion);
            let is_part = class == TagClass::Segment;
            let said = if is_part {
                meddle(completion)
            } else {
                completion
            };
            let told = world.complete(1, class, number, said);
            if is_part {
                let told = told.map_err(|error| error.to_string());
                return (told, world.stats(1).bad_headers - bad);
            }
            told.unwrap();
        }
        world.round(1, tick * TICK_NS).unwrap();
    }
    panic!("no part comes");
}

fn class_of(completion: &Completion) -> (TagClass, u32) {
    let token = match completion {
        Completion::Sent { token, .. }
        | Completion::Received { token, .. }
        | Completion::Read { token, .. }
        | Completion::Broken { token, .. } => *token,
        Completion::Failed { error, .. } => panic!("{error}"),
    };
    let (_, class, number) = tags::split(token).unwrap();
    (class, number)
}

#[test]
fn a_part_that_is_none_is_counted_and_one_that_is_cut_names_who_was_to_send_it() {
    assert_eq!(part(|completion| completion), (Ok(()), 0));
    let shorter = part(|completion| match completion {
        Completion::Received {
            token,
            buffer,
            bytes,
        } => Completion::Received {
            token,
            buffer,
            bytes: bytes - 1,
        },
        other => panic!("{other:?}"),
    });
    assert_eq!(shorter, (Ok(()), 1));
    let broken = |cut| {
        part(move |completion| match completion {
            Completion::Received { token, buffer, .. } => Completion::Broken {
                token,
                buffer,
                cut,
                error: trihop_transport::Error::config("a test", "reset"),
            },
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(broken(false), (Ok(()), 1), "too long: anybody's");
    let (told, _) = broken(true);
    let told = told.unwrap_err();
    assert!(told.contains("rank 0") && told.contains("reset"), "{told}");
}

/// What records hold at both ends is free again when the other end is lost, however far they are.
#[test]
fn a_record_of_who_is_lost_leaves_nothing_behind() {
    for (mover, has_room) in [
        (Mover::Read, false),
        (Mover::Read, true),
        (Mover::Segments, false),
        (Mover::Segments, true),
    ] {
        for ticks in (0..60).step_by(3) {
            let net = network(mover, 1);
            let fabric = Fabric::Simulated(net.clone());
            let mut world = World::new(&[1, 1], &options(1 << 20), 1, fabric, false, true);
            register(&mut world);
            let hoarded = (!has_room).then(|| hoard(&mut world, 1));
            for number in 0..2 {
                send(&mut world, 0, 1, number, 300_000);
            }
            for tick in 1..=ticks {
                net.tick();
                for rank in 0..2 {
                    world.round(rank, tick * TICK_NS).unwrap();
                }
            }
            for (rank, other) in [(0, 1), (1, 0)] {
                let (state, out, _) = world.job.members[rank].stream_mut();
                let queues = &mut out.queues;
                queues.remotes.lose(EndpointId(other));
                let links = state.inbound.links.as_mut().unwrap();
                links.follow(&queues.remotes);
                for index in 0..queues.remotes.len() {
                    let maxrpc = queues.remotes[index].credit.max_in_flight();
                    links.cut(index, maxrpc);
                }
                assert_eq!(links.aside_bytes, 0);
            }
            // What the simulated adapters still have comes home.
            for tick in 1..200 {
                net.tick();
                for rank in 0..2 {
                    world.round(rank, (ticks + tick) * TICK_NS).unwrap();
                }
            }
            drop(hoarded);
            // Receives for what never comes stay posted, with their memory.
            let ranks = if mover == Mover::Read { 0..2 } else { 0..1 };
            for rank in ranks {
                let (state, out, _) = world.job.members[rank as usize].stream_mut();
                (0..out.queues.remotes.len()).for_each(|at| out.queues.remotes[at].cut());
                let links = state.inbound.links.as_ref().unwrap();
                assert_eq!(
                    links.fetching_bytes(),
                    0,
                    "{mover:?}, {has_room}, {ticks} ticks"
                );
                let all = block(&mut world, rank, (1 << 20) - 64);
                assert!(
                    all.is_some(),
                    "{mover:?}, {has_room}, {ticks} ticks, {rank}"
                );
            }
        }
    }
}
