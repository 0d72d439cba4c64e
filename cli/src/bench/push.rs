//! `push`: the histogram as an application writes it. Each update is one call that sends it, and at
//! its rank one call of a handler, or one that pulls it; in Rust and through the C interface.

use std::ffi::c_void;
use std::ptr::null_mut;

use trihop::capi::conveyor::*;
use trihop::capi::status::trihop_status_t;
use trihop::capi::stream::message::trihop_message_t;
use trihop::capi::stream::trihop_stream_t;
use trihop::transport::bootstrap::{Launcher, detect};
use trihop::{Conveyor, Job, Options, Rank, Reduce, Stream};

use super::a2a::Api;
use super::c::{CJob, check, on_miniranks};
use super::histo::{TABLE, Table, sums_of};
use super::random::Random;
use super::row::Case;
use super::seated::{Start, on_ranks};
use super::session::{Session, Team};
use super::{BenchArgs, Error, Seat};

/// Updates of a rank, unless `--count` says how many.
const UPDATES: u64 = 2_000_000;

/// What is measured.
pub(crate) const APIS: [Api; 4] = [Api::Typed, Api::Conveyor, Api::C, Api::CConveyor];

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let is_c = |api: &&Api| matches!(api, Api::C | Api::CConveyor);
    let by_c = args.api.iter().filter(is_c).count();
    if by_c > 0 && by_c < args.api.len() && detect(options.launcher)? != Launcher::Single {
        let why = "a process is in one job only: inside of one, ask for typed and conveyor, or for c and c-conveyor, by --api";
        return Err(Error::Shape(why.to_owned()));
    }
    if by_c < args.api.len() {
        on_ranks(args, options, |start| in_rust(args, start))?;
    }
    match by_c {
        0 => Ok(()),
        _ if args.seat == Seat::Minirank => {
            let minis = args.minis_per_rank.unwrap_or(1);
            on_miniranks(minis, |job| in_c(args, job))
        }
        _ => in_c(args, CJob::start(args.seat)?),
    }
}

fn in_rust(args: &BenchArgs, start: Start) -> Result<(), Error> {
    let table = Table::new();
    let job = start.job()?;
    let work = Work::new(Session::new(args, &job), &table)?;
    if args.api.contains(&Api::Typed) {
        work.by_handler()?;
    }
    if args.api.contains(&Api::Conveyor) {
        work.by_conveyor()?;
    }
    Ok(job.shutdown()?)
}

fn in_c(args: &BenchArgs, job: CJob) -> Result<(), Error> {
    let table = Table::new();
    let work = Work::new(Session::new(args, &job), &table)?;
    if args.api.contains(&Api::C) {
        work.by_c_handler()?;
    }
    if args.api.contains(&Api::CConveyor) && args.seat != Seat::Threaded {
        work.by_c_conveyor()?;
    }
    job.finish()
}

/// A rank's table, however its updates come to it.
trait Tally {
    /// All of it is zero.
    fn clear(&mut self);

    /// See [`Table::sums`].
    fn sums(&self) -> [u64; 3];
}

impl Tally for &Table {
    fn clear(&mut self) {
        Table::clear(self);
    }

    fn sums(&self) -> [u64; 3] {
        Table::sums(self)
    }
}

/// A table that no handler shares: a program has all of it while it pulls.
struct OwnTable {
    entries: Vec<u64>,
    /// Updates that came for entries outside of it.
    outside: u64,
}

impl Tally for OwnTable {
    fn clear(&mut self) {
        self.entries.fill(0);
    }

    fn sums(&self) -> [u64; 3] {
        sums_of(self.entries.iter().copied(), self.outside)
    }
}

/// What is sent, and what has to come of it.
struct Work<'s, 't, J> {
    session: Session<'s, J>,
    table: &'t Table,
    indices: Vec<u64>,
    /// Updates of this rank's table, the sum of their places, and updates outside.
    expected: [u64; 3],
}

