//! Open runs: records for one final rank, gathered privately at the source before they touch a shared line.
//!
//! The table is bounded. With more ranks than slots a run gives way to the next target that maps to its slot.

use trihop_transport::protocol::wire::{RUN_HEADER_BYTES, RunHeader, align8};

const NOBODY: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Slot {
    target: u32,
    used: u32,
    count: u16,
}

/// Table of open runs, one buffer per slot.
#[derive(Debug)]
pub(crate) struct RunTable {
    slots: Vec<Slot>,
    frames: Vec<u8>,
    run_bytes: usize,
    mask: u32,
    open: Vec<u32>,
}

impl RunTable {
    /// Slots for `ranks` targets with runs of at most `run_bytes` (header included), in at most `table_bytes`.
    pub fn new(ranks: u32, run_bytes: usize, table_bytes: usize) -> Self {
        let affordable = (table_bytes / run_bytes).max(1);
        let affordable = if affordable.is_power_of_two() {
            affordable
        } else {
            affordable.next_power_of_two() / 2
        };
        let slots = (ranks as usize).next_power_of_two().min(affordable);
        Self {
            slots: vec![
                Slot {
                    target: NOBODY,
                    used: 0,
                    count: 0
                };
                slots
            ],
            frames: vec![0; slots * run_bytes],
            run_bytes,
            mask: slots as u32 - 1,
            open: Vec::with_capacity(slots),
        }
    }

    /// Payload bytes that a run can hold.
    pub fn capacity(&self) -> usize {
        self.run_bytes - RUN_HEADER_BYTES
    }

    /// Memory of the table in bytes.
    pub fn bytes(&self) -> usize {
        self.frames.len()
    }

    /// Space for one more record of `bytes` in the open run of `target`.
    ///
    /// # Errors
    /// The slot whose run must leave first.
    #[inline(always)] // as its only hot caller
    pub fn push(&mut self, target: u32, bytes: usize) -> Result<&mut [u8], usize> {
        let index = (target & self.mask) as usize;
        let slot = &mut self.slots[index];
        let used = slot.used as usize;
        if slot.target != target || used + bytes > self.run_bytes || slot.count == u16::MAX {
            return self.push_slow(index, target, bytes);
        }
        slot.used = (used + bytes) as u32;
        slot.count += 1;
        let start = index * self.run_bytes + used;
        Ok(&mut self.frames[start..start + bytes])
    }

    #[cold]
    fn push_slow(&mut self, index: usize, target: u32, bytes: usize) -> Result<&mut [u8], usize> {
        let slot = &mut self.slots[index];
        if slot.used > 0 {
            return Err(index);
        }
        let used = RUN_HEADER_BYTES + bytes;
        assert!(
            used <= self.run_bytes,
            "record of {bytes} bytes for runs of {} bytes",
            self.run_bytes
        );
        *slot = Slot {
            target,
            used: used as u32,
            count: 1,
        };
        self.open.push(index as u32);
        let start = index * self.run_bytes + RUN_HEADER_BYTES;
        Ok(&mut self.frames[start..start + bytes])
    }

    /// The space that the last successful `push` for `target` gave, of the same `bytes`.
    pub fn last_pushed(&mut self, target: u32, bytes: usize) -> &mut [u8] {
        let index = (target & self.mask) as usize;
        let end = index * self.run_bytes + self.slots[index].used as usize;
        &mut self.frames[end - bytes..end]
    }

    /// As [`RunTable::last_pushed`], to read.
    pub fn last_pushed_ref(&self, target: u32, bytes: usize) -> &[u8] {
        let index = (target & self.mask) as usize;
        let end = index * self.run_bytes + self.slots[index].used as usize;
        &self.frames[end - bytes..end]
    }

    /// Takes back the last record of `bytes` in the open run of `target`.
    pub fn retract(&mut self, target: u32, bytes: usize) {
        let index = (target & self.mask) as usize;
        let slot = &mut self.slots[index];
        slot.used -= bytes as u32;
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
        let start = index * self.run_bytes;
        let length = align8(slot.used as usize);
        self.frames[start + slot.used as usize..start + length].fill(0);
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
        self.slots[index] = Slot {
            target: NOBODY,
            used: 0,
            count: 0,
        };
        if let Some(at) = self.open.iter().position(|&i| i as usize == index) {
            self.open.swap_remove(at);
        }
    }

    /// Runs that are open.
    pub fn open_runs(&self) -> usize {
        self.open.len()
    }

    /// The `at`-th open run's slot.
    pub fn open_slot(&self, at: usize) -> Option<usize> {
        self.open.get(at).map(|&i| i as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use trihop_transport::protocol::wire::Run;

    proptest! {
        /// Against a map of vectors: nothing is lost, mixed up or reordered, whatever evicts whatever.
        #[test]
        fn records_leave_in_the_order_in_which_they_came(
            pushes in proptest::collection::vec((0u32..40, any::<u64>()), 0..2000),
            run_bytes in prop_oneof![Just(24usize), Just(64), Just(1024)],
            table_bytes in 64usize..4096,
        ) {
            let mut table = RunTable::new(40, run_bytes, table_bytes);
            prop_assert!(table.bytes() <= table_bytes.max(run_bytes));
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
            prop_assert_eq!(sent, got);
        }
    }
}
