//! Index gather: a request of 16 bytes for an entry of another rank's table, a reply of 16 bytes
//! with its value.
//!
//! Requests and replies have a stream each, so that replies have lanes and credits of their own: a
//! handler of requests sends replies, a handler of replies sends nothing.

use std::sync::Arc;

use trihop::over::{Job, Stream};
use trihop::{Error as EngineError, Options, Rank, Topology};

use super::histo::TABLE;
use super::random::Random;
use super::row::Case;
use super::seated::{self, on_ranks};
use super::session::{Session, Team};
use super::shared::{Failure, Word};
use super::{BenchArgs, Error, Seat};

/// Requests of a rank in a round, unless `--count` says how many.
const COUNT: u64 = 1_000_000;

/// Requests between two looks at replies that found no room.
const CHUNK: usize = 1024;

/// A slot that has no reply yet; no entry of a table has this value.
const EMPTY: u64 = 0;

/// Value of an entry, by its number in the tables of all ranks together.
fn value(index: u64) -> u64 {
    Random(index).next() | 1
}

/// A request of (slot, entry), or a reply of (slot, value).
type Pair = [u64; 2];

/// A rank's part of the table and its results, and what has to be done outside of handlers.
struct Gather {
    table: Vec<u64>,
    results: Vec<Word>,
    /// Replies for slots that do not exist or had one already, and those that found no entry.
    wrong: Word,
    /// Replies that not even the spill had room for.
    failure: Failure,
}

impl Gather {
    fn new(slots: u64, topology: &Topology) -> Self {
        let (rank, ranks) = (u64::from(topology.rank().0), u64::from(topology.size()));
        let entries = (0..TABLE).map(|local| value(local * ranks + rank));
        Self {
            table: entries.collect(),
            results: Word::zeros(slots),
            wrong: Word::default(),
            failure: Failure::default(),
        }
    }

    /// Answers requests: some entries are read, then as many replies sent, so that the reads, far
    /// apart in memory, do not wait for each other.
    #[inline]
    fn answer(
        &self,
        requests: &[Pair],
        mut reply: impl FnMut(&[Pair]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        // Looked up once: the compiler has to assume that a reply changes the table's own fields.
        let table = &self.table[..];
        let mut ready = [[0; 2]; 32];
        for requests in requests.chunks(ready.len()) {
            for (reply, &[slot, local]) in ready.iter_mut().zip(requests) {
                *reply = [slot, table.get(local as usize).copied().unwrap_or(EMPTY)];
            }
            reply(&ready[..requests.len()])?;
        }
        Ok(())
    }

    /// Takes replies.
    fn take(&self, replies: &[Pair]) {
        for &[slot, value] in replies {
            match self.results.get(slot as usize) {
                Some(result) if value != EMPTY && result.get() == EMPTY => result.set(value),
                _ => self.wrong.add(1),
            }
        }
    }

    /// Looks into every slot.
    fn check(&self, indices: &[u64], rank: u64) -> Result<(), Error> {
        let unlike = indices
            .iter()
            .zip(&self.results)
            .filter(|(index, result)| result.get() != value(**index));
        let (unlike, wrong) = (unlike.count(), self.wrong.get());
        if unlike > 0 || wrong > 0 {
            let why = format!(
                "rank {rank}: {unlike} of {} slots have no or another reply, {wrong} items were out of place",
                indices.len()
            );
            return Err(Error::Wrong { bench: "ig", why });
        }
        Ok(())
    }
}

/// Replies to one rank.
fn to(target: Rank, replies: &[Pair]) -> impl Iterator<Item = (Rank, Pair)> + '_ {
    replies.iter().map(move |&reply| (target, reply))
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let count = args.count.unwrap_or(COUNT);
    if args.seat == Seat::Threaded {
        let job = seated::in_threads(options)?;
        let gather = Arc::new(Gather::new(count, job.topology()));
        let taking = Arc::clone(&gather);
        let replies = job
            .stream::<Pair>("ig replies")
            .handler(move |_, replies, _| taking.take(replies))
            .open()?;
        let (answering, answers) = (Arc::clone(&gather), replies.clone());
        let requests = job
            .stream::<Pair>("ig requests")
            .handler(move |source, requests, _| {
                let sent = answering.answer(requests, |some| answers.extend(to(source, some)));
                answering.failure.note(sent);
            })
            .open()?;
        case(&Session::new(args, &job), &gather, &requests, &replies)?;
        requests.shutdown()?;
        replies.shutdown()?;
        return Ok(job.shutdown()?);
    }
    on_ranks(args, options, |start| {
        let job = start.job()?;
        let gather = Arc::new(Gather::new(count, job.topology()));
        let taking = Arc::clone(&gather);
        let replies = job
            .stream::<Pair>("ig replies")
            .handler(move |_, replies, _| taking.take(replies))
            .open()?;
        let (answering, answers) = (Arc::clone(&gather), replies.clone());
        let requests = job
            .stream::<Pair>("ig requests")
            .handler(move |source, requests, outbox| {
                let sent = outbox.on(&answers).and_then(|mut replies| {
                    answering.answer(requests, |some| replies.extend(to(source, some)))
                });
                answering.failure.note(sent);
            })
            .open()?;
        case(&Session::new(args, &job), &gather, &requests, &replies)?;
        requests.shutdown()?;
        replies.shutdown()?;
        Ok(job.shutdown()?)
    })
}

fn case<S: trihop::Seat>(
    session: &Session<'_, Job<S>>,
    gather: &Gather,
    requests: &Stream<Pair, S>,
    replies: &Stream<Pair, S>,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    let topology = session.job.topology();
    let (rank, ranks) = (u64::from(topology.rank().0), u64::from(topology.size()));
    let count = gather.results.len() as u64;
    let mut random = Random(rank + 1);
    let indices: Vec<u64> = (0..count)
        .map(|_| random.next() % (TABLE * ranks))
        .collect();
    let crossing = indices
        .iter()
        .filter(|&&index| !topology.is_local(Rank((index % ranks) as u32)));
    let crossing = crossing.count() as u64;
    let reps = session.repeat(|meter| {
        gather.results.iter().for_each(|result| result.set(EMPTY));
        let measured = session.measure(meter, || {
            let mut slots = 0u64..;
            for chunk in indices.chunks(CHUNK) {
                requests.extend(chunk.iter().zip(&mut slots).map(|(&index, slot)| {
                    let (local, owner) = (index / ranks, index % ranks);
                    (Rank(owner as u32), [slot, local])
                }))?;
            }
            requests.fence()?;
            replies.fence()?;
            gather.failure.take()
        })?;
        gather.check(&indices, rank)?;
        Ok(measured)
    })?;
    let sent = seated::wire_bytes(topology, requests.stats(), requests.relays_wire_bytes())?;
    let answered = seated::wire_bytes(topology, replies.stats(), replies.relays_wire_bytes())?;
    let case = Case {
        bench: "ig",
        api: "typed",
        size: size_of::<Pair>(),
        count,
        messages: count * ranks,
        // A request that crosses has a reply that does, though maybe one of another rank's.
        crossing: 2 * crossing * session.rounds(),
        wire_bytes: sent + answered,
    };
    session.report(&case, &reps)
}
