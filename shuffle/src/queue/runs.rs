//! Open runs: records for one final rank, gathered privately at the source before they touch a
//! shared line.
//!
//! The table is bounded, and adapts to how many targets there are. A run begins in a short frame.
//! When it outgrows that, it moves into the longest that runs have while there is plenty of
//! memory, and else into one of twice the length. Where no frame can be had, one of the longest
//! runs leaves, so that all targets have about as much: `open` has runs by the class of their
//! frames, and the fullest of a few of a class is taken. What is in a run changes with each push,
//! for which no order of them is kept. Two targets that share a slot take turns: each closes the
//! run of the other. Where that happens much the table doubles its slots, until short frames would
//! use up what they may.

use std::ops::ControlFlow;

use trihop_transport::protocol::wire::{RUN_HEADER_BYTES, RunHeader, align8};
use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use super::frames::Frames;
use super::window::{PushWindow, Takes};
use super::words;

const NOBODY: u32 = u32::MAX;

/// Bytes of a short frame, header included.
const SHORT_BYTES: usize = 64;

/// Programs in C have this layout compiled into them, as [`PushWindow`] says.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub target: u32,
    /// Where its frame begins.
    pub start: u32,
    pub used: u16,
    /// Bytes of its frame, 0 where no run is open.
    pub room: u16,
    pub count: u16,
    /// Place in the list of open runs of its class.
    place: u16,
}

// A power of two, so that slots are found by a shift; and what `src/capi/windows.h` says.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Slot>() == 16 && offset_of!(Slot, start) == 4);
    assert!(offset_of!(Slot, used) == 8 && offset_of!(Slot, room) == 10);
    assert!(offset_of!(Slot, count) == 12 && offset_of!(Slot, place) == 14);
};

const EMPTY: Slot = Slot {
    target: NOBODY,
    start: 0,
    used: 0,
    room: 0,
    count: 0,
    place: 0,
};

/// What a slot takes, with what was last seen of its run.
const SLOT_BYTES: usize = size_of::<Slot>() + size_of::<u16>();

/// Runs of a class that are looked at for the fullest.
const LOOKED_AT: usize = 8;

/// Slots of a new table.
const FIRST_SLOTS: usize = 16;

/// Table of open runs.
#[derive(Debug)]
pub(crate) struct RunTable {
    slots: Vec<Slot>,
    /// Records of each slot's run when it was last asked whether that rests.
    looked_at: Vec<u16>,
    most_slots: usize,
    /// Runs that gave way to another target since the table last grew.
    conflicts: usize,
    /// Target whose push waits for another's run to leave.
    refused: Option<u32>,
    frames: Frames,
    /// Longest run, header included.
    run_bytes: usize,
    /// Slots of open runs, by the class of their frames.
    open: Vec<Vec<u16>>,
    /// How many these are.
    open_runs: usize,
    /// Where of a class the search for the fullest has ended.
    hand: usize,
    /// A run was to make room, and none has left since.
    is_awaited: bool,
}

impl RunTable {
    /// Runs of at most `run_bytes` (header included, at most 65,528) for `ranks` targets. Short
    /// frames for all slots take at most `table_bytes`, and all frames twice that.
    pub fn new(ranks: u32, run_bytes: usize, table_bytes: usize) -> Self {
        let targets = (ranks as usize).next_power_of_two();
        let short_bytes = SHORT_BYTES.min(run_bytes);
        let affordable = (table_bytes / short_bytes).clamp(1, 1 << 16);
        let most_slots = targets.min(1 << affordable.ilog2());
        let slots = most_slots.min(FIRST_SLOTS);
        let bytes = (2 * table_bytes).min(2 * run_bytes * most_slots);
        let frames = Frames::new(short_bytes, run_bytes, bytes);
        Self {
            slots: vec![EMPTY; slots],
            looked_at: vec![0; slots],
            most_slots,
            conflicts: 0,
            refused: None,
            open: vec![Vec::new(); frames.classes()],
            open_runs: 0,
            frames,
            run_bytes,
            hand: 0,
            is_awaited: false,
        }
    }

