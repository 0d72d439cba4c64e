//! Routes: which endpoint takes a run next.

mod three_hop;

pub use three_hop::ThreeHop;

use trihop_transport::topology::{NodeId, Rank};

/// How a run reached the endpoint that asks. Places are ordered: a run only ever moves to a later one, which is what
/// keeps queues of different hops from waiting for each other in a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// From its own application.
    Source,
    /// Over an origin lane of its node.
    SourceRep,
    /// Over the fabric.
    TargetRep,
    /// Over a relay lane of its node.
    Target,
}

/// Where a run goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// It is here.
    Deliver,
    /// Over a lane, to this local rank of the node.
    Local(u32),
    /// Over the fabric, to the representative on this node.
    Fabric(NodeId),
}

/// A routing rule. The same on every rank of a job.
pub trait Route {
    /// Next hop of a run for `target` that is at this endpoint, or `None` when no route leads it through here.
    fn next_hop(&self, at: Place, target: Rank) -> Option<Hop>;
}
