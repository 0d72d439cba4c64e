//! A round: every rank sends, then all wait until everything has arrived. It costs one message per
//! edge of the route, where a fence costs waves of counting.
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

use crate::engine::StreamState;
use crate::engine::inbound::Links;
use crate::engine::outbound::{Gathered, Outbound};
use crate::engine::queues::Mark;
use crate::route::Stage;

/// A round under way.
#[derive(Default)]
pub(crate) struct Round {
    step: Step,
    /// Where links stood behind their marks.
    links: Vec<Mark>,
}

#[derive(Default)]
enum Step {
    /// Others may be in it.
    #[default]
    Begun,
    /// Own sends are on their way into queues.
    Gathering(Gathered),
    /// Edges of this stage are being marked: so many have been.
    Marking(Stage, u32),
    /// All edges from here are marked.
    Marked,
    /// All edges into here are; the delivery thread must be through with this many records.
    Handed(u64),
}

impl Round {
    /// Whether the round has ended here; to be asked after each round of progress, until it has.
    /// Who asks lets the next one begin, by [`crate::engine::rounds::Rounds::end`].
    pub fn poll(&mut self, state: &mut StreamState, out: &mut Outbound) -> bool {
        let step = &mut self.step;
        if let Step::Begun = step {
            state.hurry();
            *step = Step::Gathering(out.gathered());
        }
        if let Step::Gathering(gathered) = step {
            if !out.has_left(gathered) {
                return false;
            }
            *step = Step::Marking(Stage::FIRST, 0);
        }
        while let Step::Marking(stage, marked) = step {
            let is_earlier = |&other: &Stage| other < *stage;
            let mut before = out.queues.route.numbers().filter(is_earlier);
            let is_heard = before.all(|stage| has_heard_all(state, out, stage));
            if !is_heard || !mark(out, *stage, marked, &mut self.links) {
                return false;
            }
            let next = out.queues.route.numbers().find(|next| next > stage);
            *step = next.map_or(Step::Marked, |next| Step::Marking(next, 0));
        }
        if let Step::Marked = step {
            let mut stages = out.queues.route.numbers();
            let is_heard = stages.all(|stage| has_heard_all(state, out, stage));
            // The caller may not come back for long: what others wait for leaves before.
            let links = state.inbound.links.as_mut();
            let has_thanked = links.is_none_or(Links::has_thanked);
            if !is_heard || !has_thanked || !out.queues.has_left(&self.links) {
                return false;
            }
            *step = Step::Handed(state.handover.as_ref().map_or(0, |h| h.handed()));
        }
        let Step::Handed(count) = *step else {
            return false;
        };
        if !state.handover.as_ref().is_none_or(|h| h.has_done(count)) {
            return false;
        }
        state.calm();
        true
    }

    /// Whose marks are missing here, as text.
    pub fn awaited(state: &StreamState, out: &Outbound) -> Option<String> {
        let route = &out.queues.route;
        let is_missing = |&stage: &Stage| !has_heard_all(state, out, stage);
        let missing = route.numbers().find(is_missing)?;
        let (heard, all) = (state.rounds.heard(missing), route.all_edges(missing));
        let name = route.stage_name(missing);
        Some(format!(
            "the end of a round: {heard} of {all} edges of stage {name} into this rank have ended it"
        ))
    }
}

/// Whether all edges of a stage into here have had their marks.
fn has_heard_all(state: &StreamState, out: &Outbound, stage: Stage) -> bool {
    state.rounds.heard(stage) == out.queues.route.all_edges(stage)
}

/// Marks the edges of a stage from number `marked` on; true once all are.
fn mark(out: &mut Outbound, stage: Stage, marked: &mut u32, links: &mut Vec<Mark>) -> bool {
    while *marked < out.queues.route.all_edges(stage) {
        let end = out.queues.route.edge_of_all(stage, *marked);
        let Some(mark) = out.queues.push_mark(end, stage) else {
            return false;
        };
        links.extend(mark.is_of_link().then_some(mark));
        *marked += 1;
    }
    true
}
