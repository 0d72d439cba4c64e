//! `trihop agent`: the relay of all ranks of a node, or of some, as a process of its own.

mod several;

use std::cell::Cell;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trihop::Options;
use trihop::agent::{self, AskedToEnd};

use crate::number::whole;
use crate::run;
use crate::run::signals::Signals;

const AFTER_HELP: &str = "\
An agent is started on each node, by any launcher; it owns the fabric. The ranks are processes of
the same user on its nodes, which need neither fabric nor launcher: they find their agent by its
name.

  mpiexec -n 2 -ppn 1 trihop agent --ranks 4 &
  mpiexec -n 8 -ppn 4 env TRIHOP_LAUNCHER=agent ./program

Rank R of node N (as the agents' launcher counts nodes) is rank N x M + R where all nodes have M;
else it follows those of the nodes before. An agent serves one job, and ends with it. `trihop run
--seat agent` starts both, and agents that stay until all of its ranks have ended.

Where a launcher starts several agents on a node (`mpiexec -n 4 -ppn 2 trihop agent --ranks 4`),
each opens another one of its network adapters, and they share its ranks evenly. All of them are
told the number of the node's ranks; the first one has the name and says `ready`. Where there is
no launcher, `--nics K` starts K of them, as processes that end with this one.

With `--linger-ms` it serves jobs of M ranks on its node as they come, several at a time; it ends
once none was there for so long. Agents of several nodes, one or several on each, stay and end
together, and each job has ranks on all nodes, or on as many as its ranks say.

SIGNALS
  SIGTERM, SIGINT and SIGHUP end it: ranks that wait for others of their job hear why, and the
  jobs that have begun come to their end first. A second one ends it at once; with --nics, those
  that have not ended 5 seconds later are killed. One that was ignored when the agent was started,
  as by `nohup`, does nothing.

EXIT STATUS
  0  its job, or all of them, has ended, or a signal has ended it
  1  its job has failed, or it cannot start; the reason is on standard error
  2  wrong usage
  With --nics: that of the first agent that fails, 128 + S where signal S has ended it

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
    /// Start so many agents, which each have a network adapter and share the ranks evenly; a
    /// launcher starts as many itself
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..), default_value = "1")]
    nics: u32,
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

pub const ENV_LINGER: &str = "TRIHOP_AGENT_LINGER_MS";

/// Stays until a signal comes.
pub const NEVER: &str = "never";

fn linger(text: &str) -> Result<Linger, String> {
    match (text, text.parse()) {
        (NEVER, _) => Ok(Linger(None)),
        (_, Ok(number)) => Ok(Linger(Some(Duration::from_millis(number)))),
        _ => Err(format!("{text:?} is neither milliseconds nor `never`")),
    }
}

impl AgentArgs {
    /// By which ranks find it.
    fn name(&self) -> String {
        let given = self.name.clone();
        let given = given.or_else(|| std::env::var(agent::ENV_NAME).ok());
        given
            .filter(|name| !name.is_empty())
            .unwrap_or_else(agent::default_name)
    }

    /// Whether it stays, as the options say, or the environment.
    fn linger(&self) -> Result<Option<Linger>, trihop::Error> {
        if self.linger_ms.is_some() {
            return Ok(self.linger_ms);
        }
        let of_environment = std::env::var(ENV_LINGER)
            .ok()
            .filter(|text| !text.is_empty());
        let of_environment = of_environment.map(|text| {
            linger(&text).map_err(|why| trihop::Error::Environment {
                key: ENV_LINGER.to_owned(),
                why,
            })
        });
        of_environment.transpose()
    }
}

/// Signals that ask for its end; not those that were ignored when it was started, as by `nohup`.
pub struct Asked {
    signals: Signals,
    wishes: Cell<u32>,
}

impl Asked {
    /// Signals are blocked, and heard, as long as this lives.
    pub fn new() -> Result<Self, trihop::Error> {
        let signals = Signals::block().map_err(|source| trihop::Error::Environment {
            key: "signals".to_owned(),
            why: source.to_string(),
        })?;
        Ok(Self {
            signals,
            wishes: Cell::new(0),
        })
    }
}

impl AskedToEnd for Asked {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    fn take(&self) -> bool {
        // All that have come: two at once are one wish.
        let signals = std::iter::from_fn(|| self.signals.next());
        let asks = |signal| signal != libc::SIGUSR1 && !self.signals.are_ignored(signal);
        let is_wish = signals.fold(false, |any, signal| any | asks(signal));
        self.wishes.set(self.wishes.get() + u32::from(is_wish));
        is_wish
    }
}

/// What has ended an agent, or several.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot start, or its job has failed.
    #[error(transparent)]
    Agent(#[from] trihop::Error),
    /// Several cannot be started.
    #[error(transparent)]
    Launch(#[from] run::Error),
}

impl Error {
    /// Exit status of a command that fails so.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Agent(_) => 1,
            Self::Launch(error) => error.exit_status(),
        }
    }
}

/// Serves a job, or as many as come; the exit status.
///
/// # Errors
/// The library's, or what keeps several agents from being started.
pub fn run(args: AgentArgs) -> Result<i32, Error> {
    let options = Options::from_env()?;
    let (name, linger) = (args.name(), args.linger()?);
    if args.nics > 1 {
        return several::serve(&args, &name, linger, options.launcher);
    }
    raise_descriptors();
    let (quiet, said) = (args.quiet, name.clone());
    let ready = move || {
        if !quiet {
            say_ready(&said);
        }
    };
    let asked = Asked::new()?;
    match linger {
        None => agent::serve(options, &name, args.ranks, Some(&asked), ready),
        Some(Linger(linger)) => {
            agent::serve_jobs(options, &name, args.ranks, linger, Some(&asked), ready)
        }
    }?;
    let may_leave_a_job = match linger {
        None => asked.wishes.get() > 0,
        Some(_) => asked.wishes.get() > 1,
    };
    if may_leave_a_job {
        trihop::transport::bootstrap::take_leave();
        // A job that was not waited for may be inside of libfabric, whose exit handlers would take
        // from it what it uses.
        // SAFETY: it ends the process, and runs no code of it.
        unsafe { libc::_exit(0) };
    }
    Ok(0)
}

/// Says that others may come under this name.
pub fn say_ready(name: &str) {
    // Who does not listen does not wait for it.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "ready {name}").and_then(|()| out.flush());
}

/// As many descriptors as this process may give itself: each job of an agent takes some, and each
/// port of a guest.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Where the system refuses, those that it has do.
    let _ = setrlimit(Resource::Nofile, most);
}
