//! Index gather: a request of 16 bytes for an entry of another rank's table, a reply of 16 bytes
//! with its value.
//!
//! Requests and replies have a stream each, so that replies have lanes and credits of their own: a
//! handler of requests sends replies, a handler of replies sends nothing.

use std::cell::Cell;

use trihop::{Error as EngineError, ItemOutbox, Options, Rank};

use super::histo::TABLE;
use super::random::Random;
use super::row::Case;
use super::session::Session;
use super::{BenchArgs, Error};

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

/// A rank's results, and what has to be done outside of handlers.
struct Gather {
    results: Vec<Cell<u64>>,
    /// Replies for slots that do not exist or had one already, and those that found no entry.
    wrong: Cell<u64>,
    /// Replies that not even the spill had room for.
    failure: Cell<Option<EngineError>>,
}

impl Gather {
    fn new(slots: u64) -> Self {
        Self {
            results: vec![Cell::new(EMPTY); slots as usize],
            wrong: Cell::new(0),
            failure: Cell::default(),
        }
    }

    /// Replies to requests of (slot, entry): some entries are read, then as many replies sent, so
    /// that the reads, far apart in memory, do not wait for each other.
    fn reply(
        &self,
        source: Rank,
        requests: &[[u64; 2]],
        table: &[u64],
        replies: &mut ItemOutbox<'_, [u64; 2]>,
    ) {
        let mut ready = [[0; 2]; 32];
        for requests in requests.chunks(ready.len()) {
            for (reply, &[slot, local]) in ready.iter_mut().zip(requests) {
                *reply = [slot, table.get(local as usize).copied().unwrap_or(EMPTY)];
            }
            let ready = ready[..requests.len()].iter().map(|&reply| (source, reply));
            if let Err(error) = replies.extend(ready) {
                self.failure.set(Some(error));
            }
        }
    }

    /// Takes replies of (slot, value).
    fn take(&self, replies: &[[u64; 2]]) {
        for &[slot, value] in replies {
            match self.results.get(slot as usize) {
                Some(result) if value != EMPTY && result.replace(value) == EMPTY => {}
                _ => self.wrong.set(self.wrong.get() + 1),
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

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let count = args.count.unwrap_or(COUNT);
    let gather = &Gather::new(count);
    let job = crate::bench::start(options)?;
    let session = Session::new(args, &job);
    let (rank, ranks) = (u64::from(job.rank().0), u64::from(job.size()));
    let replies = job
        .stream::<[u64; 2]>("ig replies")
        .handler(|_, replies, _| gather.take(replies))
        .open()?;
    let table: Vec<u64> = (0..TABLE)
        .map(|local| value(local * ranks + rank))
        .collect();
    let answers = replies.clone();
    let requests = job
        .stream::<[u64; 2]>("ig requests")
        .handler(move |source, requests, outbox| match outbox.on(&answers) {
            Ok(mut replies) => gather.reply(source, requests, &table, &mut replies),
            Err(error) => gather.failure.set(Some(error)),
        })
        .open()?;
    let mut random = Random(rank + 1);
    let indices: Vec<u64> = (0..count)
        .map(|_| random.next() % (TABLE * ranks))
        .collect();
    let crossing = indices
        .iter()
        .filter(|&&index| !job.topology().is_local(Rank((index % ranks) as u32)));
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
            gather.failure.take().map_or(Ok(()), Err)
        })?;
        gather.check(&indices, rank)?;
        Ok(measured)
    })?;
    let case = Case {
        bench: "ig",
        api: "typed",
        size: size_of::<[u64; 2]>(),
        count,
        messages: count * ranks,
        // A request that crosses has a reply that does, though maybe one of another rank's.
        crossing: 2 * crossing * session.rounds(),
        wire_bytes: requests.stats().map_or(0, |stats| stats.wire_bytes)
            + replies.stats().map_or(0, |stats| stats.wire_bytes),
    };
    session.report(&case, &reps)?;
    requests.shutdown()?;
    replies.shutdown()?;
    job.shutdown()?;
    Ok(())
}
