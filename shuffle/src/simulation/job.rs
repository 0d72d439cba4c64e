//! The job: its ranks, what they send, and what is waited for.

use std::collections::BTreeSet;

use trihop_transport::sim::Net;
use trihop_transport::topology::{NodeId, Rank, Topology};

use super::awake::Schedule;
use super::error::SimulationError;
use super::fabric::Fabric;
use super::member::Member;
use super::message::{SimulationOutbox, check_item, each};
use super::options::SimulationOptions;
use super::scheduler::Scheduler;
use crate::deliver::{Delivery, Message};
use crate::dump::Bound;
use crate::engine::BadRun;
use crate::engine::outbound::Outbound;
use crate::engine::outbox::Outbox;
use crate::engine::sink::{Handlers, Sink};
use crate::error::Error;
use crate::queue::audience::BroadcastTo;
use crate::queue::limits::LinkTerms;
use crate::stats::{DetailedStats, Stats};
use crate::terminate::flush::Fence;
use crate::terminate::round::Round;

/// What all ranks hand their deliveries to: with the rank that receives, as [`Handlers::call`].
pub(crate) type RankHandler<'h> =
    Box<dyn FnMut(Rank, Delivery<'_>, usize, &mut Outbox<'_>) -> Result<usize, BadRun> + 'h>;

/// The handler as one rank's engine knows it.
struct HandlerOf<'a, 'h> {
    rank: Rank,
    is_live: bool,
    handler: &'a mut RankHandler<'h>,
}

impl Handlers for HandlerOf<'_, '_> {
    fn is_live(&self, _: usize) -> bool {
        self.is_live
    }

    fn call(
        &mut self,
        _: usize,
        delivery: Delivery<'_>,
        done: usize,
        outbox: &mut Outbox<'_>,
    ) -> Result<usize, BadRun> {
        (self.handler)(self.rank, delivery, done, outbox)
    }
}

/// A whole job in this thread. It and its ranks are gone when it is dropped.
pub struct Simulation<'h> {
    pub(crate) fabric: Fabric,
    /// The ranks, and behind them the relays, where there are any.
    pub(crate) members: Vec<Member>,
    handler: RankHandler<'h>,
    /// Ranks whose handlers are not live yet.
    held: BTreeSet<Rank>,
    /// On which each stream was opened, the job's own first.
    pub(crate) terms: Box<[LinkTerms]>,
    /// Ranks that have left, and not joined again.
    pub(super) away: BTreeSet<Rank>,
    pub(super) topology: Topology,
    pub(super) options: SimulationOptions,
    scheduler: Scheduler,
}

