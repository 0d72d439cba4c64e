//! Two mini-ranks of one process: what 8 bytes take from a push to the handler of the other rank,
//! beside a cache line that bounces between the same two threads.

use std::cell::Cell;

use trihop::transport::ring::{Bell, Doorbell};
use trihop::{Job, Options, Queues, Rank, Stream};

use super::super::pair::{self, FIRST, Patience, best, median};
use super::super::round::{Meter, Reps, Round, Wall};
use super::super::row::{self, Case};
use super::super::seated::{Start, on_ranks};
use super::super::{BenchArgs, Error};
use super::ends::bounce;
use super::{BOUNCES, RingRow, TURNS, Turn, half_round_trip, memcpy, print};

/// Messages of one measurement of latency.
const LAPS: u64 = 20_000;

/// Items of a stream, unless `--count` says how many.
const ITEMS: u64 = 4_000_000;

/// Bytes of an item.
const SIZE: usize = 8;

/// What the handler of a rank has had.
#[derive(Default)]
struct Heard {
    last: Cell<u64>,
    count: Cell<u64>,
    sum: Cell<u64>,
}

impl Heard {
    fn items(&self, items: &[u64]) {
        let sum = items.iter().fold(self.sum.get(), |sum, &item| sum + item);
        self.sum.set(sum);
        self.count.set(self.count.get() + items.len() as u64);
        self.last.set(items.last().copied().unwrap_or_default());
    }
}

/// Runs the benchmark on the two ranks of this process.
pub(super) fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let line = Doorbell::create()?.bell();
    on_ranks(args, options, |start| on_rank(args, start, &line))
}

fn on_rank(args: &BenchArgs, start: Start, line: &Bell) -> Result<(), Error> {
    let heard = Heard::default();
    let job = start.job()?;
    let other = Rank(pair::other(&job, "ring")?);
    if job.topology().ranks_in_process() != 2 {
        let why = "ring --seat minirank is between two ranks of one process";
        return Err(Error::Shape(why.to_owned()));
    }
    let pinned = pair::Cores::find().is_some_and(|cores| cores.keep_to(job.rank().0));
    let stream = job
        .stream::<u64>("ring")
        .handler(|_, items, _| heard.items(items))
        .open()?;
    let ring = case(args, &job, (&stream, other, &heard, line), pinned)?;
    if job.rank().0 == FIRST {
        print(&ring, !args.json, args.json)?;
    }
    stream.shutdown()?;
    Ok(job.shutdown()?)
}

/// A stream to the other rank, and what comes from there.
type Ends<'a, 'h> = (&'a Stream<'h, u64>, Rank, &'a Heard, &'a Bell);

fn case(
    args: &BenchArgs,
    job: &Job<'_>,
    (stream, other, heard, line): Ends<'_, '_>,
    pinned: bool,
) -> Result<RingRow, Error> {
    let first = job.rank().0 == FIRST;
    let count = args.count.unwrap_or(ITEMS).max(1);
    let laps = count.min(LAPS).div_ceil(TURNS);
    let (mut turns, mut copied, mut streams) = (Vec::new(), Vec::new(), Reps::default());
    let mut lap = 0;
    for round in Round::all(args.reps) {
        let meter = Meter::open(round);
        job.barrier()?;
        for _ in 0..TURNS {
            let cacheline_us = half_round_trip(count.min(BOUNCES).div_ceil(TURNS), |bounces| {
                bounce(line, first, bounces);
                Ok(())
            })?;
            let latency_us = half_round_trip(laps, |laps| {
                ping_pong(job, (stream, other, heard), first, (lap, laps))?;
                lap += laps;
                Ok(())
            })?;
            if round == Round::Timed {
                turns.push(Turn {
                    latency_us,
                    cacheline_us,
                });
            }
        }
        if round == Round::Timed {
            copied.push(memcpy(&[0; SIZE], laps * TURNS));
        }
        // Both have heard all of that; behind the fence the stream may have begun.
        let before = (heard.count.get(), heard.sum.get());
        stream.fence()?;
        let clock = meter.start();
        if first {
            stream.extend((0..count).map(|number| (other, number)))?;
        }
        stream.fence()?;
        streams.add(round, clock.stop().combined(job, Wall::Slowest)?);
        let expected = match first {
            true => before,
            false => (before.0 + count, before.1 + count * (count - 1) / 2),
        };
        if (heard.count.get(), heard.sum.get()) != expected {
            let why = format!("{:?} items and sum", (heard.count.get(), heard.sum.get()));
            return Err(Error::Wrong { bench: "ring", why });
        }
    }
    let case = Case {
        bench: "ring",
        api: "typed",
        size: SIZE,
        count,
        messages: count,
        crossing: 0,
        wire_bytes: 0,
    };
    let row = row::with_provider(args, job, &case, "-", &streams)?;
    let bytes = (count * SIZE as u64) as f64;
    let ratios = copied.iter().zip(&streams.timed);
    Ok(RingRow {
        row,
        access: "handler",
        pinned,
        latency_us: median(turns.iter().map(|t| t.latency_us)),
        latency_best_us: best(turns.iter().map(|t| t.latency_us)),
        cacheline_us: median(turns.iter().map(|t| t.cacheline_us)),
        ratio_to_cacheline: median(turns.iter().map(|t| t.latency_us / t.cacheline_us)),
        memcpy_bytes_per_s: median(copied.iter().copied()),
        ratio_to_memcpy: median(ratios.map(|(copied, s)| bytes / s.seconds / copied.max(1.0))),
    })
}

/// So many round trips, numbered from `lap` on: a push on one side, polls on the other.
fn ping_pong(
    job: &Job<'_>,
    (stream, other, heard): (&Stream<'_, u64>, Rank, &Heard),
    first: bool,
    (lap, laps): (u64, u64),
) -> Result<(), Error> {
    let await_number = |number| {
        let mut patience = Patience::default();
        while heard.last.get() != number {
            if !job.progress()? {
                patience.wait();
            }
        }
        Ok::<(), Error>(())
    };
    for number in lap + 1..=lap + laps {
        if first {
            stream.push(other, number)?;
            await_number(number)?;
        } else {
            await_number(number)?;
            stream.push(other, number)?;
        }
    }
    // The other one waits for what was pushed last, and nobody polls while the line bounces.
    Ok(stream.flush(Queues::ORIGIN)?)
}
