//! What channels are, and what polls of each wait for.

use super::descriptor::Descriptor;

/// What a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ChannelKind {
    /// A bounded queue of messages.
    Messages = 0,
    /// A number that is taken from and given back to: see [`Poll::Acquire`].
    Semaphore = 1,
    /// Where so many wait for each other: see [`Poll::Arrive`].
    Barrier = 2,
}

impl ChannelKind {
    pub(crate) fn of(number: u32) -> Option<Self> {
        let all = [Self::Messages, Self::Semaphore, Self::Barrier];
        all.get(number as usize).copied()
    }

    /// What holds while something may be had from a channel of this kind without waiting.
    pub(super) fn ready(self) -> Poll {
        match self {
            Self::Messages => Poll::In,
            Self::Semaphore => Poll::Available,
            Self::Barrier => Poll::OneMissing,
        }
    }

    /// Why a channel of this kind is not used so.
    pub(crate) fn knows_no(self, of: Descriptor, what: &str) -> String {
        let (number, owner, kind) = (of.number(), of.owner().0, self.name());
        format!("channel {number} of rank {owner} is {kind}, and knows no {what}")
    }

    /// As a sentence calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Messages => "a queue of messages",
            Self::Semaphore => "a semaphore",
            Self::Barrier => "a barrier",
        }
    }
}

/// What a poll waits for, asks, or does. Each is of one [kind](ChannelKind) of channel, and
/// [`Poll::Closed`] of all: others are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Poll {
    /// Until there is a message. Gives how many there are.
    In = 0,
    /// Until there is room for a message of one byte. Gives for how many messages.
    Out = 1,
    /// Until one of both: gives 1 for a message, 2 for room, 3 for both.
    InOrOut = 2,
    /// Until there is no message, and no send waits. Gives 0.
    Empty = 3,
    /// Until there is no room for a message. Gives how many there are.
    Full = 4,
    /// Until the channel is closed. Gives how many messages are left.
    Closed = 5,
    /// Gives how many messages there are, at once.
    Size = 6,
    /// Gives how many messages it may hold, at once.
    Capacity = 7,
    /// Of a semaphore, P: until its value is above 0, and takes one from it. Gives what is left.
    /// Who waits so is served in the order in which requests came.
    Acquire = 8,
    /// Of a semaphore, V: adds one to its value, at once. Gives what that is before anybody who
    /// waits takes from it. [`Error::Misuse`](crate::Error::Misuse) where it is the most that the
    /// semaphore may be.
    Release = 9,
    /// Of a semaphore, Z: until its value is 0. Gives 0.
    Zero = 10,
    /// Of a semaphore: gives its value, at once.
    Value = 11,
    /// Of a barrier: until as many calls have come as it has parties, this one among them. Gives
    /// how many came before this one, so that exactly one is given 0. The barrier may be used again
    /// at once. A call whose time is over has not come.
    Arrive = 12,
    /// Of a barrier: breaks it, at once. Who waits in it, and who comes from now on, gets
    /// [`Error::BarrierBroken`](crate::Error::BarrierBroken). Gives how many waited.
    Abort = 13,
    /// Of a barrier: makes it whole and empty, at once. Who waits in it gets
    /// [`Error::BarrierBroken`](crate::Error::BarrierBroken). Gives how many waited.
    Reset = 14,
    /// Of a barrier: gives how many wait in it, at once.
    Waiting = 15,
    /// Of a barrier: gives 1 where it is broken and 0 where not, at once.
    Broken = 16,
    /// Of a semaphore: until its value is above 0, of which it takes nothing. Gives the value.
    Available = 17,
    /// Of a barrier: until all of its parties but one wait in it. Gives how many wait.
    /// [`Error::BarrierBroken`](crate::Error::BarrierBroken) where it is broken.
    OneMissing = 18,
    /// Gives how many gets, peeks and pops wait, at once. A get without an end on the owner's rank
    /// looks for a while before it counts.
    Receivers = 19,
}

impl Poll {
    pub(crate) fn of(number: u32) -> Option<Self> {
        let all = [
            Self::In,
            Self::Out,
            Self::InOrOut,
            Self::Empty,
            Self::Full,
            Self::Closed,
            Self::Size,
            Self::Capacity,
            Self::Acquire,
            Self::Release,
            Self::Zero,
            Self::Value,
            Self::Arrive,
            Self::Abort,
            Self::Reset,
            Self::Waiting,
            Self::Broken,
            Self::Available,
            Self::OneMissing,
            Self::Receivers,
        ];
        all.get(number as usize).copied()
    }

    /// Whether it may have to wait; any other is answered at once.
    #[doc(hidden)]
    pub fn may_wait(self) -> bool {
        match self {
            Self::In | Self::Out | Self::InOrOut | Self::Empty | Self::Full | Self::Closed => true,
            Self::Acquire | Self::Zero | Self::Arrive => true,
            Self::Available | Self::OneMissing => true,
            Self::Size | Self::Capacity | Self::Receivers | Self::Release | Self::Value => false,
            Self::Abort | Self::Reset | Self::Waiting | Self::Broken => false,
        }
    }

    /// Whether it takes what the event of a port tells of: see [`ChannelKind::ready`].
    pub(super) fn takes(self) -> bool {
        matches!(self, Self::Acquire | Self::Arrive)
    }

    /// Whether channels of this kind know it.
    pub(crate) fn is_of(self, kind: ChannelKind) -> bool {
        let own = match self {
            Self::Closed => return true,
            Self::Acquire | Self::Release | Self::Zero | Self::Value | Self::Available => {
                ChannelKind::Semaphore
            }
            Self::Arrive
            | Self::Abort
            | Self::Reset
            | Self::Waiting
            | Self::Broken
            | Self::OneMissing => ChannelKind::Barrier,
            Self::In
            | Self::Out
            | Self::InOrOut
            | Self::Empty
            | Self::Full
            | Self::Size
            | Self::Capacity
            | Self::Receivers => ChannelKind::Messages,
        };
        own == kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_what_they_stand_for() {
        for number in 0..40 {
            let (poll, kind) = (Poll::of(number), ChannelKind::of(number));
            assert_eq!((poll.is_some(), kind.is_some()), (number < 20, number < 3));
            assert!(poll.is_none_or(|poll| poll as u32 == number));
            assert!(kind.is_none_or(|kind| kind as u32 == number));
            let kinds = (0..3).filter_map(ChannelKind::of);
            let knowing = |poll: Poll| kinds.filter(|&kind| poll.is_of(kind)).count();
            assert!(poll.is_none_or(|poll| knowing(poll) == 1 || poll == Poll::Closed));
        }
    }
}
