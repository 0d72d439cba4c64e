//! Routes: the next hop of a run, for random targets, at its source.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trihop::route::{JobRoute, RouteName, Stage};
use trihop::{Rank, Topology};

/// Look-ups of one round.
const TARGETS: usize = 4096;

/// Targets all over the job, in an order that no predictor learns.
fn targets(ranks: u32) -> Vec<Rank> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Rank(((state >> 33) % u64::from(ranks)) as u32)
    };
    (0..TARGETS).map(|_| next()).collect()
}

fn next_hop(criterion: &mut Criterion) {
    let even = |nodes: u32, per_node: u32| vec![per_node; nodes as usize];
    // A size of its own for every node: a block each, found by search.
    let uneven = |nodes: u32| (0..nodes).map(|node| 1 + node % 63).collect::<Vec<u32>>();
    for (kind, sizes) in [
        ("even", even(2, 4)),
        ("even", even(10_000, 32)),
        ("uneven", uneven(1000)),
    ] {
        let topology = Topology::from_node_sizes(&sizes, Rank(0)).expect("nodes with ranks");
        let targets = targets(topology.size());
        let (ranks, nodes) = (topology.size(), topology.nodes());
        let mut group =
            criterion.benchmark_group(format!("next hop, {ranks} ranks on {nodes} {kind} nodes"));
        group.throughput(Throughput::Elements(TARGETS as u64));
        for route in RouteName::all() {
            let job_route = JobRoute::new(route, &topology).expect("a route that suits it");
            group.bench_function(BenchmarkId::from_parameter(route), |bencher| {
                bencher.iter(|| {
                    for &target in black_box(&targets) {
                        black_box(job_route.next(Stage::SOURCE, target));
                    }
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = trihop_benches::settings();
    targets = next_hop
}
criterion_main!(benches);
