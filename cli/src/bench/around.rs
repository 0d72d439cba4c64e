//! One message on its way alone: around all ranks, and to and fro between a pair that is three hops
//! apart.
//!
//! Handlers pass the message on, so a lap needs nobody's application. The rank where laps begin
//! polls and holds the clock. The others poll too (`polling`), or wait in a barrier (`parked`):
//! each lap then begins after a pause in which they fall asleep, so that every arrival has to wake
//! its rank. Rates include these pauses, latencies do not.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use trihop::transport::bootstrap::Launcher;
use trihop::transport::bootstrap::local::is_bound;
use trihop::{Error as EngineError, Job, NodeId, Options, Rank, Reduce, Stream, Topology};

use super::random::Random;
use super::round::Round;
use super::row::{self, Case, Row, or_dash};
use super::seated::{self, Start, on_ranks};
use super::session::Session;
use super::{BenchArgs, Error, table, text};
use crate::output;

/// Pause before a lap with parked ranks: twice what a rank stays awake for at most.
const PAUSE: Duration = Duration::from_millis(1);

/// Laps of a round, unless `--count` says how many.
const LAPS: u64 = 1000;

/// Number of the hop and a word that follows from it; the number [`OVER`] says that all laps are
/// done.
type Traveller = [u64; 2];

const OVER: u64 = u64::MAX;

/// What ranks do while the message is elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Waiting {
    Polling,
    Parked,
}

/// Which way the message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Path {
    /// To every rank in turn.
    Around,
    /// To and fro between two ranks of which neither represents its node: three hops apart on the
    /// route three-hop:1, and two with a rail for each rank. Where relays speak for the nodes no
    /// rank represents one, and these are the first ranks of the first two nodes.
    Pair,
}

impl Path {
    /// Ranks that a lap visits, where the job has such a path.
    fn stations(self, topology: &Topology) -> Option<Vec<u32>> {
        match self {
            Self::Around => Some((0..topology.size()).collect()),
            Self::Pair if topology.nodes() > 1 => {
                let away = |node, towards| {
                    let rep = topology.representative(node, towards);
                    let speaks = |rank| !topology.has_relays() && rank == rep;
                    topology.ranks_of(node).find(|&rank| !speaks(rank))
                };
                let (here, there) = (NodeId(0), NodeId(1));
                Some(vec![away(here, there)?.0, away(there, here)?.0])
            }
            Self::Pair => None,
        }
    }
}

/// A row with what only this benchmark has. Latencies are those of one message, from sender to
/// receiver, as the time of a lap over its messages.
#[derive(Serialize)]
struct AroundRow<'a> {
    #[serde(flatten)]
    row: &'a Row,
    path: Path,
    waiting: Waiting,
    /// Laps in a round.
    laps: u64,
    /// Mean of the laps, median of the repetitions.
    latency_us: f64,
    /// Median of all laps.
    latency_p50_us: f64,
    /// 99th percentile of all laps.
    latency_p99_us: f64,
}

/// The message as one rank sees it.
struct Track {
    stations: Vec<u32>,
    laps: u64,
    waiting: Waiting,
    /// This rank's place among the stations.
    place: Option<u64>,
    ranks: u32,
    /// Number of the hop that must come here next.
    due: Cell<u64>,
    wrong: Cell<u64>,
    over: Cell<bool>,
    /// First hop of a lap that begins after a pause.
    pending: Cell<Option<u64>>,
    began: Cell<Instant>,
    /// Times of the laps of this round.
    lap_ns: RefCell<Vec<u64>>,
    failure: Cell<Option<EngineError>>,
}

impl Track {
    fn new(topology: &Topology, stations: Vec<u32>, laps: u64, waiting: Waiting) -> Self {
        let place = stations.iter().position(|&rank| rank == topology.rank().0);
        Self {
            stations,
            laps,
            waiting,
            place: place.map(|place| place as u64),
            ranks: topology.size(),
            due: Cell::new(0),
            wrong: Cell::new(0),
            over: Cell::new(false),
            pending: Cell::new(None),
            began: Cell::new(Instant::now()),
            lap_ns: RefCell::new(Vec::with_capacity(laps as usize)),
            failure: Cell::default(),
        }
    }

    fn begins(&self) -> bool {
        self.place == Some(0)
    }

    /// Before a round.
    fn reset(&self) {
        let length = self.stations.len() as u64;
        self.due.set(match self.place {
            Some(0) | None => length,
            Some(place) => place,
        });
        self.over.set(false);
        self.lap_ns.borrow_mut().clear();
    }

    /// The hop of that number: to whom, and what.
    fn hop(&self, number: u64) -> (Rank, Traveller) {
        let station = self.stations[(number % self.stations.len() as u64) as usize];
        (Rank(station), [number, Random(number).next()])
    }

