//! Two nodes over the fabric, as the OSU benchmarks do it: latency, rate and bandwidth, eager and
//! by both rendezvous.
//!
//! The endpoint is driven directly, without routing and batching. Latency is half a round trip;
//! rate and bandwidth are those of a stream in one direction with a bounded window. Where
//! fi_pingpong is installed, it runs in every repetition over the same provider and loopback, while
//! the ranks sleep.

mod fi_pingpong;
mod protocol;
mod wire;

use serde::Serialize;
use trihop::transport::link::{Limits, Mover};
use trihop::transport::memory::pool::Pool;
use trihop::{Job, Options};

use self::protocol::{Check, Exchange, Protocol};
use self::wire::Wire;
use super::pair::{self, Cores, FIRST, best, median};
use super::round::{Measured, Meter, Reps, Round, Wall};
use super::row::{self, Case, Row, or_dash, print_json};
use super::{BenchArgs, Error, table};
use crate::output;

const SIZES: [usize; 7] = [8, 64, 256, 1024, 4096, 65_536, 1_048_576];

/// Bytes of one stream, unless `--count` says how many messages.
const STREAM_BYTES: usize = 128 << 20;

/// Bytes of one latency measurement in one direction.
const LATENCY_BYTES: usize = 64 << 20;

/// Round trips in which every byte is checked, besides the first word and the length of every
/// message.
const WHOLE: u64 = 32;

/// A row with what only this benchmark has.
#[derive(Debug, Serialize)]
struct P2pRow {
    #[serde(flatten)]
    row: Row,
    /// `eager`, `read` or `segments`.
    protocol: &'static str,
    /// Whether the engine would send this size so over this provider.
    chosen: bool,
    /// Whether each rank, and each process of fi_pingpong, has a core of its own.
    pinned: bool,
    /// Half a round trip in microseconds, median of the repetitions.
    latency_us: f64,
    /// The same, best repetition.
    latency_best_us: f64,
    /// The same of fi_pingpong, median of the repetitions.
    fi_pingpong_us: Option<f64>,
    /// Median of the ratios within a repetition.
    ratio_to_fi_pingpong: Option<f64>,
}

/// One repetition of one protocol.
struct Rep {
    latency_us: f64,
    wire_bytes: u64,
}

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let sizes = args.sizes(&SIZES);
    let job = crate::bench::start(options.clone())?;
    let other = pair::other(&job, "p2p")?;
    if job.topology().nodes() != 2 {
        return Err(Error::Shape(
            "p2p is between two ranks of two nodes; `ring` is within one".into(),
        ));
    }
    pair::check_unbound(&job, "p2p")?;
    let cores = Cores::find().filter(|cores| cores.keep_to(job.rank().0));
    let mut wire = Wire::connect(&job, other, &options)?;
    let mut yardstick = Yardstick {
        provider: wire.name().to_owned(),
        cores,
        missing: None,
    };
    let mut head = !args.json;
    for size in sizes {
        let rows = case(args, &job, &mut wire, &mut yardstick, size)?;
        if job.rank().0 == FIRST {
            print(&rows, std::mem::take(&mut head), args.json)?;
        }
    }
    job.shutdown()?;
    Ok(())
}

fn case(
    args: &BenchArgs,
    job: &Job<'_>,
    wire: &mut Wire,
    yardstick: &mut Yardstick,
    size: usize,
) -> Result<Vec<P2pRow>, Error> {
    let first = job.rank().0 == FIRST;
    let count = args
        .count
        .unwrap_or(((STREAM_BYTES / size) as u64).clamp(100, 50_000))
        .max(1);
    let rounds = count.min(((LATENCY_BYTES / size) as u64).clamp(100, 4_000));
    let pool = wire.create_pool(size)?;
    let mut reps: [(Vec<Rep>, Reps); Protocol::EVERY.len()] = Default::default();
    let mut theirs = Vec::new();
    for round in Round::all(args.reps) {
        if round == Round::Timed && first {
            theirs.push(yardstick.measure(job, size, rounds)?);
        }
        // The other rank sleeps here meanwhile.
        job.barrier()?;
        for (protocol, (reps, streams)) in Protocol::EVERY.into_iter().zip(&mut reps) {
            let meter = Meter::open(round);
            let (rep, stream) =
                repetition(job, wire, &pool, protocol, (size, rounds, count), &meter)?;
            streams.add(round, stream);
            if round == Round::Timed {
                reps.push(rep);
            }
        }
    }
    for protocol in Protocol::EVERY {
        Exchange::new(job, wire, &pool, protocol, size)
            .ping_pong(count.min(WHOLE), Check::Whole)?;
    }
    let chosen = chosen(wire.limits(), size);
    let mut rows = Vec::new();
    for (protocol, (reps, streams)) in Protocol::EVERY.into_iter().zip(reps) {
        let case = Case {
            bench: "p2p",
            api: "bytes",
            size,
            count,
            messages: count,
            crossing: if first { count * reps.len() as u64 } else { 0 },
            wire_bytes: reps.iter().map(|r| r.wire_bytes).sum(),
        };
        let latencies: Vec<f64> = reps.iter().map(|r| r.latency_us).collect();
        let row = row::with_provider(args, job, &case, &yardstick.provider, &streams)?;
        let ratios = latencies
            .iter()
            .zip(&theirs)
            .map(|(ours, theirs)| theirs.map(|t| ours / t));
        rows.push(P2pRow {
            row,
            protocol: protocol.text(),
            chosen: protocol == chosen,
            pinned: yardstick.cores.is_some(),
            latency_us: median(latencies.iter().copied()),
            latency_best_us: best(latencies.iter().copied()),
            fi_pingpong_us: of_all(theirs.iter().copied()),
            ratio_to_fi_pingpong: of_all(ratios),
        });
    }
    Ok(rows)
}

