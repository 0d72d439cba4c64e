//! All-to-all: messages of one size to uniform destinations; the receiver reads the first 8 bytes and the length.

use std::cell::Cell;

use trihop::{Item, Job, Options, Rank, Reduce};

use super::random::Random;
use super::round::Reps;
use super::row::Case;
use super::session::Session;
use super::{BenchArgs, Error};

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

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let sizes = args.sizes(&SIZES);
    let seen = Seen::default();
    let job = Job::start(options)?;
    let session = Session::new(args, &job);
    for size in sizes {
        let count = args
            .count
            .unwrap_or(((BYTES / size) as u64).clamp(200, 2_000_000));
        let work = Work::new(&session, &seen, count)?;
        match size {
            8 => work.typed::<1>()?,
            24 => work.typed::<3>()?,
            32 => work.typed::<4>()?,
            64 => work.typed::<8>()?,
            128 => work.typed::<16>()?,
            256 => work.typed::<32>()?,
            1024 => work.typed::<128>()?,
            _ => {} // longer than a frame, or a size without an item type here: bytes only
        }
        work.bytes(size)?;
    }
    job.shutdown()?;
    Ok(())
}

/// What is sent, and what has to come of it.
struct Work<'a, 'h> {
    session: &'a Session<'a, 'h>,
    seen: &'h Seen,
    targets: Vec<u32>,
    /// Messages for this rank, and the sum of their numbers.
    expected: (u64, u64),
}

impl<'a, 'h> Work<'a, 'h> {
    fn new(session: &'a Session<'a, 'h>, seen: &'h Seen, count: u64) -> Result<Self, Error> {
        let job = session.job;
        let mut random = Random(u64::from(job.rank().0) + 77);
        let targets: Vec<u32> = (0..count)
            .map(|_| (random.next() % u64::from(job.size())) as u32)
            .collect();
        let mut expected = vec![0u64; 2 * job.size() as usize];
        for (&target, number) in targets.iter().zip(0u64..) {
            expected[2 * target as usize] += 1;
            expected[2 * target as usize + 1] += number;
        }
        job.allreduce(&mut expected, Reduce::Sum)?;
        let mine = job.rank().0 as usize;
        Ok(Self {
            session,
            seen,
            targets,
            expected: (expected[2 * mine], expected[2 * mine + 1]),
        })
    }

    fn typed<const WORDS: usize>(&self) -> Result<(), Error>
    where
        [u64; WORDS]: Item,
    {
        let (size, seen) = (WORDS * 8, self.seen);
        let stream = self
            .session
            .job
            .stream::<[u64; WORDS]>(&format!("a2a typed {size}"))
            .handler(move |_, items, _| {
                let sum = items.iter().fold(0u64, |sum, item| sum.wrapping_add(item[0]));
                seen.add(items.len() as u64, sum, 0);
            })
            .open()?;
        let mut item = [0x5a5a_5a5a_5a5a_5a5au64; WORDS];
        let reps = self.repeat(|| {
            stream.extend(self.targets.iter().zip(0u64..).map(|(&target, number)| {
                item[0] = number;
                (Rank(target), item)
            }))?;
            stream.fence()
        })?;
        self.report("typed", size, &reps, stream.stats().wire_bytes)?;
        Ok(stream.shutdown()?)
    }

    fn bytes(&self, size: usize) -> Result<(), Error> {
        let seen = self.seen;
        let shuffle = self
            .session
            .job
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
        let reps = self.repeat(|| {
            for (&target, number) in self.targets.iter().zip(0u64..) {
                payload[..8].copy_from_slice(&number.to_le_bytes());
                shuffle.send(Rank(target), 0, &payload)?;
            }
            shuffle.fence()
        })?;
        self.report("bytes", size, &reps, shuffle.stats().wire_bytes)?;
        Ok(shuffle.shutdown()?)
    }

    fn repeat(&self, mut work: impl FnMut() -> Result<(), trihop::Error>) -> Result<Reps, Error> {
        let seen = self.seen;
        self.session.repeat(|meter| {
            seen.messages.set(0);
            seen.sum.set(0);
            seen.wrong.set(0);
            let measured = self.session.measure(meter, &mut work)?;
            let got = (seen.messages.get(), seen.sum.get(), seen.wrong.get());
            let want = (self.expected.0, self.expected.1, 0);
            if got != want {
                let rank = self.session.job.rank();
                let why =
                    format!("rank {rank} saw (messages, sum, wrong lengths) {got:?}, expected {want:?}");
                return Err(Error::Wrong { bench: "a2a", why });
            }
            Ok(measured)
        })
    }

    fn report(&self, api: &'static str, size: usize, reps: &Reps, wire_bytes: u64) -> Result<(), Error> {
        let (topology, count) = (self.session.job.topology(), self.targets.len() as u64);
        let crosses = |target: &&u32| !topology.is_local(Rank(**target));
        let case = Case {
            bench: "a2a",
            api,
            size,
            count,
            messages: count * u64::from(topology.size()),
            crossing: self.targets.iter().filter(crosses).count() as u64 * self.session.rounds(),
            wire_bytes,
        };
        self.session.report(&case, reps)
    }
}
