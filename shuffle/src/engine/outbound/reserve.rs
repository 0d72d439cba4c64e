//! Records that the application fills in place, in the open run of their target.

use trihop_transport::protocol::wire::{RECORD_HEADER_BYTES, RecordHeader, align8};
use trihop_transport::topology::Rank;
use zerocopy::IntoBytes;

use super::Outbound;
use crate::error::Result;

impl Outbound {
    /// Space for a record that the application fills in place; [`Outbound::retract`] takes it back.
    pub fn reserve(&mut self, target: Rank, kind: u32, bytes: usize) -> Result<()> {
        self.check(target, bytes)?;
        self.check_not_ending("a reservation")?;
        if !self.spill.is_empty() {
            return self.refused();
        }
        let whole = RECORD_HEADER_BYTES + align8(bytes);
        let space = self.space_in_run(target, whole)?;
        let header = RecordHeader {
            kind: kind.into(),
            length: (bytes as u32).into(),
        };
        space[..RECORD_HEADER_BYTES].copy_from_slice(header.as_bytes());
        space[RECORD_HEADER_BYTES..].fill(0);
        Ok(())
    }

    /// The space of the last reservation.
    pub fn reserved(&mut self, target: Rank, bytes: usize) -> &mut [u8] {
        let whole = RECORD_HEADER_BYTES + align8(bytes);
        let space = self.runs.last_pushed(target.0, whole);
        &mut space[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + bytes]
    }

    /// As [`Outbound::reserved`], to read.
    pub fn reserved_ref(&self, target: Rank, bytes: usize) -> &[u8] {
        let whole = RECORD_HEADER_BYTES + align8(bytes);
        &self.runs.last_pushed_ref(target.0, whole)
            [RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + bytes]
    }

    /// The last reservation is given up.
    pub fn retract(&mut self, target: Rank, bytes: usize) {
        self.runs
            .retract(target.0, RECORD_HEADER_BYTES + align8(bytes));
    }

    /// Largest record that [`Outbound::reserve`] can place.
    pub fn reservable_bytes(&self) -> usize {
        self.runs.capacity() - RECORD_HEADER_BYTES
    }
}
