//! `trihop run`: the local launcher. Ranks on one machine, spread over simulated nodes.

mod job;
mod netns;
mod output;
mod process;
mod profile;
mod progress;
pub(crate) mod signals;
mod warden;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::number::whole;
use clap::CommandFactory;
use trihop::minirank;

pub use job::launch;
use profile::Tool;

/// What can be said after the options of `trihop run`.
const AFTER_HELP: &str = "\
ENVIRONMENT OF A RANK
  TRIHOP_RANK, TRIHOP_SIZE, TRIHOP_NODE_SIZES  who it is
  TRIHOP_BOOT_FD                               socket to the launcher
  TRIHOP_PROGRESS_FD                           rank 0, where the launcher has a terminal: a pipe
                                               that takes lines `DONE TOTAL` of bytes for a bar
  TRIHOP_LOOPBACK=1                            nodes are simulated (not with --netns, nor where
                                               TRIHOP_INTERFACE is set already)
  TRIHOP_BOUND=1                               it is bound to cores of its own (see --bind-to)
  TRIHOP_MINIS_PER_RANK                        ranks it hosts (see --minis-per-rank)
  TRIHOP_INTERFACE                             address of its node (only with --netns)
  TRIHOP_AGENT, TRIHOP_AGENT_PLACE             its agent (only with --seat agent)

ENVIRONMENT OF AN AGENT
  TRIHOP_AGENT_LINGER_MS                       how long it stays without a job [default: until all
                                               ranks have ended, or for one job below --agent-under]

SIGNALS
  SIGINT, SIGTERM, SIGHUP and SIGUSR1 are forwarded to all ranks; a second SIGINT or SIGTERM
  kills them. (The same one within 0.3 seconds is the first: timeout sends it twice.) Ranks
  start with these signals unblocked and with their default effect, also where the launcher was
  started with them ignored (by nohup, say; setsid keeps a hang-up away). When a rank fails, or
  aborts the job, the others have 0.3 seconds to say what they know and to end; then they get
  SIGTERM and, 5 seconds later, SIGKILL. What a rank has started in its process group ends with it.

EXIT STATUS
  0        every rank exited with 0, and every agent did or was ended by us
  N        the first failing rank exited with N, or aborted the job with N
  128 + S  the first failing rank was ended by signal S; an agent that fails counts as a rank. Of
           ranks that fail within 0.2 seconds one that a signal ended is taken for the first, or
           else one whose status is not 1
  124      --timeout passed
  126      the command was found but could not be executed
  127      the command was not found
  1        the launcher itself failed
  2        wrong arguments";

