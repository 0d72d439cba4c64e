//! Headers: write and parse a batch header, walk the runs of a batch.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trihop::route::EndpointId;
use trihop::transport::protocol::wire::{
    BATCH_HEADER_BYTES, BatchHeader, BatchKind, Counters, Epoch, RUN_HEADER_BYTES, Run, RunHeader,
};

const COOKIE: u64 = 0x1234_5678_9abc_def0;
const BATCH_BYTES: usize = 64 << 10;
const JOB_SIZE: u32 = 1024;

fn header() -> BatchHeader {
    BatchHeader {
        kind: BatchKind::Eager,
        stream: 3,
        epoch: Epoch::FIRST,
        source: EndpointId(17),
        bytes: (BATCH_BYTES - BATCH_HEADER_BYTES) as u32,
        stage: 0,
        sequence: 123_456_789,
        counters: Counters {
            accepted: 123_456_700,
            small_granted: 4,
            large_granted: 900,
            large_returned: 2,
            controls_seen: 77,
            wanted: 3,
        },
    }
}

fn batch_header(criterion: &mut Criterion) {
    let mut message = vec![0u8; BATCH_BYTES];
    let header = header();
    criterion.bench_function("batch header, write", |bencher| {
        bencher.iter(|| black_box(&header).write(COOKIE, black_box(&mut message)));
    });
    criterion.bench_function("batch header, parse", |bencher| {
        bencher.iter(|| {
            let (header, payload) =
                BatchHeader::parse(black_box(&message), COOKIE).expect("written above");
            (header.sequence, payload.len())
        });
    });
}

/// As many runs as fit a batch, each with a payload of `bytes`.
fn runs(bytes: usize) -> Vec<u8> {
    let frame = RUN_HEADER_BYTES + bytes;
    let mut batch = vec![0u8; (BATCH_BYTES - BATCH_HEADER_BYTES) / frame * frame];
    for (index, place) in batch.chunks_exact_mut(frame).enumerate() {
        let count = (bytes / 8) as u16;
        RunHeader {
            target: index as u32 % JOB_SIZE,
            source: 5,
            count,
            flags: 0,
        }
        .write(frame, place);
    }
    batch
}

fn walk(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("walk the runs of a batch");
    for bytes in [8, 64, 512, 1024] {
        let batch = runs(bytes);
        group.throughput(Throughput::Elements(
            (batch.len() / (RUN_HEADER_BYTES + bytes)) as u64,
        ));
        group.bench_with_input(
            BenchmarkId::from_parameter(bytes),
            &batch,
            |bencher, batch| {
                bencher.iter(|| {
                    let (mut rest, mut items) = (black_box(&batch[..]), 0u64);
                    while !rest.is_empty() {
                        let (run, behind) = Run::split(rest, JOB_SIZE).expect("written above");
                        items += u64::from(run.header.count) + u64::from(run.header.target);
                        rest = behind;
                    }
                    items
                });
            },
        );
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = trihop_benches::settings();
    targets = batch_header, walk
}
criterion_main!(benches);