    /// The slot that `target` maps to; there is a power of two of them.
    #[inline(always)] // part of every push
    fn index_of(&self, target: u32) -> usize {
        target as usize & (self.slots.len() - 1)
    }

    /// Payload bytes that a run can hold.
    pub fn capacity(&self) -> usize {
        self.run_bytes - RUN_HEADER_BYTES
    }

    /// Memory that the frames of the table may take, in bytes.
    pub fn bytes(&self) -> usize {
        self.frames.bytes() + self.most_slots * SLOT_BYTES
    }

    /// Of these, what open runs and the slots of the table take now.
    pub fn in_use_bytes(&self) -> usize {
        self.frames.in_use_bytes() + self.slots.len() * SLOT_BYTES
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
        Ok(&mut self.frames.memory[start..start + bytes])
    }

    /// Appends items to open runs, `most` at a time. What a loop over [`RunTable::push`] would do,
    /// but tight: nothing of the table is looked up twice.
    pub fn gather<T: IntoBytes + Immutable>(
        &mut self,
        most: usize,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> (u64, Stop<T>) {
        gather(&mut self.slots, &mut self.frames.memory, most, items)
    }

    /// As what runs that have left leave.
    #[cfg(test)]
    pub fn fill_frames(&mut self, byte: u8) {
        self.frames.memory.fill(byte);
    }

    /// Opens a view of the runs for `most` items or records.
    pub fn open_window(&mut self, window: &PushWindow, takes: Takes, most: u32) {
        window.open(&mut self.slots, &mut self.frames.memory, takes, most);
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
        let is_new = slot.room == 0;
        let used = if is_new {
            RUN_HEADER_BYTES
        } else {
            usize::from(slot.used)
        } + bytes;
        assert!(
            RUN_HEADER_BYTES + bytes <= self.run_bytes,
            "record of {bytes} bytes for runs of {} bytes",
            self.run_bytes
        );
        if used > self.run_bytes || slot.count == u16::MAX {
            return Err(index);
        }
        let class = match !is_new && self.frames.are_plenty() {
            true => self.frames.classes() - 1,
            false => self.frames.class_for(used),
        };
        let enough = self.frames.class_for(used);
        let mut class = class;
        let start = self.frames.take(class).or_else(|| {
            class = enough;
            self.frames.take(enough)
        });
        let Some(start) = start else {
            // No other run has a longer frame than one that asks for the longest next.
            let longest = self.longest_open();
            let is_longest = !is_new && longest == self.class_of(&slot);
            return Err(if is_longest {
                index
            } else {
                self.fullest_of(longest)
            });
        };
        let mut count = 1;
        if is_new {
            self.open_runs += 1;
        } else {
            let old = slot.start as usize;
            self.frames
                .memory
                .copy_within(old..old + usize::from(slot.used), start as usize);
            self.frames.give_back(slot.start, self.class_of(&slot));
            self.unlist(&slot);
            count += slot.count;
        }
        self.slots[index] = Slot {
            target,
            start,
            used: used as u16,
            room: self.frames.bytes_of(class).min(self.run_bytes) as u16,
            count,
            place: self.open[class].len() as u16,
        };
        self.open[class].push(index as u16);
        Ok(self.last_pushed(target, bytes))
    }

    /// The class of the frame of an open run.
    fn class_of(&self, slot: &Slot) -> usize {
        self.frames.class_for(usize::from(slot.room))
    }

    /// The class of the longest frames that open runs have; there is an open run.
    fn longest_open(&self) -> usize {
        let is_open = |open: &Vec<u16>| !open.is_empty();
        self.open.iter().rposition(is_open).unwrap_or(0)
    }

    /// The slot of the fullest run of a class; of many, of the next few, so that each has its turn.
    /// Where the last one could not leave, of the next one: others need not wait for its target.
    fn fullest_of(&mut self, class: usize) -> usize {
        let open = &self.open[class];
        let looked_at = match std::mem::replace(&mut self.is_awaited, true) {
            true => 1,
            false => LOOKED_AT.min(open.len()),
        };
        let next = (0..looked_at).map(|at| open[(self.hand + at) % open.len()]);
        let fullest = next.max_by_key(|&index| self.slots[usize::from(index)].used);
        self.hand = (self.hand + looked_at) % open.len();
        usize::from(fullest.expect("there is an open run of the class"))
    }

    /// An open run is no more in the list of its class.
    fn unlist(&mut self, slot: &Slot) {
        let class = self.class_of(slot);
        let (open, place) = (&mut self.open[class], slot.place);
        open.swap_remove(usize::from(place));
        if let Some(&moved) = open.get(usize::from(place)) {
            self.slots[usize::from(moved)].place = place;
        }
    }

    /// Twice as many slots. Targets that shared one may part, none that did not come together.
    fn double(&mut self) {
        let slots = 2 * self.slots.len();
        self.conflicts = 0;
        self.looked_at = vec![0; slots];
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots]);
        for open in self.open.iter_mut().flatten() {
            let slot = old[usize::from(*open)];
            *open = (slot.target as usize & (slots - 1)) as u16;
            self.slots[usize::from(*open)] = slot;
        }
    }

    /// The space that the last successful `push` for `target` gave, of the same `bytes`.
    pub fn last_pushed(&mut self, target: u32, bytes: usize) -> &mut [u8] {
        let slot = self.slots[self.index_of(target)];
        let end = slot.start as usize + usize::from(slot.used);
        &mut self.frames.memory[end - bytes..end]
    }

    /// As [`RunTable::last_pushed`], to read.
    pub fn last_pushed_ref(&self, target: u32, bytes: usize) -> &[u8] {
        let slot = self.slots[self.index_of(target)];
        let end = slot.start as usize + usize::from(slot.used);
        &self.frames.memory[end - bytes..end]
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
        let memory = &mut self.frames.memory;
        memory[start + used..start + length].fill(0);
        let frame = &mut memory[start..start + length];
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
        self.is_awaited = false;
        self.looked_at[index] = 0;
        self.frames.give_back(slot.start, self.class_of(&slot));
        self.unlist(&slot);
        self.open_runs -= 1;
    }

    /// Runs that are open.
    #[inline]
    pub fn open_runs(&self) -> usize {
        self.open_runs
    }

    /// Whom the open runs are for.
    pub fn open_targets(&self) -> impl Iterator<Item = u32> {
        let open = self.open.iter().flatten();
        open.map(|&slot| self.slots[usize::from(slot)].target)
    }

    /// Whether nothing was added to an open run since this was last asked of it.
    pub fn is_resting(&mut self, index: usize) -> bool {
        let count = self.slots[index].count;
        std::mem::replace(&mut self.looked_at[index], count) == count
    }

    /// The `at`-th open run's slot.
    pub fn open_slot(&self, at: usize) -> Option<usize> {
        let mut left = at;
        self.open.iter().find_map(|open| match open.get(left) {
            Some(&index) => Some(usize::from(index)),
            None => {
                left -= open.len();
                None
            }
        })
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
    if most == 0 {
        return (0, Stop::Enough);
    }
    // The iterator calls this with each item, which so is moved nowhere before it is gathered. It
    // owns all that it uses: where the iterator's loop is a function of its own, that keeps it in
    // registers.
    let gathered = items.try_fold(0, move |taken: u64, (target, item)| {
        let index = target.0 as usize & (slots.len() - 1);
        let slot = &mut slots[index];
        let used = usize::from(slot.used);
        let fits = used + bytes <= usize::from(slot.room) && slot.count != u16::MAX;
        if slot.target != target.0 || !fits {
            return ControlFlow::Break((taken, Stop::At(target, item)));
        }
        slot.used = (used + bytes) as u16;
        slot.count += 1;
        let start = slot.start as usize + used;
        let place = &mut memory[start..start + bytes];
        match bytes {
            // SAFETY: the place is as long as the item, which is none of it.
            9..=64 => unsafe { words::copy(item.as_bytes(), place.as_mut_ptr()) },
            _ => place.copy_from_slice(item.as_bytes()),
        }
        match taken + 1 == most as u64 {
            true => ControlFlow::Break((most as u64, Stop::Enough)),
            false => ControlFlow::Continue(taken + 1),
        }
    });
    match gathered {
        ControlFlow::Continue(taken) => (taken, Stop::End),
        ControlFlow::Break(stopped) => stopped,
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
            prop_assert_eq!(table.in_use_bytes(), table.slots.len() * SLOT_BYTES);
            let bytes = table.frames.memory.len();
            prop_assert!(bytes <= bound, "{bytes} bytes of frames");
            prop_assert_eq!(sent, got);
        }
    }

    /// Items of 8 bytes to targets by chance: how many leave in a run, in the mean.
    fn mean_items(targets: u32) -> f64 {
        let mut table = RunTable::new(targets, 8192, 256 << 10);
        let (mut runs, mut state) = (0, 1u64);
        let items = 400_000;
        for _ in 0..items {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let target = (((state >> 32) * u64::from(targets)) >> 32) as u32;
            while let Err(index) = table.push(target, 8) {
                table.close(index);
                runs += 1;
            }
        }
        f64::from(items) / f64::from(runs + table.open_runs() as u32)
    }

    /// Half a megabyte is shared by all targets, however many they are.
    #[test]
    fn runs_are_as_long_as_memory_allows() {
        let lengths =
            [4, 64, 256, 512, 1024, 2048, 4096].map(|targets| (targets, mean_items(targets)));
        eprintln!("{lengths:.1?}");
        for (targets, mean) in lengths {
            let share = (512 << 10) / targets / 8;
            let wanted = f64::from(share.min(1000)) * 0.75;
            assert!(
                mean >= wanted,
                "{mean} items for {targets} targets, not {wanted}"
            );
        }
    }

    /// A table without any memory left, and its runs of the longest class: targets, and bytes.
    fn full_table() -> (RunTable, Vec<(u32, u16)>) {
        let mut table = RunTable::new(64, 1024, 64 << 10);
        let targets = 0..LOOKED_AT as u32;
        for target in targets.clone() {
            for _ in 0..(520 + (target as usize * 37) % 400) / 8 {
                table.push(target, 8).expect("there is memory");
            }
        }
        use_up(&mut table);
        let runs = targets.map(|target| (target, table.slots[table.index_of(target)].used));
        let runs = runs.collect();
        (table, runs)
    }

    /// Takes all memory that is free.
    fn use_up(table: &mut RunTable) {
        while table.frames.take(0).is_some() {}
    }

    #[test]
    fn the_fullest_run_makes_room() {
        let (mut table, mut runs) = full_table();
        while !runs.is_empty() {
            let index = table.push(63, 8).expect_err("its memory is taken");
            let &(fullest, _) = runs.iter().max_by_key(|(_, used)| used).expect("runs");
            assert_eq!(table.slots[index].target, fullest, "of {runs:?}");
            table.close(index);
            use_up(&mut table);
            runs.retain(|(target, _)| *target != fullest);
        }
    }

    #[test]
    fn others_make_room_where_the_fullest_run_cannot_leave() {
        let (mut table, runs) = full_table();
        let refused = |_| table.push(63, 8).expect_err("its memory is taken");
        let tried: std::collections::HashSet<usize> = (0..=runs.len()).map(refused).collect();
        assert_eq!(tried.len(), runs.len());
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