impl<'s, 't, J: Team> Work<'s, 't, J> {
    fn new(session: Session<'s, J>, table: &'t Table) -> Result<Self, Error> {
        let topology = session.job.topology();
        let (me, ranks) = (topology.rank().0, u64::from(topology.size()));
        let count = session.args.count.unwrap_or(UPDATES);
        let mut random = Random(u64::from(me) + 1);
        let indices: Vec<u64> = (0..count)
            .map(|_| random.next() % (TABLE * ranks))
            .collect();
        let mut expected = vec![0u64; 2 * ranks as usize];
        for &index in &indices {
            let owner = (index % ranks) as usize;
            expected[2 * owner] += 1;
            expected[2 * owner + 1] += index / ranks;
        }
        session.job.allreduce(&mut expected, Reduce::Sum)?;
        let me = me as usize;
        let expected = [expected[2 * me], expected[2 * me + 1], 0];
        Ok(Self {
            session,
            table,
            indices,
            expected,
        })
    }

    fn ranks(&self) -> u64 {
        self.session.job.topology().size().into()
    }

    /// All rounds of `work`, each checked, and their row.
    fn rounds<T: Tally>(
        &self,
        api: Api,
        mut table: T,
        mut work: impl FnMut(&mut T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let reps = self.session.repeat(|meter| {
            table.clear();
            let measured = self.session.measure(meter, || work(&mut table))?;
            let (sums, expected) = (table.sums(), self.expected);
            if sums != expected {
                let rank = self.session.job.rank();
                let why = format!(
                    "rank {rank} has (updates, their indices, outside) {sums:?}, expected {expected:?}"
                );
                return Err(Error::Wrong { bench: "push", why });
            }
            Ok(measured)
        })?;
        let count = self.indices.len() as u64;
        let case = Case {
            bench: "push",
            api: api.name(),
            size: 8,
            count,
            messages: count * self.ranks(),
            crossing: 0, // `histo` says what they take on the wire
            wire_bytes: 0,
        };
        self.session.report(&case, &reps)
    }
}

impl<'t> Work<'_, 't, Job<'t>> {
    fn by_handler(&self) -> Result<(), Error> {
        let (table, ranks) = (self.table, self.ranks());
        let stream = self
            .session
            .job
            .stream::<u64>("push")
            .handler(move |_, locals, _| locals.iter().for_each(|local| table.update(&[*local])))
            .open()?;
        self.rounds(Api::Typed, table, |_| {
            push_all(&stream, &self.indices, ranks)
        })?;
        Ok(stream.shutdown()?)
    }

    fn by_conveyor(&self) -> Result<(), Error> {
        let ranks = self.ranks();
        let stream = self.session.job.stream::<u64>("conveyor").open()?;
        let mut conveyor = Conveyor::over(stream)?;
        let table = OwnTable {
            entries: vec![0; TABLE as usize],
            outside: 0,
        };
        self.rounds(Api::Conveyor, table, |table| {
            let outside = push_and_pull(&mut conveyor, &self.indices, ranks, &mut table.entries)?;
            table.outside += outside;
            Ok(())
        })?;
        Ok(conveyor.shutdown()?)
    }
}

/// The owner of an update, and its place there.
#[inline(always)] // part of each update
fn place(index: u64, ranks: u64) -> (u32, u64) {
    ((index % ranks) as u32, index / ranks)
}

/// As `bench_push` of push.c. A function of its own like that: as a part of a large one its loop
/// has what it needs in memory, not in registers, and takes up to twice as long. A division by what
/// is in memory alone takes 11 ns behind such stores, and 2.5 by a register (EPYC of family 25).
#[inline(never)]
fn push_all(stream: &Stream<'_, u64>, indices: &[u64], ranks: u64) -> Result<(), Error> {
    for &index in indices {
        let (owner, local) = place(index, ranks);
        stream.push(Rank(owner), local)?;
    }
    Ok(stream.fence()?)
}

/// As `bench_push_and_pull`: the updates that came for entries outside of the table.
fn push_and_pull(
    conveyor: &mut Conveyor<'_, u64>,
    indices: &[u64],
    ranks: u64,
    table: &mut [u64],
) -> Result<u64, Error> {
    let (mut left, mut outside) = (indices, 0);
    while conveyor.advance(left.is_empty())? {
        left = push_some(conveyor, left, ranks)?;
        outside += pull_all(conveyor, table)?;
    }
    conveyor.reset()?;
    Ok(outside)
}

/// Pushes as long as there is room; what is left.
#[inline(never)] // as `push_all`
fn push_some<'i>(
    conveyor: &mut Conveyor<'_, u64>,
    mut left: &'i [u64],
    ranks: u64,
) -> Result<&'i [u64], Error> {
    while let Some((&index, rest)) = left.split_first() {
        let (owner, local) = place(index, ranks);
        if !conveyor.push(Rank(owner), local)? {
            break;
        }
        left = rest;
    }
    Ok(left)
}

