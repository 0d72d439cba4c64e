//! Sends of long records, out of the caller's memory as long as they move.

use trihop_transport::topology::Rank;

use super::Seating;
use super::calls::Handle;
use crate::engine::long::Record;
use crate::engine::outbound::Outbound;
use crate::error::Result;

const ROOM: &str = "room to send";

/// Rounds of progress in which nothing of a record moves, until it is copied.
const IN_VAIN: u32 = 64;

impl<S: Seating> Handle<S> {
    /// Whether a record of so many bytes is one for [`Handle::send_lent`], sent from here.
    #[inline]
    pub(crate) fn sends_lent(&self, bytes: usize) -> bool {
        bytes > self.longest_in_frame
            && !self.seat.is_in_handler()
            && self.seat.may_wait("a send").is_ok()
    }

    /// As [`Handle::send`] of a long record. What has to wait of it is copied once it has not moved
    /// for some rounds of progress, so this waits no longer than other sends do.
    pub(crate) fn send_lent(&self, target: Rank, kind: u32, record: Record<'_>) -> Result<()> {
        let mut number = 0;
        self.send_with(|out| {
            number = out.try_lend(target, kind, record)?;
            Ok(())
        })?;
        let _kept = Kept(self, number, record);
        let (mut left, mut in_vain) = (record.len(), 0);
        loop {
            let before = left;
            let moves = self.seat.wait_awake(ROOM, |job| {
                let now = job.engine.out(self.id)?.go_on_lent(number, record);
                in_vain = if now < left { 0 } else { in_vain + 1 };
                left = now;
                Ok((left == 0 || in_vain == IN_VAIN).then_some(()))
            })?;
            // It may have moved by what this thread did alone, for which the seat does not wait.
            if moves.is_some() || left == before {
                return Ok(());
            }
        }
    }
}

/// The record that was lent by this number is the sender's again when this is dropped, whatever
/// came of its send.
struct Kept<'a, S: Seating>(&'a Handle<S>, u64, Record<'a>);

impl<S: Seating> Drop for Kept<'_, S> {
    fn drop(&mut self) {
        let Self(handle, number, record) = *self;
        let keep = |out: &mut Outbound| Ok(out.keep_lent(number, record));
        // A job that has failed sends nothing more.
        if let Ok(false) = handle.with_out(ROOM, keep) {
            // There is no memory for a copy.
            let _ = handle.seat.wait(ROOM, |job| {
                let out = job.engine.out(handle.id)?;
                Ok((out.go_on_lent(number, record) == 0).then_some(()))
            });
        }
    }
}
