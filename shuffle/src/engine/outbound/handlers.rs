//! What handlers send: where queues have no room it is spilled, since a handler cannot wait.

use trihop_transport::protocol::wire::{RECORD_HEADER_BYTES, RUN_HEADER_BYTES, align8};
use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use super::{Outbound, alone, write_record};
use crate::engine::long::Targets;
use crate::error::Result;
use crate::queue::audience::{Audience, BroadcastTo};
use crate::queue::runs::Stop;

impl Outbound {
    /// A send of a handler.
    #[inline]
    pub fn send_or_spill(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        if self.append(!self.is_checked, target, kind, payload) {
            return Ok(());
        }
        self.send_or_spill_slow(target, kind, payload)
    }

    #[cold]
    fn send_or_spill_slow(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        self.check(target, payload.len())?;
        let bytes = RECORD_HEADER_BYTES + align8(payload.len());
        if bytes <= self.gathered_bytes {
            let space = self.space_or_spill(target, bytes)?;
            write_record(space, kind, payload);
        } else if RUN_HEADER_BYTES + bytes <= self.frame_bytes {
            self.alone_or_spill(target, bytes, |space| write_record(space, kind, payload))?;
        } else {
            self.make_way_or_spill(target)?;
            self.long_or_spill(target, kind, payload)?;
        }
        self.note_sent(payload.len());
        Ok(())
    }

    fn long_or_spill(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        if self.spill.is_empty() && self.go_on() {
            self.waits_since = self.sent;
            if self
                .long
                .send(&mut self.queues, Targets::one(target), kind, payload)?
            {
                return Ok(());
            }
        }
        self.spill_record(Audience::One(target), kind, payload)
    }

    /// A broadcast of a handler.
    pub fn broadcast_or_spill(&mut self, to: BroadcastTo, kind: u32, payload: &[u8]) -> Result<()> {
        self.check(Rank(self.rank), payload.len())?;
        self.check_whole()?;
        // What was sent before leaves first, for every target.
        while let Some(slot) = self.runs.open_slot(0) {
            self.emit_or_spill(slot)?;
        }
        let is_free = self.spill.is_empty() && self.go_on();
        if !is_free || !self.start_broadcast(to, kind, payload)? {
            self.spill_record(Audience::Many(to), kind, payload)?;
        }
        self.note_broadcast(to, payload.len());
        Ok(())
    }

    /// An item of a handler.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub fn push_or_spill(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        if self.append_item(!self.is_checked, target, item) {
            return Ok(());
        }
        self.push_or_spill_slow(target, item)
    }

    #[cold]
    fn push_or_spill_slow(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        self.check(target, item.len())?;
        if item.len() <= self.gathered_bytes {
            self.space_or_spill(target, item.len())?
                .copy_from_slice(item);
        } else if RUN_HEADER_BYTES + align8(item.len()) <= self.frame_bytes {
            self.alone_or_spill(target, item.len(), |space| space.copy_from_slice(item))?;
        } else {
            self.make_way_or_spill(target)?;
            self.long_or_spill(target, 0, item)?;
        }
        self.note_sent(item.len());
        Ok(())
    }

    /// Items of a handler.
    pub fn extend_or_spill<T: IntoBytes + Immutable>(
        &mut self,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> Result<()> {
        loop {
            match self.gather_where(!self.is_checked, usize::MAX, items) {
                Stop::End => return Ok(()),
                Stop::Enough => {}
                Stop::At(target, item) => self.push_or_spill(target, item.as_bytes())?,
            }
        }
    }

    /// Space in the open run of `target`; a run that is in the way leaves first, or is spilled.
    fn space_or_spill(&mut self, target: Rank, bytes: usize) -> Result<&mut [u8]> {
        while let Err(slot) = self.runs.push(target.0, bytes).map(|_| ()) {
            self.emit_or_spill(slot)?;
        }
        Ok(self.runs.last_pushed(target.0, bytes))
    }

    /// What must leave before a record for `target` that is not gathered leaves, or is spilled
    /// before it.
    pub(super) fn make_way_or_spill(&mut self, target: Rank) -> Result<()> {
        match self.runs.open_run_of(target.0) {
            Some(slot) => self.emit_or_spill(slot),
            None => Ok(()),
        }
    }

    /// A run of one record of `bytes`, which `write` fills in place.
    fn alone_or_spill(
        &mut self,
        target: Rank,
        bytes: usize,
        write: impl Fn(&mut [u8]),
    ) -> Result<()> {
        self.make_way_or_spill(target)?;
        let is_free = self.spill.is_empty() && self.go_on();
        if is_free && self.push_alone(target, bytes, &write).is_ok() {
            return Ok(());
        }
        let frame_bytes = RUN_HEADER_BYTES + align8(bytes);
        let write = alone(target, self.rank, bytes, write);
        self.spill_frame(target, frame_bytes, write)
    }
}
