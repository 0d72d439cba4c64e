//! Open runs: records for one final rank, gathered privately at the source before they touch a
//! shared line.
//!
//! The table is bounded, and adapts to how many targets there are. A run begins in a short frame
//! and moves into a long one when it outgrows that, if one is free. Two targets that share a slot
//! take turns: each closes the run of the other. Where that happens much the table doubles its
//! slots, until short frames use up what they may.

use trihop_transport::protocol::wire::{RUN_HEADER_BYTES, RunHeader, align8};
use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

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

/// Frames of one length.
#[derive(Debug)]
struct Frames {
    frame_bytes: usize,
    /// Where those begin that are free.
    free: Vec<u32>,
    made: usize,
    most: usize,
}

impl Frames {
    fn new(frame_bytes: usize, most: usize) -> Self {
        Self {
            frame_bytes,
            free: Vec::new(),
            made: 0,
            most,
        }
    }

    fn bytes(&self) -> usize {
        self.most * self.frame_bytes
    }

    fn in_use_bytes(&self) -> usize {
        (self.made - self.free.len()) * self.frame_bytes
    }

    fn has_free(&self) -> bool {
        !self.free.is_empty() || self.made < self.most
    }

    /// Takes a free frame; `memory` grows where none came back yet.
    fn take(&mut self, memory: &mut Vec<u8>, bound: usize) -> u32 {
        if let Some(start) = self.free.pop() {
            return start;
        }
        debug_assert!(self.made < self.most, "asked `has_free` first");
        self.made += 1;
        let start = memory.len();
        if start + self.frame_bytes > memory.capacity() {
            // Doubled, but never beyond the bound.
            memory.reserve_exact(start.clamp(self.frame_bytes, bound - start));
        }
        memory.resize(start + self.frame_bytes, 0);
        start as u32
    }
}

/// Slots of a new table.
const FIRST_SLOTS: usize = 16;

/// Table of open runs.
#[derive(Debug)]
pub(crate) struct RunTable {
    slots: Vec<Slot>,
    most_slots: usize,
    /// Runs that gave way to another target since the table last grew.
    conflicts: usize,
    /// Target whose push waits for another's run to leave.
    refused: Option<u32>,
    /// Memory of all frames, made as it is needed.
    memory: Vec<u8>,
    short: Frames,
    long: Frames,
    open: Vec<u16>,
    /// Place in `open` from which to look for a long run that can make room.
    hand: usize,
}

impl RunTable {
    /// Runs of at most `run_bytes` (header included, at most 65,528) for `ranks` targets. Short
    /// frames take at most `table_bytes`, and long ones as much again.
    pub fn new(ranks: u32, run_bytes: usize, table_bytes: usize) -> Self {
        let targets = (ranks as usize).next_power_of_two();
        let short_bytes = SHORT_BYTES.min(run_bytes);
        let affordable = (table_bytes / short_bytes).clamp(1, 1 << 16);
        let most_slots = targets.min(1 << affordable.ilog2());
        let slots = most_slots.min(FIRST_SLOTS);
        Self {
            slots: vec![EMPTY; slots],
            most_slots,
            conflicts: 0,
            refused: None,
            memory: Vec::new(),
            short: Frames::new(short_bytes, most_slots),
            long: Frames::new(run_bytes, (table_bytes / run_bytes).clamp(1, most_slots)),
            open: Vec::new(),
            hand: 0,
        }
    }

    /// The slot that `target` maps to; there is a power of two of them.
    #[inline(always)] // part of every push
    fn index_of(&self, target: u32) -> usize {
        target as usize & (self.slots.len() - 1)
    }

    /// Payload bytes that a run can hold.
    pub fn capacity(&self) -> usize {
        self.long.frame_bytes - RUN_HEADER_BYTES
    }

    /// Memory that the frames of the table may take, in bytes.
    pub fn bytes(&self) -> usize {
        self.short.bytes() + self.long.bytes() + self.most_slots * size_of::<Slot>()
    }

    /// Of these, what open runs and the slots of the table take now.
    pub fn in_use_bytes(&self) -> usize {
        self.short.in_use_bytes() + self.long.in_use_bytes() + self.slots.len() * size_of::<Slot>()
    }

    /// Space for one more record of `bytes` in the open run of `target`.
    ///
    /// # Errors
    /// A slot whose run must leave first; there may be one more after it.
    #[inline(always)] // as its only hot caller
    pub fn push(&mut self, target: u32, bytes: usize) -> Result<&mut [u8], usize> {
        let index = self.index_of(target);
        let slot = &mut self.slots[index];
        let used = usize::from(slot.used);
        if slot.target != target || used + bytes > usize::from(slot.room) || slot.count == u16::MAX
        {
            return self.push_slow(index, target, bytes);
        }
        slot.used = (used + bytes) as u16;
        slot.count += 1;
        let start = slot.start as usize + used;
        Ok(&mut self.memory[start..start + bytes])
    }

