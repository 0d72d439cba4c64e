//! A simulated job whose ranks note what they get, so that a test can say whether it is what was
//! sent.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use trihop_transport::link::Completion;
use trihop_transport::protocol::tags::TagClass;
use trihop_transport::sim::SimOptions;
use trihop_transport::topology::{Rank, Topology};

use crate::config::StreamOptions;
use crate::deliver::{Delivery, DeliveryQueue};
use crate::engine::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Sink;
use crate::error::Error;
use crate::face::shuffle::each_message;
use crate::route::{Rails, RouteName};
use crate::simulation::{Fabric, Member, Schedule, Simulation, SimulationError, SimulationOptions};
use crate::stats::Stats;

/// Turns after which a job counts as stuck. Far above what any of these jobs needs.
const TOO_LONG: u64 = 2_000_000;

/// What a receiver saw: per source the numbers in order of arrival.
type Seen = Rc<RefCell<Vec<HashMap<u32, Vec<u64>>>>>;

/// Marks numbers and sources of answers.
const ANSWER: u32 = 1 << 31;

/// A job, and what its ranks saw.
pub struct World {
    pub job: Simulation<'static>,
    seen: Seen,
}

/// Payload of message `number`: its number, and filler that depends on it.
pub fn payload(source: u32, number: u64, bytes: usize) -> Vec<u8> {
    let mut data: Vec<u8> = (0..bytes)
        .map(|i| (i as u64 ^ number ^ u64::from(source)) as u8)
        .collect();
    let head = bytes.min(8);
    data[..head].copy_from_slice(&number.to_le_bytes()[..head]);
    data
}

/// Options of a job on a random schedule.
pub fn at_random(seed: u64, route: RouteName, stream: StreamOptions) -> SimulationOptions {
    SimulationOptions {
        network: SimOptions {
            seed,
            ..SimOptions::default()
        },
        stream: StreamOptions { route, ..stream },
        schedule: Schedule::Random,
        ..SimulationOptions::default()
    }
}

fn note(seen: &Seen, here: Rank, source: u32, number: u32, bytes: &[u8]) {
    let expected = payload(source, u64::from(number), bytes.len());
    let differs = bytes.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(
        differs,
        None,
        "{source}'s message {number} of {} bytes",
        bytes.len()
    );
    seen.borrow_mut()[here.0 as usize]
        .entry(source)
        .or_default()
        .push(u64::from(number));
}

impl World {
    /// A job with these node sizes. `replies`: handlers answer each message whose kind's top bit is
    /// clear, once. One rail, so that all three hops are there.
    pub fn new(
        sizes: &[u32],
        options: &StreamOptions,
        seed: u64,
        fabric: Fabric,
        replies: bool,
        handler: bool,
    ) -> Self {
        let route = RouteName::ThreeHop(Rails::ONE);
        Self::routed(route, sizes, options, seed, fabric, replies, handler)
    }

    /// As [`World::new`], with this route.
    pub fn routed(
        route: RouteName,
        sizes: &[u32],
        options: &StreamOptions,
        seed: u64,
        fabric: Fabric,
        replies: bool,
        handler: bool,
    ) -> Self {
        let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
        Self::placed(route, &topology, options, seed, fabric, replies, handler)
    }

    /// As [`World::routed`], with this placement.
    pub fn placed(
        route: RouteName,
        topology: &Topology,
        options: &StreamOptions,
        seed: u64,
        fabric: Fabric,
        replies: bool,
        handler: bool,
    ) -> Self {
        let seen: Seen = Rc::new(RefCell::new(vec![HashMap::new(); topology.size() as usize]));
        let options = at_random(seed, route, options.clone());
        let sink = |_| match handler {
            true => Sink::Handler,
            false => Sink::Queue(DeliveryQueue::new(&options.stream)),
        };
        let handle = {
            let seen = Rc::clone(&seen);
            move |here: Rank, delivery: Delivery<'_>, done: usize, outbox: &mut Outbox<'_>| {
                each_message(delivery, done, |message, first| {
                    if !first && outbox.has_overfilled() {
                        return Ok(false);
                    }
                    let (source, kind, bytes) = (message.source.0, message.kind, message.bytes);
                    if kind & ANSWER != 0 {
                        note(&seen, here, source | ANSWER, kind & !ANSWER, bytes);
                        return Ok(true);
                    }
                    note(&seen, here, source, kind, bytes);
                    if replies {
                        // Numbered per pair by the request, so that order shows.
                        let answer = payload(here.0 | ANSWER, u64::from(kind), bytes.len());
                        outbox.send(Rank(source), kind | ANSWER, &answer).unwrap();
                    }
                    Ok(true)
                })
            }
        };
        let job = Simulation::over(fabric, topology, &options, sink, Box::new(handle)).unwrap();
        Self { job, seen }
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.job.topology().size()
    }

    /// A rank's stream.
    pub fn core(&mut self, rank: u32) -> &mut StreamState {
        self.job.members[rank as usize].stream_mut().0
    }

    /// What a rank sends on its stream.
    pub fn out(&mut self, rank: u32) -> &mut Outbound {
        self.job.members[rank as usize].stream_mut().1
    }

    /// What a rank's stream has counted.
    pub fn stats(&self, rank: u32) -> Stats {
        self.job.stats(Rank(rank))
    }

