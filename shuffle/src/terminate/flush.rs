//! The four flushes of DeltaFS Shuffle, and the fence. All as tickets that are asked again after
//! each round of progress.
//!
//! A fence, of a stream or of all, is counted quiescence: a
//! [census](trihop_transport::ring::census) of each node, for which nobody sends anything, and
//! between nodes a [count](crate::terminate::collective) in which one rank speaks for each.

use crate::engine::StreamState;
use crate::engine::marks::DeliveryMarks;
use crate::engine::outbound::{Gathered, Outbound};
use crate::engine::queues::Mark;
use crate::engine::reasons::at_a_glance;
use crate::error::{Error, Result};
use crate::queue::census::Stand;
use crate::queue::counters::SendReason;
use crate::route::{EndpointId, Stage, stage};
use crate::terminate::collective::{Collectives, Ticket};
use trihop_transport::ring::census::Counts;

/// Which queues a flush empties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// Those of a stage, by its name ([`crate::route::RouteName::stages`]): until the other ends
    /// have taken everything that was in them before. Of the first stage also open runs:
    /// everything that was sent before. A stage that the route does not have is empty.
    Stage(&'static str),
    /// Those of all stages between the first and `relay`, or the end. Where these are several
    /// (grids), what another end has taken may be in its queues of the next of them: so that all
    /// have passed, all ranks flush, and wait for each other, once for each of these stages.
    Between,
    /// Deliveries: until everything that had arrived before was handled.
    Delivery,
}

impl Queues {
    /// Open runs and origin queues: until the next hop has taken everything that was sent before,
    /// or it is in a queue of another stage (a representative's own sends go to remote queues).
    pub const ORIGIN: Self = Self::Stage(stage::ORIGIN);
    /// What is between nodes: with three hops batches to remote representatives, until they have
    /// taken everything that was batched before.
    pub const REMOTE: Self = Self::Between;
    /// Relay queues: until their ranks have taken everything that was relayed before.
    pub const RELAY: Self = Self::Stage(stage::RELAY);
}

/// A flush under way: what it waits for.
pub(crate) enum Flush {
    /// Of own sends, those that were there at the beginning and are not in a queue yet.
    Gathering(Gathered),
    /// The queues of these stages, to be marked at the next look.
    Marking(Vec<Stage>),
    /// Other ends that have not taken everything up to where their queues stood.
    Queues(Vec<Mark>),
    Deliveries(DeliveryMarks),
    /// Records with which the delivery thread must be through.
    Handed(u64),
}

impl Flush {
    pub fn begin(queues: Queues, state: &mut StreamState, out: &Outbound) -> Self {
        let route = &out.queues.route;
        match queues {
            Queues::Stage(name) => match route.stage_named(name) {
                Some(Stage::FIRST) => Self::Gathering(out.gathered()),
                other => Self::Marking(other.into_iter().collect()),
            },
            Queues::Between => {
                let ends = [Some(Stage::FIRST), route.stage_named(stage::RELAY)];
                let between = |stage: &Stage| !ends.contains(&Some(*stage));
                Self::Marking(route.numbers().filter(between).collect())
            }
            Queues::Delivery => Self::Deliveries(state.marks()),
        }
    }

    /// Whether the flush is complete; to be asked after each round of progress.
    pub fn poll(&mut self, state: &mut StreamState, out: &mut Outbound) -> Result<bool> {
        if let Self::Deliveries(marks) = self {
            if !state.passed(marks) {
                return Ok(false);
            }
            *self = Self::Handed(state.handover.as_ref().map_or(0, |h| h.handed()));
        }
        if let Self::Handed(count) = self {
            return Ok(state.handover.as_ref().is_none_or(|h| h.has_done(*count)));
        }
        if let Self::Gathering(gathered) = self {
            if !out.has_left(gathered) {
                return Ok(false);
            }
            *self = Self::Marking(vec![Stage::FIRST]);
        }
        if let Self::Marking(stages) = self {
            out.publish(SendReason::Flush);
            let marks = stages.iter();
            let marks = marks.flat_map(|&stage| out.queues.mark(stage, SendReason::Flush));
            *self = Self::Queues(marks.collect());
        }
        match self {
            Self::Queues(marks) => out.queues.has_passed(marks),
            _ => Ok(false),
        }
    }
}

