//! Command line of trihop: what can be had, start ranks, exercise and measure the engine, partition files.

mod bench;
mod exchange;
mod info;
mod man;
mod partition;
mod run;
mod topo;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use trihop::log;

/// Many-to-many messaging for HPC jobs
#[derive(Debug, Parser)]
#[command(name = "trihop", version, propagate_version = true, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "EXIT STATUS\n  0  done and verified\n  1  failed; the reason is on standard error\n  2  \
    wrong usage\n\nENVIRONMENT\n  TRIHOP_LOG       levels of logs, e.g. `debug` or `info,fabric=trace` (default `warn`);\n                   \
    facilities: client, route, queue, link, deliver, bootstrap, fabric, memory, other\n  \
    TRIHOP_LOG_FILE  file that logs are appended to as well, with `.` and the rank behind its name\n  \
    TRIHOP_*         options of the library; `trihop exchange --help` lists those of queues";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show providers, and what trihop would choose and why
    Info(info::InfoArgs),
    /// Start the ranks of a job on this machine, on simulated nodes
    Run(run::RunArgs),
    Exchange(exchange::ExchangeArgs),
    /// Measure the engine; starts its own ranks, or measures the job that it is run in
    Bench(bench::BenchArgs),
    Topo(topo::TopoArgs),
    Partition(partition::PartitionArgs),
    /// Write the manual pages that `make install` puts in place
    #[command(hide = true)]
    Man(man::ManArgs),
}

fn main() -> ExitCode {
    trihop::transport::fabric::restore_signals();
    let command = Cli::parse().command;
    let logs = log::Options::from_env().map(|logs| match &command {
        Command::Exchange(args) => args.logs.over(logs),
        _ => logs,
    });
    if let Err(error) = logs.and_then(log::install) {
        return refuse(&error.to_string());
    }
    let outcome = match command {
        Command::Info(args) => info::run(args).map(|()| 0).map_err(|e| (e.to_string(), 1)),
        Command::Run(args) => run::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Exchange(args) => exchange::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Bench(args) => bench::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Man(args) => man::run(args, Cli::command()).map(|()| 0).map_err(|why| (why, 1)),
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
