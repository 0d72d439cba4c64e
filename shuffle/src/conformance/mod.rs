//! One suite for every link: whole jobs in one thread, real engines, random schedules, small
//! queues, handlers that send.
//!
//! Over the simulated fabric time is virtual and a seed replays a run exactly; over libfabric the
//! same jobs run on what this machine has. A failure prints its seed; `TRIHOP_SEED=<seed>` runs
//! only that one. With `TRIHOP_SIM_PROVIDER=cxi` (or another name of
//! [`SIMULATED`](trihop_transport::fabric::quirks::SIMULATED)) the simulated fabric has the limits
//! and rules of that provider where a job asks for none of its own; `providers` runs a few jobs
//! under each.

mod ageing;
mod broadcasts;
mod broken_peers;
mod fairness;
mod fences;
mod limits;
mod long_records;
mod lost_links;
mod membership;
mod offers;
mod on_demand;
mod providers;
pub(crate) mod ranks;
mod relays;
mod rounds;
mod schedule;
mod shared_records;
mod steps;
mod symptoms;
mod world;

use trihop_transport::link::Mover;
use trihop_transport::sim::{Net, SimOptions};

use crate::config::StreamOptions;
use crate::deliver::Delivery;
use crate::engine::sink::Sink;
use crate::route::{RouteName, stage};
use crate::simulation::Fabric;
use crate::terminate::flush::{Flush, Queues};

use schedule::{Replay, mixed, real, real_providers, run_schedules, seeds, shape, sim, tiny};
use world::World;

#[test]
fn random_schedules_lose_nothing_and_keep_order() {
    run_schedules(120, false, 60, |seed, _| sim(seed));
}

#[test]
fn handlers_that_send_are_answered_before_the_fence_ends() {
    run_schedules(60, true, 30, |seed, _| sim(seed));
}

/// All ranks flush queue after queue, and wait for each other in between, as clients of DeltaFS do.
fn flush_all(world: &mut World, queues: impl IntoIterator<Item = Queues>) {
    for queues in queues {
        let mut flushes: Vec<Flush> = (0..world.size())
            .map(|r| {
                let (state, out, _) = world.job.members[r as usize].stream_mut();
                Flush::begin(queues, state, out)
            })
            .collect();
        (0..world.size()).for_each(|r| world.core(r).hurry()); // as a flush does that waits
        // Between the stages everyone waits for everyone: the barrier.
        world.until("flush", |i, r| {
            let (state, out, _) = r.stream_mut();
            flushes[i as usize].poll(state, out).unwrap()
        });
    }
}

#[test]
fn the_four_flushes_and_three_barriers_deliver_everything() {
    for seed in seeds(24) {
        let replay = Replay(seed);
        let mut world = World::new(&shape(seed), &tiny(seed), seed, sim(seed), false, true);
        let sent = world.exchange(40, mixed);
        let all = [
            Queues::ORIGIN,
            Queues::REMOTE,
            Queues::RELAY,
            Queues::Delivery,
        ];
        flush_all(&mut world, all);
        world.check(&sent, false);
        std::mem::forget(replay);
    }
}

/// Grids have more stages between the first and the last: each takes a flush and a barrier more.
#[test]
fn flushes_deliver_everything_over_every_route_once_for_each_stage_between() {
    for route in RouteName::several() {
        let ends = [stage::ORIGIN, stage::RELAY];
        let between = route.stages().iter().filter(|of| !ends.contains(&of.name));
        for seed in seeds(8) {
            let replay = Replay(seed);
            let (sizes, options) = (shape(seed), tiny(seed));
            let mut world = World::routed(route, &sizes, &options, seed, sim(seed), false, true);
            let sent = world.exchange(40, mixed);
            let remote = between.clone().map(|_| Queues::REMOTE);
            flush_all(&mut world, [Queues::ORIGIN]);
            flush_all(&mut world, remote);
            flush_all(&mut world, [Queues::RELAY, Queues::Delivery]);
            world.check(&sent, false);
            std::mem::forget(replay);
        }
    }
}

#[test]
fn without_a_handler_a_full_delivery_queue_stops_its_senders_and_nobody_else() {
    let options = StreamOptions {
        deliverq_max: 10,
        run_bytes: 64,
        ..tiny(2)
    };
    let mut world = World::new(
        &[2, 2],
        &options,
        1,
        Fabric::Simulated(Net::new(SimOptions::default())),
        false,
        false,
    );
    let mut accepted = 0u32;
    for _ in 0..20_000 {
        if world.send(0, 3, accepted, 8) {
            accepted += 1;
        }
        world.step();
    }
    let queued = |world: &World, rank: u32| match &world.job.members[rank as usize].stream().0.sink
    {
        Sink::Queue(queue) => queue.records(),
        _ => unreachable!("made without a handler"),
    };
    assert!(
        queued(&world, 3) <= 10,
        "{} records wait",
        queued(&world, 3)
    );
    assert!(
        accepted < 2000,
        "{accepted} records were accepted although nobody takes any"
    );
    // The queue of rank 3 is full; traffic that shares no queue with it flows, through the same
    // representatives.
    for number in 0..5 {
        assert!(world.send(2, 0, number, 8));
    }
    for _ in 0..20_000 {
        world.step();
    }
    assert_eq!(queued(&world, 0), 5);
    // Taking makes room, and nothing was lost or reordered.
    let mut got = Vec::new();
    let mut idle = 0;
    while idle < 50_000 {
        world.job.wake(3);
        world.step();
        idle += 1;
        if let Sink::Queue(queue) = &mut world.core(3).sink {
            let taken = queue.take_all();
            for entry in &taken {
                idle = 0;
                let note = |delivery: Delivery<'_>| {
                    if let Delivery::Run(run) = delivery {
                        got.extend(run.records().map(|r| r.unwrap().0));
                    }
                    Ok(())
                };
                entry.hand_to(4, note).unwrap();
            }
            let count = taken.len();
            queue.put_back(taken, count);
        }
    }
    assert_eq!(got, (0..accepted).collect::<Vec<_>>());
}

#[test]
fn the_same_schedules_hold_over_libfabric() {
    for provider in real_providers() {
        for mover in [Mover::Read, Mover::Segments] {
            let eager_bytes = |seed: u64| [None, Some(1024)][(seed % 2) as usize];
            let fabric = |seed, ranks| real(provider, mover, eager_bytes(seed), ranks);
            // What verbs;ofi_rxm opens it keeps until the process ends (see its quirk), so it gets
            // fewer jobs.
            let jobs = if provider.starts_with("verbs") { 4 } else { 8 };
            run_schedules(jobs, true, 20, fabric);
        }
    }
}
