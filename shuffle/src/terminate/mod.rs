//! When it is done: flushes, fences, rounds, steps, and the collectives that carry them.

pub(crate) mod collective;
#[cfg(test)]
mod explored;
pub(crate) mod flush;
pub(crate) mod reduce;
pub(crate) mod round;
pub(crate) mod step;

use std::fmt;

use crate::engine::contribution::Contributors;

/// How the ranks find out that a step of a stream is over: all call the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Each rank has sent what it has to send, and handlers send nothing. It costs a message on each
    /// edge of the route, and nothing of the next step is delivered before it is over here.
    Round,
    /// Handlers send too, on and on: it is over when nothing is on its way any more. That is
    /// counted: on each node by what ranks show each other in shared memory, and between nodes
    /// along a tree over them.
    Fence,
    /// As a fence, once contributors have said that they are [done](crate::Stream::done): until
    /// then the program sends on.
    Completion(Contributors),
}

impl From<Contributors> for End {
    fn from(contributors: Contributors) -> Self {
        Self::Completion(contributors)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Round => "round",
            Self::Fence => "fence",
            Self::Completion(_) => "step",
        })
    }
}
