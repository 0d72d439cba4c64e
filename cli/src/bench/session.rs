//! What all cases of a benchmark of whole jobs share on a rank: rounds from barrier to barrier, and
//! the report.

use std::cell::Cell;

use serde::Serialize;
use trihop::{Job, Rank, Reduce, Topology, threaded};

use super::round::{Measured, Meter, Reps, Round, Wall};
use super::row::{self, Case};
use super::{BenchArgs, Error};

/// What a benchmark asks of the ranks of its job together, for every kind of job.
pub(crate) trait Team {
    fn rank(&self) -> Rank;
    fn topology(&self) -> &Topology;
    fn provider(&self) -> Option<String>;
    fn barrier(&self) -> Result<(), trihop::Error>;
    fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<(), trihop::Error>;
    fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>, trihop::Error>;
}

macro_rules! team {
    ($job:ty) => {
        impl Team for $job {
            fn rank(&self) -> Rank {
                self.rank()
            }
            fn topology(&self) -> &Topology {
                self.topology()
            }
            fn provider(&self) -> Option<String> {
                self.provider().map(Into::into)
            }
            fn barrier(&self) -> Result<(), trihop::Error> {
                self.barrier()
            }
            fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<(), trihop::Error> {
                self.allreduce(values, reduce)
            }
            fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>, trihop::Error> {
                self.allgather(contribution)
            }
        }
    };
}

team!(Job<'_>);
team!(threaded::Job);

/// A benchmark under way on this rank.
pub(crate) struct Session<'a, J> {
    pub args: &'a BenchArgs,
    pub job: &'a J,
    /// No row was printed yet.
    first: Cell<bool>,
}

impl<'a, J: Team> Session<'a, J> {
    pub fn new(args: &'a BenchArgs, job: &'a J) -> Self {
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

    /// All rounds of a case; `round` clears what the one before has left,
    /// [measures](Self::measure), and checks.
    pub fn repeat(
        &self,
        mut round: impl FnMut(&Meter) -> Result<Measured, Error>,
    ) -> Result<Reps, Error> {
        let mut reps = Reps::default();
        for kind in Round::all(self.args.reps) {
            let meter = Meter::open(kind);
            reps.add(kind, round(&meter)?);
        }
        Ok(reps)
    }

    /// Times `work` from barrier to barrier: the work ends with a fence.
    pub fn measure<E>(
        &self,
        meter: &Meter,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Measured, Error>
    where
        Error: From<E>,
    {
        self.job.barrier()?;
        let clock = meter.start();
        work()?;
        clock.stop().combined(self.job, Wall::Slowest)
    }

    /// Prints the row of a case.
    pub fn report(&self, case: &Case, reps: &Reps) -> Result<(), Error> {
        let row = row::combine(self.args, self.job, case, reps)?;
        self.print(&row, |head| row::print_line(&row, case.api, head))
    }

    /// Prints a row on rank 0: as JSON, or as a line of a table by `line`, with the table's head
    /// where told so.
    ///
    /// # Errors
    /// Standard output's.
    pub fn print(
        &self,
        row: &impl Serialize,
        line: impl FnOnce(bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let head = self.first.replace(false);
        if self.job.rank().0 != 0 {
            return Ok(());
        }
        if self.args.json {
            row::print_json(row)
        } else {
            line(head)
        }
    }
}
