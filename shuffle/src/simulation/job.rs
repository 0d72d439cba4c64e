//! The job: its ranks, what they send, and their turns.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use trihop_transport::memory::segment::Segment;
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::sim::{Net, SimOptions};
use trihop_transport::topology::{NodeId, Rank, Topology};

use super::awake::{Awake, Schedule};
use super::fabric::Fabric;
use super::message::{SimulationOutbox, check_item, each};
use crate::broadcast::BroadcastTo;
use crate::config::StreamOptions;
use crate::deliver::{Message, Sink};
use crate::dump::Bound;
use crate::endpoint::{Endpoint, Prepared};
use crate::engine::Core;
use crate::engine::outbound::Outbound;
use crate::error::Error;
use crate::flush::Fence;
use crate::route::{Chosen, RouteName};
use crate::stats::{DetailedStats, Stats};

/// What a simulated job is like.
#[derive(Debug, Clone)]
pub struct SimulationOptions {
    /// The fabric between the nodes: seed, delays, refusals, limits. Default: short delays, nothing refused.
    pub network: SimOptions,
    /// Options of the stream.
    pub stream: StreamOptions,
    /// Route of the messages. Default [`RouteName::ThreeHop`].
    pub route: RouteName,
    /// Bytes of an item, at most a quarter of a lane; 0 (the default) for a stream of byte records.
    pub item_bytes: usize,
    /// Who takes the next turn. Default [`Schedule::InTurn`].
    pub schedule: Schedule,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self {
            network: SimOptions {
                max_delay: 2,
                refuse_one_in: 0,
                ..SimOptions::default()
            },
            stream: StreamOptions::default(),
            route: RouteName::ThreeHop,
            item_bytes: 0,
            schedule: Schedule::InTurn,
        }
    }
}

/// Why a simulated job did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A send was refused, or options are impossible.
    #[error(transparent)]
    Engine(#[from] Error),
    /// A rank's engine failed.
    #[error("rank {rank}: {why}")]
    Rank {
        /// The rank.
        rank: u32,
        /// What it says.
        why: Error,
    },
    /// A rank broke a rule that a real provider punishes.
    #[error("the fabric saw a breach of its rules: {0}")]
    Violation(String),
    /// All ranks sleep, nothing is under way, and something is not done: a deadlock, or a wake-up was lost. Or time passes and nothing
    /// comes of it.
    #[error("{what}: {ranks} ranks are not done and nothing moves; one of them:\n{dump}")]
    Stuck {
        /// What was waited for.
        what: &'static str,
        /// Ranks that are not done.
        ranks: usize,
        /// State of one of them.
        dump: String,
    },
}

/// One rank of the job.
pub(crate) struct Member<'h> {
    pub endpoint: Endpoint<'h>,
    pub core: Rc<Core<'h>>,
    doorbell: Doorbell,
    /// Nothing moved in its last round.
    idle: Cell<bool>,
}

/// A whole job in this thread. It and its ranks are gone when it is dropped.
pub struct Simulation<'h> {
    pub(crate) fabric: Fabric,
    pub(crate) members: Vec<Member<'h>>,
    topology: Topology,
    schedule: Schedule,
    item_bytes: usize,
    random: u64,
    awake: Awake,
    woken: Vec<u32>,
    rounds: u64,
    /// Rounds since anything moved.
    fruitless: u64,
}

/// Rounds of progress that one rank may make in a row.
const ROUNDS_PER_TURN: usize = 64;

/// Job cookie of all simulated jobs.
const COOKIE: u64 = 42;

