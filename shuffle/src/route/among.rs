//! Any route of the table, or of a program, in a job with relays: from a rank to its own relay, from
//! there on as the route leads from process to process, and from the relay of the target's process
//! to the target. Ranks of one node, whichever processes they live in, reach each other in one hop.
//!
//! So where relays are agents, a mesh is one of nodes, and the ranks of a node share its links.
//! Three hops have a rule of their own, which spares the hop to a rank's own relay.

use std::sync::Mutex;
use std::sync::PoisonError;

use super::{EndpointId, JobRoute, Next, Reach, Route, Stage, StageSpec, other_local, stage};
use trihop_transport::topology::{Rank, Topology};

/// The stages of a job with relays whose processes have these: a first one to relays, theirs, and a
/// last one from relays.
pub(super) fn stages(inner: &'static [StageSpec]) -> &'static [StageSpec] {
    /// Each once: there are as many as routes, which stay as long as the process too.
    static ALL: Mutex<Vec<(&[StageSpec], &[StageSpec])>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, outer)) = all.iter().find(|(known, _)| *known == inner) {
        return outer;
    }
    let renamed = inner.iter().map(|spec| StageSpec {
        name: match spec.name {
            taken @ (stage::ORIGIN | stage::RELAY) => free_name(taken, inner),
            free => free,
        },
        ..*spec
    });
    let first = std::iter::once(StageSpec::shared(stage::ORIGIN));
    let last = std::iter::once(StageSpec::shared(stage::RELAY));
    let outer: &[StageSpec] = Vec::leak(first.chain(renamed).chain(last).collect());
    all.push((inner, outer));
    outer
}

/// The name with a number behind it that none of the stages has.
fn free_name(name: &str, stages: &[StageSpec]) -> &'static str {
    let numbered = (2..).map(|number| format!("{name}{number}"));
    let mut free = numbered.filter(|name| stages.iter().all(|spec| spec.name != name));
    String::leak(free.next().expect("numbers without end"))
}

/// The route between relays.
#[derive(Debug, Clone)]
pub(super) struct Among {
    topology: Topology,
    /// That of the processes.
    inner: JobRoute,
    /// Of edges from relays to their ranks.
    last: Stage,
}

impl Among {
    /// The route as seen by this endpoint of `topology`, which has relays; `inner` is the one that
    /// its processes have.
    pub fn new(topology: Topology, inner: JobRoute) -> Self {
        Self {
            last: Stage(inner.stages().len() as u8 + 2),
            inner,
            topology,
        }
    }

    /// Whether anything goes through relays.
    fn is_needed(&self) -> bool {
        self.topology.nodes() > 1
    }

    /// The process of a rank, as a rank of the job of processes.
    fn process(&self, rank: Rank) -> Rank {
        Rank(self.topology.process_of_rank(rank))
    }

    fn own_process(&self) -> Rank {
        Rank(self.topology.process())
    }

    /// The relay of this process.
    fn own_relay(&self) -> EndpointId {
        self.topology.relay_of(self.topology.process())
    }

    /// The `number`-th rank of this process.
    fn own_rank(&self, number: u32) -> EndpointId {
        let first = self.topology.first_of_process(self.topology.process());
        EndpointId(first.0 + number)
    }

    /// The stage of the processes' route that one between the first and the last is.
    fn inner_stage(&self, stage: Stage) -> Option<Stage> {
        (Stage::FIRST < stage && stage < self.last).then(|| Stage(stage.0 - 1))
    }

    /// As far as what has come to this relay over a stage has come on the processes' route.
    fn inner_place(&self, at: Stage) -> Option<Stage> {
        let is_on_way = self.topology.is_relay() && Stage::FIRST <= at && at < self.last;
        is_on_way.then(|| Stage(at.0 - 1))
    }

    fn outer(&self, (process, stage): (EndpointId, Stage)) -> (EndpointId, Stage) {
        (self.topology.relay_of(process.0), Stage(stage.0 + 1))
    }

    /// Ranks that a copy of a broadcast goes on to that has come to this relay.
    fn copies_here(&self, source: Rank) -> u32 {
        match self.topology.is_local(source) {
            true => 0,
            false => self.topology.relayed_ranks(),
        }
    }
}

