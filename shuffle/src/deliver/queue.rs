//! Deliveries that wait: for an application without a handler, or for a delivery thread.

use std::collections::VecDeque;

use trihop_transport::protocol::wire::{BadRun, RUN_HEADER_BYTES, Run, RunHeader};
use trihop_transport::ring::Block;
use zerocopy::IntoBytes;

use super::{Delivery, LongBytes, items_of};
use crate::config::StreamOptions;
use crate::queue::spare::{Spare, bytes_of};

/// Deliveries that wait, at most `deliverq_max` records and `deliverq_bytes` of `memory_bytes` (one
/// run always may).
#[derive(Debug)]
pub(crate) struct DeliveryQueue {
    entries: VecDeque<Entry>,
    spare: Spare<u64>,
    /// Records and bytes that wait, those that were [taken](Self::take) and are not
    /// [finished](Self::finish) included.
    records: usize,
    bytes: usize,
    limit_records: usize,
    limit_bytes: usize,
    /// A run was turned away since something was last taken.
    refused: bool,
    /// For the next [`take_all`](Self::take_all).
    list: Vec<Entry>,
}

/// One delivery.
#[derive(Debug)]
pub(crate) struct Entry {
    /// A run's frame, or a long record's bytes.
    memory: Memory,
    records: usize,
    /// Of a long record; runs say themselves what they are.
    whole: Option<Whole>,
}

/// What a long record is that lies whole somewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whole {
    /// A run of one item, with this header: that was checked, and whoever has shared the memory may
    /// write there still.
    Item(RunHeader),
    Record {
        source: u32,
        kind: u32,
    },
}

impl Whole {
    /// What lies there.
    pub fn delivery(self, bytes: &[u8]) -> Delivery<'_> {
        match self {
            Self::Item(header) => Delivery::Run(Run {
                header,
                payload: bytes.get(RUN_HEADER_BYTES..).unwrap_or_default(),
                frame: bytes,
            }),
            Self::Record { source, kind } => Delivery::Record {
                source,
                kind,
                bytes: LongBytes::Lent(bytes),
            },
        }
    }
}

/// Where what is delivered lies.
#[derive(Debug)]
enum Memory {
    /// A copy of so many bytes.
    Own { words: Vec<u64>, bytes: usize },
    /// Memory that its source shares.
    Shared(Block),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own { words, bytes } => &words.as_bytes()[..*bytes],
            Self::Shared(block) => block,
        }
    }

    /// Bytes that it takes.
    fn length(&self) -> usize {
        match self {
            Self::Own { words, .. } => bytes_of(words),
            Self::Shared(block) => block.len(),
        }
    }
}

impl Entry {
    /// Records in it.
    pub fn records(&self) -> usize {
        self.records
    }

    /// The header of a run of items of so many bytes, which lie behind it.
    ///
    /// # Errors
    /// It is none, or they are not there; with its source, where that is known.
    pub fn items(
        &self,
        job_size: u32,
        item_bytes: usize,
    ) -> Result<RunHeader, (Option<u32>, BadRun)> {
        if let Some(Whole::Record { source, .. }) = self.whole {
            let why = BadRun::Fragment("a long record on a stream of items");
            return Err((Some(source), why));
        }
        let (run, _) = Run::split(self.memory.bytes(), job_size).map_err(|why| (None, why))?;
        match items_of(&run, item_bytes) {
            Ok(_) => Ok(run.header),
            Err(why) => Err((Some(run.header.source), why)),
        }
    }

    /// Lends what it holds, which has to come back, and is a copy.
    pub fn swap(&mut self, words: &mut Vec<u64>) {
        match &mut self.memory {
            Memory::Own { words: own, .. } => std::mem::swap(own, words),
            Memory::Shared(_) => unreachable!("what waits for an application is copied"),
        }
    }

