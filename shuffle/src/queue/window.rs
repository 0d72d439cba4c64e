//! Open runs as pushes see them that need nothing else of a job, in Rust and in C.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::ptr::{copy_nonoverlapping, null_mut};

use trihop_transport::park::{Lease, this_thread};
use trihop_transport::ring::Shipped;
use trihop_transport::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::runs::Slot;

/// A view of a stream's open runs, into which items are pushed. It is open while nobody has the
/// state of the job, or while a handler runs that has that: who uses it closes the view first, and
/// so nobody else has the runs meanwhile. Of a job with threads, one of them has it by a lease.
///
/// Its words are atomic only for the compiler: nobody uses them at the same time as another.
///
/// `trihop.h` has the code of a push too, so that programs have the fields, but the last, compiled
/// into them: for another layout, a stream needs another window, and never opens this one.
#[repr(C)]
#[derive(Debug)]
pub struct PushWindow {
    /// Pushes until a call is due; none while it is closed.
    left: AtomicU32,
    /// Slots are found by the bits of their target that are set here.
    mask: AtomicU32,
    slots: AtomicPtr<Slot>,
    /// Where frames begin.
    memory: AtomicPtr<u8>,
    item_bytes: AtomicUsize,
    /// Who pushes.
    lease: Lease,
    /// `left` when it was opened.
    opened_for: AtomicU32,
}

impl PushWindow {
    /// A window of a job that one thread uses.
    pub(crate) fn of_one_thread() -> Self {
        Self::closed(Lease::not_needed())
    }

    /// A window that one of several threads has.
    pub(crate) fn of_threads() -> Self {
        Self::closed(Lease::of_nobody())
    }

    fn closed(lease: Lease) -> Self {
        Self {
            left: AtomicU32::new(0),
            mask: AtomicU32::new(0),
            slots: AtomicPtr::new(null_mut()),
            memory: AtomicPtr::new(null_mut()),
            item_bytes: AtomicUsize::new(0),
            lease,
            opened_for: AtomicU32::new(0),
        }
    }

    /// Opens it for so many items of a size.
    pub(super) fn open(&self, slots: &mut [Slot], memory: &mut [u8], item_bytes: usize, most: u32) {
        self.mask.store(slots.len() as u32 - 1, Relaxed);
        self.slots.store(slots.as_mut_ptr(), Relaxed);
        self.memory.store(memory.as_mut_ptr(), Relaxed);
        self.item_bytes.store(item_bytes, Relaxed);
        self.opened_for.store(most, Relaxed);
        self.left.store(most, Relaxed);
    }

    /// Lets the calling thread push once it is open, if it can have the lease.
    pub(crate) fn grant(&self) -> bool {
        self.lease.grant(this_thread())
    }

    /// Whether it took the item, which it does of the thread that it was granted.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub(crate) fn push_by_lease(&self, target: u32, item: &[u8]) -> bool {
        let entered = self.lease.enter::<Shipped>(this_thread());
        entered.is_some() && self.push(target, item)
    }

    /// Whether it took the item.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub(crate) fn push(&self, target: u32, item: &[u8]) -> bool {
        let left = self.left.load(Relaxed);
        if left == 0 || item.len() != self.item_bytes.load(Relaxed) {
            return false;
        }
        let at = (target & self.mask.load(Relaxed)) as usize;
        // SAFETY: it is open, so that these are the slots of a table that nobody else has, and
        // there are `mask + 1` of them.
        let slot = unsafe { &mut *self.slots.load(Relaxed).add(at) };
        let used = usize::from(slot.used);
        if slot.target != target
            || used + item.len() > usize::from(slot.room)
            || slot.count == u16::MAX
        {
            return false;
        }
        // SAFETY: a frame that begins at `start` has `room` bytes, and nobody else has it; an item
        // of the caller's is not in it.
        unsafe {
            let space = self.memory.load(Relaxed).add(slot.start as usize + used);
            copy_nonoverlapping(item.as_ptr(), space, item.len());
        }
        slot.used = (used + item.len()) as u16;
        slot.count += 1;
        self.left.store(left - 1, Relaxed);
        true
    }

    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        self.left.load(Relaxed) > 0
    }

    /// Ends the lease; whether another thread had it. What it has pushed can then be seen.
    pub(crate) fn recall(&self) -> bool {
        self.lease.recall::<Shipped>(this_thread())
    }

    /// Closes it; the items that were pushed since it was opened.
    pub(crate) fn close(&self) -> u32 {
        let pushed = self.opened_for.load(Relaxed) - self.left.load(Relaxed);
        self.opened_for.store(0, Relaxed);
        self.left.store(0, Relaxed);
        self.slots.store(null_mut(), Relaxed);
        self.memory.store(null_mut(), Relaxed);
        pushed
    }
}

/// What `src/capi/windows.h` says of them.
#[cfg(not(any(trihop_loom, trihop_shuttle)))] // whose words are larger
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(PushWindow, left) == 0 && offset_of!(PushWindow, mask) == 4);
    assert!(offset_of!(PushWindow, slots) == 8);
    assert!(offset_of!(PushWindow, memory) == 8 + size_of::<usize>());
    assert!(offset_of!(PushWindow, item_bytes) == 8 + 2 * size_of::<usize>());
    assert!(offset_of!(PushWindow, lease) == 8 + 3 * size_of::<usize>());
};
