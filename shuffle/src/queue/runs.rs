//! Open runs: records for one final rank, gathered privately at the source before they touch a shared line.
//!
//! The table is bounded. With more ranks than slots a run gives way to the next target that maps to its slot. A run
//! begins in a short frame and moves into a long one when it outgrows that: where targets are so many that runs stay
//! short, the table stays small too.

use trihop_transport::protocol::wire::{RUN_HEADER_BYTES, RunHeader, align8};

const NOBODY: u32 = u32::MAX;

/// Bytes of a short frame, header included.
const SHORT_BYTES: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Slot {
    target: u32,
    /// Where its frame begins.
    start: u32,
    used: u16,
    /// Bytes of its frame, 0 where no run is open.
    room: u16,
    count: u16,
    /// Place in the list of open runs.
    place: u16,
}

const EMPTY: Slot = Slot {
    target: NOBODY,
    start: 0,
    used: 0,
    room: 0,
    count: 0,
    place: 0,
};

/// Frames of one length that are free.
#[derive(Debug)]
struct Free {
    frame_bytes: usize,
    starts: Vec<u32>,
}

/// Table of open runs.
#[derive(Debug)]
pub(crate) struct RunTable {
    slots: Vec<Slot>,
    /// Memory of all frames, made as it is needed.
    frames: Vec<u8>,
    short: Free,
    long: Free,
    mask: u32,
    open: Vec<u16>,
}

impl RunTable {
    /// Most slots of a table.
    const MOST_SLOTS: usize = 1 << 16;

    /// Slots for `ranks` targets with runs of at most `run_bytes` (header included, at most 65,528), whose long frames
    /// take at most `table_bytes`.
    pub fn new(ranks: u32, run_bytes: usize, table_bytes: usize) -> Self {
        let affordable = (table_bytes / run_bytes).clamp(1, Self::MOST_SLOTS);
        let slots = (ranks as usize).next_power_of_two().min(1 << affordable.ilog2());
        let free = |frame_bytes| Free {
            frame_bytes,
            starts: Vec::new(),
        };
        Self {
            slots: vec![EMPTY; slots],
            frames: Vec::new(),
            short: free(SHORT_BYTES.min(run_bytes)),
            long: free(run_bytes),
            mask: slots as u32 - 1,
            open: Vec::new(),
        }
    }

    /// Payload bytes that a run can hold.
    pub fn capacity(&self) -> usize {
        self.long.frame_bytes - RUN_HEADER_BYTES
    }

    /// Memory that the frames of the table may take, in bytes.
    pub fn bytes(&self) -> usize {
        self.slots.len() * (self.long.frame_bytes + self.short.frame_bytes)
    }

    /// Space for one more record of `bytes` in the open run of `target`.
    ///
    /// # Errors
    /// The slot whose run must leave first.
    #[inline(always)] // as its only hot caller
    pub fn push(&mut self, target: u32, bytes: usize) -> Result<&mut [u8], usize> {
        let index = (target & self.mask) as usize;
        let slot = &mut self.slots[index];
        let used = usize::from(slot.used);
        if slot.target != target || used + bytes > usize::from(slot.room) || slot.count == u16::MAX {
            return self.push_slow(index, target, bytes);
        }
        slot.used = (used + bytes) as u16;
        slot.count += 1;
        let start = slot.start as usize + used;
        Ok(&mut self.frames[start..start + bytes])
    }

    #[cold]
    fn push_slow(&mut self, index: usize, target: u32, bytes: usize) -> Result<&mut [u8], usize> {
        let slot = self.slots[index];
        let (start, room, used) = if slot.room == 0 {
            assert!(
                bytes <= self.capacity(),
                "record of {bytes} bytes for runs of {} bytes",
                self.long.frame_bytes
            );
            self.slots[index].place = self.open.len() as u16;
            self.open.push(index as u16);
            let used = RUN_HEADER_BYTES + bytes;
            let (start, room) = self.frame_for(used);
            (start, room, used)
        } else {
            let used = usize::from(slot.used) + bytes;
            let outgrown = usize::from(slot.room) < self.long.frame_bytes && used <= self.long.frame_bytes;
            if slot.target != target || !outgrown || slot.count == u16::MAX {
                return Err(index);
            }
            let (start, room) = self.frame_for(self.long.frame_bytes);
            let old = slot.start as usize;
            self.frames
                .copy_within(old..old + usize::from(slot.used), start as usize);
            self.short.starts.push(slot.start);
            (start, room, used)
        };
        self.slots[index] = Slot {
            target,
            start,
            used: used as u16,
            room: room as u16,
            count: slot.count + 1,
            ..self.slots[index]
        };
        let end = start as usize + used;
        Ok(&mut self.frames[end - bytes..end])
    }