/// Options of `trihop run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = AFTER_HELP,
    override_usage = "trihop run [OPTIONS] {-n <RANKS> | --node-sizes <SIZES>} <CMD>..."
)]
pub struct RunArgs {
    /// Number of ranks (default: the sum of --node-sizes)
    #[arg(
        short = 'n',
        long,
        value_name = "RANKS",
        value_parser = whole::<u32>(1..)
    )]
    ranks: Option<u32>,
    /// Number of simulated nodes; ranks are spread over them in blocks, the first nodes taking the
    /// remainder
    #[arg(long, value_name = "N", conflicts_with = "node_sizes", value_parser = whole::<u32>(1..))]
    nodes: Option<u32>,
    /// Ranks on each simulated node, e.g. 3,1,4
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = whole::<u32>(1..))]
    node_sizes: Vec<u32>,
    /// Give each node a network namespace of its own, joined by a bridge (needs root and `ip`)
    #[arg(long)]
    netns: bool,
    /// Forward output without the rank in front of each line
    #[arg(long)]
    no_prefix: bool,
    /// Ranks that each process is to host as threads: the program asks for the number by
    /// `minirank::asked_for`, and -n counts processes [default: TRIHOP_MINIS_PER_RANK, or 1]
    #[arg(long, value_name = "M", value_parser = whole::<u32>(1..=u64::from(minirank::MOST_RANKS)))]
    minis_per_rank: Option<u32>,
    /// Who speaks with other nodes: the ranks themselves, as their programs have it, or agents of
    /// each node, which are started beside them (see `trihop agent`)
    #[arg(long, value_enum, default_value = "own")]
    seat: Seat,
    /// --seat agent: agents of each node, which each have a network adapter and share its ranks
    /// evenly; with --netns a node has as many adapters [default: 1]
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..))]
    nics: Option<u32>,
    /// --seat agent: a command with its options, divided at blanks, that runs each agent, such as
    /// `valgrind -q` or `perf record -g -o agent-{node}.data`; `{node}` is the node's number, and
    /// `{agent}` the agent's there, from 0
    #[arg(long, value_name = "CMD", value_parser = words_of_command)]
    agent_under: Option<Words>,
    /// --seat agent: run each agent under valgrind, which writes to `agent-NODE.AGENT.valgrind.log`
    /// in this folder
    #[arg(long, conflicts_with_all = ["agent_under", "agent_flamegraph"])]
    agent_valgrind: bool,
    /// --seat agent: run each agent under `perf record`, and write its stacks to
    /// `agent-NODE.AGENT.folded` in this folder once the job has ended; tools for flame graphs
    /// make a picture of that
    #[arg(long, value_name = "FOLDER", conflicts_with = "agent_under")]
    agent_flamegraph: Option<PathBuf>,
    /// Cores that processes are bound to
    #[arg(long, value_enum, default_value = "cores")]
    bind_to: BindTo,
    /// End the job after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u64>(1..))]
    timeout: Option<u64>,
    /// Command to run as every rank; its standard input is ours in rank 0, unless that is a
    /// terminal, else empty
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// A command and its options.
#[derive(Debug, Clone)]
struct Words(Vec<String>);

fn words_of_command(text: &str) -> Result<Words, String> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    match words.is_empty() {
        true => Err("it names no command".to_owned()),
        false => Ok(Words(words)),
    }
}

/// Who speaks with other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Seat {
    /// The processes that are started
    Own,
    /// Processes of each node beside them
    Agent,
}

/// Cores that processes are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BindTo {
    /// Where every rank has a core: each process to its share of the cores that the launcher may
    /// use, in the order of their numbers. Else to none. Agents are not bound
    Cores,
    /// To none
    None,
}

/// Runs a job as the options say; the result is the exit status of the launcher.
///
/// # Errors
/// When the job cannot be set up. A command that cannot be started is reported here already.
pub fn run(args: RunArgs) -> Result<i32, Error> {
    // All words from the first one on that is no option are the command's.
    let first = args.command.first().map(|word| word.to_string_lossy());
    if let Some(word) = first.filter(|word| word.starts_with('-')) {
        return Err(Error::Usage(no_option(&word)));
    }
    if args.ranks.is_none() && args.node_sizes.is_empty() {
        let why = "how many ranks? Say -n RANKS, or --node-sizes SIZES, before the command";
        return Err(Error::Usage(why.to_owned()));
    }
    let sizes = node_sizes(args.ranks, args.nodes, &args.node_sizes)?;
    let mut spec = LaunchSpec::new(sizes, args.command);
    spec.netns = args.netns;
    spec.output = if args.no_prefix {
        OutputMode::Plain
    } else {
        OutputMode::Prefixed
    };
    spec.timeout = args.timeout.map(Duration::from_secs);
    spec.binds = args.bind_to == BindTo::Cores;
    spec.minis = match args.minis_per_rank {
        Some(minis) => minis,
        None => minirank::asked_for().map_err(|error| Error::Usage(error.to_string()))?,
    };
    spec.agents = agents(args.seat == Seat::Agent, args.nics)?;
    let tool = match (args.agent_valgrind, args.agent_flamegraph) {
        (true, _) => Some(Tool::Valgrind),
        (false, folder) => folder.map(Tool::Perf),
    };
    if spec.agents == 0 && (tool.is_some() || args.agent_under.is_some()) {
        let why = "--agent-under, --agent-valgrind and --agent-flamegraph are for agents, which \
                   --seat agent starts";
        return Err(Error::Usage(why.to_owned()));
    }
    let (nodes, agents) = (spec.node_sizes.len(), spec.agents);
    spec.agent_under = match (&tool, args.agent_under) {
        (Some(tool), _) => tool.begin(nodes, agents)?,
        (None, under) => under.map_or_else(Vec::new, |Words(words)| words),
    };
    let minis = args.minis_per_rank.map(|minis| minis.to_string().into());
    spec.env
        .extend(minis.map(|minis| (minirank::ENV_RANKS.into(), minis)));
    match launch(spec) {
        Ok(outcome) => {
            // What has ended a job is said before what is missing of it.
            let finished = tool.map_or(Ok(()), |tool| tool.finish(nodes, agents));
            match (outcome.status, finished) {
                (0, Err(error)) => Err(error),
                (status, Err(error)) => {
                    crate::output::say("trihop run", &error);
                    Ok(status)
                }
                (status, Ok(())) => Ok(status),
            }
        }
        Err(error @ Error::Command { .. }) => {
            crate::output::say("trihop run", &error);
            Ok(error.exit_status())
        }
        Err(error) => Err(error),
    }
}

