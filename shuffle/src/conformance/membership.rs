//! Ranks that leave a job and join it again.

use std::collections::HashMap;

use trihop_transport::topology::{EndpointId, Rank};

use super::schedule::{Replay, mixed, seeds, shape, sim, tiny};
use super::world::World;
use crate::config::{Shares, StreamOptions};
use crate::error::Error;
use crate::route::RouteName;
use crate::simulation::SimulationError;
use crate::terminate::flush::{Flush, Queues};

/// Messages by source and target, and what has been sent of them.
type Sent = HashMap<(u32, u32), u64>;

/// Sends up to `count` messages between random ranks, with turns in between; what finds no room is
/// not sent.
fn send_some(world: &mut World, sent: &mut Sent, count: u64) {
    for _ in 0..count {
        let ranks = u64::from(world.size());
        let mut random = || (world.random() % ranks) as u32;
        let (source, target) = (random(), random());
        let bytes = mixed(world.random());
        let number = sent.entry((source, target)).or_default();
        if world.send(source, target, *number as u32, bytes) {
            *number += 1;
        }
        world.step();
    }
}

/// Messages that `rank` has heard, of all sources.
fn heard_by(world: &World, rank: u32) -> usize {
    let sources = 0..world.size();
    sources.map(|source| world.heard(rank, source).len()).sum()
}

/// Any rank may leave when nothing is under way. What is sent to it and through it waits, and
/// arrives when it has joined again, in order and once; fences and collectives count on from there.
#[test]
fn what_is_sent_to_a_rank_that_is_away_waits_until_it_joins_again() {
    for seed in seeds(40) {
        let replay = Replay(seed);
        let sizes = shape(seed);
        let routes = RouteName::several();
        let route = routes[seed as usize % routes.len()];
        let options = tiny(seed);
        let mut world = World::routed(route, &sizes, &options, seed, sim(seed), false, true);
        let mut sent = Sent::new();
        for _ in 0..4 {
            send_some(&mut world, &mut sent, 60);
            world.fence();
            world.check(&sent, false);
            let rank = (world.random() % u64::from(world.size())) as u32;
            world.job.leave(Rank(rank)).unwrap();
            let before = heard_by(&world, rank);
            send_some(&mut world, &mut sent, 60);
            (0..200).for_each(|_| world.step());
            assert_eq!(heard_by(&world, rank), before, "rank {rank} is away");
            world.job.join(Rank(rank)).unwrap();
            send_some(&mut world, &mut sent, 20);
            world.fence();
            world.check(&sent, false);
        }
        world.settle();
        std::mem::forget(replay);
    }
}

#[test]
fn two_ranks_may_be_away_at_once() {
    for seed in seeds(12) {
        let replay = Replay(seed);
        let mut world = World::new(&[2, 3], &tiny(seed), seed, sim(seed), false, true);
        let mut sent = Sent::new();
        // Neighbours, both ends of a link, and two that have none with each other.
        for (one, other) in [(0, 1), (0, 2), (1, 4)] {
            world.job.leave(Rank(one)).unwrap();
            world.job.leave(Rank(other)).unwrap();
            send_some(&mut world, &mut sent, 40);
            world.job.join(Rank(one)).unwrap();
            send_some(&mut world, &mut sent, 40);
            world.job.join(Rank(other)).unwrap();
            world.fence();
            world.check(&sent, false);
        }
        std::mem::forget(replay);
    }
}

