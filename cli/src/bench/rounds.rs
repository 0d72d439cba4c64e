//! `round`: bulk-synchronous steps. Each rank sends a message to every rank, itself included, and
//! all wait for the end of the round. Each round is checked before the next begins: it has brought
//! all of its messages, and none of the next; of that a fence, or a thread that calls the handler,
//! may have brought some.

#![allow(
    clippy::disallowed_types,
    reason = "atomics come from `transport::sync`, as they should"
)]

use std::sync::Arc;

use serde::Serialize;
use trihop::over::{Job, Untyped};
use trihop::transport::sync::{AtomicU64, Ordering::Relaxed};
use trihop::{DetailedStats, End, Options, Rank, Reduce, Seat};

use super::row::{self, Case, Row};
use super::seated::{self, on_ranks, wire_bytes};
use super::session::{Session, Team};
use super::{BenchArgs, Error, table};

const SIZES: [usize; 3] = [8, 64, 1024];

/// Rounds of a repetition, unless `--count` says how many.
const ROUNDS: u64 = 1000;

/// What a rank has received of a round since it was last asked. Read behind the end of the round,
/// which has waited for all that is counted here: so relaxed.
#[derive(Default)]
struct Seen {
    messages: AtomicU64,
    /// Of the words in them.
    sum: AtomicU64,
}

/// Of this round and the next, in turns: nobody is further ahead.
type Rounds = [Seen; 2];

/// Keeps what has come in one run, which is of one round.
fn keep(rounds: &Rounds, size: usize, items: &[u8]) {
    let words = items.chunks_exact(size);
    let words = words.map(|item| item.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)));
    let (mut messages, mut sum, mut last) = (0, 0u64, 0);
    for word in words {
        (messages, sum, last) = (messages + 1, sum.wrapping_add(word), word);
    }
    let seen = &rounds[(last >> ROUND_BIT) as usize % 2];
    seen.messages.fetch_add(messages, Relaxed);
    seen.sum.fetch_add(sum, Relaxed);
}

/// Where the number of the round stands in a word.
const ROUND_BIT: u32 = 40;

/// The word that a rank sends to another in a round.
fn word(source: u32, target: u32, round: u64) -> u64 {
    round << ROUND_BIT ^ u64::from(source) << 20 ^ u64::from(target)
}

/// A row, and what a round takes.
#[derive(Serialize)]
struct RoundRow<'a> {
    #[serde(flatten)]
    row: &'a Row,
    /// How the ranks find out that a round is over: `round` or `fence`.
    end: String,
    /// Rounds of a repetition.
    rounds: u64,
    /// Mean of a repetition, median of these.
    us_per_round: f64,
    /// Switches of context of all ranks per round, of the repetition that counts them.
    switches_per_round: f64,
    /// Times per round that a rank of a node woke another one that slept, of all ranks together.
    wakes_per_round: f64,
    /// As many that one rank woke another one, of the two of which that was most often.
    most_wakes_of_a_pair: f64,
}

impl RoundRow<'_> {
    /// Wake-ups of one rank by the stream's messages; all, and most by one other.
    fn wakes(details: &DetailedStats) -> (u64, u64) {
        let queues = details.stages.iter().flat_map(|stage| &stage.queues);
        let wakes = queues.map(|queue| queue.wakes);
        wakes.fold((0, 0), |(sum, most), one| (sum + one, most.max(one)))
    }
}

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    if args.seat == super::Seat::Threaded {
        let job = seated::in_threads(options)?;
        cases(args, &job, false, |name, size, seen| {
            let stream = job.untyped(name, size);
            stream
                .handler(move |of, _| keep(&seen, size, of.bytes))
                .open()
        })?;
        return Ok(job.shutdown()?);
    }
    on_ranks(args, options, |start| {
        let job = start.job()?;
        cases(args, &job, true, |name, size, seen| {
            let stream = job.untyped(name, size);
            stream
                .handler(move |of, _| keep(&seen, size, of.bytes))
                .open()
        })?;
        Ok(job.shutdown()?)
    })
}

/// `apart`: nothing is handled between two calls, so that rounds are kept apart.
fn cases<S: Seat>(
    args: &BenchArgs,
    job: &Job<S>,
    apart: bool,
    open: impl Fn(&str, usize, Arc<Rounds>) -> Result<Untyped<S>, trihop::Error>,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    let session = Session::new(args, job);
    for size in args.sizes(&SIZES) {
        for end in [End::Round, End::Fence] {
            let seen = Arc::default();
            let stream = open(&format!("round {size} {end}"), size, Arc::clone(&seen))?;
            case(
                &session,
                size,
                (end, apart && end == End::Round),
                &seen,
                &stream,
            )?;
            stream.shutdown()?;
        }
    }
    Ok(())
}