    fn handle(
        &self,
        [number, word]: Traveller,
        mut send: impl FnMut(Rank, Traveller) -> Result<(), EngineError>,
    ) {
        if number == OVER {
            return self.over.set(true);
        }
        if self.place.is_none() || number != self.due.get() || word != Random(number).next() {
            self.wrong.set(self.wrong.get() + 1);
        }
        let length = self.stations.len() as u64;
        self.due.set(number + length);
        let mut sent = Ok(());
        if self.begins() {
            let now = Instant::now();
            let lap = now - self.began.replace(now);
            self.lap_ns.borrow_mut().push(lap.as_nanos() as u64);
        }
        if self.begins() && number / length == self.laps {
            self.over.set(true);
            for rank in (0..self.ranks).filter(|&rank| rank != self.stations[0]) {
                sent = sent.and(send(Rank(rank), [OVER, 0]));
            }
        } else if self.begins() && self.waiting == Waiting::Parked {
            self.pending.set(Some(number + 1));
        } else {
            let (target, traveller) = self.hop(number + 1);
            sent = send(target, traveller);
        }
        if let Err(error) = sent {
            self.failure.set(Some(error));
        }
    }

    /// One round of this rank.
    fn travel(&self, job: &Job<'_>, stream: &Stream<'_, Traveller>) -> Result<(), EngineError> {
        let polls = self.begins() || self.waiting == Waiting::Polling;
        let alone = has_core(job);
        self.pending.set(self.begins().then_some(1));
        while polls && !self.over.get() {
            if let Some(number) = self.pending.take() {
                if self.waiting == Waiting::Parked {
                    std::thread::sleep(PAUSE);
                }
                let (target, traveller) = self.hop(number);
                self.began.set(Instant::now());
                stream.push(target, traveller)?;
            }
            if !job.progress()? {
                if alone {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }
        // Those that do not poll sleep here until the first has arrived.
        job.barrier()?;
        self.failure.take().map_or(Ok(()), Err)
    }

    fn check(&self, rank: Rank) -> Result<(), Error> {
        let length = self.stations.len() as u64;
        let expected = self.place.map_or(length, |place| {
            let first = if place == 0 { length } else { place };
            first + self.laps * length
        });
        let (due, wrong) = (self.due.get(), self.wrong.get());
        if due != expected || wrong > 0 {
            let why = format!(
                "rank {rank} waits for hop {due} at the end instead of {expected}; {wrong} hops were wrong"
            );
            return Err(Error::Wrong {
                bench: "around",
                why,
            });
        }
        Ok(())
    }
}

/// Whether each rank of this machine, and each relay, can have a core of its own.
fn has_core(job: &Job<'_>) -> bool {
    let ends = match job.launcher() {
        // Its nodes are simulated.
        Launcher::Local | Launcher::Agent => job.topology().endpoints(),
        _ => job.topology().places(),
    };
    // Relays are beside those that are bound.
    let is_alone = is_bound(job.launcher()) && !job.topology().has_relays();
    is_alone || std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= ends as usize)
}

/// Runs the benchmark on the ranks of this process.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    on_ranks(args, options, |start| on_rank(args, start))
}

fn on_rank(args: &BenchArgs, start: Start) -> Result<(), Error> {
    let laps = args.count.unwrap_or(LAPS);
    let job = start.job()?;
    let session = Session::new(args, &job);
    for &path in Path::value_variants() {
        let Some(stations) = path.stations(job.topology()) else {
            continue;
        };
        for &waiting in Waiting::value_variants() {
            case(&session, path, waiting, stations.clone(), laps)?;
        }
    }
    job.shutdown()?;
    Ok(())
}