#[test]
fn a_flush_does_not_wait_for_an_endpoint_that_has_left_since() {
    let mut world = World::new(&[2, 2], &StreamOptions::default(), 5, sim(5), false, true);
    let mut sent = Sent::new();
    send_some(&mut world, &mut sent, 50);
    world.fence();
    let all = [
        Queues::ORIGIN,
        Queues::REMOTE,
        Queues::RELAY,
        Queues::Delivery,
    ];
    for (queues, gone) in all.into_iter().zip((0..world.size()).cycle().skip(1)) {
        let others = (0..world.size()).filter(|&rank| rank != gone);
        let mut flushes: Vec<(u32, Flush)> = Vec::new();
        for rank in others {
            let (state, out, _) = world.job.members[rank as usize].stream_mut();
            let mut flush = Flush::begin(queues, state, out);
            // All has been taken; whether it sees that now or later is up to the call.
            flush.poll(state, out).unwrap();
            flushes.push((rank, flush));
        }
        world.job.leave(Rank(gone)).unwrap();
        world.job.join(Rank(gone)).unwrap();
        send_some(&mut world, &mut sent, 50);
        for (rank, mut flush) in flushes {
            let (state, out, _) = world.job.members[rank as usize].stream_mut();
            assert!(flush.poll(state, out).unwrap(), "{queues:?} on rank {rank}");
        }
    }
    world.fence();
    world.check(&sent, false);
}

