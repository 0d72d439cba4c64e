//! Registered buffers: one mapping, registered whole and once, handed out in slots of equal size.
//!
//! A slot that was never taken costs nothing but its bytes in the mapping. Allocates after creation
//! only where the list of free slots grows, at most once per slot; a buffer finds its way back when
//! it is dropped.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::link::RemoteMemory;
use crate::memory::hugepage::Mapping;
use crate::memory::lent::Lent;
use crate::memory::slots::SlotStore;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a link knows about a registered mapping. Dropped before the mapping is unmapped.
///
/// # Safety
/// The descriptor goes to the provider as it is. While the value lives, it is null or the one that
/// the provider of [`link`](Self::link) gave for the whole mapping that this value comes with in
/// [`Pool::new`], or the part in [`Registered::new`]; and no other link that lives has the same
/// number.
///
/// [`Registered::new`]: crate::memory::lent::Registered::new
///
/// Safe code cannot make one up:
/// ```compile_fail,E0200
/// use trihop_transport::memory::hugepage::Mapping;
/// use trihop_transport::memory::pool::{Pool, Registration};
///
/// struct Wild;
/// impl Registration for Wild {
///     fn link(&self) -> usize {
///         1
///     }
///     fn descriptor(&self) -> *mut std::ffi::c_void {
///         std::ptr::without_provenance_mut(64)
///     }
///     fn key(&self) -> u64 {
///         0
///     }
///     fn base(&self) -> u64 {
///         0
///     }
/// }
/// let mapping = Mapping::allocate(4096).unwrap();
/// let pool = Pool::new(mapping, 4096, 1, Some(Box::new(Wild)));
/// ```
pub unsafe trait Registration: Send + Sync {
    /// Number of the link that registered the mapping, the only one that may be given its buffers.
    fn link(&self) -> usize;
    /// Local descriptor for the provider's calls; null where it wants none.
    fn descriptor(&self) -> *mut libc::c_void;
    /// Remote key of the whole mapping.
    fn key(&self) -> u64;
    /// Address that a peer names for the mapping's first byte (its virtual address, or 0 for offset
    /// addressing).
    fn base(&self) -> u64;
}

/// Where the slots' memory is.
enum Backing {
    /// In one mapping.
    Mapped {
        // Declared first: the registration ends before the memory goes.
        registration: Option<Box<dyn Registration>>,
        mapping: Mapping,
    },
    /// In a store that has memory for it only while it is held.
    OnDemand {
        store: Arc<SlotStore>,
        owner: u32,
        first: RemoteMemory,
    },
    /// It is somebody's, who gets it back: one slot.
    Lent(Lent),
}

struct Inner {
    backing: Backing,
    slot_bytes: usize,
    slots: u32,
    state: Mutex<Slots>,
}

/// Which slots of a pool are free. A buffer may come back from another thread than took it.
#[derive(Default)]
struct Slots {
    /// Slots that buffers hold.
    taken: u32,
    /// Slots that are promised and have no memory yet.
    reserved: u32,
    /// Slots of a mapping from this one on were never taken.
    virgin: u32,
    /// Slots of a mapping that were taken and came back.
    free: Vec<u32>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, Slots> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free_slots(&self, state: &Slots) -> u32 {
        // A slot on its way from a buffer to a promise counts twice.
        self.slots.saturating_sub(state.taken + state.reserved)
    }
}

