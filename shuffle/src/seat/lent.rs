//! Sends of long records, out of the caller's memory as long as they move.

use trihop_transport::topology::Rank;

use super::Seating;
use super::calls::Handle;
use crate::engine::long::Record;
use crate::engine::outbound::Outbound;
use crate::error::Result;

/// Shorter records are not asked whether they are long: where they are, they are copied.
pub(crate) const MAYBE_LONG: usize = 4 << 10;

const ROOM: &str = "room to send";

impl<S: Seating> Handle<S> {
    /// Whether a record of so many bytes is one for [`Handle::send_lent`], sent from here.
    #[cold]
    pub(crate) fn sends_lent(&self, bytes: usize) -> Result<bool> {
        if self.seat.is_in_handler() || self.seat.may_wait("a send").is_err() {
            return Ok(false);
        }
        self.with_out("a send", |out| Ok(out.is_long(bytes)))
    }

    /// As [`Handle::send`] of a long record. What has to wait of it is copied only once nothing
    /// moves any more, so this sleeps no more than other sends do.
    pub(crate) fn send_lent(&self, target: Rank, kind: u32, record: Record<'_>) -> Result<()> {
        let mut has_left = false;
        self.send_with(|out| {
            has_left = out.try_lend(target, kind, record)?;
            Ok(())
        })?;
        if has_left {
            return Ok(());
        }
        let _kept = Kept(self, record);
        (self.seat).wait_awake(ROOM, |job| {
            let out = job.engine.out(self.id)?;
            Ok(out.go_on_lent(record).then_some(()))
        })?;
        Ok(())
    }
}

/// The record that was lent is the sender's again when this is dropped, whatever came of its send.
struct Kept<'a, S: Seating>(&'a Handle<S>, Record<'a>);

impl<S: Seating> Drop for Kept<'_, S> {
    fn drop(&mut self) {
        let Self(handle, record) = *self;
        let keep = |out: &mut Outbound| Ok(out.keep_lent(record));
        // A job that has failed sends nothing more.
        if let Ok(false) = handle.with_out(ROOM, keep) {
            // There is no memory for a copy.
            let _ = handle.seat.wait(ROOM, |job| {
                let out = job.engine.out(handle.id)?;
                Ok(out.go_on_lent(record).then_some(()))
            });
        }
    }
}
