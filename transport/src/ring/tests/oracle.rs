//! The ring against a plain model: a queue of frames, and the arithmetic of positions.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{fill, is_filled, on_heap};

const CAPACITY: u64 = 4096;

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
}

fn operation() -> impl Strategy<Value = Operation> {
    let frame = prop_oneof![3 => 1..=8usize, 1 => 1..=(CAPACITY as usize / 32)];
    prop_oneof![
        4 => frame.prop_map(|units| Operation::Reserve(units * 8)),
        4 => (1..=256usize).prop_map(Operation::Commit),
        2 => Just(Operation::Publish),
        3 => Just(Operation::Front),
        3 => Just(Operation::Pop),
        1 => Just(Operation::Release),
    ]
}

/// What the ring should do.
#[derive(Default)]
struct Model {
    /// Length, number, and start (behind the pad) of each frame that is not popped, in order.
    frames: VecDeque<(usize, u64, u64)>,
    numbers: u64,
    committed: u64,
    published: u64,
    consumed: u64,
    released: u64,
    /// Start and length of the reservation.
    reserved: Option<(u64, usize)>,
    /// Whether `front` was called since the last `pop` and found something.
    fronted: bool,
}

impl Model {
    fn start(&self, bytes: usize) -> u64 {
        let to_end = CAPACITY - self.committed % CAPACITY;
        if bytes as u64 <= to_end {
            self.committed
        } else {
            self.committed + to_end
        }
    }

    fn published_front(&self) -> Option<(usize, u64, u64)> {
        self.frames
            .front()
            .copied()
            .filter(|(_, _, start)| *start < self.published)
    }
}

fn check(operations: &[Operation]) -> Result<(), TestCaseError> {
    let (_, mut inbox, mut producers) = on_heap(1, CAPACITY as u32);
    let producer = &mut producers[0];
    let mut model = Model::default();
    for operation in operations {
        match *operation {
            Operation::Reserve(bytes) => {
                let start = model.start(bytes);
                let has_room = start + bytes as u64 - model.released <= CAPACITY;
                prop_assert_eq!(producer.has_room(bytes), has_room);
                match producer.reserve(bytes) {
                    Some(frame) => {
                        prop_assert!(has_room);
                        prop_assert_eq!(frame.len(), bytes);
                        prop_assert!(frame.as_ptr().cast::<u64>().is_aligned());
                        model.numbers += 1;
                        fill(frame, model.numbers);
                        model.reserved = Some((start, bytes));
                    }
                    None => {
                        prop_assert!(!has_room);
                        model.reserved = None;
                    }
                }
            }
            Operation::Commit(parts) => {
                let Some((start, reserved)) = model.reserved.take() else {
                    continue;
                };
                let bytes = (reserved * parts / 256).next_multiple_of(8).max(8);
                producer.commit(bytes);
                model.frames.push_back((bytes, model.numbers, start));
                model.committed = start + bytes as u64;
            }
            Operation::Publish => {
                producer.publish();
                model.published = model.committed;
            }
            Operation::Front => {
                let expected = model.published_front();
                let found = inbox.lane(0).front().expect("nobody writes what cannot be true");
                prop_assert_eq!(found.map(<[u8]>::len), expected.map(|(bytes, _, _)| bytes));
                if let (Some(frame), Some((_, number, start))) = (found, expected) {
                    prop_assert!(is_filled(frame, number));
                    model.consumed = start;
                    model.fronted = true;
                }
            }
            Operation::Pop => {
                inbox.lane(0).pop();
                if std::mem::take(&mut model.fronted) {
                    let (bytes, _, start) = model.frames.pop_front().expect("front found one");
                    model.consumed = start + bytes as u64;
                }
                if model.consumed - model.released >= CAPACITY / 8 {
                    model.released = model.consumed;
                }
            }
            Operation::Release => {
                inbox.lane(0).release();
                model.released = model.consumed;
            }
        }
        prop_assert_eq!(producer.produced(), model.committed);
        prop_assert_eq!(producer.published(), model.published);
        prop_assert_eq!(producer.pending_bytes() as u64, model.committed - model.published);
        prop_assert_eq!(producer.consumed(), Ok(model.released));
        prop_assert_eq!(producer.in_use_bytes() as u64, model.committed - model.released);
        prop_assert_eq!(inbox.lane(0).consumed(), model.consumed);
        prop_assert_eq!(inbox.lane(0).is_empty(), model.published_front().is_none());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_ring_does_what_a_queue_does(
        operations in prop::collection::vec(operation(), 0..if cfg!(miri) { 150 } else { 600 })
    ) {
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
            assert!(is_filled(
                inbox.lane(0).front().unwrap().expect("published"),
                number
            ));
            inbox.lane(0).pop();
            inbox.lane(0).release();
        }
    }
}
