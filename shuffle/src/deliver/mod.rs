//! What is delivered: whole runs and long records, in place, in a bounded queue, or on their way to
//! a delivery thread.

mod deliveries;
mod delivery;
mod handover;
mod overfilled;
mod queue;
mod reassembly;

use trihop_transport::protocol::wire::{BadRun, Records, Run, align8};
use trihop_transport::topology::Rank;

pub(crate) use deliveries::{Deliveries, NextDelivery};
pub(crate) use delivery::{Delivery, LongBytes};
pub(crate) use handover::{Calls, Chunk, Handover};
pub(crate) use overfilled::{note_overfilled, take_overfilled};
pub(crate) use queue::{DeliveryQueue, Entry, Whole};
pub(crate) use reassembly::{Assembled, LONGEST_ITEM, MIN_FRAGMENT_FRAME, Reassembly, aligned};

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

/// The items of a run, which are all that is in it.
///
/// # Errors
/// So many items of that size do not fill it.
pub(crate) fn items_of<'a>(run: &Run<'a>, item_bytes: usize) -> Result<&'a [u8], BadRun> {
    let bytes = usize::from(run.header.count) * item_bytes;
    let is_filled = align8(bytes) == run.payload.len();
    let items = run.payload.get(..bytes).filter(|_| is_filled);
    items.ok_or(BadRun::Records {
        count: run.header.count,
        bytes: run.payload.len(),
    })
}

/// Records of one source that arrived one after the other, in order; at least one.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    source: Rank,
    left: usize,
    records: RecordsOf<'a>,
}

#[derive(Debug, Clone)]
enum RecordsOf<'a> {
    Run(Records<'a>),
    One(u32, &'a [u8]),
}

impl<'a> Messages<'a> {
    /// The records of a delivery, all of which are looked at before the first is handed out.
    pub(crate) fn of(delivery: Delivery<'a>) -> Result<Self, BadRun> {
        let (source, left) = (Rank(delivery.source()), delivery.records());
        let records = match delivery {
            Delivery::Run(run) => {
                run.records().try_for_each(|record| record.map(drop))?;
                RecordsOf::Run(run.records())
            }
            Delivery::Record { kind, bytes, .. } => RecordsOf::One(kind, bytes.into_slice()),
        };
        Ok(Self {
            source,
            left,
            records,
        })
    }

    /// Rank that sent them.
    pub fn source(&self) -> Rank {
        self.source
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (kind, bytes) = match &mut self.records {
            RecordsOf::Run(records) => records.next()?.ok()?,
            RecordsOf::One(kind, bytes) => (*kind, *bytes),
        };
        let source = self.source;
        Some(Message {
            source,
            kind,
            bytes,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Messages<'_> {}
