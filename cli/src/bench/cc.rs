//! Connected components by label propagation on an R-MAT graph: handlers send on their own stream.
//!
//! Vertex v belongs to rank v mod ranks, and its label begins as its own number. A handler that
//! hears of a smaller label for a vertex takes it and tells all neighbours, so that one message may
//! become thousands. A fence ends the round: then every label is the smallest vertex of its
//! component.

#![allow(
    clippy::disallowed_types,
    reason = "atomics come from `transport::sync`, as they should"
)]

mod graph;

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use trihop::transport::sync::{AtomicU32, AtomicU64, Ordering};
use trihop::{Error as EngineError, Options, Rank, Reduce, Topology};

use self::graph::{Neighbour, Part};
use super::round::{Reps, Round};
use super::row::{self, Case, Row};
use super::seated::{self, Start, on_ranks};
use super::session::{Session, Team};
use super::{BenchArgs, Error, Seat};

/// Vertices of the graph, unless `--count` says how many.
const VERTICES: u64 = 1 << 16;

/// Most vertices: their numbers have 32 bits.
pub(super) const MOST_VERTICES: u64 = 1 << 32;

/// A label on its way: the vertex's number at its rank in the upper half, the label in the lower
/// one.
type Label = u64;

/// A label for each of these vertices, and where it goes.
fn news(neighbours: &[Neighbour], label: u32) -> impl Iterator<Item = (Rank, Label)> + '_ {
    let label = u64::from(label);
    let told = move |&(rank, place): &Neighbour| (Rank(rank), u64::from(place) << 32 | label);
    neighbours.iter().map(told)
}

/// What a rank knows of its vertices, and what it has heard and sent in a round.
///
/// Written by the one thread that handlers run on and, while nothing is under way, by the one that
/// measures: barriers and fences order these, so relaxed. Only `sent` is written by both at once.
struct Share {
    part: Part,
    labels: Vec<AtomicU32>,
    heard: AtomicU64,
    sent: AtomicU64,
    /// Labels for vertices that this rank does not have.
    wrong: AtomicU64,
    /// Which ranks are on other nodes, and labels sent there in all rounds.
    remote: Vec<bool>,
    crossing: AtomicU64,
    failure: OnceLock<EngineError>,
}

