//! Inside a node: how ranks hand each other doorbells and inboxes, and watch each other's
//! processes.

mod door;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::Error as TransportError;
use trihop_transport::memory::descriptors::{Accepted, DescriptorListener};
use trihop_transport::memory::segment::Segment;
use trihop_transport::park::ProcessWatch;
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::topology::{Rank, Topology};
use trihop_transport::watch::{self, Board};

use crate::error::{Error, Result};
pub(crate) use door::{Door, Introduction, NodeBook, Roster, socket_name};

/// How the ranks of a node find each other's memory.
pub(crate) struct NodeExchange {
    pub listener: DescriptorListener,
    names: Vec<String>,
    /// Descriptors that came, by stream and rank; for streams that this rank has not opened yet,
    /// too.
    arrived: HashMap<(u16, u32), Vec<OwnedFd>>,
    pub watches: Vec<(u32, ProcessWatch)>,
}

/// What the ranks of a node have of each other once they have met.
pub(crate) struct Met {
    pub bells: Vec<Arc<Bell>>,
    pub board: Board,
    /// Wakes the node's watch; none where there is one node.
    pub wake: Option<Arc<OwnedFd>>,
}

/// What comes with descriptors that pass between the ranks of a node.
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

/// How often a rank that waits for doorbells looks whether those that owe them still run.
const LOOK: Duration = Duration::from_millis(100);

