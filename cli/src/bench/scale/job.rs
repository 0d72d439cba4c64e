//! One simulated job, measured.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use trihop::route::{JobRoute, RouteName};
use trihop::simulation::{Simulation, SimulationError, SimulationOptions};
use trihop::transport::fabric::quirks::Quirk;
use trihop::transport::sim::{Rules, SimOptions};
use trihop::{Rank, StreamOptions, Topology};

use super::super::Error;
use super::stream_options;
use super::traffic::Ledger;

/// What a job sends.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// So many messages from each rank to random ranks.
    Each(u32),
    /// So many messages from each rank to each.
    Pairs(u32),
    /// So many messages together, from random ranks to random ranks.
    Together(u64),
}

/// What carries a job, and how its messages go.
#[derive(Debug, Clone)]
pub struct Fabric {
    pub route: RouteName,
    pub provider: Option<&'static Quirk>,
    pub streams: u16,
}

/// Messages that a rank sends before another has a turn.
const BURST: u32 = 32;

/// What the engines counted, over all ranks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Lanes and links that runs passed, over all runs.
    pub passages: u64,
    pub runs: u64,
    pub batches: u64,
    pub controls: u64,
    pub wire_bytes: u64,
}

impl Counts {
    fn of(job: &mut Simulation<'_>) -> Result<Self, Error> {
        let mut counts = Self::default();
        for stream in 0..job.streams() {
            job.use_stream(stream)?;
            for rank in (0..job.topology().size()).map(Rank) {
                let stats = job.stats(rank);
                counts.passages += stats.origin_frames + stats.remote_frames + stats.relay_frames;
                counts.runs += stats.runs_delivered;
                counts.batches += stats.batches_sent;
                counts.controls += stats.controls_sent;
                counts.wire_bytes += stats.wire_bytes;
            }
        }
        Ok(counts)
    }

    fn since(self, before: &Self) -> Self {
        Self {
            passages: self.passages - before.passages,
            runs: self.runs - before.runs,
            batches: self.batches - before.batches,
            controls: self.controls - before.controls,
            wire_bytes: self.wire_bytes - before.wire_bytes,
        }
    }

    fn add(&mut self, other: &Self) {
        self.passages += other.passages;
        self.runs += other.runs;
        self.batches += other.batches;
        self.controls += other.controls;
        self.wire_bytes += other.wire_bytes;
    }
}

/// What a rank, as a representative, has done: runs that it passed on and their bytes, batches that
/// it sealed, and bytes that it handed to the fabric, of all streams.
type Load = [u64; 4];

/// A number of all ranks: their sum, and the most that one has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Most {
    pub total: u64,
    pub most: u64,
}

/// How the work of representatives lies on the ranks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loads {
    pub relayed_runs: Most,
    pub relayed_bytes: Most,
    pub batches: Most,
    pub wire_bytes: Most,
}

impl Loads {
    fn of_each(job: &mut Simulation<'_>) -> Result<Vec<Load>, Error> {
        let mut loads = vec![Load::default(); job.topology().size() as usize];
        for stream in 0..job.streams() {
            job.use_stream(stream)?;
            for (rank, load) in (0..).map(Rank).zip(&mut loads) {
                let stats = job.stats(rank);
                let of_stream = [
                    stats.runs_to_fabric + stats.runs_from_fabric,
                    stats.forwarded_bytes,
                    stats.batches_sent,
                    stats.wire_bytes,
                ];
                for (sum, number) in load.iter_mut().zip(of_stream) {
                    *sum += number;
                }
            }
        }
        Ok(loads)
    }

    /// Since `before`.
    fn since(loads: &[Load], before: &[Load]) -> Self {
        let most = |at: usize| {
            let grown = loads.iter().zip(before).map(|(now, was)| now[at] - was[at]);
            Most {
                total: grown.clone().sum(),
                most: grown.max().unwrap_or(0),
            }
        };
        Self {
            relayed_runs: most(0),
            relayed_bytes: most(1),
            batches: most(2),
            wire_bytes: most(3),
        }
    }
}

/// What a job did and took; sums where jobs were added.
#[derive(Debug, Clone)]
pub struct Measured {
    pub topology: Topology,
    /// Jobs that this is the sum of.
    pub jobs: u64,
    pub messages: u64,
    /// Messages between nodes.
    pub crossing: u64,
    pub links: LinksOfAll,
    pub counts: Counts,
    /// Of the first job where several were added.
    pub loads: Loads,
    /// Rounds of progress until all was delivered.
    pub rounds: u64,
    pub fence_rounds: u32,
    pub build: Phase,
    pub traffic: Phase,
    pub fence: Phase,
    /// A round in which nobody sends: what its marks cost; of at most [`ROUND_RANKS`].
    pub round: Option<Phase>,
    pub memory: Memory,
    /// Largest bound that a rank has of the stream, and of the job's own stream.
    pub bound_bytes: (usize, usize),
}

