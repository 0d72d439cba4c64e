//! `trihop partition` as a user starts it, against a reference of its own.

mod bad;
mod bad_lines;
mod inputs;
#[path = "../launched/mod.rs"]
mod launched;
mod order;
mod progress;
mod reference;
mod split;
mod start;
mod streams;

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use inputs::tricky_tables;
use launched::{is_installed, run};
use reference::{CSV, Kind, check};
use start::{leftovers, partition, write};

/// Ranks and nodes; a job of one rank is the process itself.
const SHAPES: [(u32, u32); 7] = [(1, 1), (2, 1), (3, 1), (4, 2), (3, 3), (4, 4), (8, 2)];

#[test]
fn partitions_equal_a_single_process_reference() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    for (ranks, nodes) in SHAPES {
        for (key, io) in [("the key", "auto"), ("2", "plain")] {
            let out = dir.path().join(format!("out-{ranks}-{nodes}-{io}"));
            let mut command = partition(ranks, nodes);
            command
                .env("TRIHOP_IO", io)
                .args(["--by", key, "--out"])
                .arg(&out)
                .args(&files);
            let done = run(command).succeeded();
            check(&out, &files, CSV, 1, ranks);
            assert!(done.stdout.contains("nothing lost"), "{}", done.stdout);
        }
    }
}

#[test]
fn without_a_launcher_it_starts_its_ranks() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    let cores = std::thread::available_parallelism().unwrap().get() as u32;
    for (ranks, expected) in [(Some("3"), 3), (None, cores)] {
        let out = dir.path().join(format!("out-{expected}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
        command
            .args(["partition", "--by", "the key", "--out"])
            .arg(&out);
        command.args(ranks.map(|ranks| format!("--ranks={ranks}")));
        command.args(&files);
        run(command).succeeded();
        check(&out, &files, CSV, 1, expected);
    }
    let mut wrong = start::alone(3);
    wrong
        .args(["--by", "none", "--out"])
        .arg(dir.path().join("none"))
        .args(&files);
    let told = run(wrong);
    assert_eq!(
        (told.status, told.stderr.lines().count()),
        (1, 1),
        "{}",
        told.stderr
    );
    let mut nested = partition(2, 1);
    nested.args(["--ranks", "2", "--by", "the key", "--out"]);
    nested.arg(dir.path().join("none")).args(&files);
    let refused = run(nested);
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("already"), "{}", refused.stderr);
}

#[test]
fn mpiexec_and_mpirun_start_it_too() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    for (launcher, options) in [
        (
            "mpiexec.hydra",
            "-launcher fork -hosts 127.0.0.1,127.0.0.2 -ppn 2 -n 4",
        ),
        ("mpirun.openmpi", "--allow-run-as-root --oversubscribe -n 4"),
    ] {
        if !is_installed(launcher) {
            eprintln!("skipped: {launcher} is not installed");
            continue;
        }
        let out = dir.path().join(launcher);
        let mut command = Command::new(launcher);
        command
            .args(options.split_whitespace())
            .arg(env!("CARGO_BIN_EXE_trihop"))
            .args(["partition", "--by", "the key", "--out"])
            .arg(&out)
            .args(&files)
            .env("TRIHOP_LOOPBACK", "1");
        run(command).succeeded();
        check(&out, &files, CSV, 1, 4);
    }
}

#[test]
fn few_bytes_for_many_ranks() {
    let dir = TempDir::new().unwrap();
    for (name, content) in [
        ("header.csv", "k"),
        ("one.csv", "k\n1"),
        ("two.csv", "k\r\n\"1\n2\"\r\n3\r\n"),
    ] {
        let file = write(dir.path(), name, content);
        let out = dir.path().join(format!("out of {name}"));
        let mut command = partition(8, 2);
        command.args(["--by", "k", "--out"]).arg(&out).arg(&file);
        run(command).succeeded();
        check(&out, &[file], CSV, 0, 8);
    }
}

