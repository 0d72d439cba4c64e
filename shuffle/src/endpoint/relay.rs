//! What the engine of a relay does beside passing on: it has no application that would ask for it.

use super::Engine;
use crate::engine::inbound::Links;
use crate::error::{Error, Result};
use crate::route::EndpointId;
use crate::terminate::round::Round;

impl Engine {
    /// A relay takes part in each round of a stream from the first mark on that it hears. True when
    /// one has ended here: what was held back may move on.
    pub(super) fn join_rounds(&mut self) -> Result<bool> {
        let mut any_ended = false;
        for &at in &self.open {
            let (state, out) = (&mut self.streams[at], &mut self.outs[at]);
            if self.joined.len() <= at {
                self.joined.resize_with(at + 1, || None);
            }
            let joined = &mut self.joined[at];
            if joined.is_none() && state.rounds.is_begun() {
                *joined = Some(Round::default());
            }
            if let Some(round) = joined
                && round.poll(state, out)
            {
                state.rounds.end();
                *joined = None;
                any_ended = true;
            }
        }
        Ok(any_ended)
    }

    /// Whether a closed stream of this number is kept.
    pub fn keeps_closed(&self, number: u16) -> bool {
        let mut closed = self.closed.iter();
        closed.any(|&at| self.streams[at].id == number)
    }

    /// Closes the stream with this number, once nothing of it is left here, and all who sent hear
    /// of it: they close theirs once they have.
    pub fn retire_at_relay(&mut self, number: u16) -> bool {
        let Some(&Some(at)) = self.places.get(usize::from(number)) else {
            return true;
        };
        let (state, out) = (&self.streams[at], &self.outs[at]);
        let in_round = state.rounds.is_begun() || self.joined.get(at).is_some_and(Option::is_some);
        let links = state.inbound.links.as_ref();
        let owes = links.is_some_and(Links::owes_acknowledgements);
        let is_over = !in_round && !owes && state.is_quiet(out);
        if is_over {
            self.outs[at].close();
            self.retire(self.id_of(at));
        }
        is_over
    }

    /// Bytes of the stream with this number that were handed to the fabric.
    pub fn wire_bytes_of(&self, number: u16) -> u64 {
        match self.places.get(usize::from(number)) {
            Some(&Some(at)) => self.streams[at].snapshot(&self.outs[at]).wire_bytes,
            _ => 0,
        }
    }

    /// Whether this relay holds nothing of the job's own stream any more, and has sent all that came
    /// through it.
    pub fn has_relayed_results(&mut self) -> bool {
        let has_left = self.has_left_results();
        let system = self.open_streams().next();
        has_left && system.is_none_or(|(state, _)| !state.inbound.has_backlog())
    }

    /// An error as others are to hear of it: they know ranks, and a relay is named by the rank that
    /// stands for it.
    pub(super) fn said_of_rank(&self, error: Error) -> Error {
        let topology = &self.topology;
        error.said_of_rank(|end| match topology.has_endpoint(EndpointId(end)) {
            true => topology.rank_of(EndpointId(end)).0,
            false => end,
        })
    }
}
