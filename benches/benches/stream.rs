//! The engine in a job of one rank: items and records that a rank sends to itself, from push to
//! handler.

use std::cell::Cell;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use trihop::transport::bootstrap::Launcher;
use trihop::{Job, Options, Rank};

/// Messages between two fences.
const MESSAGES: u64 = 10_000;

fn job<'h>() -> Job<'h> {
    let options = Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    };
    Job::start(options).expect("a job of one rank")
}

fn items(criterion: &mut Criterion) {
    let sum = Cell::new(0u64);
    let job = job();
    let stream = job
        .stream::<u64>("items")
        .handler(|_, items, _| {
            sum.set(
                items
                    .iter()
                    .fold(sum.get(), |sum, item| sum.wrapping_add(*item)),
            )
        })
        .open()
        .expect("a fresh name");
    let mut group = criterion.benchmark_group("8-byte items to oneself");
    group.throughput(Throughput::Elements(MESSAGES));
    group.bench_function("push, deliver, fence", |bencher| {
        bencher.iter(|| {
            for item in 0..MESSAGES {
                stream.push(Rank(0), item).expect("a job of one rank");
            }
            stream.fence().expect("a job of one rank");
        });
    });
    group.bench_function("extend, deliver, fence", |bencher| {
        bencher.iter(|| {
            stream
                .extend((0..MESSAGES).map(|item| (Rank(0), item)))
                .expect("a job of one rank");
            stream.fence().expect("a job of one rank");
        });
    });
    group.finish();
    criterion.bench_function("fence of nothing", |bencher| {
        bencher.iter(|| stream.fence().expect("a job of one rank"));
    });
}

fn records(criterion: &mut Criterion) {
    let bytes = Cell::new(0u64);
    let job = job();
    let shuffle = job
        .shuffle("records")
        .handler(|message, _| bytes.set(bytes.get() + message.bytes.len() as u64))
        .open()
        .expect("a fresh name");
    let mut group = criterion.benchmark_group("byte records to oneself");
    for size in [8usize, 64, 1024] {
        let record = vec![0u8; size];
        group.throughput(Throughput::Elements(MESSAGES));
        group.bench_function(format!("{size} bytes: send, deliver, fence"), |bencher| {
            bencher.iter(|| {
                for _ in 0..MESSAGES {
                    shuffle
                        .send(Rank(0), 0, &record)
                        .expect("a job of one rank");
                }
                shuffle.fence().expect("a job of one rank");
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = trihop_benches::settings();
    targets = items, records
}
criterion_main!(benches);
