//! All-to-all: messages of one size to uniform destinations; the receiver reads the first 8 bytes
//! and the length.

#![allow(
    clippy::disallowed_types,
    reason = "atomics come from `transport::sync`, as they should"
)]

use clap::ValueEnum;
use trihop::transport::sync::{AtomicU64, Ordering};
use trihop::{DumpOutput, Item, Job, Options, Rank, Reduce, threaded};

use super::deltafs::{self, Nexus};
use super::random::Random;
use super::round::Reps;
use super::row::Case;
use super::seated::{self, Start, on_ranks};
use super::session::{Session, Team};
use super::{BenchArgs, Error};

const SIZES: [usize; 8] = [8, 24, 32, 64, 128, 256, 1024, 32768];

/// Bytes that a rank sends per repetition, unless `--count` says how many messages.
const BYTES: usize = 64 << 20;

/// What a client of the DeltaFS interface sends between two flushes (tests/deltafs/many.c):
/// longest message, and how many of these.
const OF_CLIENTS: [(usize, u64); 4] = [
    (64, 100_000),
    (256, 50_000),
    (4096, 25_000),
    (1 << 20, 1500),
];

/// How messages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// Items of a stream
    Typed,
    /// Records of a shuffle
    Bytes,
    /// Records of a shuffle in a job with progress and delivery threads
    Threaded,
    /// Records of a client of the DeltaFS interface, in C, with the options that it gives: none to
    /// oneself, fewer at a time, four flushes, and barriers that spin
    Deltafs,
    /// Items by push, pull and advance (push)
    Conveyor,
    /// Items by the C functions, to a C handler (push)
    C,
    /// Items by push, pull and advance of the C interface (push)
    CConveyor,
    /// As guests of the first rank of their node (channel)
    Guest,
}

impl Api {
    /// Name in rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Typed => "typed",
            Self::Bytes => "bytes",
            Self::Threaded => "threaded",
            Self::Deltafs => "deltafs",
            Self::Conveyor => "conveyor",
            Self::C => "c",
            Self::CConveyor => "c-conveyor",
            Self::Guest => "guest",
        }
    }
}

/// What is measured where the user asks for nothing.
const APIS: [Api; 2] = [Api::Typed, Api::Bytes];

/// The interfaces that are asked for, by the kind of job that they are in.
pub(crate) fn by_job(apis: &[Api]) -> Vec<Vec<Api>> {
    let kinds: [&[Api]; 5] = [
        &[Api::Typed, Api::Bytes, Api::Conveyor],
        &[Api::Threaded],
        &[Api::Deltafs],
        &[Api::C, Api::CConveyor],
        &[Api::Guest],
    ];
    let asked = |kind: &&[Api]| {
        kind.iter()
            .copied()
            .filter(|api| apis.contains(api))
            .collect()
    };
    let jobs = kinds.iter().map(asked);
    jobs.filter(|job: &Vec<Api>| !job.is_empty()).collect()
}

/// What this rank has received. Written by the one thread that handlers run on and, while nothing
/// is under way, by the one that sends: fences and flushes order these, so relaxed.
struct Seen {
    messages: AtomicU64,
    sum: AtomicU64,
    wrong: AtomicU64,
    /// Bytes of each message.
    size: AtomicU64,
}

/// That of the one rank of this process, in a job with threads.
static SEEN: Seen = Seen::new();

impl Seen {
    const fn new() -> Self {
        Self {
            messages: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            size: AtomicU64::new(0),
        }
    }

