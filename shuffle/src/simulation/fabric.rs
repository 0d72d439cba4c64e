//! What carries a job: the fabric between its nodes, and its clock.

#[cfg(test)]
use std::time::Instant;

#[cfg(test)]
use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::sim::{Net, SimLink};

use crate::error::Result;
use crate::queue::remotes::Peers;
use crate::route::EndpointId;

/// One tick of virtual time in nanoseconds.
pub(crate) const TICK_NS: u64 = 1000;

/// What carries the traffic between nodes.
pub(crate) enum Fabric {
    /// The simulated one; time is virtual.
    Simulated(Net),
    /// Links of this machine's libfabric, by rank; time is the clock's. Its ranks cannot be woken,
    /// so they never sleep for long.
    #[cfg(test)]
    Opened {
        links: std::vec::IntoIter<Box<dyn Link>>,
        addresses: Vec<Vec<u8>>,
        start: Instant,
    },
}

/// A rank's link, and what it calls the endpoints at the other ends.
pub type Attached = (Box<dyn Link>, Peers);

impl Fabric {
    /// Opens a link per rank as `choice` says.
    #[cfg(test)]
    pub fn open(choice: &fabric::Choice, ranks: u32) -> Result<Self> {
        let links = (0..ranks)
            .map(|_| fabric::open(choice))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::Opened {
            addresses: links.iter().map(|l| l.address().to_vec()).collect(),
            links: links.into_iter(),
            start: Instant::now(),
        })
    }

    /// A rank's link, connected with these endpoints, which ascend. Ranks ask in order, once each.
    pub fn attach(&mut self, ends: &[EndpointId]) -> Result<Attached> {
        let ends = ends.iter();
        match self {
            // Endpoints are numbered as the ranks are.
            Self::Simulated(net) => {
                let peers = ends.map(|&end| (end, SimLink::peer(end.0))).collect();
                Ok((Box::new(net.link()), peers))
            }
            #[cfg(test)]
            Self::Opened {
                links, addresses, ..
            } => {
                let mut link = links.next().expect("a rank asks once");
                let mut connect =
                    |&end: &EndpointId| Ok((end, link.connect(&addresses[end.0 as usize])?));
                let peers = ends.map(&mut connect).collect::<Result<Peers>>()?;
                Ok((link, peers))
            }
        }
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