/// Time that a part of a run took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phase {
    pub seconds: f64,
    pub cpu_seconds: f64,
}

/// Growth of this process's memory while a job ran, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    pub resident: u64,
    pub page_tables: u64,
}

impl Memory {
    /// Of this process now.
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            let kib = line.and_then(|l| l.trim_end_matches("kB").trim().parse::<u64>().ok());
            kib.unwrap_or(0) * 1024
        };
        Self {
            resident: bytes("VmRSS:"),
            page_tables: bytes("VmPTE:"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            resident: self.resident.saturating_sub(before.resident),
            page_tables: self.page_tables.saturating_sub(before.page_tables),
        }
    }
}

struct Clock {
    start: Instant,
    cpu_ns: u64,
}

impl Clock {
    fn start() -> Self {
        Self {
            start: Instant::now(),
            cpu_ns: cpu_ns(),
        }
    }

    fn stop(self) -> Phase {
        Phase {
            seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: (cpu_ns() - self.cpu_ns) as f64 / 1e9,
        }
    }
}

fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Longest message that asks for a slot: providers keep it where no receive is posted.
const CONTROL_BYTES: usize = 128;

/// The links of a job's route.
#[derive(Debug, Clone, Copy)]
pub struct LinksOfAll {
    /// Of all ranks, each one way.
    pub total: u64,
    /// The most that a rank has.
    pub most: u32,
}

impl LinksOfAll {
    /// Of a route in a job of this shape.
    pub fn of(topology: &Topology, route: RouteName) -> Result<Self, Error> {
        let mut all = Self { total: 0, most: 0 };
        for rank in (0..topology.size()).map(Rank) {
            let links = JobRoute::new(route, &topology.seen_from(rank)?)?.links();
            all.total += u64::from(links);
            all.most = all.most.max(links);
        }
        Ok(all)
    }
}

fn failed(error: SimulationError) -> Error {
    match error {
        SimulationError::Engine(error) => Error::Library(error),
        other => Error::Wrong {
            bench: "scale",
            why: other.to_string(),
        },
    }
}

/// A job that is warm: everything that it will send was sent once.
pub struct WarmJob {
    job: Simulation<'static>,
    ledger: Rc<RefCell<Ledger>>,
    work: Work,
    links: LinksOfAll,
    build: Phase,
    before: Memory,
}

/// Ranks up to which a round is measured too: it has a mark on every edge, used or not, and so
/// touches memory of all lanes in this one process, several times what messages do.
pub const ROUND_RANKS: u32 = 100_000;

impl WarmJob {
    /// Builds the job; sends, and waits until all is delivered: what is touched for the first time
    /// is paid for here, as in the warm-up of every other benchmark.
    pub fn build(
        topology: &Topology,
        fabric: &Fabric,
        work: Work,
        seed: u64,
    ) -> Result<Self, Error> {
        let before = Memory::now();
        let links = LinksOfAll::of(topology, fabric.route)?;
        let ledger = Rc::new(RefCell::new(Ledger::new(topology.size(), seed)));
        let clock = Clock::start();
        let mut job = simulation(topology, fabric, seed, Rc::clone(&ledger))?;
        // All ranks are awake at first, and find nothing to do.
        job.settle().map_err(failed)?;
        let build = clock.stop();
        send(&mut job, &ledger, work, 0)?;
        job.settle().map_err(failed)?;
        Ok(Self {
            job,
            ledger,
            work,
            links,
            build,
            before,
        })
    }

    /// Sends and waits until all is delivered, by the clock; fences, checks.
    pub fn measure(mut self) -> Result<Measured, Error> {
        let job = &mut self.job;
        let (warm, rounds_before) = (Counts::of(job)?, job.rounds());
        let loads_before = Loads::of_each(job)?;
        let clock = Clock::start();
        let (messages, crossing) = send(job, &self.ledger, self.work, 1)?;
        job.settle().map_err(failed)?;
        let (traffic, rounds) = (clock.stop(), job.rounds() - rounds_before);
        let clock = Clock::start();
        let mut fence_rounds = 0;
        for stream in 0..job.streams() {
            job.use_stream(stream)?;
            fence_rounds = job.fence().map_err(failed)?;
        }
        let fence = clock.stop();
        let memory = Memory::now().since(self.before);
        let all = Counts::of(job)?;
        let loads = Loads::since(&Loads::of_each(job)?, &loads_before);
        let mut round = None;
        if job.topology().size() <= ROUND_RANKS {
            let clock = Clock::start();
            for stream in 0..job.streams() {
                job.use_stream(stream)?;
                job.round_of_all().map_err(failed)?;
            }
            round = Some(clock.stop());
        }
        self.ledger.borrow().check()?;
        let bounds = (0..job.topology().size()).map(|rank| job.bound(Rank(rank)));
        let largest = |(a, b): (usize, usize), (c, d)| (a.max(c), b.max(d));
        Ok(Measured {
            topology: job.topology().clone(),
            jobs: 1,
            messages,
            crossing,
            links: self.links,
            counts: all.since(&warm),
            loads,
            rounds,
            fence_rounds,
            build: self.build,
            traffic,
            fence,
            round,
            memory,
            bound_bytes: bounds.fold((0, 0), largest),
        })
    }
}

