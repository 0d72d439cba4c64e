//! All-to-all: messages of one size to uniform destinations; the receiver reads the first 8 bytes and the length.

use std::cell::Cell;

use trihop::{Item, Job, Options, Rank, Reduce};

use super::histo::Random;
use super::row::{self, Case};
use super::{BenchArgs, Error, Measured, measure};

const SIZES: [usize; 8] = [8, 24, 32, 64, 128, 256, 1024, 32768];

/// Bytes that a rank sends per repetition, unless `--count` says how many messages.
const BYTES: usize = 64 << 20;

/// What a receiver has seen.
#[derive(Default)]
pub(crate) struct Seen {
    messages: Cell<u64>,
    sum: Cell<u64>,
    wrong: Cell<u64>,
}

impl Seen {
    fn add(&self, messages: u64, sum: u64, wrong: u64) {
        self.messages.set(self.messages.get() + messages);
        self.sum.set(self.sum.get().wrapping_add(sum));
        self.wrong.set(self.wrong.get() + wrong);
    }
}

/// Refuses sizes that it cannot measure.
pub fn check(args: &BenchArgs) -> Result<(), Error> {
    if let Some(size) = args.size.iter().find(|&&s| s < 8) {
        return Err(Error::Size(format!(
            "a2a messages carry a checked word of 8 bytes; {size} is less"
        )));
    }
    Ok(())
}

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let sizes = if args.size.is_empty() {
        SIZES.to_vec()
    } else {
        args.size.clone()
    };
    let seen = Seen::default();
    let job = Job::start(options)?;
    let mut first = true;
    for size in sizes {
        let count = args
            .count
            .unwrap_or(((BYTES / size) as u64).clamp(200, 2_000_000));
        let targets = targets(&job, count);
        match size {
            8 => typed::<1>(args, &job, &seen, &targets, &mut first)?,
            24 => typed::<3>(args, &job, &seen, &targets, &mut first)?,
            32 => typed::<4>(args, &job, &seen, &targets, &mut first)?,
            64 => typed::<8>(args, &job, &seen, &targets, &mut first)?,
            128 => typed::<16>(args, &job, &seen, &targets, &mut first)?,
            256 => typed::<32>(args, &job, &seen, &targets, &mut first)?,
            1024 => typed::<128>(args, &job, &seen, &targets, &mut first)?,
            _ => {} // longer than a frame, or a size without an item type here: bytes only
        }
        bytes(args, &job, &seen, &targets, size, &mut first)?;
    }
    job.shutdown()?;
    Ok(())
}

fn targets(job: &Job<'_>, count: u64) -> Vec<u32> {
    let mut random = Random(u64::from(job.rank().0) + 77);
    (0..count)
        .map(|_| (random.next() % u64::from(job.size())) as u32)
        .collect()
}

fn typed<'h, const WORDS: usize>(
    args: &BenchArgs,
    job: &Job<'h>,
    seen: &'h Seen,
    targets: &[u32],
    first: &mut bool,
) -> Result<(), Error>
where
    [u64; WORDS]: Item,
{
    let size = WORDS * 8;
    let stream = job
        .stream::<[u64; WORDS]>(&format!("a2a typed {size}"))
        .handler(move |_, items, _| {
            let sum = items.iter().fold(0u64, |sum, item| sum.wrapping_add(item[0]));
            seen.add(items.len() as u64, sum, 0);
        })
        .open()?;
    let mut item = [0x5a5a_5a5a_5a5a_5a5au64; WORDS];
    let reps = repeat(args, job, seen, targets, "a2a", || {
        stream.extend(targets.iter().zip(0u64..).map(|(&target, number)| {
            item[0] = number;
            (Rank(target), item)
        }))?;
        stream.fence()
    })?;
    report(args, job, targets, "typed", size, &reps, &stream.stats(), first)?;
    Ok(stream.shutdown()?)
}

fn bytes<'h>(
    args: &BenchArgs,
    job: &Job<'h>,
    seen: &'h Seen,
    targets: &[u32],
    size: usize,
    first: &mut bool,
) -> Result<(), Error> {
    let shuffle = job
        .shuffle(&format!("a2a bytes {size}"))
        .handler(move |message, _| {
            let word = message
                .bytes
                .first_chunk::<8>()
                .map_or(0, |b| u64::from_le_bytes(*b));
            seen.add(1, word, u64::from(message.bytes.len() != size));
        })
        .open()?;
    let mut payload = vec![0x5au8; size];
    let reps = repeat(args, job, seen, targets, "a2a", || {
        for (&target, number) in targets.iter().zip(0u64..) {
            payload[..8].copy_from_slice(&number.to_le_bytes());
            shuffle.send(Rank(target), 0, &payload)?;
        }
        shuffle.fence()
    })?;
    report(args, job, targets, "bytes", size, &reps, &shuffle.stats(), first)?;
    Ok(shuffle.shutdown()?)
}

fn repeat(
    args: &BenchArgs,
    job: &Job<'_>,
    seen: &Seen,
    targets: &[u32],
    bench: &'static str,
    mut work: impl FnMut() -> Result<(), trihop::Error>,
) -> Result<Vec<Measured>, Error> {
    let mut expected = vec![0u64; 2 * job.size() as usize];
    for (&target, number) in targets.iter().zip(0u64..) {
        expected[2 * target as usize] += 1;
        expected[2 * target as usize + 1] += number;
    }
    job.allreduce(&mut expected, Reduce::Sum)?;
    let mine = job.rank().0 as usize;
    let mut reps = Vec::new();
    for rep in 0..=args.reps {
        seen.messages.set(0);
        seen.sum.set(0);
        seen.wrong.set(0);
        let measured = measure(job, &mut work)?;
        let got = (seen.messages.get(), seen.sum.get(), seen.wrong.get());
        let want = (expected[2 * mine], expected[2 * mine + 1], 0);
        if got != want {
            let why = format!("rank {mine} saw (messages, sum, wrong lengths) {got:?}, expected {want:?}");
            return Err(Error::Wrong { bench, why });
        }
        if rep > 0 {
            reps.push(measured);
        }
    }
    Ok(reps)
}

#[allow(clippy::too_many_arguments, reason = "one straight line for two callers")]
fn report(
    args: &BenchArgs,
    job: &Job<'_>,
    targets: &[u32],
    api: &'static str,
    size: usize,
    reps: &[Measured],
    stats: &trihop::Stats,
    first: &mut bool,
) -> Result<(), Error> {
    let crossing = targets
        .iter()
        .filter(|&&t| !job.topology().is_local(Rank(t)))
        .count() as u64;
    let crossing = crossing * (u64::from(args.reps) + 1);
    let case = Case {
        bench: "a2a",
        api,
        size,
        count: targets.len() as u64,
        crossing,
    };
    let row = row::combine(job, &case, reps, stats)?;
    row::print(job, &row, args.json, *first);
    *first = false;
    Ok(())
}
