//! Who is out of reach, in a job that goes on without them.

use trihop_transport::topology::{NodeId, Rank, Topology};

use crate::error::Error;

/// Who is out of reach of an endpoint, for good, and why.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    who: Who,
    topology: Topology,
    error: Error,
}

/// Whom a loss is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Rank(Rank),
    /// All of a node: their agent is gone, or the way to it.
    Node(NodeId),
    /// All of other nodes: the agent of this one is gone.
    OtherNodes,
}

impl Loss {
    pub fn new(who: Who, error: Error, topology: &Topology) -> Self {
        Self {
            who,
            topology: topology.clone(),
            error,
        }
    }

    /// Whether a rank is among those.
    pub fn has(&self, rank: Rank) -> bool {
        match self.who {
            Who::Rank(lost) => rank == lost,
            Who::Node(lost) => self.topology.node_of(rank) == lost,
            Who::OtherNodes => !self.topology.is_local(rank),
        }
    }

    /// Whether two are about the same.
    pub fn is_same(&self, other: &Self) -> bool {
        self.who == other.who
    }

    /// Whether it is about more than one rank: about whoever is behind a link.
    pub fn is_of_links(&self) -> bool {
        !matches!(self.who, Who::Rank(_))
    }

    /// What calls say that want something of them.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_about_a_rank_a_node_or_all_others() {
        let topology = Topology::from_node_sizes(&[2, 2, 1], Rank(2)).unwrap();
        let lost = |who| {
            let loss = Loss::new(who, Error::WouldBlock, &topology);
            (0..5)
                .filter(|&rank| loss.has(Rank(rank)))
                .collect::<Vec<_>>()
        };
        assert_eq!(lost(Who::Rank(Rank(3))), [3]);
        assert_eq!(lost(Who::Node(NodeId(0))), [0, 1]);
        assert_eq!(lost(Who::OtherNodes), [0, 1, 4]);
    }
}
