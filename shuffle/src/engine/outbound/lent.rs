//! Long records that leave out of the memory of whoever sends them: what has to wait of other
//! records is copied.

use trihop_transport::protocol::wire::{RECORD_HEADER_BYTES, RUN_HEADER_BYTES};
use trihop_transport::topology::Rank;

use super::Outbound;
use crate::engine::long::Record;
use crate::error::Result;
use crate::queue::audience::Audience;

impl Outbound {
    /// Length of the longest record that fits a frame.
    pub fn longest_in_frame(&self) -> usize {
        (self.frame_bytes - RUN_HEADER_BYTES - RECORD_HEADER_BYTES) & !7
    }

    /// As [`Outbound::try_send`] of a long record, which stays the caller's: it goes on with it by
    /// [`Outbound::go_on_lent`] and the number that this returns.
    pub fn try_lend(&mut self, target: Rank, kind: u32, record: Record<'_>) -> Result<u64> {
        self.check(target, record.len())?;
        self.check_not_ending("a send")?;
        if !self.spill.is_empty() {
            return self.refused();
        }
        self.make_way(target)?;
        self.waits_since = self.sent;
        let Some(number) = self.long.lend(&mut self.queues, target, kind, record) else {
            return self.refused();
        };
        self.note_sent(record.len());
        Ok(number)
    }

    /// Goes on with the record that was lent by this number; the bytes that are left of it.
    pub fn go_on_lent(&mut self, number: u64, record: Record<'_>) -> usize {
        self.long.go_on_lent(&mut self.queues, number, record)
    }

    /// Copies what is left of the record that was lent by this number, which is the caller's again;
    /// false where there is no memory for that.
    pub fn keep_lent(&mut self, number: u64, record: Record<'_>) -> bool {
        self.long.keep_lent(number, record)
    }

    /// Whether a long record could begin to leave now, with nothing of it spilled.
    pub fn may_begin_long(&mut self) -> bool {
        self.check_not_ending("a send").is_ok() && self.spill.is_empty() && self.go_on()
    }

    /// As [`Outbound::send_or_spill`], with the memory of the record, which is taken where that
    /// saves a copy.
    pub fn send_or_spill_given(
        &mut self,
        target: Rank,
        kind: u32,
        record: &mut Vec<u8>,
    ) -> Result<()> {
        let bytes = record.len();
        if bytes <= self.longest_in_frame() {
            return self.send_or_spill(target, kind, record);
        }
        self.check(target, bytes)?;
        self.make_way_or_spill(target)?;
        let is_free = self.spill.is_empty() && self.go_on();
        self.waits_since = if is_free { self.sent } else { self.waits_since };
        if !is_free || !self.long.send_given(&mut self.queues, target, kind, record) {
            self.spill_record(Audience::One(target), kind, record)?;
        }
        self.note_sent(bytes);
        Ok(())
    }
}
