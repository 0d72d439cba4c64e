//! The goals that a comparison can judge, as a table: what is formed from the figures of a round,
//! and its bound.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::Serialize;

use crate::calls::PUSHES;
use crate::client;
use crate::partition;
use crate::plan::{A2A, Work};
use crate::results::Results;
use crate::rows::{BARE, CACHE_LINE, FI_PINGPONG, Measure};
use crate::seats;
use crate::statistics::Spread;

/// Where a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// A goal as it stands after the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    /// Its name, as in the list of goals.
    pub goal: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// Figure over the rounds, as text with its unit; a dash where there is none.
    pub figure: String,
    /// Smallest and largest of the rounds.
    pub spread: String,
    /// Bound, as text.
    pub bound: String,
    /// `met`, `missed`, either with `without` and the rivals that gave no figure, or `not judged:
    /// why`.
    pub verdict: String,
}

type Figure = fn(&Round<'_>) -> Result<f64, String>;

/// Goal, what it is, its figure in one round, its bound, and its unit where it is no ratio.
type Goal = (&'static str, &'static str, Figure, Bound, Option<Measure>);

const OURS: &str = "trihop, typed";
const COPY: &str = "trihop, copy";
const IN_PLACE: &str = "trihop, in place";
const P2P: &str = "trihop, bytes";
const MPI: &[&str] = &["MPICH", "Open MPI"];
const MPI_AND_UCX: &[&str] = &["MPICH", "Open MPI", "UCX"];

const GOALS: &[Goal] = &[
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

/// Powers of two from 8 B to 1 MiB.
const POWERS: std::ops::RangeInclusive<u32> = 3..=20;

fn histo(ranks: u32, nodes: u32, items: u64) -> Work {
    Work::new("histo", ranks, nodes, items, 8)
}

/// One round of the results, as the figures of a goal are formed from it.
struct Round<'a> {
    results: &'a Results,
    number: usize,
    /// Rivals that gave nothing, so that the best is that of the others.
    without: RefCell<Vec<String>>,
}

impl Round<'_> {
    fn figure(&self, work: &Work, system: &str, measure: Measure) -> Result<f64, String> {
        self.results.figure(self.number, work, system, measure)
    }

    fn rate(&self, work: &Work) -> Result<f64, String> {
        self.figure(work, OURS, Measure::Rate)
    }

    fn ratio(
        &self,
        work: &Work,
        ours: &str,
        theirs: &[&str],
        measure: Measure,
    ) -> Result<f64, String> {
        let ours = self.figure(work, ours, measure)?;
        let best = self.results.best(self.number, work, theirs, measure)?;
        self.without.borrow_mut().extend(best.without);
        Ok(ours / best.figure)
    }

    fn ring(
        &self,
        ours: &str,
        theirs: &[&str],
        size: usize,
        measure: Measure,
    ) -> Result<f64, String> {
        self.ratio(&Work::new("ring", 2, 1, 0, size), ours, theirs, measure)
    }

    fn round(&self, ranks: u32, nodes: u32, rival: &str) -> Result<f64, String> {
        let work = Work::new("round", ranks, nodes, 0, 8);
        self.ratio(&work, "trihop, round", &[rival], Measure::RoundUs)
    }

    /// Rate of the client with these options over so many messages a second.
    fn client(&self, options: &str, size: usize, of_original: f64) -> Result<f64, String> {
        Ok(self.of_client("client", options, size, Measure::Rate)? / of_original)
    }

    /// Its round trip over three hops, over so many microseconds.
    fn trip(&self, options: &str, size: usize, of_original_us: f64) -> Result<f64, String> {
        let one_way = self.of_client("client-hops", options, size, Measure::LatencyUs)?;
        Ok(2.0 * one_way / of_original_us)
    }

    fn of_client(
        &self,
        bench: &'static str,
        options: &str,
        size: usize,
        measure: Measure,
    ) -> Result<f64, String> {
        let work = Work::new(bench, client::RANKS, client::NODES, 0, size);
        self.figure(&work, &format!("{}, {options}", client::SYSTEM), measure)
    }

    /// Rate of so many ranks over the best of these numbers of ranks.
    fn partition(&self, ranks: u32, fewer: &[u32]) -> Result<f64, String> {
        let rate = |ranks| {
            let system = partition::ours(ranks);
            self.figure(&partition::work(), &system, Measure::Rate)
        };
        let fewer: Result<Vec<f64>, String> = fewer.iter().map(|&ranks| rate(ranks)).collect();
        Ok(rate(ranks)? / fewer?.into_iter().fold(0.0, f64::max))
    }

    fn push(&self, system: &str) -> Result<f64, String> {
        self.figure(&Work::new("push", 2, 1, PUSHES, 8), system, Measure::Rate)
    }

    fn direct(&self, work: &Work) -> Result<f64, String> {
        self.ratio(work, OURS, &["trihop direct, typed"], Measure::Rate)
    }

    /// Over the best aggregation by hand between two nodes: one hop, a buffer for each rank.
    fn aggregated(&self, work: &Work, measure: Measure) -> Result<f64, String> {
        let theirs = [
            "MPICH aggregate, odd-even",
            "MPICH aggregate, tcp",
            "Open MPI aggregate, tcp",
        ];
        self.ratio(work, OURS, &theirs, measure)
    }

    fn agents(&self, work: &Work) -> Result<f64, String> {
        self.ratio(work, "trihop agent, typed", &[OURS], Measure::Rate)
    }

    fn channel(&self, size: usize, measure: Measure) -> Result<f64, String> {
        self.figure(&seats::channels(size), "trihop agent, bytes", measure)
    }

    fn p2p(&self, size: usize, measure: Measure) -> Result<f64, String> {
        self.ratio(
            &Work::new("p2p", 2, 2, 0, size),
            P2P,
            &[FI_PINGPONG],
            measure,
        )
    }

    /// Cost per byte of this size over that of half of it.
    fn step(&self, size: usize) -> Result<f64, String> {
        let cost = |size: usize| {
            let us = self.figure(&Work::new("p2p", 2, 2, 0, size), P2P, Measure::LatencyUs);
            us.map(|us| us / size as f64)
        };
        if size == 1 << POWERS.start() {
            return Ok(0.0);
        }
        Ok(cost(size)? / cost(size / 2)?)
    }

    /// The worst of all powers of two. A size that was not measured makes the goal impossible to
    /// judge.
    fn worst(
        &self,
        pick: fn(f64, f64) -> f64,
        figure: fn(&Self, usize) -> Result<f64, String>,
    ) -> Result<f64, String> {
        let all: Result<Vec<f64>, String> = POWERS.map(|power| figure(self, 1 << power)).collect();
        all?.into_iter()
            .reduce(pick)
            .ok_or_else(|| "no size".to_owned())
    }
}

