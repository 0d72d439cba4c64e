//! Records that cannot be taken, where they do not end the job.

use std::fs;

use tempfile::TempDir;

use super::launched::run;
use super::reference::{CSV, part_of, records};
use super::start::{leftovers, partition, write};

#[test]
fn bad_lines_are_left_out_or_kept_and_counted() {
    let dir = TempDir::new().unwrap();
    let mut table = "k,v\n".to_owned();
    let mut bad = Vec::new();
    for row in 0..4000 {
        let line = match row % 400 {
            7 => format!("{row}"),
            8 => format!("{row},\"two\nlines\",3"),
            9 => format!("{row},5\" pipe\" x"),
            _ => {
                table += &format!("{row},\"two\nlines\"\n");
                continue;
            }
        };
        bad.push(line.clone().into_bytes());
        table += &(line + "\n");
    }
    bad.sort();
    let file = write(dir.path(), "a.csv", table);
    for (ranks, nodes) in [(1, 1), (4, 2)] {
        for what in ["skip", "keep"] {
            for options in [&[][..], &["--in-order"], &["--split", "value"]] {
                let out = dir
                    .path()
                    .join(format!("out-{ranks}-{what}-{}", options.len()));
                let mut command = partition(ranks, nodes);
                command
                    .args(["--force", "--json", "--on-bad-line", what])
                    .args(options);
                command.args(["--by", "k", "--out"]).arg(&out).arg(&file);
                let done = run(command).succeeded();
                let told: serde_json::Value =
                    serde_json::from_slice(&fs::read(out.join("_SUCCESS")).unwrap()).unwrap();
                assert_eq!(told["bad_lines"], bad.len(), "{}", done.stdout);
                let first = told["first_bad_line"].as_str().unwrap();
                assert!(
                    first.contains("a.csv:16: the record has 1 column"),
                    "{first}"
                );
                let skipped = out.join("_skipped.csv");
                let kept = match options {
                    ["--split", _] => out.join("k=__HIVE_DEFAULT_PARTITION__/part-00000.csv"),
                    _ => out.join(format!("part-{:05}.csv", part_of(b"", ranks))),
                };
                let of = if what == "skip" { &skipped } else { &kept };
                let mut found = records(&fs::read(of).unwrap(), CSV);
                found.retain(|record| bad.contains(record));
                found.sort();
                assert!(found == bad, "{what} {options:?} on {ranks} ranks");
                assert_eq!(skipped.exists(), what == "skip");
                let good = 4000 - bad.len() as u64;
                let all = if what == "skip" { good } else { 4000 };
                assert_eq!(told["records"], all, "{}", done.stdout);
            }
        }
    }
}

#[test]
fn json_without_a_key_is_left_out() {
    let dir = TempDir::new().unwrap();
    let text = "{\"k\":1}\nnonsense\n{\"x\":1}\n\n{\"k\":2}\n".repeat(500);
    let file = write(dir.path(), "a.jsonl", text);
    let out = dir.path().join("out");
    let mut command = partition(3, 1);
    command
        .args(["--on-bad-line", "skip", "--by", "k", "--out"])
        .arg(&out)
        .arg(&file);
    let done = run(command).succeeded();
    assert!(
        done.stdout.contains("1000 left out, in _skipped"),
        "{}",
        done.stdout
    );
    assert!(
        done.stdout.contains("a.jsonl:2: not a JSON record"),
        "{}",
        done.stdout
    );
    let skipped = fs::read_to_string(out.join("_skipped.jsonl")).unwrap();
    assert_eq!(
        skipped.lines().filter(|line| *line == "nonsense").count(),
        500
    );
    assert_eq!(skipped.lines().count(), 1000);
}

#[test]
fn quotes_out_of_place_over_several_lines_end_the_job_all_the_same() {
    let dir = TempDir::new().unwrap();
    for row in ["2,6\" pipe", "2,\"x\""] {
        let file = write(
            dir.path(),
            "a.csv",
            format!("k,v\n1,5\" pipe\n{row}\n3,4\n"),
        );
        let out = dir.path().join("out");
        let mut command = partition(2, 1);
        command
            .args(["--on-bad-line", "skip", "--by", "k", "--out"])
            .arg(&out)
            .arg(&file);
        let done = run(command);
        assert_eq!(done.status, 1, "{row}: {}", done.stdout);
        assert!(
            done.stderr.contains("a.csv:2: quote inside"),
            "{}",
            done.stderr
        );
        assert_eq!(leftovers(&out), Vec::<String>::new());
    }
}
