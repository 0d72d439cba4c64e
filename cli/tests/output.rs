//! What commands write: it arrives or the command fails, and nothing in it acts on a terminal.

mod launched;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use launched::{Launched, run};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// Commands that print something, short ones, as words.
fn commands() -> Vec<Vec<String>> {
    let rank = format!("run -n 1 -- {TRIHOP} exchange --count 10");
    let words = [
        "--help",
        "--version",
        "exchange --help",
        "info",
        "info --json",
        "topo --ranks 4 --nodes 2",
        "topo --ranks 4 --nodes 2 --json",
        "exchange --count 10",
        "exchange --count 10 --json",
        "bench a2a --ranks 1 --nodes 1 --count 100 --size 8 --reps 3",
        "bench a2a --ranks 1 --nodes 1 --count 100 --size 8 --reps 3 --json",
        "bench ring --count 10 --size 8 --reps 3",
        "bench scale --ranks 64 --nodes 8 --messages 1000",
        "bench scale --ranks 64 --nodes 8 --messages 1000 --json",
        "run -n 1 -- echo text",
        &rank,
    ];
    words
        .iter()
        .map(|words| words.split(' ').map(str::to_owned).collect())
        .collect()
}

/// A table to partition, below `directory`, and the words for it.
fn partition(directory: &std::path::Path, json: bool) -> Vec<String> {
    let (file, out) = (directory.join("a.csv"), directory.join("out"));
    fs::write(&file, "k\n1\n2\n").unwrap();
    let mut words = vec!["partition", "--by", "k", "--force", "--out"];
    let (file, out) = (file.display().to_string(), out.display().to_string());
    words.extend([&out[..], &file[..]]);
    words.extend(json.then_some("--json"));
    words.into_iter().map(str::to_owned).collect()
}

fn all_commands(directory: &std::path::Path) -> Vec<Vec<String>> {
    let mut all = commands();
    all.extend([partition(directory, false), partition(directory, true)]);
    all
}

/// A command under a shell that does `before` and then becomes the command.
fn under_shell(before: &str, words: &[String]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{before}\nexec \"$@\""), "sh", TRIHOP])
        .args(words);
    command
}

/// How each benchmark is kept short: words behind its name.
const BENCHMARKS: [(&str, &str); 16] = [
    ("ring", "--count 20 --size 8 --size 1048576"),
    ("p2p", "--count 10 --size 8 --size 1048576"),
    ("histo", "--ranks 8 --nodes 2 --count 2000"),
    ("ig", "--ranks 8 --nodes 2 --count 500"),
    (
        "a2a",
        "--ranks 8 --nodes 2 --count 20 --size 8 --size 65536",
    ),
    ("agups", "--ranks 8 --nodes 2 --count 500"),
    ("cc", "--ranks 8 --nodes 2 --count 2000"),
    ("around", "--ranks 4 --nodes 2 --count 5"),
    ("round", "--ranks 8 --nodes 2 --size 8 --count 5"),
    ("push", "--ranks 8 --nodes 2 --count 200"),
    ("channel", "--count 20"),
    ("attach", "--count 3"),
    ("startup", "--ranks 4 --nodes 2"),
    ("exchange", "--ranks 8 --nodes 2 --count 100"),
    ("skew", "--ranks 8 --nodes 2 --count 500"),
    ("scale", "--ranks 64 --nodes 8 --messages 1000"),
];

/// The benchmarks that there are, as `trihop bench --help` lists them.
fn benchmarks() -> Vec<String> {
    let mut command = Command::new(TRIHOP);
    command.args(["bench", "--help"]);
    let help = run(command).succeeded().stdout;
    let values = help.split_once("Possible values:").unwrap().1;
    let values = values.split_once("Options:").unwrap().0;
    let named = values
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- "));
    named
        .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
        .collect()
}

/// Fails where a line of what a command prints is too long for a terminal of 80 columns, but for
/// the names of files below `directory`.
fn assert_fits(words: &[&str], directory: &std::path::Path) {
    let mut command = Command::new(TRIHOP);
    command.args(words);
    let ended = run(command).succeeded();
    assert_ne!(ended.stdout, "", "{words:?}");
    for line in ended.stdout.lines() {
        // The name of a file is as long as it is.
        let is_name = line.contains(directory.to_str().unwrap());
        let fits = line.chars().count() <= 80 || is_name;
        assert!(fits, "{words:?}: {line}");
    }
}

