//! Where several wait for the room of one queue, or for a word of one peer, each has its share.

use trihop_transport::sim::Net;
use trihop_transport::topology::{EndpointId, Rank, Topology};

use super::schedule::sim_with_eager;
use super::world::World;
use crate::config::{Shares, StreamOptions};
use crate::route::{Rails, RouteName};
use crate::simulation::{Fabric, TICK_NS};

/// Batches and lanes of a few kilobytes: a batch fills a lane.
fn small() -> StreamOptions {
    StreamOptions {
        remote_buftarget_bytes: 4096,
        remote_maxrpc: 4,
        given_shares: Some(Shares {
            lane_budget_bytes: 8192,
            receive_pool_bytes: 1 << 20,
            small_slot_bytes: 256,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    }
}

fn network() -> (Fabric, Net) {
    let fabric = sim_with_eager(6, 65536);
    let net = fabric.net().cloned().unwrap();
    (fabric, net)
}

/// Each of these ranks sends to `target` whatever finds room, for so many rounds of all but that
/// one, which has a round for eight of theirs; what has come of each.
fn stream_to(
    world: &mut World,
    net: &Net,
    sources: &[u32],
    target: u32,
    rounds: u64,
) -> Vec<usize> {
    let mut next = vec![0; sources.len()];
    let endpoints = world.job.members.len() as u32;
    for tick in 1..=rounds {
        net.tick();
        for (number, &source) in next.iter_mut().zip(sources) {
            for end in (0..endpoints).filter(|&end| end != target) {
                world.round(end, tick * TICK_NS).unwrap();
            }
            net.tick();
            // As a send that is refused.
            while world.send(source, target, *number, 200)
                || world.job.members[source as usize].engine.hear_of_room()
                    && world.send(source, target, *number, 200)
            {
                *number += 1;
            }
        }
        if tick % 8 == 0 {
            world.round(target, tick * TICK_NS).unwrap();
        }
    }
    let heard = |&source| world.heard(target, source).len();
    sources.iter().map(heard).collect()
}

fn assert_shared(heard: &[usize]) {
    let (least, most) = (heard.iter().min().unwrap(), heard.iter().max().unwrap());
    assert!(*most > 500, "{heard:?}");
    assert!(least * 8 > *most, "{heard:?}");
}

/// Nodes whose senders never stop, and a rank that reads slower than each of them sends.
#[test]
fn links_to_a_slow_rank_take_turns() {
    let topology = Topology::from_node_sizes(&[1, 1, 1], Rank(0)).unwrap();
    let topology = topology.with_agents(&[1, 1, 2]).unwrap();
    let route = RouteName::ThreeHop(Rails::ONE);
    let (fabric, net) = network();
    let mut world = World::placed(route, &topology, &small(), 1, fabric, false, true);
    assert_shared(&stream_to(&mut world, &net, &[0, 1], 2, 800));
}

/// One of two ranks of a node speaks for both: what it forwards and what it sends wait for the same
/// link.
#[test]
fn a_representative_sends_while_it_forwards() {
    let (fabric, net) = network();
    let options = StreamOptions {
        given_shares: Some(Shares {
            lane_budget_bytes: 8192,
            ..Shares::default()
        }),
        ..small()
    };
    let mut world = World::new(&[2, 1], &options, 1, fabric, false, true);
    let heard = stream_to(&mut world, &net, &[0, 1], 2, 800);
    assert_shared(&heard);
}

/// What a peer waits for may be no more than that its last batch was accepted. It holds a slot for
/// another one, so that it starves for nothing else.
#[test]
fn a_rank_that_is_always_busy_says_what_it_has_accepted() {
    let (fabric, net) = network();
    let options = StreamOptions {
        remote_maxrpc: 16,
        ..small()
    };
    let route = RouteName::Direct;
    let mut world = World::routed(route, &[1, 1, 1], &options, 1, fabric, false, true);
    let (quiet, busy, here) = (0, 1, 2);
    let link = |world: &mut World| {
        let out = world.out(quiet);
        let link = out.queues.open_to(EndpointId(here), 2).unwrap();
        let credit = &out.queues.remotes[link].credit;
        (credit.in_flight(), credit.has_large())
    };
    let (mut sent, mut next) = (0, 0);
    for tick in 1..=250 {
        (0..10).for_each(|_| net.tick());
        // Some at first, for which it is given slots; the last one when the other has all it wants.
        let wanted = if tick < 200 { 60 } else { 61 };
        while sent < wanted && world.send(quiet, here, sent, 200) {
            sent += 1;
        }
        // Some batches, of which each round has one.
        for _ in 0..60 {
            next += u32::from(world.send(busy, here, next, 200));
        }
        for rank in [quiet, busy, here] {
            world.round(rank, tick * TICK_NS * 100).unwrap();
        }
        if tick == 199 {
            assert_eq!(link(&mut world), (0, true), "it holds a slot");
        }
    }
    assert_eq!(world.heard(here, quiet).len(), 61);
    let last = link(&mut world);
    assert_eq!(last, (0, true), "it has not heard of its last batch");
}
