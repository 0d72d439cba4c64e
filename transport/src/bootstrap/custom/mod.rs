//! A program that already knows its ranks, because it lives inside MPI for instance, lends us its
//! allgather.
//!
//! The callback runs only on the thread that calls [`Custom::new`], [`Bootstrap::put`] and
//! [`Bootstrap::fence`], so that MPI may have been initialised for one thread. It waits as long as
//! it likes: there is no deadline here.

use std::collections::HashMap;
use std::fmt;

use super::{Bootstrap, KEY_BYTES_MAX, Launcher, check_key, check_value, hosts};
use crate::error::{Error, Result};
use crate::topology::{Rank, Topology};

/// Gathers a contribution, of one length on all ranks, into as many times that length, in rank
/// order; a status that is not 0 is the error. Every rank calls it equally often.
pub type Allgather = Box<dyn FnMut(&[u8], &mut [u8]) -> std::result::Result<(), i32> + Send>;

const NAME: &str = "custom";

/// First word of what each rank says about itself; the last byte is the version of this exchange.
const GREETING: [u8; 8] = *b"trihop\0\x01";
/// Greeting, rank, size, node.
const CARD_BYTES: usize = 24;

/// Ranks that find each other through an [`Allgather`].
///
/// A fence costs two of them: 8 bytes per rank, then as many as the rank that put most, at most
/// [`Custom::STAGED_BYTES_MAX`]. While one runs, memory is `size` times that: an allgather has a
/// place for every rank. Afterwards only what was put is kept.
pub struct Custom {
    allgather: Allgather,
    topology: Topology,
    /// What this rank put since the last fence.
    staged: Vec<u8>,
    /// What each rank put before each fence, of those that put anything.
    put: HashMap<u32, Vec<Vec<u8>>>,
}

impl Custom {
    /// Largest value, in bytes.
    pub const VALUE_BYTES_MAX: usize = 64 << 10;
    /// Most that a rank can put before a fence, in bytes, 5 and the key's length for each value
    /// included.
    pub const STAGED_BYTES_MAX: usize = 1 << 20;

    /// Rank `rank` of `size`, on the node with label `node`: any number that is equal for the ranks
    /// of one node, and for them only. Nodes are numbered by their lowest rank; their ranks need
    /// not be neighbours. Collective.
    ///
    /// # Errors
    /// When `rank` is not below `size`, the callback fails, or what it gathered shows that the
    /// ranks do not agree on their number, that two have one number, or that it does not gather in
    /// rank order. All ranks then see the same. A rank that is refused for itself alone has not
    /// called the callback, and the others wait in theirs: end the job.
    pub fn new(rank: u32, size: u32, node: u64, mut allgather: Allgather) -> Result<Self> {
        if rank >= size {
            return Err(Error::config(
                "rank",
                format!("{rank} is not below the number of ranks, {size}"),
            ));
        }
        let mut mine = Vec::with_capacity(CARD_BYTES);
        mine.extend_from_slice(&GREETING);
        mine.extend_from_slice(&rank.to_le_bytes());
        mine.extend_from_slice(&size.to_le_bytes());
        mine.extend_from_slice(&node.to_le_bytes());
        let cards = gather(&mut allgather, size, &mine, "exchanging who is where")?;
        let cards = cards.chunks_exact(CARD_BYTES).zip(0..);
        let nodes = cards.map(|(card, place)| node_of(card, place, size));
        Ok(Self {
            allgather,
            topology: hosts::by_lowest_rank(nodes, Rank(rank))?,
            staged: Vec::new(),
            put: HashMap::new(),
        })
    }

