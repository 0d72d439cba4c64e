//! Rounds: each rank goes on to the next as soon as one has ended for it, however far others are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::schedule::{Replay, mixed, seeds, shape, sim, tiny};
use super::world::{World, at_random};
use crate::config::StreamOptions;
use crate::deliver::Delivery;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Sink;
use crate::error::Error;
use crate::face::shuffle::each_message;
use crate::route::RouteName;
use crate::simulation::{Member, Simulation, SimulationError};
use crate::terminate::round::Round;
use trihop_transport::topology::{Rank, Topology};

const ROUNDS: u32 = 4;
const MESSAGES: u32 = 12;
const TOO_LONG: u64 = 2_000_000;

/// Ranks that leave the job in the middle of its rounds, one at a time, and join it again.
#[derive(Default)]
struct Leavers {
    away: Option<Rank>,
    /// How often one has left while others were ending a round.
    left: u32,
    /// How often one was refused because it was in a round.
    refused: u32,
}

impl Leavers {
    /// Now and then somebody leaves, or joins again.
    fn go(&mut self, job: &mut Simulation<'_>) {
        if let Some(rank) = self.away {
            if job.random().is_multiple_of(64) {
                job.join(rank).unwrap();
                self.away = None;
            }
            return;
        }
        if !job.random().is_multiple_of(32) {
            return;
        }
        let rank = Rank((job.random() % job.members.len() as u64) as u32);
        let is_ending = |member: &Member| member.stream().0.rounds.is_ending();
        match job.leave(rank) {
            Ok(()) => {
                self.away = Some(rank);
                self.left += u32::from(job.members.iter().any(is_ending));
            }
            Err(SimulationError::Engine(Error::Misuse { why, .. })) => {
                assert!(why.contains("in the middle of a round"), "{why}");
                assert!(is_ending(&job.members[rank.0 as usize]));
                self.refused += 1;
            }
            // Somebody holds back what it has sent in the next round.
            Err(SimulationError::Stuck { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A rank's application.
struct Player {
    round: u32,
    sent: u32,
    ending: Option<Round>,
}

/// What message `number` of a rank in a round is: its target, none for all ranks, and its length.
fn message(seed: u64, size: u32, (source, round, number): (u32, u32, u32)) -> (Option<u32>, usize) {
    let name = u64::from(source) << 40 | u64::from(round) << 20 | u64::from(number);
    let mixed_up = (seed ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let random = (mixed_up ^ mixed_up >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16;
    // Some ranks send nothing in a round, and some rounds are empty.
    let target = (random % u64::from(size)) as u32;
    match random >> 32 & 15 {
        0 => (None, 8),
        _ => (Some(target), mixed(random >> 8)),
    }
}

/// How many messages a rank sends in a round.
fn count(seed: u64, source: u32, round: u32) -> u32 {
    match (seed + u64::from(source) * 7 + u64::from(round) * 3) % 5 {
        0 => 0,
        other => MESSAGES * other as u32 / 4,
    }
}

/// A job without relays.
fn alone(seed: u64) -> Topology {
    Topology::from_node_sizes(&shape(seed), Rank(0)).unwrap()
}

fn play(seed: u64, topology: &Topology, route: RouteName, mut leavers: Option<&mut Leavers>) {
    let replay = Replay(seed);
    let size = topology.size();
    let options = at_random(seed, route, tiny(seed));
    let rounds = Rc::new(RefCell::new(vec![0u32; size as usize]));
    let heard = Rc::new(RefCell::new(HashMap::<(u32, u32), u32>::new()));
    let handler = {
        let (rounds, heard) = (Rc::clone(&rounds), Rc::clone(&heard));
        move |here: Rank, delivery: Delivery<'_>, done: usize, _: &mut Outbox<'_>| {
            each_message(delivery, done, |message, _| {
                let now = rounds.borrow()[here.0 as usize];
                assert_eq!(
                    message.kind, now,
                    "rank {here}: from {} in the wrong round",
                    message.source
                );
                *heard.borrow_mut().entry((here.0, now)).or_default() += 1;
                Ok(true)
            })
        }
    };
    let sink = |_| Sink::Handler;
    let fabric = sim(seed);
    let mut job = Simulation::over(fabric, topology, &options, sink, Box::new(handler)).unwrap();
    let mut expected = HashMap::<(u32, u32), u32>::new();
    for (round, source) in (0..ROUNDS).flat_map(|round| (0..size).map(move |s| (round, s))) {
        for number in 0..count(seed, source, round) {
            let (target, _) = message(seed, size, (source, round, number));
            let targets = target.map_or(0..size, |target| target..target + 1);
            targets.for_each(|t| *expected.entry((t, round)).or_default() += 1);
        }
    }
    let mut players: Vec<Player> = (0..size)
        .map(|_| Player {
            round: 0,
            sent: 0,
            ending: None,
        })
        .collect();
    let mut steps = 0;
    while players.iter().any(|player| player.round < ROUNDS) {
        if let Some(leavers) = leavers.as_deref_mut() {
            leavers.go(&mut job);
        }
        let away = leavers.as_ref().and_then(|leavers| leavers.away);
        let rank = (job.random() % u64::from(size)) as u32;
        let player = &mut players[rank as usize];
        if player.round < ROUNDS && away != Some(Rank(rank)) {
            let round = player.round;
            if player.sent < count(seed, rank, round) {
                let (target, bytes) = message(seed, size, (rank, round, player.sent));
                let data = vec![rank as u8; bytes];
                let sent = match target {
                    Some(target) => job.try_send(Rank(rank), Rank(target), round, &data),
                    None => {
                        let all = crate::BroadcastTo::Everyone;
                        job.try_broadcast(Rank(rank), round, &data, all)
                    }
                };
                match sent {
                    Ok(()) => player.sent += 1,
                    Err(Error::WouldBlock) => {}
                    Err(error) => panic!("{error}"),
                }
            } else {
                let (state, out, _) = job.members[rank as usize].stream_mut();
                let is_over = player
                    .ending
                    .get_or_insert_with(Round::default)
                    .poll(state, out);
                if is_over {
                    state.rounds.end();
                    let of_round = (rank, round);
                    assert_eq!(
                        heard.borrow().get(&of_round),
                        expected.get(&of_round),
                        "rank {rank}, round {round}"
                    );
                    *player = Player {
                        round: round + 1,
                        sent: 0,
                        ending: None,
                    };
                    rounds.borrow_mut()[rank as usize] += 1;
                }
                job.wake(rank as usize);
            }
        }
        job.step().unwrap();
        steps += 1;
        if steps > TOO_LONG {
            (0..size).for_each(|rank| eprintln!("{}", job.dump(Rank(rank))));
            panic!("{route} is stuck");
        }
    }
    std::mem::forget(replay);
}

#[test]
fn a_round_has_all_that_was_sent_in_it_and_nothing_of_the_next() {
    let routes = RouteName::several();
    for seed in seeds(60) {
        let turn = seed as usize % (routes.len() + 2);
        let route = routes.get(turn).copied().unwrap_or_default();
        play(seed, &alone(seed), route, None);
    }
}

/// The runs of a round leave together with its mark, so whoever sleeps is woken once for them.
#[test]
fn a_round_shows_each_lane_of_a_node_once() {
    let mut world = World::new(&[3], &StreamOptions::default(), 1, sim(1), false, true);
    for number in 0..ROUNDS {
        for (source, target) in (0..3).flat_map(|source| (0..3).map(move |t| (source, t))) {
            assert!(world.send(source, target, number, 8));
        }
        let mut endings: [Round; 3] = Default::default();
        let mut poll = |rank: u32, member: &mut Member| {
            let (state, out, _) = member.stream_mut();
            endings[rank as usize].poll(state, out)
        };
        for rank in 0..3 {
            poll(rank, &mut world.job.members[rank as usize]);
        }
        world.until("the end of a round", poll);
        (0..3).for_each(|rank| world.core(rank).rounds.end());
    }
    for rank in 0..3 {
        let lanes = world.out(rank).queues.lanes.iter();
        let shown: Vec<u64> = lanes.map(|lane| lane.counters.sends()).collect();
        assert_eq!(shown, [u64::from(ROUNDS); 3], "rank {rank}");
    }
}

#[test]
fn rounds_end_over_every_route() {
    for route in RouteName::several() {
        for seed in seeds(12) {
            play(seed, &alone(seed), route, None);
        }
    }
}

/// A rank that has heard of no round leaves in the middle of one of others, which goes on when it has
/// joined again; one that has does not leave before it has ended its own.
#[test]
fn a_rank_leaves_in_the_middle_of_a_round_of_others_and_in_none_of_its_own() {
    let mut all = Leavers::default();
    for route in RouteName::several() {
        for seed in seeds(3) {
            all.away = None;
            play(seed, &alone(seed), route, Some(&mut all));
        }
    }
    let (left, refused) = (all.left, all.refused);
    let is_one_seed = crate::seed::asked_for().is_some();
    assert!(
        is_one_seed || left > 10 && refused > 10,
        "{left} have left, {refused} not"
    );
}

#[test]
fn rounds_over_relays_have_all_that_was_sent_in_them_and_nothing_of_the_next() {
    for seed in seeds(40) {
        let route = super::relays::route(seed);
        play(seed, &super::relays::placed(seed), route, None);
    }
}
