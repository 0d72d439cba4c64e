//! What is delivered: whole runs and long records, in place, in a bounded queue, or on their way to
//! a delivery thread.

mod delivery;
mod handover;
mod overfilled;
mod queue;
mod reassembly;

use trihop_transport::topology::Rank;

pub(crate) use delivery::Delivery;
pub(crate) use handover::{Calls, Chunk, Handover};
pub(crate) use overfilled::{note_overfilled, take_overfilled};
pub(crate) use queue::{DeliveryQueue, Entry};
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
