//! How the ranks of a node meet: each introduces itself to the first, which hands all of them the
//! node's book.
//!
//! The book ([`Book`]) has the roster under number 0, and under 1 + n what was fetched of node n.
//! Who else joins a node has only to introduce itself at its door.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::error::Error as TransportError;
use trihop_transport::memory::book::Book;
use trihop_transport::memory::descriptors::{Accepted, DescriptorListener};
use trihop_transport::park::ProcessWatch;
use trihop_transport::secret::Secret;
use trihop_transport::topology::{NodeId, Rank, Topology};

use super::{LOOK, ended, not_arrived, unreachable_or, watch};
use crate::error::{Error, Result};

/// How often the first rank, while it waits for others, asks the launcher whether all can still
/// come.
const ASK: Duration = Duration::from_secs(1);

/// Number of the roster in a node's book.
const ROSTER: usize = 0;

/// Where the first rank of a node takes introductions, and the word by which those of its job know
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Door {
    /// Of the first rank's socket.
    pub nonce: u64,
    pub password: u64,
}

/// How many ranks a process hosts as threads; 0 where it is one itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hosts(pub u32);

impl Hosts {
    /// Its ranks are processes, however many.
    const AGENT: Self = Self(u32::MAX);

    /// Of the processes of a job.
    pub fn of(topology: &Topology) -> Self {
        match (topology.has_relays(), topology.has_agents()) {
            (_, true) => Self::AGENT,
            (true, false) => Self(topology.relayed_ranks()),
            (false, false) => Self(0),
        }
    }

    /// # Errors
    /// Another process, which the launcher counts by this number, hosts another number of ranks.
    pub fn check_same(self, process: Rank, theirs: Self) -> Result<()> {
        if self == theirs {
            return Ok(());
        }
        let why = format!(
            "{self} here, {theirs} in process {process} (as the launcher counts): give all \
             processes of the job the same number"
        );
        Err(Error::Environment {
            key: "ranks of a process".to_owned(),
            why,
        })
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("1 without a relay"),
            _ if *self == Self::AGENT => f.write_str("those of an agent"),
            ranks => write!(f, "{ranks} with a relay"),
        }
    }
}

/// What a rank tells the first one of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Of its own socket.
    pub nonce: u64,
    /// The control group whose memory limit holds for it.
    pub group: u64,
    pub hosts: Hosts,
    /// Its fabric address, empty where it has none.
    pub address: Vec<u8>,
}

/// Name of the socket on which a rank takes descriptors.
pub(crate) fn socket_name(nonce: u64, rank: Rank) -> String {
    format!("trihop-{nonce:016x}-{}", rank.0)
}

impl Introduction {
    fn encode(&self, password: u64, rank: Rank) -> Vec<u8> {
        let mut bytes = password.to_le_bytes().to_vec();
        bytes.extend_from_slice(&rank.0.to_le_bytes());
        bytes.extend_from_slice(&self.nonce.to_le_bytes());
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&self.hosts.0.to_le_bytes());
        bytes.extend_from_slice(&self.address);
        bytes
    }

    fn decode(bytes: &[u8], password: u64) -> Option<(Rank, Self)> {
        let rest = bytes.strip_prefix(&password.to_le_bytes())?;
        let (rank, rest) = rest.split_first_chunk::<4>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let (group, rest) = rest.split_first_chunk::<8>()?;
        let (hosts, address) = rest.split_first_chunk::<4>()?;
        let introduction = Self {
            nonce: u64::from_le_bytes(*nonce),
            group: u64::from_le_bytes(*group),
            hosts: Hosts(u32::from_le_bytes(*hosts)),
            address: address.to_vec(),
        };
        Some((Rank(u32::from_le_bytes(*rank)), introduction))
    }
}

impl Door {
    /// Introduces a rank to the first of its node, which listens.
    pub fn introduce(
        &self,
        topology: &Topology,
        me: Rank,
        introduction: &Introduction,
        deadline: Instant,
    ) -> Result<()> {
        let first = topology.rank_at(topology.node(), 0);
        let message = introduction.encode(self.password, me);
        let name = socket_name(self.nonce, first);
        DescriptorListener::send_to_listener(&name, &message, &[], deadline)
            .map(drop)
            .map_err(|error| unreachable_or(topology.named(first).0, error))
    }

