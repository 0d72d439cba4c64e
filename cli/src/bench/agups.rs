//! Asynchronous updates: each arrival at a random table entry changes the entry and goes on to the
//! next one, ten times.
//!
//! An updater at entry e with state s leaves e and itself with `s xor table[e]`, whose low bits
//! name the next entry. Its handler sends it there; the round ends by quiescence.

use std::cell::Cell;
use std::rc::Rc;

use trihop::{Error as EngineError, Job, Options, Rank, Reduce, Topology};

use super::random::Random;
use super::row::Case;
use super::session::Session;
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
    table: Vec<Cell<u64>>,
    rank: u64,
    ranks: u64,
    /// Power of two less one.
    mask: u64,
    /// Updaters handled and sent, by the updates that they had done.
    handled: [Cell<u64>; LIFETIME],
    sent: [Cell<u64>; LIFETIME],
    /// Exclusive or of all states handled and sent.
    states_handled: Cell<u64>,
    states_sent: Cell<u64>,
    /// Which ranks are on other nodes, and updaters sent there in all rounds.
    remote: Vec<bool>,
    crossing: Cell<u64>,
    /// Updaters that came to the wrong rank or too late.
    wrong: Cell<u64>,
    failure: Cell<Option<EngineError>>,
}

fn add(cell: &Cell<u64>, value: u64) {
    cell.set(cell.get().wrapping_add(value));
}

fn mix_in(cell: &Cell<u64>, value: u64) {
    cell.set(cell.get() ^ value);
}

impl Share {
    fn new(topology: &Topology) -> Self {
        let (rank, ranks) = (u64::from(topology.rank().0), u64::from(topology.size()));
        let entries = (ENTRIES * ranks).next_power_of_two();
        let mine = entries / ranks + u64::from(rank < entries % ranks);
        Self {
            table: vec![Cell::new(0); mine as usize],
            rank,
            ranks,
            mask: entries - 1,
            handled: Default::default(),
            sent: Default::default(),
            states_handled: Cell::new(0),
            states_sent: Cell::new(0),
            remote: (0..topology.size())
                .map(|rank| !topology.is_local(Rank(rank)))
                .collect(),
            crossing: Cell::new(0),
            wrong: Cell::new(0),
            failure: Cell::default(),
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
            .for_each(|cell| cell.set(0));
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
        add(&self.sent[done as usize], 1);
        mix_in(&self.states_sent, state);
        let target = self.place(state).0;
        add(&self.crossing, u64::from(self.remote[target as usize]));
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
                add(&self.wrong, 1);
                continue;
            };
            add(&self.wrong, u64::from(owner != self.rank));
            add(handled, 1);
            mix_in(&self.states_handled, state);
            let state = state ^ entry.get();
            entry.set(state);
            if done as usize + 1 < LIFETIME {
                let (target, updater) = self.sends([state, done + 1]);
                if let Err(error) = send(target, updater) {
                    self.failure.set(Some(error));
                }
            }
        }
    }

    /// Whether every updater has done all of its updates, with the states that were sent, and the
    /// table shows it.
    fn check(&self, job: &Job<'_>, updaters: u64, parity: u64) -> Result<(), Error> {
        // Each update changes an entry t to t xor s.
        let table_is_off = self.parity() != parity ^ self.states_handled.get();
        let mut states = [self.states_handled.get() ^ self.states_sent.get()];
        job.allreduce(&mut states, Reduce::Xor)?;
        let mut counts: Vec<u64> = self
            .handled
            .iter()
            .chain(&self.sent)
            .map(Cell::get)
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

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let updaters = args.count.unwrap_or(UPDATERS);
    let job = crate::bench::start(options)?;
    let (rank, ranks) = (u64::from(job.rank().0), u64::from(job.size()));
    let share = Rc::new(Share::new(job.topology()));
    let session = Session::new(args, &job);
    let handling = Rc::clone(&share);
    let stream = job
        .stream::<Updater>("agups")
        .handler(move |_, updaters, outbox| {
            handling.handle(updaters, |target, updater| outbox.push(target, updater));
        })
        .open()?;
    let mut round = 0;
    let reps = session.repeat(|meter| {
        round += 1;
        let parity = share.begin(round);
        let mut random = Random(u64::MAX ^ (rank << 32 | round));
        let first: Vec<u64> = (0..updaters).map(|_| random.next()).collect();
        let measured = session.measure(meter, || {
            stream.extend(first.iter().map(|&state| share.sends([state, 0])))?;
            stream.fence()?;
            share.failure.take().map_or(Ok(()), Err)
        })?;
        share.check(&job, updaters, parity)?;
        Ok(measured)
    })?;
    let case = Case {
        bench: "agups",
        api: "typed",
        size: size_of::<Updater>(),
        count: updaters * LIFETIME as u64,
        messages: updaters * LIFETIME as u64 * ranks,
        crossing: share.crossing.get(),
        wire_bytes: stream.stats().map_or(0, |stats| stats.wire_bytes),
    };
    session.report(&case, &reps)?;
    stream.shutdown()?;
    job.shutdown()?;
    Ok(())
}
