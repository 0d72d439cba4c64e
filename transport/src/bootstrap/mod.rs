//! Who are we: rank, size, nodes, and a small store of keys with a fence to exchange addresses
//! through.
//!
//! Several sources, one trait. [`detect`] picks by the environment that a launcher left: the
//! address of rank 0, PMIx, PMI-1 (MPICH's and Slurm's), the local launcher `trihop run`, else a
//! job of one rank; [`Custom`] is for programs that bring their own. Used at start and end only; nothing here runs while
//! messages move.

mod agent;
mod custom;
mod detect;
mod hosts;
pub mod local;
pub mod master;
mod meeting;
mod pmi1;
mod pmix;
mod shared;
mod single;
mod socket;
mod tasks;
mod versions;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sync::{PoisonError, StaticMutex};
use crate::topology::{Rank, Topology};

pub use agent::{
    Attached, Attachment, ENV_AGENT, ENV_JOB, ENV_NODES, ENV_PLACE, ENV_START, ENV_STARTED,
    MOST_RANKS as MOST_AGENT_RANKS, Party, Reception, Welcome, check_agents,
    default_name as default_agent_name, ranks_of_nodes,
};
pub use custom::{Allgather, Custom};
pub use detect::{detect, detect_beside_agents, environment_rank};
pub use local::Local;
pub use master::Master;
pub use meeting::{Follower, JobOfAgents, Joiner, Meeting, Rest};
pub use pmi1::Pmi1;
pub use pmix::Pmix;
pub use shared::Shared;
pub use single::Single;
pub use versions::Versions;

/// Longest key, in bytes; what PMI-1 leaves of its 64 once rank and chunk are written into the key.
pub const KEY_BYTES_MAX: usize = 24;

/// Sessions with a launcher that this process has begun. All ranks begin them together, so that
/// each has the same number everywhere.
static SESSIONS: StaticMutex<u32> = StaticMutex::new(0);

/// By which the keys of one job of a process are told from those of the next.
fn next_session() -> u32 {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let number = *sessions;
    *sessions = number.wrapping_add(1);
    number
}

/// The number that a launcher has put in a variable.
fn number(variable: &str, text: &str) -> Result<u32> {
    text.parse().map_err(|_| {
        let why = format!("{text:?} is no number from 0 to {}", u32::MAX);
        Error::config(variable, why)
    })
}

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// Nobody: a job of one rank.
    Single,
    /// `trihop run`.
    Local,
    /// An `mpiexec` or `srun` that speaks PMI-1, on the inherited descriptor `PMI_FD` or at the
    /// port `PMI_PORT`.
    Pmi1,
    /// A PMIx server (Open MPI's `mpirun`, `prterun`, `srun --mpi=pmix`).
    Pmix,
    /// Anything that starts processes: they meet at the address of rank 0, `TRIHOP_MASTER`.
    Master,
    /// The agent of the node, which knows the job: see [`Attached`].
    Agent,
    /// The program itself, by its own allgather: see [`Custom`]. Cannot be asked for by name.
    Custom,
}

impl Launcher {
    /// Name as in `TRIHOP_LAUNCHER`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Local => "local",
            Self::Pmi1 => "pmi1",
            Self::Pmix => "pmix",
            Self::Master => "master",
            Self::Agent => "agent",
            Self::Custom => "custom",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Launcher {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [
            Self::Single,
            Self::Local,
            Self::Pmi1,
            Self::Pmix,
            Self::Master,
            Self::Agent,
        ]
        .into_iter()
        .find(|l| l.name() == text)
        .ok_or_else(|| {
            Error::config(
                "TRIHOP_LAUNCHER",
                format!(
                    "{text:?} is no launcher; possible are master, pmix, pmi1, local, single, agent"
                ),
            )
        })
    }
}

/// What every launcher offers at start: identity, a store of keys, a fence.
///
/// Collective in the sense that all ranks of the job call [`Bootstrap::fence`] equally often. Every
/// wait ends at the deadline given to [`start`].
pub trait Bootstrap: Send {
    /// Who started this process.
    fn launcher(&self) -> Launcher;

    /// Who is where.
    fn topology(&self) -> &Topology;

    /// Largest value that [`Bootstrap::put`] takes, in raw bytes; encoding and chunking happen
    /// below.
    fn value_limit(&self) -> usize;

    /// Publishes a value of this rank under a key (1 to [`KEY_BYTES_MAX`] letters, digits, `-`,
    /// `_`, `.`); each key once per rank.
    ///
    /// # Errors
    /// When the key or the value is too long, or the launcher refuses.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits for all ranks; what any rank put before its fence is visible to all after it.
    ///
    /// # Errors
    /// When ranks are missing at the deadline; they are named where the launcher knows them.
    fn fence(&mut self) -> Result<()>;

