//! The start-up card: what each rank leaves in the launcher's store for all others.

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::protocol::wire::VERSION;
use trihop_transport::secret::Secret;
use trihop_transport::topology::Rank;

use crate::error::{Error, Result};

/// First bytes of a card of any version; behind them comes the version of the wire format.
const MAGIC: [u8; 4] = *b"3hop";

/// Key of the cards in the launcher's store.
const KEY: &str = "trihop";

/// Version of the wire format that a card names, where it is one.
fn version_of(card: &[u8]) -> Option<u8> {
    card.strip_prefix(&MAGIC)?.first().copied()
}

/// What a rank tells the others at start: how to reach it inside its node, the job's secret (rank
/// 0's counts), the control group whose memory limit holds for it, where its node's watch listens if
/// it has that, its fabric address.
pub(super) struct Card {
    pub nonce: u64,
    pub secret: Secret,
    pub group: u64,
    pub watch: Vec<u8>,
    pub address: Vec<u8>,
}

impl Card {
    /// Leaves the card with the launcher; returns when every rank has left one.
    pub fn leave(&self, bootstrap: &mut dyn Bootstrap) -> Result<()> {
        bootstrap.put(KEY, &self.encode())?;
        Ok(bootstrap.fence()?)
    }

    /// The card that `rank` has left.
    pub fn of(rank: Rank, bootstrap: &mut dyn Bootstrap) -> Result<Self> {
        tracing::trace!(target: "trihop_transport::bootstrap", of = rank.0, "fetching a card");
        let bytes = bootstrap.get(rank, KEY)?;
        if let Some(theirs) = bytes.as_deref().and_then(version_of)
            && theirs != VERSION
        {
            return Err(Error::Version {
                rank: rank.0,
                ours: VERSION.into(),
                theirs: theirs.into(),
            });
        }
        bytes.as_deref().and_then(Self::decode).ok_or_else(|| {
            let why = format!("rank {rank} has left no valid start-up card");
            TransportError::Bootstrap {
                launcher: bootstrap.launcher().name(),
                why,
            }
            .into()
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.nonce.to_le_bytes());
        bytes.extend_from_slice(self.secret.expose());
        // At most four addresses of 19 bytes.
        bytes.push(self.watch.len() as u8);
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&self.watch);
        bytes.extend_from_slice(&self.address);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(&MAGIC)?.get(1..)?;
        let (nonce, rest) = bytes.split_first_chunk::<8>()?;
        let (secret, rest) = rest.split_first_chunk::<{ Secret::BYTES }>()?;
        let (&watch, rest) = rest.split_first()?;
        let (group, rest) = rest.split_first_chunk::<8>()?;
        let (watch, address) = rest.split_at_checked(usize::from(watch))?;
        Some(Self {
            nonce: u64::from_le_bytes(*nonce),
            secret: Secret::from_bytes(*secret),
            group: u64::from_le_bytes(*group),
            watch: watch.to_vec(),
            address: address.to_vec(),
        })
    }
}
