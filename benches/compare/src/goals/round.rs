//! What goals are formed from: the figures of one round.

use std::cell::RefCell;

use crate::calls::PUSHES;
use crate::client;
use crate::partition;
use crate::plan::Work;
use crate::results::Results;
use crate::rows::{FI_PINGPONG, Measure};
use crate::seats;

pub const OURS: &str = "trihop, typed";
pub const COPY: &str = "trihop, copy";
pub const IN_PLACE: &str = "trihop, in place";
const P2P: &str = "trihop, bytes";
pub const MPI: &[&str] = &["MPICH", "Open MPI"];
pub const MPI_AND_UCX: &[&str] = &["MPICH", "Open MPI", "UCX"];

/// Powers of two from 8 B to 1 MiB.
const POWERS: std::ops::RangeInclusive<u32> = 3..=20;

/// One round of the results, as the figures of a goal are formed from it.
pub struct Round<'a> {
    pub results: &'a Results,
    pub number: usize,
    /// Rivals that gave nothing, so that the best is that of the others.
    pub without: RefCell<Vec<String>>,
}

impl Round<'_> {
    pub fn figure(&self, work: &Work, system: &str, measure: Measure) -> Result<f64, String> {
        self.results.figure(self.number, work, system, measure)
    }

    pub fn rate(&self, work: &Work) -> Result<f64, String> {
        self.figure(work, OURS, Measure::Rate)
    }

    pub fn ratio(
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

    pub fn ring(
        &self,
        ours: &str,
        theirs: &[&str],
        size: usize,
        measure: Measure,
    ) -> Result<f64, String> {
        self.ratio(&Work::new("ring", 2, 1, 0, size), ours, theirs, measure)
    }

    pub fn round(&self, ranks: u32, nodes: u32, rival: &str) -> Result<f64, String> {
        let work = Work::new("round", ranks, nodes, 0, 8);
        self.ratio(&work, "trihop, round", &[rival], Measure::RoundUs)
    }

    /// Rate of the client with these options over so many messages a second.
    pub fn client(&self, options: &str, size: usize, of_original: f64) -> Result<f64, String> {
        Ok(self.of_client("client", options, size, Measure::Rate)? / of_original)
    }

    /// Its round trip over three hops, over so many microseconds.
    pub fn trip(&self, options: &str, size: usize, of_original_us: f64) -> Result<f64, String> {
        let one_way = self.of_client("client-hops", options, size, Measure::LatencyUs)?;
        Ok(2.0 * one_way / of_original_us)
    }

    pub fn of_client(
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
    pub fn partition(&self, ranks: u32, fewer: &[u32]) -> Result<f64, String> {
        let rate = |ranks| {
            let system = partition::ours(ranks);
            self.figure(&partition::work(), &system, Measure::Rate)
        };
        let fewer: Result<Vec<f64>, String> = fewer.iter().map(|&ranks| rate(ranks)).collect();
        Ok(rate(ranks)? / fewer?.into_iter().fold(0.0, f64::max))
    }

    pub fn push(&self, system: &str) -> Result<f64, String> {
        self.figure(&Work::new("push", 2, 1, PUSHES, 8), system, Measure::Rate)
    }

    pub fn direct(&self, work: &Work) -> Result<f64, String> {
        self.ratio(work, OURS, &["trihop direct, typed"], Measure::Rate)
    }

    /// Over the best aggregation by hand between two nodes: one hop, a buffer for each rank.
    pub fn aggregated(&self, work: &Work, measure: Measure) -> Result<f64, String> {
        let theirs = [
            "MPICH aggregate, odd-even",
            "MPICH aggregate, tcp",
            "Open MPI aggregate, tcp",
        ];
        self.ratio(work, OURS, &theirs, measure)
    }

    pub fn agents(&self, work: &Work) -> Result<f64, String> {
        self.ratio(work, "trihop agent, typed", &[OURS], Measure::Rate)
    }

    pub fn channel(&self, size: usize, measure: Measure) -> Result<f64, String> {
        self.figure(&seats::channels(size), "trihop agent, bytes", measure)
    }

    pub fn p2p(&self, size: usize, measure: Measure) -> Result<f64, String> {
        self.ratio(
            &Work::new("p2p", 2, 2, 0, size),
            P2P,
            &[FI_PINGPONG],
            measure,
        )
    }

    /// Cost per byte of this size over that of half of it.
    pub fn step(&self, size: usize) -> Result<f64, String> {
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
    pub fn worst(
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