/// What to say of a word that stands where the command should, and is like an option.
fn no_option(word: &str) -> String {
    let number = word
        .strip_prefix("-n")
        .map(|rest| rest.trim_start_matches('='));
    match (number, word.trim_start_matches('-')) {
        (Some(number), _) if number.parse::<u32>().is_ok() => {
            format!("{word:?}: the number is a word of its own, `-n {number}`")
        }
        (_, "np") => format!("{word:?} is no option of `trihop run`: ranks are counted by `-n`"),
        _ => format!(
            "{word:?} is no option of `trihop run`, and no command begins so; options come before \
             the command"
        ),
    }
}

/// Agents of each node, so many as are asked for or one, where there are agents.
///
/// # Errors
/// They are asked for where there are none.
pub fn agents(are_there: bool, asked: Option<u32>) -> Result<u32, Error> {
    match (are_there, asked) {
        (true, asked) => Ok(asked.unwrap_or(1)),
        (false, None) => Ok(0),
        (false, Some(_)) => {
            let why = "--nics is for agents, which --seat agent starts";
            Err(Error::Usage(why.to_owned()))
        }
    }
}

/// Ranks on each node: `sizes` where they are given, else `ranks` spread over `nodes` (one, by
/// default).
///
/// # Errors
/// When `ranks` contradicts `sizes`, or a node would stay empty.
pub fn node_sizes(
    ranks: Option<u32>,
    nodes: Option<u32>,
    sizes: &[u32],
) -> Result<Vec<u32>, Error> {
    if sizes.is_empty() {
        return spread(ranks.unwrap_or(0), nodes.unwrap_or(1));
    }
    let sum: u64 = sizes.iter().map(|s| u64::from(*s)).sum();
    match ranks {
        Some(ranks) if u64::from(ranks) != sum => Err(Error::Usage(format!(
            "-n {ranks} contradicts --node-sizes, which sum up to {sum}"
        ))),
        _ => Ok(sizes.to_vec()),
    }
}

/// Spreads `ranks` over `nodes` in blocks; the first nodes take the remainder (7 on 2 nodes: 4 and
/// 3).
///
/// # Errors
/// When a node would stay empty.
pub fn spread(ranks: u32, nodes: u32) -> Result<Vec<u32>, Error> {
    if nodes == 0 || ranks < nodes {
        return Err(Error::Usage(format!(
            "{ranks} ranks cannot be spread over {nodes} nodes; a node needs a rank"
        )));
    }
    Ok((0..nodes)
        .map(|node| ranks / nodes + u32::from(node < ranks % nodes))
        .collect())
}