/// All goals of a benchmark that was run, or all.
pub fn judge(results: &Results, wanted: &[String]) -> Vec<Judgement> {
    let chosen =
        |goal: &&Goal| wanted.is_empty() || wanted.iter().any(|w| goal.0.eq_ignore_ascii_case(w));
    let by_name: Vec<Judgement> = GOALS
        .iter()
        .filter(chosen)
        .map(|goal| judged(results, goal))
        .collect();
    if !by_name.is_empty() {
        return by_name;
    }
    // The words were benchmarks: what can be judged of them.
    let all = GOALS.iter().map(|goal| judged(results, goal));
    all.filter(|judgement| !judgement.verdict.starts_with(NOT_JUDGED))
        .collect()
}

/// How a verdict begins that is none.
const NOT_JUDGED: &str = "not judged";

fn judged(results: &Results, (goal, what, figure, bound, unit): &Goal) -> Judgement {
    let mut without = BTreeSet::new();
    let one = |number| {
        let round = Round {
            results,
            number,
            without: RefCell::default(),
        };
        let value = figure(&round);
        without.extend(round.without.into_inner());
        value
    };
    let values: Vec<Result<f64, String>> = (0..results.rounds).map(one).collect();
    let spread = Spread::of(values.iter().filter_map(|v| v.as_ref().ok().copied()));
    let show = |value: f64| unit.map_or_else(|| format!("{value:.2} x"), |unit| unit.show(value));
    let (met, bound) = match *bound {
        Bound::AtMost(most) => (
            spread.map(|s| s.median <= most),
            format!("<= {}", show(most)),
        ),
        Bound::AtLeast(least) => (
            spread.map(|s| s.median >= least),
            format!(">= {}", show(least)),
        ),
    };
    // A round without a figure, whatever the cause, does not meet the goal.
    let failed = values.iter().filter(|value| value.is_err()).count();
    let why = values.iter().find_map(|value| value.as_ref().err());
    let verdict = match (met, why) {
        (None, None) => format!("{NOT_JUDGED}: no round was run"),
        (_, Some(why)) => format!(
            "{NOT_JUDGED}: in {failed} of {} rounds, {why}",
            values.len()
        ),
        (Some(met), None) => {
            let word = if met { "met" } else { "missed" };
            match without.is_empty() {
                true => word.to_owned(),
                false => format!("{word} without {}", Vec::from_iter(without).join(" and ")),
            }
        }
    };
    Judgement {
        goal,
        what,
        figure: spread.map_or_else(|| "-".into(), |s| show(s.median)),
        spread: spread.map_or_else(
            || "-".into(),
            |s| format!("{} to {}", show(s.min), show(s.max)),
        ),
        bound,
        verdict,
    }
}

#[cfg(test)]
#[path = "goals_tests.rs"]
mod tests;
