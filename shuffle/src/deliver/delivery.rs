//! What is delivered.

use trihop_transport::protocol::wire::Run;
use trihop_transport::ring::Block;

/// What arrived for this rank.
pub(crate) enum Delivery<'a> {
    /// A whole run.
    Run(Run<'a>),
    /// A record that came in fragments.
    Record {
        source: u32,
        kind: u32,
        bytes: LongBytes<'a>,
    },
}

/// The bytes of a record that came in fragments, or lies in a block.
pub(crate) enum LongBytes<'a> {
    Lent(&'a [u8]),
    /// Whoever wants the memory too takes it out.
    Given(&'a mut Vec<u8>),
    /// The same of a block.
    Shared(&'a mut Option<Block>),
}

impl<'a> LongBytes<'a> {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Given(bytes) => bytes,
            Self::Shared(block) => block.as_deref().unwrap_or_default(),
        }
    }

    pub fn into_slice(self) -> &'a [u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Given(bytes) => bytes,
            Self::Shared(block) => block.as_deref().unwrap_or_default(),
        }
    }
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