/// A fixed number of equal buffers in registered memory.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
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
    /// When the mapping is smaller than `slot_bytes * slots`, or `slot_bytes` is not a multiple of
    /// 64.
    pub fn new(
        mapping: Mapping,
        slot_bytes: usize,
        slots: usize,
        registration: Option<Box<dyn Registration>>,
    ) -> Self {
        let needed = slot_bytes.checked_mul(slots);
        assert!(
            needed.is_some_and(|bytes| bytes <= mapping.len()),
            "mapping of {} bytes for {slots} slots of {slot_bytes} bytes",
            mapping.len()
        );
        let backing = Backing::Mapped {
            registration,
            mapping,
        };
        Self::over(backing, slot_bytes, slots)
    }

    /// `slots` slots with memory of `store` while they are held; peers name them by `owner` and from
    /// `first` on.
    pub(crate) fn on_demand(
        store: Arc<SlotStore>,
        slots: usize,
        owner: u32,
        first: RemoteMemory,
    ) -> Self {
        let slot_bytes = store.slot_bytes();
        let backing = Backing::OnDemand {
            store,
            owner,
            first,
        };
        Self::over(backing, slot_bytes, slots)
    }

    /// One slot of memory that is lent.
    pub(super) fn over_lent(lent: Lent, bytes: usize) -> Self {
        Self::over(Backing::Lent(lent), bytes, 1)
    }

    fn over(backing: Backing, slot_bytes: usize, slots: usize) -> Self {
        assert!(
            slot_bytes.is_multiple_of(64),
            "slot of {slot_bytes} bytes is not a multiple of 64"
        );
        let slots = u32::try_from(slots).expect("a pool has less than 2^32 slots");
        Self {
            inner: Arc::new(Inner {
                backing,
                slot_bytes,
                slots,
                state: Mutex::default(),
            }),
        }
    }

    /// Takes a free buffer, if there is one. Its contents are whatever its last user left.
    pub fn take(&self) -> Option<Buffer> {
        let mut state = self.inner.state();
        if self.inner.free_slots(&state) == 0 {
            return None;
        }
        self.materialise(&mut state)
    }

    /// Buffers that nobody holds.
    pub fn free_slots(&self) -> usize {
        self.inner.free_slots(&self.inner.state()) as usize
    }

    /// All buffers.
    pub fn slots(&self) -> usize {
        self.inner.slots as usize
    }

    /// Size of one buffer.
    pub fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes
    }

    /// Bytes of the buffers that somebody holds or was promised.
    pub fn in_use_bytes(&self) -> usize {
        (self.slots() - self.free_slots()) * self.inner.slot_bytes
    }

    /// Memory that the pool may hold, in bytes; a pool of the simulation has it only while it is in
    /// use.
    pub fn bytes(&self) -> usize {
        match &self.inner.backing {
            Backing::Mapped { mapping, .. } => mapping.len(),
            Backing::OnDemand { .. } | Backing::Lent(_) => {
                self.inner.slot_bytes * self.inner.slots as usize
            }
        }
    }

    /// Promises up to `count` free slots to somebody who will claim them later; returns how many.
    pub(crate) fn reserve(&self, count: usize) -> usize {
        let mut state = self.inner.state();
        let count = count.min(self.inner.free_slots(&state) as usize);
        state.reserved += count as u32;
        count
    }

    /// A promised slot as a buffer; `None` where memory has run out, and then the promise stays.
    pub(crate) fn claim(&self) -> Option<Buffer> {
        let mut state = self.inner.state();
        debug_assert!(state.reserved > 0, "no slot is promised");
        let buffer = self.materialise(&mut state)?;
        state.reserved -= 1;
        Some(buffer)
    }

    /// Whether both are handles of the same pool.
    pub(crate) fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn materialise(&self, state: &mut Slots) -> Option<Buffer> {
        let inner = &self.inner;
        let (slot, start) = match &inner.backing {
            Backing::Mapped { mapping, .. } => {
                let slot = state.free.pop().unwrap_or_else(|| {
                    state.virgin += 1;
                    state.virgin - 1
                });
                assert!(slot < inner.slots, "slot {slot} of {}", inner.slots);
                // SAFETY: `Pool::new` checked that all slots lie inside the mapping.
                let start = unsafe { mapping.as_ptr().add(slot as usize * inner.slot_bytes) };
                (slot, NonNull::new(start)?)
            }
            Backing::OnDemand { store, owner, .. } => match store.take(*owner) {
                Ok(taken) => taken,
                Err(error) => {
                    tracing::error!("a pool's slot has no memory: {error}");
                    return None;
                }
            },
            Backing::Lent(lent) => (0, lent.first()),
        };
        state.taken += 1;
        Some(Buffer {
            inner: Arc::clone(inner),
            start,
            slot,
        })
    }
}

/// One buffer of a [`Pool`], exclusively ours until it is posted or dropped.
pub struct Buffer {
    inner: Arc<Inner>,
    start: NonNull<u8>,
    slot: u32,
}