impl<'h> Simulation<'h> {
    /// A job with the placement of `topology`, seen from any rank: node after node. `handler` is
    /// called for every message with the rank that receives it; items have kind 0. Where the job
    /// has relays ([`Topology::with_relays`]), these represent its nodes.
    ///
    /// Memory grows with what the job does; see the module's text.
    ///
    /// # Errors
    /// Impossible options, another placement, and memory.
    pub fn new(
        topology: &Topology,
        options: SimulationOptions,
        mut handler: impl FnMut(Rank, Message<'_>, &mut SimulationOutbox<'_, '_>) + 'h,
    ) -> Result<Self, SimulationError> {
        let item_bytes = options.item_bytes;
        let fabric = Fabric::Simulated(Net::new(options.network.clone()));
        let handler = Box::new(
            move |rank: Rank, delivery: Delivery<'_>, done: usize, outbox: &mut Outbox<'_>| {
                each(delivery, item_bytes, done, |message, first| {
                    if !first && outbox.has_overfilled() {
                        return Ok(false);
                    }
                    handler(rank, message, &mut SimulationOutbox { outbox, item_bytes });
                    Ok(true)
                })
            },
        );
        Self::over(fabric, topology, &options, |_| Sink::Handler, handler)
    }

    /// As [`Simulation::new`], over any fabric and with a sink per rank.
    pub(crate) fn over(
        mut fabric: Fabric,
        topology: &Topology,
        options: &SimulationOptions,
        sink: impl Fn(Rank) -> Sink,
        handler: RankHandler<'h>,
    ) -> Result<Self, SimulationError> {
        let in_order = (0..topology.nodes()).flat_map(|node| topology.ranks_of(NodeId(node)));
        if in_order.zip(0..).any(|(rank, number)| rank.0 != number) {
            let why = "the simulation takes node after node, each with consecutive ranks";
            return Err(Error::config("topology", why).into());
        }
        let (members, terms) = Member::all(&mut fabric, topology, options, sink)?;
        // Turns are not to follow the delays, which come from the same seed.
        let seed = options.network.seed.wrapping_add(0x5851_f42d_4c95_7f2d);
        Ok(Self {
            fabric,
            members,
            terms,
            handler,
            held: BTreeSet::new(),
            away: BTreeSet::new(),
            topology: topology.clone(),
            options: options.clone(),
            scheduler: Scheduler::new(topology.endpoints(), options.schedule, seed),
        })
    }

    /// What is sent, fenced and asked for from now on is of this stream, from 0.
    ///
    /// # Errors
    /// [`SimulationOptions::streams`] are fewer.
    pub fn use_stream(&mut self, number: u16) -> Result<(), Error> {
        if number >= self.streams() {
            return Err(no_stream(number));
        }
        for member in &mut self.members {
            member.id = member.streams[usize::from(number) + 1].0;
        }
        Ok(())
    }

    /// Streams that there are.
    pub fn streams(&self) -> u16 {
        self.options.streams.max(1)
    }

    /// As [`Simulation::try_send`], on this stream, from 0.
    ///
    /// # Errors
    /// As [`Simulation::try_send`], and [`SimulationOptions::streams`] are fewer.
    pub fn try_send_on(
        &mut self,
        stream: u16,
        source: Rank,
        target: Rank,
        kind: u32,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.check_rank(source)?;
        let member = &mut self.members[source.0 as usize];
        let Some((id, _)) = member.streams.get(usize::from(stream) + 1) else {
            return Err(no_stream(stream));
        };
        let before = std::mem::replace(&mut member.id, *id);
        let outcome = self.try_send(source, target, kind, bytes);
        self.members[source.0 as usize].id = before;
        outcome
    }

    /// Sends as the application of `source`, if there is room now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken: let ranks take turns until all sleep
    /// ([`Simulation::settle`]), then try again. A bad rank or length.
    pub fn try_send(
        &mut self,
        source: Rank,
        target: Rank,
        kind: u32,
        bytes: &[u8],
    ) -> Result<(), Error> {
        match self.options.item_bytes {
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
        let item_bytes = self.options.item_bytes;
        if item_bytes > 0 {
            check_item(item_bytes, bytes)?;
        }
        self.applies(source)?.try_broadcast(to, kind, bytes)
    }

    /// The sending side of a rank whose application does something.
    fn applies(&mut self, rank: Rank) -> Result<&mut Outbound, Error> {
        self.check_rank(rank)?;
        self.scheduler.wake(rank.0);
        let member = &mut self.members[rank.0 as usize];
        member.engine.out(member.id)
    }

    pub(super) fn check_rank(&self, rank: Rank) -> Result<(), Error> {
        let (rank, size) = (rank.0, self.topology.size());
        match rank < size {
            true => Ok(()),
            false => Err(Error::Rank { rank, size }),
        }
    }

    /// A rank has something to do.
    pub(super) fn wake_rank(&mut self, rank: u32) {
        self.scheduler.wake(rank);
    }

    /// Lets one rank take a turn; false when all sleep and nothing is under way, so that nothing
    /// will ever happen unless somebody sends.
    ///
    /// # Errors
    /// Whatever a rank's engine says, breaches of the fabric's rules, and
    /// [`SimulationError::Stuck`] when ranks only look around in vain.
    pub fn step(&mut self) -> Result<bool, SimulationError> {
        let Some(rank) = self.scheduler.next(&self.fabric) else {
            if self.scheduler.are_in_vain(&self.fabric) {
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

    /// Calls the handler of `rank` no more until [`Simulation::release_handler`], as on a rank that
    /// has not returned from opening its stream while others send already.
    pub fn hold_handler(&mut self, rank: Rank) {
        self.held.insert(rank);
    }

    /// Calls the handler of `rank` again, and first for what has waited.
    pub fn release_handler(&mut self, rank: Rank) {
        if self.held.remove(&rank) {
            self.scheduler.wake(rank.0);
        }
    }

    /// All ranks join a fence: returns when every message that was sent, and every one that
    /// handlers sent because of them, was handled. Returns the rounds of counting that it took: none
    /// where all are on one node.
    ///
    /// # Errors
    /// As [`Simulation::step`], and [`SimulationError::Stuck`].
    pub fn fence(&mut self) -> Result<u32, SimulationError> {
        let ranks = 0..self.topology.size();
        let mut fences: Vec<Fence> = ranks.map(|_| Fence::default()).collect();
        self.until("fence", |rank, member| {
            let (state, out, collectives) = member.stream_mut();
            fences[rank as usize].poll(state, out, collectives)
        })?;
        Ok(fences.iter().map(|fence| fence.rounds).max().unwrap_or(0))
    }

    /// All ranks end a round: returns when every message that was sent was handled.
    ///
    /// # Errors
    /// As [`Simulation::step`], and [`SimulationError::Stuck`].
    pub fn round_of_all(&mut self) -> Result<(), SimulationError> {
        let ranks = 0..self.topology.size();
        let mut rounds: Vec<Round> = ranks.map(|_| Round::default()).collect();
        self.until("round", |rank, member| {
            let (state, out, _) = member.stream_mut();
            let is_over = rounds[rank as usize].poll(state, out);
            if is_over {
                state.rounds.end();
            }
            is_over
        })
    }

    /// Wakes all and lets them take turns until `done` has said so for each rank; it is asked at
    /// each turn.
    pub(crate) fn until(
        &mut self,
        what: &'static str,
        mut done: impl FnMut(u32, &mut Member) -> bool,
    ) -> Result<(), SimulationError> {
        // Nobody waits for relays, which are behind the ranks.
        let mut missing = self.topology.size() as usize;
        let mut left = vec![true; missing];
        left.resize(self.members.len(), false);
        (0..self.topology.endpoints()).for_each(|end| self.scheduler.wake(end));
        while missing > 0 {
            let Some(rank) = self.scheduler.next(&self.fabric) else {
                return Err(self.stuck(what, missing, &left));
            };
            let index = rank as usize;
            loop {
                if left[index] && done(rank, &mut self.members[index]) {
                    left[index] = false;
                    missing -= 1;
                }
                if !self.turn(rank)?
                    || self.scheduler.schedule() == Schedule::Random
                    || !left[index]
                {
                    break;
                }
            }
        }
        Ok(())
    }

    pub(super) fn stuck(&self, what: &'static str, ranks: usize, left: &[bool]) -> SimulationError {
        SimulationError::Stuck {
            what,
            ranks,
            dump: self.dump(self.one_of(left)),
        }
    }

    /// One of the ranks of `left`, or one whose streams wait for something: it says more about what
    /// keeps the others.
    fn one_of(&self, left: &[bool]) -> Rank {
        let waits = |member: &Member| {
            let mut streams = member.engine.open_streams();
            streams.any(|(state, out)| !state.is_quiet(out))
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
        for (state, out) in self.members[rank.0 as usize].engine.open_streams() {
            crate::dump::write(state, out, &mut text).expect("memory takes whatever is written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Counters of a rank.
    ///
    /// # Panics
    /// When the rank does not exist.
    pub fn stats(&self, rank: Rank) -> Stats {
        let (state, out) = self.members[rank.0 as usize].stream();
        state.snapshot(out)
    }

    /// Counters of a rank, of each of its queues too.
    ///
    /// # Panics
    /// When the rank does not exist.
    pub fn detailed_stats(&self, rank: Rank) -> DetailedStats {
        let (state, out) = self.members[rank.0 as usize].stream();
        state.detailed(out)
    }

    /// Memory that the queues of a rank may take in a real job by the engine's formula, in bytes:
    /// of the stream, and of the job's own. Long records come on top where there are any.
    ///
    /// # Panics
    /// When the rank does not exist.
    pub fn bound(&self, rank: Rank) -> (usize, usize) {
        let streams = self.members[rank.0 as usize].engine.open_streams();
        let mut totals = streams.map(|(state, out)| Bound::of(state, out).queues());
        let system = totals.next().unwrap_or(0);
        (totals.next().unwrap_or(0), system)
    }

    /// The placement.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Rounds of progress that ranks have made.
    pub fn rounds(&self) -> u64 {
        self.scheduler.rounds()
    }

    /// Virtual time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.fabric.now_ns()
    }

    /// A random number of this schedule.
    #[cfg(test)]
    pub(crate) fn random(&mut self) -> u64 {
        self.scheduler.random()
    }

    /// The application of a rank did something: it has a turn.
    #[cfg(test)]
    pub(crate) fn wake(&mut self, rank: usize) {
        self.wake_rank(rank as u32);
    }

    /// A round of progress of one rank alone, at this time.
    #[cfg(test)]
    pub(crate) fn round(&mut self, rank: Rank, now_ns: u64) -> Result<bool, Error> {
        let mut handlers = HandlerOf {
            rank,
            is_live: !self.held.contains(&rank),
            handler: &mut self.handler,
        };
        self.members[rank.0 as usize]
            .engine
            .round(&mut handlers, now_ns)
    }

    /// One turn of a rank; true when it did not fall asleep.
    fn turn(&mut self, rank: u32) -> Result<bool, SimulationError> {
        let mut handlers = HandlerOf {
            rank: Rank(rank),
            is_live: !self.held.contains(&Rank(rank)),
            handler: &mut self.handler,
        };
        self.scheduler
            .take(rank, &mut self.members, &mut handlers, &self.fabric)
    }
}

fn no_stream(number: u16) -> Error {
    Error::config("stream", format!("there is no stream {number}"))
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