impl Share {
    fn new(vertices: u64, topology: &Topology) -> Self {
        let part = Part::of(vertices, topology.rank().0, topology.size());
        let zero = |_| AtomicU32::new(0);
        let is_remote = |rank| !topology.is_local(Rank(rank));
        Self {
            labels: (0..part.vertices()).map(zero).collect(),
            part,
            heard: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            remote: (0..topology.size()).map(is_remote).collect(),
            crossing: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Every vertex has its own number for a label again.
    fn begin(&self) {
        for (label, vertex) in self.labels.iter().zip(self.part.numbers()) {
            label.store(vertex, Ordering::Relaxed);
        }
        for count in [&self.heard, &self.sent, &self.wrong] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Whom a vertex tells its label, which counts as sent.
    fn told(&self, place: usize) -> &[Neighbour] {
        let neighbours = self.part.neighbours(place);
        self.sent
            .fetch_add(neighbours.len() as u64, Ordering::Relaxed);
        let crossing = neighbours
            .iter()
            .filter(|&&(rank, _)| self.remote[rank as usize]);
        self.crossing
            .fetch_add(crossing.count() as u64, Ordering::Relaxed);
        neighbours
    }

    /// What is sent at the beginning: every vertex's number to all of its neighbours.
    fn first_news(&self) -> impl Iterator<Item = (Rank, Label)> + '_ {
        let own = self.part.numbers().enumerate();
        own.flat_map(|(place, vertex)| news(self.told(place), vertex))
    }

    /// Takes labels in; those that are smaller go on to all neighbours by `tell`.
    fn hear(
        &self,
        labels: impl ExactSizeIterator<Item = Label>,
        mut tell: impl FnMut(&[Neighbour], u32) -> Result<(), EngineError>,
    ) {
        self.heard.fetch_add(labels.len() as u64, Ordering::Relaxed);
        for word in labels {
            let (place, label) = ((word >> 32) as usize, word as u32);
            let Some(known) = self.labels.get(place) else {
                self.wrong.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            if label >= known.load(Ordering::Relaxed) {
                continue;
            }
            known.store(label, Ordering::Relaxed);
            if let Err(error) = tell(self.told(place), label) {
                // The first one says why; the round ends by it.
                self.failure.get_or_init(|| error);
            }
        }
    }

    /// Whether every label is what the sequential run says, and every label that was sent has been
    /// heard. Returns how many were sent.
    fn check(&self, job: &impl Team) -> Result<u64, Error> {
        if let Some(error) = self.failure.get() {
            let why = format!("rank {}: a handler's send failed: {error}", job.rank());
            return Err(Error::Wrong { bench: "cc", why });
        }
        let pairs = self.labels.iter().zip(self.part.expected());
        let unlike = pairs.filter(|(label, expected)| label.load(Ordering::Relaxed) != **expected);
        let mut sums = [
            unlike.count() as u64,
            self.wrong.load(Ordering::Relaxed),
            self.sent.load(Ordering::Relaxed),
            self.heard.load(Ordering::Relaxed),
        ];
        job.allreduce(&mut sums, Reduce::Sum)?;
        let [unlike, wrong, sent, heard] = sums;
        if unlike > 0 || wrong > 0 || sent != heard {
            let why = format!(
                "{unlike} of {} vertices have another label than the sequential run gave them, {wrong} labels were \
                 for vertices that do not exist; {sent} labels were sent, {heard} heard",
                self.part.all()
            );
            return Err(Error::Wrong { bench: "cc", why });
        }
        Ok(sent)
    }
}

/// A row with what only this benchmark has.
#[derive(Serialize)]
struct CcRow<'a> {
    #[serde(flatten)]
    row: &'a Row,
    /// Vertices and edges of the graph, and how many components it has.
    vertices: u64,
    edges: u64,
    components: u64,
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    match args.seat {
        Seat::Inline | Seat::Minirank | Seat::Agent => {
            on_ranks(args, options, |start| inline(args, start))
        }
        Seat::Threaded => in_threads(args, options),
    }
}

fn inline(args: &BenchArgs, start: Start) -> Result<(), Error> {
    let job = start.job()?;
    let session = Session::new(args, &job);
    let share = Rc::new(Share::new(args.count.unwrap_or(VERTICES), job.topology()));
    let handling = Rc::clone(&share);
    let stream = job
        .stream::<Label>("cc")
        .handler(move |_, labels, outbox| {
            handling.hear(labels.iter().copied(), |neighbours, label| {
                outbox.extend(news(neighbours, label))
            });
        })
        .open()?;
    let (reps, labels) = repeat(&session, &share, || {
        stream.extend(share.first_news())?;
        stream.fence()
    })?;
    let relays = stream.relays_wire_bytes();
    let wire_bytes = seated::wire_bytes(job.topology(), stream.stats(), relays)?;
    report(&session, &share, &reps, labels, wire_bytes)?;
    stream.shutdown()?;
    Ok(job.shutdown()?)
}

fn in_threads(args: &BenchArgs, options: Options) -> Result<(), Error> {
    let job = seated::in_threads(options)?;
    let session = Session::new(args, &job);
    let share = Arc::new(Share::new(args.count.unwrap_or(VERTICES), job.topology()));
    let handling = Arc::clone(&share);
    let stream = job
        .stream::<Label>("cc")
        .handler(move |_, labels, stream| {
            handling.hear(labels.iter().copied(), |neighbours, label| {
                stream.extend(news(neighbours, label))
            });
        })
        .open()?;
    let (reps, labels) = repeat(&session, &share, || {
        stream.extend(share.first_news())?;
        stream.fence()
    })?;
    let relays = stream.relays_wire_bytes();
    let wire_bytes = seated::wire_bytes(job.topology(), stream.stats(), relays)?;
    report(&session, &share, &reps, labels, wire_bytes)?;
    stream.shutdown()?;
    Ok(job.shutdown()?)
}

/// All rounds, and the labels that were sent in a timed one, on average.
fn repeat(
    session: &Session<'_, impl Team>,
    share: &Share,
    mut work: impl FnMut() -> Result<(), EngineError>,
) -> Result<(Reps, u64), Error> {
    let mut timed = Vec::new();
    let reps = session.repeat(|meter| {
        share.begin();
        let measured = session.measure(meter, &mut work)?;
        let sent = share.check(session.job)?;
        timed.extend((meter.round == Round::Timed).then_some(sent));
        Ok(measured)
    })?;
    Ok((reps, timed.iter().sum::<u64>() / timed.len().max(1) as u64))
}

fn report(
    session: &Session<'_, impl Team>,
    share: &Share,
    reps: &Reps,
    labels: u64,
    wire_bytes: u64,
) -> Result<(), Error> {
    let (args, job) = (session.args, session.job);
    let case = Case {
        bench: "cc",
        api: "typed",
        size: size_of::<Label>(),
        count: labels / u64::from(job.topology().size()),
        messages: labels,
        crossing: share.crossing.load(Ordering::Relaxed),
        wire_bytes,
    };
    let row = row::combine(args, job, &case, reps)?;
    let cc = CcRow {
        row: &row,
        vertices: share.part.all(),
        edges: share.part.edges(),
        components: share.part.components(),
    };
    session.print(&cc, |head| row::print_line(&row, &row.seat, head))
}
