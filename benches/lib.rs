//! Micro-benchmarks of trihop; see `benches/`. Here is what they share.

use std::time::Duration;

use criterion::Criterion;

/// How long each benchmark runs: half a second to warm up, two to measure.
pub fn settings() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}