/// Pulls what is here; the updates outside.
#[inline(never)] // as that
fn pull_all(conveyor: &mut Conveyor<'_, u64>, table: &mut [u64]) -> Result<u64, Error> {
    let mut outside = 0;
    while let Some((_, local)) = conveyor.pull()? {
        match table.get_mut(*local as usize) {
            Some(entry) => *entry += 1,
            None => outside += 1,
        }
    }
    Ok(outside)
}

/// As push.h has it.
#[repr(C)]
struct CTable {
    entries: *mut u64,
    length: u64,
    outside: u64,
}

impl CTable {
    fn of(table: &Table) -> Self {
        let entries = table.entries();
        Self {
            entries: entries.as_ptr().cast_mut().cast(),
            length: entries.len() as u64,
            outside: 0,
        }
    }
}

#[expect(
    improper_ctypes,
    reason = "C gets pointers to what it does not look into"
)]
// SAFETY: push.c has these functions, compiled with the header of the library's interface.
unsafe extern "C" {
    fn bench_on_items(context: *mut c_void, items: *const trihop_message_t);
    fn bench_push(
        stream: *const trihop_stream_t,
        indices: *const u64,
        count: usize,
        ranks: u64,
    ) -> trihop_status_t;
    fn bench_push_and_pull(
        conveyor: *mut trihop_conveyor_t,
        indices: *const u64,
        count: usize,
        ranks: u64,
        table: *mut CTable,
    ) -> trihop_status_t;
}

impl Work<'_, '_, CJob> {
    fn by_c_handler(&self) -> Result<(), Error> {
        let ranks = self.ranks();
        let mut table = CTable::of(self.table);
        let table = &raw mut table;
        // SAFETY: the table outlives the stream, and nobody else uses it while handlers run.
        let stream = unsafe {
            self.session
                .job
                .open("push", 8, Some(bench_on_items), table.cast())?
        };
        self.rounds(Api::C, self.table, |_| {
            let (indices, count) = (self.indices.as_ptr(), self.indices.len());
            // SAFETY: an open stream, and so many indices.
            check("pushes and the fence", unsafe {
                bench_push(stream.0, indices, count, ranks)
            })?;
            // SAFETY: handlers are called within calls, or, threaded, not behind the fence.
            self.table.add_outside(unsafe { (*table).outside });
            Ok(())
        })?;
        stream.close()
    }

    fn by_c_conveyor(&self) -> Result<(), Error> {
        let ranks = self.ranks();
        let mut table = CTable::of(self.table);
        // SAFETY: without a handler there is no context.
        let stream = unsafe { self.session.job.open("conveyor", 8, None, null_mut())? };
        let mut conveyor = null_mut();
        // SAFETY: an open stream, and a place for a pointer.
        check("trihop_conveyor_over", unsafe {
            trihop_conveyor_over(stream.0, &mut conveyor)
        })?;
        self.rounds(Api::CConveyor, self.table, |_| {
            let (indices, count) = (self.indices.as_ptr(), self.indices.len());
            // SAFETY: a conveyor of this function's, so many indices, and a table that nobody else
            // uses meanwhile.
            check("a conveyor's step", unsafe {
                bench_push_and_pull(conveyor, indices, count, ranks, &mut table)
            })?;
            self.table.add_outside(table.outside);
            Ok(())
        })?;
        // SAFETY: a conveyor of this function's, used no more.
        unsafe { trihop_conveyor_free(conveyor) };
        stream.close()
    }
}
