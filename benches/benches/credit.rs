//! Credits: what one batch costs both ends of a link, from the choice of a slot to the
//! acknowledgement.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trihop::transport::protocol::credit::{Place, Receiving, Sending, Shared};
use trihop::transport::protocol::eager::{Passage, Slot, choose};
use trihop::transport::protocol::wire::Counters;

const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 64 << 10;

/// Batches that may be in flight.
const IN_FLIGHT: u32 = 4;

/// Batches of one round.
const BATCHES: u64 = 1024;

/// Both ends of a link, and the pool of its receiver.
struct Link {
    sending: Sending,
    receiving: Receiving,
    shared: Shared,
}

impl Link {
    fn new() -> Self {
        let mut link = Self {
            sending: Sending::new(IN_FLIGHT),
            receiving: Receiving::default(),
            shared: Shared::new(IN_FLIGHT, IN_FLIGHT, 0),
        };
        link.receiving.grant_small();
        link.acknowledge();
        link
    }

    /// Sends a batch of `bytes`, which is received and taken.
    fn pass(&mut self, bytes: usize) -> u64 {
        let passage =
            choose(&self.sending, black_box(bytes), SMALL_BYTES, LARGE_BYTES).expect("credit");
        let (Passage::Eager(slot) | Passage::Announce(slot)) = passage;
        let sequence = self.sending.start(slot);
        let to_receiver = Counters {
            large_returned: self.sending.large_returned(),
            wanted: 1,
            ..Counters::default()
        };
        self.receiving.received(slot).expect("a granted slot");
        self.receiving
            .update(&to_receiver, Place::of(0))
            .expect("true counters");
        self.receiving.accept();
        match slot {
            Slot::Small => self.receiving.grant_small(),
            Slot::Large => self.shared.free(1),
        }
        while self.shared.grant(&mut self.receiving) {}
        sequence
    }

    /// The receiver's counters reach the sender.
    fn acknowledge(&mut self) {
        let to_sender = Counters {
            accepted: self.receiving.accepted(),
            small_granted: self.receiving.small_granted(),
            large_granted: self.receiving.large_granted(),
            ..Counters::default()
        };
        self.sending
            .update(black_box(&to_sender))
            .expect("true counters");
    }
}

fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("credit of a batch, both ends");
    group.throughput(Throughput::Elements(BATCHES));
    for (name, bytes) in [
        ("small slot", SMALL_BYTES),
        ("large slot", LARGE_BYTES),
        ("announced", LARGE_BYTES + 1),
    ] {
        let mut link = Link::new();
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                let mut sum = 0;
                for _ in 0..BATCHES {
                    sum += link.pass(bytes);
                    link.acknowledge();
                }
                sum
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = trihop_benches::settings();
    targets = batches
}
criterion_main!(benches);