impl Route for Among {
    #[inline]
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let here = &self.topology;
        if here.endpoint() == target.into() {
            return Some(match at {
                Stage::SOURCE => Next::To(target.into(), Stage::FIRST),
                _ => Next::Deliver,
            });
        }
        if at == Stage::SOURCE {
            let end = match here.is_local(target) {
                true => target.into(),
                false => self.own_relay(),
            };
            return Some(Next::To(end, Stage::FIRST));
        }
        let place = self.inner_place(at)?;
        if at == Stage::FIRST && here.is_local(target) {
            return None;
        }
        Some(match self.inner.next(place, self.process(target))? {
            Next::Deliver => Next::To(target.into(), self.last),
            Next::To(process, stage) => {
                let (relay, stage) = self.outer((process, stage));
                Next::To(relay, stage)
            }
        })
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        let (here, is_relay) = (&self.topology, self.topology.is_relay());
        let to_relays = u32::from(self.is_needed());
        match (self.inner_stage(stage), reach) {
            (Some(inner), _) if is_relay => to_relays * self.inner.edges(inner, reach),
            (None, Reach::Node) if is_relay => to_relays * here.relayed_ranks(),
            (None, Reach::Node) if stage == Stage::FIRST => here.local_size() - 1 + to_relays,
            (None, Reach::Node) => to_relays,
            _ => 0,
        }
    }

    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        let here = &self.topology;
        match self.inner_stage(stage) {
            Some(inner) => here.relay_of(self.inner.edge(inner, reach, number).0),
            None if here.is_relay() => self.own_rank(number),
            None if stage == Stage::FIRST && number < here.local_size() - 1 => {
                other_local(here, number)
            }
            None => self.own_relay(),
        }
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        let here = &self.topology;
        let (is_relay, to_relay) = (here.is_relay(), peer.0 >= here.size());
        match (self.inner_stage(stage), is_relay, to_relay) {
            (Some(inner), true, true) => {
                let process = EndpointId(here.process_of(peer));
                self.is_needed() && peer != here.endpoint() && self.inner.has_edge(inner, process)
            }
            (None, false, false) => {
                stage == Stage::FIRST && here.is_here(peer) && peer != here.endpoint()
            }
            (None, true, false) | (None, false, true) => {
                let is_end = stage == Stage::FIRST || stage == self.last;
                is_end && self.is_needed() && here.process_of(peer) == here.process()
            }
            _ => false,
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        let to_relays = u32::from(self.is_needed());
        match (self.inner_stage(stage), reach) {
            (Some(inner), _) => to_relays * self.inner.most_edges(inner, reach),
            (None, Reach::Node) if stage == Stage::FIRST => {
                self.topology.most_local() - 1 + to_relays
            }
            (None, Reach::Node) if stage == self.last => {
                to_relays * self.topology.most_relayed_ranks()
            }
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, source: Rank) -> u32 {
        if at == Stage::SOURCE {
            return self.edges(Stage::FIRST, Reach::Node);
        }
        match self.inner_place(at) {
            Some(place) if self.passes(at, source) => {
                let others = self.inner.copies(place, self.process(source));
                others + self.copies_here(source)
            }
            _ => 0,
        }
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        if at == Stage::SOURCE {
            return (self.edge(Stage::FIRST, Reach::Node, number), Stage::FIRST);
        }
        let own = self.copies_here(source);
        match number.checked_sub(own) {
            None => (self.own_rank(number), self.last),
            Some(number) => {
                let place = Stage(at.0 - 1);
                self.outer(self.inner.copy(place, self.process(source), number))
            }
        }
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let is_near = self.topology.is_local(source);
        if !self.topology.is_relay() {
            return at == if is_near { Stage::FIRST } else { self.last };
        }
        let (from, is_needed) = (self.process(source), self.is_needed());
        match self.inner_stage(at) {
            Some(inner) => {
                is_needed && from != self.own_process() && self.inner.passes(inner, from)
            }
            None => is_needed && at == Stage::FIRST && from == self.own_process(),
        }
    }
}
