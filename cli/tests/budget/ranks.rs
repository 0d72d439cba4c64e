//! A test as a job: it starts itself again, as every rank, under `trihop run`.

use std::ffi::OsString;
use std::process::Command;

use trihop::{Job, Options};

use crate::launched::Launched;

/// Runs `body` on every rank of a job with nodes of these sizes. `test` is the full name of the
/// calling test: what is started again is only that one. What ranks print is printed here.
pub fn on_ranks(test: &str, node_sizes: &str, body: impl FnOnce(Job<'static>)) {
    on_ranks_with(test, node_sizes, &[], body);
}

/// The same with these variables in the ranks' environment: options of the job.
pub fn on_ranks_with(
    test: &str,
    node_sizes: &str,
    variables: &[(&str, &str)],
    body: impl FnOnce(Job<'static>),
) {
    if let Ok(ours) = std::env::var("TRIHOP_NODE_SIZES") {
        // A test that runs several jobs asks for each of them here, too.
        if ours == node_sizes {
            body(Job::start(Options::from_env().unwrap()).unwrap());
            eprintln!("{DONE}");
        }
        return;
    }
    let mut command = job(test, node_sizes);
    command.envs(variables.iter().copied());
    let ended = Launched::start(command).wait();
    assert_eq!(
        ended.status, 0,
        "{test} on nodes {node_sizes}:\n{}\n{}",
        ended.stderr, ended.stdout
    );
    let (done, figures): (Vec<_>, Vec<_>) =
        ended.stderr.lines().partition(|line| line.ends_with(DONE));
    for line in figures {
        eprintln!("{test} on nodes {node_sizes}: {line}");
    }
    let ranks: usize = node_sizes
        .split(',')
        .map(|size| size.parse::<usize>().unwrap())
        .sum();
    assert_eq!(done.len(), ranks, "ranks of {test} that came to the end");
}

/// Last line of a rank that ran its part of a test.
const DONE: &str = "done";

/// The command that runs one test as a job.
pub fn job(test: &str, node_sizes: &str) -> Command {
    let mut words: Vec<OsString> = vec!["--node-sizes".into(), node_sizes.into(), "--".into()];
    words.push(std::env::current_exe().unwrap().into());
    // One test thread: the body then runs on the main thread, and no other thread allocates.
    words.extend([test, "--exact", "--nocapture", "--test-threads=1"].map(OsString::from));
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.arg("run").args(words);
    // A failing rank says why; how it came there is the test's own code.
    command.env("RUST_BACKTRACE", "0");
    command
}