    /// Gives the delivery to `take`.
    pub fn hand_to(
        &self,
        job_size: u32,
        take: impl FnOnce(Delivery<'_>) -> Result<(), BadRun>,
    ) -> Result<(), BadRun> {
        let bytes = self.memory.bytes();
        match self.whole {
            Some(whole) => take(whole.delivery(bytes)),
            None => Run::split(bytes, job_size).and_then(|(run, _)| take(Delivery::Run(run))),
        }
    }
}

impl DeliveryQueue {
    pub fn new(options: &StreamOptions) -> Self {
        // Kept once, and once more as what a kept buffer has too much.
        let deliverq_bytes = options.shares().deliverq_bytes;
        let spare_bytes = deliverq_bytes / 16;
        Self {
            entries: VecDeque::new(),
            spare: Spare::new(spare_bytes),
            records: 0,
            bytes: 0,
            limit_records: options.deliverq_max,
            limit_bytes: deliverq_bytes - 2 * spare_bytes,
            refused: false,
            list: Vec::new(),
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

    /// Whether a delivery of `count` records of together `bytes` may come; into an empty queue
    /// always.
    pub fn admit(&mut self, count: usize, bytes: usize) -> bool {
        let fits =
            self.records + count <= self.limit_records && self.bytes + bytes <= self.limit_bytes;
        let admitted = self.records == 0 || fits;
        self.refused |= !admitted;
        admitted
    }

    /// Whether something waits for room that only taking makes: the queue is full, or too full for
    /// the next run.
    pub fn is_blocked(&self) -> bool {
        self.refused
            || (self.records > 0
                && (self.records >= self.limit_records || self.bytes >= self.limit_bytes))
    }

    /// Copies a delivery.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn push(&mut self, delivery: &Delivery<'_>) -> Result<(), BadRun> {
        let (bytes, records, whole) = match delivery {
            Delivery::Run(run) => (run.frame, run.header.count as usize, None),
            Delivery::Record {
                source,
                kind,
                bytes,
            } => {
                let (source, kind) = (*source, *kind);
                (bytes.as_slice(), 1, Some(Whole::Record { source, kind }))
            }
        };
        let words = self.spare.take(bytes.len().div_ceil(8));
        let mut words = words.map_err(|_| BadRun::NoMemory(bytes.len()))?;
        // Not zeroed before: nothing but a rest of fewer than 8 bytes needs it.
        let (words_of, rest) = bytes.as_chunks::<8>();
        words.extend(words_of.iter().map(|word| u64::from_ne_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            words.push(u64::from_ne_bytes(word));
        }
        let bytes = bytes.len();
        self.add(Memory::Own { words, bytes }, records, whole);
        Ok(())
    }

    /// Takes a long record where it lies.
    pub fn keep(&mut self, block: Block, whole: Whole) {
        self.add(Memory::Shared(block), 1, Some(whole));
    }

    fn add(&mut self, memory: Memory, records: usize, whole: Option<Whole>) {
        self.bytes += memory.length();
        self.records += records;
        self.entries.push_back(Entry {
            memory,
            records,
            whole,
        });
    }

    /// Whether nothing can be taken.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the oldest deliveries out, of about `most` records; they go on counting until they are
    /// finished.
    pub fn take(&mut self, most: usize, into: &mut Vec<Entry>) {
        let mut records = 0;
        while records < most
            && let Some(entry) = self.entries.pop_front()
        {
            records += entry.records;
            into.push(entry);
        }
    }

    /// Takes all deliveries out, the oldest first; they go on counting until
    /// [`put_back`](Self::put_back).
    pub fn take_all(&mut self) -> Vec<Entry> {
        let mut list = std::mem::take(&mut self.list);
        list.extend(self.entries.drain(..));
        list
    }

    /// The first `done` of those that were taken out are done with; the rest waits again, before
    /// all others.
    pub fn put_back(&mut self, mut taken: Vec<Entry>, done: usize) {
        for entry in taken.drain(done..).rev() {
            self.entries.push_front(entry);
        }
        self.finish(&mut taken);
        self.list = taken;
    }

    /// Deliveries that were taken are done with; returns their records.
    pub fn finish(&mut self, taken: &mut Vec<Entry>) -> usize {
        let before = self.records;
        for entry in taken.drain(..) {
            self.release(entry);
        }
        before - self.records
    }

    fn release(&mut self, entry: Entry) {
        self.refused = false;
        self.records -= entry.records;
        self.bytes -= entry.memory.length();
        if let Memory::Own { words, .. } = entry.memory {
            self.spare.give_back(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            bytes: LongBytes::Lent(b"abc"),
        };
        assert!(queue.admit(9, 72), "one run always may come");
        queue.push(&record).unwrap();
        assert!(!queue.is_blocked());
        assert!(queue.admit(2, 16) && !queue.admit(3, 24));
        assert!(
            queue.is_blocked(),
            "there is room for a record, but not for the run that waits"
        );
        let taken = queue.take_all();
        assert!(
            taken.len() == 1 && queue.is_empty() && queue.is_blocked(),
            "in somebody's hands"
        );
        taken[0]
            .hand_to(2, |delivery| {
                assert_eq!((delivery.source(), delivery.records()), (1, 1));
                Ok(())
            })
            .unwrap();
        queue.put_back(taken, 1);
        assert!(!queue.is_blocked() && queue.is_empty());
        for _ in 0..3 {
            assert!(queue.admit(1, 8));
            queue.push(&record).unwrap();
        }
        assert!(queue.is_blocked(), "full");
        let taken = queue.take_all();
        queue.push(&record).unwrap();
        queue.put_back(taken, 1);
        assert_eq!(queue.records(), 3, "what was not taken waits again");
        assert_eq!(queue.take_all().len(), 3);
    }
}
