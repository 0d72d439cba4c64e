//! Histogram: every rank owns a table and increments random entries of all tables; one 8-byte item per update.

use std::cell::Cell;

use trihop::{Job, Options, Rank, Reduce};

use super::row::{self, Case};
use super::{BenchArgs, Error, Measured, measure};

/// Entries of a rank's table.
const TABLE: u64 = 1_000_000;

/// A fast, seeded sequence (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Refuses sizes that it cannot measure.
pub fn check(args: &BenchArgs) -> Result<(), Error> {
    if args.size.iter().any(|&s| s != 8) {
        return Err(Error::Size(
            "histo has items of 8 bytes; `a2a` takes other sizes".into(),
        ));
    }
    Ok(())
}

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let counts = args.count.map_or(vec![1_000_000, 5_000_000], |c| vec![c]);
    let table = vec![Cell::new(0u64); TABLE as usize];
    let outside = Cell::new(0u64);
    let job = Job::start(options)?;
    for (index, &count) in counts.iter().enumerate() {
        case(args, &job, &table, &outside, count, index == 0)?;
    }
    job.shutdown()?;
    Ok(())
}

fn case<'h>(
    args: &BenchArgs,
    job: &Job<'h>,
    table: &'h [Cell<u64>],
    outside: &'h Cell<u64>,
    count: u64,
    first: bool,
) -> Result<(), Error> {
    let ranks = u64::from(job.size());
    let mut random = Random(u64::from(job.rank().0) + 1);
    let indices: Vec<u64> = (0..count).map(|_| random.next() % (TABLE * ranks)).collect();
    // What every table must hold at the end of a round: number of updates, and sum of their local indices.
    let mut expected = vec![0u64; 2 * ranks as usize];
    let mut crossing = 0;
    for &index in &indices {
        let (owner, local) = ((index % ranks) as usize, index / ranks);
        expected[2 * owner] += 1;
        expected[2 * owner + 1] += local;
        crossing += u64::from(!job.topology().is_local(Rank(owner as u32)));
    }
    job.allreduce(&mut expected, Reduce::Sum)?;
    let updates = job
        .stream::<u64>(&format!("histo {count}"))
        .handler(move |_, locals, _| {
            for &local in locals {
                match table.get(local as usize) {
                    Some(entry) => entry.set(entry.get() + 1),
                    None => outside.set(outside.get() + 1),
                }
            }
        })
        .open()?;
    let mut reps: Vec<Measured> = Vec::new();
    let divisor = job.size();
    for rep in 0..=args.reps {
        table.iter().for_each(|entry| entry.set(0));
        let measured = measure(job, || {
            updates.extend(indices.iter().map(|&index| {
                let (local, owner) = (index / u64::from(divisor), index % u64::from(divisor));
                (Rank(owner as u32), local)
            }))?;
            updates.fence()
        })?;
        let mine = job.rank().0 as usize;
        let got: u64 = table.iter().map(Cell::get).sum();
        let sum: u64 = (0u64..)
            .zip(table)
            .map(|(local, entry)| local * entry.get())
            .sum();
        if (got, sum, outside.get()) != (expected[2 * mine], expected[2 * mine + 1], 0) {
            let why = format!(
                "rank {mine} counts {got} updates with sum {sum}, expected {} and {}; {} outside",
                expected[2 * mine],
                expected[2 * mine + 1],
                outside.get()
            );
            return Err(Error::Wrong { bench: "histo", why });
        }
        if rep > 0 {
            reps.push(measured);
        }
    }
    let crossing = crossing * (u64::from(args.reps) + 1);
    let case = Case {
        bench: "histo",
        api: "typed",
        size: 8,
        count,
        crossing,
    };
    let row = row::combine(job, &case, &reps, &updates.stats())?;
    row::print(job, &row, args.json, first);
    updates.shutdown()?;
    Ok(())
}
