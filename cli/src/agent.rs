//! `trihop agent`: the relay of all ranks of a node, as a process of its own.

use std::io::Write;

use trihop::{Options, agent};

const AFTER_HELP: &str = "\
An agent is started on each node, by any launcher; it owns the fabric. The ranks are processes of the
same user on its nodes, which need neither fabric nor launcher: they find their agent by its name.

  mpiexec -n 2 -ppn 1 trihop agent --ranks 4 &
  mpiexec -n 8 -ppn 4 env TRIHOP_LAUNCHER=agent ./program

Rank R of node N (as the agents' launcher counts nodes) is rank N x M + R. `trihop run --seat agent`
starts both. An agent serves one job, and ends with it, or by a signal.

ENVIRONMENT OF A RANK
  TRIHOP_AGENT        the agent's name, where that is not the default
  TRIHOP_AGENT_PLACE  number of the rank among those of its agent; any that is free where unset
  TRIHOP_LAUNCHER     `agent`, where neither is set: the agent with the default name";

/// Be the relay of all ranks of this node, which are processes
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct AgentArgs {
    /// Ranks of this node, the same number on all nodes
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=i64::from(agent::MOST_RANKS)))]
    ranks: u32,
    /// Abstract name to be found by [default: TRIHOP_AGENT, or `trihop-agent-` and the user's
    /// number]
    #[arg(long)]
    name: Option<String>,
    /// Do not say `ready` and the name on standard output once ranks may come
    #[arg(long)]
    quiet: bool,
}

/// Serves a job.
///
/// # Errors
/// The library's.
pub fn run(args: AgentArgs) -> Result<(), trihop::Error> {
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
    agent::serve(Options::from_env()?, &name, args.ranks, ready)
}