/// Whether one rank lets another go now.
fn lets_go(world: &mut World, rank: u32, other: u32) -> bool {
    let engine = &mut world.job.members[rank as usize].engine;
    match engine.detach(EndpointId(other)) {
        Ok(()) => true,
        Err(Error::WouldBlock) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Whether nothing that rank 0 has sent has left it.
fn is_at_home(world: &mut World) -> bool {
    let queues = &world.out(0).queues;
    let shown = queues.lanes.iter().any(|lane| lane.in_use_bytes() > 0);
    let sent = queues.remotes.iter().any(|link| !link.is_idle());
    !shown && !sent
}

#[test]
fn nobody_is_let_go_while_something_is_under_way() {
    for sizes in [[2, 1], [1, 2]] {
        let options = StreamOptions::default();
        let mut world = World::new(&sizes, &options, 7, sim(7), false, true);
        world.settle();
        assert!(world.send(0, 1, 0, 8));
        // What is still gathered waits for its target; what has left must arrive.
        let mut now_ns = 1;
        while is_at_home(&mut world) {
            now_ns += 1_000_000;
            world.round(0, now_ns).unwrap();
        }
        while world.heard(1, 0).is_empty() {
            assert!(!lets_go(&mut world, 0, 1), "rank 1 has not taken it");
            let is_here = sizes[0] == 2;
            assert!(!is_here || !lets_go(&mut world, 1, 0), "it is there to see");
            world.step();
        }
        world.settle();
        assert!(lets_go(&mut world, 0, 1) && lets_go(&mut world, 1, 0));
    }
}

/// Whether a rank may leave now, as far as it and all others know.
fn may_leave(world: &mut World, rank: u32) -> bool {
    let end = EndpointId(rank);
    let mut members = world.job.members.iter_mut();
    members.all(|member| {
        let engine = &mut member.engine;
        match engine.topology.rank() == Rank(rank) {
            true => engine.check_may_leave().is_ok(),
            false => !engine.knows(end) || engine.may_detach(end),
        }
    })
}

/// Nobody whom a long record is passing leaves before its end: neither its source, nor who relays
/// it, nor its target, though its queues may be empty for a moment.
#[test]
fn nobody_leaves_in_the_middle_of_a_long_record() {
    const BYTES: usize = 100_000;
    for route in RouteName::several() {
        let mut looked = 0;
        for seed in seeds(6) {
            let replay = Replay(seed);
            let (sizes, options) = (&[2, 3, 3], tiny(2 * seed));
            let mut world = World::routed(route, sizes, &options, seed, sim(seed), false, true);
            world.settle();
            let (source, target) = (seed as u32 % 2, 7 - seed as u32 % 3);
            assert!(world.send(source, target, 0, BYTES));
            while world.heard(target, source).is_empty() {
                let is_growing = {
                    let inbound = &world.core(target).inbound;
                    inbound.reassembly.reserved_bytes() > 0
                };
                if is_growing {
                    looked += 1;
                    assert!(!may_leave(&mut world, target), "target {target}, {route}");
                }
                if world.out(source).large_bytes() > 0 {
                    assert!(!may_leave(&mut world, source), "source {source}, {route}");
                }
                for rank in 0..world.size() {
                    let is_held = |world: &mut World| {
                        let queues = &world.out(rank).queues;
                        let mut lanes = queues.lanes.iter().map(|lane| lane.holder());
                        let mut links = queues.remotes.iter().map(|link| link.holder());
                        lanes.any(|holder| holder.is_some()) || links.any(|holder| holder.is_some())
                    };
                    if is_held(&mut world) {
                        assert!(
                            !may_leave(&mut world, rank),
                            "rank {rank} in the middle, {route}"
                        );
                    }
                }
                world.step();
            }
            world.settle();
            for rank in [source, target] {
                world.job.leave(Rank(rank)).unwrap();
                world.job.join(Rank(rank)).unwrap();
            }
            std::mem::forget(replay);
        }
        assert!(looked > 0, "{route}: nobody has seen the record grow");
    }
}

/// A record that stands still on its way keeps those whom it is passing, and nobody else: they leave
/// once it has arrived.
#[test]
fn a_long_record_that_stands_still_keeps_those_whom_it_is_passing() {
    // Nobody is kept by what a relay offers out of a memory that it has mapped.
    for (route, offers) in RouteName::several()
        .into_iter()
        .flat_map(|r| [(r, false), (r, true)])
    {
        for seed in seeds(1) {
            let replay = Replay(seed);
            let (sizes, mut options) = (&[2, 3, 3], tiny(2 * seed));
            options.given_shares = Some(Shares {
                least_offer_bytes: if offers { 0 } else { usize::MAX },
                ..options.shares()
            });
            let mut world = World::routed(route, sizes, &options, seed, sim(seed), false, true);
            let (source, target) = (seed as u32 % 2, 7 - seed as u32 % 3);
            world.job.hold_handler(Rank(target));
            let bytes = if offers { 60_000 } else { 400_000 };
            while !world.send(source, target, 0, bytes) {
                world.step();
            }
            let mut stayed = Vec::new();
            for rank in [source, 5, target] {
                match world.job.leave(Rank(rank)) {
                    Ok(()) => world.job.join(Rank(rank)).unwrap(),
                    Err(SimulationError::Stuck { .. }) => stayed.push(rank),
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(
                stayed.contains(&target) && (offers || stayed.contains(&source)),
                "{route}: {stayed:?}"
            );
            world.job.release_handler(Rank(target));
            world.settle();
            world.check(&Sent::from([((source, target), 1)]), false);
            for rank in stayed {
                world.job.leave(Rank(rank)).unwrap();
                world.job.join(Rank(rank)).unwrap();
            }
            std::mem::forget(replay);
        }
    }
}

#[test]
fn what_an_endpoint_that_leaves_holds_of_the_shared_slots_is_free_again() {
    let options = StreamOptions {
        remote_buftarget_bytes: 4000,
        given_shares: Some(Shares {
            small_slot_bytes: 256,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    };
    let mut world = World::new(&[1, 1], &options, 9, sim(9), false, true);
    let free = |world: &mut World| world.core(0).inbound.links.as_ref().unwrap().free_large();
    let all = free(&mut world);
    let mut number = 0;
    for _ in 0..2000 {
        number += u32::from(world.send(1, 0, number, 1000));
        world.step();
    }
    while !lets_go(&mut world, 0, 1) {
        assert!(free(&mut world) < all, "busy links hold large slots");
        world.step();
    }
    assert_eq!(free(&mut world), all);
}

#[test]
fn only_who_is_there_leaves_and_only_who_has_left_joins() {
    let mut world = World::new(&[1, 1], &StreamOptions::default(), 1, sim(1), false, true);
    let refused = |outcome: Result<(), SimulationError>| outcome.unwrap_err().to_string();
    assert!(refused(world.job.join(Rank(1))).contains("is not away"));
    world.job.leave(Rank(1)).unwrap();
    assert!(refused(world.job.leave(Rank(1))).contains("is away"));
    assert!(refused(world.job.leave(Rank(2))).contains('2'));
    // What cannot move on keeps the others from leaving.
    assert!(world.send(0, 1, 0, 8));
    assert!(world.job.leave(Rank(0)).is_err());
}
