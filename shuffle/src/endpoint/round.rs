//! One round of progress of all streams, and when there is nothing to make one for.

use std::cell::Cell;

use trihop_transport::link::{Completion, Link};
use trihop_transport::protocol::tags;

use super::Engine;
use crate::engine::sink::Handlers;
use crate::error::{Error, Result};

thread_local! {
    /// Completions of the round of progress under way: one buffer for all engines of a thread,
    /// empty between rounds.
    static COMPLETIONS: Cell<Vec<Completion>> = const { Cell::new(Vec::new()) };
}

/// What a round has come to so far. No `Result<bool>`, of which each part of the round would copy
/// all bytes right after it has written two of them.
#[derive(Default)]
struct Outcome {
    worked: bool,
    /// The first: a part that fails takes no other with it, since what has come may be what a call
    /// waits for, and it comes no more.
    error: Option<Error>,
}

impl Outcome {
    #[inline]
    fn note<E: Into<Error>>(&mut self, part: Result<bool, E>) {
        match part {
            Ok(worked) => self.worked |= worked,
            Err(error) => self.fail(error.into()),
        }
    }

    #[cold]
    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

impl Engine {
    /// Whether a round of progress would do nothing at all. Never so with a link, which only
    /// polling moves.
    #[inline]
    pub fn is_still(&self) -> bool {
        let mut open = self.open.iter();
        self.link.is_none()
            && self.completions.is_empty()
            && !self.topology.is_relay()
            && self.collectives.is_still()
            && open.all(|&at| self.streams[at].is_still(&self.outs[at]))
    }

    /// One bounded round of progress of all streams; true when anything moved.
    ///
    /// # Errors
    /// The transport's, a bad peer's, and what a handler's send has failed with for want of memory.
    pub fn round(&mut self, handlers: &mut impl Handlers, now_ns: u64) -> Result<bool> {
        let mut outcome = Outcome::default();
        if self.has_heard {
            self.note_heard(&mut outcome);
        }
        for &at in &self.open {
            self.outs[at].begin_round(now_ns);
        }
        if self.link.is_some() {
            self.poll_link(&mut outcome);
        }
        for &at in &self.open {
            // `as_deref_mut` would fix the box's lifetime to this borrow's.
            let link = self.link.as_mut().map(|link| &mut **link as &mut dyn Link);
            outcome.note(self.streams[at].progress(&mut self.outs, at, handlers, link, now_ns));
        }
        if self.topology.is_relay() {
            outcome.note(self.join_rounds());
        } else {
            outcome.note(self.pump_collectives());
        }
        match outcome.error {
            None => Ok(outcome.worked),
            Some(error) => Err(self.said_of_rank(error)),
        }
    }

    /// Takes what has come over the link, and moves nothing on: of a sender that has found no room.
    /// What a round forwards takes all room that it hears of, before who sends here can. Whether
    /// anything has come.
    #[cold]
    pub fn hear_of_room(&mut self) -> bool {
        let mut outcome = Outcome::default();
        if self.link.is_some() {
            self.poll_link(&mut outcome);
        }
        // The next round says it: others may wait for what has come.
        self.has_heard |= outcome.worked || outcome.error.is_some();
        if self.heard.is_none() {
            self.heard = outcome.error;
        }
        outcome.worked
    }

    #[cold]
    fn note_heard(&mut self, outcome: &mut Outcome) {
        self.has_heard = false;
        (outcome.worked, outcome.error) = (true, self.heard.take());
    }

    fn poll_link(&mut self, outcome: &mut Outcome) {
        // At the exit of the process the calling thread may have lost its buffer already.
        let mut completions = COMPLETIONS.try_with(Cell::take).unwrap_or_default();
        completions.append(&mut self.completions);
        if let Some(link) = self.link.as_deref_mut() {
            outcome.note(link.poll(&mut completions).map(|moved| moved > 0));
        }
        for completion in completions.drain(..) {
            outcome.note(self.dispatch(completion).map(|()| false));
        }
        let _ = COMPLETIONS.try_with(|buffer| buffer.set(completions));
    }

    fn dispatch(&mut self, completion: Completion) -> Result<()> {
        let token = match &completion {
            Completion::Sent { token, .. }
            | Completion::Received { token, .. }
            | Completion::Read { token, .. }
            | Completion::Broken { token, .. } => Some(*token),
            Completion::Failed { token, .. } => *token,
        };
        let (place, class, number) = match token.and_then(tags::split) {
            Some((stream, class, number)) => {
                let place = self.places.get(usize::from(stream)).copied().flatten();
                (place, class, number)
            }
            // A failure of which the provider forgot the operation: any stream with links knows the
            // peer.
            None if matches!(completion, Completion::Failed { .. }) => {
                let with_links = self.open.iter().find(|&&at| self.streams[at].has_links());
                (with_links.copied(), tags::TagClass::Sent, 0)
            }
            None => return Ok(()),
        };
        match place {
            Some(at) => self.streams[at].complete(&mut self.outs[at], class, number, completion),
            None => Ok(()),
        }
    }
}
