//! Command line of trihop: what can be had, start ranks, exercise and measure the engine, look at
//! jobs from outside, partition files.

mod agent;
mod bench;
mod channel;
mod exchange;
mod info;
mod look;
mod man;
mod number;
mod output;
mod partition;
mod progress;
mod report;
mod run;
mod serve;
mod topo;
mod usage;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::{self, Write};
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
    wrong usage\n\nSIGNALS\n  SIGUSR1          exchange, bench and partition show the state of their queues on standard \
    error;\n                   run forwards it to its ranks, all others go on\n\nENVIRONMENT\n  TRIHOP_LOG       levels of logs, e.g. `debug` or `info,fabric=trace` (default `warn`);\n                   \
    facilities: client, route, queue, link, deliver, bootstrap, fabric, memory, other\n  \
    TRIHOP_LOG_FILE  file that logs are appended to as well, with `.` and the rank behind its name\n  \
    TRIHOP_TRACE     file, with `.` and the rank behind its name or `%r` in it, for events as Perfetto reads them\n  \
    TRIHOP_LAUNCHER  who has started the ranks, where that is not to be found out: local, master, pmi1,\n                   \
    pmix, agent or single\n  \
    TRIHOP_MASTER    host:port of rank 0, with TRIHOP_RANK, TRIHOP_SIZE and TRIHOP_SECRET_FILE, for ranks\n                   \
    that a script has started\n  \
    TRIHOP_*         options of the library; `trihop exchange --help` lists those of queues";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show providers, and what trihop would choose and why
    Info(info::InfoArgs),
    /// Start the ranks of a job on this machine, on simulated nodes
    Run(run::RunArgs),
    Agent(agent::AgentArgs),
    Serve(serve::ServeArgs),
    Channel(channel::ChannelArgs),
    Exchange(exchange::ExchangeArgs),
    /// Measure the engine; starts its own ranks, or measures the job that it is run in
    Bench(bench::BenchArgs),
    Topo(topo::TopoArgs),
    Top(look::TopArgs),
    Dump(look::DumpArgs),
    Report(report::ReportArgs),
    Partition(partition::PartitionArgs),
    /// Write the manual pages and completions that `make install` puts in place
    #[command(hide = true)]
    Man(man::ManArgs),
}

fn main() -> ExitCode {
    trihop::transport::fabric::restore_signals();
    keep_ended_children();
    survive_requests_for_dumps();
    let command = match Cli::try_parse().map_err(usage::mended) {
        Ok(cli) => cli.command,
        Err(instead) => return show(&instead),
    };
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
        Command::Agent(args) => agent::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Serve(args) => serve::run(args).map(|()| 0).map_err(|e| (e.to_string(), 1)),
        Command::Channel(args) => channel::run(args)
            .map(|()| 0)
            .map_err(|e| (e.to_string(), e.exit_status())),
        Command::Exchange(args) => {
            exchange::run(args).map_err(|e| (e.to_string(), e.exit_status()))
        }
        Command::Bench(args) => bench::run(args).map_err(|e| (e.to_string(), e.exit_status())),
        Command::Man(args) => man::run(args, Cli::command())
            .map(|()| 0)
            .map_err(|why| (why, 1)),
        Command::Top(args) => look::top(args)
            .map(|()| 0)
            .map_err(|e| (e.to_string(), e.exit_status())),
        Command::Dump(args) => look::dump(args)
            .map(|()| 0)
            .map_err(|e| (e.to_string(), e.exit_status())),
        Command::Report(args) => report::run(args)
            .map(|()| 0)
            .map_err(|e| (e.to_string(), 1)),
        Command::Topo(args) => topo::run(args)
            .map(|()| 0)
            .map_err(|e| (e.to_string(), e.exit_status())),
        Command::Partition(args) => {
            partition::run(args).map_err(|e| (e.to_string(), e.exit_status()))
        }
    };
    match outcome {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err((text, status)) => {
            output::say("trihop", text);
            ExitCode::from(u8::try_from(status).unwrap_or(1))
        }
    }
}

/// Who starts us with SIGCHLD ignored (a shell's `trap '' CHLD`) hands that on to us: the kernel
/// would discard the exit status of each process that we start. What we start has the default too.
fn keep_ended_children() {
    // SAFETY: the default effect is a valid disposition of this signal.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    debug_assert_ne!(before, libc::SIG_ERR, "SIGCHLD can have its default effect");
}

/// SIGUSR1 asks for a dump. Jobs take it once they have started; before that, and where there is no
/// job, it must not end the process. It is handled rather than ignored, so that programs that are
/// started from here do not inherit it.
fn survive_requests_for_dumps() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a zeroed sigaction is a valid value: empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is initialised, and its handler does nothing.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    debug_assert_eq!(set, 0, "SIGUSR1 can be handled");
}

fn refuse(why: &str) -> ExitCode {
    output::say("trihop", why);
    ExitCode::from(2)
}

/// What takes the place of a command: help and version on standard output, wrong usage on standard
/// error.
fn show(instead: &clap::Error) -> ExitCode {
    let printed = instead.print().and_then(|()| io::stdout().flush());
    match printed {
        Err(e) if !instead.use_stderr() && e.kind() != io::ErrorKind::BrokenPipe => {
            output::say("trihop", output::Unwritten::from(e));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(instead.exit_code()).unwrap_or(1)),
    }
}