fn simulation(
    topology: &Topology,
    fabric: &Fabric,
    seed: u64,
    ledger: Rc<RefCell<Ledger>>,
) -> Result<Simulation<'static>, Error> {
    let network = fabric.provider.map(SimOptions::of_provider);
    let network = network.unwrap_or_default();
    let options = SimulationOptions {
        network: SimOptions {
            seed,
            max_delay: 2,
            refuse_one_in: 0,
            bytes_per_tick: 0,
            bytes_per_message: 0,
            kept_bytes: CONTROL_BYTES,
            limits: network.limits,
            // Nobody waits, and ranks are more than a process has descriptors.
            rules: Rules {
                wait_descriptor: false,
                ..network.rules
            },
            refuses_areas: false,
        },
        stream: StreamOptions {
            route: fabric.route,
            ..stream_options()
        },
        streams: fabric.streams,
        item_bytes: 8,
        ..SimulationOptions::default()
    };
    Simulation::new(topology, options, move |here, message, _| {
        ledger
            .borrow_mut()
            .came(message.source, here, message.bytes);
    })
    .map_err(failed)
}

/// Sends everything, other items in each round; returns how many messages, and how many of them
/// between nodes.
fn send(
    job: &mut Simulation<'_>,
    ledger: &RefCell<Ledger>,
    work: Work,
    round: u32,
) -> Result<(u64, u64), Error> {
    let topology = job.topology().clone();
    let ranks = topology.size();
    let mut crossing = 0;
    let streams = job.streams();
    let mut one = |source: Rank, number: u32, target: Rank| {
        let item = ledger
            .borrow()
            .next(source, target, number.wrapping_add(round << 15));
        loop {
            // What one rank sends another keeps its order on one stream.
            let stream = (source.0.wrapping_add(target.0) % u32::from(streams)) as u16;
            match job.try_send_on(stream, source, target, 0, &item.to_le_bytes()) {
                Ok(()) => break,
                Err(trihop::Error::WouldBlock) => {
                    if !job.step().map_err(failed)? {
                        let why = format!(
                            "rank {source} has no room and everyone sleeps:\n{}",
                            job.dump(source)
                        );
                        return Err(Error::Wrong {
                            bench: "scale",
                            why,
                        });
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        ledger.borrow_mut().sent(source, target, item);
        crossing += u64::from(topology.node_of(source) != topology.node_of(target));
        Ok(())
    };
    let each = match work {
        Work::Each(each) => each,
        Work::Pairs(each) => each * ranks,
        Work::Together(total) => {
            for number in 0..total as u32 {
                let source = ledger.borrow().target(Rank(u32::MAX), number);
                let target = ledger.borrow().target(source, number);
                one(source, number, target)?;
            }
            return Ok((total, crossing));
        }
    };
    for first in (0..each).step_by(BURST as usize) {
        for source in (0..ranks).map(Rank) {
            for number in first..each.min(first + BURST) {
                let target = match work {
                    Work::Pairs(_) => Rank((source.0 + number) % ranks),
                    _ => ledger.borrow().target(source, number),
                };
                one(source, number, target)?;
            }
        }
    }
    Ok((u64::from(each) * u64::from(ranks), crossing))
}

impl Measured {
    /// Messages that crossed a one-way link on average.
    pub fn messages_per_link(&self) -> f64 {
        self.crossing as f64 / (self.jobs * self.links.total) as f64
    }

    /// User and system time per message until all was delivered, in microseconds.
    pub fn cpu_us_per_message(&self) -> f64 {
        self.traffic.cpu_seconds * 1e6 / self.messages as f64
    }

    /// Adds another job of the same shape.
    pub fn add(&mut self, other: &Self) {
        self.jobs += 1;
        self.messages += other.messages;
        self.crossing += other.crossing;
        self.counts.add(&other.counts);
        self.rounds += other.rounds;
        for (mine, theirs) in [
            (&mut self.build, other.build),
            (&mut self.traffic, other.traffic),
            (&mut self.fence, other.fence),
        ]
        .into_iter()
        .chain(self.round.as_mut().zip(other.round))
        {
            mine.seconds += theirs.seconds;
            mine.cpu_seconds += theirs.cpu_seconds;
        }
    }
}
