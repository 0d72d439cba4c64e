//! `trihop agent`: the relay of all ranks of a node, or of some, as a process of its own.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trihop::agent::{self, AskedToEnd};
use trihop::{Error, Options};

use crate::number::whole;
use crate::run::signals::Signals;

const AFTER_HELP: &str = "\
An agent is started on each node, by any launcher; it owns the fabric. The ranks are processes of
the same user on its nodes, which need neither fabric nor launcher: they find their agent by its
name.

  mpiexec -n 2 -ppn 1 trihop agent --ranks 4 &
  mpiexec -n 8 -ppn 4 env TRIHOP_LAUNCHER=agent ./program

Rank R of node N (as the agents' launcher counts nodes) is rank N x M + R where all nodes have M;
else it follows those of the nodes before. `trihop run --seat agent` starts both. An agent serves
one job, and ends with it, or by a signal.

Where a launcher starts several agents on a node (`mpiexec -n 4 -ppn 2 trihop agent --ranks 4`),
each opens another one of its network adapters, and they share its ranks evenly. All of them are
told the number of the node's ranks; the first one has the name and says `ready`.

With `--linger-ms` it serves jobs of M ranks on its node as they come, several at a time; it ends
once none was there for so long, or by a signal: SIGTERM, SIGINT and SIGHUP let its jobs end,
and a second one ends it at once. Agents of several nodes, one or several on each, stay and end
together, and each job has ranks on all nodes, or on as many as its ranks say.

EXIT STATUS
  0  its job, or all of them, has ended
  1  its job has failed, or it cannot start; the reason is on standard error
  2  wrong usage

ENVIRONMENT
  TRIHOP_AGENT_LINGER_MS   as `--linger-ms`, where that is not given
  TRIHOP_MAX_INJECTION_MB  MiB of batches to other nodes that it holds for a job at most, and
  TRIHOP_MAX_EJECTION_MB   of slots for those from other nodes: streams get fewer buffers, and ranks
                           that send wait. Without them only each stream is bounded

ENVIRONMENT OF A RANK
  TRIHOP_AGENT        the agent's name, where that is not the default
  TRIHOP_AGENT_JOB    the job that it belongs to, where ranks of several come at a time
  TRIHOP_AGENT_NODES  how many of the agents' nodes its job has ranks on; all where unset
  TRIHOP_AGENT_PLACE  number of the rank among those of its agent; any that is free where unset
  TRIHOP_AGENT_START  a command that starts the agent where there is none, such as
                      `trihop agent --ranks 4 --linger-ms 5000`
  TRIHOP_LAUNCHER     `agent`, where neither is set: the agent with the default name";

/// Be the relay of the ranks of this node, which are processes, or one of several that share them
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct AgentArgs {
    /// Ranks of this node; other nodes may have other numbers
    #[arg(long, value_name = "M", value_parser = whole::<u32>(1..=u64::from(agent::MOST_RANKS)))]
    ranks: u32,
    /// Abstract name to be found by [default: TRIHOP_AGENT, or `trihop-agent-` and the user's
    /// number]
    #[arg(long)]
    name: Option<String>,
    /// Serve jobs as they come, until none was there for so many milliseconds; `never`: until a
    /// signal comes [default: TRIHOP_AGENT_LINGER_MS, or one job is served]
    #[arg(long, value_name = "MS", value_parser = linger)]
    linger_ms: Option<Linger>,
    /// Do not say `ready` and the name on standard output once ranks may come
    #[arg(long)]
    quiet: bool,
}

/// How long an agent without a job stays; none is without end.
#[derive(Debug, Clone, Copy)]
struct Linger(Option<Duration>);

const ENV_LINGER: &str = "TRIHOP_AGENT_LINGER_MS";

fn linger(text: &str) -> Result<Linger, String> {
    match (text, text.parse()) {
        ("never", _) => Ok(Linger(None)),
        (_, Ok(number)) => Ok(Linger(Some(Duration::from_millis(number)))),
        _ => Err(format!("{text:?} is neither milliseconds nor `never`")),
    }
}

impl AskedToEnd for Signals {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn take(&self) -> bool {
        // All that have come: two at once are one wish.
        let asked = std::iter::from_fn(|| self.next());
        asked.fold(false, |any, signal| any | (signal != libc::SIGUSR1))
    }
}

/// Serves a job, or as many as come.
///
/// # Errors
/// The library's.
pub fn run(args: AgentArgs) -> Result<(), Error> {
    let of_environment = || std::env::var(agent::ENV_NAME).ok();
    let name = args.name.or_else(of_environment);
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(agent::default_name);
    let ready = || {
        if !args.quiet {
            // Who does not listen does not wait for it.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "ready {name}").and_then(|()| out.flush());
        }
    };
    raise_descriptors();
    let options = Options::from_env()?;
    let of_environment = std::env::var(ENV_LINGER)
        .ok()
        .filter(|text| !text.is_empty());
    let of_environment = of_environment.map(|text| {
        linger(&text).map_err(|why| Error::Environment {
            key: ENV_LINGER.to_owned(),
            why,
        })
    });
    let linger = args
        .linger_ms
        .map_or_else(|| of_environment.transpose(), |given| Ok(Some(given)))?;
    let Some(Linger(linger)) = linger else {
        return agent::serve(options, &name, args.ranks, ready);
    };
    let signals = Signals::block().map_err(|source| Error::Environment {
        key: "signals".to_owned(),
        why: source.to_string(),
    })?;
    agent::serve_jobs(options, &name, args.ranks, linger, Some(&signals), ready)
}

/// As many descriptors as this process may give itself: each job of an agent takes some.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Where the system refuses, those that it has do.
    let _ = setrlimit(Resource::Nofile, most);
}
