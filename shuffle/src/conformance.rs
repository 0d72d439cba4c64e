//! One suite for every link: whole jobs in one thread, real engines, random schedules, small queues, handlers that send.
//!
//! Over the simulated fabric time is virtual and a seed replays a run exactly; over libfabric the same jobs run on what
//! this machine has. A failure prints its seed; `TRIHOP_SEED=<seed>` runs only that one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use trihop_transport::fabric;
use trihop_transport::link::{Limits, Link, Mover, Tag, Token};
use trihop_transport::ring::Doorbell;
use trihop_transport::sim::{Net, SimOptions};
use trihop_transport::topology::{NodeId, Rank, Topology};

use crate::config::StreamOptions;
use crate::deliver::{Delivery, DeliveryQueue, Sink};
use crate::endpoint::{Endpoint, LinkPeer, represented_nodes};
use crate::engine::Core;
use crate::error::Error;
use crate::flush::{Fence, Flush, Queues};

/// One tick of virtual time in nanoseconds.
const TICK_NS: u64 = 1000;
/// Ticks after which a job counts as stuck. Far above what any of these jobs needs.
const TOO_LONG: u64 = 2_000_000;

/// What a receiver saw: per source the numbers in order of arrival.
type Seen = Rc<RefCell<HashMap<u32, Vec<u64>>>>;

struct Rankling {
    endpoint: Endpoint<'static>,
    core: Rc<Core<'static>>,
    seen: Seen,
}

/// What carries the traffic between nodes.
enum Fabric {
    Sim(Net),
    Real(fabric::Choice),
}

impl Fabric {
    fn open(&self) -> Box<dyn Link> {
        match self {
            Self::Sim(net) => Box::new(net.link()),
            Self::Real(choice) => fabric::open(choice).unwrap(),
        }
    }
}

struct World {
    fabric: Fabric,
    random: Cell<u64>,
    start: Instant,
    ranks: Vec<Rankling>,
}

/// Payload of message `number`: its number, and filler that depends on it.
fn payload(source: u32, number: u64, bytes: usize) -> Vec<u8> {
    let mut data: Vec<u8> = (0..bytes)
        .map(|i| (i as u64 ^ number ^ u64::from(source)) as u8)
        .collect();
    let head = bytes.min(8);
    data[..head].copy_from_slice(&number.to_le_bytes()[..head]);
    data
}

fn note(seen: &Seen, source: u32, number: u32, bytes: &[u8]) {
    let expected = payload(source, u64::from(number), bytes.len());
    let differs = bytes.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(
        differs,
        None,
        "{source}'s message {number} of {} bytes",
        bytes.len()
    );
    seen.borrow_mut()
        .entry(source)
        .or_default()
        .push(u64::from(number));
}

