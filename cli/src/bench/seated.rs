//! Ranks that are processes, or threads of processes: a benchmark runs on each of them alike.

use trihop::minirank::{self, MiniRank};
use trihop::{DumpOutput, Job, Options, Stats, Topology, threaded};

use super::a2a::Api;
use super::{BenchArgs, Error, Name, Seat, text};

/// What a rank starts its job with.
pub(crate) enum Start {
    /// It is this process.
    Process(Box<Options>),
    /// It is one of its threads.
    Thread(Box<MiniRank>),
}

impl Start {
    /// Joins the job that this process was started in; SIGUSR1 then shows its queues.
    ///
    /// # Errors
    /// The library's.
    pub fn job<'h>(self) -> Result<Job<'h>, Error> {
        let job = match self {
            Self::Process(options) => Job::start(*options)?,
            Self::Thread(mini) => mini.start()?,
        };
        job.dump_on(libc::SIGUSR1, DumpOutput::Stderr)?;
        Ok(job)
    }
}

/// As [`Start::job`], for a process that is a rank with threads.
///
/// # Errors
/// The library's.
pub(crate) fn in_threads(options: Options) -> Result<threaded::Job, Error> {
    let job = threaded::Job::start(options)?;
    job.dump_on(libc::SIGUSR1, DumpOutput::Stderr)?;
    Ok(job)
}

/// Runs `rank` for each rank of this process.
///
/// # Errors
/// Those of the first rank that has any.
pub(crate) fn on_ranks(
    args: &BenchArgs,
    options: Options,
    rank: impl Fn(Start) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    match args.seat {
        Seat::Minirank => {
            let minis = args.minis_per_rank.unwrap_or(1);
            let outcomes =
                minirank::run(options, minis, |mini| rank(Start::Thread(Box::new(mini))))?;
            outcomes.into_iter().collect()
        }
        _ => rank(Start::Process(Box::new(options))),
    }
}

/// Runs the same words with the job of each rank of this process, on any seat: written once,
/// compiled twice, since jobs, and what handlers send on, are of two types.
macro_rules! on_any_seat {
    ($args:expr, $options:expr, |$job:ident| $rank:expr) => {
        match $args.seat {
            $crate::bench::Seat::Threaded => {
                let $job = $crate::bench::seated::in_threads($options)?;
                $rank?;
                Ok($job.shutdown()?)
            }
            _ => $crate::bench::seated::on_ranks($args, $options, |start| {
                let $job = start.job()?;
                $rank?;
                Ok($job.shutdown()?)
            }),
        }
    };
}
pub(crate) use on_any_seat;

/// Bytes of a stream that were handed to the fabric for this rank: its own, or, for the first of
/// those that have one relay, the relay's.
///
/// # Errors
/// The library's.
pub(crate) fn wire_bytes(
    topology: &Topology,
    own: Option<Stats>,
    relays: Result<u64, trihop::Error>,
) -> Result<u64, Error> {
    let first = topology.first_of_process(topology.process());
    let relays = match topology.rank() == first {
        true => relays?,
        false => relays.map(|_| 0)?,
    };
    Ok(own.map_or(0, |stats| stats.wire_bytes) + relays)
}

const EVERY: [Seat; 4] = [Seat::Inline, Seat::Threaded, Seat::Minirank, Seat::Agent];

/// The seats that a benchmark can be measured on.
fn seats(name: Name, apis: &[Api]) -> &'static [Seat] {
    match name {
        Name::Push if *apis != [Api::C] => &[Seat::Inline, Seat::Minirank, Seat::Agent],
        Name::A2a | Name::Around | Name::Startup => &[Seat::Inline, Seat::Minirank, Seat::Agent],
        Name::Ring => &[Seat::Inline, Seat::Minirank],
        Name::P2p | Name::Scale => &[Seat::Inline],
        // Its rank has an agent anyway: so it is with that seat, and without saying one.
        Name::Attach => &[Seat::Inline, Seat::Agent],
        Name::Histo | Name::Skew | Name::Ig | Name::Agups | Name::Exchange => &EVERY,
        Name::Cc | Name::Channel | Name::Round | Name::Push => &EVERY,
    }
}

/// Refuses a seat that the benchmark does not have, or not with these options.
pub(super) fn check(name: Name, args: &BenchArgs) -> Result<(), Error> {
    if args.seat != Seat::Minirank && args.minis_per_rank.is_some() {
        let why = "--minis-per-rank is for --seat minirank";
        return Err(Error::Shape(why.to_owned()));
    }
    let seat = text(args.seat);
    let seats = seats(name, &args.api);
    if !seats.contains(&args.seat) {
        let instead = match (name, args.seat) {
            (Name::A2a, Seat::Threaded) => "; --api threaded is in its place".to_owned(),
            (Name::Push, Seat::Threaded) => "; `push --api c` has".to_owned(),
            (Name::Attach, _) => "; its rank always has an agent".to_owned(),
            _ => {
                let all: Vec<String> = seats.iter().map(|&seat| text(seat)).collect();
                format!("; it has {}", all.join(", "))
            }
        };
        return Err(Error::Shape(format!(
            "{} has no --seat {seat}{instead}",
            text(name)
        )));
    }
    let is_mini = args.seat == Seat::Minirank;
    if name == Name::Ring && is_mini && args.size.iter().any(|&size| size != 8) {
        let why = "ring --seat minirank has items of 8 bytes";
        return Err(Error::Shape(why.to_owned()));
    }
    let is_possible = |api: &Api| match api {
        Api::Deltafs => args.seat == Seat::Inline,
        Api::Threaded => !is_mini,
        _ => true,
    };
    match args.api.iter().find(|api| !is_possible(api)) {
        Some(&api) => Err(Error::Shape(format!(
            "--seat {seat} has no --api {}",
            text(api)
        ))),
        None => Ok(()),
    }
}

/// Ranks of each process, where so many ranks are on so many nodes.
pub(super) fn minis(asked: Option<u32>, (ranks, nodes): (u32, u32)) -> Result<u32, Error> {
    let minis = asked.unwrap_or((ranks / nodes).clamp(1, minirank::MOST_RANKS));
    match ranks.is_multiple_of(minis) {
        true => Ok(minis),
        false => Err(Error::Shape(format!(
            "{ranks} ranks make no whole number of processes with {minis} ranks each; see --minis-per-rank"
        ))),
    }
}
