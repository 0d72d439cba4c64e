//! SIGUSR1 asks any command for the state of its queues, and ends none.

mod launched;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use launched::{Launched, until};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// Sends the signal again and again until something is true: when a process has come far enough to
/// answer is its own affair, and so is how long it takes.
fn ask_until(job: &mut Launched, what: &str, true_now: impl Fn(&mut Launched) -> bool) {
    until(what, || {
        if true_now(job) {
            return true;
        }
        job.signal(libc::SIGUSR1);
        false
    });
}

/// A command that is asked as soon as it has handlers, and must go on to its end.
fn asked(words: &[&str], expected: &str) {
    let mut command = Command::new(TRIHOP);
    command.args(words);
    let mut job = Launched::start(command);
    // Before that it is not the command yet that gets the signal.
    until("SIGUSR1 is handled", || {
        !job.runs() || job.handles(libc::SIGUSR1)
    });
    ask_until(&mut job, "it ended, or said enough", |job| {
        !job.runs() || job.has_said(expected)
    });
    let ended = job.wait();
    assert_eq!(ended.status, 0, "{words:?}: {}", ended.stderr);
    assert!(
        ended.stderr.contains(expected),
        "{words:?}: {}",
        ended.stderr
    );
}

#[test]
fn commands_with_a_job_dump_and_go_on() {
    let count = "5000000";
    for (words, stream) in [
        (&["exchange", "--count", count][..], "`exchange`"),
        (&["exchange", "--count", count, "--threaded"], "`exchange`"),
        (
            &[
                "bench", "a2a", "--ranks", "1", "--nodes", "1", "--size", "8", "--count", count,
            ],
            "stream 1 ",
        ),
    ] {
        asked(words, stream);
    }
}

#[test]
fn ranks_of_a_launcher_dump_and_go_on() {
    let count = "3000000";
    let run = [
        "run", "-n", "2", "--nodes", "2", "--", TRIHOP, "exchange", "--count", count,
    ];
    let mut command = Command::new(TRIHOP);
    command.args(run);
    let mut job = Launched::start(command);
    // Ranks that are still being loaded would be ended: they say when they have handlers.
    until("ranks handle SIGUSR1", || {
        assert!(job.runs(), "it ended early");
        let ranks = job.children_with("exchange");
        ranks.len() == 2 && ranks.iter().all(|id| launched::handles(*id, libc::SIGUSR1))
    });
    ask_until(&mut job, "both ranks dumped", |job| {
        !job.runs()
            || job.has_said("[0] stream 1 `exchange`") && job.has_said("[1] stream 1 `exchange`")
    });
    let ended = job.wait();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    for rank in ["[0]", "[1]"] {
        assert!(
            ended
                .stderr
                .contains(&format!("{rank} stream 1 `exchange`")),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn partition_dumps_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (file, out) = (directory.path().join("a.csv"), directory.path().join("out"));
    std::fs::write(&file, "k,v\n".to_owned() + &"1,2\n3,4\n".repeat(6 << 20)).unwrap();
    let words = ["partition", "--ranks", "1", "--by", "k", "--out"].map(str::to_owned);
    let paths = [out, file].map(|path| path.display().to_string());
    let words: Vec<&str> = words.iter().chain(&paths).map(String::as_str).collect();
    asked(&words, "`partition`");
}

#[test]
fn commands_without_a_job_are_not_ended() {
    for words in [
        &["topo", "--ranks", "200000", "--nodes", "20000"][..],
        &[
            "bench",
            "scale",
            "--ranks",
            "500",
            "--nodes",
            "100",
            "--messages",
            "200",
        ],
        &["info"],
    ] {
        let mut command = Command::new(TRIHOP);
        command.args(words);
        let mut job = Launched::start(command);
        until("SIGUSR1 is handled", || {
            !job.runs() || job.handles(libc::SIGUSR1)
        });
        ask_until(&mut job, "it ended", |job| !job.runs());
        let ended = job.wait();
        assert_eq!(ended.status, 0, "{words:?}: {}", ended.stderr);
    }
}

/// A program that a command starts must not inherit deafness.
#[test]
fn what_the_launcher_starts_is_ended_by_sigusr1_as_ever() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("rank");
    std::fs::write(
        &script,
        "#!/bin/sh\necho ready\nwhile :; do sleep 0.01; done\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(TRIHOP);
    command.args(["run", "-n", "1", "--"]).arg(&script);
    let mut job = Launched::start(command);
    job.wait_for_lines(1);
    job.signal(libc::SIGUSR1);
    assert_eq!(job.wait().status, 128 + libc::SIGUSR1);
}
