//! A round: every rank sends, then all wait until everything has arrived. It costs one message per
//! edge of the route, where a fence between nodes is counted along a tree.
//!
//! A rank that ends a round marks its edges, stage by stage. Those of a stage are marked once
//! everything is in their queues that this round sends over them: what the rank itself has sent,
//! and what came over its edges of earlier stages, which have had their marks by then. Edges keep
//! their order, so no counts are needed. The round has ended for a rank when all edges into it have
//! had their marks. What follows a mark waits until then, so that nothing of the next round is
//! delivered in this one, however far ahead others are.
//!
//! None of this waits in a circle: a mark waits for those of earlier stages and for room that is
//! made without the end of the round, since what waits for that end stays in the ring of its edge, or
//! is set aside.
//!
//! [`Rounds`](crate::engine::rounds::Rounds) decides all that; here it is done.

use std::collections::HashSet;

use trihop_transport::topology::EndpointId;

use crate::engine::StreamState;
use crate::engine::inbound::Links;
use crate::engine::outbound::{Gathered, Outbound};
use crate::engine::queues::Mark;
use crate::engine::reasons::at_a_glance;
use crate::engine::rounds::Task;
use crate::route::Stage;

/// The end of a round, under way.
#[derive(Default)]
pub(crate) struct Round {
    /// Own sends on their way into queues.
    gathered: Option<Gathered>,
    /// Where links stood behind their marks.
    links: Vec<Mark>,
    /// The delivery thread must be through with this many records.
    handed: Option<u64>,
}

impl Round {
    /// Whether the round has ended here; to be asked after each round of progress, until it has.
    /// Who asks lets the next one begin, by [`crate::engine::rounds::Rounds::end`].
    pub fn poll(&mut self, state: &mut StreamState, out: &mut Outbound) -> bool {
        loop {
            let is_done = match state.rounds.task() {
                Task::Begin => {
                    state.hurry();
                    self.gathered = Some(out.gathered());
                    true
                }
                Task::Gather => self.gathered.as_mut().is_none_or(|own| out.has_left(own)),
                Task::Mark(stage, number) => self.mark(out, stage, number),
                Task::Listen => false,
                Task::LetGo => {
                    let links = state.inbound.links.as_mut();
                    // Who has left a call may make no progress for long, so what was posted has to
                    // be with the system, or the adapter.
                    links.is_none_or(Links::has_thanked)
                        && out.queues.has_left(&self.links)
                        && out.queues.is_with_system(&self.links)
                }
                Task::HandOver => self.is_handled(state),
                Task::Rest => {
                    state.calm();
                    return true;
                }
            };
            if !is_done {
                return false;
            }
            state.rounds.advance();
        }
    }

    /// Whose marks are missing here, as text.
    pub fn awaited(state: &StreamState, out: &Outbound) -> Option<String> {
        let (stage, _, all) = state.rounds.missing()?;
        let route = &out.queues.route;
        let of_stage = marked(state, out).filter(|(of, _)| *of == stage);
        let marked: HashSet<EndpointId> = of_stage.map(|(_, end)| end).collect();
        let ends = (0..all).map(|number| route.edge_of_all(stage, number));
        let late = ends.filter(|end| !marked.contains(end));
        let late = at_a_glance(late.map(|end| state.topology.name_of(end)));
        let stage = route.stage_name(stage);
        Some(format!(
            "the end of a round waits for {late} (stage {stage}), or for ranks behind"
        ))
    }

    /// Who has ended the round of a stream whose end this rank has not begun, as text.
    pub fn ahead(state: &StreamState, out: &Outbound) -> Option<String> {
        state.rounds.is_behind().then(|| {
            let ends = marked(state, out).map(|(_, end)| state.topology.name_of(end));
            let ahead = at_a_glance(ends);
            format!("this rank has not come to the end of a round, others have: {ahead}")
        })
    }

    /// Marks an edge; false while its queue has no room.
    fn mark(&mut self, out: &mut Outbound, stage: Stage, number: u32) -> bool {
        let end = out.queues.route.edge_of_all(stage, number);
        let Some(mark) = out.queues.push_mark(end, stage) else {
            return false;
        };
        self.links.extend(mark.is_of_link().then_some(mark));
        true
    }

    /// Whether the delivery thread is through with all that it was given by now.
    fn is_handled(&mut self, state: &StreamState) -> bool {
        let Some(handover) = &state.handover else {
            return true;
        };
        let count = *self.handed.get_or_insert_with(|| handover.handed());
        handover.has_done(count)
    }
}

/// Who has marked which edges into here.
fn marked(state: &StreamState, out: &Outbound) -> impl Iterator<Item = (Stage, EndpointId)> {
    let inputs = state.rounds.marked();
    inputs.filter_map(|input| state.writer_of_input(out, input))
}
