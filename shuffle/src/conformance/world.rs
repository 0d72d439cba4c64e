//! A whole job in one thread: real engines, and a schedule of random steps that a seed replays.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::ring::Doorbell;
use trihop_transport::sim::Net;
use trihop_transport::topology::{Rank, Topology};

use crate::config::StreamOptions;
use crate::deliver::{Delivery, DeliveryQueue, Sink};
use crate::endpoint::Endpoint;
use crate::engine::Core;
use crate::error::Error;
use crate::flush::Fence;
use crate::route::{Chosen, Route, RouteName};

/// One tick of virtual time in nanoseconds.
pub const TICK_NS: u64 = 1000;
/// Ticks after which a job counts as stuck. Far above what any of these jobs needs.
const TOO_LONG: u64 = 2_000_000;

/// What a receiver saw: per source the numbers in order of arrival.
type Seen = Rc<RefCell<HashMap<u32, Vec<u64>>>>;

pub struct Rankling {
    pub endpoint: Endpoint<'static>,
    pub core: Rc<Core<'static>>,
    seen: Seen,
}

/// What carries the traffic between nodes.
pub enum Fabric {
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

pub struct World {
    pub fabric: Fabric,
    random: Cell<u64>,
    start: Instant,
    pub ranks: Vec<Rankling>,
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
    pub fn new(
        sizes: &[u32],
        options: &StreamOptions,
        seed: u64,
        fabric: Fabric,
        replies: bool,
        handler: bool,
    ) -> Self {
        Self::routed(
            RouteName::ThreeHop,
            sizes,
            options,
            seed,
            fabric,
            replies,
            handler,
        )
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
                let route = Chosen::new(route, t);
                let peers = (0..route.links())
                    .map(|number| link.connect(&addresses[route.peer(number).0 as usize]).unwrap())
                    .collect();
                let local = (0..t.local_size())
                    .map(|l| bells[t.rank_at(t.node(), l).0 as usize].bell())
                    .collect();
                Endpoint::new(t.clone(), route, 42, Some(link), peers, local)
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
    pub fn random(&self) -> u64 {
        let mut state = self.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Lets one random rank make progress and time pass.
    pub fn step(&self) {
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
    pub fn until(&self, what: &str, mut done: impl FnMut(usize, &Rankling) -> bool) {
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

    pub fn give_up(&self, why: &str) -> ! {
        for rank in &self.ranks {
            let mut text = Vec::new();
            crate::dump::write(&rank.core, &mut text).unwrap();
            eprintln!("{}", String::from_utf8_lossy(&text));
        }
        panic!("{why}");
    }

    pub fn fence(&self) {
        let mut fences: Vec<Fence> = self.ranks.iter().map(|_| Fence::default()).collect();
        self.until("fence", |i, r| {
            fences[i].poll(&r.core, &mut r.endpoint.collectives.borrow_mut())
        });
    }

    /// Lets the last control messages arrive, as ranks of a real job do before they close their links.
    pub fn settle(&self) {
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
    pub fn exchange(&self, count: u64, sizes: impl Fn(u64) -> usize) -> HashMap<(u32, u32), u64> {
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
    pub fn check(&self, sent: &HashMap<(u32, u32), u64>, replies: bool) {
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
