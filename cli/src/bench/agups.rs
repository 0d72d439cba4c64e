//! Asynchronous updates: each arrival at a random table entry changes the entry and goes on to the
//! next one, ten times.
//!
//! An updater at entry e with state s leaves e and itself with `s xor table[e]`, whose low bits
//! name the next entry. Its handler sends it there; the round ends by quiescence.

use std::sync::Arc;

use trihop::over::{Job, Stream};
use trihop::{Error as EngineError, Options, Rank, Reduce, Topology};

use super::random::Random;
use super::row::Case;
use super::seated::{self, on_any_seat};
use super::session::{Session, Team};
use super::shared::{Failure, Word};
use super::{BenchArgs, Error};

/// Updates of one updater.
const LIFETIME: usize = 10;

/// Updaters that each rank starts, unless `--count` says how many.
const UPDATERS: u64 = 200_000;

/// Entries of all tables together per rank, rounded up to a power of two for all.
const ENTRIES: u64 = 1 << 20;

/// An updater on its way: its state, and how many updates it has done.
type Updater = [u64; 2];

/// The part of all tables that a rank has, and what it has seen and sent in a round.
struct Share {
    table: Vec<Word>,
    rank: u64,
    ranks: u64,
    /// Power of two less one.
    mask: u64,
    /// Updaters handled and sent, by the updates that they had done.
    handled: [Word; LIFETIME],
    sent: [Word; LIFETIME],
    /// Exclusive or of all states handled and sent.
    states_handled: Word,
    states_sent: Word,
    /// Which ranks are on other nodes, and updaters sent there in all rounds.
    remote: Vec<bool>,
    crossing: Word,
    /// Updaters that came to the wrong rank or too late.
    wrong: Word,
    failure: Failure,
}

impl Share {
    fn new(topology: &Topology) -> Self {
        let (rank, ranks) = (u64::from(topology.rank().0), u64::from(topology.size()));
        let entries = (ENTRIES * ranks).next_power_of_two();
        let mine = entries / ranks + u64::from(rank < entries % ranks);
        Self {
            table: Word::zeros(mine),
            rank,
            ranks,
            mask: entries - 1,
            handled: Default::default(),
            sent: Default::default(),
            states_handled: Word::default(),
            states_sent: Word::default(),
            remote: (0..topology.size())
                .map(|rank| !topology.is_local(Rank(rank)))
                .collect(),
            crossing: Word::default(),
            wrong: Word::default(),
            failure: Failure::default(),
        }
    }

    /// Rank and number there of the entry that a state names.
    #[inline]
    fn place(&self, state: u64) -> (u64, u64) {
        let entry = state & self.mask;
        (entry % self.ranks, entry / self.ranks)
    }

    /// Fills the table; returns the exclusive or of its entries.
    fn begin(&self, round: u64) -> u64 {
        let mut random = Random(self.rank << 32 | round);
        self.table.iter().for_each(|entry| entry.set(random.next()));
        self.handled
            .iter()
            .chain(&self.sent)
            .for_each(|count| count.set(0));
        self.states_handled.set(0);
        self.states_sent.set(0);
        self.parity()
    }

    fn parity(&self) -> u64 {
        self.table.iter().fold(0, |all, entry| all ^ entry.get())
    }

    /// Notes that an updater is sent, and says where to.
    #[inline]
    fn sends(&self, [state, done]: Updater) -> (Rank, Updater) {
        self.sent[done as usize].add(1);
        self.states_sent.mix_in(state);
        let target = self.place(state).0;
        self.crossing.add(u64::from(self.remote[target as usize]));
        (Rank(target as u32), [state, done])
    }

