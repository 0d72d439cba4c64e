//! Three hops of a job with relays: source, a relay of its node, a relay of the target's node,
//! target. Ranks of one node, whichever processes they live in, reach each other in one hop.
//!
//! Between two nodes there are the rails that three hops of the processes would have
//! ([`ThreeHop`]), and each ends at the relay of the process that it would end at. The target's
//! process picks one, so what a rank sends to another keeps its order; where there are as many
//! rails as processes, that is the rail to the target's own relay. Relays have edges to all ranks
//! of their node, none to each other inside of it, and nothing of their own to send.
//!
//! Where [rails are turned](Rails::turn), a relay speaks for the process so many before its own on
//! its node instead, and all else is the same.

use super::three_hop::{ORIGIN, RELAY, REMOTE, ThreeHop};
use super::{EndpointId, Next, Rails, Reach, Route, Stage, other_local};
use trihop_transport::topology::{Rank, Topology};

/// The three-hop route of a job with relays.
#[derive(Debug, Clone)]
pub struct Relayed {
    topology: Topology,
    /// The links, as the processes would have them, seen from the one that is spoken for here.
    rails: ThreeHop,
    /// Which one that is.
    process: u32,
    processes: Topology,
    turn: u32,
}

impl Relayed {
    /// The route as seen by this endpoint of `topology`, which has relays.
    pub fn new(topology: Topology, rails: Rails) -> Self {
        let (turn, processes) = (rails.turn(), topology.processes());
        let process = match topology.is_relay() {
            true => spoken_for(&processes, topology.process(), turn),
            false => topology.process(),
        };
        let seen = processes.seen_by(EndpointId(process));
        Self {
            rails: ThreeHop::new(seen.expect("a process of the job"), rails),
            topology,
            process,
            processes,
            turn,
        }
    }

    /// Whether anything goes through relays.
    fn is_needed(&self) -> bool {
        self.topology.nodes() > 1
    }

    /// Relays of this node that a rank has edges with.
    fn relays(&self) -> u32 {
        match self.is_needed() {
            true => self.topology.local_relays(),
            false => 0,
        }
    }

    /// The `number`-th of them.
    fn relay(&self, number: u32) -> EndpointId {
        self.topology
            .endpoint_at(self.topology.local_size() + number)
    }

    /// The `number`-th rank of this node.
    fn rank(&self, number: u32) -> EndpointId {
        self.topology.endpoint_at(number)
    }

    /// The relay that speaks for a process.
    #[inline]
    fn relay_for(&self, process: u32) -> EndpointId {
        match self.turn {
            0 => self.topology.relay_of(process),
            turn => {
                let process = further(&self.processes, process, turn);
                self.topology.relay_of(process)
            }
        }
    }

    /// The process of a rank, as a rank of the job of processes.
    fn process(&self, rank: Rank) -> Rank {
        Rank(self.topology.process_of_rank(rank))
    }

    /// The relay of this node that speaks with the one that a rank of another node has picked.
    #[inline]
    fn speaker(&self, target: Rank) -> EndpointId {
        let process = match self.rails.next(Stage::SOURCE, self.process(target)) {
            Some(Next::To(speaker, ORIGIN)) => speaker.0,
            _ => self.process,
        };
        self.relay_for(process)
    }

    /// The processes of this node that pick the same rail from another node's as this one, which
    /// is the first of them: a broadcast that has come over it goes on to their ranks.
    fn sharers(&self, source: Rank) -> impl Iterator<Item = u32> + '_ {
        let others = 0..self.rails.copies(REMOTE, source);
        let others = others.map(move |number| self.rails.copy(REMOTE, source, number).0.0);
        std::iter::once(self.process).chain(others)
    }

    fn is_relay(&self, end: EndpointId) -> bool {
        end.0 >= self.topology.size()
    }
}

