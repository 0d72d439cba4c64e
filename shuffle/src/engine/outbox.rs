//! What a handler sends with.

use std::cell::{RefCell, RefMut};

use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use super::outbound::Outbound;
use crate::error::{Error, Result};

/// What a handler gets to send with: its sends never wait, and take whatever rank and stream they name.
///
/// What finds no room in a queue goes to the stream's spill, which leaves before the application's own sends. Above
/// a mark (a 32nd of `memory_bytes`) of spill the next deliveries wait as long as it drains. Where it does not, they go on and the spill
/// grows, up to `spill_bytes`: beyond that a send is [`crate::Error::SpillFull`], and the job ends with that error. So a
/// program whose handlers send (forward, answer, once or many times for each message) never stands still.
pub struct Outbox<'a> {
    pub(crate) outbound: &'a RefCell<Outbound>,
}

impl<'a> Outbox<'a> {
    pub(crate) fn new(outbound: &'a RefCell<Outbound>) -> Self {
        Self { outbound }
    }

    /// Sends a record, or spills it.
    ///
    /// # Errors
    /// [`crate::Error::SpillFull`] when the spill is full too, and the errors of a bad rank or length.
    pub fn send(&mut self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        borrow(self.outbound)?.send_or_spill(target, kind, bytes)
    }

    pub(crate) fn push_item(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        borrow(self.outbound)?.push_or_spill(target, item)
    }

    pub(crate) fn extend_items<T: IntoBytes + Immutable>(
        &mut self,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> Result<()> {
        borrow(self.outbound)?.extend_or_spill(items)
    }
}

/// The sending side of a stream, unless a reservation holds it.
pub(crate) fn borrow(outbound: &RefCell<Outbound>) -> Result<RefMut<'_, Outbound>> {
    outbound
        .try_borrow_mut()
        .map_err(|_| Error::Nested("a call with an open reservation"))
}