/// A job to launch.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    /// Ranks on each simulated node, each at least 1; their sum is the number of ranks.
    pub node_sizes: Vec<u32>,
    /// Program and arguments of every rank.
    pub command: Vec<OsString>,
    /// Environment variables of every rank, besides the inherited ones.
    pub env: Vec<(OsString, OsString)>,
    /// What happens with the output.
    pub output: OutputMode,
    /// End the job after this time; none: never.
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL when the job ends early. Default 5 s.
    pub grace: Duration,
    /// One network namespace per node. Default no.
    pub netns: bool,
    /// Agents of each node beside the ranks. Default 0.
    pub agents: u32,
    /// What runs each agent: a command and its options, with `{node}` for the node's number, and
    /// `{agent}` for that of the agent on its node. Default none.
    pub agent_under: Vec<String>,
    /// Ranks that each process hosts. Default 1.
    pub minis: u32,
    /// Where every rank has a core, each process is bound to its share of them. Default no.
    pub binds: bool,
    /// The ranks are the agents of one node, which this is: they are called so, no node is
    /// simulated, and each takes all signals itself. Default no.
    pub are_agents: bool,
    /// A rank that exits with a status other than 0 has said why: nothing is added. Default no.
    pub says_why: bool,
}

impl LaunchSpec {
    /// `command` on nodes of these sizes, output with prefix, no time limit.
    pub fn new(node_sizes: Vec<u32>, command: Vec<OsString>) -> Self {
        Self {
            node_sizes,
            command,
            env: Vec::new(),
            output: OutputMode::Prefixed,
            timeout: None,
            grace: Duration::from_secs(5),
            netns: false,
            agents: 0,
            agent_under: Vec::new(),
            minis: 1,
            binds: false,
            are_agents: false,
            says_why: false,
        }
    }
}

/// What happens with the ranks' output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// Forward whole lines, each with its rank in front.
    Prefixed,
    /// Forward whole lines as they are.
    Plain,
}

/// How a job ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status as `trihop run` documents it; why it is not 0 was said on standard error.
    pub status: i32,
}

/// A command of this program's that was given for a program.
fn meant(command: &OsString, source: &io::Error) -> String {
    if source.raw_os_error() == Some(libc::EAGAIN) {
        return "; processes are limited by `ulimit -u` and the control group's pids.max"
            .to_owned();
    }
    let name = command.to_str().unwrap_or_default();
    let ours = crate::Cli::command();
    match ours.find_subcommand(name) {
        Some(_) if source.kind() == io::ErrorKind::NotFound => {
            format!("; is `trihop {name}` meant")
        }
        _ => String::new(),
    }
}

/// Why a job could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The command cannot be started.
    #[error("cannot start {command:?}: {source}{}", meant(command, source))]
    Command {
        /// The program as given.
        command: OsString,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// An operating-system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The network namespaces cannot be set up.
    #[error("--netns: {0}")]
    Network(String),
}

/// Whether a process is not started for want of processes, memory or descriptors.
fn is_want(source: &io::Error) -> bool {
    let wants = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE];
    source
        .raw_os_error()
        .is_some_and(|code| wants.contains(&code))
}

impl Error {
    /// Exit status of a launcher that fails so.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Command { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            // No process is to be had, for whatever command.
            Self::Command { source, .. } if is_want(source) => 1,
            Self::Command { .. } => 126,
            Self::Usage(_) => 2,
            Self::System { .. } | Self::Network(_) => 1,
        }
    }

    fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_spread_in_blocks() {
        assert_eq!(spread(7, 2).unwrap(), [4, 3]);
        assert_eq!(spread(8, 3).unwrap(), [3, 3, 2]);
        assert_eq!(spread(1, 1).unwrap(), [1]);
        assert!(spread(2, 3).is_err() && spread(0, 1).is_err() && spread(1, 0).is_err());
    }
}
