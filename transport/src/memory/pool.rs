//! Registered buffers: one mapping, registered whole and once, handed out in slots of equal size.
//!
//! Never allocates after creation; a buffer finds its way back when it is dropped.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use crate::link::RemoteMemory;
use crate::memory::hugepage::Mapping;

/// What a link knows about a registered mapping. Dropped before the mapping is unmapped.
pub trait Registration {
    /// Local descriptor for the provider's calls; null where it wants none.
    fn descriptor(&self) -> *mut libc::c_void;
    /// Remote key of the whole mapping.
    fn key(&self) -> u64;
    /// Address that a peer names for the mapping's first byte (its virtual address, or 0 for offset addressing).
    fn base(&self) -> u64;
}

struct Inner {
    // Declared first: the registration ends before the memory goes.
    registration: Option<Box<dyn Registration>>,
    free: RefCell<Vec<u32>>,
    slot_bytes: usize,
    slots: usize,
    mapping: Mapping,
}

/// A fixed number of equal buffers in registered memory.
#[derive(Clone)]
pub struct Pool {
    inner: Rc<Inner>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pool({} x {} B, {} free)",
            self.inner.slots,
            self.inner.slot_bytes,
            self.free_slots()
        )
    }
}

impl Pool {
    /// Divides `mapping` into `slots` slots.
    ///
    /// # Panics
    /// When the mapping is smaller than `slot_bytes * slots`, or `slot_bytes` is not a multiple of 64.
    pub fn new(
        mapping: Mapping,
        slot_bytes: usize,
        slots: usize,
        registration: Option<Box<dyn Registration>>,
    ) -> Self {
        assert!(
            slot_bytes.is_multiple_of(64),
            "slot of {slot_bytes} bytes is not a multiple of 64"
        );
        assert!(
            mapping.len() >= slot_bytes * slots,
            "mapping of {} bytes for {slots} slots of {slot_bytes} bytes",
            mapping.len()
        );
        let free = RefCell::new((0..slots as u32).rev().collect());
        Self {
            inner: Rc::new(Inner {
                registration,
                free,
                slot_bytes,
                slots,
                mapping,
            }),
        }
    }

    /// Takes a free buffer, if there is one. Its contents are whatever its last user left.
    pub fn take(&self) -> Option<Buffer> {
        let slot = self.inner.free.borrow_mut().pop()?;
        Some(Buffer {
            inner: Rc::clone(&self.inner),
            slot,
        })
    }

    /// Buffers that nobody holds.
    pub fn free_slots(&self) -> usize {
        self.inner.free.borrow().len()
    }

    /// All buffers.
    pub fn slots(&self) -> usize {
        self.inner.slots
    }

    /// Size of one buffer.
    pub fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes
    }

    /// Memory that the pool holds, in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.mapping.len()
    }
}

impl Pool {
    /// Copy of `bytes` bytes at `offset` of the mapping, as the simulated network adapter of a peer reads them.
    ///
    /// Real adapters read memory that its owner may be writing; here all ranks share one thread, so nobody is.
    pub(crate) fn peek(&self, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(bytes)? > self.inner.mapping.len() {
            return None;
        }
        let mut copy = vec![0u8; bytes];
        // SAFETY: the range was checked against the mapping, which `inner` keeps alive; no `&mut` into a slot is live
        // while the single thread of a simulation runs this function.
        unsafe {
            std::ptr::copy_nonoverlapping(self.inner.mapping.as_ptr().add(offset), copy.as_mut_ptr(), bytes);
        }
        Some(copy)
    }
}

/// One buffer of a [`Pool`], exclusively ours until it is posted or dropped.
pub struct Buffer {
    inner: Rc<Inner>,
    slot: u32,
}

impl Buffer {
    /// First byte, for a provider's calls.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.deref_mut().as_mut_ptr()
    }

    /// Local descriptor for a provider's calls; null where none is wanted.
    pub fn descriptor(&self) -> *mut libc::c_void {
        self.inner
            .registration
            .as_ref()
            .map_or(std::ptr::null_mut(), |r| r.descriptor())
    }

    /// Where a peer can read this buffer.
    pub fn remote(&self) -> RemoteMemory {
        let offset = (self.slot as usize * self.inner.slot_bytes) as u64;
        match &self.inner.registration {
            Some(r) => RemoteMemory {
                address: r.base() + offset,
                key: r.key(),
            },
            None => RemoteMemory {
                address: self.as_ptr() as u64,
                key: 0,
            },
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer(slot {} of {} B)", self.slot, self.inner.slot_bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let bytes = self.inner.slot_bytes;
        // SAFETY: `Pool::new` checked that all slots lie inside the mapping, which `inner` keeps alive; a slot number
        // leaves the free list for one `Buffer` at a time, so no other reference to these bytes exists.
        unsafe {
            std::slice::from_raw_parts(self.inner.mapping.as_ptr().add(self.slot as usize * bytes), bytes)
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.inner.slot_bytes;
        // SAFETY: as in `deref`; `&mut self` makes this the only borrow of the slot.
        unsafe {
            std::slice::from_raw_parts_mut(self.inner.mapping.as_ptr().add(self.slot as usize * bytes), bytes)
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.inner.free.borrow_mut().push(self.slot);
    }
}