// SAFETY: `start` is the first byte of a slot that this value alone holds, in memory that `inner`
// keeps and that belongs to no thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// First byte, for a provider's calls.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Number of the link that the pool was registered by, if it was.
    pub(crate) fn link(&self) -> Option<usize> {
        match &self.inner.backing {
            Backing::Mapped { registration, .. } => registration.as_ref().map(|r| r.link()),
            Backing::OnDemand { .. } => None,
            Backing::Lent(lent) => Some(lent.registration().link()),
        }
    }

    /// Local descriptor for a provider's calls; null where none is wanted.
    pub fn descriptor(&self) -> *mut libc::c_void {
        match &self.inner.backing {
            Backing::Mapped {
                registration: Some(r),
                ..
            } => r.descriptor(),
            Backing::Lent(lent) => lent.registration().descriptor(),
            _ => std::ptr::null_mut(),
        }
    }

    /// Where a peer can read this buffer.
    pub fn remote(&self) -> RemoteMemory {
        match &self.inner.backing {
            Backing::Mapped {
                registration: Some(r),
                ..
            } => RemoteMemory {
                address: r.base() + (self.slot as usize * self.inner.slot_bytes) as u64,
                key: r.key(),
            },
            Backing::Mapped { .. } => RemoteMemory {
                address: self.as_ptr() as u64,
                key: 0,
            },
            Backing::OnDemand { store, first, .. } => RemoteMemory {
                address: first.address + store.offset(self.slot),
                key: first.key,
            },
            Backing::Lent(lent) => lent.remote(),
        }
    }

    /// Gives the memory back and keeps the slot promised: the opposite of [`Pool::claim`]. The
    /// contents are gone.
    pub(crate) fn into_promise(self) -> Pool {
        let inner = Arc::clone(&self.inner);
        // Promised before it is given back, so that nobody takes it in between.
        inner.state().reserved += 1;
        drop(self);
        Pool { inner }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer(slot {} of {} B)",
            self.slot, self.inner.slot_bytes
        )
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the slot's `slot_bytes` bytes lie inside a mapping, or memory that is lent, which
        // `inner` keeps alive; a slot is handed out to one `Buffer` at a time, so no other
        // reference to these bytes exists.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.inner.slot_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only borrow of the slot.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.inner.slot_bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        state.taken -= 1;
        match &self.inner.backing {
            Backing::Mapped { .. } => state.free.push(self.slot),
            Backing::OnDemand { store, .. } => store.give(self.slot),
            Backing::Lent(_) => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of memory that is used without any, which a peer would name from here on.
    pub struct Unregistered(pub u64);

    // SAFETY: it has no descriptor, and no link.
    unsafe impl Registration for Unregistered {
        fn link(&self) -> usize {
            0
        }

        fn descriptor(&self) -> *mut libc::c_void {
            std::ptr::null_mut()
        }

        fn key(&self) -> u64 {
            0
        }

        fn base(&self) -> u64 {
            self.0
        }
    }

    fn pools(slots: usize) -> [Pool; 2] {
        let mapping = Mapping::allocate(64 * slots).unwrap();
        let first = RemoteMemory { address: 0, key: 1 };
        [
            Pool::new(mapping, 64, slots, None),
            Pool::on_demand(Arc::new(SlotStore::new(64)), slots, 3, first),
        ]
    }

    #[test]
    fn every_slot_is_held_once_and_comes_back() {
        for pool in pools(3) {
            let mut held: Vec<Buffer> = (0..3).map(|_| pool.take().unwrap()).collect();
            assert!(pool.take().is_none() && pool.free_slots() == 0);
            for (value, buffer) in held.iter_mut().enumerate() {
                buffer.fill(value as u8);
            }
            for (value, buffer) in held.iter().enumerate() {
                assert!(
                    buffer.iter().all(|&b| b == value as u8),
                    "{buffer:?} is shared"
                );
            }
            held.remove(1);
            assert_eq!(pool.free_slots(), 1);
            assert!(pool.take().is_some());
        }
    }

    #[test]
    #[should_panic(expected = "for 4294967296 slots of 4294967296 bytes")]
    fn slots_whose_bytes_wrap_are_not_laid_over_a_page() {
        let mapping = Mapping::allocate(4096).unwrap();
        let pool = Pool::new(mapping, 1 << 32, 1 << 32, None);
        let lengths: Vec<usize> = std::iter::from_fn(|| pool.take())
            .take(2)
            .map(|b| b.len())
            .collect();
        panic!("buffers of {lengths:?} bytes in a page");
    }

    #[test]
    fn a_promised_slot_is_nobody_elses() {
        for pool in pools(3) {
            assert_eq!(pool.reserve(2), 2);
            let one = pool.take().unwrap();
            assert!(
                pool.take().is_none(),
                "two of {pool:?} are promised, one is taken"
            );
            let two = pool.claim().unwrap();
            assert_eq!(pool.free_slots(), 0);
            drop(one);
            assert!(two.into_promise().take().is_some());
            assert_eq!(pool.reserve(9), 1, "two promised, one free");
            drop(pool.claim());
            assert_eq!(pool.free_slots(), 1);
        }
    }
}
