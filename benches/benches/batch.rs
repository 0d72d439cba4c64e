//! A batch from end to end: runs of items gathered under headers, sealed, parsed, and every item
//! read; beside memcpy of the same bytes and a look at them.

use std::hint::black_box;

use criterion::{Bencher, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trihop::route::EndpointId;
use trihop::transport::protocol::wire::{
    BATCH_HEADER_BYTES, BatchHeader, BatchKind, Counters, Epoch, RUN_HEADER_BYTES, Run, RunHeader,
};

const COOKIE: u64 = 77;
const BATCH_BYTES: usize = 64 << 10;
const JOB_SIZE: u32 = 64;

/// Bytes of an item.
const ITEM: usize = 8;

/// Fills a batch with as many runs of `items` as fit; returns its length.
fn fill(batch: &mut [u8], items: &[u8]) -> usize {
    let frame = RUN_HEADER_BYTES + items.len();
    let mut length = BATCH_HEADER_BYTES;
    let mut target = 0;
    while length + frame <= batch.len() {
        let place = &mut batch[length..length + frame];
        RunHeader {
            target,
            source: 3,
            count: (items.len() / ITEM) as u16,
            flags: 0,
        }
        .write(frame, place);
        place[RUN_HEADER_BYTES..].copy_from_slice(black_box(items));
        target = (target + 1) % JOB_SIZE;
        length += frame;
    }
    let header = BatchHeader {
        kind: BatchKind::Eager,
        stream: 1,
        epoch: Epoch::FIRST,
        source: EndpointId(3),
        bytes: (length - BATCH_HEADER_BYTES) as u32,
        stage: 0,
        sequence: 9,
        counters: Counters::default(),
    };
    header.write(COOKIE, &mut batch[..length]);
    length
}

fn sum(items: &[u8]) -> u64 {
    let (words, _) = items.as_chunks::<ITEM>();
    words
        .iter()
        .fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Parses a batch and reads every item.
fn read(batch: &[u8]) -> u64 {
    let (_, mut rest) = BatchHeader::parse(batch, COOKIE).expect("written by us");
    let mut all = 0u64;
    while !rest.is_empty() {
        let (run, behind) = Run::split(rest, JOB_SIZE).expect("written by us");
        all = all.wrapping_add(sum(run.payload));
        rest = behind;
    }
    all
}

fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch of 64 KiB, written and read");
    for bytes in [8usize, 64, 256, 1024] {
        let items = vec![1u8; bytes];
        let mut batch = vec![0u8; BATCH_BYTES];
        let length = fill(&mut batch, &items);
        let runs = (length - BATCH_HEADER_BYTES) / (RUN_HEADER_BYTES + bytes);
        group.throughput(Throughput::Bytes((runs * bytes) as u64));
        group.bench_function(BenchmarkId::new("runs", bytes), |bencher| {
            bencher.iter(|| {
                let length = fill(&mut batch, &items);
                read(black_box(&batch[..length]))
            });
        });
        group.bench_function(BenchmarkId::new("memcpy", bytes), |bencher| {
            memcpy(bencher, &items, runs);
        });
    }
    group.finish();
}

/// As many pieces of `items` one behind the other, and every item read.
fn memcpy(bencher: &mut Bencher<'_>, items: &[u8], pieces: usize) {
    let mut memory = vec![0u8; items.len() * pieces];
    bencher.iter(|| {
        for place in memory.chunks_exact_mut(items.len()) {
            place.copy_from_slice(black_box(items));
        }
        sum(black_box(&memory))
    });
}

criterion_group! {
    name = benches;
    config = trihop_benches::settings();
    targets = batches
}
criterion_main!(benches);
