//! What a job leaves in its launcher's store at start: a greeting and a card of each node, both by
//! the node's first rank.
//!
//! Both begin with the version of the wire format, which is compared before anything else.

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::protocol::wire::VERSION;
use trihop_transport::secret::Secret;
use trihop_transport::topology::{NodeId, Rank, Topology};

use super::addresses::{PackedAddresses, pack};
use crate::error::{Error, Result};
use crate::node::{Door, Hosts};

/// First bytes of what any version leaves; behind them comes the version of the wire format.
const MAGIC: [u8; 4] = *b"3hop";

const PREFIX_BYTES: usize = MAGIC.len() + 1;

/// Key of the greetings in the launcher's store: versions that leave something else there say so.
const GREETING_KEY: &str = "trihop";

/// Key of the cards in the launcher's store.
const CARD_KEY: &str = "card";

/// Version of the wire format that these bytes name, where a rank of ours left them.
fn version_of(bytes: &[u8]) -> Option<u8> {
    bytes.strip_prefix(&MAGIC)?.first().copied()
}

fn prefix() -> Vec<u8> {
    [&MAGIC[..], &[VERSION]].concat()
}

/// What a rank of `topology`, which the launcher knows, has left under `key`, if it is of our
/// version.
fn fetch(
    topology: &Topology,
    rank: Rank,
    key: &str,
    bootstrap: &mut dyn Bootstrap,
) -> Result<Vec<u8>> {
    let named = topology.named(rank);
    tracing::trace!(target: "trihop_transport::bootstrap", of = rank.0, key, "fetching");
    let bytes = bootstrap.get(rank, key)?;
    match bytes.as_deref().and_then(version_of) {
        Some(theirs) if theirs != VERSION => Err(Error::Version {
            rank: named.0,
            ours: VERSION.into(),
            theirs: theirs.into(),
        }),
        Some(_) => Ok(bytes.unwrap_or_default()),
        None => Err(invalid(named, bootstrap)),
    }
}

fn invalid(rank: Rank, bootstrap: &dyn Bootstrap) -> Error {
    let why = format!("rank {rank} has left no valid start-up card");
    TransportError::Bootstrap {
        launcher: bootstrap.launcher().name(),
        why,
    }
    .into()
}

/// What the first rank of a node tells before anybody is known: where the node meets, and, as rank
/// 0, the job's secret.
pub(super) struct Greeting {
    pub door: Door,
    pub secret: Secret,
}

impl Greeting {
    pub fn leave(&self, bootstrap: &mut dyn Bootstrap) -> Result<()> {
        let mut bytes = prefix();
        bytes.extend_from_slice(&self.door.nonce.to_le_bytes());
        bytes.extend_from_slice(&self.door.password.to_le_bytes());
        bytes.extend_from_slice(self.secret.expose());
        Ok(bootstrap.put(GREETING_KEY, &bytes)?)
    }

    /// The greeting that `rank`, the first of its node, has left.
    pub fn of(topology: &Topology, rank: Rank, bootstrap: &mut dyn Bootstrap) -> Result<Self> {
        let bytes = fetch(topology, rank, GREETING_KEY, bootstrap)?;
        Self::parse(&bytes).ok_or_else(|| invalid(topology.named(rank), bootstrap))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (nonce, rest) = bytes[PREFIX_BYTES..].split_first_chunk::<8>()?;
        let (password, secret) = rest.split_first_chunk::<8>()?;
        Some(Self {
            door: Door {
                nonce: u64::from_le_bytes(*nonce),
                password: u64::from_le_bytes(*password),
            },
            secret: Secret::from_bytes(secret.try_into().ok()?),
        })
    }
}

/// What other nodes are told of a node: how many ranks its first process hosts, where its watch
/// listens, and the fabric addresses of its ranks, by local rank.
pub(super) struct Card<'a> {
    pub hosts: Hosts,
    pub watch: &'a [u8],
    pub addresses: PackedAddresses<'a>,
}

impl<'a> Card<'a> {
    pub fn encode(hosts: Hosts, watch: &[u8], addresses: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = prefix();
        bytes.extend_from_slice(&hosts.0.to_le_bytes());
        // At most four addresses of 19 bytes.
        bytes.push(watch.len() as u8);
        bytes.extend_from_slice(watch);
        pack(addresses, &mut bytes);
        bytes
    }

    pub fn leave(card: &[u8], bootstrap: &mut dyn Bootstrap) -> Result<()> {
        Ok(bootstrap.put(CARD_KEY, card)?)
    }

    /// The bytes of the card that the first rank of a node of `topology` has left.
    pub fn fetch(
        topology: &Topology,
        node: NodeId,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<Vec<u8>> {
        let first = topology.rank_at(node, 0);
        let bytes = fetch(topology, first, CARD_KEY, bootstrap)?;
        match Card::parse(&bytes, topology.local_size_of(node)) {
            Some(_) => Ok(bytes),
            None => Err(invalid(topology.named(first), bootstrap)),
        }
    }

    /// The card of a node with so many ranks.
    pub fn parse(bytes: &'a [u8], ranks: u32) -> Option<Self> {
        version_of(bytes).filter(|version| *version == VERSION)?;
        let (hosts, rest) = bytes[PREFIX_BYTES..].split_first_chunk::<4>()?;
        let (&watch, rest) = rest.split_first()?;
        let (watch, addresses) = rest.split_at_checked(usize::from(watch))?;
        let addresses = PackedAddresses::parse(addresses, ranks)?;
        Some(Self {
            hosts: Hosts(u32::from_le_bytes(*hosts)),
            watch,
            addresses,
        })
    }
}
