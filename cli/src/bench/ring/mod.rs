//! Two processes of one node over a ring: latency, rate and bandwidth, beside what the machine
//! itself can do.
//!
//! A message is copied into the ring by its sender; the receiver copies it out (`copy`) or looks at
//! it where it lies (`in_place`). Latency is half a round trip, the look at the bitmap of active
//! lanes included; rate and bandwidth are those of a stream in one direction. Cache-line ping-pong
//! takes turns with it within milliseconds, memcpy runs in the same repetition, and ratios are
//! formed within a turn, because the speed of shared memory may change from one moment to the next.
//! With `--seat minirank` two ranks of one process do the same by streams (`minirank.rs`).

mod ends;
mod minirank;

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;
use trihop::{Job, Options};

use self::ends::{Access, Ends};
use super::pair::{self, FIRST, best, median};
use super::round::{Meter, Reps, Round, Spent, Wall};
use super::row::{self, Case, Row, or_dash, print_json};
use super::{BenchArgs, Error, Seat, table};
use crate::output;

const SIZES: [usize; 7] = [8, 64, 256, 1024, 4096, 65_536, 1_048_576];

/// Bytes of one stream, unless `--count` says how many messages.
const STREAM_BYTES: usize = 512 << 20;

/// Bytes of one latency measurement, and of one of memcpy.
const LATENCY_BYTES: usize = 64 << 20;

/// Bounces of the cache line in one repetition.
const BOUNCES: u64 = 50_000;

/// Parts of a repetition in which latency and bouncing take turns: so short that the two meet the
/// same machine, so many that the median does not see those in which somebody else ran.
const TURNS: u64 = 200;

/// Messages whose every byte is checked, besides the first word and the length of every message.
const WHOLE: u64 = 64;

/// Number of a message that only says: go on.
const SIGNAL: u64 = u64::MAX;

/// A row with what only this benchmark has.
#[derive(Debug, Serialize)]
struct RingRow {
    #[serde(flatten)]
    row: Row,
    /// `copy` or `in_place`; of mini-ranks, which go the way of all messages, `handler`.
    access: &'static str,
    /// Whether each rank has a core of its own.
    pinned: bool,
    /// Half a round trip in microseconds, median of the turns.
    latency_us: f64,
    /// The same, best turn.
    latency_best_us: f64,
    /// Half a round trip of one cache line.
    cacheline_us: f64,
    /// Median of the ratios within a turn.
    ratio_to_cacheline: f64,
    /// Bytes that one core copies per second from buffer to buffer of this size.
    memcpy_bytes_per_s: f64,
    /// Bandwidth of the ring over that of memcpy, median of the ratios within a repetition.
    ratio_to_memcpy: f64,
}

/// One turn of latency and bouncing.
struct Turn {
    latency_us: f64,
    cacheline_us: f64,
}

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    if args.seat == Seat::Minirank {
        return minirank::run(args, options);
    }
    let sizes = args.sizes(&SIZES);
    let job = crate::bench::start(options)?;
    let other = pair::other(&job, "ring")?;
    if job.topology().nodes() != 1 {
        return Err(Error::Shape(
            "ring is between two ranks of one node; `p2p` is between nodes".into(),
        ));
    }
    pair::check_unbound(&job, "ring")?;
    let pinned = pair::Cores::find().is_some_and(|cores| cores.keep_to(job.rank().0));
    let largest = sizes.iter().copied().max().unwrap_or(8);
    let mut ends = Ends::exchange(&job, other, largest)?;
    let mut head = !args.json;
    for size in sizes {
        for access in [Access::Copy, Access::InPlace] {
            let ring = case(args, &job, &mut ends, (size, access), pinned)?;
            if job.rank().0 == FIRST {
                print(&ring, std::mem::take(&mut head), args.json)?;
            }
        }
    }
    job.shutdown()?;
    Ok(())
}

fn case(
    args: &BenchArgs,
    job: &Job<'_>,
    ends: &mut Ends,
    (size, access): (usize, Access),
    pinned: bool,
) -> Result<RingRow, Error> {
    let first = job.rank().0 == FIRST;
    let count = args
        .count
        .unwrap_or(((STREAM_BYTES / size) as u64).clamp(200, 4_000_000))
        .max(1);
    let rounds = count.min(((LATENCY_BYTES / size) as u64).clamp(100, 20_000));
    let mut message = vec![0; size];
    let (mut turns, mut copied, mut streams) = (Vec::new(), Vec::new(), Reps::default());
    for round in Round::all(args.reps) {
        let meter = Meter::open(round);
        ends.meet(job)?;
        for _ in 0..TURNS {
            let cacheline_us = half_round_trip(count.min(BOUNCES).div_ceil(TURNS), |bounces| {
                ends.bounce(first, bounces);
                Ok(())
            })?;
            let latency_us = half_round_trip(rounds.div_ceil(TURNS), |rounds| {
                ping_pong(ends, first, &mut message, rounds, access)
            })?;
            if round == Round::Timed {
                turns.push(Turn {
                    latency_us,
                    cacheline_us,
                });
            }
        }
        let memcpy_bytes_per_s = if first { memcpy(&message, rounds) } else { 0.0 };
        let spent = stream(ends, first, &mut message, (count, access), &meter)?;
        streams.add(round, spent.combined(job, Wall::Own)?);
        if round == Round::Timed {
            copied.push(memcpy_bytes_per_s);
        }
    }
    ends.meet(job)?;
    verify(ends, first, &mut message, count.min(WHOLE))?;
    let case = Case {
        bench: "ring",
        api: "bytes",
        size,
        count,
        messages: count,
        crossing: 0,
        wire_bytes: 0,
    };
    let row = row::with_provider(args, job, &case, "-", &streams)?;
    let stream_bytes = (count * size as u64) as f64;
    Ok(RingRow {
        row,
        access: match access {
            Access::Copy => "copy",
            Access::InPlace => "in_place",
        },
        pinned,
        latency_us: median(turns.iter().map(|t| t.latency_us)),
        latency_best_us: best(turns.iter().map(|t| t.latency_us)),
        cacheline_us: median(turns.iter().map(|t| t.cacheline_us)),
        ratio_to_cacheline: median(turns.iter().map(|t| t.latency_us / t.cacheline_us)),
        memcpy_bytes_per_s: median(copied.iter().copied()),
        ratio_to_memcpy: median(
            copied
                .iter()
                .zip(&streams.timed)
                .map(|(copied, stream)| stream_bytes / stream.seconds / copied.max(1.0)),
        ),
    })
}

