//! What all cases of a benchmark of whole jobs share on a rank: rounds from barrier to barrier, and the report.

use std::cell::Cell;

use serde::Serialize;
use trihop::Job;

use super::round::{Measured, Meter, Reps, Round, Wall};
use super::row::{self, Case};
use super::{BenchArgs, Error};

/// A benchmark under way on this rank.
pub(crate) struct Session<'a, 'h> {
    pub args: &'a BenchArgs,
    pub job: &'a Job<'h>,
    /// No row was printed yet.
    first: Cell<bool>,
}

impl<'a, 'h> Session<'a, 'h> {
    pub fn new(args: &'a BenchArgs, job: &'a Job<'h>) -> Self {
        Self {
            args,
            job,
            first: Cell::new(true),
        }
    }

    /// Number of rounds of a case.
    pub fn rounds(&self) -> u64 {
        Round::all(self.args.reps).count() as u64
    }

    /// All rounds of a case; `round` clears what the one before has left, [measures](Self::measure), and checks.
    pub fn repeat(&self, mut round: impl FnMut(&Meter) -> Result<Measured, Error>) -> Result<Reps, Error> {
        let mut reps = Reps::default();
        for kind in Round::all(self.args.reps) {
            let meter = Meter::open(kind);
            reps.add(kind, round(&meter)?);
        }
        Ok(reps)
    }

    /// Times `work` from barrier to barrier: the work ends with a fence.
    pub fn measure(
        &self,
        meter: &Meter,
        work: impl FnOnce() -> Result<(), trihop::Error>,
    ) -> Result<Measured, Error> {
        self.job.barrier()?;
        let clock = meter.start();
        work()?;
        clock.stop().combined(self.job, Wall::Slowest)
    }

    /// Prints the row of a case.
    pub fn report(&self, case: &Case, reps: &Reps) -> Result<(), Error> {
        let row = row::combine(self.args, self.job, case, reps)?;
        self.print(&row, |head| row::print_line(&row, case.api, head));
        Ok(())
    }

    /// Prints a row on rank 0: as JSON, or as a line of a table by `line`, with the table's head where told so.
    pub fn print(&self, row: &impl Serialize, line: impl FnOnce(bool)) {
        let head = self.first.replace(false);
        if self.job.rank().0 != 0 {
            return;
        }
        if self.args.json {
            row::print_json(row);
        } else {
            line(head);
        }
    }
}
