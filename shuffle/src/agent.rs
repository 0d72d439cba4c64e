//! Agents: processes of a node that are the relays of all rank processes there.
//!
//! An agent owns what a node needs once: fabric, launcher, watch. Its ranks are processes, which
//! open no fabric and ask no launcher: they find their agent by the name that it has taken, are
//! told by it who they are, and have lanes to it and to each other. From then on it is a relay as
//! that of [mini-ranks](crate::minirank) is, and its ranks are ranks as any others.
//!
//! A node may have several agents, one for each of its adapters. They share its ranks evenly: each
//! asks for its own ranks and counts them, and carries what goes to the ranks of the agent that it
//! has a link to. The first one has the name, and tells all others of the node who is there.
//!
//! An agent serves one job ([`serve`]), or as many as come ([`serve_jobs`]): each has a relay of
//! its own, on a thread of the agent, and shares nothing with the others but the process.

mod jobs;

use std::time::{Duration, Instant};

use trihop_transport::bootstrap::{Bootstrap, Reception, check_agents, start_beside_agents};

use crate::config::Options;
use crate::error::Result;
use crate::job::JobState;
use crate::seat::{Inline, relay};

pub use crate::config::PoolLimits;
pub use jobs::{AskedToEnd, MOST_WAITING, serve_jobs};
pub use trihop_transport::bootstrap::{
    ENV_AGENT as ENV_NAME, ENV_JOB, ENV_NODES, ENV_PLACE, ENV_START,
    MOST_AGENT_RANKS as MOST_RANKS, default_agent_name as default_name,
};

/// How often one of several agents looks whether the others live, while ranks are to come.
const LOOK: Duration = Duration::from_secs(1);

/// Serves one job on this node, which has `ranks` processes in it, as its agent: takes `name`,
/// waits for them, and relays until all ranks of the job have shut it down.
///
/// The launcher of this process knows the agents of all nodes as the ranks of a job. Where it has
/// started several on a node, all of them are told the number of the node's ranks, and the first
/// one there takes the name. Ranks are numbered agent by agent, and on a node by their place: those
/// of node `n` follow those of the nodes before it, where the launcher counts agents node by node.
/// `ready` is called, at the first agent of a node, once it has its name and its fabric: ranks that
/// come before wait.
///
/// # Errors
/// A name that another agent has; a node without ranks, or with fewer than agents; as
/// [`Job::start`]; what has ended the job.
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
    let is_first = bootstrap.topology().local_rank() == 0;
    let nodes = bootstrap.topology().nodes();
    let reception = is_first.then(|| Reception::open(name, ranks, nodes..=nodes, 1));
    let mut reception = reception.transpose()?;
    let mut receive = |agents: &[&str]| {
        let reception = reception.as_mut().expect("the first agent receives");
        ready();
        loop {
            // Where it is the only agent it just waits for all.
            let look = (!agents.is_empty()).then(|| Instant::now() + LOOK);
            if let Some(party) = reception.receive(&[], look)? {
                return Ok(party);
            }
            check_agents(agents)?;
        }
    };
    let started = JobState::start_agent(options, bootstrap, ranks, &mut receive)?;
    drop(reception); // who comes now finds nobody
    relay(Inline::new(started)?)
}
