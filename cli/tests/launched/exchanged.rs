//! Exchanges as tests start them, and what is expected of them.

use std::process::Command;

use serde_json::Value;

use super::{Ended, try_run};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// What is expected of an exchange.
pub trait Exchanged {
    /// The report of an exchange of `messages` messages in which nothing was lost.
    fn report(&self, messages: u64) -> Value;

    /// A refusal with this exit status that names all of `texts`.
    fn refused(&self, status: i32, texts: &[&str]);
}

impl Exchanged for Ended {
    #[track_caller]
    fn report(&self, messages: u64) -> Value {
        assert_eq!(self.status, 0, "{}\n{}", self.stdout, self.stderr);
        let report: Value = serde_json::from_str(self.stdout.trim()).expect(&self.stdout);
        assert_eq!(report["messages"], messages, "{report}");
        assert_eq!(
            (&report["checked"], &report["faults"]),
            (&true.into(), &0.into()),
            "{report}"
        );
        report
    }

    #[track_caller]
    fn refused(&self, status: i32, texts: &[&str]) {
        assert_eq!(self.status, status, "{}\n{}", self.stdout, self.stderr);
        for text in texts {
            assert!(
                self.stderr.contains(text),
                "no `{text}` in: {}",
                self.stderr
            );
        }
        assert_eq!(self.stdout, "", "a refused exchange reports nothing");
    }
}

/// An exchange on nodes of these sizes, by `trihop run`.
pub fn exchange(node_sizes: &str, options: &str) -> Command {
    let mut command = Command::new(TRIHOP);
    command
        .args([
            "run",
            "--no-prefix",
            "--node-sizes",
            node_sizes,
            "--",
            TRIHOP,
            "exchange",
            "--json",
        ])
        .args(options.split_whitespace());
    command
}

pub fn with(mut command: Command, variables: &[(&str, &str)]) -> Command {
    command.envs(variables.iter().copied());
    command
}

/// The first of these programs that says `word` when asked for its version; says so when there is
/// none.
pub fn launcher(programs: &[&'static str], word: &str) -> Option<&'static str> {
    let is = |program: &&&str| {
        let mut command = Command::new(program);
        command.arg("--version");
        try_run(command).is_some_and(|ended| (ended.stdout + &ended.stderr).contains(word))
    };
    let found = programs.iter().find(is).copied();
    if found.is_none() {
        eprintln!("skipped: none of {programs:?} is here and says `{word}`");
    }
    found
}
