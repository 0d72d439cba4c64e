//! What carries a job: the fabric between its nodes, and its clock.

#[cfg(test)]
use std::time::Instant;

#[cfg(test)]
use trihop_transport::fabric;
use trihop_transport::link::{Link, Peer};
use trihop_transport::sim::{Net, SimLink};
use trihop_transport::topology::{NodeId, Topology};

use crate::endpoint::{LinkPeer, represented_nodes};
use crate::error::Result;

/// One tick of virtual time in nanoseconds.
pub(crate) const TICK_NS: u64 = 1000;

/// What carries the traffic between nodes.
pub(crate) enum Fabric {
    /// The simulated one; time is virtual.
    Simulated(Net),
    /// Links of this machine's libfabric, by rank; time is the clock's. Its ranks cannot be woken, so they never sleep for
    /// long.
    #[cfg(test)]
    Opened {
        links: Vec<Option<Box<dyn Link>>>,
        addresses: Vec<Vec<u8>>,
        start: Instant,
    },
}

impl Fabric {
    #[cfg(test)]
    /// Opens a link per rank as `choice` says.
    pub fn open(choice: &fabric::Choice, ranks: u32) -> Result<Self> {
        let links = (0..ranks)
            .map(|_| fabric::open(choice))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::Opened {
            addresses: links.iter().map(|l| l.address().to_vec()).collect(),
            links: links.into_iter().map(Some).collect(),
            start: Instant::now(),
        })
    }

    /// A rank's link and the peers that it has links to. Ranks ask in order, once each.
    pub fn attach(&mut self, topology: &Topology) -> Result<(Box<dyn Link>, Vec<LinkPeer>)> {
        let (mut link, addresses): (Box<dyn Link>, _) = match self {
            Self::Simulated(net) => (Box::new(net.link()), None::<&Vec<Vec<u8>>>),
            #[cfg(test)]
            Self::Opened { links, addresses, .. } => {
                let link = links[topology.rank().0 as usize].take();
                (link.expect("a rank asks once"), Some(&*addresses))
            }
        };
        let mut peers = Vec::new();
        for node in represented_nodes(topology) {
            let rank = topology.target_representative(NodeId(node)).0;
            let peer: Peer = match addresses {
                None => SimLink::peer(rank), // endpoints are numbered as the ranks are
                Some(addresses) => link.connect(&addresses[rank as usize])?,
            };
            peers.push(LinkPeer { node, rank, peer });
        }
        Ok((link, peers))
    }

    /// Time since the job began, in nanoseconds and never 0.
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Simulated(net) => net.now() * TICK_NS + 1,
            #[cfg(test)]
            Self::Opened { start, .. } => start.elapsed().as_nanos() as u64 + 1,
        }
    }

    /// The simulated network, if it is one.
    pub fn net(&self) -> Option<&Net> {
        match self {
            Self::Simulated(net) => Some(net),
            #[cfg(test)]
            Self::Opened { .. } => None,
        }
    }
}
