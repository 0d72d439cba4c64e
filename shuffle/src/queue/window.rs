//! Open runs as pushes and sends see them that need nothing else of a job, in Rust and in C.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::ptr::{copy_nonoverlapping, null_mut};

use trihop_transport::park::{Lease, this_thread};
use trihop_transport::protocol::wire::{RECORD_HEADER_BYTES, RecordHeader, align8};
use trihop_transport::ring::Shipped;
use trihop_transport::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};
use zerocopy::IntoBytes;

use super::runs::Slot;
use super::words;

/// What a window says of its items where it takes records: no run has room for one of that length.
const NO_ITEMS: usize = usize::MAX / 2;

/// What a window takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Items of so many bytes.
    Items(usize),
    /// Records of at most so many.
    Records(usize),
}

/// What has gone through a window since it was opened: items or records, and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub count: u32,
    pub bytes: u64,
}

/// A view of a stream's open runs, into which items or records go. It is open while nobody has the
/// state of the job, or while a handler runs that has that: who uses it closes the view first, and
/// so nobody else has the runs meanwhile. Of a job with threads, one of them has it by a lease.
///
/// Its words are atomic only for the compiler: nobody uses them at the same time as another, but
/// that others look how many pushes are left, and who has the lease.
///
/// `trihop.h` has the code of a push and of a send too, so that programs have the fields, but the
/// last, compiled into them: for another layout, a stream needs another window, and never opens
/// this one.
#[repr(C)]
#[derive(Debug)]
pub struct PushWindow {
    /// Pushes or sends until a call is due; none while it is closed.
    left: AtomicU32,
    /// Slots are found by the bits of their target that are set here.
    mask: AtomicU32,
    slots: AtomicPtr<Slot>,
    /// Where frames begin.
    memory: AtomicPtr<u8>,
    /// [`NO_ITEMS`] where it takes records.
    item_bytes: AtomicUsize,
    /// Who pushes.
    lease: Lease,
    /// Length of the longest record.
    longest: AtomicUsize,
    /// Bytes of the records that it took.
    bytes: AtomicUsize,
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
            longest: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            opened_for: AtomicU32::new(0),
        }
    }

    /// Opens it for so many items or records.
    pub(super) fn open(&self, slots: &mut [Slot], memory: &mut [u8], takes: Takes, most: u32) {
        let (item_bytes, longest) = match takes {
            Takes::Items(bytes) => (bytes, 0),
            Takes::Records(longest) => (NO_ITEMS, longest),
        };
        self.longest.store(longest, Relaxed);
        self.bytes.store(0, Relaxed);
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
        let Some(entered) = self.lease.enter::<Shipped>(this_thread()) else {
            return false;
        };
        let is_pushed = self.push(target, item);
        drop(entered);
        if !is_pushed {
            self.give_up();
        }
        is_pushed
    }

    /// As [`PushWindow::push_by_lease`], for a record.
    #[inline(always)] // part of every send
    pub(crate) fn send_by_lease(&self, target: u32, kind: u32, bytes: &[u8]) -> bool {
        let Some(entered) = self.lease.enter::<Shipped>(this_thread()) else {
            return false;
        };
        let is_sent = self.send(target, kind, bytes);
        drop(entered);
        if !is_sent && bytes.len() <= self.longest() {
            self.give_up();
        }
        is_sent
    }

    /// Whether it took the item.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub(crate) fn push(&self, target: u32, item: &[u8]) -> bool {
        if item.len() != self.item_bytes.load(Relaxed) {
            return false;
        }
        let Some(space) = self.take(target, item.len()) else {
            return false;
        };
        // SAFETY: so many bytes are there, and nobody else has them; an item of the caller's is not
        // in them.
        unsafe { copy_nonoverlapping(item.as_ptr(), space, item.len()) };
        true
    }

    /// Whether it took the record.
    #[inline(always)] // part of every send
    pub(crate) fn send(&self, target: u32, kind: u32, bytes: &[u8]) -> bool {
        let takes_records = self.item_bytes.load(Relaxed) == NO_ITEMS;
        if !takes_records || bytes.len() > self.longest() {
            return false;
        }
        let padded = align8(bytes.len());
        let Some(space) = self.take(target, RECORD_HEADER_BYTES + padded) else {
            return false;
        };
        let header = RecordHeader {
            kind: kind.into(),
            length: (bytes.len() as u32).into(),
        };
        // SAFETY: as for an item: a header, the record, and zeros up to the next multiple of 8 are
        // as many bytes. They are in the last 8, which the record overwrites in part.
        unsafe {
            copy_nonoverlapping(header.as_bytes().as_ptr(), space, RECORD_HEADER_BYTES);
            if padded > bytes.len() {
                space.add(padded).cast::<u64>().write_unaligned(0);
            }
            let record = space.add(RECORD_HEADER_BYTES);
            words::copy(bytes, record);
        }
        self.bytes
            .store(self.bytes.load(Relaxed) + bytes.len(), Relaxed);
        true
    }

    /// So many bytes more of the open run of `target`, where it is open and that run has them.
    #[inline(always)] // part of every push and send
    fn take(&self, target: u32, bytes: usize) -> Option<*mut u8> {
        let left = self.left.load(Relaxed);
        if left == 0 {
            return None;
        }
        let at = (target & self.mask.load(Relaxed)) as usize;
        // SAFETY: it is open, so that these are the slots of a table that nobody else has, and
        // there are `mask + 1` of them.
        let slot = unsafe { &mut *self.slots.load(Relaxed).add(at) };
        let used = usize::from(slot.used);
        if slot.target != target || used + bytes > usize::from(slot.room) || slot.count == u16::MAX
        {
            return None;
        }
        slot.used = (used + bytes) as u16;
        slot.count += 1;
        self.left.store(left - 1, Relaxed);
        // SAFETY: a frame that begins at `start` has `room` bytes, and nobody else has it.
        Some(unsafe { self.memory.load(Relaxed).add(slot.start as usize + used) })
    }

    /// Length of the longest record that it takes, or took when it was open.
    #[inline]
    pub(crate) fn longest(&self) -> usize {
        self.longest.load(Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        self.left.load(Relaxed) > 0 && self.lease.is_held()
    }

    /// The calling thread sends through it no more, if it has the lease: who recalls that waits for
    /// nothing then.
    #[cold]
    pub(crate) fn give_up(&self) {
        self.lease.give_up::<Shipped>(this_thread());
    }

    /// Whether the calling thread has the lease, and has sent nothing through it so far.
    pub(crate) fn is_unused_here(&self) -> bool {
        let is_here = self.lease.is_with(this_thread());
        is_here && self.left.load(Relaxed) == self.opened_for.load(Relaxed)
    }

    /// Whether the thread that had it has [given it up](Self::give_up), or nobody ever had it.
    pub(crate) fn is_given_up(&self) -> bool {
        !self.lease.is_held()
    }

    /// Whether another thread than this has the lease, and how many it may push yet.
    pub(crate) fn left_to_another(&self) -> Option<u32> {
        let is_others = self.lease.is_with_another(this_thread());
        is_others.then(|| self.left.load(Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn is_open_here(&self) -> bool {
        self.is_open() && self.lease.is_with(this_thread())
    }

    /// Ends the lease; whether another thread had it. What it has pushed can then be seen.
    pub(crate) fn recall(&self) -> bool {
        self.lease.recall::<Shipped>(this_thread())
    }

    /// Closes it; what has gone through it since it was opened.
    pub(crate) fn close(&self) -> Pushed {
        let count = self.opened_for.load(Relaxed) - self.left.load(Relaxed);
        let bytes = match self.item_bytes.load(Relaxed) {
            NO_ITEMS => self.bytes.load(Relaxed) as u64,
            item_bytes => u64::from(count) * item_bytes as u64,
        };
        self.opened_for.store(0, Relaxed);
        self.left.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.slots.store(null_mut(), Relaxed);
        self.memory.store(null_mut(), Relaxed);
        Pushed { count, bytes }
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
    let behind = 8 + 3 * size_of::<usize>() + size_of::<Lease>();
    assert!(offset_of!(PushWindow, longest) == behind);
    assert!(offset_of!(PushWindow, bytes) == behind + size_of::<usize>());
};
