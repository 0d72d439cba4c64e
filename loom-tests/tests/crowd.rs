//! Several producers, full lanes, and everybody sleeps for real: ring, bitmap and doorbell as one,
//! beyond what loom can finish.
#![cfg(trihop_shuttle)]

use std::sync::Arc;

use trihop_loom_tests::shuttled::{BlockingSleeper, TimeLimit, explore};
use trihop_loom_tests::{ModelLane, ModelReader, put};
use trihop_transport::ring::bitmap::Watch;
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Shipped, doorbell};
use trihop_transport::sync::{AtomicU64, thread};

/// Lanes of the inbox, in both words of its bitmap.
const LANES: [u32; 4] = [0, 1, 63, 64];

/// Frames that go through each lane of 8 units: together 9 units, so that each producer waits for
/// room.
const FRAMES: u32 = 6;

/// Frames that the owner takes from one lane before it turns to the next.
const FRAMES_PER_ROUND: u32 = 2;

/// What a twin does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The owner sleeps without looking at the bitmap again.
    OwnerLooksOnce,
    /// The owner forgets a lane that it left with frames in it.
    OwnerForgetsLane,
    /// The owner gives space back and never rings for it.
    OwnerNeverRings,
    /// A producer sleeps without looking for room again.
    ProducerLooksOnce,
    /// A producer does not say that it waits for room.
    ProducerNeverAsks,
    /// A producer sleeps before it has shown what it wrote.
    ProducerKeepsFrames,
}

type Bits = Arc<[AtomicU64; 2]>;

struct Producer {
    lane: u32,
    writer: Writer<ModelLane, Shipped>,
    owner: BlockingSleeper,
    sleeper: BlockingSleeper,
}

impl Producer {
    fn run(mut self, flaw: Flaw, limit: TimeLimit) {
        for value in 1..=FRAMES {
            let bytes = if value % 2 == 0 { 16 } else { 8 };
            while !put(&mut self.writer, bytes, value) {
                if flaw != Flaw::ProducerKeepsFrames {
                    self.writer.publish(&self.owner);
                }
                if flaw != Flaw::ProducerNeverAsks {
                    self.writer.want_space();
                }
                let writer = &mut self.writer;
                self.sleeper.park(limit, || {
                    flaw != Flaw::ProducerLooksOnce && writer.has_room(bytes)
                });
            }
            // The others show what they wrote only when they have to.
            if value % 2 == 0 && self.lane.is_multiple_of(2) {
                self.writer.publish(&self.owner);
            }
        }
        self.writer.publish(&self.owner);
    }
}

struct Owner {
    lanes: Vec<ModelLane>,
    watch: Watch,
    readers: Vec<ModelReader<Shipped>>,
    producers: Vec<BlockingSleeper>,
    active: Bits,
    sleeper: BlockingSleeper,
    received: [u32; LANES.len()],
}

impl Owner {
    /// Takes some frames of one lane. Whether it is empty now.
    fn drain(&mut self, index: usize, flaw: Flaw) -> bool {
        let mut empty = false;
        for _ in 0..FRAMES_PER_ROUND {
            let Some(value) = self.readers[index].get() else {
                empty = true;
                break;
            };
            self.received[index] += 1;
            assert_eq!(value, self.received[index], "out of order");
        }
        if self.readers[index].release() && flaw != Flaw::OwnerNeverRings {
            doorbell::ring(&self.producers[index]);
        }
        empty || flaw == Flaw::OwnerForgetsLane
    }

    fn run(mut self, flaw: Flaw, limit: TimeLimit) {
        let mut backlog: Vec<usize> = Vec::new();
        while self.received != [FRAMES; LANES.len()] {
            let index_of = |lane| {
                LANES
                    .iter()
                    .position(|&l| l == lane)
                    .expect("a lane that exists")
            };
            let storage = |lane| self.lanes[index_of(lane)].clone();
            let lanes = LANES.iter().max().expect("lanes") + 1;
            self.watch
                .take::<_, Shipped>(&self.active[..], lanes, storage, |lane| {
                    let index = index_of(lane);
                    if !backlog.contains(&index) {
                        backlog.push(index);
                    }
                });
            if backlog.is_empty() {
                let (watch, active) = (&self.watch, &self.active);
                self.sleeper.park(limit, || {
                    flaw != Flaw::OwnerLooksOnce && watch.any(&active[..], storage)
                });
            }
            backlog.retain(|&index| !self.drain(index, flaw));
        }
    }
}

fn crowd(flaw: Flaw, limit: TimeLimit) {
    explore(move || {
        let active: Bits = Arc::default();
        let sleeper = BlockingSleeper::default();
        let mut owner = Owner {
            lanes: Vec::new(),
            watch: Watch::default(),
            readers: Vec::new(),
            producers: Vec::new(),
            active: Arc::clone(&active),
            sleeper: sleeper.clone(),
            received: [0; LANES.len()],
        };
        let mut threads = Vec::new();
        for lane in LANES {
            // The first two begin in their nursery, and grow as soon as that is full.
            let fresh = if lane < 2 {
                ModelLane::in_nursery
            } else {
                ModelLane::new
            };
            let storage = fresh(8, 0).in_inbox(active.clone(), lane);
            let producer = Producer {
                lane,
                writer: Writer::resume(storage.clone()).unwrap(),
                owner: sleeper.clone(),
                sleeper: BlockingSleeper::default(),
            };
            owner.readers.push(ModelReader::resume(storage.clone()));
            owner.lanes.push(storage);
            owner.producers.push(producer.sleeper.clone());
            threads.push(thread::spawn(move || producer.run(flaw, limit)));
        }
        owner.run(flaw, limit);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn nothing_is_lost_among_four_producers_that_wait_for_room() {
    crowd(Flaw::None, TimeLimit::None);
}

#[test]
fn sleeps_that_time_out_leave_rings_behind_and_lose_none() {
    crowd(Flaw::None, TimeLimit::Some);
}

macro_rules! twin {
    ($test:ident, $flaw:ident) => {
        #[test]
        #[should_panic(expected = "deadlock")]
        fn $test() {
            crowd(Flaw::$flaw, TimeLimit::None);
        }
    };
}

twin!(twin_owner_looks_once, OwnerLooksOnce);
twin!(twin_owner_forgets_lane, OwnerForgetsLane);
twin!(twin_owner_never_rings, OwnerNeverRings);
twin!(twin_producer_looks_once, ProducerLooksOnce);
twin!(twin_producer_never_asks, ProducerNeverAsks);
twin!(twin_producer_keeps_frames, ProducerKeepsFrames);
