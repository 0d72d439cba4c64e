//! Ranks that are processes, or threads of processes: a benchmark runs on each of them alike.

use trihop::minirank::{self, MiniRank};
use trihop::{DumpOutput, Job, Options};

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

/// Refuses what mini-ranks cannot measure.
pub(super) fn check(name: Name, args: &BenchArgs) -> Result<(), Error> {
    if args.seat != Seat::Minirank {
        return match args.minis_per_rank {
            Some(_) => {
                let why = "--minis-per-rank is for --seat minirank";
                Err(Error::Shape(why.to_owned()))
            }
            None => Ok(()),
        };
    }
    let of_minis = [a2a::Api::Typed, a2a::Api::Bytes, a2a::Api::Conveyor];
    if !matches!(
        name,
        Name::Histo | Name::A2a | Name::Push | Name::Cc | Name::Channel
    ) {
        let why = format!(
            "{} has no --seat minirank; histo, a2a, push, cc and channel have",
            text(name)
        );
        return Err(Error::Shape(why));
    }
    match args.api.iter().find(|api| !of_minis.contains(api)) {
        Some(&api) => Err(Error::Shape(format!(
            "--seat minirank has no --api {}; it has typed, bytes and conveyor",
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