    /// A free frame for `bytes`, and its length.
    fn frame_for(&mut self, bytes: usize) -> (u32, usize) {
        let bound = self.bytes();
        let free = if bytes <= self.short.frame_bytes {
            &mut self.short
        } else {
            &mut self.long
        };
        let start = free.starts.pop().unwrap_or_else(|| {
            let start = self.frames.len();
            if start + free.frame_bytes > self.frames.capacity() {
                // Doubled, but never beyond the bound.
                let more = start.clamp(free.frame_bytes, bound - start);
                self.frames.reserve_exact(more);
            }
            self.frames.resize(start + free.frame_bytes, 0);
            start as u32
        });
        (start, free.frame_bytes)
    }

    /// The space that the last successful `push` for `target` gave, of the same `bytes`.
    pub fn last_pushed(&mut self, target: u32, bytes: usize) -> &mut [u8] {
        let slot = self.slots[(target & self.mask) as usize];
        let end = slot.start as usize + usize::from(slot.used);
        &mut self.frames[end - bytes..end]
    }

    /// As [`RunTable::last_pushed`], to read.
    pub fn last_pushed_ref(&self, target: u32, bytes: usize) -> &[u8] {
        let slot = self.slots[(target & self.mask) as usize];
        let end = slot.start as usize + usize::from(slot.used);
        &self.frames[end - bytes..end]
    }

    /// Takes back the last record of `bytes` in the open run of `target`.
    pub fn retract(&mut self, target: u32, bytes: usize) {
        let index = (target & self.mask) as usize;
        let slot = &mut self.slots[index];
        slot.used -= bytes as u16;
        slot.count -= 1;
        if slot.count == 0 {
            self.close(index);
        }
    }

    /// The slot in which a run for `target` is open, if one is.
    pub fn open_run_of(&self, target: u32) -> Option<usize> {
        let index = (target & self.mask) as usize;
        let slot = &self.slots[index];
        (slot.target == target && slot.used > 0).then_some(index)
    }

    /// Target and finished frame of an open run.
    pub fn frame(&mut self, index: usize, source: u32) -> (u32, &[u8]) {
        let slot = self.slots[index];
        let (start, used) = (slot.start as usize, usize::from(slot.used));
        let length = align8(used);
        self.frames[start + used..start + length].fill(0);
        let frame = &mut self.frames[start..start + length];
        RunHeader {
            target: slot.target,
            source,
            count: slot.count,
            flags: 0,
        }
        .write(length, frame);
        (slot.target, frame)
    }

    /// The run in this slot has left.
    pub fn close(&mut self, index: usize) {
        let slot = std::mem::replace(&mut self.slots[index], EMPTY);
        let free = if usize::from(slot.room) == self.short.frame_bytes {
            &mut self.short
        } else {
            &mut self.long
        };
        free.starts.push(slot.start);
        let place = usize::from(slot.place);
        self.open.swap_remove(place);
        if let Some(&moved) = self.open.get(place) {
            self.slots[usize::from(moved)].place = slot.place;
        }
    }

    /// Runs that are open.
    pub fn open_runs(&self) -> usize {
        self.open.len()
    }

    /// The `at`-th open run's slot.
    pub fn open_slot(&self, at: usize) -> Option<usize> {
        self.open.get(at).map(|&i| usize::from(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use trihop_transport::protocol::wire::Run;

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Against a map of vectors: nothing is lost, mixed up or reordered, whatever evicts whatever.
        #[test]
        fn records_leave_in_the_order_in_which_they_came(
            pushes in proptest::collection::vec((0u32..40, any::<u64>()), 0..2000),
            run_bytes in prop_oneof![Just(24usize), Just(64), Just(1024)],
            table_bytes in 64usize..4096,
        ) {
            let mut table = RunTable::new(40, run_bytes, table_bytes);
            let bound = table.bytes();
            prop_assert!(bound <= 2 * table_bytes.max(run_bytes));
            let (mut sent, mut got): (HashMap<u32, Vec<u64>>, HashMap<u32, Vec<u64>>) = Default::default();
            let mut leave = |table: &mut RunTable, index: usize| {
                let (target, frame) = table.frame(index, 7);
                let (run, rest) = Run::split(frame, 40).unwrap();
                assert!(rest.is_empty());
                assert_eq!(run.header.target, target);
                let items = run.payload.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap()));
                got.entry(target).or_default().extend(items.take(run.header.count as usize));
                table.close(index);
            };
            for (target, value) in pushes {
                sent.entry(target).or_default().push(value);
                loop {
                    match table.push(target, 8) {
                        Ok(space) => { space.copy_from_slice(&value.to_le_bytes()); break }
                        Err(index) => leave(&mut table, index),
                    }
                }
            }
            while let Some(index) = table.open_slot(0) {
                leave(&mut table, index);
            }
            prop_assert!(table.frames.len() <= bound, "{} bytes of frames", table.frames.len());
            prop_assert_eq!(sent, got);
        }
    }
}
