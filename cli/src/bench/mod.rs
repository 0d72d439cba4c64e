//! `trihop bench`: starts its own ranks, warms up once, repeats, checks every result, prints one row per case.
//!
//! Run inside a job (under `trihop run` or `mpiexec`), it measures that job instead of starting one.

mod a2a;
mod histo;
mod p2p;
mod pair;
mod ring;
mod row;

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use trihop::transport::bootstrap::{self, Launcher};
use trihop::{Job, Options};

use crate::run::{self, LaunchSpec, OutputMode};

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Two processes of one node over a ring, beside a cache-line ping-pong and memcpy
    Ring,
    /// Two nodes over the fabric, eager and by both rendezvous, beside fi_pingpong
    P2p,
    /// Random updates of a distributed table: one 8-byte item per update
    Histo,
    /// All-to-all of messages of one size to uniform destinations, typed and bytes
    A2a,
}

impl Name {
    /// Refuses what cannot be measured before any rank is started.
    fn check_shape(self, (ranks, nodes): (u32, u32)) -> Result<(), Error> {
        let wanted = match self {
            Self::Ring if nodes != 1 => "ring is between two ranks of one node",
            Self::P2p if nodes != 2 => "p2p is between two ranks of two nodes",
            Self::Ring | Self::P2p if ranks != 2 => {
                let why = format!("{} is between two ranks, this job has {ranks}", self.text());
                return Err(Error::Shape(why));
            }
            _ => return Ok(()),
        };
        Err(Error::Shape(wanted.to_owned()))
    }

    fn text(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::P2p => "p2p",
            Self::Histo => "histo",
            Self::A2a => "a2a",
        }
    }

    /// Ranks and nodes where the user asks for none.
    fn shape(self) -> (u32, u32) {
        match self {
            Self::Ring => (2, 1),
            Self::P2p => (2, 2),
            Self::Histo | Self::A2a => (4, 1),
        }
    }
}

/// Options of `trihop bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// What to measure
    pub name: Name,
    /// Ranks to start [default: 4; ring, p2p: 2]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Simulated nodes to spread them over [default: 1; p2p: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,
    /// libfabric provider between nodes
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Message size in bytes; repeat for several
    #[arg(long, value_name = "BYTES")]
    pub size: Vec<usize>,
    /// Messages per rank and repetition (ring, p2p: of the stream, and round trips at most)
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Route of the messages
    #[arg(long, value_enum, default_value = "three-hop")]
    pub route: RouteName,
    /// Who sits in the representative's seat
    #[arg(long, value_enum, default_value = "inline")]
    pub seat: Seat,
    /// Measured repetitions after the warm-up
    #[arg(long, default_value_t = 3, value_name = "R", value_parser = clap::value_parser!(u32).range(3..))]
    pub reps: u32,
    /// Each node in a network namespace of its own (root)
    #[arg(long)]
    pub netns: bool,
    /// One JSON object per row
    #[arg(long)]
    pub json: bool,
}

/// Why a benchmark gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library's.
    #[error(transparent)]
    Library(#[from] trihop::Error),
    /// The transport's.
    #[error(transparent)]
    Transport(#[from] trihop::transport::Error),
    /// The launcher's.
    #[error(transparent)]
    Run(#[from] run::Error),
    /// A result was wrong.
    #[error("{bench}: {why}")]
    Wrong {
        /// Benchmark.
        bench: &'static str,
        /// What was expected and what came.
        why: String,
    },
    /// A size that the benchmark cannot do.
    #[error("{0}")]
    Size(String),
    /// A number of ranks or nodes that the benchmark cannot do.
    #[error("{0}")]
    Shape(String),
    /// This executable cannot be found again to start ranks.
    #[error("finding this executable: {0}")]
    Executable(#[source] std::io::Error),
}

impl Error {
    /// Exit status of a process that ends by this error: 2 for options, 1 for everything else.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Size(_) | Self::Shape(_) | Self::Library(trihop::Error::Config { .. }) => 2,
            Self::Run(error) => error.exit_status(),
            _ => 1,
        }
    }
}

/// Route of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RouteName {
    /// Source, its representative, the target's representative, target
    ThreeHop,
}

/// Who sits in the representative's seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Seat {
    /// The ranks themselves
    Inline,
}

/// Runs the benchmark, or starts the ranks that do.
///
/// # Errors
/// [`Error`]; a wrong or missing item is one.
pub fn run(args: BenchArgs) -> Result<i32, Error> {
    let shape = (
        args.ranks.unwrap_or(args.name.shape().0),
        args.nodes.unwrap_or(args.name.shape().1),
    );
    let mut options = Options::from_env()?;
    match args.name {
        Name::Ring | Name::P2p => {
            pair::sizes(&args.size, &[], args.name.text())?;
        }
        Name::Histo => histo::check(&args)?,
        Name::A2a => a2a::check(&args)?,
    }
    if bootstrap::detect(options.launcher)? == Launcher::Single {
        args.name.check_shape(shape)?;
        if shape != (1, 1) {
            return start_ranks(&args, shape);
        }
    } else if args.ranks.is_some() || args.nodes.is_some() || args.netns {
        let why = "this is a rank of a job already; --ranks, --nodes and --netns are for starting one";
        return Err(Error::Shape(why.to_owned()));
    }
    if args.provider.is_some() {
        options.provider.clone_from(&args.provider);
    }
    match args.name {
        Name::Ring => ring::run(&args, options)?,
        Name::P2p => p2p::run(&args, options)?,
        Name::Histo => histo::run(&args, options)?,
        Name::A2a => a2a::run(&args, options)?,
    }
    Ok(0)
}

fn start_ranks(args: &BenchArgs, (ranks, nodes): (u32, u32)) -> Result<i32, Error> {
    let executable = std::env::current_exe().map_err(Error::Executable)?;
    let mut command: Vec<OsString> = vec![executable.into(), "bench".into(), args.name.text().into()];
    for size in &args.size {
        command.extend(["--size".into(), size.to_string().into()]);
    }
    if let Some(count) = args.count {
        command.extend(["--count".into(), count.to_string().into()]);
    }
    command.extend(["--reps".into(), args.reps.to_string().into()]);
    if args.json {
        command.push("--json".into());
    }
    let mut spec = LaunchSpec::new(run::spread(ranks, nodes)?, command);
    if let Some(provider) = &args.provider {
        spec.env.push(("TRIHOP_PROVIDER".into(), provider.into()));
    }
    spec.output = OutputMode::Plain;
    spec.netns = args.netns;
    Ok(run::launch(spec)?.status)
}

/// One repetition's figures, equal on all ranks.
pub(crate) struct Measured {
    /// Wall time of the slowest rank in seconds.
    pub seconds: f64,
    /// User and system time of all ranks in seconds.
    pub cpu_seconds: f64,
}

/// Times `work` from barrier to barrier.
pub(crate) fn measure(
    job: &Job<'_>,
    work: impl FnOnce() -> Result<(), trihop::Error>,
) -> Result<Measured, Error> {
    use trihop::Reduce;
    job.barrier()?;
    let cpu_before = row::cpu_ns();
    let start = std::time::Instant::now();
    work()?;
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let mut slowest = [elapsed_ns];
    job.allreduce(&mut slowest, Reduce::Max)?;
    let mut cpu = [row::cpu_ns() - cpu_before];
    job.allreduce(&mut cpu, Reduce::Sum)?;
    Ok(Measured {
        seconds: slowest[0] as f64 / 1e9,
        cpu_seconds: cpu[0] as f64 / 1e9,
    })
}
