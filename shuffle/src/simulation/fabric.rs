//! What carries a job: the fabric between its nodes, and its clock.

#[cfg(test)]
use std::time::Instant;

#[cfg(test)]
use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::sim::Net;
use trihop_transport::topology::Rank;

#[cfg(test)]
use crate::error::Result;

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
        links: Vec<Box<dyn Link>>,
        start: Instant,
    },
}

impl Fabric {
    /// Opens a link per rank as `choice` says.
    #[cfg(test)]
    pub fn open(choice: &fabric::Choice, ranks: u32) -> Result<Self> {
        let links = (0..ranks).map(|_| fabric::open(choice));
        Ok(Self::Opened {
            links: links.collect::<Result<_, _>>()?,
            start: Instant::now(),
        })
    }

    /// The links of all ranks, in their order; asked once.
    pub fn links(&mut self, ranks: u32) -> Vec<Box<dyn Link>> {
        match self {
            Self::Simulated(net) => {
                let links = (0..ranks).map(|_| Box::new(net.link()) as Box<dyn Link>);
                links.collect()
            }
            #[cfg(test)]
            Self::Opened { links, .. } => {
                assert_eq!(links.len(), ranks as usize, "one each");
                std::mem::take(links)
            }
        }
    }

    /// A link in the place of that of a rank, which was dropped; `None` where that is another
    /// machine's.
    pub fn link_again(&mut self, rank: Rank) -> Option<Box<dyn Link>> {
        match self {
            Self::Simulated(net) => Some(Box::new(net.link_again(rank.0))),
            #[cfg(test)]
            Self::Opened { .. } => None,
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
