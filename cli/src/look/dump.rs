//! `trihop dump`: all that one process shows.

use std::fmt::Write;

use clap::Args;
use trihop::observe::Seen;

use super::LookError;
use super::choice::of_process;
use super::table::seconds;
use crate::number::whole;
use crate::output;

/// Show what a process waits for, and all its queues
///
/// Of a rank, or of a launcher: then of each rank that it has started. The process is not asked and
/// need not go on: what it has written before it fell asleep is shown. That is about a second old
/// where it waits, and older where it computes or is stopped, or has so many queues that writing
/// takes more than a millisecond. `CONTRADICTION` marks two counts that cannot both be true;
/// docs/DIAGNOSTICS.md says how to read the rest.
#[derive(Debug, Clone, Args)]
pub struct DumpArgs {
    /// The process
    #[arg(value_name = "PID", value_parser = whole::<u32>(..))]
    process: u32,

    /// Prints what it shows as one JSON object: numbers and waits, without the text
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Report {
    report: &'static str,
    endpoints: Vec<Seen>,
}

/// Shows what is asked for.
///
/// # Errors
/// A process that shows nothing, or is another user's; standard output.
pub fn run(args: DumpArgs) -> Result<(), LookError> {
    let endpoints = of_process(args.process)?;
    if args.json {
        let report = Report {
            report: "dump",
            endpoints,
        };
        return Ok(output::json(&report)?);
    }
    let mut text = String::new();
    for (number, seen) in endpoints.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        write(&mut text, seen);
    }
    Ok(output::write(&text)?)
}

fn write(out: &mut String, seen: &Seen) {
    let about = &seen.about;
    let kind = if about.is_relay { "relay" } else { "rank" };
    let _ = writeln!(
        out,
        "{kind} {} of {} ranks, node {} of {}, process {} on {}, job {}",
        about.endpoint, about.ranks, about.node, about.nodes, seen.process, about.host, about.job
    );
    let Some(now) = &seen.now else {
        let _ = writeln!(out, "  it has made no round of progress yet");
        return;
    };
    let _ = writeln!(
        out,
        "  last seen {} ago, {} after its start, {} rounds of progress",
        ago(now.age_ns),
        seconds(now.at_ns),
        now.rounds
    );
    if now.waits.is_empty() {
        let _ = writeln!(out, "  no call waits");
    }
    for wait in &now.waits {
        let waited_ns = wait.waited_ns.saturating_add(now.age_ns);
        let _ = writeln!(
            out,
            "  a call waits for {}, {} by now",
            wait.what,
            seconds(waited_ns)
        );
    }
    let (text, age_ns) = &seen.text;
    if text.is_empty() {
        let _ = writeln!(
            out,
            "  it has not slept yet: there is no text of its queues"
        );
    } else {
        let _ = writeln!(out, "  what follows was written {} ago", ago(*age_ns));
        out.push_str(text);
        if !text.ends_with('\n') {
            out.push_str(" ... (there was no room for more)\n");
        }
    }
}

fn ago(ns: u64) -> String {
    match ns {
        0 => "0.0ms".to_owned(),
        _ => seconds(ns),
    }
}
