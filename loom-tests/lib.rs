//! What the models in `tests/` share: a lane and a sleeper that live on the heap of loom or
//! shuttle.
#![cfg(any(trihop_loom, trihop_shuttle))]

#[cfg(trihop_shuttle)]
pub mod shuttled;
mod unit;

use std::marker::PhantomData;
use std::sync::Arc;

use trihop_transport::ring::doorbell::{AWAKE, Sleeper};
use trihop_transport::ring::spsc::{Reader, ReaderState, Writer};
use trihop_transport::ring::{Area, LaneStorage, Orderings};
use trihop_transport::sync::{AtomicU64, MappedU64, Ordering};
use unit::Unit;

/// Units of a nursery: the fewest that take a frame.
const NURSERY_UNITS: usize = 4;

/// A lane of a few units. Each unit's low half is the frame length where one begins; its high half
/// is the model's.
#[derive(Debug, Clone)]
pub struct ModelLane {
    words: Arc<Words>,
    /// The bitmap that has this lane's bit, and the lane's number.
    active: (Arc<[AtomicU64]>, u32),
    /// Stands in for the word that says where the lane grew, in a producer that shows it too late.
    late_growth: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
struct Words {
    tail: AtomicU64,
    space_wanted: AtomicU64,
    grown_at: AtomicU64,
    head: AtomicU64,
    nursery: Vec<Unit>,
    ring: Vec<Unit>,
}

impl ModelLane {
    /// A lane that grew at once to `units` times 8 bytes, empty, whose positions begin at `start`
    /// (to be near the end of the ring). It has a bitmap of its own, in which its bit is set.
    pub fn new(units: usize, start: u64) -> Self {
        Self::with_words(units, start, 1)
    }

    /// A lane whose frames lie in its nursery until it grows to `units` times 8 bytes.
    pub fn in_nursery(units: usize, start: u64) -> Self {
        Self::with_words(units, start, 0)
    }

    /// This lane, as number `lane` of an inbox with the bitmap `active`.
    #[must_use]
    pub fn in_inbox(mut self, active: Arc<[AtomicU64]>, lane: u32) -> Self {
        self.active = (active, lane);
        self
    }

    /// This lane, as a producer sees it that shows only by [`show_growth`](Self::show_growth) where
    /// it grew.
    #[must_use]
    pub fn with_late_growth(mut self) -> Self {
        self.late_growth = Some(Arc::default());
        self
    }

    /// Shows where the lane grew.
    pub fn show_growth(&self) {
        let grown_at = self.grown_at().load(Ordering::Relaxed);
        self.words.grown_at.store(grown_at, Ordering::Relaxed);
    }

    /// Whether the lane is out of its nursery.
    pub fn has_grown(&self) -> bool {
        self.words.grown_at.load(Ordering::Relaxed) != 0
    }

    fn with_words(units: usize, start: u64, grown_at: u64) -> Self {
        let cells = |units| (0..units).map(|_| Unit::default()).collect();
        let words = Words {
            tail: AtomicU64::new(start),
            space_wanted: AtomicU64::new(0),
            grown_at: AtomicU64::new(grown_at),
            head: AtomicU64::new(start),
            nursery: cells(NURSERY_UNITS),
            ring: cells(units),
        };
        Self {
            words: Arc::new(words),
            active: (Arc::new([AtomicU64::new(1)]), 0),
            late_growth: None,
        }
    }

    /// Positions that another process could have written.
    pub fn published(&self) -> u64 {
        self.words.tail.load(Ordering::Relaxed)
    }

    fn unit(&self, area: Area, offset: usize) -> &Unit {
        match area {
            Area::Nursery => &self.words.nursery[offset / 8],
            Area::Ring => &self.words.ring[offset / 8],
        }
    }

    fn write_payload(&self, area: Area, offset: usize, value: u32) {
        self.unit(area, offset)
            .update(|unit| unit & 0xffff_ffff | u64::from(value) << 32);
    }

    fn read_payload(&self, area: Area, offset: usize) -> u32 {
        (self.unit(area, offset).get() >> 32) as u32
    }
}

// SAFETY: all memory is behind cells that check each access and each index; capacities never
// change.
unsafe impl LaneStorage for ModelLane {
    type Word = AtomicU64;