    /// Waits, as the first rank, until all others of the node have introduced themselves, unless
    /// the launcher misses a rank of the job; by local rank, `mine` first.
    pub fn receive_all(
        &self,
        listener: &DescriptorListener,
        topology: &Topology,
        mine: Introduction,
        launcher: &mut dyn Bootstrap,
        deadline: Instant,
    ) -> Result<Vec<Introduction>> {
        let mut known: Vec<Option<Introduction>> = vec![None; topology.local_size() as usize];
        known[0] = Some(mine);
        let mut watches: Vec<(u32, ProcessWatch)> = Vec::new();
        let mut asks_at = Instant::now() + ASK;
        while known.contains(&None) {
            match accept_soon(listener, deadline)? {
                Some((bytes, _, process)) => {
                    let said = Introduction::decode(&bytes, self.password);
                    let Some((rank, introduction)) =
                        said.filter(|(rank, _)| is_other(topology, *rank))
                    else {
                        continue;
                    };
                    let named = topology.named(rank).0;
                    let watch = watch(process, named)?;
                    watches.push((named, watch));
                    known[topology.local_rank_of(rank) as usize].get_or_insert(introduction);
                }
                None if Instant::now() >= deadline => {
                    let absent = (0..).zip(&known).filter(|(_, known)| known.is_none());
                    let absent = absent.map(|(local, _)| topology.rank_at(topology.node(), local));
                    let absent = absent.map(|rank| topology.named(rank).0);
                    return Err(not_arrived(&absent.collect::<Vec<_>>(), &"no word of them"));
                }
                None => {
                    let gone = watches.iter().find(|(_, watch)| watch.has_ended());
                    // Who is gone may have ended because of another, which the launcher knows.
                    if gone.is_some() || Instant::now() >= asks_at {
                        asks_at = Instant::now() + ASK;
                        if let Some(missed) = missed(launcher)? {
                            return Err(missed);
                        }
                    }
                    if let Some((rank, _)) = gone {
                        return Err(ended(*rank));
                    }
                }
            }
        }
        Ok(known.into_iter().flatten().collect())
    }

    /// Hands the book to a rank of the node, as its first one; users call it `named`.
    pub fn hand_over(
        &self,
        book: &NodeBook,
        to: &str,
        named: Rank,
        deadline: Instant,
    ) -> Result<()> {
        let room = book.room_bytes as u64;
        let message = [self.password.to_le_bytes(), room.to_le_bytes()].concat();
        DescriptorListener::send_to_listener(to, &message, &[book.book.descriptor()?], deadline)
            .map(drop)
            .map_err(|error| unreachable_or(named.0, error))
    }

    /// The book that the first rank of the node has handed over.
    pub fn receive_book(
        &self,
        listener: &DescriptorListener,
        topology: &Topology,
        deadline: Instant,
    ) -> Result<NodeBook> {
        let first = topology.named(topology.rank_at(topology.node(), 0)).0;
        loop {
            let Some((bytes, descriptors, _)) = accept_soon(listener, deadline)? else {
                if Instant::now() >= deadline {
                    return Err(not_arrived(&[first], &"its book has not come"));
                }
                continue;
            };
            let Some(room) = bytes.strip_prefix(&self.password.to_le_bytes()) else {
                continue;
            };
            let wrong = || Error::bad_peer(first, "no book of its node");
            let room = u64::from_le_bytes(room.try_into().map_err(|_| wrong())?);
            let [descriptor] = descriptors.try_into().map_err(|_| wrong())?;
            return NodeBook::attach(descriptor, topology, room);
        }
    }
}

/// What the launcher says of a rank that cannot come any more, where it knows of one.
///
/// # Errors
/// It does not answer.
pub(crate) fn missed(launcher: &mut dyn Bootstrap) -> Result<Option<Error>> {
    let why = launcher.why_missed()?;
    let launcher = launcher.launcher().name();
    Ok(why.map(|why| TransportError::Bootstrap { launcher, why }.into()))
}

fn is_other(topology: &Topology, rank: Rank) -> bool {
    rank.0 < topology.size() && topology.is_local(rank) && rank != topology.rank()
}

