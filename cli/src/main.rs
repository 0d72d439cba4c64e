//! Command line of trihop: what can be had, start ranks, exercise and measure the engine, partition files.

mod bench;
mod exchange;
mod info;
mod logs;
mod partition;
mod run;
mod topo;

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
    TRIHOP_*    options of the library; `trihop exchange --help` lists those of queues";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show providers, and what trihop would choose and why
    Info(info::InfoArgs),
    /// Start the ranks of a job on this machine, on simulated nodes
    Run(run::RunArgs),
    /// Exchange messages between all ranks, each verified by its receiver
    Exchange(exchange::ExchangeArgs),
    /// Measure the engine; starts its own ranks, or measures the job that it is run in
    Bench(bench::BenchArgs),
    /// Show who represents which nodes, and what a route asks of each rank; starts no ranks
    Topo(topo::TopoArgs),
    /// Partition records of files by a key; the main job
    Partition(partition::PartitionArgs),
}

fn main() -> ExitCode {
    trihop::transport::fabric::restore_signals();
    let command = Cli::parse().command;
    let started = match &command {
        Command::Exchange(args) => logs::start(&args.logs),
        _ => logs::start(&logs::LogOptions::default()),
    };
    if let Err(why) = started {
        return refuse(&why);
    }
    let outcome = match command {
        Command::Info(args) => info::run(args).map(|()| 0).map_err(|e| (e.to_string(), 1)),
        Command::Run(args) => run::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Exchange(args) => exchange::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Bench(args) => bench::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Topo(args) => topo::run(args)
            .map(|()| 0)
            .map_err(|e| (e.to_string(), e.exit_status())),
        Command::Partition(args) => partition::run(args).map_err(|e| (e.to_string(), e.exit_status())),
    };
    match outcome {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err((text, status)) => {
            eprintln!("trihop: {text}");
            ExitCode::from(u8::try_from(status).unwrap_or(1))
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("trihop: {why}");
    ExitCode::from(2)
}
