//! What a handler sends with on its own stream, over whichever seat.

use trihop_transport::topology::Rank;

use super::Seating;
use super::calls::Handle;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::outbox::Outbox;
use crate::error::Result;

/// What a handler sends with on its own stream: its sends never wait.
pub(crate) trait HandlerOutbox {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Ranks of the job.
    fn size(&self) -> u32;

    /// Sends by a verb of handlers, one that spills.
    fn send_by(&mut self, send: impl FnMut(&mut Outbound) -> Result<()>) -> Result<()>;

    /// So many contributors of the stream's step are done.
    fn done(&mut self, contributors: u64) -> Result<()>;

    /// Sends a record, or spills it.
    fn send(&mut self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.send_by(|out| out.send_or_spill(target, kind, bytes))
    }
}

/// Of a handler that is called with the engine in use.
impl HandlerOutbox for Outbox<'_> {
    fn rank(&self) -> Rank {
        self.rank()
    }

    fn size(&self) -> u32 {
        self.size()
    }

    fn send_by(&mut self, send: impl FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        self.with(send)
    }

    fn done(&mut self, contributors: u64) -> Result<()> {
        self.done(contributors)
    }
}

/// Of a handler on a thread of its own, which has its stream.
impl<S: Seating> HandlerOutbox for &Handle<S> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn send_by(&mut self, send: impl FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        self.spill(send)
    }

    fn send(&mut self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        if !self.send_here(target, kind, bytes) {
            self.send_by(|out| out.send_or_spill(target, kind, bytes))?;
            self.allow_sends_here(bytes.len(), Pushes::Paced);
        }
        Ok(())
    }

    fn done(&mut self, contributors: u64) -> Result<()> {
        Handle::done(self, contributors)
    }
}
