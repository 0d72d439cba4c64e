//! A message costs no system call: what is left is waiting, and a few per batch.

use std::collections::BTreeMap;
use std::process::Command;

use trihop::{Job, Options, Rank};

use crate::launched::agents::{ENV_ROLE, role, start_agent};
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
    count_lines(&lines[begin..=end])
}

fn count_lines<'a>(lines: &[&'a str]) -> BTreeMap<&'a str, u64> {
    let mut calls = BTreeMap::new();
    for line in lines {
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

fn may_trace() -> bool {
    let mut tried = Command::new("strace");
    tried.args(["-f", "-o", "/dev/null", "true"]);
    try_run(tried).is_some_and(|ended| ended.status == 0)
}

/// Calls to join a job of one rank at an agent, and to leave it, that are too many, beside those
/// that wait. To join alone took 283 where each file of the kernel was read in several pieces, and
/// some of them up to five times.
const TOO_MANY_TO_ATTACH: u64 = 280;

/// Calls by which a rank waits: how many it makes says nothing of it.
const WAITS: [&str; 9] = [
    "accept4",
    "clock_nanosleep",
    "futex",
    "poll",
    "sched_yield",
    "ppoll",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
];

#[test]
fn to_join_a_job_at_an_agent_and_to_leave_it_takes_few_system_calls() {
    let test = "syscalls::to_join_a_job_at_an_agent_and_to_leave_it_takes_few_system_calls";
    if role().is_some() {
        for _ in 0..2 {
            mark(BEGIN);
            let job = Job::start(Options::from_env().unwrap()).unwrap();
            job.shutdown().unwrap();
            mark(END);
        }
        return;
    }
    if !may_trace() {
        return eprintln!("skipped: {test}: strace is missing, or may not trace");
    }
    let (agent, name) = start_agent("calls", 1, "never");
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&trace);
    command.arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]);
    command.env(ENV_ROLE, "rank").env("TRIHOP_AGENT", &name);
    Launched::start(command).wait().succeeded();
    let trace = std::fs::read_to_string(&trace).unwrap();
    let lines: Vec<&str> = trace.lines().collect();
    let all = |mark: &str| {
        let numbered = lines.iter().enumerate();
        let found = numbered.filter(|(_, line)| line.contains(mark));
        found.map(|(number, _)| number).collect::<Vec<_>>()
    };
    let (begins, ends) = (all(BEGIN), all(END));
    assert_eq!((begins.len(), ends.len()), (2, 2));
    for (begin, end) in begins.into_iter().zip(ends) {
        let mut calls = count_lines(&lines[begin + 1..end]);
        calls.retain(|name, _| !WAITS.contains(name));
        let sum: u64 = calls.values().sum();
        eprintln!("{sum} system calls to join and to leave: {calls:?}");
        assert!(sum <= TOO_MANY_TO_ATTACH, "{sum}: {calls:?}");
    }
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.wait().status, 0);
}

#[test]
fn a_steady_stream_over_three_hops_hardly_enters_the_kernel() {
    let test = "syscalls::a_steady_stream_over_three_hops_hardly_enters_the_kernel";
    if std::env::var_os("TRIHOP_BOOT_FD").is_some() {
        return rank();
    }
    if !may_trace() {
        return eprintln!("skipped: {test}: strace is missing, or may not trace");
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
