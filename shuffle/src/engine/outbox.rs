//! What a handler sends with.

use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use super::outbound::{Outbound, Pushes};
use crate::engine::StreamId;
use crate::error::{Error, Result};
use crate::queue::window::{PushWindow, Pushed};

/// What a handler gets to send with: its sends never wait, and take whatever rank and stream they
/// name.
///
/// What finds no room in a queue goes to the stream's spill, which leaves before the application's
/// own sends. Above a mark (a 32nd of `memory_bytes`) of spill the next deliveries wait as long as
/// it drains. Where it does not, they go on and the spill grows, up to `spill_bytes`: beyond that a
/// send is [`crate::Error::SpillFull`], and the job ends with that error. So a program whose
/// handlers send (forward, answer, once or many times for each message) never stands still.
pub struct Outbox<'a> {
    /// What all streams send, of which this is number `stream`.
    outs: &'a mut [Outbound],
    stream: usize,
    /// A stream whose spill a send of the handler found or left above its mark.
    overfilled: &'a mut Option<usize>,
}

impl<'a> Outbox<'a> {
    pub(crate) fn new(
        outs: &'a mut [Outbound],
        stream: usize,
        overfilled: &'a mut Option<usize>,
    ) -> Self {
        Self {
            outs,
            stream,
            overfilled,
        }
    }

    /// The same, for a value of its own.
    pub(crate) fn again(&mut self) -> Outbox<'_> {
        Outbox {
            outs: self.outs,
            stream: self.stream,
            overfilled: self.overfilled,
        }
    }

    /// The same, for another stream of the engine; `None` where none is open there any more.
    pub(crate) fn for_stream(&mut self, id: StreamId) -> Option<Outbox<'_>> {
        let StreamId {
            job,
            stream,
            opened,
        } = id;
        let is_open = |out: &Outbound| out.job() == job && out.opened == opened;
        let is_open = self.outs.get(stream).is_some_and(is_open);
        is_open.then_some(Outbox {
            outs: self.outs,
            stream,
            overfilled: self.overfilled,
        })
    }

    /// See [`Outbound::open_window`].
    pub(crate) fn open_window(&mut self, window: &PushWindow) -> bool {
        self.outs[self.stream].open_window(window, Pushes::OfHandler)
    }

    /// See [`Outbound::note_pushed`].
    pub(crate) fn note_pushed(&mut self, pushed: Pushed) {
        self.outs[self.stream].note_pushed(pushed, Pushes::OfHandler);
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        Rank(self.outs[self.stream].rank())
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.outs[self.stream].size()
    }

    /// Refuses what can never be sent.
    pub(crate) fn check(&self, target: Rank, bytes: usize) -> Result<()> {
        self.outs[self.stream].check(target, bytes)
    }

    /// Whether a spill was filled above its mark: the rest of a run waits.
    #[inline]
    pub(crate) fn has_overfilled(&self) -> bool {
        self.overfilled.is_some()
    }

    /// Sends a record, or spills it.
    ///
    /// # Errors
    /// [`crate::Error::SpillFull`] when the spill is full too, and the errors of a bad rank or
    /// length.
    #[inline]
    pub fn send(&mut self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.with(|out| out.send_or_spill(target, kind, bytes))
    }

    /// So many contributors of the stream's step are done: see [`crate::Stream::done`].
    ///
    /// # Errors
    /// As that.
    pub fn done(&mut self, contributors: u64) -> Result<()> {
        // The next round of progress passes it on.
        self.outs[self.stream]
            .done_in_handler(contributors)
            .map(drop)
    }

    #[inline(always)] // as its callers' fast path
    pub(crate) fn push_item(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        // No closure: it would not be inlined, and the item would go through memory.
        let sent = self.outs[self.stream].push_or_spill(target, item);
        self.note_overfilled();
        sent
    }

    pub(crate) fn extend_items<T: IntoBytes + Immutable>(
        &mut self,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> Result<()> {
        self.with(|out| out.extend_or_spill(items))
    }

    /// Sends by the verbs of handlers, and notes what comes of it.
    #[inline]
    pub(crate) fn with<R>(&mut self, send: impl FnOnce(&mut Outbound) -> R) -> R {
        let sent = send(&mut self.outs[self.stream]);
        self.note_overfilled();
        sent
    }

    /// As [`Outbox::with`], on this stream of the engine, or on its own.
    pub(crate) fn send_on(
        &mut self,
        stream: Option<StreamId>,
        send: impl FnOnce(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        match stream {
            None => self.with(send),
            Some(id) => match self.for_stream(id) {
                Some(mut other) => other.with(send),
                None => Err(Error::Closed(String::new())),
            },
        }
    }

    #[inline(always)] // part of every send of a handler
    fn note_overfilled(&mut self) {
        if self.outs[self.stream].take_overfilled() {
            self.overfilled.get_or_insert(self.stream);
        }
    }
}