fn case(
    session: &Session<'_, Job<'_>>,
    path: Path,
    waiting: Waiting,
    stations: Vec<u32>,
    laps: u64,
) -> Result<(), Error> {
    let (args, job) = (session.args, session.job);
    let topology = job.topology();
    let length = stations.len();
    let behind = stations.iter().cycle().skip(1);
    let crossing = stations
        .iter()
        .zip(behind)
        .filter(|&(&from, &to)| from == topology.rank().0 && !topology.is_local(Rank(to)));
    let crossing = crossing.count() as u64 * laps * session.rounds();
    let track = Rc::new(Track::new(topology, stations, laps, waiting));
    let handled = Rc::clone(&track);
    let name = format!("around {} {}", text(path), text(waiting));
    let stream = job
        .stream::<Traveller>(&name)
        .handler(move |_, travellers, outbox| {
            for &traveller in travellers {
                handled.handle(traveller, |target, next| outbox.push(target, next));
            }
        })
        .open()?;
    let (mut all, mut means) = (Vec::new(), Vec::new());
    let reps = session.repeat(|meter| {
        track.reset();
        let measured = session.measure(meter, || track.travel(job, &stream))?;
        // Lest somebody is told in the next round that this one is over.
        stream.fence()?;
        track.check(job.rank())?;
        if meter.round == Round::Timed && track.begins() {
            let laps = track.lap_ns.borrow();
            means.push(laps.iter().sum::<u64>() / laps.len() as u64);
            all.extend_from_slice(&laps);
        }
        Ok(measured)
    })?;
    let mut figures = [
        percentile(&mut means, 50),
        percentile(&mut all, 50),
        percentile(&mut all, 99),
    ];
    job.allreduce(&mut figures, Reduce::Max)?;
    let [mean, p50, p99] = figures.map(|lap_ns| lap_ns as f64 / 1e3 / length as f64);
    let messages = laps * length as u64;
    let relays = stream.relays_wire_bytes();
    let case = Case {
        bench: "around",
        api: "typed",
        size: size_of::<Traveller>(),
        count: messages.div_ceil(u64::from(job.size())),
        messages,
        crossing,
        wire_bytes: seated::wire_bytes(topology, stream.stats(), relays)?,
    };
    stream.shutdown()?;
    let row = row::combine(args, job, &case, &reps)?;
    let around = AroundRow {
        row: &row,
        path,
        waiting,
        laps,
        latency_us: mean,
        latency_p50_us: p50,
        latency_p99_us: p99,
    };
    session.print(&around, |head| print(&around, head))
}

/// The value that `percent` of them do not exceed; 0 of none.
fn percentile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    let at = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(at).copied().unwrap_or(0)
}

fn print(around: &AroundRow<'_>, head: bool) -> Result<(), Error> {
    let row = around.row;
    if head {
        row::print_head(row)?;
        output::line(format_args!(
            "# a message of {} bytes alone; latency from sender to receiver: a lap over its\n\
             # messages",
            row.size
        ))?;
    }
    let cells = [
        ("Path", 8, text(around.path)),
        ("Ranks", 8, text(around.waiting)),
        ("Laps", 6, around.laps.to_string()),
        ("Mean us", 9, format!("{:.2}", around.latency_us)),
        ("p50 us", 9, format!("{:.2}", around.latency_p50_us)),
        ("p99 us", 9, format!("{:.2}", around.latency_p99_us)),
        ("CPU us", 8, format!("{:.2}", row.cpu_us_per_msg)),
        ("Wire B", 6, format!("{:.1}", row.wire_bytes_per_msg)),
        ("Sys/1e6", 8, or_dash(row.syscalls_per_1e6_msgs, 0)),
    ];
    table::print(&cells, head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(sizes: &[u32], rank: u32) -> Topology {
        Topology::from_node_sizes(sizes, Rank(rank)).unwrap()
    }

    #[test]
    fn three_hops_apart_means_that_neither_represents_its_node() {
        let stations = |sizes| Path::Pair.stations(&topology(sizes, 0));
        assert_eq!(stations(&[2, 2]), Some(vec![0, 3]));
        assert_eq!(stations(&[4, 4]), Some(vec![0, 5]));
        assert_eq!(stations(&[4]), None, "one node");
        let relayed = topology(&[1, 1], 0).with_relays(4).unwrap();
        assert_eq!(Path::Pair.stations(&relayed), Some(vec![0, 4]));
        assert_eq!(
            stations(&[1, 4]),
            None,
            "the only rank of a node represents it"
        );
        assert_eq!(
            Path::Around.stations(&topology(&[1, 2], 0)),
            Some(vec![0, 1, 2])
        );
    }

    #[test]
    fn a_message_that_skips_or_repeats_a_hop_is_found() {
        for (station, hops, fine) in [
            (1, &[1, 4, 7][..], true),
            (1, &[1, 7], false),
            (1, &[1, 4, 4, 7], false),
            (1, &[1, 4], false),
            (0, &[3, 6, 9], true),
            (0, &[3, 9], false),
        ] {
            let track = Track::new(&topology(&[3], station), vec![0, 1, 2], 3, Waiting::Polling);
            track.reset();
            for &hop in hops {
                let word = Random(hop).next();
                track.handle([hop, word], |_, _| Ok(()));
            }
            assert_eq!(
                track.check(Rank(station)).is_ok(),
                fine,
                "rank {station}: {hops:?}"
            );
            assert_eq!(track.over.get(), hops == [3, 6, 9] || hops == [3, 9]);
        }
        let track = Track::new(&topology(&[3], 1), vec![0, 1, 2], 1, Waiting::Polling);
        track.reset();
        track.handle([1, 0], |_, _| Ok(()));
        assert!(track.check(Rank(1)).is_err(), "a changed word");
    }

    #[test]
    fn percentiles() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(
            (percentile(&mut values, 50), percentile(&mut values, 99)),
            (100, 198)
        );
        assert_eq!((percentile(&mut [7], 99), percentile(&mut [], 50)), (7, 0));
    }
}