    /// Lets updaters do their update and go on.
    fn handle(
        &self,
        updaters: &[Updater],
        mut send: impl FnMut(Rank, Updater) -> Result<(), EngineError>,
    ) {
        // The entries are far apart in memory: looked at together first, they do not wait for each
        // other.
        let entries = updaters
            .iter()
            .map(|&[state, _]| self.place(state).1 as usize);
        let looked_at = entries.filter_map(|local| self.table.get(local));
        std::hint::black_box(looked_at.fold(0, |all, entry| all ^ entry.get()));
        for &[state, done] in updaters {
            let (owner, local) = self.place(state);
            let (Some(handled), Some(entry)) = (
                self.handled.get(done as usize),
                self.table.get(local as usize),
            ) else {
                self.wrong.add(1);
                continue;
            };
            self.wrong.add(u64::from(owner != self.rank));
            handled.add(1);
            self.states_handled.mix_in(state);
            let state = state ^ entry.get();
            entry.set(state);
            if done as usize + 1 < LIFETIME {
                let (target, updater) = self.sends([state, done + 1]);
                self.failure.note(send(target, updater));
            }
        }
    }

    /// Whether every updater has done all of its updates, with the states that were sent, and the
    /// table shows it.
    fn check(&self, job: &impl Team, updaters: u64, parity: u64) -> Result<(), Error> {
        // Each update changes an entry t to t xor s.
        let table_is_off = self.parity() != parity ^ self.states_handled.get();
        let mut states = [self.states_handled.get() ^ self.states_sent.get()];
        job.allreduce(&mut states, Reduce::Xor)?;
        let mut counts: Vec<u64> = self
            .handled
            .iter()
            .chain(&self.sent)
            .map(Word::get)
            .collect();
        counts.extend([self.wrong.get(), u64::from(table_is_off)]);
        job.allreduce(&mut counts, Reduce::Sum)?;
        let (counts, off) = counts.split_at(2 * LIFETIME);
        if counts.iter().any(|&count| count != updaters * self.ranks)
            || *off != [0, 0]
            || states != [0]
        {
            let why = format!(
                "expected {} updaters at each age, handled and sent {counts:?}; {} astray, {} tables off, \
                 states that were sent and not handled xor to {:#x}",
                updaters * self.ranks,
                off[0],
                off[1],
                states[0]
            );
            return Err(Error::Wrong {
                bench: "agups",
                why,
            });
        }
        Ok(())
    }
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    on_any_seat!(args, options, |job| {
        let share = Arc::new(Share::new(job.topology()));
        let handling = Arc::clone(&share);
        let stream = job
            .stream::<Updater>("agups")
            .handler(move |_, updaters, outbox| {
                handling.handle(updaters, |target, updater| outbox.push(target, updater));
            })
            .open()?;
        case(&Session::new(args, &job), &share, &stream)?;
        stream.shutdown()
    })
}

fn case<S: trihop::Seat>(
    session: &Session<'_, Job<S>>,
    share: &Share,
    stream: &Stream<Updater, S>,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    let updaters = session.args.count.unwrap_or(UPDATERS);
    let (rank, ranks) = (share.rank, share.ranks);
    let mut round = 0;
    let reps = session.repeat(|meter| {
        round += 1;
        let parity = share.begin(round);
        let mut random = Random(u64::MAX ^ (rank << 32 | round));
        // Counted as sent before any handler runs: then these count, maybe on another thread.
        let first = (0..updaters).map(|_| share.sends([random.next(), 0]));
        let first: Vec<(Rank, Updater)> = first.collect();
        let measured = session.measure(meter, || {
            stream.extend(first.iter().copied())?;
            stream.fence()?;
            share.failure.take()
        })?;
        share.check(session.job, updaters, parity)?;
        Ok(measured)
    })?;
    let relays = stream.relays_wire_bytes();
    let case = Case {
        bench: "agups",
        api: "typed",
        size: size_of::<Updater>(),
        count: updaters * LIFETIME as u64,
        messages: updaters * LIFETIME as u64 * ranks,
        crossing: share.crossing.get(),
        wire_bytes: seated::wire_bytes(session.job.topology(), stream.stats(), relays)?,
    };
    session.report(&case, &reps)
}
