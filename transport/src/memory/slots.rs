//! Slots of one size that have memory only while somebody holds them, for many pools at once.
//!
//! The simulated network backs all its pools from such stores, so that hundreds of thousands of
//! endpoints in one process cost what they hold, not what they may hold. What was given back last
//! is handed out first: few pages are ever touched.

use std::ptr::NonNull;

use crate::error::Result;
use crate::memory::hugepage::Mapping;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of one mapping: below what the ladder would put on hugepages, of which a slot that is
/// hardly used would take a whole one.
const CHUNK_BYTES: usize = 512 << 10;

/// Owner of a slot that nobody holds.
const NOBODY: u32 = u32::MAX;

/// A growing store of equal slots. Memory, once touched, stays with the store.
pub(crate) struct SlotStore {
    slot_bytes: usize,
    /// Slots of one chunk.
    chunk_slots: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    chunks: Vec<Mapping>,
    /// Who holds each slot.
    owners: Vec<u32>,
    free: Vec<u32>,
}

impl SlotStore {
    /// An empty store of slots of `slot_bytes`.
    ///
    /// # Panics
    /// When that is 0.
    pub fn new(slot_bytes: usize) -> Self {
        assert!(slot_bytes > 0, "slots of no bytes");
        Self {
            slot_bytes,
            chunk_slots: (CHUNK_BYTES / slot_bytes).max(1),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size of a slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// A slot for `owner`: its number and its first byte. Nobody else gets it before
    /// [`SlotStore::give`].
    ///
    /// # Errors
    /// When memory runs out.
    pub fn take(&self, owner: u32) -> Result<(u32, NonNull<u8>)> {
        let mut state = self.state();
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = state.owners.len();
                if slot == state.chunks.len() * self.chunk_slots {
                    let chunk = Mapping::allocate(self.chunk_slots * self.slot_bytes)?;
                    state.chunks.push(chunk);
                }
                state.owners.push(NOBODY);
                u32::try_from(slot).expect("2^32 slots in use at once")
            }
        };
        state.owners[slot as usize] = owner;
        Ok((slot, self.first_byte(&state, slot)))
    }

    /// The slot is free again.
    pub fn give(&self, slot: u32) {
        let mut state = self.state();
        state.owners[slot as usize] = NOBODY;
        state.free.push(slot);
    }

    /// Offset of a slot's first byte, as peers name it.
    pub fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.slot_bytes as u64
    }

    /// Copy of `bytes` bytes at `offset`, as the simulated network adapter of a peer reads them;
    /// `None` for what does not lie in one slot that `owner` holds.
    ///
    /// Real adapters read memory that its owner may be writing; here all ranks share one thread, so
    /// nobody is.
    pub fn peek(&self, owner: u32, offset: u64, bytes: usize) -> Option<Box<[u8]>> {
        let state = self.state();
        let slot = u32::try_from(offset / self.slot_bytes as u64).ok()?;
        let within = (offset % self.slot_bytes as u64) as usize;
        let held = state.owners.get(slot as usize) == Some(&owner) && owner != NOBODY;
        if !held || bytes > self.slot_bytes - within {
            return None;
        }
        let mut copy = vec![0u8; bytes].into_boxed_slice();
        let first = self.first_byte(&state, slot);
        // SAFETY: the range was checked against the slot, which lies in a mapping that the store
        // keeps. The code that drives the simulation borrows no buffer while another endpoint
        // posts: buffers belong to the engines, which hand them out for the time of one call only.
        unsafe {
            std::ptr::copy_nonoverlapping(first.as_ptr().add(within), copy.as_mut_ptr(), bytes);
        }
        Some(copy)
    }

    fn first_byte(&self, state: &State, slot: u32) -> NonNull<u8> {
        let (chunk, within) = (
            slot as usize / self.chunk_slots,
            slot as usize % self.chunk_slots,
        );
        let first = state.chunks[chunk].as_ptr();
        // SAFETY: the chunk was mapped for `chunk_slots` slots, of which this is one.
        let byte = unsafe { first.add(within * self.slot_bytes) };
        NonNull::new(byte).expect("a mapping does not begin at address 0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_handed_out_once_and_the_last_one_back_first() {
        let store = SlotStore::new(300 << 10);
        let (a, at_a) = store.take(1).unwrap();
        let (b, at_b) = store.take(2).unwrap();
        assert_ne!(at_a, at_b);
        // SAFETY: the slot is held, and nothing else refers to it.
        unsafe { at_b.write(7) };
        assert_eq!(
            store.peek(2, store.offset(b), 1).as_deref(),
            Some(&[7u8][..])
        );
        assert_eq!(store.peek(1, store.offset(b), 1), None, "another's slot");
        assert_eq!(
            store.peek(2, store.offset(b) + 1, 300 << 10),
            None,
            "beyond the slot"
        );
        assert_eq!(store.peek(2, u64::MAX, 1), None);
        store.give(a);
        assert_eq!(store.peek(1, store.offset(a), 1), None, "given back");
        assert_eq!(store.take(3).unwrap(), (a, at_a));
    }
}
