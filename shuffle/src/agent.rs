//! Agents: a process of each node that is the relay of all rank processes there.
//!
//! An agent owns what a node needs once: fabric, launcher, watch. Its ranks are processes, which
//! open no fabric and ask no launcher: they find their agent by the name that it has taken, are
//! told by it who they are, and have lanes to it and to each other. From then on it is a relay as
//! that of [mini-ranks](crate::minirank) is, and its ranks are ranks as any others.
//!
//! An agent serves one job ([`serve`]), or as many as come ([`serve_jobs`]): each has a relay of
//! its own, on a thread of the agent, and shares nothing with the others but the process.

mod jobs;

use trihop_transport::bootstrap::{Bootstrap, Reception, start_beside_agents};

use crate::config::Options;
use crate::error::Result;
use crate::job::JobState;
use crate::seat::{Inline, relay};

pub use crate::config::PoolLimits;
pub use jobs::{AskedToEnd, MOST_WAITING, serve_jobs};
pub use trihop_transport::bootstrap::{
    ENV_AGENT as ENV_NAME, ENV_JOB, ENV_PLACE, MOST_AGENT_RANKS as MOST_RANKS,
    default_agent_name as default_name,
};

/// Serves one job of `ranks` processes on this node, as its agent: takes `name`, waits for
/// them, and relays until all ranks of the job have shut it down.
///
/// There is one agent on each node, and the launcher of this process knows the agents as the ranks
/// of a job: rank `r` of node `n` is rank `n * ranks + r` of the job that they serve. `ready` is
/// called once this one has its name and its fabric: ranks that come before wait.
///
/// # Errors
/// A name that another agent has; several agents on a node; as [`Job::start`]; what has ended the
/// job.
///
/// # Examples
/// ```no_run
/// use trihop_shuffle::{Options, agent};
///
/// agent::serve(Options::from_env()?, &agent::default_name(), 4, || println!("ready"))?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
///
/// [`Job::start`]: crate::over::Job::start
pub fn serve(options: Options, name: &str, ranks: u32, ready: impl Fn()) -> Result<()> {
    options.check()?;
    let bootstrap = start_beside_agents(options.launcher, options.bootstrap_timeout())?;
    serve_with(options, bootstrap, name, ranks, ready)
}

/// As [`serve`], with a bootstrap of the caller's, whose ranks are the agents.
///
/// # Errors
/// As [`serve`].
pub fn serve_with(
    options: Options,
    bootstrap: Box<dyn Bootstrap>,
    name: &str,
    ranks: u32,
    ready: impl Fn(),
) -> Result<()> {
    let mut reception = Reception::open(name, ranks, 1)?;
    let mut receive = || {
        ready();
        loop {
            // Without others and a deadline it only ends with all.
            if let Some(party) = reception.receive(&[], None)? {
                return Ok(party);
            }
        }
    };
    let started = JobState::start_agent(options, bootstrap, ranks, &mut receive)?;
    drop(reception); // who comes now finds nobody
    relay(Inline::new(started)?)
}
