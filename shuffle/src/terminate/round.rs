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
//!
//! [`Rounds`](crate::engine::rounds::Rounds) decides all that; here it is done.

use std::collections::HashSet;

use trihop_transport::topology::{EndpointId, Topology};

use crate::engine::StreamState;
use crate::engine::inbound::Links;
use crate::engine::outbound::{Gathered, Outbound};
use crate::engine::queues::Mark;
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
                    links.is_none_or(Links::has_thanked) && out.queues.has_left(&self.links)
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
        let (stage, heard, all) = state.rounds.missing()?;
        let route = &out.queues.route;
        let name = route.stage_name(stage);
        let of_stage = state.rounds.heard_from().filter(|(of, _)| *of == stage);
        let heard_from: HashSet<EndpointId> = of_stage.map(|(_, from)| from).collect();
        let edges = (0..all).map(|number| route.edge_of_all(stage, number));
        let late = edges.filter(|end| !heard_from.contains(end));
        let late = names(&state.topology, late, all.saturating_sub(heard));
        Some(format!(
            "the end of a round waits for {late} (stage {name}), or for ranks behind them"
        ))
    }

    /// Who has ended the round of a stream whose end this rank has not begun, as text.
    pub fn ahead(state: &StreamState) -> Option<String> {
        let all = state.rounds.heard_from().count() as u32;
        let ahead = state.rounds.heard_from().map(|(_, end)| end);
        state.rounds.is_behind().then(|| {
            let ahead = names(&state.topology, ahead, all);
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

/// So many of these, by name, as are read at a glance.
fn names(topology: &Topology, ends: impl Iterator<Item = EndpointId>, all: u32) -> String {
    const MOST: u32 = 8;
    let shown = ends.take(MOST as usize);
    let shown: Vec<_> = shown.map(|end| topology.name_of(end).to_string()).collect();
    let shown = shown.join(", ");
    match all.checked_sub(MOST) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