    #[inline]
    fn add(&self, messages: u64, sum: u64, wrong: u64) {
        let add = |to: &AtomicU64, more: u64| {
            let before = to.load(Ordering::Relaxed);
            to.store(before.wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.messages, messages);
        add(&self.sum, sum);
        if wrong > 0 {
            add(&self.wrong, wrong);
        }
    }

    /// Takes a message in.
    #[inline]
    fn message(&self, bytes: &[u8]) {
        let word = bytes
            .first_chunk::<8>()
            .map_or(0, |b| u64::from_le_bytes(*b));
        let wrong = bytes.len() as u64 != self.size.load(Ordering::Relaxed);
        self.add(1, word, u64::from(wrong));
    }

    /// Nothing, of messages of `size` bytes.
    fn clear(&self, size: usize) {
        self.size.store(size as u64, Ordering::Relaxed);
        for count in [&self.messages, &self.sum, &self.wrong] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Messages, the sum of their numbers, and those of a wrong length.
    fn so_far(&self) -> (u64, u64, u64) {
        let get = |from: &AtomicU64| from.load(Ordering::Relaxed);
        (get(&self.messages), get(&self.sum), get(&self.wrong))
    }
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let apis = if args.api.is_empty() {
        &APIS[..]
    } else {
        &args.api
    };
    match &by_job(apis)[..] {
        [only] if only.contains(&Api::Deltafs) => by_client(args, &options),
        [only] if only.contains(&Api::Threaded) => in_threads(args, options),
        [_] => on_ranks(args, options, |start| inline(args, apis, start)),
        _ => {
            let why = "a process is in one job only: inside of one, ask for --api threaded or deltafs alone";
            Err(Error::Shape(why.to_owned()))
        }
    }
}

fn inline(args: &BenchArgs, apis: &[Api], start: Start) -> Result<(), Error> {
    // Handlers of a job that lives as long as the process: once for each rank.
    let seen = Box::leak(Box::new(Seen::new()));
    let job = start.job()?;
    let session = Session::new(args, &job);
    for size in args.sizes(&SIZES) {
        let work = Work::new(&session, size, seen)?;
        if apis.contains(&Api::Typed) {
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
        }
        if apis.contains(&Api::Bytes) {
            work.bytes()?;
        }
    }
    Ok(job.shutdown()?)
}

fn in_threads(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let job = seated::in_threads(options)?;
    let session = Session::new(args, &job);
    for size in args.sizes(&SIZES) {
        Work::new(&session, size, &SEEN)?.threaded()?;
    }
    Ok(job.shutdown()?)
}

fn by_client(args: &BenchArgs, options: &Options) -> Result<(), Error> {
    let found = Options::from_env()?;
    if (&found.provider, found.stream.route) != (&options.provider, options.stream.route) {
        let why = "the DeltaFS interface takes its options from the environment: set TRIHOP_PROVIDER and TRIHOP_ROUTE \
                   instead of --provider and --route";
        return Err(Error::Shape(why.to_owned()));
    }
    let nexus = Nexus::bootstrap()?;
    nexus.job().dump_on(libc::SIGUSR1, DumpOutput::Stderr)?;
    let session = Session::new(args, nexus.job());
    for size in args.sizes(&SIZES) {
        Work::of_client(&session, size, &SEEN)?.by_client(&nexus)?;
    }
    Ok(())
}

/// What is sent, and what has to come of it.
struct Work<'a, J> {
    session: &'a Session<'a, J>,
    size: usize,
    /// What this rank gets.
    seen: &'static Seen,
    targets: Vec<u32>,
    /// Messages for this rank, and the sum of their numbers.
    expected: (u64, u64),
}

impl Work<'_, Job<'static>> {
    fn typed<const WORDS: usize>(&self) -> Result<(), Error>
    where
        [u64; WORDS]: Item,
    {
        let seen = self.seen;
        let stream = self
            .session
            .job
            .stream::<[u64; WORDS]>(&self.name(Api::Typed))
            .handler(move |_, items, _| {
                let sum = items
                    .iter()
                    .fold(0u64, |sum, item| sum.wrapping_add(item[0]));
                seen.add(items.len() as u64, sum, 0);
            })
            .open()?;
        let mut item = [0x5a5a_5a5a_5a5a_5a5au64; WORDS];
        let reps = self.repeat(|| {
            stream.extend(self.targets.iter().zip(0u64..).map(|(&target, number)| {
                item[0] = number;
                (Rank(target), item)
            }))?;
            Ok(stream.fence()?)
        })?;
        let (own, relays) = (stream.stats(), stream.relays_wire_bytes());
        let wire_bytes = seated::wire_bytes(self.session.job.topology(), own, relays)?;
        self.report(Api::Typed, &reps, wire_bytes)?;
        Ok(stream.shutdown()?)
    }

    fn bytes(&self) -> Result<(), Error> {
        let seen = self.seen;
        let shuffle = self
            .session
            .job
            .shuffle(&self.name(Api::Bytes))
            .handler(move |message, _| seen.message(message.bytes))
            .open()?;
        let reps = self.repeat(|| {
            self.each(|target, payload| Ok(shuffle.send(target, 0, payload)?))?;
            Ok(shuffle.fence()?)
        })?;
        let (own, relays) = (shuffle.stats(), shuffle.relays_wire_bytes());
        let wire_bytes = seated::wire_bytes(self.session.job.topology(), own, relays)?;
        self.report(Api::Bytes, &reps, wire_bytes)?;
        Ok(shuffle.shutdown()?)
    }
}

impl Work<'_, threaded::Job> {
    fn threaded(&self) -> Result<(), Error> {
        let shuffle = self
            .session
            .job
            .shuffle(&self.name(Api::Threaded))
            .handler(|message, _| SEEN.message(message.bytes))
            .open()?;
        let reps = self.repeat(|| {
            self.each(|target, payload| Ok(shuffle.send(target, 0, payload)?))?;
            Ok(shuffle.fence()?)
        })?;
        let (own, relays) = (shuffle.stats(), shuffle.relays_wire_bytes());
        let wire_bytes = seated::wire_bytes(self.session.job.topology(), own, relays)?;
        self.report(Api::Threaded, &reps, wire_bytes)?;
        Ok(shuffle.shutdown()?)
    }

