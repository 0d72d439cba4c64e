//! Command line of trihop: what can be had, start ranks, exercise and measure the engine, partition files.

mod bench;
mod exchange;
mod info;
mod partition;
mod run;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Many-to-many messaging for HPC jobs
#[derive(Debug, Parser)]
#[command(name = "trihop", version, propagate_version = true, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "EXIT STATUS\n  0  done and verified\n  1  failed; the reason is on standard error\n  2  \
    wrong usage\n\nENVIRONMENT\n  TRIHOP_LOG  log filter, e.g. `debug` or `trihop_shuffle=trace` (default `warn`)\n  \
    TRIHOP_*    options of the library, see `trihop exchange --help`";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show providers, and what trihop would choose and why
    Info(info::InfoArgs),
    /// Start the ranks of a job on this machine, on simulated nodes
    Run(run::RunArgs),
    /// Exchange messages between all ranks, each verified by its receiver
    Exchange(exchange::ExchangeArgs),
    /// Measure the engine; starts its own ranks
    Bench(bench::BenchArgs),
    /// Partition records of files by a key; the main job
    Partition(partition::PartitionArgs),
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TRIHOP_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let outcome: Result<i32, Box<dyn std::error::Error>> = match Cli::parse().command {
        Command::Info(args) => info::run(args).map(|()| 0).map_err(Into::into),
        Command::Run(args) => run::run(args).or_else(|error| {
            eprintln!("trihop: {error}");
            Ok(error.exit_status())
        }),
        Command::Exchange(args) => exchange::run(args).or_else(|error| {
            eprintln!("trihop: {error}");
            Ok(error.exit_status())
        }),
        Command::Bench(args) => bench::run(args).map_err(Into::into),
        Command::Partition(args) => partition::run(args).map_err(Into::into),
    };
    match outcome {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(error) => {
            eprintln!("trihop: {error}");
            ExitCode::FAILURE
        }
    }
}