    fn gather(&mut self, contribution: &[u8], doing: &str) -> Result<Vec<u8>> {
        gather(
            &mut self.allgather,
            self.topology.size(),
            contribution,
            doing,
        )
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom")
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

impl Bootstrap for Custom {
    fn launcher(&self) -> Launcher {
        Launcher::Custom
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        Self::VALUE_BYTES_MAX
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value, Self::VALUE_BYTES_MAX)?;
        let staged_bytes = self.staged.len() + 1 + key.len() + 4 + value.len();
        if staged_bytes > Self::STAGED_BYTES_MAX {
            let limit = Self::STAGED_BYTES_MAX;
            let why = format!(
                "{key} makes {staged_bytes} bytes put before one fence, above the {limit} possible"
            );
            return Err(Error::config("bootstrap value", why));
        }
        self.staged.push(key.len() as u8);
        self.staged.extend_from_slice(key.as_bytes());
        self.staged
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.staged.extend_from_slice(value);
        Ok(())
    }

    fn fence(&mut self) -> Result<()> {
        let mut blob = std::mem::take(&mut self.staged);
        let lengths = self.gather(
            &(blob.len() as u64).to_le_bytes(),
            "exchanging lengths at a fence",
        )?;
        let lengths = lengths
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().expect("chunks of 8")));
        let (most, rank) = lengths.zip(0u32..).max().expect("a job has a rank");
        if most > Self::STAGED_BYTES_MAX as u64 {
            let limit = Self::STAGED_BYTES_MAX;
            return Err(failed(format!(
                "rank {rank} announces {most} bytes at a fence, above the {limit} possible; does the callback gather \
                 into the right places?"
            )));
        }
        if most == 0 {
            return Ok(());
        }
        let blob_bytes = most as usize;
        // A key has at least one letter: what follows the last entry is recognised by its 0.
        blob.resize(blob_bytes, 0);
        let bytes = self.gather(&blob, "exchanging values at a fence")?;
        for (blob, rank) in bytes.chunks_exact(blob_bytes).zip(0..) {
            // The first byte is the length of a key.
            if blob[0] != 0 {
                self.put.entry(rank).or_default().push(blob.to_vec());
            }
        }
        Ok(())
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        for blob in self.put.get(&from.0).into_iter().flatten() {
            let mut rest = &blob[..];
            while let Some(entry) = Entry::split(rest, from)? {
                if entry.key == key.as_bytes() {
                    return Ok(Some(entry.value.to_vec()));
                }
                rest = entry.rest;
            }
        }
        Ok(None)
    }

    /// Only says why: the program that lent the callback ends the job, by `MPI_Abort` for instance.
    fn abort(&mut self, status: i32, why: &str) {
        tracing::error!(status, why, "abort");
    }

    /// There is nobody to take leave of.
    fn finalize(&mut self) -> Result<()> {
        Ok(())
    }

    fn fences_on_callers_thread(&self) -> bool {
        true
    }
}

/// Calls the callback; its receive buffer is zeroed first.
fn gather(
    allgather: &mut Allgather,
    size: u32,
    contribution: &[u8],
    doing: &str,
) -> Result<Vec<u8>> {
    let total = size as usize * contribution.len();
    let mut table = Vec::new();
    table.try_reserve_exact(total).map_err(|e| {
        failed(format!(
            "{total} bytes for {size} ranks, while {doing}: {e}"
        ))
    })?;
    table.resize(total, 0);
    allgather(contribution, &mut table).map_err(|status| {
        failed(format!(
            "the allgather callback returned {status} while {doing}"
        ))
    })?;
    Ok(table)
}

/// The node of the rank whose card stands at `place`.
fn node_of(card: &[u8], place: u32, size: u32) -> Result<u64> {
    let word =
        |at: usize| u32::from_le_bytes(card[at..at + 4].try_into().expect("within the card"));
    if card[..8] != GREETING {
        return Err(failed(format!(
            "the allgather callback left no valid contribution of rank {place}; it has to place every rank's, in rank \
             order, and all ranks need the same version of trihop"
        )));
    }
    let (rank, theirs) = (word(8), word(12));
    if rank != place {
        return Err(failed(format!(
            "in the place of rank {place} stands the contribution of rank {rank}: either two ranks have one number, or \
             the allgather callback does not gather in rank order"
        )));
    }
    if theirs != size {
        return Err(failed(format!(
            "rank {place} was told of a job of {theirs} ranks, this rank of {size}; give all ranks the same size"
        )));
    }
    Ok(u64::from_le_bytes(
        card[16..24].try_into().expect("within the card"),
    ))
}

/// One value as it was put: the key's length (1 byte), the key, the value's length (4 bytes), the
/// value.
struct Entry<'a> {
    key: &'a [u8],
    value: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The first of what `from` put; `None` behind its last.
    fn split(bytes: &'a [u8], from: Rank) -> Result<Option<Self>> {
        let Some((&key_bytes, rest)) = bytes.split_first().filter(|(length, _)| **length > 0)
        else {
            return Ok(None);
        };
        let parsed = || {
            let key_bytes = usize::from(key_bytes);
            let (key, rest) = rest
                .split_at_checked(key_bytes)
                .filter(|_| key_bytes <= KEY_BYTES_MAX)?;
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            Some(Self { key, value, rest })
        };
        parsed().map(Some).ok_or_else(|| {
            failed(format!(
                "what the allgather callback gathered of rank {from} is nothing that a rank puts"
            ))
        })
    }
}

fn failed(why: String) -> Error {
    Error::Bootstrap {
        launcher: NAME,
        why,
    }
}

#[cfg(test)]
mod tests;
