//! Operations in flight: each has a context that the provider may write to, and owns the buffer
//! until it ends.

use libfabric_sys as sys;

use crate::link::{Peer, Token};
use crate::memory::pool::Buffer;

/// What was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Receive,
    Read,
}

/// One operation in flight.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) token: Token,
    pub(super) peer: Option<Peer>,
    pub(super) buffer: Buffer,
}

/// The providers' scratch space, one `fi_context2` per operation, at addresses that never change.
#[derive(Debug)]
pub(super) struct Contexts {
    first: *mut sys::fi_context2,
    count: usize,
}

impl Contexts {
    pub(super) fn new(count: usize) -> Self {
        // SAFETY: all-zero bytes are a valid fi_context2 (pointers).
        let zero: sys::fi_context2 = unsafe { std::mem::zeroed() };
        let slots = vec![zero; count].into_boxed_slice();
        Self {
            first: Box::into_raw(slots).cast(),
            count,
        }
    }

    /// Memory of `count` contexts.
    pub(super) const fn bytes(count: usize) -> usize {
        count * size_of::<sys::fi_context2>()
    }

    /// The context with this number, for a provider's call.
    pub(super) fn at(&self, index: u32) -> *mut libc::c_void {
        debug_assert!(
            (index as usize) < self.count,
            "context {index} of {}",
            self.count
        );
        self.first.wrapping_add(index as usize).cast()
    }

    /// The number of a context that a provider handed back; `None` for anything that is not one of
    /// ours.
    pub(super) fn index(&self, context: *mut libc::c_void) -> Option<u32> {
        let offset = (context as usize).checked_sub(self.first as usize)?;
        let (index, rest) = (
            offset / size_of::<sys::fi_context2>(),
            offset % size_of::<sys::fi_context2>(),
        );
        (rest == 0 && index < self.count).then_some(index as u32)
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        let slots = std::ptr::slice_from_raw_parts_mut(self.first, self.count);
        // SAFETY: made by Box::into_raw in `new` with this length; the endpoint, the only other
        // user of the addresses, is closed before (see `Opened`).
        drop(unsafe { Box::from_raw(slots) });
    }
}

/// Which operation uses which context. Never grows.
#[derive(Debug)]
pub(super) struct Operations {
    slots: Box<[Option<Operation>]>,
    free: Vec<u32>,
}

impl Operations {
    pub(super) fn new(count: usize) -> Self {
        Self {
            slots: (0..count).map(|_| None).collect(),
            free: (0..count as u32).rev().collect(),
        }
    }

    /// Memory of `count` slots and of the list of free ones.
    pub(super) const fn bytes(count: usize) -> usize {
        count * (size_of::<Option<Operation>>() + size_of::<u32>())
    }

    /// Reserves a context number.
    pub(super) fn reserve(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives back a number whose operation was not taken by the provider.
    pub(super) fn release(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Notes what runs under a reserved number.
    pub(super) fn put(&mut self, index: u32, operation: Operation) {
        self.slots[index as usize] = Some(operation);
    }

    /// Takes the operation that ended, and frees its number.
    pub(super) fn take(&mut self, index: u32) -> Option<Operation> {
        let operation = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(operation)
    }

    /// Whether a send or a read with this peer is in flight.
    pub(super) fn are_towards(&self, peer: Peer) -> bool {
        self.slots.iter().flatten().any(|o| o.peer == Some(peer))
    }

    /// Numbers of the operations in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = u32> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, o)| o.is_some())
            .map(|(i, _)| i as u32)
    }

    /// Forgets what is still in flight without freeing its memory, for an endpoint that cannot be
    /// closed yet.
    pub(super) fn leak(&mut self) -> usize {
        let mut leaked = 0;
        for slot in self.slots.iter_mut() {
            if let Some(operation) = slot.take() {
                std::mem::forget(operation.buffer);
                leaked += 1;
            }
        }
        leaked
    }
}
