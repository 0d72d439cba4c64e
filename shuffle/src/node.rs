//! Inside a node: how ranks hand each other doorbells and inboxes, and watch each other's processes.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use trihop_transport::Error as TransportError;
use trihop_transport::memory::handover::{Handover, Parcel};
use trihop_transport::memory::segment::Segment;
use trihop_transport::park::ProcessWatch;
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::topology::{Rank, Topology};

use crate::error::{Error, Result};

/// How the ranks of a node find each other's memory.
pub(crate) struct NodeExchange {
    pub handover: Handover,
    names: Vec<String>,
    /// Descriptors that came, by stream and rank; for streams that this rank has not opened yet, too.
    arrived: HashMap<(u16, u32), Vec<OwnedFd>>,
    pub watches: Vec<(u32, ProcessWatch)>,
}

/// Parcel that passes descriptors between the ranks of a node.
pub(crate) struct Label {
    pub cookie: u64,
    pub stream: u16,
    pub rank: u32,
}

impl Label {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.cookie.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.stream.to_le_bytes());
        bytes.extend_from_slice(&self.rank.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (cookie, rest) = bytes.split_first_chunk::<8>()?;
        let (stream, rest) = rest.split_first_chunk::<2>()?;
        let rank = u32::from_le_bytes(rest.try_into().ok()?);
        Some(Self {
            cookie: u64::from_le_bytes(*cookie),
            stream: u16::from_le_bytes(*stream),
            rank,
        })
    }
}

/// Stream number under which doorbells are exchanged.
const BELLS: u16 = u16::MAX;

impl NodeExchange {
    /// Nothing has arrived yet; `names` are the sockets of the node's ranks, by local rank.
    pub fn new(handover: Handover, names: Vec<String>) -> Self {
        Self {
            handover,
            names,
            arrived: HashMap::new(),
            watches: Vec::new(),
        }
    }

    /// Gives every local peer this rank's descriptors under `label`.
    pub fn give(
        &self,
        topology: &Topology,
        label: &Label,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<()> {
        let message = label.encode();
        for (local, name) in self.names.iter().enumerate() {
            if local as u32 != topology.local_rank() {
                Handover::send_until(name, &message, descriptors, deadline)?;
            }
        }
        Ok(())
    }

    /// Local peers whose descriptors for `stream` are not here.
    pub fn missing(&self, topology: &Topology, stream: u16) -> Vec<u32> {
        let others = topology
            .ranks_of(topology.node())
            .filter(|&rank| rank != topology.rank());
        others
            .map(|rank| rank.0)
            .filter(|&rank| !self.arrived.contains_key(&(stream, rank)))
            .collect()
    }

    /// Keeps a parcel of a local peer of this job; anything else is dropped.
    fn keep(&mut self, topology: &Topology, cookie: u64, parcel: Parcel) -> Result<()> {
        let (bytes, descriptors, pid) = parcel;
        let Some(label) = Label::decode(&bytes).filter(|l| l.cookie == cookie) else {
            return Ok(());
        };
        let known = label.rank < topology.size() && topology.is_local(Rank(label.rank));
        if known && label.rank != topology.rank().0 {
            if label.stream == BELLS {
                self.watches.push((label.rank, ProcessWatch::open(pid)?));
            }
            self.arrived.insert((label.stream, label.rank), descriptors);
        }
        Ok(())
    }

    /// Keeps the parcels that have arrived so far; never waits.
    pub fn keep_arrived(&mut self, topology: &Topology, cookie: u64) -> Result<()> {
        while let Some(parcel) = self.handover.try_accept()? {
            self.keep(topology, cookie, parcel)?;
        }
        Ok(())
    }

    /// Descriptors for `stream` of every local rank, by local rank; none for this one.
    pub fn taken<const N: usize>(
        &mut self,
        topology: &Topology,
        stream: u16,
    ) -> Result<Vec<Option<[OwnedFd; N]>>> {
        let ranks: Vec<Rank> = topology.ranks_of(topology.node()).collect();
        ranks
            .into_iter()
            .map(|rank| match self.arrived.remove(&(stream, rank.0)) {
                None => Ok(None),
                Some(got) => got.try_into().map(Some).map_err(|got: Vec<OwnedFd>| {
                    Error::bad_peer(rank.0, format!("{} descriptors where {N} belong", got.len()))
                }),
            })
            .collect()
    }

    /// Exchanges doorbells; nobody needs this rank's progress yet, so this simply waits.
    pub fn exchange_bells(
        &mut self,
        topology: &Topology,
        doorbell: &Doorbell,
        cookie: u64,
        deadline: Instant,
    ) -> Result<Vec<Arc<Bell>>> {
        let label = Label {
            cookie,
            stream: BELLS,
            rank: topology.rank().0,
        };
        let segment = doorbell.segment()?;
        self.give(
            topology,
            &label,
            &[segment.descriptor()?, doorbell.descriptor()?],
            deadline,
        )?;
        loop {
            let missing = self.missing(topology, BELLS);
            if missing.is_empty() {
                break;
            }
            let parcel = self
                .handover
                .accept(deadline)
                .map_err(|e| not_arrived(&missing, &e))?;
            self.keep(topology, cookie, parcel)?;
        }
        self.taken(topology, BELLS)?
            .into_iter()
            .map(|theirs| match theirs {
                None => Ok(doorbell.bell()),
                Some([memory, eventfd]) => {
                    Ok(Bell::attach(Segment::attach(memory, segment.len())?, eventfd)?)
                }
            })
            .collect()
    }
}

pub(crate) fn not_arrived(missing: &[u32], error: &dyn std::fmt::Display) -> Error {
    let why = format!("ranks {missing:?} of this node have not handed over their memory: {error}");
    TransportError::Bootstrap {
        launcher: "node",
        why,
    }
    .into()
}
