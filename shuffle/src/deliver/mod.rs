//! Delivery: whole runs to a handler in place, or into a bounded queue from which the application takes them.

mod delivery;
mod handover;
mod queue;
mod reassembly;

use std::cell::{RefCell, RefMut};
use std::sync::Arc;

use trihop_transport::protocol::wire::BadRun;
// Files here name it as one of this folder: in a model it wakes the model's sleeper.
use trihop_transport::ring::Bell;
use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
pub(crate) use delivery::Delivery;
pub(crate) use handover::{Calls, Chunk, Handover};
pub(crate) use queue::DeliveryQueue;
pub(crate) use reassembly::{Assembled, MIN_FRAGMENT_FRAME, Reassembly, SPARE_BYTES};

/// A record as its receiver sees it.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Rank that sent it.
    pub source: Rank,
    /// The 32 bits that the sender gave with it.
    pub kind: u32,
    /// Its bytes, in place: they are gone when the handler returns.
    pub bytes: &'a [u8],
}

/// What a handler gets to send with: its sends never wait.
///
/// What finds no room goes to a bounded spill, which leaves before the application's own sends. Delivery pauses while
/// less than `handler_reserve_bytes` of the spill are free, so that a handler that sends no more than that per call
/// never meets [`crate::Error::WouldBlock`]. That holds for sends on the stream that is being delivered; another stream's
/// [`crate::Shuffle::outbox`] may be full.
pub struct Outbox<'a> {
    pub(crate) outbound: &'a RefCell<Outbound>,
    reserve_bytes: usize,
}

impl<'a> Outbox<'a> {
    pub(crate) fn new(outbound: &'a RefCell<Outbound>) -> Self {
        Self {
            outbound,
            reserve_bytes: 0,
        }
    }

    pub(crate) fn with_reserve(outbound: &'a RefCell<Outbound>, reserve_bytes: usize) -> Self {
        Self {
            outbound,
            reserve_bytes,
        }
    }

    /// Whether the spill has room for what one more call of a handler may send.
    pub(crate) fn has_reserve(&self) -> bool {
        self.outbound
            .try_borrow()
            .is_ok_and(|out| out.spill.free_bytes() >= self.reserve_bytes)
    }

    /// Sends a record, or spills it.
    ///
    /// # Errors
    /// [`crate::Error::WouldBlock`] when the spill is full too, and the errors of a bad rank or length.
    pub fn send(&mut self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        borrow(self.outbound)?.send_or_spill(target, kind, bytes)
    }

    pub(crate) fn push_item(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        borrow(self.outbound)?.push_or_spill(target, item)
    }

    pub(crate) fn extend_items<T: IntoBytes + Immutable>(
        &mut self,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> Result<Option<(Rank, T)>> {
        borrow(self.outbound)?.extend_or_spill(items)
    }
}

/// The sending side of a stream, unless a reservation holds it.
pub(crate) fn borrow(outbound: &RefCell<Outbound>) -> Result<RefMut<'_, Outbound>> {
    outbound
        .try_borrow_mut()
        .map_err(|_| Error::Nested("a call with an open reservation"))
}

/// A handler as the engine calls it: once per run, never once per record. Takes the number of records that are done
/// already, returns the number that are done now: fewer than all where it paused for want of spill.
pub(crate) type Handler<'h> =
    Box<dyn FnMut(Delivery<'_>, usize, &mut Outbox<'_>) -> Result<usize, BadRun> + 'h>;

/// Where deliveries go.
pub(crate) enum Sink<'h> {
    Handler(Handler<'h>),
    Queue(DeliveryQueue),
    /// A delivery thread calls the handler.
    Thread(Arc<Handover>),
    /// The stream was shut down.
    Closed,
}
