//! Delivery: whole runs to a handler in place, or into a bounded queue from which the application takes them.

use std::cell::{RefCell, RefMut};
use std::collections::{HashMap, VecDeque};

use trihop_transport::protocol::wire::{
    BadRun, FRAGMENT_HEADER_BYTES, FragmentHeader, RUN_HEADER_BYTES, Run, run_flags,
};
use trihop_transport::topology::Rank;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::config::StreamOptions;
use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
use crate::queue::Feeder;
use crate::queue::spare::{Spare, bytes_of};

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

/// What arrived for this rank.
pub(crate) enum Delivery<'a> {
    /// A whole run.
    Run(Run<'a>),
    /// A record that came in fragments.
    Record { source: u32, kind: u32, bytes: &'a [u8] },
}

/// A handler as the engine calls it: once per run, never once per record. Takes the number of records that are done
/// already, returns the number that are done now: fewer than all where it paused for want of spill.
pub(crate) type Handler<'h> =
    Box<dyn FnMut(Delivery<'_>, usize, &mut Outbox<'_>) -> Result<usize, BadRun> + 'h>;

/// Where deliveries go.
pub(crate) enum Sink<'h> {
    Handler(Handler<'h>),
    Queue(DeliveryQueue),
    /// The stream was shut down.
    Closed,
}

/// Deliveries that wait for the application, at most `deliverq_max` records and `deliverq_bytes` (one run always may).
#[derive(Debug)]
pub(crate) struct DeliveryQueue {
    entries: VecDeque<Entry>,
    spare: Spare<u64>,
    records: usize,
    bytes: usize,
    limit_records: usize,
    limit_bytes: usize,
    /// A run was turned away since something was last taken.
    refused: bool,
}

#[derive(Debug)]
struct Entry {
    /// A run's frame, or a record's bytes behind 8 bytes of kind and source.
    words: Vec<u64>,
    bytes: usize,
    records: usize,
    whole: Option<(u32, u32)>,
}

impl DeliveryQueue {
    pub fn new(options: &StreamOptions) -> Self {
        // Kept once, and once more as what a kept buffer has too much.
        let spare_bytes = options.deliverq_bytes / 16;
        Self {
            entries: VecDeque::new(),
            spare: Spare::new(spare_bytes),
            records: 0,
            bytes: 0,
            limit_records: options.deliverq_max,
            limit_bytes: options.deliverq_bytes - 2 * spare_bytes,
            refused: false,
        }
    }

    /// Bytes of the buffers in which something waits.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that wait.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Whether a delivery of `count` records of together `bytes` may come; into an empty queue always.
    pub fn admit(&mut self, count: usize, bytes: usize) -> bool {
        let fits = self.records + count <= self.limit_records && self.bytes + bytes <= self.limit_bytes;
        let admitted = self.records == 0 || fits;
        self.refused |= !admitted;
        admitted
    }

    /// Whether something waits for room that only taking makes: the queue is full, or too full for the next run.
    pub fn is_blocked(&self) -> bool {
        self.refused
            || (self.records > 0 && (self.records >= self.limit_records || self.bytes >= self.limit_bytes))
    }

    /// Copies a delivery.
    pub fn push(&mut self, delivery: &Delivery<'_>) {
        let (bytes, records, whole) = match delivery {
            Delivery::Run(run) => (run.frame, run.header.count as usize, None),
            Delivery::Record { source, kind, bytes } => (*bytes, 1, Some((*source, *kind))),
        };
        let mut words = self.spare.take(bytes.len().div_ceil(8));
        words.resize(bytes.len().div_ceil(8), 0);
        zerocopy::IntoBytes::as_mut_bytes(&mut words[..])[..bytes.len()].copy_from_slice(bytes);
        self.bytes += bytes_of(&words);
        self.entries.push_back(Entry {
            words,
            bytes: bytes.len(),
            records,
            whole,
        });
        self.records += records;
    }

    /// Gives the oldest delivery to `take`; false when there is none.
    pub fn pop(
        &mut self,
        job_size: u32,
        take: impl FnOnce(Delivery<'_>) -> Result<(), BadRun>,
    ) -> Result<bool, BadRun> {
        let Some(entry) = self.entries.pop_front() else {
            return Ok(false);
        };
        self.refused = false;
        self.records -= entry.records;
        self.bytes -= bytes_of(&entry.words);
        let bytes = &zerocopy::IntoBytes::as_bytes(&entry.words[..])[..entry.bytes];
        let taken = match entry.whole {
            Some((source, kind)) => take(Delivery::Record { source, kind, bytes }),
            None => Run::split(bytes, job_size).and_then(|(run, _)| take(Delivery::Run(run))),
        };
        self.spare.give_back(entry.words);
        taken.map(|()| true)
    }
}

/// A record that arrives in fragments over one lane or link.
#[derive(Debug)]
pub(crate) struct Partial {
    pub source: u32,
    pub kind: u32,
    pub total: usize,
    pub bytes: Vec<u8>,
}

/// What a fragment does to its feeder's partial record.
pub(crate) enum Assembled {
    /// More is to come.
    Growing,
    /// The record is whole.
    Whole(Partial),
    /// The record may not begin now: the reassembly limit is reached.
    Later,
}

/// Memory that may be kept for the next long record, in bytes. Longer records pay an allocation with their length.
pub(crate) const SPARE_BYTES: usize = 1 << 20;

/// Records in reassembly, one per inbound lane or link at most, of `limit_bytes` together (one always may); of these,
/// an eighth at most is for buffers that wait to be used again, or that are larger than their record.
#[derive(Debug)]
pub(crate) struct Reassembly {
    partials: HashMap<Feeder, Partial>,
    spare: Spare<u8>,
    reserved_bytes: usize,
    limit_bytes: usize,
    max_record_bytes: usize,
}

impl Reassembly {
    pub fn new(limit_bytes: usize, max_record_bytes: usize) -> Self {
        // Kept once, and once more as what a kept buffer has too much.
        let spare_bytes = (limit_bytes / 16).min(SPARE_BYTES);
        Self {
            partials: HashMap::new(),
            spare: Spare::new(spare_bytes),
            reserved_bytes: 0,
            limit_bytes: limit_bytes - 2 * spare_bytes,
            max_record_bytes,
        }
    }

    /// Bytes of the buffers of records in reassembly.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Length of the record that this feeder's fragments make up, 0 when none is in reassembly.
    pub fn record_bytes(&self, feeder: Feeder) -> usize {
        self.partials.get(&feeder).map_or(0, |p| p.total)
    }

    /// Takes one fragment.
    pub fn add(&mut self, feeder: Feeder, run: &Run<'_>) -> Result<Assembled, BadRun> {
        let mut payload = run.payload;
        if run.header.flags == run_flags::FIRST {
            if self.partials.contains_key(&feeder) {
                return Err(BadRun::Fragment("a record begins inside another"));
            }
            let (header, rest) = FragmentHeader::ref_from_prefix(payload)
                .map_err(|_| BadRun::Fragment("a first fragment without its header"))?;
            let total = usize::try_from(header.total.get()).unwrap_or(usize::MAX);
            if total > self.max_record_bytes {
                return Err(BadRun::Fragment("a record above max_message_bytes"));
            }
            if self.reserved_bytes > 0 && self.reserved_bytes + total > self.limit_bytes {
                return Ok(Assembled::Later);
            }
            let bytes = self.spare.take(total);
            self.reserved_bytes += bytes_of(&bytes);
            let partial = Partial {
                source: run.header.source,
                kind: header.kind.get(),
                total,
                bytes,
            };
            self.partials.insert(feeder, partial);
            payload = rest;
            debug_assert_eq!(run.payload.len() - rest.len(), FRAGMENT_HEADER_BYTES);
        }
        let partial = self
            .partials
            .get_mut(&feeder)
            .ok_or(BadRun::Fragment("a fragment without a beginning"))?;
        if partial.source != run.header.source {
            return Err(BadRun::Fragment("fragments of two sources"));
        }
        let missing = partial.total - partial.bytes.len();
        partial
            .bytes
            .extend_from_slice(&payload[..payload.len().min(missing)]);
        let last = run.header.flags == run_flags::LAST;
        match (partial.bytes.len() == partial.total, last) {
            (true, true) => {
                let whole = self.partials.remove(&feeder).expect("found above");
                self.reserved_bytes -= bytes_of(&whole.bytes);
                Ok(Assembled::Whole(whole))
            }
            (false, false) => Ok(Assembled::Growing),
            _ => Err(BadRun::Fragment("fragments do not add up to the record")),
        }
    }

    /// The bytes of a whole record that was handed over, for the next one.
    pub fn give_back(&mut self, bytes: Vec<u8>) {
        self.spare.give_back(bytes);
    }
}

/// Smallest frame that can carry a fragment of at least 8 bytes.
pub(crate) const MIN_FRAGMENT_FRAME: usize = RUN_HEADER_BYTES + FRAGMENT_HEADER_BYTES + 8;

#[cfg(test)]
mod tests {
    use super::*;
    use trihop_transport::protocol::wire::RunHeader;

    fn fragment(flags: u16, source: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; RUN_HEADER_BYTES];
        frame.extend_from_slice(payload);
        frame.resize(frame.len().next_multiple_of(8), 0);
        let length = frame.len();
        RunHeader {
            target: 0,
            source,
            count: 0,
            flags,
        }
        .write(length, &mut frame);
        frame
    }

    fn add(reassembly: &mut Reassembly, feeder: u32, frame: &[u8]) -> Result<Assembled, BadRun> {
        let (run, _) = Run::split(frame, 10).unwrap();
        reassembly.add(Feeder(feeder), &run)
    }

    fn first(total: u64, data: &[u8]) -> Vec<u8> {
        let mut payload = total.to_le_bytes().to_vec();
        payload.extend_from_slice(&5u32.to_le_bytes());
        payload.extend_from_slice(&[0; 4]);
        payload.extend_from_slice(data);
        fragment(run_flags::FIRST, 3, &payload)
    }

    #[test]
    fn a_queue_that_turned_a_run_away_is_blocked_until_something_is_taken() {
        let options = StreamOptions {
            deliverq_max: 3,
            ..StreamOptions::default()
        };
        let mut queue = DeliveryQueue::new(&options);
        let record = Delivery::Record {
            source: 1,
            kind: 2,
            bytes: b"abc",
        };
        assert!(queue.admit(9, 72), "one run always may come");
        queue.push(&record);
        assert!(!queue.is_blocked());
        assert!(queue.admit(2, 16) && !queue.admit(3, 24));
        assert!(
            queue.is_blocked(),
            "there is room for a record, but not for the run that waits"
        );
        assert!(queue.pop(2, |_| Ok(())).unwrap());
        assert!(!queue.is_blocked() && !queue.pop(2, |_| Ok(())).unwrap());
        for _ in 0..3 {
            assert!(queue.admit(1, 8));
            queue.push(&record);
        }
        assert!(queue.is_blocked(), "full");
    }

    #[test]
    fn fragments_become_a_record() {
        let mut reassembly = Reassembly::new(100, 1000);
        assert!(matches!(
            add(&mut reassembly, 0, &first(13, b"01234567")),
            Ok(Assembled::Growing)
        ));
        assert_eq!(reassembly.reserved_bytes(), 13);
        match add(&mut reassembly, 0, &fragment(run_flags::LAST, 3, b"89abc")) {
            Ok(Assembled::Whole(record)) => {
                assert_eq!(
                    (record.source, record.kind, &record.bytes[..]),
                    (3, 5, &b"0123456789abc"[..])
                );
            }
            _ => panic!("not whole"),
        }
        assert_eq!(reassembly.reserved_bytes(), 0);
    }

    #[test]
    fn the_limit_delays_a_beginning_and_never_a_continuation() {
        let mut reassembly = Reassembly::new(100, 1000);
        assert!(matches!(
            add(&mut reassembly, 0, &first(900, b"01234567")),
            Ok(Assembled::Growing)
        ));
        assert!(matches!(
            add(&mut reassembly, 1, &first(10, b"01234567")),
            Ok(Assembled::Later)
        ));
        let middle = fragment(run_flags::MORE, 3, &[1; 64]);
        assert!(matches!(add(&mut reassembly, 0, &middle), Ok(Assembled::Growing)));
    }

    #[test]
    fn hostile_fragments_are_errors() {
        let mut reassembly = Reassembly::new(100, 1000);
        assert!(add(&mut reassembly, 0, &fragment(run_flags::MORE, 3, b"x")).is_err());
        assert!(add(&mut reassembly, 0, &first(u64::MAX, b"")).is_err());
        assert!(add(&mut reassembly, 0, &fragment(run_flags::FIRST, 3, b"")).is_err());
        assert!(add(&mut reassembly, 0, &first(50, b"01234567")).is_ok());
        assert!(add(&mut reassembly, 0, &first(50, b"01234567")).is_err());
        assert!(add(&mut reassembly, 0, &fragment(run_flags::LAST, 3, b"too short")).is_err());
    }
}