    /// Appends items to open runs, `most` at a time. What a loop over [`RunTable::push`] would do,
    /// but tight: nothing of the table is looked up twice.
    pub fn gather<T: IntoBytes + Immutable>(
        &mut self,
        most: usize,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> (u64, Stop<T>) {
        gather(&mut self.slots, &mut self.memory, most, items)
    }

    #[cold]
    fn push_slow(
        &mut self,
        mut index: usize,
        target: u32,
        bytes: usize,
    ) -> Result<&mut [u8], usize> {
        if self.slots[index].room > 0 && self.slots[index].target != target {
            // Once per run that has to leave, however often the push is tried.
            if self.refused != Some(target) {
                self.refused = Some(target);
                self.conflicts += 1;
            }
            if self.conflicts <= self.slots.len() || self.slots.len() == self.most_slots {
                return Err(index);
            }
            self.double();
            index = self.index_of(target);
            if self.slots[index].room > 0 && self.slots[index].target != target {
                return Err(index);
            }
        }
        let slot = self.slots[index];
        let bound = self.short.bytes() + self.long.bytes();
        if slot.room == 0 {
            let used = RUN_HEADER_BYTES + bytes;
            let fits_short = used <= self.short.frame_bytes;
            assert!(
                used <= self.long.frame_bytes,
                "record of {bytes} bytes for runs of {} bytes",
                self.long.frame_bytes
            );
            if !fits_short && !self.long.has_free() {
                return Err(self.next_long());
            }
            let frames = if fits_short {
                &mut self.short
            } else {
                &mut self.long
            };
            let start = frames.take(&mut self.memory, bound);
            self.slots[index] = Slot {
                target,
                start,
                used: used as u16,
                room: frames.frame_bytes as u16,
                count: 1,
                place: self.open.len() as u16,
            };
            self.open.push(index as u16);
        } else {
            let used = usize::from(slot.used) + bytes;
            let outgrown =
                usize::from(slot.room) < self.long.frame_bytes && used <= self.long.frame_bytes;
            if !outgrown || slot.count == u16::MAX || !self.long.has_free() {
                return Err(index);
            }
            let start = self.long.take(&mut self.memory, bound);
            let old = slot.start as usize;
            self.memory
                .copy_within(old..old + usize::from(slot.used), start as usize);
            self.short.free.push(slot.start);
            self.slots[index] = Slot {
                start,
                used: used as u16,
                room: self.long.frame_bytes as u16,
                count: slot.count + 1,
                ..slot
            };
        }
        Ok(self.last_pushed(target, bytes))
    }

    /// The slot of a long run, another one each time: any of them makes room.
    fn next_long(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.open.len();
            let index = usize::from(self.open[self.hand]);
            if usize::from(self.slots[index].room) == self.long.frame_bytes {
                return index;
            }
        }
    }

    /// Twice as many slots. Targets that shared one may part, none that did not come together.
    fn double(&mut self) {
        let slots = 2 * self.slots.len();
        self.conflicts = 0;
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots]);
        for open in &mut self.open {
            let slot = old[usize::from(*open)];
            *open = (slot.target as usize & (slots - 1)) as u16;
            self.slots[usize::from(*open)] = slot;
        }
    }

    /// The space that the last successful `push` for `target` gave, of the same `bytes`.
    pub fn last_pushed(&mut self, target: u32, bytes: usize) -> &mut [u8] {
        let slot = self.slots[self.index_of(target)];
        let end = slot.start as usize + usize::from(slot.used);
        &mut self.memory[end - bytes..end]
    }

    /// As [`RunTable::last_pushed`], to read.
    pub fn last_pushed_ref(&self, target: u32, bytes: usize) -> &[u8] {
        let slot = self.slots[self.index_of(target)];
        let end = slot.start as usize + usize::from(slot.used);
        &self.memory[end - bytes..end]
    }

    /// Takes back the last record of `bytes` in the open run of `target`.
    pub fn retract(&mut self, target: u32, bytes: usize) {
        let index = self.index_of(target);
        let slot = &mut self.slots[index];
        slot.used -= bytes as u16;
        slot.count -= 1;
        if slot.count == 0 {
            self.close(index);
        }
    }

    /// The slot in which a run for `target` is open, if one is.
    pub fn open_run_of(&self, target: u32) -> Option<usize> {
        let index = self.index_of(target);
        let slot = &self.slots[index];
        (slot.target == target && slot.used > 0).then_some(index)
    }

    /// Target and finished frame of an open run.
    pub fn frame(&mut self, index: usize, source: u32) -> (u32, &[u8]) {
        let slot = self.slots[index];
        let (start, used) = (slot.start as usize, usize::from(slot.used));
        let length = align8(used);
        self.memory[start + used..start + length].fill(0);
        let frame = &mut self.memory[start..start + length];
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
        self.refused = None;
        let frames = if usize::from(slot.room) == self.short.frame_bytes {
            &mut self.short
        } else {
            &mut self.long
        };
        frames.free.push(slot.start);
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

    /// Whom the open runs are for.
    pub fn open_targets(&self) -> impl Iterator<Item = u32> {
        self.open
            .iter()
            .map(|&slot| self.slots[usize::from(slot)].target)
    }

    /// The `at`-th open run's slot.
    pub fn open_slot(&self, at: usize) -> Option<usize> {
        self.open.get(at).map(|&i| usize::from(i))
    }
}

