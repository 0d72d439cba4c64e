//! What nexus-runner does: byte records to uniformly random other ranks, each checked as `trihop
//! exchange` checks them.
//!
//! Contents are written and checksummed inside the clock.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use trihop::over::{Job, Shuffle};
use trihop::transport::sync::{Mutex, PoisonError};
use trihop::{Options, Rank, Topology};

use super::row::Case;
use super::seated::{self, on_ranks};
use super::session::{Session, Team};
use super::{BenchArgs, Error, Seat};
use crate::exchange::{Contents, Ledger, Messages, Pattern, Sizes, TALLY, Targets};

/// Lengths, and messages per rank, of the runs that DeltaFS Shuffle was measured by.
const RUNS: [(usize, u64); 5] = [
    (24, 100_000),
    (64, 100_000),
    (256, 50_000),
    (1024, 25_000),
    (32_768, 1500),
];

/// Seed of targets and contents.
const SEED: u64 = 2021;

/// A ledger that the handler shares with what measures.
trait Shared: Clone {
    fn new(ledger: Ledger) -> Self;

    /// Calls `work` with the ledger, which nobody else uses meanwhile.
    fn with<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T;
}

impl Shared for Rc<RefCell<Ledger>> {
    fn new(ledger: Ledger) -> Self {
        Self::new(RefCell::new(ledger))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T {
        work(&mut self.borrow_mut())
    }
}

impl Shared for Arc<Mutex<Ledger>> {
    fn new(ledger: Ledger) -> Self {
        Self::new(Mutex::new(ledger))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T {
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    if args.seat == Seat::Threaded {
        let job = seated::in_threads(options)?;
        cases(args, &job, |name, ledger: Arc<Mutex<Ledger>>| {
            let shuffle = job.shuffle(name);
            shuffle
                .handler(move |message, _| ledger.with(|ledger| ledger.take(message)))
                .open()
        })?;
        return Ok(job.shutdown()?);
    }
    on_ranks(args, options, |start| {
        let job = start.job()?;
        cases(args, &job, |name, ledger: Rc<RefCell<Ledger>>| {
            let shuffle = job.shuffle(name);
            shuffle
                .handler(move |message, _| ledger.with(|ledger| ledger.take(message)))
                .open()
        })?;
        Ok(job.shutdown()?)
    })
}

fn cases<S: trihop::Seat, L: Shared>(
    args: &BenchArgs,
    job: &Job<S>,
    open: impl Fn(&str, L) -> Result<Shuffle<S>, trihop::Error>,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    let session = Session::new(args, job);
    for size in args.sizes(&RUNS.map(|(size, _)| size)) {
        let like = RUNS
            .iter()
            .find(|run| size <= run.0)
            .unwrap_or(&RUNS[RUNS.len() - 1]);
        let ledger = L::new(new_ledger(job.topology(), size));
        let shuffle = open(&format!("exchange {size}"), ledger.clone())?;
        let count = args.count.unwrap_or(like.1);
        case(&session, (size, count), &ledger, &shuffle)?;
        shuffle.shutdown()?;
    }
    Ok(())
}

/// What must come in a round, of records of one size.
fn new_ledger(topology: &Topology, size: usize) -> Ledger {
    let (rank, ranks) = (topology.rank().0, topology.size());
    Ledger::new(rank, ranks, Sizes::List(vec![size]), Contents::new(SEED))
}

fn case<S: trihop::Seat>(
    session: &Session<'_, Job<S>>,
    (size, count): (usize, u64),
    ledger: &impl Shared,
    shuffle: &Shuffle<S>,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    let topology = session.job.topology();
    let (rank, ranks) = (topology.rank().0, topology.size());
    let (contents, sizes) = (Contents::new(SEED), Sizes::List(vec![size]));
    let pattern = Pattern {
        exclude_self: ranks > 1,
        ..Pattern::default()
    };
    let wrong = |why: String| Error::Wrong {
        bench: "exchange",
        why,
    };
    let mut crossing = 0;
    let reps = session.repeat(|meter| {
        ledger.with(|ledger| *ledger = new_ledger(topology, size));
        let targets =
            Targets::new(&pattern, SEED, rank, ranks).map_err(|error| wrong(error.to_string()))?;
        let mut messages = Messages::new(&contents, &sizes, targets);
        let measured = session.measure(meter, || {
            for _ in 0..count {
                let (target, kind, bytes) = messages.next();
                shuffle.send(Rank(target), kind, bytes)?;
                crossing += u64::from(!topology.is_local(Rank(target)));
            }
            for (target, number) in messages.tallies() {
                shuffle.send(Rank(target), TALLY, &number)?;
            }
            shuffle.fence()
        })?;
        ledger.with(|ledger| {
            ledger.close();
            match ledger.faults() {
                0 => Ok(measured),
                faults => Err(wrong(format!(
                    "{faults} messages to rank {rank}: {}",
                    ledger.texts().join("; ")
                ))),
            }
        })
    })?;
    let relays = shuffle.relays_wire_bytes();
    let case = Case {
        bench: "exchange",
        api: "bytes",
        size,
        count,
        messages: count * u64::from(ranks),
        crossing,
        wire_bytes: seated::wire_bytes(topology, shuffle.stats(), relays)?,
    };
    session.report(&case, &reps)
}
