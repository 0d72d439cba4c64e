//! Ranks that are threads: a process hosts several, its *mini-ranks*, and one more thread, the
//! relay, speaks with other nodes for all of them.
//!
//! A mini-rank is a rank: its thread has a [`Job`] of its own, the same as a rank that is a process
//! has, with an engine of its own. Ranks of one node reach each other over lanes, whichever
//! processes they live in, and share no lock. What goes to another node leaves by a lane to a relay
//! of the node, which gathers it with the others', and arrives by a lane from the relay of the
//! rank's process, or from another one there. So a process has one fabric endpoint, one connection
//! to the launcher, and one mapping of each inbox of its neighbours, however many ranks it hosts.

mod cores;
mod host;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::bootstrap::local::is_bound;
use trihop_transport::cores::{Before, keep_to};
use trihop_transport::sync::{spawn_scoped, thread};
use trihop_transport::topology::{Rank, Topology};

use crate::config::Options;
pub use crate::config::minis::{ENV_RANKS, MOST_RANKS, asked_for};
use crate::error::{Error, Result};
use crate::job::{JobState, Started, Stop, detect};
use crate::seat::{Inline, Seating, barrier_of_process, join, relay};
use crate::{Job, over};
use cores::Cores;
pub use host::Host;

/// A rank that is to be a thread of this process: what that thread starts its job with.
pub struct MiniRank {
    started: Started,
    /// The core that its thread is to keep to.
    core: Option<usize>,
}

impl MiniRank {
    fn topology(&self) -> &Topology {
        &self.started.state.engine.topology
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.topology().rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.topology().size()
    }

    /// Number of this rank among those of its process, from 0.
    pub fn index(&self) -> u32 {
        index_of(self.topology())
    }

    /// Joins the job, on the thread that calls and stays with it: as [`Job::start`] on a rank that
    /// is a process. `'h` is how long handlers may borrow: what they borrow is declared before.
    ///
    /// Where the option `minirank_cores` says so, the thread keeps to one core from now on, also
    /// when its job has ended.
    ///
    /// # Errors
    /// As [`Job::start`].
    ///
    /// [`Job::start`]: crate::over::Job::start
    pub fn start<'h>(self) -> Result<Job<'h>> {
        let before = self.core.map(|core| keep_to(&[core])).transpose()?;
        let joined = Inline::new(self.started).and_then(|seat| {
            join(&seat)?;
            over::Job::over(seat)
        });
        if joined.is_err() {
            before.into_iter().for_each(Before::restore);
        }
        joined
    }
}

/// Number of the rank that looks among those of its process.
fn index_of(topology: &Topology) -> u32 {
    topology.rank().0 % topology.ranks_in_process()
}

/// Number of a job's rank among the ranks of its process, from 0: 0 where it is alone there.
pub fn index(job: &Job<'_>) -> u32 {
    index_of(job.topology())
}

/// Waits until every rank of this process has called this as often as this rank; returns at once
/// where it is alone there. Ranks of other processes have no part in it, nor has the relay: it
/// costs what threads of a process need to tell each other. Progress is made meanwhile.
///
/// # Errors
/// As [`Job::barrier`](crate::over::Job::barrier).
pub fn barrier(job: &Job<'_>) -> Result<()> {
    barrier_of_process(job.seat())
}

/// Says for a rank whose thread ends that it has left the job without having shut it down, as the
/// drop of its last handle does: for languages in which nothing is dropped. Nothing where the job
/// has ended.
#[doc(hidden)]
pub fn leave(job: &Job<'_>) {
    job.seat().look(|job| job.leave());
}

/// A number of ranks that a process can host.
///
/// # Errors
/// [`Error::Config`]: it is not from 1 to [`MOST_RANKS`].
#[doc(hidden)]
pub fn checked(ranks: u32) -> Result<u32> {
    if !(1..=MOST_RANKS).contains(&ranks) {
        let why = format!("{ranks} ranks of a process; possible are 1 to {MOST_RANKS}");
        return Err(Error::config("minis_per_rank", why));
    }
    Ok(ranks)
}

