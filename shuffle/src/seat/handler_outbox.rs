//! What a handler sends with on its own stream, over whichever seat.

use trihop_transport::topology::Rank;

use super::Seating;
use super::calls::Handle;
use crate::endpoint::StreamId;
use crate::engine::outbound::Outbound;
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};

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

    /// See [`Seating::notify_moved`].
    fn notify_moved(&self) {}

    /// As [`HandlerOutbox::send_by`], on this stream of the job, or on its own.
    fn send_on(
        &mut self,
        stream: Option<StreamId>,
        send: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()>;

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

    fn send_on(
        &mut self,
        stream: Option<StreamId>,
        send: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        let Some(stream) = stream else {
            return self.with(send);
        };
        let mut other = self
            .for_stream(stream)
            .ok_or(Error::Closed(String::new()))?;
        other.with(send)
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

    fn send_on(
        &mut self,
        stream: Option<StreamId>,
        send: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        match stream.filter(|&stream| stream != self.id) {
            None => self.spill(send),
            Some(id) => Handle {
                id,
                ..Handle::clone(self)
            }
            .spill(send),
        }
    }

    fn done(&mut self, contributors: u64) -> Result<()> {
        Handle::done(self, contributors)
    }

    fn notify_moved(&self) {
        self.seat.notify_moved();
    }
}
