//! The examples in Rust, as a stranger starts them: with default options, on
//! any shape of job.

mod launched;

use std::fs;
use std::path::Path;
use std::process::Command;

use launched::{Launched, example, run};

/// Ranks and nodes.
const SHAPES: [(u32, u32); 7] = [(1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (4, 4), (8, 3)];

/// Runs an example on every shape; returns what rank 0 printed each time.
fn printed(program: &Path, arguments: &str) -> Vec<(u32, String)> {
    printed_on(&SHAPES, program, arguments)
}

fn printed_on(shapes: &[(u32, u32)], program: &Path, arguments: &str) -> Vec<(u32, String)> {
    let run = |(ranks, nodes): (u32, u32)| {
        let ranks_and_nodes = [
            "-n".into(),
            ranks.to_string(),
            "--nodes".into(),
            nodes.to_string(),
        ];
        let rest = [
            "--no-prefix".into(),
            "--".into(),
            program.display().to_string(),
        ];
        let arguments = arguments.split(' ').map(str::to_owned);
        let all = ranks_and_nodes.into_iter().chain(rest).chain(arguments);
        let ended = Launched::trihop(all).wait();
        (ranks, ended.succeeded().stdout)
    };
    shapes.iter().copied().map(run).collect()
}

#[test]
fn requests_that_are_answered_on_their_own_stream_do_not_stand_still() {
    for (ranks, text) in printed(&example("trihop", "requests"), "3000") {
        let all = 3000 * ranks;
        let expected = format!("{ranks} ranks: {all} requests, {all} answers, 0 wrong\n");
        assert_eq!(text, expected);
    }
}

#[test]
fn a_queue_of_work_is_done_by_all_ranks() {
    for (ranks, text) in printed(&example("trihop", "channels"), "2000") {
        let expected = format!("{ranks} ranks: 2000 tasks, 2000 results, 0 wrong\n");
        assert_eq!(text, expected);
    }
}

#[test]
fn labels_that_are_forwarded_on_their_own_stream_do_not_stand_still() {
    for (ranks, text) in printed(&example("trihop", "labels"), "4000") {
        let begin = format!("4000 vertices on {ranks} ranks: ");
        assert!(
            text.starts_with(&begin) && text.ends_with(" heard, 0 wrong\n"),
            "{text}"
        );
    }
}

#[test]
fn the_tables_of_a_histogram_have_all_updates() {
    for (ranks, text) in printed(&example("trihop", "histogram"), "50000") {
        let updates = 50_000 * ranks;
        let expected = format!("{ranks} ranks: {updates} updates, 0 tables are wrong\n");
        assert_eq!(text, expected);
    }
}

#[test]
fn steps_of_particles_follow_each_other() {
    for (ranks, text) in printed(&example("trihop", "steps"), "2000") {
        let expected = format!("{ranks} ranks, 100 steps of 2000 particles: 0 wrong\n");
        assert_eq!(text, expected);
    }
}

/// The CHANGELOG is a real text, and the packages of the lock file are a real graph.
fn at_root(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    root.join(name).display().to_string()
}

/// Ranks, nodes, and what a program that is given `arguments` says in its first line behind the
/// name of its file.
fn of_a_file(name: &str, arguments: &str) -> Vec<(u32, String)> {
    let printed = printed(&example("trihop", name), arguments);
    let first = arguments.split(' ').next().unwrap();
    let rest = |text: &str| {
        let line = text.lines().next().unwrap_or_default();
        line.strip_prefix(first)
            .and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or_else(|| panic!("{text}"))
            .to_owned()
    };
    printed
        .iter()
        .map(|(ranks, text)| (*ranks, rest(text)))
        .collect()
}

#[test]
fn words_of_a_text_are_counted() {
    let path = at_root("CHANGELOG.md");
    let text = fs::read(&path).unwrap();
    let words = text.split(|b| b.is_ascii() && !b.is_ascii_alphabetic());
    let words = words.filter(|word| !word.is_empty()).count();
    for (ranks, line) in of_a_file("words", &path) {
        let begin = format!("{ranks} ranks: {words} words, ");
        let is_right = line.starts_with(&begin) && line.ends_with(", 0 tables are wrong");
        assert!(is_right, "{line}");
    }
}

#[test]
fn lines_of_a_file_are_sorted() {
    let folder = tempfile::tempdir().unwrap();
    let sorted = folder.path().join("sorted");
    let path = at_root("CHANGELOG.md");
    let text = fs::read_to_string(&path).unwrap();
    let mut expected: Vec<&str> = text.lines().collect();
    expected.sort_unstable();
    let count = expected.len();
    for (ranks, line) in of_a_file("sort", &format!("{path} {}", sorted.display())) {
        let begin = format!("{ranks} ranks: {count} lines, at most ");
        let is_right = line.starts_with(&begin) && line.ends_with(", 0 parts are wrong");
        assert!(is_right, "{line}");
    }
    // What the last of all shapes has written.
    assert_eq!(
        fs::read_to_string(&sorted).unwrap(),
        expected.join("\n") + "\n"
    );
}

#[test]
fn a_search_finds_all_packages_that_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packages.txt");
    let mut awk = Command::new("awk");
    awk.arg("-f")
        .args(["examples/packages.awk", "Cargo.lock"].map(at_root));
    fs::write(&path, run(awk).succeeded().stdout).unwrap();
    let mut said: Vec<String> = Vec::new();
    for (ranks, line) in of_a_file("bfs", &path.display().to_string()) {
        let behind = line.strip_prefix(&format!("{ranks} ranks: "));
        said.push(behind.expect(&line).to_owned());
    }
    assert!(said[0].ends_with(" steps, 0 wrong"), "{}", said[0]);
    assert!(said.iter().all(|line| *line == said[0]), "{said:?}");
}