    fn tail(&self) -> &AtomicU64 {
        &self.words.tail
    }

    fn space_wanted(&self) -> &AtomicU64 {
        &self.words.space_wanted
    }

    fn grown_at(&self) -> &AtomicU64 {
        self.late_growth.as_deref().unwrap_or(&self.words.grown_at)
    }

    fn head(&self) -> &AtomicU64 {
        &self.words.head
    }

    fn active_bit(&self) -> (&AtomicU64, u64) {
        (
            &self.active.0[self.active.1 as usize / 64],
            1 << (self.active.1 % 64),
        )
    }

    fn capacity_bytes(&self, area: Area) -> usize {
        8 * match area {
            Area::Nursery => self.words.nursery.len(),
            Area::Ring => self.words.ring.len(),
        }
    }

    unsafe fn write_length(&self, area: Area, offset: usize, length: u32) {
        self.unit(area, offset)
            .update(|unit| unit & !0xffff_ffff | u64::from(length));
    }

    unsafe fn read_length(&self, area: Area, offset: usize) -> u32 {
        self.unit(area, offset).get() as u32
    }
}

/// A lane's reader and what it stands on.
#[derive(Debug)]
pub struct ModelReader<O> {
    state: ReaderState,
    lane: ModelLane,
    orderings: PhantomData<O>,
}

impl<O: Orderings> ModelReader<O> {
    /// Goes on where the last reader released.
    pub fn resume(lane: ModelLane) -> Self {
        Self {
            state: ReaderState::resume(&lane),
            lane,
            orderings: PhantomData,
        }
    }

    fn reader(&mut self) -> Reader<'_, ModelLane, O> {
        Reader::new(&mut self.state, self.lane.clone())
    }

    /// As [`Reader::release`].
    pub fn release(&mut self) -> bool {
        self.reader().release()
    }

    /// Value and length of the next frame, if there is one.
    pub fn peek(&mut self) -> Option<(u32, usize)> {
        let mut reader = self.reader();
        let span = reader
            .front()
            .expect("no side writes what cannot be true")?;
        let payload = |unit| {
            reader
                .storage()
                .read_payload(span.area, span.offset + unit * 8)
        };
        let value = payload(0);
        for unit in 1..span.bytes / 8 {
            assert_eq!(payload(unit), value, "torn frame");
        }
        Some((value, span.bytes))
    }

    /// Pops the frame that was looked at.
    pub fn pop(&mut self) {
        self.reader().pop();
    }

    /// Pops the next frame, if there is one, and returns its value.
    pub fn get(&mut self) -> Option<u32> {
        let (value, _) = self.peek()?;
        self.pop();
        Some(value)
    }
}

/// Commits a frame of `bytes`, each unit of which carries `value`. False where there is no room.
pub fn put<O: Orderings>(writer: &mut Writer<ModelLane, O>, bytes: usize, value: u32) -> bool {
    let Some(span) = writer.reserve(bytes) else {
        return false;
    };
    for unit in 0..bytes / 8 {
        writer
            .storage()
            .write_payload(span.area, span.offset + unit * 8, value);
    }
    writer.commit(bytes);
    true
}

/// A thread that may sleep, and whether it was woken. The wake itself (an eventfd) keeps until it
/// is looked at.
#[derive(Debug, Clone)]
pub struct ModelSleeper(Arc<(AtomicU64, MappedU64)>);

impl Default for ModelSleeper {
    fn default() -> Self {
        Self(Arc::new((AtomicU64::new(AWAKE), MappedU64::new(0))))
    }
}

impl ModelSleeper {
    /// Whether anybody wrote to the eventfd. Asked when all threads have ended.
    pub fn was_woken(&self) -> bool {
        self.0.1.load(Ordering::Relaxed) != 0
    }
}

impl Sleeper for ModelSleeper {
    type Word = AtomicU64;

    fn word(&self) -> &AtomicU64 {
        &self.0.0
    }

    fn signal(&self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }
}