fn case<S: Seat>(
    session: &Session<'_, Job<S>>,
    size: usize,
    (end, apart): (End, bool),
    seen: &Rounds,
    stream: &Untyped<S>,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    let job = session.job;
    let (me, ranks) = (job.rank().0, job.size());
    let rounds = session.args.count.unwrap_or(ROUNDS);
    let mut item = vec![0x5au8; size];
    let mut round = 0;
    let reps = session.repeat(|meter| {
        session.measure(meter, || {
            for _ in 0..rounds {
                round += 1;
                for target in 0..ranks {
                    item[..8].copy_from_slice(&word(me, target, round).to_le_bytes());
                    stream.push(Rank(target), &item)?;
                }
                match end == End::Round {
                    true => stream.round()?,
                    false => stream.fence()?,
                }
                check(me, ranks, round, &seen[round as usize % 2])?;
                let early = seen[(round + 1) as usize % 2].messages.load(Relaxed);
                if apart && early > 0 {
                    let why = format!("rank {me} has {early} messages of round {}", round + 1);
                    return Err(wrong(format!("{why} in that before")));
                }
            }
            Ok::<(), Error>(())
        })
    })?;
    let details = stream.detailed_stats().unwrap_or_default();
    let (wakes, most) = RoundRow::wakes(&details);
    let (mut wakes, mut most) = ([wakes], [most]);
    job.allreduce(&mut wakes, Reduce::Sum)?;
    job.allreduce(&mut most, Reduce::Max)?;
    let all_rounds = (rounds * session.rounds()) as f64;
    let others = ranks - job.topology().local_size();
    let case = Case {
        bench: "round",
        api: "typed",
        size,
        count: rounds * u64::from(ranks),
        messages: rounds * u64::from(ranks) * u64::from(ranks),
        crossing: u64::from(others) * rounds * session.rounds(),
        wire_bytes: wire_bytes(
            job.topology(),
            Some(details.totals),
            stream.relays_wire_bytes(),
        )?,
    };
    let row = row::combine(session.args, job, &case, &reps)?;
    let with_time = RoundRow {
        end: end.to_string(),
        rounds,
        us_per_round: row.seconds * 1e6 / rounds as f64,
        switches_per_round: row.ctx_switches as f64 / rounds as f64,
        wakes_per_round: wakes[0] as f64 / all_rounds,
        most_wakes_of_a_pair: most[0] as f64 / all_rounds,
        row: &row,
    };
    session.print(&with_time, |head| print_line(&with_time, head))
}

/// Checks what a round has brought, and forgets it.
fn check(me: u32, ranks: u32, round: u64, seen: &Seen) -> Result<(), Error> {
    let seen = (seen.messages.swap(0, Relaxed), seen.sum.swap(0, Relaxed));
    let words = (0..ranks).map(|source| word(source, me, round));
    let expected = (u64::from(ranks), words.fold(0, u64::wrapping_add));
    if seen == expected {
        return Ok(());
    }
    Err(wrong(format!(
        "rank {me} saw (messages, sum) {seen:?} in round {round}, expected {expected:?}"
    )))
}

fn wrong(why: String) -> Error {
    let bench = "round";
    Error::Wrong { bench, why }
}

fn print_line(with_time: &RoundRow<'_>, head: bool) -> Result<(), Error> {
    let row = with_time.row;
    if head {
        row::print_head(row)?;
    }
    let cells = [
        ("Size", 7, row.size.to_string()),
        ("End", 6, with_time.end.clone()),
        ("Rounds", 7, with_time.rounds.to_string()),
        ("Round us", 9, format!("{:.1}", with_time.us_per_round)),
        ("Rate M/s", 8, format!("{:.3}", row.msgs_per_s / 1e6)),
        ("CPU us", 7, format!("{:.4}", row.cpu_us_per_msg)),
        ("Wire B", 6, format!("{:.1}", row.wire_bytes_per_msg)),
        (
            "Switches",
            8,
            format!("{:.2}", with_time.switches_per_round),
        ),
        ("Wakes", 6, format!("{:.2}", with_time.wakes_per_round)),
        (
            "A pair",
            6,
            format!("{:.3}", with_time.most_wakes_of_a_pair),
        ),
    ];
    table::print(&cells, head)
}