#[test]
fn tab_separated_with_and_without_quotes() {
    let dir = TempDir::new().unwrap();
    let quoted = write(
        dir.path(),
        "quoted.tsv",
        "k\tv\n\"a\tb\"\t\"1\n2\"\nc,\t3\n",
    );
    let rows: String = (0..500)
        .map(|row| format!("\"{} inch\t5\" pipe {row}\n", row % 17))
        .collect();
    let bare = write(dir.path(), "bare.tsv", format!("k\tv\n{rows}"));
    for (file, quotes) in [(quoted, true), (bare, false)] {
        let out = dir.path().join(format!("out-{quotes}"));
        let mut command = partition(4, 2);
        command.args(["--by", "k", "--out"]).arg(&out).arg(&file);
        if !quotes {
            command.arg("--no-quotes");
        }
        run(command).succeeded();
        check(
            &out,
            &[file],
            Kind::Table {
                separator: b'\t',
                quotes,
            },
            0,
            4,
        );
    }
}

#[test]
fn json_lines_by_name_and_pointer() {
    let dir = TempDir::new().unwrap();
    let rows: String = (0..2000)
        .map(|row| match row % 4 {
            0 => format!("{{\"key\":{row},\"x\":\"\\\"\"}}\n"),
            1 => format!("{{\"x\":[{{}}],\"key\":\"name \\u00e9 {row}\"}}\r\n"),
            2 => format!(" {{ \"key\" : null , \"n\" : {row} }}\n\n"),
            _ => format!("{{\"key\":\"{}\",\"n\":{row}}}\n", "z".repeat(row)),
        })
        .collect();
    let file = write(
        dir.path(),
        "rows.jsonl",
        format!("\u{FEFF}{rows}{{\"key\":true}}"),
    );
    for key in ["key", "/key"] {
        let out = dir.path().join(format!("out{}", key.len()));
        let mut command = partition(4, 2);
        command
            .args(["--json", "--by", key, "--out"])
            .arg(&out)
            .arg(&file);
        let done = run(command).succeeded();
        check(&out, std::slice::from_ref(&file), Kind::Lines, 0, 4);
        assert!(
            done.stdout.contains("\"command\":\"partition\""),
            "{}",
            done.stdout
        );
    }
}

#[test]
fn old_partitions_are_replaced_only_by_force() {
    let dir = TempDir::new().unwrap();
    let file = write(
        dir.path(),
        "a.csv",
        format!("k,v\n{}", "1,2\n3,4\n".repeat(100)),
    );
    let out = dir.path().join("out");
    let start = |ranks, options: &[&str]| {
        let mut command = partition(ranks, 1);
        command
            .args(options)
            .args(["--by", "k", "--out"])
            .arg(&out)
            .arg(&file);
        run(command)
    };
    start(4, &[]).succeeded();
    let refused = start(2, &[]);
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("already holds") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    check(&out, std::slice::from_ref(&file), CSV, 0, 4);
    start(2, &["--force"]).succeeded();
    check(&out, std::slice::from_ref(&file), CSV, 0, 2);
    fs::write(&file, "k,v\n1\n").unwrap();
    assert_eq!(start(2, &["--force"]).status, 1);
    assert_eq!(
        leftovers(&out).len(),
        3,
        "a failed job leaves the old partitions"
    );
}

#[test]
fn the_real_input_is_partitioned_without_loss() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/cities.csv");
    if !file.exists() {
        eprintln!("skipped the_real_input_is_partitioned_without_loss: data/fetch.sh was not run");
        return;
    }
    let dir = TempDir::new().unwrap();
    for (key, column) in [("geonameid", 0), ("countrycode", 4)] {
        let out = dir.path().join(key);
        let mut command = partition(8, 2);
        command.args(["--by", key, "--out"]).arg(&out).arg(&file);
        run(command).succeeded();
        check(&out, std::slice::from_ref(&file), CSV, column, 8);
    }
}
