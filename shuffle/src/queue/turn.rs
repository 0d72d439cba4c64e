//! Whose the last room of a queue is.

/// What an endpoint forwards and what it sends itself may both wait for room of one queue. What it
/// forwards comes first in each round of progress, and would take all of it for ever. So where a
/// frame of its own was refused, the last room is left to that, and not longer than for a while:
/// whoever was refused may not come back. Once it has had it, others come first again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Whoever comes first has the room.
    #[default]
    Anybody,
    /// A frame of this endpoint's own was refused.
    Own,
    /// Room is left to it since this round.
    Left(u64),
    /// It has had it.
    Others,
}

/// For so many rounds of progress: a thread that waits for the room may have to wake for that.
const LEFT_ROUNDS: u64 = 64;

impl Turn {
    /// A frame of this endpoint's own has found no room.
    pub fn own_refused(&mut self) {
        if *self == Self::Anybody {
            *self = Self::Own;
        }
    }

    /// One was added.
    #[inline]
    pub fn own_added(&mut self) {
        if self.is_own() {
            *self = Self::Others;
        }
    }

    /// A frame that is forwarded was added.
    #[inline]
    pub fn other_added(&mut self) {
        if *self == Self::Others {
            *self = Self::Anybody;
        }
    }

    /// Whether the last room may be left to somebody.
    #[inline]
    pub fn is_own(&self) -> bool {
        matches!(self, Self::Own | Self::Left(_))
    }

    /// There is room for one frame more: whether it is left to this endpoint's own.
    #[cold]
    pub fn leaves(&mut self, round: u64) -> bool {
        *self = match *self {
            Self::Own => Self::Left(round),
            Self::Left(since) if round - since < LEFT_ROUNDS => Self::Left(since),
            Self::Left(_) | Self::Anybody | Self::Others => Self::Anybody,
        };
        self.is_own()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_refused_and_who_forwards_have_the_last_room_in_turns() {
        let mut turn = Turn::default();
        for round in [10, 20, 30] {
            assert!(!turn.is_own());
            turn.other_added();
            turn.own_refused();
            assert!(turn.leaves(round));
            turn.own_added();
            turn.own_refused();
        }
    }

    #[test]
    fn room_is_left_for_a_while_to_who_does_not_come_back() {
        let mut turn = Turn::default();
        turn.own_refused();
        let left = (10..).take_while(|&round| turn.leaves(round));
        assert_eq!(left.count() as u64, LEFT_ROUNDS);
        assert_eq!(turn, Turn::Anybody);
    }
}
