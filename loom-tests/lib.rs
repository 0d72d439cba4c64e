//! What the models in `tests/` share: a lane and a sleeper that live on the heap of loom or shuttle.
#![cfg(any(trihop_loom, trihop_shuttle))]

#[cfg(trihop_shuttle)]
pub mod shuttled;
mod unit;

use std::sync::Arc;

use trihop_transport::ring::doorbell::{AWAKE, Sleeper};
use trihop_transport::ring::spsc::{Reader, Writer};
use trihop_transport::ring::{LaneStorage, Orderings};
use trihop_transport::sync::{AtomicU64, MappedU64, Ordering};
use unit::Unit;

/// A lane of a few units. Each unit's low half is the frame length where one begins; its high half is the model's.
#[derive(Debug, Clone)]
pub struct ModelLane(Arc<Words>);

#[derive(Debug)]
struct Words {
    tail: AtomicU64,
    space_wanted: AtomicU64,
    head: AtomicU64,
    units: Vec<Unit>,
}

impl ModelLane {
    /// A lane of `units` times 8 bytes, empty, whose positions begin at `start` (to be near the end of the ring).
    pub fn new(units: usize, start: u64) -> Self {
        Self(Arc::new(Words {
            tail: AtomicU64::new(start),
            space_wanted: AtomicU64::new(0),
            head: AtomicU64::new(start),
            units: (0..units).map(|_| Unit::default()).collect(),
        }))
    }

    /// Positions that another process could have written.
    pub fn published(&self) -> u64 {
        self.0.tail.load(Ordering::Relaxed)
    }

    fn write_payload(&self, offset: usize, value: u32) {
        self.0.units[offset / 8].update(|unit| unit & 0xffff_ffff | u64::from(value) << 32);
    }

    fn read_payload(&self, offset: usize) -> u32 {
        (self.0.units[offset / 8].get() >> 32) as u32
    }
}

impl LaneStorage for ModelLane {
    type Word = AtomicU64;

    fn tail(&self) -> &AtomicU64 {
        &self.0.tail
    }

    fn space_wanted(&self) -> &AtomicU64 {
        &self.0.space_wanted
    }

    fn head(&self) -> &AtomicU64 {
        &self.0.head
    }

    fn capacity_bytes(&self) -> usize {
        self.0.units.len() * 8
    }

    unsafe fn write_length(&self, offset: usize, length: u32) {
        self.0.units[offset / 8].update(|unit| unit & !0xffff_ffff | u64::from(length));
    }

    unsafe fn read_length(&self, offset: usize) -> u32 {
        self.0.units[offset / 8].get() as u32
    }
}

/// Commits a frame of `bytes`, each unit of which carries `value`. False where there is no room.
pub fn put<O: Orderings>(writer: &mut Writer<ModelLane, O>, bytes: usize, value: u32) -> bool {
    let Some(span) = writer.reserve(bytes) else {
        return false;
    };
    for unit in 0..bytes / 8 {
        writer.storage().write_payload(span.offset + unit * 8, value);
    }
    writer.commit(bytes);
    true
}

/// Value and length of the next frame, if there is one.
pub fn peek<O: Orderings>(reader: &mut Reader<ModelLane, O>) -> Option<(u32, usize)> {
    let span = reader.front().expect("no side writes what cannot be true")?;
    let value = reader.storage().read_payload(span.offset);
    for unit in 1..span.bytes / 8 {
        assert_eq!(
            reader.storage().read_payload(span.offset + unit * 8),
            value,
            "torn frame"
        );
    }
    Some((value, span.bytes))
}

/// Pops the next frame, if there is one, and returns its value.
pub fn get<O: Orderings>(reader: &mut Reader<ModelLane, O>) -> Option<u32> {
    let (value, _) = peek(reader)?;
    reader.pop();
    Some(value)
}

/// Whoever may sleep, and whether it was woken. The wake itself (an eventfd) keeps until it is looked at.
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