/// A fence under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fence {
    /// The count of all nodes that this rank is in.
    round: Option<Ticket>,
    has_begun: bool,
    /// Counts of all nodes that this rank was in.
    pub rounds: u32,
}

impl Fence {
    /// Whether the fence of a stream is complete on all ranks; to be asked after each round of
    /// progress.
    pub fn poll(
        &mut self,
        state: &mut StreamState,
        out: &mut Outbound,
        collectives: &mut Collectives,
    ) -> bool {
        if !self.has_begun() {
            state.hurry();
            out.queues.has_called(collectives.begun(state.id));
            self.begin(out, state.id, collectives);
        }
        let counts = state.is_quiet(out).then(|| state.counts(out));
        if self.is_over(counts, out, collectives) {
            state.calm();
            return true;
        }
        if let Some(rank) = out.queues.elsewhere_in_census() {
            let why = format!(
                "rank {rank} calls a barrier, or ends a step, and others have called a fence"
            );
            collectives.refuse(Error::mismatch(&state.name, why));
        }
        if let Some(rank) = out.queues.odd_in_census() {
            let why = format!(
                "before a fence to which all have come, rank {rank} has called other barriers, or \
                 ended other steps, than this rank"
            );
            collectives.refuse(Error::mismatch(&state.name, why));
        }
        false
    }

    /// Whether it is under way.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Begins. Its census is that of `out`, and collectives of this channel are its own.
    pub fn begin(&mut self, out: &mut Outbound, channel: u16, collectives: &mut Collectives) {
        self.has_begun = true;
        self.round = match out.queues.has_other_nodes() {
            true => collectives.begin_count(channel),
            false => None,
        };
        out.queues.begin_census(self.round.is_some());
    }

    /// Whether what has [begun](Self::begin) is over on all ranks; `counts` are those of this rank,
    /// where nothing waits on it.
    pub fn is_over(
        &mut self,
        counts: Option<Counts>,
        out: &mut Outbound,
        collectives: &mut Collectives,
    ) -> bool {
        let queues = &mut out.queues;
        let now_ns = queues.now_ns;
        loop {
            let found = queues.look_at_census(counts);
            let Some(census) = queues.census_mut() else {
                return false;
            };
            let is_over = match self.round {
                None => census.is_over(found),
                Some(ticket) => {
                    if let Some(share) = census.owed(found) {
                        collectives.count(ticket, share);
                        self.rounds += 1;
                    }
                    let is_over = collectives.counted(ticket);
                    if is_over == Some(false) {
                        // In the same call: nothing else might wake a rank that has heard what the
                        // last count has come to.
                        census.count_again(now_ns);
                        continue;
                    }
                    is_over.is_some()
                }
            };
            if is_over {
                queues.end_census(found);
                (self.has_begun, self.round) = (false, None);
            }
            return is_over;
        }
    }

    /// Whom a fence waits for on this rank's node, as text.
    pub fn awaited(state: &StreamState, out: &Outbound) -> Option<String> {
        let of = |stand| names_of(state, out.queues.standing(stand));
        let away = of(Stand::Away).map(|who| {
            format!(
                "a fence, or the end of a step, waits for ranks that have not come to it, or \
                 whose contributors are not done: {who}"
            )
        });
        let busy = || {
            let who = of(Stand::Busy)?;
            Some(format!(
                "a fence, or the end of a step, waits for messages that are still to be sent or \
                 handled on {who}"
            ))
        };
        // A rank whose handler runs for long has looked before that came.
        let done = || {
            of(Stand::Done)?;
            let others = match state.topology.nodes() {
                1 => "",
                _ => ", or for other nodes",
            };
            Some(format!(
                "a fence, or the end of a step, waits for messages that are under way, or in a \
                 handler{others}"
            ))
        };
        away.or_else(busy).or_else(done)
    }

    /// Who has come to a fence of the stream, and this rank has not, as text.
    pub fn ahead(state: &StreamState, out: &Outbound) -> Option<String> {
        names_of(state, out.queues.ahead_in_census()).map(|who| {
            format!("this rank has not come to a fence, or the end of a step, others have: {who}")
        })
    }
}

/// The first of these, as text, if there are any.
fn names_of(state: &StreamState, ends: impl Iterator<Item = EndpointId>) -> Option<String> {
    let mut names = ends.map(|end| state.topology.name_of(end)).peekable();
    names.peek()?;
    Some(at_a_glance(names))
}
