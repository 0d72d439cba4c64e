//! Open runs as pushes see them that need nothing else of a job, in Rust and in C.

use std::cell::Cell;
use std::ptr::{copy_nonoverlapping, null_mut};

use super::runs::Slot;

/// A view of a stream's open runs, into which items are pushed. It is open while nobody has the
/// state of the job: who borrows that closes it first, and so nobody else has the runs meanwhile.
///
/// `trihop.h` has the code of a push too, so that programs have the fields, as far as
/// `item_bytes`, compiled into them: for another layout, a stream needs another window, and never
/// opens this one.
#[repr(C)]
#[derive(Debug)]
pub struct PushWindow {
    /// Pushes until a call is due; none while it is closed.
    left: Cell<u32>,
    /// Slots are found by the bits of their target that are set here.
    mask: Cell<u32>,
    slots: Cell<*mut Slot>,
    /// Where frames begin.
    memory: Cell<*mut u8>,
    item_bytes: Cell<usize>,
    /// `left` when it was opened.
    opened_for: Cell<u32>,
}

impl Default for PushWindow {
    fn default() -> Self {
        Self {
            left: Cell::new(0),
            mask: Cell::new(0),
            slots: Cell::new(null_mut()),
            memory: Cell::new(null_mut()),
            item_bytes: Cell::new(0),
            opened_for: Cell::new(0),
        }
    }
}

impl PushWindow {
    /// Opens it for so many items of a size.
    pub(super) fn open(&self, slots: &mut [Slot], memory: &mut [u8], item_bytes: usize, most: u32) {
        self.mask.set(slots.len() as u32 - 1);
        self.slots.set(slots.as_mut_ptr());
        self.memory.set(memory.as_mut_ptr());
        self.item_bytes.set(item_bytes);
        self.opened_for.set(most);
        self.left.set(most);
    }

    /// Whether it took the item.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub(crate) fn push(&self, target: u32, item: &[u8]) -> bool {
        let left = self.left.get();
        if left == 0 || item.len() != self.item_bytes.get() {
            return false;
        }
        // SAFETY: it is open, so that these are the slots of a table that nobody else has, and
        // there are `mask + 1` of them.
        let slot = unsafe { &mut *self.slots.get().add((target & self.mask.get()) as usize) };
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
            let space = self.memory.get().add(slot.start as usize + used);
            copy_nonoverlapping(item.as_ptr(), space, item.len());
        }
        slot.used = (used + item.len()) as u16;
        slot.count += 1;
        self.left.set(left - 1);
        true
    }

    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        self.left.get() > 0
    }

    /// Closes it; the items that were pushed since it was opened.
    pub(crate) fn close(&self) -> u32 {
        let pushed = self.opened_for.take() - self.left.take();
        self.slots.set(null_mut());
        self.memory.set(null_mut());
        pushed
    }
}

/// What `src/capi/windows.h` says of them.
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(PushWindow, left) == 0 && offset_of!(PushWindow, mask) == 4);
    assert!(offset_of!(PushWindow, slots) == 8);
    assert!(offset_of!(PushWindow, memory) == 8 + size_of::<usize>());
    assert!(offset_of!(PushWindow, item_bytes) == 8 + 2 * size_of::<usize>());
};
