//! trihop and its rivals on the same work in the same minute.
//!
//! `trihop-compare` runs our benchmarks and those of others alternately, round after round, and
//! writes `target/compare/report.md` and `report.html`: ratio first, then what it was formed from,
//! with its spread. A rival that is absent or fails stays in the tables with its reason. Nothing
//! here is a part of the product.

mod calls;
mod client;
mod entries;
mod goals;
mod launch;
mod machine;
mod mpi;
mod partition;
mod plan;
mod report;
mod results;
mod rows;
mod run;
mod seats;
mod statistics;
mod threads;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::entries::Setting;
use crate::mpi::Mpi;
use crate::report::Report;

/// Runs trihop and its rivals alternately on the same work and writes target/compare/report.md and
/// report.html.
///
/// Exit status: 0 when the reports were written, whatever they say of goals and rivals; 1 when they
/// could not be, or when one of ours failed; 2 for wrong options.
#[derive(Debug, Parser)]
#[command(name = "trihop-compare", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Special>,
    /// Times that everybody is launched
    #[arg(long, default_value_t = 3, value_name = "R", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only what judges these goals (R1, F2, S1, ...), or these benchmarks (ring, threads, p2p,
    /// histo, ig, a2a, push, cc, client, round, partition)
    #[arg(long, value_name = "GOAL|BENCH", value_delimiter = ',')]
    only: Vec<String>,
    /// Fewer works, sizes and messages: an overview in ten minutes, in which F1 to F3 and parts of
    /// S2 are not judged
    #[arg(long)]
    quick: bool,
    /// Our release binary
    #[arg(long, value_name = "FILE", default_value = "target/release/trihop")]
    trihop: PathBuf,
    /// Where the C programs of MPI rivals are
    #[arg(long, value_name = "FOLDER", default_value = "benches/compare/mpi")]
    sources: PathBuf,
    /// Our sources, for the client of the DeltaFS interface; it is linked with the library beside
    /// the binary
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    root: PathBuf,
    /// Python with the packages duckdb and polars
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Where the scripts of partition's rivals are
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "benches/compare/partition"
    )]
    scripts: PathBuf,
    /// Where the reports go
    #[arg(long, value_name = "FOLDER", default_value = "target/compare")]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Special {
    /// Measures one queue between two threads and prints a row of JSON
    #[command(hide = true)]
    Threads { queue: threads::Queue, size: usize },
    /// Partitions a file by one tool, counts the records of its parts, and prints a row of JSON
    #[command(hide = true)]
    Partition(partition::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Some(Special::Threads { queue, size }) => {
            let row = threads::run(*queue, *size, queue.effort());
            print_row(row.map_err(|error| error.to_string()))
        }
        Some(Special::Partition(told)) => print_row(partition::run(told)),
        None => compare(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("trihop-compare: {why}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stdout, reason = "the row is what this command is for")]
fn print_row(row: Result<impl serde::Serialize, String>) -> Result<(), String> {
    let line = serde_json::to_string(&row?).map_err(|error| error.to_string())?;
    println!("{line}");
    Ok(())
}

#[allow(
    clippy::print_stdout,
    reason = "where the reports are, and the goals, is this command's output"
)]
fn compare(arguments: &Arguments) -> Result<(), String> {
    let setting = setting(arguments)?;
    let mut contests = plan::contests(&setting);
    if !arguments.only.is_empty() {
        contests = plan::only(contests, &arguments.only);
        if contests.is_empty() {
            return Err(format!(
                "--only {} names no goal and no benchmark that is compared here",
                arguments.only.join(",")
            ));
        }
    }
    if contests.iter().any(|c| c.work.bench == partition::BENCH) {
        partition::prepare(&setting)
            .map_err(|error| format!("making the input of partition: {error}"))?;
    }
    let facts = machine::Facts::gather();
    let results = run::run(&contests, arguments.rounds.into());
    let judgements = goals::judge(&results, &arguments.only);
    let report = Report {
        facts: &facts,
        judgements: &judgements,
        results: &results,
    };
    report.write(&arguments.out)?;
    for j in &judgements {
        println!(
            "{:<3} {:<55} {:>12} ({}): {}",
            j.goal, j.what, j.figure, j.bound, j.verdict
        );
    }
    for name in ["report.md", "report.html", "results.json"] {
        println!("{}", arguments.out.join(name).display());
    }
    match &results.ours_that_failed()[..] {
        [] => Ok(()),
        failed => Err(format!("one of ours failed: {}", failed.join("; "))),
    }
}

fn setting(arguments: &Arguments) -> Result<Setting, String> {
    let folder = arguments.out.clone();
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("making {}: {error}", folder.display()))?;
    // Launchers do not look for a program relative to this folder.
    let absolute = |path: &Path| {
        path.canonicalize()
            .map_err(|error| format!("{}: {error}; build it first (make compare)", path.display()))
    };
    let folder = absolute(&folder)?;
    let mut unbuilt = Vec::new();
    for mpi in Mpi::EVERY {
        if let Err(why) = mpi.build(&arguments.sources, &folder) {
            eprintln!("trihop-compare: without {}: {why}", mpi.name());
            unbuilt.push((mpi, why));
        }
    }
    let (trihop, root) = (absolute(&arguments.trihop)?, absolute(&arguments.root)?);
    let client = client::build(&root, &trihop, &folder);
    if let Err(why) = &client {
        eprintln!("trihop-compare: without the client of the DeltaFS interface: {why}");
    }
    Ok(Setting {
        trihop,
        myself: std::env::current_exe()
            .map_err(|error| format!("finding this executable: {error}"))?,
        folder,
        unbuilt,
        client,
        scripts: absolute(&arguments.scripts)?,
        python: match &arguments.python {
            // A link into a virtual environment is not what it leads to.
            Some(python) => std::path::absolute(python)
                .map_err(|error| format!("{}: {error}", python.display())),
            None => Err("no Python with duckdb and polars: see --python".to_owned()),
        },
        quick: arguments.quick,
    })
}