    fn by_client(&self, nexus: &Nexus) -> Result<(), Error> {
        let shuffle = nexus.shuffle(&self.name(Api::Deltafs))?;
        let mut message = vec![0x5au8; self.size];
        let reps = self.session.repeat(|meter| {
            deltafs::clear(self.size);
            let mut send = || shuffle.send(&self.targets, &mut message);
            let measured = self.session.measure(meter, &mut send)?;
            let taken = deltafs::taken();
            self.check((taken.messages, taken.sum, taken.wrong))?;
            Ok(measured)
        })?;
        self.report(Api::Deltafs, &reps, shuffle.wire_bytes())?;
        shuffle.shutdown()
    }
}

impl<'a, J: Team> Work<'a, J> {
    fn new(session: &'a Session<'a, J>, size: usize, seen: &'static Seen) -> Result<Self, Error> {
        let usual = ((BYTES / size) as u64).clamp(200, 2_000_000);
        Self::to(session, size, seen, usual, |draw, _, ranks| draw % ranks)
    }

    /// As a client of the DeltaFS interface has it.
    fn of_client(
        session: &'a Session<'a, J>,
        size: usize,
        seen: &'static Seen,
    ) -> Result<Self, Error> {
        let usual = OF_CLIENTS.iter().find(|(longest, _)| size <= *longest);
        let usual = usual.map_or(1, |(_, count)| *count);
        Self::to(session, size, seen, usual, |draw, me, ranks| match ranks {
            1 => me,
            _ => (me + 1 + draw % (ranks - 1)) % ranks,
        })
    }

    /// With targets that `choose` makes of a random number, this rank and the number of ranks.
    fn to(
        session: &'a Session<'a, J>,
        size: usize,
        seen: &'static Seen,
        usual: u64,
        choose: impl Fn(u64, u64, u64) -> u64,
    ) -> Result<Self, Error> {
        let job = session.job;
        let (me, ranks) = (job.topology().rank().0, job.topology().size());
        let mut random = Random(u64::from(me) + 77);
        let targets: Vec<u32> = (0..session.args.count.unwrap_or(usual))
            .map(|_| choose(random.next(), me.into(), ranks.into()) as u32)
            .collect();
        let mut expected = vec![0u64; 2 * ranks as usize];
        for (&target, number) in targets.iter().zip(0u64..) {
            expected[2 * target as usize] += 1;
            expected[2 * target as usize + 1] += number;
        }
        job.allreduce(&mut expected, Reduce::Sum)?;
        Ok(Self {
            session,
            size,
            seen,
            targets,
            expected: (expected[2 * me as usize], expected[2 * me as usize + 1]),
        })
    }

    fn name(&self, api: Api) -> String {
        format!("a2a {} {}", api.name(), self.size)
    }

    /// Gives `send` each target, with a payload that begins with the message's number.
    fn each(
        &self,
        mut send: impl FnMut(Rank, &mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut payload = vec![0x5au8; self.size];
        for (&target, number) in self.targets.iter().zip(0u64..) {
            payload[..8].copy_from_slice(&number.to_le_bytes());
            send(Rank(target), &mut payload)?;
        }
        Ok(())
    }

    fn repeat(&self, mut work: impl FnMut() -> Result<(), Error>) -> Result<Reps, Error> {
        self.session.repeat(|meter| {
            self.seen.clear(self.size);
            let measured = self.session.measure(meter, &mut work)?;
            self.check(self.seen.so_far())?;
            Ok(measured)
        })
    }

    /// Whether everything has come: messages, the sum of their numbers, and those of a wrong
    /// length.
    fn check(&self, got: (u64, u64, u64)) -> Result<(), Error> {
        let want = (self.expected.0, self.expected.1, 0);
        if got != want {
            let rank = self.session.job.rank();
            let why = format!(
                "rank {rank} saw (messages, sum, wrong lengths) {got:?}, expected {want:?}"
            );
            return Err(Error::Wrong { bench: "a2a", why });
        }
        Ok(())
    }

    fn report(&self, api: Api, reps: &Reps, wire_bytes: u64) -> Result<(), Error> {
        let (topology, count) = (self.session.job.topology(), self.targets.len() as u64);
        let crosses = |target: &&u32| !topology.is_local(Rank(**target));
        let case = Case {
            bench: "a2a",
            api: api.name(),
            size: self.size,
            count,
            messages: count * u64::from(topology.size()),
            crossing: self.targets.iter().filter(crosses).count() as u64 * self.session.rounds(),
            wire_bytes,
        };
        self.session.report(&case, reps)
    }
}