#[test]
fn particles_cross_the_borders_of_ranks() {
    for (ranks, text) in printed(&example("trihop", "particles"), "2000 20") {
        let begin = format!("{ranks} ranks, ");
        let end = " crossings in 20 steps, 0 ranks are wrong\n";
        let is_right = text.starts_with(&begin) && text.ends_with(end);
        assert!(is_right && text.contains(": 2000 particles, "), "{text}");
        assert_eq!(text.contains(" 0 crossings"), ranks == 1, "{text}");
    }
}

#[test]
fn two_streams_of_one_job_have_routes_of_their_own() {
    for (ranks, text) in printed(&example("trihop", "routes"), "20000") {
        let all = 20_000 * ranks;
        let expected = format!("{ranks} ranks, requests by mesh: {all} answers, 0 wrong\n");
        assert_eq!(text, expected);
    }
}

#[test]
fn replies_come_in_order_and_counts_are_merged() {
    for (ranks, text) in printed(&example("trihop", "replies"), "0") {
        let all = 100_000 * ranks;
        let expected = format!("{ranks} ranks: 20000 replies in order; {all} counts, ");
        let merged = text
            .strip_prefix(&expected)
            .and_then(|rest| rest.split(' ').next());
        let merged: u64 = merged.and_then(|number| number.parse().ok()).expect(&text);
        assert!(merged > u64::from(all) / 2, "{text}");
    }
}

#[test]
fn a_program_brings_a_route_of_its_own() {
    let program = example("trihop", "own_route");
    for (ranks, text) in printed_on(&[(1, 1), (2, 2), (4, 2), (8, 3)], &program, "500") {
        assert_eq!(
            text,
            format!("{ranks} ranks by halving: 0 have wrong sums\n")
        );
    }
    let refused = Launched::trihop(
        ["-n", "3", "--"]
            .map(str::to_owned)
            .into_iter()
            .chain([program.display().to_string(), "1".to_owned()]),
    );
    let refused = refused.wait();
    assert!(refused.stderr.contains("`halving`: "), "{}", refused.stderr);
}

/// The three cases that RayPlatform has for its mini-ranks: one for each process, seven in a process
/// per node, three in each of two processes per node; and more nodes, with unequal processes.
#[test]
fn ranks_that_are_threads_greet_all_others() {
    let shapes = [
        (1, 1, 1),
        (1, 1, 7),
        (3, 1, 2),
        (4, 2, 1),
        (2, 2, 7),
        (4, 2, 3),
        (4, 4, 5),
        (5, 3, 2),
    ];
    for (processes, nodes, minis) in shapes {
        let program = example("trihop", "minirank");
        let arguments =
            format!("-n {processes} --nodes {nodes} --minis-per-rank {minis} --no-prefix --");
        let arguments = arguments.split_whitespace().map(str::to_owned);
        let arguments = arguments.chain([program.display().to_string()]);
        let ended = Launched::trihop(arguments).wait();
        let mut lines: Vec<String> = ended
            .succeeded()
            .stdout
            .lines()
            .map(str::to_owned)
            .collect();
        let all = processes * minis;
        let line = |rank: u32| format!("rank {rank} heard {all} of {all} greetings");
        let mut expected: Vec<String> = (0..all).map(line).collect();
        lines.sort();
        expected.sort();
        assert_eq!(
            lines, expected,
            "{processes} processes on {nodes} nodes x {minis}"
        );
    }
}
