//! The goals, each with what is formed from the figures of a round, and its bound.

use super::Bound;
use super::round::{COPY, IN_PLACE, MPI, MPI_AND_UCX, OURS, Round};
use crate::calls::PUSHES;
use crate::partition;
use crate::plan::{A2A, Work};
use crate::rows::{BARE, CACHE_LINE, Measure};
use crate::seats;

/// A figure of one round, or why there is none.
pub type Figure = fn(&Round<'_>) -> Result<f64, String>;

/// Goal, what it is, its figure in one round, its bound, and its unit where it is no ratio.
pub type Goal = (&'static str, &'static str, Figure, Bound, Option<Measure>);

/// All of them.
pub const GOALS: &[Goal] = &[
    (
        "R1",
        "ring, 8 B one way / cache-line ping-pong",
        |r| r.ring(COPY, &[CACHE_LINE], 8, Measure::LatencyUs),
        Bound::AtMost(1.6),
        None,
    ),
    (
        "R1",
        "ring, 8 B one way / best MPI",
        |r| r.ring(COPY, MPI, 8, Measure::LatencyUs),
        Bound::AtMost(0.6),
        None,
    ),
    (
        "R2",
        "ring, 8 B stream / best of MPI and UCX",
        |r| r.ring(COPY, MPI_AND_UCX, 8, Measure::Rate),
        Bound::AtLeast(5.0),
        None,
    ),
    (
        "R2",
        "ring, 64 B stream / best of MPI and UCX",
        |r| r.ring(COPY, MPI_AND_UCX, 64, Measure::Rate),
        Bound::AtLeast(2.5),
        None,
    ),
    (
        "R2",
        "ring, 4 KiB in place / best of MPI and UCX",
        |r| r.ring(IN_PLACE, MPI_AND_UCX, 4096, Measure::Rate),
        Bound::AtLeast(4.0),
        None,
    ),
    (
        "R2",
        "ring between threads, 8 B stream / rtrb",
        |r| {
            r.ratio(
                &Work::new("threads", 2, 1, 0, 8),
                "trihop",
                &["rtrb"],
                Measure::Rate,
            )
        },
        Bound::AtLeast(0.9),
        None,
    ),
    (
        "R3",
        "UCX / ring, 1 MiB one way",
        |r| Ok(1.0 / r.ring(COPY, &["UCX"], 1 << 20, Measure::LatencyUs)?),
        Bound::AtLeast(1.4),
        None,
    ),
    (
        "F1",
        "latency / fi_pingpong, the worst size",
        |r| r.worst(f64::max, |r, size| r.p2p(size, Measure::LatencyUs)),
        Bound::AtMost(1.05),
        None,
    ),
    (
        "F2",
        "bandwidth / fi_pingpong, the worst size",
        |r| r.worst(f64::min, |r, size| r.p2p(size, Measure::Bandwidth)),
        Bound::AtLeast(0.95),
        None,
    ),
    (
        "F3",
        "cost per byte / that of half the size, the worst size",
        |r| r.worst(f64::max, Round::step),
        Bound::AtMost(1.3),
        None,
    ),
    (
        "S1",
        "histo / the same loop without messages, P=2 on one node",
        |r| r.ratio(&histo(2, 1, 5_000_000), OURS, &[BARE], Measure::Rate),
        Bound::AtLeast(0.8),
        None,
    ),
    (
        "S1",
        "histo / aggregation by hand over the best MPI, P=2 on one node",
        |r| {
            let theirs = &["MPICH aggregate", "Open MPI aggregate"];
            r.ratio(&histo(2, 1, 5_000_000), OURS, theirs, Measure::Rate)
        },
        Bound::AtLeast(1.1),
        None,
    ),
    (
        "S2",
        "histo, two nodes, P=4",
        |r| r.rate(&histo(4, 2, 5_000_000)),
        Bound::AtLeast(128e6),
        Some(Measure::Rate),
    ),
    (
        "S2",
        "histo, two nodes, P=8",
        |r| r.rate(&histo(8, 2, 5_000_000)),
        Bound::AtLeast(128e6),
        Some(Measure::Rate),
    ),
    (
        "S2",
        "histo, two nodes / aggregation by hand over the best MPI, P=4",
        |r| r.aggregated(&histo(4, 2, 5_000_000), Measure::Rate),
        Bound::AtLeast(1.0),
        None,
    ),
    (
        "S2",
        "histo, two nodes / aggregation by hand over the best MPI, P=8",
        |r| r.aggregated(&histo(8, 2, 5_000_000), Measure::Rate),
        Bound::AtLeast(1.0),
        None,
    ),
    (
        "S2",
        "histo, two nodes / direct, P=4",
        |r| r.direct(&histo(4, 2, 5_000_000)),
        Bound::AtLeast(0.9),
        None,
    ),
    (
        "S2",
        "histo, two nodes / direct, P=8",
        |r| r.direct(&histo(8, 2, 5_000_000)),
        Bound::AtLeast(0.9),
        None,
    ),
    (
        "S2",
        "histo, P=64 on 8 nodes / P=8 on 2",
        |r| Ok(r.rate(&histo(64, 8, 1_000_000))? / r.rate(&histo(8, 2, 1_000_000))?),
        Bound::AtLeast(0.5),
        None,
    ),
    (
        "S3",
        "histo, CPU per message on two nodes, P=4",
        |r| r.figure(&histo(4, 2, 5_000_000), OURS, Measure::CpuUs),
        Bound::AtMost(0.015),
        Some(Measure::CpuUs),
    ),
    (
        "S4",
        "ig, two nodes, P=4",
        |r| r.rate(&Work::new("ig", 4, 2, 1_000_000, 16)),
        Bound::AtLeast(45e6),
        Some(Measure::Rate),
    ),
    (
        "S5",
        "a2a, 128 B, two nodes, P=4",
        |r| {
            r.figure(
                &Work::new("a2a", 4, 2, 500_000, 128),
                OURS,
                Measure::Bandwidth,
            )
        },
        Bound::AtLeast(4e9),
        Some(Measure::Bandwidth),
    ),
    (
        "S5",
        "a2a, 1 KiB, two nodes, P=4",
        |r| {
            r.figure(
                &Work::new("a2a", 4, 2, 65_536, 1024),
                OURS,
                Measure::Bandwidth,
            )
        },
        Bound::AtLeast(6e9),
        Some(Measure::Bandwidth),
    ),
    (
        "S5",
        "a2a, two nodes, P=4 / direct, the worst size of 16 B to 4 KiB",
        |r| {
            let all: Result<Vec<f64>, String> = A2A
                .iter()
                .map(|&(size, items)| {
                    // Items have some of these sizes, records all.
                    let work = Work::new("a2a", 4, 2, items, size);
                    let (ours, direct) = ("trihop, bytes", "trihop direct, bytes");
                    let records = |_| r.ratio(&work, ours, &[direct], Measure::Rate);
                    r.direct(&work).or_else(records)
                })
                .collect();
            Ok(all?.into_iter().fold(f64::INFINITY, f64::min))
        },
        Bound::AtLeast(0.9),
        None,
    ),
    (
        "S5",
        "a2a, CPU per message of 128 B, P=4 / aggregation by hand over the best MPI",
        |r| r.aggregated(&Work::new("a2a", 4, 2, 500_000, 128), Measure::CpuUs),
        Bound::AtMost(1.1),
        None,
    ),
    (
        "S6",
        "histo on one node, P=8 / P=2",
        |r| Ok(r.rate(&histo(8, 1, 5_000_000))? / r.rate(&histo(2, 1, 5_000_000))?),
        Bound::AtLeast(0.7),
        None,
    ),
    // The original is not run here: what it is compared with was measured of it, on two cores too.
    (
        "S8",
        "DeltaFS client, 24 B / 1.36 M/s, measured once of the original",
        |r| r.client("production", 24, 1.36e6),
        Bound::AtLeast(5.0),
        None,
    ),
    (
        "S8",
        "DeltaFS client, defaults, 24 B / 1.36 M/s of the original",
        |r| r.client("default", 24, 1.36e6),
        Bound::AtLeast(5.0),
        None,
    ),
    (
        "S8",
        "DeltaFS client, 256 B / 478 k/s of the original",
        |r| r.client("production", 256, 478e3),
        Bound::AtLeast(5.0),
        None,
    ),
    (
        "S8",
        "DeltaFS client, defaults, 256 B / 478 k/s of the original",
        |r| r.client("default", 256, 478e3),
        Bound::AtLeast(5.0),
        None,
    ),
    (
        "S8",
        "DeltaFS client, 32 KiB / 8.5 k/s of the original",
        |r| r.client("production", 32_768, 8.54e3),
        Bound::AtLeast(2.0),
        None,
    ),
    (
        "S8",
        "DeltaFS client, defaults, 32 KiB / 8.5 k/s of the original",
        |r| r.client("default", 32_768, 8.54e3),
        Bound::AtLeast(2.0),
        None,
    ),
    (
        "S8",
        "DeltaFS client, 1/1/1, 1 KiB / 6.2 k/s of the original",
        |r| r.client("single", 1024, 6.25e3),
        Bound::AtLeast(1.5),
        None,
    ),
    (
        "S8",
        "DeltaFS client, 1/1/1, 32 KiB / 2.7 k/s of the original",
        |r| r.client("single", 32_768, 2.66e3),
        Bound::AtLeast(1.5),
        None,
    ),
    (
        "S8",
        "round trip over three hops / 231 us of the original",
        |r| r.trip("default", 24, 231.0),
        Bound::AtMost(0.8),
        None,
    ),
    (
        "S8",
        "round trip over three hops, 1/1/1 / 194 us of the original",
        |r| r.trip("single", 24, 194.0),
        Bound::AtMost(0.8),
        None,
    ),
    (
        "S8",
        "round trip over three hops, urgent, 24 B / 174 us of the original",
        |r| r.trip("single, urgent", 24, 174.0),
        Bound::AtMost(0.8),
        None,
    ),
    (
        "S8",
        "round trip over three hops, urgent, 32 KiB / 347 us of the original",
        |r| r.trip("single, urgent", 32_768, 347.0),
        Bound::AtMost(0.8),
        None,
    ),
    (
        "S12",
        "round of 8 B / MPI_Alltoallv of Open MPI, P=2 on one node",
        |r| r.round(2, 1, "Open MPI alltoallv"),
        Bound::AtMost(5.0),
        None,
    ),
    (
        "S12",
        "round of 8 B / MPI_Alltoallv of Open MPI, P=8 on one node",
        |r| r.round(8, 1, "Open MPI alltoallv"),
        Bound::AtMost(1.5),
        None,
    ),
    (
        "S12",
        "round of 8 B / MPI_Alltoallv of Open MPI over tcp alone, P=8 on 2 nodes",
        |r| r.round(8, 2, "Open MPI alltoallv, tcp"),
        Bound::AtMost(1.5),
        None,
    ),
    (
        "S14",
        "a push per item / histo, which has slices, P=2 on one node",
        |r| Ok(r.push("trihop, typed")? / r.rate(&histo(2, 1, PUSHES))?),
        Bound::AtLeast(0.9),
        None,
    ),
    (
        "S14",
        "a push per item, C on the inline seat / Rust, P=2 on one node",
        |r| Ok(r.push("trihop, c")? / r.push("trihop, typed")?),
        Bound::AtLeast(0.8),
        None,
    ),
    (
        "S7",
        "histo, wire bytes per message that crosses, P=4",
        |r| r.figure(&histo(4, 2, 5_000_000), OURS, Measure::WireBytes),
        Bound::AtMost(12.0),
        Some(Measure::WireBytes),
    ),
    (
        "T1",
        "8 B between two mini-ranks of a process / cache-line ping-pong",
        |r| {
            r.ratio(
                &seats::threads(),
                "trihop, handler",
                &[CACHE_LINE],
                Measure::LatencyUs,
            )
        },
        Bound::AtMost(1.6),
        None,
    ),
    (
        "T2",
        "channels with an agent, 8 B, half a round trip",
        |r| r.channel(8, Measure::LatencyUs),
        Bound::AtMost(1.0),
        Some(Measure::LatencyUs),
    ),
    (
        "T2",
        "channels with an agent, 8 B, stream",
        |r| r.channel(8, Measure::Rate),
        Bound::AtLeast(5e6),
        Some(Measure::Rate),
    ),
    (
        "T2",
        "channels with an agent, 1 MiB, half a round trip",
        |r| r.channel(1 << 20, Measure::LatencyUs),
        Bound::AtMost(63.0),
        Some(Measure::LatencyUs),
    ),
    (
        "T3",
        "histo, two nodes, agents / inline, P=4",
        |r| r.agents(&histo(4, 2, 5_000_000)),
        Bound::AtLeast(0.8),
        None,
    ),
    (
        "T3",
        "histo, two nodes, agents / inline, P=8",
        |r| r.agents(&histo(8, 2, 5_000_000)),
        Bound::AtLeast(0.8),
        None,
    ),
    (
        "T3",
        "a2a, two nodes, agents / inline, 128 B, P=4",
        |r| r.agents(&Work::new("a2a", 4, 2, 500_000, 128)),
        Bound::AtLeast(0.8),
        None,
    ),
    (
        "T3",
        "a2a, two nodes, agents / inline, 1 KiB, P=4",
        |r| r.agents(&Work::new("a2a", 4, 2, 65_536, 1024)),
        Bound::AtLeast(0.8),
        None,
    ),
    (
        "T4",
        "histo, one node, 4 mini-ranks of a process / 4 processes",
        |r| {
            let minis = "trihop mini-ranks, typed";
            r.ratio(&histo(4, 1, 5_000_000), minis, &[OURS], Measure::Rate)
        },
        Bound::AtLeast(0.8),
        None,
    ),
    (
        partition::BENCH,
        "a table by a key, 2 ranks / 1 rank",
        |r| r.partition(2, &[1]),
        Bound::AtLeast(1.0),
        None,
    ),
    (
        partition::BENCH,
        "a table by a key, 4 ranks / 1 or 2 ranks, whichever is faster",
        |r| r.partition(4, &[1, 2]),
        Bound::AtLeast(0.9),
        None,
    ),
    (
        partition::BENCH,
        "a table by a key, 8 ranks / 1, 2 or 4 ranks, whichever is fastest",
        |r| r.partition(8, &[1, 2, 4]),
        Bound::AtLeast(0.9),
        None,
    ),
    (
        partition::BENCH,
        "a table by a key, 2 ranks / the best of DuckDB, Polars and mawk",
        |r| {
            let rivals = partition::RIVALS;
            r.ratio(
                &partition::work(),
                &partition::ours(2),
                &rivals,
                Measure::Rate,
            )
        },
        Bound::AtLeast(1.0),
        None,
    ),
];

fn histo(ranks: u32, nodes: u32, items: u64) -> Work {
    Work::new("histo", ranks, nodes, items, 8)
}