fn repetition(
    job: &Job<'_>,
    wire: &mut Wire,
    pool: &Pool,
    protocol: Protocol,
    (size, rounds, count): (usize, u64, u64),
    meter: &Meter,
) -> Result<(Rep, Measured), Error> {
    let latency = Exchange::new(job, wire, pool, protocol, size).ping_pong(rounds, Check::Head)?;
    let before = wire.wire_bytes;
    let spent = Exchange::new(job, wire, pool, protocol, size).stream(count, meter)?;
    let rep = Rep {
        latency_us: latency * 1e6,
        wire_bytes: wire.wire_bytes - before,
    };
    Ok((rep, spent.combined(job, Wall::Own)?))
}

/// What the engine takes for a batch of this size.
fn chosen(limits: &Limits, size: usize) -> Protocol {
    match limits.mover {
        _ if size <= limits.eager_bytes => Protocol::Eager,
        Mover::Read => Protocol::Read,
        Mover::Segments => Protocol::Segments,
    }
}

/// Median, where every repetition has a value.
fn of_all(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Option<Vec<f64>> = values.collect();
    values.filter(|v| !v.is_empty()).map(median)
}

/// fi_pingpong, until it is found missing.
struct Yardstick {
    provider: String,
    cores: Option<Cores>,
    missing: Option<fi_pingpong::Missing>,
}

impl Yardstick {
    /// Its figure, while the job goes on forwarding now and then.
    fn measure(&mut self, job: &Job<'_>, size: usize, rounds: u64) -> Result<Option<f64>, Error> {
        if self.missing.is_some() {
            return Ok(None);
        }
        let figure = std::thread::scope(|scope| {
            let run =
                scope.spawn(|| fi_pingpong::run(&self.provider, self.cores.as_ref(), size, rounds));
            while !run.is_finished() {
                job.progress()?;
                std::thread::sleep(fi_pingpong::PAUSE);
            }
            let panicked = |_| {
                Err(fi_pingpong::Missing::Failed(
                    "the thread that ran it panicked".into(),
                ))
            };
            Ok::<_, Error>(run.join().unwrap_or_else(panicked))
        })?;
        if let Err(missing) = &figure {
            output::say(
                "trihop bench p2p",
                format_args!("without comparison: {missing}"),
            );
        }
        Ok(figure.map_err(|missing| self.missing = Some(missing)).ok())
    }
}

fn print(rows: &[P2pRow], head: bool, json: bool) -> Result<(), Error> {
    if json {
        for row in rows {
            print_json(row)?;
        }
        return Ok(());
    }
    if head {
        let provider = rows.first().map_or("-", |r| &r.row.provider);
        output::line(format_args!(
            "# p2p: two nodes over {provider}; latency is half a round trip, the rest\n\
             # a stream one way; * what the engine takes for a batch of this size"
        ))?;
    }
    for (number, p2p) in rows.iter().enumerate() {
        let row = &p2p.row;
        let star = if p2p.chosen { '*' } else { ' ' };
        let cells = [
            ("Size", 8, row.size.to_string()),
            ("Protocol", 9, format!("{}{star}", p2p.protocol)),
            ("Mean us", 7, format!("{:.2}", p2p.latency_us)),
            ("Best us", 7, format!("{:.2}", p2p.latency_best_us)),
            ("x fi_pp", 7, or_dash(p2p.ratio_to_fi_pingpong, 2)),
            ("M/s", 6, format!("{:.4}", row.msgs_per_s / 1e6)),
            ("MB/s", 7, format!("{:.1}", row.bytes_per_s / 1e6)),
            ("CPU us", 6, format!("{:.2}", row.cpu_us_per_msg)),
            ("Wire B", 6, format!("{:.1}", row.wire_bytes_per_msg)),
            ("Sys/1e6", 8, or_dash(row.syscalls_per_1e6_msgs, 0)),
        ];
        table::print(&cells, head && number == 0)?;
    }
    Ok(())
}
