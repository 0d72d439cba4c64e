//! A lane with both ends in one thread: what its instructions cost, without the way between two
//! cores. Beside it the same frames through rtrb, a ring of bytes of the same size, and by memcpy
//! alone.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{
    BatchSize, Bencher, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use trihop::transport::memory::segment::Segment;
use trihop::transport::ring::{Doorbell, Inbox, InboxLayout, Producer};

const LANE_BYTES: u32 = 64 << 10;

/// Frames of one round: they fit the lane at every size.
const FRAMES: usize = 8;

struct Lane {
    producer: Producer,
    inbox: Inbox,
    active: Vec<u32>,
}

fn lane() -> Lane {
    let layout = InboxLayout::new(1, LANE_BYTES).expect("a possible shape");
    let segment = Segment::create(layout.segment_bytes()).expect("memory");
    let inbox = Inbox::new(Arc::clone(&segment), layout).expect("a fresh segment");
    let doorbell = Doorbell::create().expect("a descriptor");
    let producer = Producer::new(segment, layout, 0, doorbell.bell()).expect("a free lane");
    Lane {
        producer,
        inbox,
        active: Vec::new(),
    }
}

impl Lane {
    fn write(&mut self, frame: &[u8]) {
        let place = self
            .producer
            .reserve(frame.len())
            .expect("room for a round of frames");
        place.copy_from_slice(frame);
        self.producer.commit(frame.len());
    }

    /// Reads all frames in place and gives their space back.
    fn read(&mut self) -> u64 {
        let mut sum = 0;
        self.active.clear();
        self.inbox.take_active(&mut self.active);
        for &lane in &self.active {
            let mut lane = self.inbox.lane(lane);
            while let Some(frame) = lane.front().expect("our own producer") {
                sum += black_box(frame).len() as u64;
                lane.pop();
            }
            lane.release();
        }
        sum
    }
}

/// Reserve, commit, publish, find the lane, front, pop, release.
fn frames(criterion: &mut Criterion) {
    for (name, each) in [
        ("publish each frame", true),
        ("publish 8 frames at once", false),
    ] {
        let mut group = criterion.benchmark_group(name);
        for bytes in [8usize, 16, 64, 256, 1024, 4096] {
            let (mut lane, frame) = (lane(), vec![0u8; bytes]);
            group.throughput(Throughput::Elements(FRAMES as u64));
            group.bench_function(BenchmarkId::new("lane", bytes), |bencher| {
                bencher.iter(|| {
                    let mut sum = 0;
                    for _ in 0..FRAMES {
                        lane.write(black_box(&frame));
                        if each {
                            lane.producer.publish();
                            sum += lane.read();
                        }
                    }
                    lane.producer.publish();
                    sum + lane.read()
                });
            });
            if each {
                group.bench_function(BenchmarkId::new("rtrb", bytes), |bencher| {
                    rtrb(bencher, &frame)
                });
            } else {
                group.bench_function(BenchmarkId::new("memcpy", bytes), |bencher| {
                    memcpy(bencher, &frame)
                });
            }
        }
        group.finish();
    }
}

/// Frames through a ring of bytes: its ends know no frames, so both are told the length, and each
/// write is shown at once.
fn rtrb(bencher: &mut Bencher<'_>, frame: &[u8]) {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<u8>::new(LANE_BYTES as usize);
    bencher.iter(|| {
        let mut sum = 0;
        for _ in 0..FRAMES {
            let frame = black_box(frame);
            producer.push_entire_slice(frame).expect("room for a frame");
            let there = consumer.read_chunk(frame.len()).expect("written above");
            let (first, second) = black_box(there.as_slices());
            sum += first.len() + second.len();
            there.commit_all();
        }
        sum
    });
}

/// The same frames, one behind the other, into memory of the size of a lane.
fn memcpy(bencher: &mut Bencher<'_>, frame: &[u8]) {
    let mut memory = vec![0u8; LANE_BYTES as usize];
    let round = FRAMES * frame.len();
    let mut at = 0;
    bencher.iter(|| {
        at = if at + 2 * round > memory.len() {
            0
        } else {
            at + round
        };
        for place in memory[at..at + round].chunks_exact_mut(frame.len()) {
            black_box(place).copy_from_slice(black_box(frame));
        }
    });
}

/// An inbox in a fresh segment, with one producer attached.
fn create(criterion: &mut Criterion) {
    criterion.bench_function("create and attach a lane", |bencher| {
        bencher.iter_batched(|| (), |()| lane(), BatchSize::PerIteration);
    });
}

criterion_group! {
    name = benches;
    config = trihop_benches::settings();
    targets = frames, create
}
criterion_main!(benches);