/// Microseconds of half a round of `exchange`, after a tenth of the rounds unmeasured.
fn half_round_trip(
    rounds: u64,
    mut exchange: impl FnMut(u64) -> Result<(), Error>,
) -> Result<f64, Error> {
    exchange(rounds.div_ceil(10))?;
    let start = Instant::now();
    exchange(rounds)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / (2 * rounds) as f64)
}

fn ping_pong(
    ends: &mut Ends,
    first: bool,
    message: &mut [u8],
    rounds: u64,
    access: Access,
) -> Result<(), Error> {
    for round in 0..rounds {
        message[..8].copy_from_slice(&round.to_le_bytes());
        if first {
            ends.send(message)?;
            ends.receive(message.len(), round, access)?;
        } else {
            ends.receive(message.len(), round, access)?;
            ends.send(message)?;
        }
    }
    Ok(())
}

/// Sends `count` messages from the first rank to the other, from its readiness to its word that it
/// has all.
fn stream(
    ends: &mut Ends,
    first: bool,
    message: &mut [u8],
    (count, access): (u64, Access),
    meter: &Meter,
) -> Result<Spent, Error> {
    let signal = SIGNAL.to_le_bytes();
    if !first {
        ends.send(&signal)?;
        let clock = meter.start();
        for number in 0..count {
            ends.receive(message.len(), number, access)?;
        }
        ends.send(&signal)?;
        return Ok(clock.stop());
    }
    ends.receive(signal.len(), SIGNAL, Access::InPlace)?;
    let clock = meter.start();
    for number in 0..count {
        message[..8].copy_from_slice(&number.to_le_bytes());
        ends.append(message)?;
    }
    ends.publish();
    ends.receive(signal.len(), SIGNAL, Access::InPlace)?;
    Ok(clock.stop())
}

/// Messages that differ in every word, compared byte by byte by their receiver, in both directions.
fn verify(ends: &mut Ends, first: bool, message: &mut [u8], count: u64) -> Result<(), Error> {
    for sends in [first, !first] {
        for number in 0..count {
            if sends {
                pair::fill(message, number);
                ends.send(message)?;
            } else {
                ends.receive_whole(message.len(), number)?;
            }
        }
    }
    Ok(())
}

/// Bytes per second from one buffer to another of the same size.
fn memcpy(from: &[u8], rounds: u64) -> f64 {
    let mut to = vec![0u8; from.len()];
    black_box(&mut to[..]).copy_from_slice(black_box(from));
    let start = Instant::now();
    for _ in 0..rounds {
        black_box(&mut to[..]).copy_from_slice(black_box(from));
    }
    (rounds * from.len() as u64) as f64 / start.elapsed().as_secs_f64()
}

fn print(ring: &RingRow, head: bool, json: bool) -> Result<(), Error> {
    let row = &ring.row;
    if json {
        return print_json(ring);
    }
    if head {
        output::line(format_args!(
            "# ring: two ranks of one node; latency is half a round trip, the rest a stream\n\
             # one way; x line: over a cache line that goes to and fro; x memcpy: of memcpy"
        ))?;
    }
    let cells = [
        ("Size", 7, row.size.to_string()),
        ("Access", 8, ring.access.to_string()),
        ("Mean us", 8, format!("{:.3}", ring.latency_us)),
        ("Best us", 7, format!("{:.3}", ring.latency_best_us)),
        ("x line", 6, format!("{:.2}", ring.ratio_to_cacheline)),
        ("M/s", 7, format!("{:.3}", row.msgs_per_s / 1e6)),
        ("MB/s", 7, format!("{:.1}", row.bytes_per_s / 1e6)),
        ("x memcpy", 8, format!("{:.3}", ring.ratio_to_memcpy)),
        ("CPU us", 6, format!("{:.3}", row.cpu_us_per_msg)),
        ("Sys/1e6", 7, or_dash(row.syscalls_per_1e6_msgs, 0)),
    ];
    table::print(&cells, head)
}
