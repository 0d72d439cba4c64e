//! The ring against a plain model: a queue of frames, and the arithmetic of positions.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{fill, is_filled, on_heap};
use crate::ring::layout::NURSERY_BYTES;
use crate::ring::{Doorbell, Inbox, Producer};

const CAPACITY: u64 = 4096;

const NURSERY: u64 = NURSERY_BYTES as u64;

/// Where the words of the only lane begin, and its nursery behind the producer's line.
const NURSERY_OFFSET: u64 = 384 + 64;

#[derive(Debug, Clone)]
enum Operation {
    /// Reserves so many bytes.
    Reserve(usize),
    /// Commits so many of 256 parts of the reservation.
    Commit(usize),
    Publish,
    Front,
    Pop,
    Release,
    /// The producer gives its end up, and another one takes it.
    SucceedProducer,
    /// The same for the owner of the inbox.
    SucceedOwner,
}

fn operations(frame_units: impl Strategy<Value = usize>) -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        40 => frame_units.prop_map(|units| Operation::Reserve(units * 8)),
        40 => (1..=256usize).prop_map(Operation::Commit),
        20 => Just(Operation::Publish),
        30 => Just(Operation::Front),
        30 => Just(Operation::Pop),
        10 => Just(Operation::Release),
        1 => Just(Operation::SucceedProducer),
        1 => Just(Operation::SucceedOwner),
    ];
    prop::collection::vec(operation, 0..if cfg!(miri) { 150 } else { 600 })
}

/// Frames of all sizes: the lane grows soon.
fn any_frames() -> impl Strategy<Value = Vec<Operation>> {
    operations(prop_oneof![3 => 1..=8usize, 1 => 1..=(CAPACITY as usize / 32)])
}

/// Frames that the nursery takes: the lane grows when it is full, or never.
fn small_frames() -> impl Strategy<Value = Vec<Operation>> {
    operations(prop_oneof![3 => 1..=2usize, 1 => 1..=(NURSERY_BYTES / 16)])
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    bytes: usize,
    number: u64,
    /// Behind the pad.
    start: u64,
}

impl Frame {
    fn end(&self) -> u64 {
        self.start + self.bytes as u64
    }
}

/// What the ring should do.
#[derive(Default)]
struct Model {
    /// Frames that are not popped, in order.
    frames: VecDeque<Frame>,
    /// Frames that are popped and not released.
    popped: VecDeque<Frame>,
    numbers: u64,
    committed: u64,
    published: u64,
    consumed: u64,
    released: u64,
    /// Position at which the lane grew.
    grown: Option<u64>,
    /// Start and length of the reservation.
    reserved: Option<(u64, usize)>,
    /// Whether `front` was called since the last `pop` and found something.
    fronted: bool,
}

impl Model {
    /// Where a frame of `bytes` would begin, if there is room without growing.
    fn start(&self, bytes: usize) -> Option<u64> {
        let (begin, capacity, longest) = self
            .grown
            .map_or((0, NURSERY, NURSERY / 2), |at| (at, CAPACITY, CAPACITY / 4));
        let to_end = capacity - (self.committed - begin) % capacity;
        let start = if bytes as u64 <= to_end {
            self.committed
        } else {
            self.committed + to_end
        };
        let used_from = self.released.max(begin);
        (bytes as u64 <= longest && start + bytes as u64 - used_from <= capacity).then_some(start)
    }

    fn reserve(&mut self, bytes: usize) -> Option<u64> {
        if self.start(bytes).is_none() && self.grown.is_none() {
            self.grown = Some(self.committed);
        }
        self.start(bytes)
    }

    /// Offset of a position in the segment.
    fn offset(&self, position: u64) -> u64 {
        match self.grown {
            Some(at) if position >= at => 4096 + (position - at) % CAPACITY,
            _ => NURSERY_OFFSET + position % NURSERY,
        }
    }

    fn published_front(&self) -> Option<Frame> {
        self.frames
            .front()
            .copied()
            .filter(|f| f.start < self.published)
    }

    fn release(&mut self) {
        self.released = self.consumed;
        self.popped.clear();
    }

    /// After how many bytes the consumer releases where it stands.
    fn release_step(&self) -> u64 {
        match self.grown {
            Some(at) if self.consumed > at => CAPACITY / 8,
            _ => NURSERY / 2,
        }
    }
}

