//! What is delivered.

use trihop_transport::protocol::wire::Run;

/// What arrived for this rank.
pub(crate) enum Delivery<'a> {
    /// A whole run.
    Run(Run<'a>),
    /// A record that came in fragments.
    Record {
        source: u32,
        kind: u32,
        bytes: &'a [u8],
    },
}

impl Delivery<'_> {
    /// Rank that sent it.
    pub fn source(&self) -> u32 {
        match self {
            Self::Run(run) => run.header.source,
            Self::Record { source, .. } => *source,
        }
    }

    /// Records in it.
    pub fn records(&self) -> usize {
        match self {
            Self::Run(run) => usize::from(run.header.count),
            Self::Record { .. } => 1,
        }
    }
}