/// Makes this process host so many ranks of the job that it was started in: runs `program` for each
/// of them, on a thread of its own, and returns what that returns, in their order. The calling
/// thread is the relay meanwhile.
///
/// The ranks of a job are numbered process by process: the first one of this process has the
/// process's number by the launcher, times `ranks`. All processes host equally many.
///
/// Each program starts its job ([`MiniRank::start`]) and ends it by
/// [`Job::shutdown`](crate::over::Job::shutdown). A rank that leaves without that has failed, for
/// all others too. All routes lead from mini-rank to mini-rank but `fabric-only`; grids are of
/// processes.
///
/// # Errors
/// A number of ranks that is 0 or above [`MOST_RANKS`], a thread that cannot be had, or as
/// [`Job::start`]. What goes wrong later the calls of `program` tell.
///
/// # Panics
/// When `program` does, once all ranks have ended; the others hear of it as of any failure of a
/// rank.
///
/// # Examples
/// ```
/// use trihop_shuffle::{Error, Options, Rank, State, minirank};
///
/// let heard = minirank::run(Options::default(), 3, |mini| {
///     let heard = State::new(0);
///     let job = mini.start()?;
///     let shuffle = job
///         .shuffle("greetings")
///         .handler_with(&heard, |heard, _message, _outbox| *heard += 1)
///         .open()?;
///     for rank in 0..job.size() {
///         shuffle.send(Rank(rank), 0, b"hello")?;
///     }
///     shuffle.fence()?;
///     job.shutdown()?;
///     Ok::<u32, Error>(heard.with(|heard| *heard))
/// })?;
/// assert_eq!(heard, [Ok(3), Ok(3), Ok(3)]);
/// # Ok::<(), Error>(())
/// ```
///
/// [`Job::start`]: crate::over::Job::start
pub fn run<R: Send>(
    options: Options,
    ranks: u32,
    program: impl Fn(MiniRank) -> R + Sync,
) -> Result<Vec<R>> {
    let bootstrap = detect(&options)?;
    run_with(options, bootstrap, ranks, program)
}

/// As [`run`], with a bootstrap of the caller's, whose ranks are the processes.
///
/// # Errors
/// As [`run`].
///
/// # Panics
/// As [`run`].
pub fn run_with<R: Send>(
    options: Options,
    bootstrap: Box<dyn Bootstrap>,
    ranks: u32,
    program: impl Fn(MiniRank) -> R + Sync,
) -> Result<Vec<R>> {
    let endpoints = Endpoints::start(options, bootstrap, ranks)?;
    let host = Inline::new(endpoints.host)?;
    let (outcomes, refused) = thread::scope(|scope| {
        let start = |mini| {
            let program = &program;
            spawn_scoped(scope, move || program(mini))
        };
        let mut refused = None;
        let minis = endpoints.minis.into_iter();
        // Those that are left are dropped, by which the others hear that their ranks are gone.
        let threads = minis.map_while(|mini| start(mini).map_err(|e| refused = Some(e)).ok());
        let threads: Vec<_> = threads.collect();
        // The program's thread, which runs where it likes again afterwards.
        let kept = endpoints.cores.as_ref().map(Cores::keep_relay);
        if let Err(error) = relay(host) {
            // The ranks have met it too, or it comes of what they have met.
            tracing::debug!(%error, "the relay has ended by an error");
        }
        kept.flatten().into_iter().for_each(Before::restore);
        let joined = threads.into_iter().map(|thread| thread.join());
        (joined.collect::<Vec<thread::Result<R>>>(), refused)
    });
    let all_well = outcomes.iter().all(thread::Result::is_ok);
    if let Some(error) = refused.filter(|_| all_well) {
        return Err(TransportError::system("starting a thread for a mini-rank", error).into());
    }
    let result = |outcome: thread::Result<R>| {
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    };
    Ok(outcomes.into_iter().map(result).collect())
}

/// All endpoints of this process, before any thread has one.
struct Endpoints {
    minis: Vec<MiniRank>,
    host: Started,
    cores: Option<Cores>,
}

impl Endpoints {
    fn start(options: Options, bootstrap: Box<dyn Bootstrap>, ranks: u32) -> Result<Self> {
        let ranks = checked(ranks)?;
        let is_bound = is_bound(bootstrap.launcher());
        let cores = Cores::of(&options, bootstrap.topology(), ranks, is_bound)?;
        let mut started = JobState::start_minis(options, bootstrap, ranks)?;
        let mut host = started.pop().expect("a process has a host");
        let stop = Arc::new(Stop::new(Arc::clone(&host.state.bell)));
        let weak = Arc::downgrade(&stop);
        trihop_transport::at_exit::guard(weak);
        host.state.stop = Some(stop);
        let mini = |(index, started)| MiniRank {
            started,
            core: cores.as_ref().map(|cores| cores.of_mini(index)),
        };
        let minis = started.into_iter().enumerate().map(mini).collect();
        Ok(Self { minis, host, cores })
    }
}
