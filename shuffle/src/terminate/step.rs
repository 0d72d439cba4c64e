//! Completion detection: a step that ends by what its contributors say.
//!
//! A rank whose contributors are its own is done when all of them are. Where only the number of
//! all is known, they are counted along a tree. Either way a fence comes behind: what was sent,
//! and what handlers send because of it, is handled before the step is over.

use crate::engine::StreamState;
use crate::engine::contribution::{Contribution, Contributors};
use crate::engine::outbound::Outbound;
use crate::error::Result;
use crate::terminate::collective::{Collectives, Ticket};
use crate::terminate::flush::Fence;

/// A step under way.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Contributors of all ranks are counted.
    Counting(Ticket),
    /// Those of this rank are waited for, and that everything is handled.
    Ending(Fence),
}

impl Step {
    /// A step of a stream.
    ///
    /// # Errors
    /// [`Error::Misuse`](crate::Error::Misuse) where more are done already than there are.
    pub fn begin(
        contributors: Contributors,
        state: &StreamState,
        out: &mut Outbound,
        collectives: &mut Collectives,
    ) -> Result<Self> {
        out.begin_step(contributors)?;
        let step = Self::over(contributors, state.id, collectives);
        out.queues.has_called(collectives.begun(state.id));
        Ok(step)
    }

    /// As [`Step::begin`], by collectives of this channel.
    pub fn over(contributors: Contributors, channel: u16, collectives: &mut Collectives) -> Self {
        match contributors {
            Contributors::Local(_) => Self::Ending(Fence::default()),
            Contributors::All(all) => Self::Counting(collectives.begin_tally(channel, all)),
        }
    }

    /// Whether the step is over on all ranks; to be asked after each round of progress.
    pub fn poll(
        &mut self,
        state: &mut StreamState,
        out: &mut Outbound,
        collectives: &mut Collectives,
    ) -> bool {
        let before = out.contribution();
        let mut contribution = before;
        let fence = self.fence(&mut contribution, collectives);
        if contribution != before {
            out.set_contribution(contribution);
        }
        fence.is_some_and(|fence| fence.poll(state, out, collectives))
    }

    /// Passes on what contributors have said; the fence, once they are done.
    pub fn fence(
        &mut self,
        contribution: &mut Contribution,
        collectives: &mut Collectives,
    ) -> Option<&mut Fence> {
        if let Self::Counting(ticket) = self {
            if let Contribution::All { done: done @ 1.. } = contribution {
                collectives.add(*ticket, std::mem::take(done));
            }
            collectives.result(*ticket)?;
            *contribution = Contribution::Complete;
            *self = Self::Ending(Fence::default());
        }
        match self {
            Self::Ending(fence) if contribution.is_complete() => Some(fence),
            _ => None,
        }
    }

    /// What the step waits for on this rank, as text.
    pub fn awaited(out: &Outbound) -> Option<String> {
        match out.contribution() {
            Contribution::Local { left: 0 } | Contribution::Complete | Contribution::None => None,
            Contribution::Local { left } => {
                Some(format!("{left} contributors of a step are not done here"))
            }
            Contribution::All { .. } => Some(
                "contributors of a step are not done, or not as many as all ranks expect"
                    .to_owned(),
            ),
        }
    }
}
