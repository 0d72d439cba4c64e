//! Histogram with indices that are far from uniform: those of an RMAT graph, Zipf's, and all in one
//! rank's table.

use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;
use trihop::Options;

use super::histo::{self, TABLE, Table, Updating};
use super::random::{Random, Rmat, Zipf};
use super::row::{self, Row};
use super::seated::on_any_seat;
use super::session::Session;
use super::{BenchArgs, Error};

/// Updates of a rank in a round, unless `--count` says how many.
const COUNT: u64 = 1_000_000;

/// Exponent of the Zipf distribution, as in YCSB.
const EXPONENT: f64 = 0.99;

/// How indices are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Indices {
    /// Ends of the edges of an RMAT graph (0.57, 0.19, 0.19, 0.05)
    Rmat,
    /// Index k with a probability proportional to 1 / (k + 1)^0.99
    Zipf,
    /// Uniform in the table of rank 0
    AllToOne,
}

impl Indices {
    /// So many indices into the tables of `ranks` ranks.
    fn draw(self, random: &mut Random, ranks: u64, count: u64) -> Vec<u64> {
        let all = TABLE * ranks;
        match self {
            Self::Rmat => {
                let mut rmat = Rmat::new(all);
                (0..count).map(|_| rmat.draw(random)).collect()
            }
            Self::Zipf => {
                let zipf = Zipf::new(all, EXPONENT);
                (0..count).map(|_| zipf.draw(random)).collect()
            }
            Self::AllToOne => (0..count).map(|_| random.next() % TABLE * ranks).collect(),
        }
    }
}

/// A row with what only this benchmark has.
#[derive(Serialize)]
struct SkewRow<'a> {
    #[serde(flatten)]
    row: &'a Row,
    indices: Indices,
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    on_any_seat!(args, options, |job| cases(args, &job))
}

fn cases(args: &BenchArgs, job: &impl Updating) -> Result<(), Error> {
    let table = Arc::new(Table::new());
    let session = Session::new(args, job);
    let kinds = match &args.indices[..] {
        [] => Indices::value_variants(),
        some => some,
    };
    for (number, &indices) in kinds.iter().enumerate() {
        let mut random = Random(u64::from(job.rank().0) + 1);
        let drawn = indices.draw(
            &mut random,
            u64::from(job.topology().size()),
            args.count.unwrap_or(COUNT),
        );
        let label = super::text(indices);
        let name = format!("skew {number} {label}");
        let (case, reps) = histo::updates(&session, &table, &name, &drawn, "skew")?;
        let row = row::combine(args, job, &case, &reps)?;
        let skew = SkewRow { row: &row, indices };
        session.print(&skew, |head| row::print_line(&row, &label, head))?;
    }
    Ok(())
}
