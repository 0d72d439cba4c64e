//! Ranks that are processes, or threads of processes: a benchmark runs on each of them alike.

use trihop::minirank::{self, MiniRank};
use trihop::{DumpOutput, Job, Options, Stats, Topology};

use super::{BenchArgs, Error, Name, Seat, a2a, text};

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

/// Refuses what mini-ranks, and ranks with an agent, cannot measure.
pub(super) fn check(name: Name, args: &BenchArgs) -> Result<(), Error> {
    if args.seat != Seat::Minirank && args.minis_per_rank.is_some() {
        let why = "--minis-per-rank is for --seat minirank";
        return Err(Error::Shape(why.to_owned()));
    }
    if !matches!(args.seat, Seat::Minirank | Seat::Agent) {
        return Ok(());
    }
    if name == Name::Attach && args.seat == Seat::Agent {
        return Ok(()); // it has no other one
    }
    let seat = text(args.seat);
    let has = [
        Name::Histo,
        Name::A2a,
        Name::Push,
        Name::Cc,
        Name::Channel,
        Name::Round,
        Name::Startup,
    ];
    let is_ring = name == Name::Ring && args.seat == Seat::Minirank;
    if is_ring && args.size.iter().any(|&size| size != 8) {
        let why = "ring --seat minirank has items of 8 bytes";
        return Err(Error::Shape(why.to_owned()));
    }
    if !has.contains(&name) && !is_ring {
        let why = format!(
            "{} has no --seat {seat}; histo, a2a, push, cc, channel, round and startup have, \
             ring has minirank",
            text(name)
        );
        return Err(Error::Shape(why));
    }
    let of_neither = [a2a::Api::Deltafs];
    let of_agents = [a2a::Api::Threaded];
    let is_possible = |api: &a2a::Api| {
        !of_neither.contains(api) && (args.seat == Seat::Agent || !of_agents.contains(api))
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