/// Tables are for terminals of 80 columns, also those of eight ranks.
#[test]
fn tables_fit_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let exchange = "exchange --count 500 --detail";
    for words in [
        "info",
        "info --verbose",
        "topo --ranks 10240 --nodes 320",
        "topo --ranks 10240 --nodes 320 --nics 4",
        "topo --ranks 64 --nodes 4 --route mesh:8x8",
        "topo --ranks 64 --nodes 4 --rank 0,63",
        "topo --ranks 1024 --nodes 32 --advise",
        &format!("run -n 8 --nodes 2 -- {TRIHOP} exchange --count 500"),
        &format!("run -n 8 --nodes 2 --no-prefix -- {TRIHOP} {exchange}"),
        &format!("run -n 2 --nodes 2 --no-prefix -- {TRIHOP} {exchange} --usage --threaded"),
        &format!("run -n 8 --nodes 2 --no-prefix -- {TRIHOP} topo"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        assert_fits(&words, directory.path());
    }
    for by_value in [false, true] {
        let mut words = partition(directory.path(), false);
        words.extend(by_value.then(|| "--split=value".to_owned()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_fits(&words, directory.path());
    }
}

#[test]
fn tables_of_every_benchmark_fit_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    for name in benchmarks() {
        let short = BENCHMARKS.iter().filter(|(of, _)| *of == name);
        let mut shown = 0;
        for (_, words) in short {
            let words = ["bench", &name]
                .into_iter()
                .chain(words.split(' '))
                .collect::<Vec<_>>();
            assert_fits(&words, directory.path());
            shown += 1;
        }
        assert!(shown > 0, "{name} is not among BENCHMARKS");
    }
}

#[test]
fn output_that_a_full_device_does_not_take_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    for words in all_commands(directory.path()) {
        let ended = run(under_shell("exec > /dev/full", &words));
        assert_eq!(ended.status, 1, "{words:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("No space left on device"),
            "{words:?}: {}",
            ended.stderr
        );
        assert!(
            !ended.stderr.contains("panicked"),
            "{words:?}: {}",
            ended.stderr
        );
    }
    let parts = directory.path().join("out/_SUCCESS");
    assert!(parts.exists(), "what was partitioned stays");
}

#[test]
fn a_pipe_that_nobody_reads_ends_commands_quietly() {
    let directory = tempfile::tempdir().unwrap();
    for words in all_commands(directory.path()) {
        let mut command = Launched::start(under_shell("read go", &words));
        command.hang_up();
        command.stdin().write_all(b"go\n").unwrap();
        let ended = command.wait();
        assert_eq!(ended.stderr, "", "{words:?}");
        // The launcher ends as `yes | head` does, and its ranks with it; all others have done their
        // work.
        let may_launch = matches!(&words[0][..], "bench" | "partition");
        let launcher = words[0] == "run" || may_launch && ended.status != 0;
        let expected = if launcher { 128 + libc::SIGPIPE } else { 0 };
        assert_eq!(ended.status, expected, "{words:?}");
    }
}

/// Whether a terminal would take anything in it for a command.
fn acts_on_a_terminal(text: &str) -> bool {
    text.chars()
        .any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
}

#[test]
fn names_and_lines_of_inputs_say_nothing_to_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let hostile = directory
        .path()
        .join(OsStr::from_bytes(b"a\x1b[31m\n\xff.csv"));
    let out = directory.path().join("out");
    let files: [(&[u8], &str); 4] = [
        (b"a\x1b]0;title\x07,b\n1,2\n", "a\\u{1b}]0;title\\u{7}"),
        (b"a,b\n1,2\n\"\x1b[2J", "never closed"),
        ("a\u{9b}31m,b\n1,2\n".as_bytes(), "a\\u{9b}31m"),
        (b"a\xff,b\n1,2\n", "a\\xff"),
    ];
    for (ranks, nodes) in [("1", "1"), ("2", "2")] {
        for (content, shown) in files {
            fs::write(&hostile, content).unwrap();
            let mut command = Command::new(TRIHOP);
            command.args([
                "run",
                "-n",
                ranks,
                "--nodes",
                nodes,
                "--",
                TRIHOP,
                "partition",
            ]);
            let key = if shown == "never closed" {
                "b"
            } else {
                "missing"
            };
            command.args(["--by", key, "--out"]).arg(&out).arg(&hostile);
            let ended = run(command);
            assert_ne!(ended.status, 0);
            assert!(!acts_on_a_terminal(&ended.stderr), "{:?}", ended.stderr);
            assert!(ended.stderr.contains(shown), "{shown}: {}", ended.stderr);
            assert!(
                ended.stderr.contains(r"a\u{1b}[31m\n\xff.csv"),
                "{}",
                ended.stderr
            );
        }
    }
    // The same in what is written when all is well.
    fs::write(&hostile, "k\n1\n").unwrap();
    let out = directory.path().join("out\u{1b}[1m\u{9b}2m");
    for json in [false, true] {
        let mut command = Command::new(TRIHOP);
        command
            .args(["partition", "--by", "k", "--force", "--out"])
            .arg(&out)
            .arg(&hostile);
        command.args(json.then_some("--json"));
        let ended = run(command).succeeded();
        assert!(!acts_on_a_terminal(&ended.stdout), "{:?}", ended.stdout);
        assert!(ended.stdout.contains("[1m"), "{}", ended.stdout);
    }
}

#[test]
fn log_lines_of_commands_say_nothing_to_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log\u{1b}[31m/none");
    let mut command = Command::new(TRIHOP);
    command
        .args(["exchange", "--count", "10"])
        .env("TRIHOP_LOG_FILE", &log);
    let ended = run(command);
    assert!(!acts_on_a_terminal(&ended.stderr), "{:?}", ended.stderr);
    assert!(ended.stderr.contains(r"log\u{1b}[31m"), "{}", ended.stderr);
}