    /// A round of progress of one rank alone, at this time.
    pub fn round(&mut self, rank: u32, now_ns: u64) -> Result<bool, Error> {
        self.job.round(Rank(rank), now_ns)
    }

    /// Gives a completion to a rank's stream.
    pub fn complete(
        &mut self,
        rank: u32,
        class: TagClass,
        number: u32,
        completion: Completion,
    ) -> Result<(), Error> {
        let (state, out, _) = self.job.members[rank as usize].stream_mut();
        state.complete(out, class, number, completion)
    }

    /// A random number of this schedule.
    pub fn random(&mut self) -> u64 {
        self.job.random()
    }

    /// Lets one random rank make progress and time pass.
    pub fn step(&mut self) {
        self.job.step().unwrap();
    }

    /// Sends a message whose payload follows from its number; false where there is no room.
    pub fn send(&mut self, source: u32, target: u32, number: u32, bytes: usize) -> bool {
        let data = payload(source, u64::from(number), bytes);
        match self.job.try_send(Rank(source), Rank(target), number, &data) {
            Ok(()) => true,
            Err(Error::WouldBlock) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Steps until `done` says so for every rank.
    pub fn until(&mut self, what: &'static str, done: impl FnMut(u32, &mut Member) -> bool) {
        let ended = self.job.until(what, done);
        self.explain(ended);
    }

    fn explain<T>(&self, ended: Result<T, SimulationError>) -> T {
        ended.unwrap_or_else(|error| self.give_up(&error.to_string()))
    }

    pub fn give_up(&self, why: &str) -> ! {
        for rank in 0..self.size() {
            eprintln!("{}", self.job.dump(Rank(rank)));
        }
        panic!("{why}");
    }

    pub fn fence(&mut self) {
        let ended = self.job.fence();
        self.explain(ended);
    }

    /// Lets the last control messages arrive, as ranks of a real job do before they close their
    /// links.
    pub fn settle(&mut self) {
        let enough = 100 * self.job.members.len();
        let mut quiet = 0;
        for _ in 0..TOO_LONG {
            let stepped = self.job.step();
            if !self.explain(stepped) {
                return;
            }
            let mut streams = self.job.members.iter().map(Member::stream);
            let waits =
                streams.any(|(state, out)| !state.is_quiet(out) || state.waits_for_time(out));
            quiet = if waits { 0 } else { quiet + 1 };
            if quiet > enough {
                return;
            }
        }
        self.give_up("the job does not come to rest");
    }

    /// Every rank sends `count` messages to random targets; returns per (source, target) how many.
    pub fn exchange(
        &mut self,
        count: u64,
        sizes: impl Fn(u64) -> usize,
    ) -> HashMap<(u32, u32), u64> {
        let ranks = self.size();
        let mut sent: HashMap<(u32, u32), u64> = HashMap::new();
        let mut left: Vec<u64> = vec![count; ranks as usize];
        let mut next: Vec<Option<(u32, usize)>> = vec![None; ranks as usize];
        let mut steps = 0;
        while left.iter().any(|&l| l > 0) {
            for source in 0..ranks {
                let index = source as usize;
                for _ in 0..self.random() % 4 {
                    if left[index] == 0 {
                        break;
                    }
                    let (target, bytes) = next[index].take().unwrap_or_else(|| {
                        let target = (self.random() % u64::from(ranks)) as u32;
                        (target, sizes(self.random()))
                    });
                    let number = sent.entry((source, target)).or_default();
                    if !self.send(source, target, *number as u32, bytes) {
                        next[index] = Some((target, bytes));
                        break;
                    }
                    *number += 1;
                    left[index] -= 1;
                }
            }
            self.step();
            steps += 1;
            if steps > TOO_LONG {
                self.give_up(&format!("sending is stuck with {left:?} to send"));
            }
        }
        sent
    }

    /// Numbers of the messages that `target` has heard from `source`.
    pub fn heard(&self, target: u32, source: u32) -> Vec<u64> {
        let seen = self.seen.borrow();
        seen[target as usize]
            .get(&source)
            .cloned()
            .unwrap_or_default()
    }

    /// What is heard is counted from now on.
    pub fn forget(&mut self) {
        self.seen.borrow_mut().iter_mut().for_each(HashMap::clear);
    }

    /// Everything sent arrived exactly once and in order per pair.
    pub fn check(&self, sent: &HashMap<(u32, u32), u64>, replies: bool) {
        let seen = self.seen.borrow();
        for (&(source, target), &count) in sent {
            let got = seen[target as usize]
                .get(&source)
                .cloned()
                .unwrap_or_default();
            assert_eq!(
                got,
                (0..count).collect::<Vec<_>>(),
                "from {source} to {target}"
            );
            if replies {
                let back = &seen[source as usize];
                let got = back.get(&(target | ANSWER)).cloned().unwrap_or_default();
                assert_eq!(
                    got,
                    (0..count).collect::<Vec<_>>(),
                    "answers from {target} to {source}"
                );
            }
        }
        // Nothing came that was not sent.
        let sources = |here: usize| seen[here].keys().filter(|&&s| s & ANSWER == 0);
        for here in 0..seen.len() {
            for &source in sources(here) {
                assert!(
                    sent.contains_key(&(source, here as u32)),
                    "{here} heard from {source}"
                );
            }
        }
    }
}