fn check(operations: &[Operation]) -> Result<(), TestCaseError> {
    let (segment, mut inbox, mut producers) = on_heap(1, CAPACITY as u32);
    let mut producer = producers.remove(0);
    let (first, layout) = (segment.as_ptr() as u64, inbox.layout());
    let mut model = Model::default();
    for operation in operations {
        match *operation {
            Operation::Reserve(bytes) => {
                let has_room = model.grown.is_none() || model.start(bytes).is_some();
                prop_assert_eq!(producer.has_room(bytes), has_room);
                let start = model.reserve(bytes);
                prop_assert_eq!(start.is_some(), has_room);
                let frame = producer.reserve(bytes);
                prop_assert_eq!(frame.is_some(), has_room);
                model.reserved = start.map(|start| (start, bytes));
                if let (Some(frame), Some(start)) = (frame, start) {
                    prop_assert_eq!(frame.len(), bytes);
                    prop_assert_eq!(frame.as_ptr() as u64 - first, model.offset(start));
                    model.numbers += 1;
                    fill(frame, model.numbers);
                }
            }
            Operation::Commit(parts) => {
                let Some((start, reserved)) = model.reserved.take() else {
                    continue;
                };
                let bytes = (reserved * parts / 256).next_multiple_of(8).max(8);
                producer.commit(bytes);
                let frame = Frame {
                    bytes,
                    number: model.numbers,
                    start,
                };
                model.frames.push_back(frame);
                model.committed = frame.end();
            }
            Operation::Publish => {
                producer.publish();
                model.published = model.committed;
            }
            Operation::Front => {
                let expected = model.published_front();
                let mut lane = inbox.lane(0);
                let found = lane.front().expect("nobody writes what cannot be true");
                prop_assert_eq!(found.map(<[u8]>::len), expected.map(|f| f.bytes));
                if let (Some(found), Some(frame)) = (found, expected) {
                    prop_assert_eq!(found.as_ptr() as u64 - first, model.offset(frame.start));
                    prop_assert!(is_filled(found, frame.number));
                    model.consumed = frame.start;
                    model.fronted = true;
                }
            }
            Operation::Pop => {
                inbox.lane(0).pop();
                if std::mem::take(&mut model.fronted) {
                    let frame = model.frames.pop_front().expect("front found one");
                    model.consumed = frame.end();
                    model.popped.push_back(frame);
                }
                if model.consumed - model.released >= model.release_step() {
                    model.release();
                }
            }
            Operation::Release => {
                inbox.lane(0).release();
                model.release();
            }
            Operation::SucceedProducer => {
                drop(producer);
                producer =
                    Producer::new(segment.clone(), layout, 0, Doorbell::private().bell()).unwrap();
                model.reserved = None;
                model.committed = model.published;
                model.grown = model.grown.map(|at| at.min(model.published));
                model.frames.retain(|f| f.start < model.published);
            }
            Operation::SucceedOwner => {
                drop(inbox);
                inbox = Inbox::new(segment.clone(), layout).unwrap();
                model.popped.append(&mut model.frames);
                model.frames.append(&mut model.popped);
                model.consumed = model.released;
                model.fronted = false;
            }
        }
        prop_assert_eq!(producer.produced(), model.committed);
        prop_assert_eq!(producer.published(), model.published);
        prop_assert_eq!(
            producer.pending_bytes() as u64,
            model.committed - model.published
        );
        prop_assert_eq!(producer.consumed(), Ok(model.released));
        prop_assert_eq!(
            producer.in_use_bytes() as u64,
            model.committed - model.released
        );
        prop_assert!(producer.in_use_bytes() <= layout.max_in_use_bytes());
        prop_assert_eq!(inbox.lane(0).consumed(), model.consumed);
        prop_assert_eq!(inbox.lane(0).is_empty(), model.published_front().is_none());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..crate::seed::properties()
    })]

    #[test]
    fn the_ring_does_what_a_queue_does(operations in any_frames()) {
        check(&operations)?;
    }

    #[test]
    fn so_does_its_nursery(operations in small_frames()) {
        check(&operations)?;
    }
}

#[test]
fn largest_frames_pass_however_the_ring_stands() {
    let (_, mut inbox, mut producers) = on_heap(1, CAPACITY as u32);
    for number in 0..200 {
        // Odd small frames move the ring's end against the large ones.
        for bytes in [CAPACITY as usize / 4, 8 + (number as usize % 13) * 8] {
            fill(
                producers[0]
                    .reserve(bytes)
                    .expect("an empty ring takes every frame"),
                number,
            );
            producers[0].commit(bytes);
            producers[0].publish();
            let mut lane = inbox.lane(0);
            assert!(is_filled(lane.front().unwrap().expect("published"), number));
            lane.pop();
            lane.release();
        }
    }
}

#[test]
fn small_frames_that_are_taken_soon_never_touch_the_ring() {
    let (segment, mut inbox, mut producers) = on_heap(1, CAPACITY as u32);
    for number in 0..2000 {
        for _ in 0..2 {
            let bytes = 8 + (number as usize % 4) * 8;
            fill(producers[0].reserve(bytes).expect("room"), number);
            producers[0].commit(bytes);
        }
        producers[0].publish();
        let mut lane = inbox.lane(0);
        while let Some(frame) = lane.front().unwrap() {
            assert!(is_filled(frame, number));
            lane.pop();
        }
        lane.release();
    }
    let ring = 4096..4096 + CAPACITY as usize;
    assert_eq!(ring.end, inbox.layout().segment_bytes());
    // SAFETY: the range lies inside the segment, and this is the only thread.
    let bytes = unsafe { std::slice::from_raw_parts(segment.as_ptr().add(ring.start), ring.len()) };
    assert!(bytes.iter().all(|byte| *byte == 0), "the lane grew");
}
