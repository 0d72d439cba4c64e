//! What a handler sends with.

use std::cell::{RefCell, RefMut};

use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use super::outbound::Outbound;
use crate::error::{Error, Result};

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