impl<'h> Simulation<'h> {
    /// A job with the placement of `topology`, whoever it is seen from: node after node. `handler` is called for every message with the
    /// rank that receives it; items have kind 0.
    ///
    /// Memory grows with what the job does; see the module's text.
    ///
    /// # Errors
    /// Impossible options, another placement, and memory.
    pub fn new(
        topology: &Topology,
        options: SimulationOptions,
        handler: impl FnMut(Rank, Message<'_>, &mut SimulationOutbox<'_, '_>) + 'h,
    ) -> Result<Self, SimulationError> {
        let handler = Rc::new(RefCell::new(handler));
        let item_bytes = options.item_bytes;
        let fabric = Fabric::Simulated(Net::new(options.network.clone()));
        Self::over(fabric, topology, &options, |rank| {
            let handler = Rc::clone(&handler);
            Sink::Handler(Box::new(move |delivery, done, outbox| {
                let mut handler = handler.borrow_mut();
                each(delivery, item_bytes, done, |message, first| {
                    if !first && !outbox.has_reserve() {
                        return false;
                    }
                    handler(rank, message, &mut SimulationOutbox { outbox, item_bytes });
                    true
                })
            }))
        })
    }

    /// As [`Simulation::new`], over any fabric and with a sink per rank.
    pub(crate) fn over(
        mut fabric: Fabric,
        topology: &Topology,
        options: &SimulationOptions,
        sink: impl Fn(Rank) -> Sink<'h>,
    ) -> Result<Self, SimulationError> {
        let in_order = (0..topology.nodes()).flat_map(|node| topology.ranks_of(NodeId(node)));
        if in_order.zip(0..).any(|(rank, number)| rank.0 != number) {
            let why = "the simulation takes node after node, each with consecutive ranks";
            return Err(Error::config("topology", why).into());
        }
        let mut members = Vec::with_capacity(topology.size() as usize);
        let system = Endpoint::<'h>::system_options();
        for node in 0..topology.nodes() {
            let node = NodeId(node);
            let doorbells: Vec<_> = topology.ranks_of(node).map(|_| Doorbell::private()).collect();
            let bells: Arc<[Arc<Bell>]> = doorbells.iter().map(Doorbell::bell).collect();
            let mut endpoints = Vec::with_capacity(doorbells.len());
            for rank in topology.ranks_of(node) {
                let topology = topology.seen_from(rank).map_err(Error::from)?;
                let route = Chosen::new(options.route, &topology);
                let (link, peers) = fabric.attach(&route)?;
                let bells = Arc::clone(&bells);
                let mut endpoint = Endpoint::new(topology, route, COOKIE, Some(link), peers, bells);
                endpoint.create_segment = Segment::private;
                endpoints.push(endpoint);
            }
            open_stream(&endpoints, &system, 0, |endpoint| endpoint.system_sink())?;
            let cores = open_stream(&endpoints, &options.stream, options.item_bytes, |endpoint| {
                sink(endpoint.topology.rank())
            })?;
            let node = endpoints.into_iter().zip(cores).zip(doorbells);
            members.extend(node.map(|((endpoint, core), doorbell)| Member {
                endpoint,
                core,
                doorbell,
                idle: Cell::new(false),
            }));
        }
        // Turns are not to follow the delays, which come from the same seed.
        let seed = options.network.seed.wrapping_add(0x5851_f42d_4c95_7f2d);
        Ok(Self {
            fabric,
            awake: Awake::new(topology.size()),
            members,
            topology: topology.clone(),
            schedule: options.schedule,
            item_bytes: options.item_bytes,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            woken: Vec::new(),
            rounds: 0,
            fruitless: 0,
        })
    }

    /// Sends as the application of `source`, if there is room now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken: let ranks take turns until all sleep ([`Simulation::settle`]), then try
    /// again. A bad rank or length.
    pub fn try_send(&mut self, source: Rank, target: Rank, kind: u32, bytes: &[u8]) -> Result<(), Error> {
        match self.item_bytes {
            0 => self.applies(source)?.try_send(target, kind, bytes),
            item_bytes => {
                check_item(item_bytes, bytes)?;
                self.applies(source)?.try_push(target, bytes)
            }
        }
    }

    /// Broadcasts as the application of `source`, if there is room for a first copy now.
    ///
    /// # Errors
    /// As [`Simulation::try_send`].
    pub fn try_broadcast(
        &mut self,
        source: Rank,
        kind: u32,
        bytes: &[u8],
        to: BroadcastTo,
    ) -> Result<(), Error> {
        let item_bytes = self.item_bytes;
        if item_bytes > 0 {
            check_item(item_bytes, bytes)?;
        }
        self.applies(source)?.try_broadcast(to, kind, bytes)
    }

    /// The sending side of a rank whose application does something.
    fn applies(&mut self, rank: Rank) -> Result<RefMut<'_, Outbound>, Error> {
        let Some(member) = self.members.get(rank.0 as usize) else {
            return Err(Error::Rank {
                rank: rank.0,
                size: self.topology.size(),
            });
        };
        self.awake.wake(rank.0);
        self.fruitless = 0;
        Ok(member.core.out.borrow_mut())
    }

    /// Lets one rank take a turn; false when all sleep and nothing is under way, so that nothing will ever happen unless
    /// somebody sends.
    ///
    /// # Errors
    /// Whatever a rank's engine says, breaches of the fabric's rules, and [`SimulationError::Stuck`] when ranks only look
    /// around in vain.
    pub fn step(&mut self) -> Result<bool, SimulationError> {
        let Some(rank) = self.next_rank() else {
            if self.is_idle_for_good() {
                return Err(self.stuck("rest", 1, &[]));
            }
            return Ok(false);
        };
        self.turn(rank)?;
        Ok(true)
    }

    /// Lets ranks take turns until all sleep and nothing is under way.
    ///
    /// # Errors
    /// As [`Simulation::step`].
    pub fn settle(&mut self) -> Result<(), SimulationError> {
        while self.step()? {}
        Ok(())
    }

