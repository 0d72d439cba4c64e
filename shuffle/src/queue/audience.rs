//! Whom a record is for.

use trihop_transport::topology::Rank;

/// Who gets a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BroadcastTo {
    /// All ranks but its source.
    Others,
    /// All ranks.
    Everyone,
}

impl BroadcastTo {
    /// How many of `size` ranks.
    pub fn ranks(self, size: u32) -> u32 {
        match self {
            Self::Others => size - 1,
            Self::Everyone => size,
        }
    }

    /// The rank that gets none, if one does not.
    pub(crate) fn skipped(self, source: u32) -> Option<u32> {
        (self == Self::Others).then_some(source)
    }
}

/// Whom a record is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    One(Rank),
    Many(BroadcastTo),
}
