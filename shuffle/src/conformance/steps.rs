//! Steps that contributors end, and fences: each rank goes on to the next as soon as one has ended
//! for it. Handlers send on, and some of them are contributors.

use std::cell::RefCell;
use std::rc::Rc;

use super::schedule::{Replay, mixed, seeds, shape, sim, tiny};
use super::world::at_random;
use crate::deliver::Delivery;
use crate::engine::contribution::Contributors;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Sink;
use crate::error::Error;
use crate::face::shuffle::each_message;
use crate::route::RouteName;
use crate::simulation::Simulation;
use crate::terminate::flush::Fence;
use crate::terminate::step::Step;
use trihop_transport::topology::{Rank, Topology};

const STEPS: u32 = 5;
const TOO_LONG: u64 = 2_000_000;

/// How the steps of a job end, one after the other.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Fence,
    Local,
    All,
}

fn way(seed: u64, step: u32) -> Way {
    [Way::Local, Way::All, Way::Fence, Way::All][(seed + u64::from(step)) as usize % 4]
}

enum Ending {
    Fence(Fence),
    Step(Step),
}

/// A rank's application.
struct Player {
    step: u32,
    sent: u32,
    done: bool,
    ending: Option<Ending>,
}

fn random(seed: u64, name: (u32, u32, u32)) -> u64 {
    let name = u64::from(name.0) << 40 | u64::from(name.1) << 20 | u64::from(name.2);
    let mixed_up = (seed ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed_up ^ mixed_up >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

/// How many messages a rank sends in a step; some send none.
fn count(seed: u64, source: u32, step: u32) -> u32 {
    random(seed, (source, step, 1 << 19)) as u32 % 4 * 3
}

/// Contributors of a rank in a step: the application as one, and as many as it has messages, each
/// of which is done where its last receiver handles it.
fn local(seed: u64, step: u32, rank: u32, all: bool) -> u64 {
    match all {
        true => 1 + u64::from(count(seed, rank, step)),
        false => u64::from(!random(seed, (rank, step, 1 << 18)).is_multiple_of(4)),
    }
}

fn play(seed: u64, route: RouteName) {
    let replay = Replay(seed);
    let topology = Topology::from_node_sizes(&shape(seed), Rank(0)).unwrap();
    let size = topology.size();
    let options = at_random(seed, route, tiny(seed));
    let handled = Rc::new(RefCell::new(vec![0u64; STEPS as usize]));
    let handler = {
        let handled = Rc::clone(&handled);
        move |here: Rank, delivery: Delivery<'_>, done: usize, outbox: &mut Outbox<'_>| {
            each_message(delivery, done, |message, _| {
                // How often it is sent on stands in its kind.
                let (step, left) = (message.kind >> 8, message.kind & 255);
                handled.borrow_mut()[step as usize] += 1;
                if left > 0 {
                    let next = Rank((here.0 * 7 + 3 + left) % size);
                    outbox
                        .send(next, step << 8 | (left - 1), message.bytes)
                        .unwrap();
                } else if way(seed, step) == Way::All {
                    outbox.done(1).unwrap();
                }
                Ok(true)
            })
        }
    };
    let sink = |_| Sink::Handler;
    let mut job =
        Simulation::over(sim(seed), &topology, &options, sink, Box::new(handler)).unwrap();
    let hops = |source, step, number| random(seed, (source, step, number)) as u32 >> 8 & 3;
    let mut expected = vec![0u64; STEPS as usize];
    for (step, source) in (0..STEPS).flat_map(|step| (0..size).map(move |s| (step, s))) {
        let all = 0..count(seed, source, step);
        expected[step as usize] += all
            .map(|n| 1 + u64::from(hops(source, step, n)))
            .sum::<u64>();
    }
    let new = |step| Player {
        step,
        sent: 0,
        done: false,
        ending: None,
    };
    let mut players: Vec<Player> = (0..size).map(|_| new(0)).collect();
    let mut turns = 0;
    while players.iter().any(|player| player.step < STEPS) {
        let rank = (job.random() % u64::from(size)) as u32;
        let player = &mut players[rank as usize];
        if player.step < STEPS {
            let (step, way) = (player.step, way(seed, player.step));
            if player.ending.is_none() && way != Way::Fence {
                let mut ranks = 0..size;
                let all = ranks
                    .by_ref()
                    .map(|rank| local(seed, step, rank, true))
                    .sum();
                let of = match way {
                    Way::All => Contributors::All(all),
                    _ => Contributors::Local(local(seed, step, rank, false)),
                };
                let (state, out, collectives) = job.members[rank as usize].stream_mut();
                player.ending = Some(Ending::Step(
                    Step::begin(of, state, out, collectives).unwrap(),
                ));
                // Without any it is done: it may not send.
                if of == Contributors::Local(0) {
                    (player.sent, player.done) = (u32::MAX, true);
                    let lost =
                        (0..count(seed, rank, step)).map(|n| 1 + u64::from(hops(rank, step, n)));
                    expected[step as usize] -= lost.sum::<u64>();
                    let refused = job.try_send(Rank(rank), Rank(0), 0, b"");
                    assert!(matches!(refused, Err(Error::Misuse { .. })), "{refused:?}");
                }
            } else if player.sent < count(seed, rank, step) {
                let number = player.sent;
                let target = random(seed, (rank, step, number | 1 << 17)) as u32 % size;
                let data = vec![rank as u8; mixed(random(seed, (rank, step, number | 1 << 16)))];
                let kind = step << 8 | hops(rank, step, number);
                match job.try_send(Rank(rank), Rank(target), kind, &data) {
                    Ok(()) => player.sent += 1,
                    Err(Error::WouldBlock) => {}
                    Err(error) => panic!("{error}"),
                }
            } else if !player.done && way != Way::Fence {
                let (_, out, _) = job.members[rank as usize].stream_mut();
                out.done(1).unwrap();
                player.done = true;
            } else {
                let (state, out, collectives) = job.members[rank as usize].stream_mut();
                let ending = player
                    .ending
                    .get_or_insert_with(|| Ending::Fence(Fence::default()));
                let is_over = match ending {
                    Ending::Fence(fence) => fence.poll(state, out, collectives),
                    Ending::Step(step) => step.poll(state, out, collectives),
                };
                if is_over {
                    if way != Way::Fence {
                        assert!(matches!(out.done(1), Err(Error::Misuse { .. })));
                        // A rank without contributors cannot know that the step is over.
                        out.done(0).unwrap();
                        assert!(out.check_not_ending("a send").is_err(), "and opens no step");
                    }
                    out.end_step();
                    let handled = handled.borrow()[step as usize];
                    assert_eq!(handled, expected[step as usize], "rank {rank}, step {step}");
                    *player = new(step + 1);
                }
            }
            job.wake(rank as usize);
        }
        job.step().unwrap();
        turns += 1;
        if turns > TOO_LONG {
            (0..size).for_each(|rank| eprintln!("{}", job.dump(Rank(rank))));
            panic!("{route} is stuck");
        }
    }
    std::mem::forget(replay);
}

#[test]
fn steps_end_when_contributors_are_done_and_all_is_handled() {
    let routes = RouteName::several();
    for seed in seeds(60) {
        let turn = seed as usize % (routes.len() + 2);
        play(seed, routes.get(turn).copied().unwrap_or_default());
    }
}

#[test]
fn steps_end_over_every_route() {
    for route in RouteName::several() {
        for seed in seeds(12) {
            play(seed, route);
        }
    }
}
