//! Agents of `trihop run` under valgrind and perf.

mod launched;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use launched::{Ended, Launched, is_installed};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// A job with agents, as these options say, in this folder.
fn start(folder: &Path, options: &str, count: &str) -> Command {
    let words = format!("--seat agent {options} -- {TRIHOP} exchange --count {count}");
    let mut job = Launched::command(words.split_whitespace().map(str::to_owned));
    job.current_dir(folder);
    job
}

fn run(job: Command) -> Ended {
    Launched::start(job).wait()
}

/// What stands for perf here: it notes its words, leaves a file, and has two samples of one stack.
const FAKE: &str = r#"#!/bin/sh
folder=$(dirname "$0")
echo "$*" >>"$folder/calls"
case $1 in
record)
    while [ "$1" != -- ]; do
        [ "$1" = --output ] && output=$2
        shift
    done
    shift
    echo samples >"$output"
    exec "$@"
    ;;
script)
    test -s "$6" || exit 3
    printf 'agent \n\t 1 inner\n\t 2 outer <a; b>\n\nagent \n\t 3 inner\n\t 2 outer <a; b>\n\n'
    ;;
esac
"#;

#[test]
fn stacks_of_each_agent_are_left_in_the_folder() {
    let (tools, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let perf = tools.path().join("perf");
    fs::write(&perf, FAKE).unwrap();
    fs::set_permissions(&perf, fs::Permissions::from_mode(0o755)).unwrap();
    let shape = "-n 4 --nodes 2 --nics 2 --agent-flamegraph deep/stacks";
    let mut job = start(folder.path(), shape, "100");
    let path = std::env::var("PATH").unwrap_or_default();
    job.env("PATH", format!("{}:{path}", tools.path().display()));
    run(job).succeeded();
    let calls = fs::read_to_string(tools.path().join("calls")).unwrap();
    let stacks = folder.path().join("deep/stacks");
    for agent in ["0.0", "0.1", "1.0", "1.1"] {
        let data = format!("deep/stacks/agent-{agent}.data");
        let recorded = format!("--output {data} -- {TRIHOP} agent --quiet --ranks 2 --name ");
        let count = |what: &str| calls.lines().filter(|line| line.contains(what)).count();
        assert_eq!(count(&recorded), 1, "{calls}");
        assert_eq!(count(&format!("--input {data}")), 1, "{calls}");
        let folded = fs::read_to_string(stacks.join(format!("agent-{agent}.folded"))).unwrap();
        assert_eq!(folded, "agent;outer <a: b>;inner 2\n");
    }
    // What perf does not take is said, and that it has left nothing.
    fs::write(&perf, IDLE).unwrap();
    let mut job = start(folder.path(), "-n 1 --agent-flamegraph empty", "100");
    job.env("PATH", format!("{}:{path}", tools.path().display()));
    let ended = run(job);
    assert_eq!(ended.status, 1, "{}", ended.stderr);
    let why = "perf has not written empty/agent-0.0.data";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
}

/// Runs what it is given, and leaves nothing.
const IDLE: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"#;

/// Before anything is started.
#[test]
fn a_tool_that_is_missing_is_named_with_its_package() {
    let (empty, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // A file of that name is not yet a program.
    fs::write(empty.path().join("perf"), "").unwrap();
    for (option, package) in [
        ("--agent-valgrind", "install the package valgrind"),
        (
            "--agent-flamegraph stacks",
            "install the package linux-perf",
        ),
    ] {
        let words = format!("--seat agent -n 1 {option} -- /bin/sh -c >started");
        let words = words.split_whitespace().map(str::to_owned);
        let mut job = Launched::command(words);
        job.current_dir(folder.path()).env("PATH", empty.path());
        let ended = run(job);
        assert_eq!(ended.status, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(package), "{}", ended.stderr);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    for refused in [
        "-n 1 --agent-valgrind -- true",
        "-n 1 --agent-flamegraph stacks -- true",
        "--seat agent -n 1 --agent-valgrind --agent-flamegraph stacks -- true",
        "--seat agent -n 1 --agent-under env --agent-valgrind -- true",
    ] {
        let words = refused.split_whitespace().map(str::to_owned);
        let mut job = Launched::command(words);
        job.current_dir(folder.path());
        let ended = run(job);
        assert_eq!(ended.status, 2, "{refused}: {}", ended.stderr);
        assert!(ended.stderr.contains("--agent-"), "{}", ended.stderr);
    }
}

#[test]
fn agents_run_under_valgrind_itself() {
    if !is_installed("valgrind") {
        return eprintln!("skipped: valgrind is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    run(start(folder.path(), "-n 2 --agent-valgrind", "100")).succeeded();
    let log = fs::read_to_string(folder.path().join("agent-0.0.valgrind.log")).unwrap();
    assert!(log.contains("ERROR SUMMARY: 0 errors"), "{log}");
}

#[test]
fn agents_run_under_perf_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut tried = Command::new("perf");
    tried.args(["record", "--quiet", "--call-graph", "dwarf"]);
    tried.args(["--output", "tried.data", "--", "true"]);
    tried.current_dir(folder.path());
    if launched::try_run(tried).is_none_or(|ended| ended.status != 0) {
        return eprintln!("skipped: perf is not installed, or may not record here");
    }
    run(start(
        folder.path(),
        "-n 2 --nodes 2 --agent-flamegraph .",
        "300000",
    ))
    .succeeded();
    for agent in ["0.0", "1.0"] {
        let file = folder.path().join(format!("agent-{agent}.folded"));
        let folded = fs::read_to_string(file).unwrap();
        let counts = folded.lines().map(|line| {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            assert!(stack.starts_with("trihop"), "{line}");
            count.parse::<u64>().unwrap()
        });
        assert!(counts.sum::<u64>() > 0, "{folded}");
    }
}

/// What an agent's process ends with counts also once its ranks have ended well.
#[test]
fn an_agent_that_fails_at_its_end_fails_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let fails = folder.path().join("fails");
    fs::write(&fails, "#!/bin/sh\ntrap '' TERM\n\"$@\"\nexit 9\n").unwrap();
    fs::set_permissions(&fails, fs::Permissions::from_mode(0o755)).unwrap();
    let shape = format!("-n 2 --agent-under {}", fails.display());
    let ended = run(start(folder.path(), &shape, "100"));
    assert_eq!(ended.status, 9, "{}", ended.stderr);
}
