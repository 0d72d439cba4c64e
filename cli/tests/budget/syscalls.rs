//! A message costs no system call: what is left is waiting, and a few per batch.

use std::collections::BTreeMap;
use std::process::Command;

use trihop::{Job, Options, Rank};

use crate::launched::{Launched, try_run};
use crate::ranks::job;

/// Messages of the counted phase, all ranks together.
const MESSAGES: u64 = 4_000_000;

/// System calls per 10^6 messages that are too many: ten times the goal of 2,000, since a loaded
/// machine makes ranks wait more often, and tracing makes each wait longer.
const TOO_MANY: u64 = 20_000;

/// Calls that fail and that nobody else makes: they show in the trace where the counted phase
/// begins and ends.
const BEGIN: &str = "/trihop/budget/begins";
const END: &str = "/trihop/budget/ends";

fn mark(path: &str) {
    assert!(std::env::set_current_dir(path).is_err(), "{path} exists");
}

/// What every rank does: a steady stream of items to all ranks.
fn rank() {
    let job = Job::start(Options::from_env().unwrap()).unwrap();
    let stream = job
        .stream::<u64>("items")
        .handler(|_, _, _| ())
        .open()
        .unwrap();
    let size = u64::from(job.size());
    let exchange = |messages: u64| {
        let items = (0..messages / size).map(|number| (Rank((number % size) as u32), number));
        stream.extend(items).unwrap();
        stream.fence().unwrap();
    };
    exchange(MESSAGES / 10);
    job.barrier().unwrap();
    mark(BEGIN);
    exchange(MESSAGES);
    mark(END);
    job.shutdown().unwrap();
}

/// System calls between the first beginning and the last end in what `strace -f` wrote, by name.
fn count(trace: &str) -> BTreeMap<&str, u64> {
    let lines: Vec<&str> = trace.lines().collect();
    let begin = lines
        .iter()
        .position(|line| line.contains(BEGIN))
        .expect("a rank began");
    let end = lines
        .iter()
        .rposition(|line| line.contains(END))
        .expect("a rank came to the end");
    let mut calls = BTreeMap::new();
    for line in &lines[begin..=end] {
        // "PID name(arguments) = result"; the second half of an interrupted line, signals and ends
        // have no such name.
        let (_, call) = line.split_once(' ').unwrap_or_default();
        if let Some((name, _)) = call.trim_start().split_once('(')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        {
            *calls.entry(name).or_default() += 1;
        }
    }
    calls
}

#[test]
fn a_steady_stream_over_three_hops_hardly_enters_the_kernel() {
    let test = "syscalls::a_steady_stream_over_three_hops_hardly_enters_the_kernel";
    if std::env::var_os("TRIHOP_BOOT_FD").is_some() {
        return rank();
    }
    let mut tried = Command::new("strace");
    tried.args(["-f", "-o", "/dev/null", "true"]);
    if try_run(tried).is_none_or(|ended| ended.status != 0) {
        eprintln!("skipped: {test}: strace is missing, or may not trace");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let launched = job(test, "2,2");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&trace);
    // One rail between two nodes, so that ranks are three hops apart.
    command.env("TRIHOP_ROUTE", "three-hop:1");
    command
        .arg(launched.get_program())
        .args(launched.get_args());
    let ended = Launched::start(command).wait();
    assert_eq!(
        ended.status, 0,
        "{test}:\n{}\n{}",
        ended.stderr, ended.stdout
    );
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert_eq!(trace.matches(END).count(), 4, "ranks that came to the end");
    let calls = count(&trace);
    let per_million = calls.values().sum::<u64>() * 1_000_000 / MESSAGES;
    eprintln!(
        "{per_million} system calls per 10^6 messages, all ranks together (goal 2000): {calls:?}"
    );
    assert!(
        per_million <= TOO_MANY,
        "{per_million} system calls per 10^6 messages: {calls:?}"
    );
}

#[test]
fn a_trace_is_counted_from_mark_to_mark() {
    let trace = format!(
        "7 read(3) = 1\n7 chdir(\"{BEGIN}\") = -1\n8 read(4, <unfinished ...>\n7 write(4, \"(\") = 1\n\
         8 <... read resumed>) = 0\n7 --- SIGCHLD (x) ---\n8 chdir(\"{END}\") = -1\n7 read(3) = 1\n"
    );
    let counted: Vec<_> = count(&trace).into_iter().collect();
    assert_eq!(counted, [("chdir", 2), ("read", 1), ("write", 1)]);
}
