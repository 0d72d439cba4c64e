//! Histogram: every rank owns a table and increments random entries of all tables; one 8-byte item
//! per update.

use std::hint::black_box;
use std::sync::Arc;

use serde::Serialize;
use trihop::over::{Stream, Threaded};
use trihop::{Inline, Job, Options, Rank, Reduce, threaded};

use super::random::Random;
use super::round::Reps;
use super::row::{self, Case, Row};
use super::seated::{self, on_any_seat};
use super::session::{Session, Team};
use super::shared::Word;
use super::{BenchArgs, Error};

/// Entries of a rank's table.
pub(crate) const TABLE: u64 = 1_000_000;

/// A rank's table, and updates that came for entries outside of it.
pub(crate) struct Table {
    entries: Vec<Word>,
    outside: Word,
}

impl Table {
    pub fn new() -> Self {
        Self {
            entries: Word::zeros(TABLE),
            outside: Word::default(),
        }
    }

    #[inline]
    pub fn update(&self, locals: &[u64]) {
        // Looked up once: the compiler has to assume that an update changes the table's own fields.
        let entries = &self.entries[..];
        for &local in locals {
            match entries.get(local as usize) {
                Some(entry) => entry.add(1),
                None => self.outside.add(1),
            }
        }
    }

    /// Its entries, for updates by others.
    pub fn entries(&self) -> &[Word] {
        &self.entries
    }

    /// Updates that others got for entries outside.
    pub fn add_outside(&self, updates: u64) {
        self.outside.add(updates);
    }

    pub fn clear(&self) {
        self.entries.iter().for_each(|entry| entry.set(0));
    }

    /// Updates, the sum of their local indices, and updates outside.
    pub fn sums(&self) -> [u64; 3] {
        sums_of(self.entries.iter().map(Word::get), self.outside.get())
    }
}

/// Updates, the sum of their local indices, and updates outside, of a table with these entries.
pub(crate) fn sums_of(entries: impl Iterator<Item = u64> + Clone, outside: u64) -> [u64; 3] {
    let updates = entries.clone().sum();
    let indices = (0u64..).zip(entries).map(|(local, entry)| local * entry);
    [updates, indices.sum(), outside]
}

/// A row, and what bounds it.
#[derive(Serialize)]
struct HistoRow<'a> {
    #[serde(flatten)]
    row: &'a Row,
    /// Updates of all ranks per second by the same loop without messages: each rank finds owner and
    /// place of its indices, and updates its own table.
    bare_msgs_per_s: f64,
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    on_any_seat!(args, options, |job| cases(args, &job))
}

fn cases(args: &BenchArgs, job: &impl Updating) -> Result<(), Error> {
    let counts = args.count.map_or(vec![1_000_000, 5_000_000], |c| vec![c]);
    let table = Arc::new(Table::new());
    let session = Session::new(args, job);
    for count in counts {
        let mut random = Random(u64::from(job.rank().0) + 1);
        let all = TABLE * u64::from(job.topology().size());
        let indices: Vec<u64> = (0..count).map(|_| random.next() % all).collect();
        let name = format!("histo {count}");
        let (case, reps) = updates(&session, &table, &name, &indices, "histo")?;
        let bare = bare(&session, &table, &indices)?;
        let row = row::combine(args, job, &case, &reps)?;
        let histo = HistoRow {
            row: &row,
            bare_msgs_per_s: case.messages as f64 / bare,
        };
        session.print(&histo, |head| row::print_line(&row, case.api, head))?;
    }
    Ok(())
}

/// A job that has streams of updates, on each seat.
pub(crate) trait Updating: Team {
    /// Whose calls make progress.
    type Seat: trihop::Seat;

    /// Opens a stream of local indices whose handler updates the table.
    fn open(&self, name: &str, table: &Arc<Table>) -> Result<Stream<u64, Self::Seat>, Error>;
}

impl<'h> Updating for Job<'h> {
    type Seat = Inline<'h>;

    fn open(&self, name: &str, table: &Arc<Table>) -> Result<Stream<u64, Self::Seat>, Error> {
        let (stream, table) = (self.stream::<u64>(name), Arc::clone(table));
        let stream = stream.handler(move |_, locals, _| table.update(locals));
        Ok(stream.open()?)
    }
}

impl Updating for threaded::Job {
    type Seat = Threaded;

    fn open(&self, name: &str, table: &Arc<Table>) -> Result<Stream<u64, Self::Seat>, Error> {
        let (stream, table) = (self.stream::<u64>(name), Arc::clone(table));
        let stream = stream.handler(move |_, locals, _| table.update(locals));
        Ok(stream.open()?)
    }
}

/// Seconds that the same updates take without any message, on the slowest rank: the median.
fn bare(session: &Session<'_, impl Team>, table: &Table, indices: &[u64]) -> Result<f64, Error> {
    let ranks = u64::from(session.job.topology().size());
    let reps = session.repeat(|meter| {
        session.measure(meter, || {
            let mut owners = 0;
            for &index in indices {
                owners ^= index % ranks;
                table.update(&[index / ranks]);
            }
            black_box(owners);
            Ok::<(), Error>(())
        })
    })?;
    let mut seconds: Vec<f64> = reps.timed.iter().map(|rep| rep.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// All rounds of updates at these indices, which count through all ranks' tables entry by entry.
pub(crate) fn updates(
    session: &Session<'_, impl Updating>,
    table: &Arc<Table>,
    name: &str,
    indices: &[u64],
    bench: &'static str,
) -> Result<(Case, Reps), Error> {
    let job = session.job;
    let ranks = u64::from(job.topology().size());
    // What every table must hold at the end of a round: number of updates, and sum of their local
    // indices.
    let mut expected = vec![0u64; 2 * ranks as usize];
    let mut crossing = 0;
    for &index in indices {
        let (owner, local) = ((index % ranks) as usize, index / ranks);
        expected[2 * owner] += 1;
        expected[2 * owner + 1] += local;
        crossing += u64::from(!job.topology().is_local(Rank(owner as u32)));
    }
    job.allreduce(&mut expected, Reduce::Sum)?;
    let mine = job.rank().0 as usize;
    let expected = [expected[2 * mine], expected[2 * mine + 1], 0];
    let updates = job.open(name, table)?;
    let reps = session.repeat(|meter| {
        table.clear();
        let measured = session.measure(meter, || {
            updates.extend(indices.iter().map(|&index| {
                let (local, owner) = (index / ranks, index % ranks);
                (Rank(owner as u32), local)
            }))?;
            updates.fence()
        })?;
        let sums = table.sums();
        if sums != expected {
            let why = format!(
                "rank {mine} has (updates, their indices, outside) {sums:?}, expected {expected:?}"
            );
            return Err(Error::Wrong { bench, why });
        }
        Ok(measured)
    })?;
    let relays = updates.relays_wire_bytes();
    let wire_bytes = seated::wire_bytes(job.topology(), updates.stats(), relays)?;
    updates.shutdown()?;
    let count = indices.len() as u64;
    let case = Case {
        bench,
        api: "typed",
        size: 8,
        count,
        messages: count * ranks,
        crossing: crossing * session.rounds(),
        wire_bytes,
    };
    Ok((case, reps))
}