    /// A value that another rank (or this one) put before the last fence; `None` where it put none.
    ///
    /// # Errors
    /// When the launcher fails or answers with bytes that are no value of ours.
    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>>;

    /// For who waits for others elsewhere than in a fence, before the job has started: why one of
    /// them cannot come any more, where the launcher knows that.
    ///
    /// # Errors
    /// When the launcher does not answer.
    fn why_missed(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Ends the whole job with `status` where the launcher can, and says why; the caller exits
    /// next.
    fn abort(&mut self, status: i32, why: &str);

    /// Ends the job at the launcher, of which PMIx hears no more until the process exits; nothing
    /// may be called after it.
    ///
    /// # Errors
    /// When the launcher does not answer.
    fn finalize(&mut self) -> Result<()>;

    /// Whether the launcher cannot be spoken with any more, because somebody else in this process
    /// has taken leave of it: then ranks agree on their end by themselves.
    fn is_out_of_reach(&self) -> bool {
        false
    }

    /// The same launcher for another endpoint of this process, which does not speak with it but may
    /// end the job. `None` of all but [`Shared`].
    fn guest(&self) -> Option<Box<dyn Bootstrap>> {
        None
    }

    /// What an agent has told this rank, once: of [`Attached`] alone.
    fn attachment(&mut self) -> Option<Attachment> {
        None
    }

    /// Whether [`Bootstrap::fence`] may be called only on the thread that started this: then
    /// nothing makes progress meanwhile, and it may only be called while no other rank needs this
    /// one's.
    fn fences_on_callers_thread(&self) -> bool {
        false
    }
}

/// Takes leave of a launcher that would take the end of this process for a crash, where that ends
/// by `_exit`: `exit` does this by itself. No job may be there any more.
pub fn take_leave() {
    pmix::take_leave();
}

/// Finds the launcher (or takes `forced`) and connects to it; `deadline` bounds every wait, then
/// and later.
///
/// # Errors
/// When the forced launcher left no trace in the environment, when this is one of several tasks of
/// a launcher that offers no store, or when the launcher found does not answer or contradicts
/// itself.
pub fn start(forced: Option<Launcher>, deadline: Duration) -> Result<Box<dyn Bootstrap>> {
    start_by(detect(forced)?, forced, deadline)
}

/// As [`start`], for an agent: no other one is its launcher.
///
/// # Errors
/// As [`start`], and where an agent is asked for.
pub fn start_beside_agents(
    forced: Option<Launcher>,
    deadline: Duration,
) -> Result<Box<dyn Bootstrap>> {
    start_by(detect_beside_agents(forced)?, forced, deadline)
}

fn start_by(
    launcher: Launcher,
    forced: Option<Launcher>,
    deadline: Duration,
) -> Result<Box<dyn Bootstrap>> {
    tracing::debug!(%launcher, "bootstrap");
    if forced.is_none() && launcher == Launcher::Single {
        tasks::warn_of_a_doubtful_job();
    }
    let bootstrap: Box<dyn Bootstrap> = match launcher {
        Launcher::Single => Box::new(Single::new()?),
        Launcher::Local => Box::new(Local::connect(deadline)?),
        Launcher::Pmi1 => Box::new(Pmi1::connect(deadline)?),
        Launcher::Pmix => Box::new(Pmix::connect(deadline)?),
        Launcher::Master => Box::new(Master::connect(deadline)?),
        Launcher::Agent => Box::new(Attached::connect(deadline)?),
        Launcher::Custom => return Err(detect::no_trace(launcher)),
    };
    let topology = bootstrap.topology();
    tracing::info!(
        %launcher,
        rank = topology.rank().0,
        size = topology.size(),
        node = topology.node().0,
        nodes = topology.nodes(),
        local_rank = topology.local_rank(),
        "who is where"
    );
    Ok(bootstrap)
}

/// Keys travel through text protocols: their alphabet and length are checked once, for every
/// launcher alike.
fn check_key(key: &str) -> Result<()> {
    let letters = key
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if key.is_empty() || key.len() > KEY_BYTES_MAX || !letters {
        return Err(Error::config(
            "bootstrap key",
            format!("{key:?} must be 1 to {KEY_BYTES_MAX} letters, digits, '-', '_' or '.'"),
        ));
    }
    Ok(())
}

fn check_value(value: &[u8], limit: usize) -> Result<()> {
    if value.len() > limit {
        return Err(Error::config(
            "bootstrap value",
            format!(
                "{} bytes are more than this launcher's {limit}",
                value.len()
            ),
        ));
    }
    Ok(())
}