impl Route for Relayed {
    #[inline]
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let here = &self.topology;
        if here.endpoint() == target.into() {
            return Some(match at {
                Stage::SOURCE => Next::To(target.into(), ORIGIN),
                _ => Next::Deliver,
            });
        }
        let is_near = here.is_local(target);
        match at {
            Stage::SOURCE if is_near => Some(Next::To(target.into(), ORIGIN)),
            Stage::SOURCE => Some(Next::To(self.speaker(target), ORIGIN)),
            ORIGIN if here.is_relay() && !is_near => {
                match self.rails.next(ORIGIN, self.process(target))? {
                    Next::To(listener, stage) => Some(Next::To(self.relay_for(listener.0), stage)),
                    Next::Deliver => None,
                }
            }
            REMOTE if here.is_relay() && is_near => Some(Next::To(target.into(), RELAY)),
            _ => None,
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        let (here, is_relay) = (&self.topology, self.topology.is_relay());
        match (stage, reach) {
            (ORIGIN | RELAY, Reach::Node) if is_relay && self.is_needed() => here.local_size(),
            (REMOTE, Reach::Beyond) if is_relay => self.rails.edges(stage, reach),
            (ORIGIN, Reach::Node) if !is_relay => here.local_size() - 1 + self.relays(),
            (RELAY, Reach::Node) if !is_relay => self.relays(),
            _ => 0,
        }
    }

    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        let others = self.topology.local_size() - 1;
        match (stage, reach) {
            (_, Reach::Beyond) => {
                let process = self.rails.edge(stage, reach, number);
                self.relay_for(process.0)
            }
            _ if self.topology.is_relay() => self.rank(number),
            (ORIGIN, Reach::Node) => match number.checked_sub(others) {
                None => other_local(&self.topology, number),
                Some(number) => self.relay(number),
            },
            _ => self.relay(number),
        }
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        let here = &self.topology;
        let is_near = here.is_here(peer);
        match (stage, here.is_relay(), self.is_relay(peer)) {
            (ORIGIN, false, false) => is_near && peer != here.endpoint(),
            (ORIGIN | RELAY, true, false) | (ORIGIN | RELAY, false, true) => {
                is_near && self.is_needed()
            }
            (REMOTE, true, true) => {
                let process = spoken_for(&self.processes, here.process_of(peer), self.turn);
                !is_near && self.rails.has_edge(REMOTE, EndpointId(process))
            }
            _ => false,
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        let most = self.topology.most_local();
        match (stage, reach) {
            (ORIGIN, Reach::Node) if self.is_needed() => self.topology.most_places() - 1,
            (ORIGIN, Reach::Node) => most - 1,
            (RELAY, Reach::Node) if self.is_needed() => most,
            (REMOTE, Reach::Beyond) => self.rails.most_edges(stage, reach),
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, source: Rank) -> u32 {
        let here = &self.topology;
        match (at, here.is_relay()) {
            (Stage::SOURCE, false) => self.relays() + here.local_size() - 1,
            (ORIGIN, true) => self.rails.copies(ORIGIN, self.process(source)),
            (REMOTE, true) if self.passes(at, source) => {
                let sharers = self.sharers(self.process(source));
                sharers.map(|process| here.ranks_of_process(process)).sum()
            }
            _ => 0,
        }
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        let here = &self.topology;
        let source = self.process(source);
        match at {
            Stage::SOURCE => match number.checked_sub(self.relays()) {
                None => (self.relay(number), ORIGIN),
                Some(number) => (other_local(here, number), ORIGIN),
            },
            ORIGIN => {
                let (listener, stage) = self.rails.copy(ORIGIN, source, number);
                (self.relay_for(listener.0), stage)
            }
            _ => {
                let mut left = number;
                for process in self.sharers(source) {
                    match left.checked_sub(here.ranks_of_process(process)) {
                        None => {
                            let first = here.first_of_process(process);
                            return (EndpointId(first.0 + left), RELAY);
                        }
                        Some(behind) => left = behind,
                    }
                }
                panic!("copy {number} of a broadcast that goes on to fewer ranks")
            }
        }
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let here = &self.topology;
        let is_near = here.is_local(source);
        match (at, here.is_relay()) {
            (ORIGIN, is_relay) => is_near && (!is_relay || self.is_needed()),
            (REMOTE, true) => !is_near && self.rails.passes(REMOTE, self.process(source)),
            (RELAY, false) => !is_near,
            _ => false,
        }
    }
}

/// The process so many further on its node, of the `processes` of a job; the first one follows the
/// last.
fn further(processes: &Topology, process: u32, turn: u32) -> u32 {
    let node = processes.node_of(Rank(process));
    let size = processes.local_size_of(node);
    let local = processes.local_rank_of(Rank(process)) + turn % size;
    processes.rank_at(node, local % size).0
}

/// The process that the relay of this one speaks for.
fn spoken_for(processes: &Topology, process: u32, turn: u32) -> u32 {
    let node = processes.node_of(Rank(process));
    let size = processes.local_size_of(node);
    further(processes, process, size - turn % size)
}