/// A message that comes within a moment.
fn accept_soon(listener: &DescriptorListener, deadline: Instant) -> Result<Option<Accepted>> {
    let soon = deadline.min(Instant::now() + LOOK);
    match listener.accept(soon) {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) if error.is_timeout() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What the first rank tells of a node's ranks.
pub(crate) struct Roster {
    pub secret: Secret,
    /// By local rank.
    pub members: Vec<Member>,
}

/// What it tells of one of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    /// Of its socket.
    pub nonce: u64,
    pub group: u64,
    pub hosts: Hosts,
}

/// Bytes of a [`Member`] in a roster.
const MEMBER_BYTES: usize = 20;

impl Member {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.nonce.to_le_bytes());
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&self.hosts.0.to_le_bytes());
    }

    fn decode(bytes: &[u8; MEMBER_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Self {
            nonce: word(0),
            group: word(8),
            hosts: Hosts(u32::from_le_bytes(bytes[16..].try_into().expect("4 bytes"))),
        }
    }
}

impl Roster {
    /// # Errors
    /// Processes host different numbers of ranks: see [`Hosts::check_same`].
    pub fn check_hosts(&self, topology: &Topology, mine: Hosts) -> Result<()> {
        let here = topology.ranks_of(topology.node());
        let mut members = here.zip(&self.members);
        members.try_for_each(|(process, member)| mine.check_same(process, member.hosts))
    }
}

impl Roster {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.secret.expose().to_vec();
        self.members
            .iter()
            .for_each(|member| member.encode(&mut bytes));
        bytes
    }

    fn decode(bytes: &[u8], ranks: u32) -> Option<Self> {
        let (secret, rest) = bytes.split_first_chunk::<{ Secret::BYTES }>()?;
        let (members, rest) = rest.as_chunks();
        let is_whole = rest.is_empty() && members.len() == ranks as usize;
        is_whole.then(|| Self {
            secret: Secret::from_bytes(*secret),
            members: members.iter().map(Member::decode).collect(),
        })
    }
}

/// The book of a node, with its numbers.
pub(crate) struct NodeBook {
    book: Book,
    room_bytes: usize,
}

impl NodeBook {
    /// As the first rank makes it, with room for cards of so many bytes of each node. Memory is
    /// taken by those that are fetched.
    pub fn create(topology: &Topology, roster: &Roster, card_bytes: usize) -> Result<Self> {
        let roster = roster.encode();
        // Room is given away in words.
        let room_bytes = roster.len() + topology.nodes() as usize * (card_bytes + 8) + 8;
        let room_bytes = room_bytes.min(Book::ROOM_BYTES_MAX);
        let book = Book::create(Self::places(topology), room_bytes)?;
        book.write(ROSTER, &roster);
        Ok(Self { book, room_bytes })
    }

    fn attach(file: OwnedFd, topology: &Topology, room: u64) -> Result<Self> {
        let room_bytes = usize::try_from(room).unwrap_or(usize::MAX);
        let book = Book::attach(file, Self::places(topology), room_bytes)?;
        Ok(Self { book, room_bytes })
    }

    fn places(topology: &Topology) -> usize {
        1 + topology.nodes() as usize
    }

    pub fn roster(&self, topology: &Topology) -> Result<Roster> {
        let bytes = self.book.read(ROSTER);
        let first = topology.rank_at(topology.node(), 0);
        bytes
            .and_then(|bytes| Roster::decode(&bytes, topology.local_size()))
            .ok_or_else(|| Error::bad_peer(topology.named(first).0, "no roster in its node's book"))
    }

    /// What was fetched of a node, if anybody has.
    pub fn card(&self, node: NodeId) -> Option<Vec<u8>> {
        self.book.read(1 + node.0 as usize)
    }

    /// Keeps what was fetched of a node for all of this one, as long as there is room.
    pub fn keep_card(&self, node: NodeId, card: &[u8]) {
        if !self.book.write(1 + node.0 as usize, card) {
            tracing::debug!(node = node.0, "the node's book has no room for this card");
        }
    }

    /// Bytes that roster and cards take.
    #[cfg(test)]
    pub fn used_bytes(&self) -> usize {
        self.book.used_bytes()
    }
}
