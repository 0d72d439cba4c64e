//! Semaphores and barriers: what a poll does to one. Who waits is the channel's.

use super::super::poll::{ChannelKind, Poll};
use super::super::wire::Status;

/// A semaphore or a barrier that is not closed.
#[derive(Debug, Clone)]
pub(crate) enum Gate {
    /// Where somebody waits to acquire it, its value is 0.
    Semaphore { value: u64, most: u64 },
    Barrier {
        parties: u64,
        /// Calls that wait in it: fewer than its parties, and none where it is broken.
        arrived: u64,
        broken: bool,
    },
}

impl Gate {
    pub fn kind(&self) -> ChannelKind {
        match self {
            Self::Semaphore { .. } => ChannelKind::Semaphore,
            Self::Barrier { .. } => ChannelKind::Barrier,
        }
    }

    /// How a poll ends, and with which value; `None` where it waits.
    pub fn polled(&mut self, poll: Poll) -> Option<(Status, u64)> {
        match self {
            Self::Semaphore { value, most } => match poll {
                Poll::Acquire => {
                    *value = value.checked_sub(1)?;
                    Some((Status::Done, *value))
                }
                Poll::Release if value == most => Some((Status::Most, 0)),
                Poll::Release => {
                    *value += 1;
                    Some((Status::Done, *value))
                }
                Poll::Zero => (*value == 0).then_some((Status::Done, 0)),
                Poll::Value => Some((Status::Done, *value)),
                Poll::Available => (*value > 0).then_some((Status::Done, *value)),
                _ => None,
            },
            Self::Barrier {
                parties,
                arrived,
                broken,
            } => match poll {
                Poll::Arrive | Poll::OneMissing if *broken => Some((Status::Broken, 0)),
                Poll::Arrive | Poll::OneMissing => {
                    (*arrived + 1 == *parties).then_some((Status::Done, *arrived))
                }
                Poll::Abort | Poll::Reset => {
                    *broken = poll == Poll::Abort;
                    Some((Status::Done, *arrived))
                }
                Poll::Waiting => Some((Status::Done, *arrived)),
                Poll::Broken => Some((Status::Done, u64::from(*broken))),
                _ => None,
            },
        }
    }

    /// How those who wait in a barrier end, once this poll has: `None` where they go on waiting.
    pub fn ends_waits(poll: Poll, status: Status) -> Option<Status> {
        match (poll, status) {
            (Poll::Arrive, Status::Done) => Some(Status::Done),
            (Poll::Abort | Poll::Reset, _) => Some(Status::Broken),
            _ => None,
        }
    }

    /// Whether polls that wait are looked at anew once this one has ended, or waits: those in a
    /// barrier end together, apart from that.
    pub fn settles(&self, poll: Poll) -> bool {
        match self {
            Self::Semaphore { .. } => matches!(poll, Poll::Acquire | Poll::Release),
            Self::Barrier {
                parties, arrived, ..
            } => poll == Poll::Abort || poll == Poll::Arrive && *arrived + 1 == *parties,
        }
    }

    /// More calls, or fewer, wait in a barrier.
    pub fn count_arrived(&mut self, change: impl FnOnce(u64) -> u64) {
        if let Self::Barrier { arrived, .. } = self {
            *arrived = change(*arrived);
        }
    }

    /// What somebody had acquired comes back, of a call that nobody waits for.
    ///
    /// # Errors
    /// Nothing can have been acquired.
    pub fn give_back(&mut self) -> Result<(), &'static str> {
        match self {
            Self::Semaphore { value, most } => {
                // Others may have released more than they had.
                *value = value.saturating_add(1).min(*most);
                Ok(())
            }
            Self::Barrier { .. } => Err("a message comes back to a barrier"),
        }
    }
}

#[cfg(test)]
mod tests;