impl World {
    /// A job with these node sizes. `replies`: handlers answer each message whose kind's top bit is clear, once.
    fn new(
        sizes: &[u32],
        options: &StreamOptions,
        seed: u64,
        fabric: Fabric,
        replies: bool,
        handler: bool,
    ) -> Self {
        let total: u32 = sizes.iter().sum();
        let topologies: Vec<Topology> = (0..total)
            .map(|r| Topology::from_node_sizes(sizes, Rank(r)).unwrap())
            .collect();
        let bells: Vec<Doorbell> = topologies.iter().map(|_| Doorbell::create().unwrap()).collect();
        let mut links: Vec<_> = topologies.iter().map(|_| fabric.open()).collect();
        let addresses: Vec<Vec<u8>> = links.iter().map(|l| l.address().to_vec()).collect();
        let endpoints: Vec<Endpoint<'static>> = topologies
            .iter()
            .map(|t| {
                let mut link = links.remove(0);
                let peers = represented_nodes(t)
                    .into_iter()
                    .map(|node| {
                        let rank = t.target_representative(NodeId(node)).0;
                        LinkPeer {
                            node,
                            rank,
                            peer: link.connect(&addresses[rank as usize]).unwrap(),
                        }
                    })
                    .collect();
                let local = (0..t.local_size())
                    .map(|l| bells[t.rank_at(t.node(), l).0 as usize].bell())
                    .collect();
                Endpoint::new(t.clone(), 42, Some(link), peers, local)
            })
            .collect();
        let seens: Vec<Seen> = endpoints.iter().map(|_| Seen::default()).collect();
        let sinks = |endpoint: &Endpoint<'static>, seen: &Seen, system: bool| {
            if system {
                return endpoint.system_sink();
            }
            if !handler {
                return Sink::Queue(DeliveryQueue::new(options));
            }
            let seen = Rc::clone(seen);
            let own = endpoint.topology.rank().0;
            Sink::Handler(Box::new(move |delivery, _, outbox| {
                let mut one = |source: u32, kind: u32, bytes: &[u8]| {
                    if kind >> 31 == 1 {
                        note(&seen, source | 1 << 31, kind & 0x7fff_ffff, bytes);
                    } else {
                        note(&seen, source, kind, bytes);
                        if replies {
                            // Numbered per pair by the request, so that order shows.
                            let me = u64::from(kind);
                            let answer = payload(own | 1 << 31, me, bytes.len());
                            outbox.send(Rank(source), kind | 1 << 31, &answer).unwrap();
                        }
                    }
                };
                let records = if let Delivery::Run(run) = &delivery {
                    usize::from(run.header.count)
                } else {
                    1
                };
                match delivery {
                    Delivery::Run(run) => {
                        for record in run.records() {
                            let (kind, bytes) = record?;
                            one(run.header.source, kind, bytes);
                        }
                    }
                    Delivery::Record { source, kind, bytes } => one(source, kind, bytes),
                }
                Ok(records)
            }))
        };
        let mut cores: Vec<Rc<Core<'static>>> = Vec::new();
        for system in [true, false] {
            let options = if system {
                Endpoint::system_options()
            } else {
                options.clone()
            };
            let prepared: Vec<_> = endpoints
                .iter()
                .map(|e| e.prepare("simulated", &options, 0).unwrap())
                .collect();
            let segments: Vec<_> = prepared.iter().map(|p| Arc::clone(&p.segment)).collect();
            cores = prepared
                .into_iter()
                .zip(&endpoints)
                .zip(&seens)
                .map(|((p, e), seen)| {
                    let local: Vec<_> = (0..e.topology.local_size())
                        .map(|l| Arc::clone(&segments[e.topology.rank_at(e.topology.node(), l).0 as usize]))
                        .collect();
                    e.connect(p, &local, sinks(e, seen, system)).unwrap()
                })
                .collect();
        }
        let ranks = endpoints
            .into_iter()
            .zip(cores)
            .zip(seens)
            .map(|((endpoint, core), seen)| Rankling { endpoint, core, seen })
            .collect();
        let random = Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self {
            fabric,
            random,
            start: Instant::now(),
            ranks,
        }
    }

    /// A random number of this schedule (xorshift64*).
    fn random(&self) -> u64 {
        let mut state = self.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Lets one random rank make progress and time pass.
    fn step(&self) {
        let now_ns = match &self.fabric {
            Fabric::Sim(net) => {
                if self.random().is_multiple_of(4) {
                    net.tick();
                }
                assert!(net.violations().is_empty(), "{:?}", net.violations());
                net.now() * TICK_NS + 1
            }
            Fabric::Real(_) => self.start.elapsed().as_nanos() as u64 + 1,
        };
        let rank = &self.ranks[(self.random() % self.ranks.len() as u64) as usize];
        rank.endpoint.progress(now_ns).unwrap();
    }

    /// Steps until `done` says so for every rank.
    fn until(&self, what: &str, mut done: impl FnMut(usize, &Rankling) -> bool) {
        let mut left: Vec<usize> = (0..self.ranks.len()).collect();
        let mut steps = 0;
        while !left.is_empty() {
            self.step();
            left.retain(|&i| !done(i, &self.ranks[i]));
            steps += 1;
            if steps > TOO_LONG {
                self.give_up(&format!("{what}: ranks {left:?} are stuck"));
            }
        }
    }

    fn give_up(&self, why: &str) -> ! {
        for rank in &self.ranks {
            let mut text = Vec::new();
            crate::dump::write(&rank.core, &mut text).unwrap();
            eprintln!("{}", String::from_utf8_lossy(&text));
        }
        panic!("{why}");
    }

    fn fence(&self) {
        let mut fences: Vec<Fence> = self.ranks.iter().map(|_| Fence::default()).collect();
        self.until("fence", |i, r| {
            fences[i].poll(&r.core, &mut r.endpoint.collectives.borrow_mut())
        });
    }

    /// Lets the last control messages arrive, as ranks of a real job do before they close their links.
    fn settle(&self) {
        let mut quiet = 0;
        for _ in 0..TOO_LONG {
            self.step();
            let waits = self
                .ranks
                .iter()
                .any(|r| !r.core.is_quiet() || r.core.waits_for_time());
            quiet = if waits { 0 } else { quiet + 1 };
            if quiet > 100 * self.ranks.len() {
                return;
            }
        }
        self.give_up("the job does not come to rest");
    }

    /// Every rank sends `count` messages to random targets; returns per (source, target) how many.
    fn exchange(&self, count: u64, sizes: impl Fn(u64) -> usize) -> HashMap<(u32, u32), u64> {
        let total = self.ranks.len() as u64;
        let mut sent: HashMap<(u32, u32), u64> = HashMap::new();
        let mut left: Vec<u64> = vec![count; self.ranks.len()];
        let mut next: Vec<Option<(u32, usize)>> = vec![None; self.ranks.len()];
        let mut steps = 0;
        while left.iter().any(|&l| l > 0) {
            for (source, rank) in self.ranks.iter().enumerate() {
                for _ in 0..self.random() % 4 {
                    if left[source] == 0 {
                        break;
                    }
                    let (target, bytes) = *next[source]
                        .get_or_insert_with(|| ((self.random() % total) as u32, sizes(self.random())));
                    let number = sent.entry((source as u32, target)).or_default();
                    let data = payload(source as u32, *number, bytes);
                    match rank
                        .core
                        .out
                        .borrow_mut()
                        .try_send(Rank(target), *number as u32, &data)
                    {
                        Ok(()) => {
                            *number += 1;
                            left[source] -= 1;
                            next[source] = None;
                        }
                        Err(Error::WouldBlock) => break,
                        Err(error) => panic!("{error}"),
                    }
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

    /// Everything sent arrived exactly once and in order per pair.
    fn check(&self, sent: &HashMap<(u32, u32), u64>, replies: bool) {
        for (&(source, target), &count) in sent {
            let seen = self.ranks[target as usize].seen.borrow();
            let got = seen.get(&source).cloned().unwrap_or_default();
            assert_eq!(got, (0..count).collect::<Vec<_>>(), "from {source} to {target}");
            if replies {
                let back = self.ranks[source as usize].seen.borrow();
                let got = back.get(&(target | 1 << 31)).cloned().unwrap_or_default();
                assert_eq!(
                    got,
                    (0..count).collect::<Vec<_>>(),
                    "answers from {target} to {source}"
                );
            }
        }
    }
}

/// Seeds of a test: the one of `TRIHOP_SEED`, or as many as asked for.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("TRIHOP_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

fn tiny(seed: u64) -> StreamOptions {
    let mut options = StreamOptions::default();
    if seed.is_multiple_of(2) {
        options.remote_buftarget_bytes = 300;
        options.remote_maxrpc = 1 + (seed / 2 % 3) as u32;
        options.origin_buftarget_bytes = 64;
        options.origin_maxrpc = 1 + (seed / 4 % 4) as u32;
        options.relay_buftarget_bytes = 100;
        options.relay_maxrpc = 1;
        options.run_bytes = 64;
        options.lane_budget_bytes = 8192;
        options.receive_pool_bytes = 1;
        options.small_slot_bytes = 256;
    }
    if seed.is_multiple_of(3) {
        options.run_table_bytes = options.run_bytes * 2;
    }
    options
}

fn sim(seed: u64) -> Fabric {
    let mover = if seed % 5 < 2 {
        Mover::Segments
    } else {
        Mover::Read
    };
    let eager_bytes = [256, 1024, 4096, 65536][(seed % 4) as usize];
    let limits = Limits {
        eager_bytes,
        mover,
        ..SimOptions::default().limits
    };
    Fabric::Sim(Net::new(SimOptions {
        seed,
        max_delay: seed % 11,
        refuse_one_in: [0, 3, 7][(seed % 3) as usize],
        limits,
    }))
}

fn shape(seed: u64) -> Vec<u32> {
    let shapes: [&[u32]; 8] = [
        &[1],
        &[3],
        &[1, 1],
        &[2, 2],
        &[3, 1, 4],
        &[1, 5],
        &[2, 1, 1, 3],
        &[4, 4, 4, 4],
    ];
    shapes[(seed % 8) as usize].to_vec()
}

fn mixed(random: u64) -> usize {
    match random % 16 {
        0 => 0,
        1..=9 => (random >> 8) as usize % 64,
        10..=13 => (random >> 8) as usize % 700,
        14 => (random >> 8) as usize % 5000,
        _ => (random >> 8) as usize % 40_000,
    }
}

fn run_schedules(count: u64, replies: bool, messages: u64, fabric: impl Fn(u64) -> Fabric) {
    for seed in seeds(count) {
        let replay = Replay(seed);
        let world = World::new(&shape(seed), &tiny(seed), seed, fabric(seed), replies, true);
        let sent = world.exchange(messages, mixed);
        world.fence();
        world.check(&sent, replies);
        world.settle();
        std::mem::forget(replay);
    }
}

/// Says how to replay when a test ends by a panic.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        eprintln!("replay with TRIHOP_SEED={}", self.0);
    }
}

#[test]
fn random_schedules_lose_nothing_and_keep_order() {
    run_schedules(120, false, 60, sim);
}

#[test]
fn handlers_that_send_are_answered_before_the_fence_ends() {
    run_schedules(60, true, 30, sim);
}

#[test]
fn the_four_flushes_and_three_barriers_deliver_everything() {
    for seed in seeds(24) {
        let replay = Replay(seed);
        let world = World::new(&shape(seed), &tiny(seed), seed, sim(seed), false, true);
        let sent = world.exchange(40, mixed);
        for queues in [Queues::Origin, Queues::Remote, Queues::Relay, Queues::Delivery] {
            let mut flushes: Vec<Flush> = world
                .ranks
                .iter()
                .map(|r| Flush::begin(queues, &r.core))
                .collect();
            // Between the stages everyone waits for everyone: the barrier.
            world.until("flush", |i, r| flushes[i].poll(&r.core).unwrap());
        }
        world.check(&sent, false);
        std::mem::forget(replay);
    }
}

#[test]
fn without_a_handler_a_full_delivery_queue_stops_its_senders_and_nobody_else() {
    let options = StreamOptions {
        deliverq_max: 10,
        run_bytes: 64,
        ..tiny(2)
    };
    let world = World::new(
        &[2, 2],
        &options,
        1,
        Fabric::Sim(Net::new(SimOptions::default())),
        false,
        false,
    );
    let mut accepted = 0u32;
    for _ in 0..20_000 {
        match world.ranks[0].core.out.borrow_mut().try_send(
            Rank(3),
            accepted,
            &payload(0, u64::from(accepted), 8),
        ) {
            Ok(()) => accepted += 1,
            Err(Error::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
        world.step();
    }
    let queued = |world: &World, rank: usize| match &*world.ranks[rank].core.sink.borrow() {
        Sink::Queue(queue) => queue.records(),
        _ => unreachable!("made without a handler"),
    };
    assert!(queued(&world, 3) <= 10, "{} records wait", queued(&world, 3));
    assert!(
        accepted < 2000,
        "{accepted} records were accepted although nobody takes any"
    );
    // The queue of rank 3 is full; traffic that shares no queue with it flows, through the same representatives.
    for number in 0..5 {
        world.ranks[2]
            .core
            .out
            .borrow_mut()
            .try_send(Rank(0), number, &payload(2, u64::from(number), 8))
            .unwrap();
    }
    for _ in 0..20_000 {
        world.step();
    }
    assert_eq!(queued(&world, 0), 5);
    // Taking makes room, and nothing was lost or reordered.
    let mut got = Vec::new();
    let mut idle = 0;
    while idle < 50_000 {
        world.step();
        idle += 1;
        if let Sink::Queue(queue) = &mut *world.ranks[3].core.sink.borrow_mut() {
            while queue
                .pop(4, |delivery| {
                    if let Delivery::Run(run) = delivery {
                        got.extend(run.records().map(|r| r.unwrap().0));
                    }
                    Ok(())
                })
                .unwrap()
            {
                idle = 0;
            }
        }
    }
    assert_eq!(got, (0..accepted).collect::<Vec<_>>());
}

/// Providers of libfabric on this machine that these jobs can use in one process.
fn real_providers() -> Vec<&'static str> {
    let survey = fabric::survey(&fabric::Choice {
        loopback_only: true,
        ..fabric::Choice::default()
    });
    let offered: Vec<String> = survey
        .map(|s| s.candidates.iter().map(|c| c.provider.clone()).collect())
        .unwrap_or_default();
    let asked = std::env::var("TRIHOP_TEST_PROVIDERS").unwrap_or_default();
    ["net", "tcp", "tcp;ofi_rxm", "shm", "verbs;ofi_rxm"]
        .into_iter()
        .filter(|name| asked.is_empty() || asked.split(',').any(|a| name.starts_with(a)))
        .filter(|name| {
            let there = offered.iter().any(|o| o == name);
            if !there {
                eprintln!("skipped: provider {name} is not offered on this machine");
            }
            there
        })
        .collect()
}

#[test]
fn the_same_schedules_hold_over_libfabric() {
    for provider in real_providers() {
        for mover in [Mover::Read, Mover::Segments] {
            let fabric = |seed: u64| {
                Fabric::Real(fabric::Choice {
                    provider: Some(provider.to_owned()),
                    loopback_only: !provider.starts_with("verbs"),
                    mover: Some(mover),
                    eager_bytes: [None, Some(1024)][(seed % 2) as usize],
                    ..fabric::Choice::default()
                })
            };
            // What verbs;ofi_rxm opens it keeps until the process ends (see its quirk), so it gets fewer jobs.
            let jobs = if provider.starts_with("verbs") { 4 } else { 8 };
            run_schedules(jobs, true, 20, fabric);
        }
    }
}

#[test]
fn bytes_of_strangers_are_counted_and_harm_nobody() {
    let net = Net::new(SimOptions::default());
    let world = World::new(
        &[1, 1],
        &StreamOptions::default(),
        3,
        Fabric::Sim(net.clone()),
        false,
        true,
    );
    let mut stranger = net.link();
    // Endpoint 1 is rank 1's; stream 1 is the user's.
    let victim = stranger.connect(&1u64.to_le_bytes()).unwrap();
    let pool = stranger.create_pool(4096, 64).unwrap();
    let mut sent = 0;
    for round in 0..200u64 {
        // Tags of control and large slots; a stranger may use up a slot, never more than are posted.
        for class in [1u64, 3] {
            let Some(mut buffer) = pool.take() else { continue };
            for word in buffer.chunks_exact_mut(8) {
                word.copy_from_slice(&world.random().to_le_bytes());
            }
            if round.is_multiple_of(2) {
                buffer[..4].copy_from_slice(b"3hop");
                buffer[4] = 1;
            }
            let bytes = (world.random() % 120) as usize;
            if stranger
                .post_send(victim, Tag(1 << 32 | class << 28), buffer, bytes, Token(0))
                .is_ok()
            {
                sent += 1;
            }
        }
        for _ in 0..50 {
            world.step();
        }
        stranger.poll(&mut Vec::new()).unwrap();
    }
    let counted = world.ranks[1].core.snapshot().bad_headers;
    assert_eq!(counted, sent, "every message of the stranger is counted");
    let traffic = world.exchange(200, mixed);
    world.fence();
    world.check(&traffic, false);
}

/// A simulated fabric with this eager limit, that refuses nothing.
fn sim_with_eager(seed: u64, eager_bytes: usize) -> Fabric {
    let limits = Limits {
        eager_bytes,
        ..SimOptions::default().limits
    };
    Fabric::Sim(Net::new(SimOptions {
        seed,
        max_delay: 5,
        refuse_one_in: 0,
        limits,
    }))
}

/// Long records of `bytes` from every source to one target, all at once.
fn long_records(world: &World, target: u32, sources: &[usize], each: u32, bytes: usize) {
    let mut sent = vec![0u32; world.ranks.len()];
    let mut steps = 0;
    while sources.iter().any(|&source| sent[source] < each) {
        for &source in sources {
            if sent[source] == each {
                continue;
            }
            let data = payload(source as u32, u64::from(sent[source]), bytes);
            match world.ranks[source]
                .core
                .out
                .borrow_mut()
                .try_send(Rank(target), sent[source], &data)
            {
                Ok(()) => sent[source] += 1,
                Err(Error::WouldBlock) => {}
                Err(error) => panic!("{error}"),
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
        let world = World::new(
            &[2; 7],
            &StreamOptions::default(),
            seed,
            sim_with_eager(seed, 16 << 10),
            false,
            true,
        );
        long_records(&world, 1, &[4, 5, 8, 9, 12, 13], 10, 200_000);
        std::mem::forget(replay);
    }
}

#[test]
fn announced_batches_wait_for_reassembly_without_a_deadlock() {
    for seed in seeds(3) {
        let replay = Replay(seed);
        let options = StreamOptions {
            reassembly_bytes: 1,
            ..StreamOptions::default()
        };
        let world = World::new(
            &[1; 6],
            &options,
            seed,
            sim_with_eager(seed, 16 << 10),
            false,
            true,
        );
        long_records(&world, 0, &[1, 2, 3, 4, 5], 6, 400_000);
        std::mem::forget(replay);
    }
}

#[test]
fn few_send_buffers_are_enough_for_long_records_in_all_directions() {
    for seed in seeds(2) {
        let replay = Replay(seed);
        let options = StreamOptions {
            send_pool_bytes: 1,
            remote_maxrpc: 8,
            ..StreamOptions::default()
        };
        let world = World::new(
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

#[test]
fn a_peer_that_owes_nothing_is_not_silent() {
    let second = 1_000_000_000;
    let world = World::new(
        &[1, 1],
        &StreamOptions::default(),
        1,
        sim_with_eager(1, 65536),
        false,
        true,
    );
    let (core, endpoint) = (&world.ranks[0].core, &world.ranks[0].endpoint);
    for seconds in 1..=200 {
        endpoint.progress(second * seconds).unwrap();
    }
    core.out
        .borrow_mut()
        .try_send(Rank(1), 0, &payload(0, 0, 8))
        .unwrap();
    core.urgent.set(true);
    for _ in 0..5 {
        endpoint.progress(second * 200 + 1).unwrap();
    }
    assert!(core.out.borrow().queues.remotes[0].owes());
    let silent = core
        .silent_peer(second * 200 + 2)
        .map_or(0, |(_, silent_ns)| silent_ns);
    assert!(
        silent < second,
        "silent for {silent} ns right after the first batch left"
    );
    let silent = core
        .silent_peer(second * 300)
        .map_or(0, |(_, silent_ns)| silent_ns);
    assert!(silent > 99 * second, "a peer that owes an answer is: {silent} ns");
}

#[test]
fn a_run_longer_than_a_frame_is_an_error_that_names_its_sender() {
    let world = World::new(
        &[1, 2],
        &StreamOptions::default(),
        1,
        sim_with_eager(1, 65536),
        false,
        true,
    );
    {
        let mut out = world.ranks[0].core.out.borrow_mut();
        let queues = &mut out.queues;
        let bytes = 20_000;
        let header = trihop_transport::protocol::wire::RunHeader {
            target: 2,
            source: 0,
            count: 1,
            flags: 0,
        };
        let remote = &mut queues.remotes[0];
        assert!(remote.push_with(
            bytes,
            0,
            crate::queue::Feeder::APPLICATION,
            queues.batches.as_ref(),
            |space| {
                space.fill(0);
                header.write(bytes, space);
            }
        ));
        remote.seal();
    }
    let refused = (1..20_000).find_map(|tick| {
        if let Fabric::Sim(net) = &world.fabric {
            net.tick();
        }
        world.ranks[0].endpoint.progress(tick * TICK_NS).unwrap();
        world.ranks[1].endpoint.progress(tick * TICK_NS).err()
    });
    let text = refused.expect("the run is refused").to_string();
    assert!(text.contains("rank 0") && text.contains("20000"), "{text}");
}