    /// All ranks join a fence: returns when every message that was sent, and every one that handlers sent because of them,
    /// was handled. Returns the rounds of counting that it took.
    ///
    /// # Errors
    /// As [`Simulation::step`], and [`SimulationError::Stuck`].
    pub fn fence(&mut self) -> Result<u32, SimulationError> {
        let mut fences: Vec<Fence> = self.members.iter().map(|_| Fence::default()).collect();
        self.until("fence", |rank, member| {
            fences[rank as usize].poll(&member.core, &mut member.endpoint.collectives.borrow_mut())
        })?;
        Ok(fences[0].rounds)
    }

    /// Wakes all ranks and lets them take turns until `done` has said so for each; it is asked at each turn.
    pub(crate) fn until(
        &mut self,
        what: &'static str,
        mut done: impl FnMut(u32, &Member<'h>) -> bool,
    ) -> Result<(), SimulationError> {
        let mut left = vec![true; self.members.len()];
        let mut missing = left.len();
        (0..self.topology.size()).for_each(|rank| self.awake.wake(rank));
        self.fruitless = 0;
        while missing > 0 {
            let Some(rank) = self.next_rank() else {
                return Err(self.stuck(what, missing, &left));
            };
            let index = rank as usize;
            loop {
                if left[index] && done(rank, &self.members[index]) {
                    left[index] = false;
                    missing -= 1;
                }
                if !self.turn(rank)? || self.schedule == Schedule::Random || !left[index] {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether nothing has moved for so long that nothing ever will: ranks that wait for time look around in vain as long
    /// as it passes. Enough for all that engines do by the clock.
    fn is_idle_for_good(&self) -> bool {
        self.fabric.net().is_some() && self.fruitless >= 1_000_000 + 1000 * self.members.len() as u64
    }

    fn stuck(&self, what: &'static str, ranks: usize, left: &[bool]) -> SimulationError {
        SimulationError::Stuck {
            what,
            ranks,
            dump: self.dump(self.one_of(left)),
        }
    }

    /// One of the ranks of `left`, or one whose streams wait for something: it says more about what keeps the others.
    fn one_of(&self, left: &[bool]) -> Rank {
        let waits = |member: &Member<'_>| {
            member
                .endpoint
                .streams
                .borrow()
                .iter()
                .any(|core| !core.is_quiet())
        };
        let first = self.members.iter().position(waits);
        let first = first.or_else(|| left.iter().position(|&l| l));
        Rank(first.unwrap_or(0) as u32)
    }

    /// State of a rank as text, all its streams.
    ///
    /// # Panics
    /// When the rank does not exist.
    pub fn dump(&self, rank: Rank) -> String {
        let mut text = Vec::new();
        for core in self.members[rank.0 as usize].endpoint.streams.borrow().iter() {
            crate::dump::write(core, &mut text).expect("memory takes whatever is written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Counters of a rank.
    ///
    /// # Panics
    /// When the rank does not exist.
    pub fn stats(&self, rank: Rank) -> Stats {
        self.members[rank.0 as usize].core.snapshot()
    }

    /// Counters of a rank, of each of its queues too.
    ///
    /// # Panics
    /// When the rank does not exist.
    pub fn detailed_stats(&self, rank: Rank) -> DetailedStats {
        self.members[rank.0 as usize].core.detailed()
    }

    /// Memory that the queues of a rank may take in a real job by the engine's formula, in bytes: of the stream, and of the
    /// job's own. Long records come on top where there are any.
    ///
    /// # Panics
    /// When the rank does not exist.
    pub fn bound(&self, rank: Rank) -> (usize, usize) {
        let streams = self.members[rank.0 as usize].endpoint.streams.borrow();
        let total = |core: &Rc<Core<'h>>| Bound::of(core).map_or(0, |bound| bound.queues());
        (total(&streams[1]), total(&streams[0]))
    }

    /// The placement.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Rounds of progress that ranks have made.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Virtual time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.fabric.now_ns()
    }

    /// A random number of this schedule (xorshift64*).
    pub(crate) fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The application of a rank did something: it has a turn.
    #[cfg(test)]
    pub(crate) fn wake(&mut self, rank: usize) {
        self.awake.wake(rank as u32);
        self.fruitless = 0;
    }

    /// Who is next; lets time pass where that helps. None when nothing will ever happen.
    fn next_rank(&mut self) -> Option<u32> {
        if self.is_idle_for_good() {
            return None;
        }
        if self.schedule == Schedule::Random {
            if self.random().is_multiple_of(4) {
                self.pass_time();
            }
            if self.random().is_multiple_of(8) && !self.awake.all_sleep() {
                let rank = (self.random() % self.members.len() as u64) as u32;
                if !self.awake.is_awake(rank) {
                    return Some(rank); // for nothing, as it may happen to any sleeper
                }
            }
        }
        loop {
            self.hear_fabric();
            let random = self.random();
            let next = match self.schedule {
                Schedule::InTurn => self.awake.next(),
                Schedule::Random => self.awake.any(random),
            };
            if next.is_some() || !self.pass_time() {
                return next;
            }
        }
    }

    /// Wakes those that the fabric has something for.
    fn hear_fabric(&mut self) {
        if let Some(net) = self.fabric.net() {
            net.take_woken(&mut self.woken);
            for rank in self.woken.drain(..) {
                // Other endpoints of the network are a test's.
                if (rank as usize) < self.members.len() {
                    self.awake.wake(rank);
                }
            }
        }
    }

    /// Lets time pass; whether anything may have come of it.
    fn pass_time(&mut self) -> bool {
        let under_way = self.fabric.net().is_some_and(|net| {
            let under_way = !net.is_empty();
            net.tick();
            under_way
        });
        self.awake.time_passed() || under_way
    }

    /// Progress of one rank, which sleeps when nothing moved twice: a job yields before it parks, so that what waits looks
    /// once more. True when it did not fall asleep.
    fn turn(&mut self, rank: u32) -> Result<bool, SimulationError> {
        let member = &self.members[rank as usize];
        member.doorbell.awake();
        let rounds = match self.schedule {
            Schedule::InTurn => ROUNDS_PER_TURN,
            Schedule::Random => 1,
        };
        let now_ns = self.fabric.now_ns();
        let mut idle = true;
        for _ in 0..rounds {
            self.rounds += 1;
            let progress = member.endpoint.progress(now_ns);
            if !progress.map_err(|why| SimulationError::Rank { rank, why })? {
                break;
            }
            idle = false;
        }
        self.fruitless = if idle { self.fruitless + 1 } else { 0 };
        let tired = member.idle.replace(idle) && idle;
        let awake = !tired || !member.sleep(&mut self.awake, rank, self.fabric.net().is_none());
        if awake {
            self.awake.wake(rank);
        }
        if let Some(net) = self.fabric.net()
            && let Some(what) = net.violation()
        {
            return Err(SimulationError::Violation(what));
        }
        for mate in self.topology.ranks_of(member.endpoint.topology.node()) {
            if !self.awake.is_awake(mate.0) && !self.members[mate.0 as usize].doorbell.is_asleep() {
                self.awake.wake(mate.0);
            }
        }
        Ok(awake)
    }
}

impl Member<'_> {
    /// Goes to sleep as a job parks, unless there is something to do after all; `blind` ranks look again soon.
    fn sleep(&self, awake: &mut Awake, rank: u32, blind: bool) -> bool {
        let streams = self.endpoint.streams.borrow();
        for core in streams.iter() {
            core.want_space(core.urgent.get() > 0);
        }
        self.doorbell.announce_sleep();
        let mut link = self.endpoint.link.borrow_mut();
        let news = link.as_deref_mut().is_some_and(|l| !l.try_wait());
        if news || streams.iter().any(|s| s.must_stay_awake()) {
            self.doorbell.awake();
            return false;
        }
        if blind || streams.iter().any(|s| s.waits_for_time()) {
            awake.nap(rank);
        }
        true
    }
}

/// Opens the next stream on all ranks of a node.
fn open_stream<'h>(
    endpoints: &[Endpoint<'h>],
    options: &StreamOptions,
    item_bytes: usize,
    sink: impl Fn(&Endpoint<'h>) -> Sink<'h>,
) -> Result<Vec<Rc<Core<'h>>>, Error> {
    let prepared = endpoints
        .iter()
        .map(|e| e.prepare("simulated", options, item_bytes))
        .collect::<Result<Vec<Prepared>, _>>()?;
    let segments: Vec<Arc<Segment>> = prepared.iter().map(|p| Arc::clone(&p.segment)).collect();
    prepared
        .into_iter()
        .zip(endpoints)
        .map(|(prepared, endpoint)| endpoint.connect(prepared, &segments, sink(endpoint)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_do_not_stand_node_after_node_are_refused() {
        let simulate = |nodes: &[u32]| {
            let nodes: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
            let topology = Topology::from_node_of(&nodes, Rank(0)).unwrap();
            Simulation::new(&topology, SimulationOptions::default(), |_, _, _| ()).map(|_| ())
        };
        simulate(&[0, 0, 1, 1]).unwrap();
        for nodes in [[0, 1, 0, 1], [0, 0, 1, 0]] {
            let refused = simulate(&nodes).expect_err("ranks out of order");
            assert!(refused.to_string().contains("node after node"), "{refused}");
        }
    }
}
