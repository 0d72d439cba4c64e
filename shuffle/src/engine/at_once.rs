//! What a rank sends to itself and handles in the same call, where its program asks for that: it
//! passes no queue.

use trihop_transport::protocol::wire::{RECORD_HEADER_BYTES, RUN_HEADER_BYTES, Run, align8};
use trihop_transport::topology::Rank;
use zerocopy::IntoBytes;

use super::StreamState;
use super::forward::{call_handler, waits_for_spill};
use super::outbound::{Outbound, alone, write_record};
use super::sink::{Handlers, Sink};
use crate::deliver::Delivery;
use crate::error::{Error, Result};
use crate::queue::audience::BroadcastTo;

/// Memory that is kept for the next message, in bytes. Longer ones pay an allocation with their
/// length.
const MOST_KEPT: usize = 1 << 20;

/// What the application sends to its own rank.
#[derive(Clone, Copy)]
pub(crate) struct OwnSend<'a> {
    /// 0 for an item.
    pub kind: u32,
    pub bytes: &'a [u8],
    /// It is a broadcast, which all others get too.
    pub to_others: bool,
}

impl StreamState {
    /// Sends to the own rank by a call of the handler; false, with nothing sent, where it has to go
    /// the way of all others: something waits that was sent before, or the handler does.
    ///
    /// # Errors
    /// A broadcast that finds no room, with nothing sent; what the handler makes of bytes that it
    /// does not understand.
    pub fn deliver_own(
        &mut self,
        outs: &mut [Outbound],
        own: usize,
        handlers: &mut impl Handlers,
        send: OwnSend<'_>,
    ) -> Result<bool> {
        let is_ready = matches!(self.sink, Sink::Handler)
            && !self.options.shim.deliverq_discard
            && handlers.is_live(own)
            && outs[own].has_nothing_before(send.bytes.len())
            && !waits_for_spill(&mut self.waits_for, outs);
        if !is_ready {
            return Ok(false);
        }
        let mut words = std::mem::take(&mut self.own_run);
        let sent = self.send_own(outs, own, handlers, send, &mut words);
        if words.capacity() * size_of::<u64>() <= MOST_KEPT {
            self.own_run = words;
        }
        sent
    }

    fn send_own(
        &mut self,
        outs: &mut [Outbound],
        own: usize,
        handlers: &mut impl Handlers,
        send: OwnSend<'_>,
        words: &mut Vec<u64>,
    ) -> Result<bool> {
        let rank = Rank(outs[own].rank());
        let record_bytes = match outs[own].item_bytes() {
            0 => RECORD_HEADER_BYTES + align8(send.bytes.len()),
            item_bytes => item_bytes,
        };
        let frame_bytes = RUN_HEADER_BYTES + align8(record_bytes);
        if u32::try_from(frame_bytes).is_err() {
            return Ok(false); // longer than a run can say
        }
        words.clear();
        let bytes = frame_bytes;
        let room = words.try_reserve_exact(bytes / size_of::<u64>());
        room.map_err(|_| Error::NoMemory { bytes })?;
        words.resize(bytes / size_of::<u64>(), 0);
        let is_item = outs[own].item_bytes() > 0;
        alone(rank, rank.0, record_bytes, |space| match is_item {
            true => space.copy_from_slice(send.bytes),
            false => write_record(space, send.kind, send.bytes),
        })(words.as_mut_bytes());
        if send.to_others {
            outs[own].try_broadcast(BroadcastTo::Others, send.kind, send.bytes)?;
        }
        outs[own].note_sent(send.bytes.len());
        let bad = |why| Error::bad_run(rank.0, why);
        let (run, _) = Run::split(words.as_bytes(), self.topology.size()).map_err(bad)?;
        let delivery = Delivery::Run(run);
        call_handler(handlers, outs, own, &mut self.waits_for, delivery, 0).map_err(bad)?;
        self.taken += 1;
        self.stats.runs_delivered += 1;
        Ok(true)
    }
}