/// Why [`RunTable::gather`] stopped.
pub(crate) enum Stop<T> {
    /// There are no more items.
    End,
    /// As many as asked for were taken.
    Enough,
    /// This one has no room in an open run of its target.
    At(Rank, T),
}

// A function of its own, so that the compiler knows that slots and frames do not overlap, and has
// registers to spare.
#[inline(never)]
fn gather<T: IntoBytes + Immutable>(
    slots: &mut [Slot],
    memory: &mut [u8],
    most: usize,
    items: &mut impl Iterator<Item = (Rank, T)>,
) -> (u64, Stop<T>) {
    // An empty slot has room for nothing, which an item of no bytes would fit.
    const { assert!(size_of::<T>() > 0, "an item has bytes") };
    let bytes = size_of::<T>();
    for taken in 0..most as u64 {
        let Some((target, item)) = items.next() else {
            return (taken, Stop::End);
        };
        let index = target.0 as usize & (slots.len() - 1);
        let slot = &mut slots[index];
        let used = usize::from(slot.used);
        let fits = used + bytes <= usize::from(slot.room) && slot.count != u16::MAX;
        if slot.target != target.0 || !fits {
            return (taken, Stop::At(target, item));
        }
        slot.used = (used + bytes) as u16;
        slot.count += 1;
        let start = slot.start as usize + used;
        memory[start..start + bytes].copy_from_slice(item.as_bytes());
    }
    (most as u64, Stop::Enough)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use trihop_transport::protocol::wire::Run;

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Against a map of vectors: nothing is lost, mixed up or reordered, whatever evicts
        /// whatever.
        #[test]
        fn records_leave_in_the_order_in_which_they_came(
            targets in prop_oneof![1u32..50, Just(700)],
            pushes in proptest::collection::vec((any::<u32>(), any::<u64>()), 0..3000),
            run_bytes in prop_oneof![Just(24usize), Just(64), Just(1024)],
            table_bytes in 64usize..16384,
            item_bytes in prop_oneof![Just(8usize), Just(8), Just(56)],
        ) {
            let item_bytes = item_bytes.min(run_bytes - RUN_HEADER_BYTES) & !7;
            let mut table = RunTable::new(targets, run_bytes, table_bytes);
            let bound = table.bytes();
            prop_assert!(bound <= 3 * table_bytes.max(run_bytes), "{bound} bytes");
            let (mut sent, mut got): (HashMap<u32, Vec<u64>>, HashMap<u32, Vec<u64>>) = Default::default();
            let mut leave = |table: &mut RunTable, index: usize| {
                assert!((1..=bound).contains(&table.in_use_bytes()));
                let (target, frame) = table.frame(index, 0);
                let (run, rest) = Run::split(frame, targets).unwrap();
                assert!(rest.is_empty());
                assert_eq!(run.header.target, target);
                let items = run.payload.chunks_exact(item_bytes).map(|c| u64::from_le_bytes(c[..8].try_into().unwrap()));
                got.entry(target).or_default().extend(items.take(run.header.count as usize));
                table.close(index);
            };
            for (target, value) in pushes {
                let target = target % targets;
                sent.entry(target).or_default().push(value);
                loop {
                    match table.push(target, item_bytes) {
                        Ok(space) => { space[..8].copy_from_slice(&value.to_le_bytes()); break }
                        Err(index) => leave(&mut table, index),
                    }
                }
            }
            while let Some(index) = table.open_slot(0) {
                leave(&mut table, index);
            }
            prop_assert_eq!(table.in_use_bytes(), table.slots.len() * size_of::<Slot>());
            prop_assert!(table.memory.len() <= bound, "{} bytes of frames", table.memory.len());
            prop_assert_eq!(sent, got);
        }
    }

    #[test]
    fn a_push_that_is_refused_again_and_again_does_not_grow_the_table() {
        let mut table = RunTable::new(1024, 1024, 1 << 20);
        let (first, second) = (0, FIRST_SLOTS as u32);
        table.push(first, 8).expect("an empty table has room");
        for _ in 0..1000 {
            assert_eq!(table.push(second, 8), Err(0), "its slot is taken");
        }
        assert_eq!(table.slots.len(), FIRST_SLOTS);
        // The table grows because runs leave for each other.
        for target in [second, first].into_iter().cycle().take(2 * FIRST_SLOTS) {
            if let Err(index) = table.push(target, 8) {
                table.close(index);
                table.push(target, 8).expect("its slot is free now");
            }
        }
        assert_eq!(table.slots.len(), 2 * FIRST_SLOTS);
    }
}
