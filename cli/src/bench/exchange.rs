//! What nexus-runner does: byte records to uniformly random other ranks, each checked as `trihop
//! exchange` checks them.
//!
//! Contents are written and checksummed inside the clock.

use std::cell::RefCell;
use std::rc::Rc;

use trihop::{Job, Options, Rank};

use super::row::Case;
use super::session::Session;
use super::{BenchArgs, Error};
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

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let sizes = args.sizes(&RUNS.map(|(size, _)| size));
    let job = crate::bench::start(options)?;
    let session = Session::new(args, &job);
    for size in sizes {
        let like = RUNS
            .iter()
            .find(|run| size <= run.0)
            .unwrap_or(&RUNS[RUNS.len() - 1]);
        case(&session, size, args.count.unwrap_or(like.1))?;
    }
    job.shutdown()?;
    Ok(())
}

fn case(session: &Session<'_, Job<'_>>, size: usize, count: u64) -> Result<(), Error> {
    let job = session.job;
    let (rank, ranks) = (job.rank().0, job.size());
    let (contents, sizes) = (Contents::new(SEED), Sizes::List(vec![size]));
    let pattern = Pattern {
        exclude_self: ranks > 1,
        ..Pattern::default()
    };
    let wrong = |why: String| Error::Wrong {
        bench: "exchange",
        why,
    };
    let ledger = Rc::new(RefCell::new(Ledger::new(
        rank,
        ranks,
        sizes.clone(),
        Contents::new(SEED),
    )));
    let taking = Rc::clone(&ledger);
    let shuffle = job
        .shuffle(&format!("exchange {size}"))
        .handler(move |message, _| taking.borrow_mut().take(message))
        .open()?;
    let mut crossing = 0;
    let reps = session.repeat(|meter| {
        *ledger.borrow_mut() = Ledger::new(rank, ranks, sizes.clone(), Contents::new(SEED));
        let targets =
            Targets::new(&pattern, SEED, rank, ranks).map_err(|error| wrong(error.to_string()))?;
        let mut messages = Messages::new(&contents, &sizes, targets);
        let measured = session.measure(meter, || {
            for _ in 0..count {
                let (target, kind, bytes) = messages.next();
                shuffle.send(Rank(target), kind, bytes)?;
                crossing += u64::from(!job.topology().is_local(Rank(target)));
            }
            for (target, number) in messages.tallies() {
                shuffle.send(Rank(target), TALLY, &number)?;
            }
            shuffle.fence()
        })?;
        let mut ledger = ledger.borrow_mut();
        ledger.close();
        match ledger.faults() {
            0 => Ok(measured),
            faults => Err(wrong(format!(
                "{faults} messages to rank {rank}: {}",
                ledger.texts().join("; ")
            ))),
        }
    })?;
    let case = Case {
        bench: "exchange",
        api: "bytes",
        size,
        count,
        messages: count * u64::from(ranks),
        crossing,
        wire_bytes: shuffle.stats().map_or(0, |stats| stats.wire_bytes),
    };
    session.report(&case, &reps)?;
    Ok(shuffle.shutdown()?)
}