impl NodeExchange {
    /// Nothing has arrived yet; `names` are the sockets of the node's ranks, by local rank.
    pub fn new(listener: DescriptorListener, names: Vec<String>) -> Self {
        Self {
            listener,
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
        self.give_to_all(topology, label, descriptors, deadline)
            .map(drop)
    }

    /// As [`NodeExchange::give`], with the process of each peer.
    fn give_to_all(
        &self,
        topology: &Topology,
        label: &Label,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Vec<(u32, u32)>> {
        let message = label.encode();
        let mut processes = Vec::new();
        for (name, rank) in self.names.iter().zip(topology.ranks_of(topology.node())) {
            if rank != topology.rank() {
                // Each rank listens before it introduces itself, which has brought us the name.
                let process =
                    DescriptorListener::send_to_listener(name, &message, descriptors, deadline);
                processes.push((
                    rank.0,
                    process.map_err(|error| unreachable_or(rank.0, error))?,
                ));
            }
        }
        Ok(processes)
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
    fn keep(&mut self, topology: &Topology, cookie: u64, parcel: Accepted) {
        let (bytes, descriptors, _) = parcel;
        let Some(label) = Label::decode(&bytes).filter(|l| l.cookie == cookie) else {
            return;
        };
        let known = label.rank < topology.size() && topology.is_local(Rank(label.rank));
        if known && label.rank != topology.rank().0 {
            self.arrived.insert((label.stream, label.rank), descriptors);
        }
    }

    /// Keeps the parcels that have arrived so far; never waits.
    pub fn keep_arrived(&mut self, topology: &Topology, cookie: u64) -> Result<()> {
        while let Some(parcel) = self.listener.try_accept()? {
            self.keep(topology, cookie, parcel);
        }
        Ok(())
    }

    /// The descriptor that each of the node's other ranks has given for `stream`.
    pub fn taken(&mut self, topology: &Topology, stream: u16) -> Result<Vec<(Rank, OwnedFd)>> {
        let mut taken = Vec::new();
        for rank in topology.ranks_of(topology.node()) {
            let Some(got) = self.arrived.remove(&(stream, rank.0)) else {
                continue;
            };
            let [descriptor] = got.try_into().map_err(|got: Vec<OwnedFd>| {
                let why = format!("{} descriptors where 1 belongs", got.len());
                Error::bad_peer(rank.0, why)
            })?;
            taken.push((rank, descriptor));
        }
        Ok(taken)
    }

    /// Exchanges doorbells, and has the first rank's board; nobody needs this rank's progress yet,
    /// so this simply waits.
    pub fn meet(
        &mut self,
        topology: &Topology,
        doorbell: &Doorbell,
        cookie: u64,
        deadline: Instant,
    ) -> Result<Met> {
        let label = Label {
            cookie,
            stream: BELLS,
            rank: topology.rank().0,
        };
        let (segment, first) = (doorbell.segment()?, topology.local_rank() == 0);
        let mut board = first.then(|| Board::create(topology)).transpose()?;
        let mut wake = (first && topology.nodes() > 1)
            .then(watch::eventfd)
            .transpose()?
            .map(Arc::new);
        let mut descriptors = vec![segment.descriptor()?, doorbell.descriptor()?];
        if let Some(board) = &board {
            descriptors.push(board.descriptor()?);
        }
        descriptors.extend(wake.as_ref().map(AsFd::as_fd));
        for (rank, process) in self.give_to_all(topology, &label, &descriptors, deadline)? {
            let watch = ProcessWatch::open(process).map_err(|_| ended(rank))?;
            self.watches.push((rank, watch));
        }
        self.wait_for_bells(topology, cookie, deadline)?;
        let mut bells = Vec::new();
        for (at, rank) in topology.ranks_of(topology.node()).enumerate() {
            let Some(theirs) = self.arrived.remove(&(BELLS, rank.0)) else {
                bells.push(doorbell.bell());
                continue;
            };
            let (count, mut theirs) = (theirs.len(), theirs.into_iter());
            let wrong =
                || Error::bad_peer(rank.0, format!("{count} descriptors that are no doorbell"));
            let (memory, eventfd) = theirs.next().zip(theirs.next()).ok_or_else(wrong)?;
            bells.push(Bell::attach(
                Segment::attach(memory, segment.len())?,
                eventfd,
            )?);
            if at == 0 {
                let memory = theirs.next().ok_or_else(wrong)?;
                let shared = Segment::attach(memory, Board::bytes(topology))?;
                board = Some(Board::over(shared, topology));
                wake = theirs.next().map(Arc::new);
                if wake.is_some() != (topology.nodes() > 1) {
                    return Err(wrong());
                }
            }
            if theirs.next().is_some() {
                return Err(wrong());
            }
        }
        // The first rank has made one, and the others have attached it.
        let board = board
            .ok_or_else(|| not_arrived(&[topology.rank_at(topology.node(), 0).0], &"no board"))?;
        Ok(Met { bells, board, wake })
    }

    fn wait_for_bells(
        &mut self,
        topology: &Topology,
        cookie: u64,
        deadline: Instant,
    ) -> Result<()> {
        loop {
            let missing = self.missing(topology, BELLS);
            if missing.is_empty() {
                return Ok(());
            }
            match self.listener.accept(deadline.min(Instant::now() + LOOK)) {
                Ok(parcel) => self.keep(topology, cookie, parcel),
                Err(error) => {
                    let late = matches!(&error, TransportError::System { source, .. }
                        if source.kind() == std::io::ErrorKind::TimedOut);
                    if !late || Instant::now() >= deadline {
                        return Err(not_arrived(&missing, &error));
                    }
                    let gone = |(rank, watch): &&(u32, ProcessWatch)| {
                        missing.contains(rank) && watch.has_ended()
                    };
                    if let Some((rank, _)) = self.watches.iter().find(gone) {
                        return Err(ended(*rank));
                    }
                }
            }
        }
    }
}

/// Nobody listens where a rank did: it is gone.
fn unreachable_or(rank: u32, error: TransportError) -> Error {
    match error {
        TransportError::System { source, .. }
            if source.kind() == std::io::ErrorKind::ConnectionRefused =>
        {
            let why = "its process takes no descriptors any more: it has ended".to_owned();
            TransportError::PeerDead { rank, how: why }.into()
        }
        error => error.into(),
    }
}

fn ended(rank: u32) -> Error {
    let why = "its process ended before the job had started".to_owned();
    TransportError::PeerDead { rank, how: why }.into()
}

pub(crate) fn not_arrived(missing: &[u32], error: &dyn std::fmt::Display) -> Error {
    let why = format!("ranks {missing:?} of this node have not handed over their memory: {error}");
    TransportError::Bootstrap {
        launcher: "node",
        why,
    }
    .into()
}
