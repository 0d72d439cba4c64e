//! `trihop bench`: starts its own ranks, warms up once, repeats, checks every result, prints one row per case.
//!
//! Run inside a job (under `trihop run` or `mpiexec`), it measures that job instead of starting one.

mod a2a;
mod histo;
mod row;

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use trihop::transport::bootstrap::{self, Launcher};
use trihop::{Job, Options};

use crate::run::{self, LaunchSpec, OutputMode};

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Random updates of a distributed table: one 8-byte item per update
    Histo,
    /// All-to-all of messages of one size to uniform destinations, typed and bytes
    A2a,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Self::Histo => "histo",
            Self::A2a => "a2a",
        }
    }
}

/// Options of `trihop bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// What to measure
    pub name: Name,
    /// Ranks to start
    #[arg(long, default_value_t = 4, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: u32,
    /// Simulated nodes to spread them over
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// libfabric provider between nodes
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Message size in bytes; repeat for several
    #[arg(long, value_name = "BYTES")]
    pub size: Vec<usize>,
    /// Messages per rank and repetition
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
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
    /// This executable cannot be found again to start ranks.
    #[error("finding this executable: {0}")]
    Executable(#[source] std::io::Error),
}

/// Runs the benchmark, or starts the ranks that do.
///
/// # Errors
/// [`Error`]; a wrong or missing item is one.
pub fn run(args: BenchArgs) -> Result<i32, Error> {
    if bootstrap::detect(None)? == Launcher::Single && (args.ranks > 1 || args.nodes > 1) {
        return start_ranks(&args);
    }
    let options = Options::from_env()?;
    match args.name {
        Name::Histo => histo::run(&args, options)?,
        Name::A2a => a2a::run(&args, options)?,
    }
    Ok(0)
}

fn start_ranks(args: &BenchArgs) -> Result<i32, Error> {
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
    let mut spec = LaunchSpec::new(run::spread(args.ranks, args.nodes)?, command);
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
