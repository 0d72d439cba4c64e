//! What goes wrong is told by file and line, on every rank, and leaves nothing behind.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::launched::{Launched, run, try_run, until};
use super::start::{job, leftovers, partition, write};

/// Bad input: name and content of the file that is at fault, further options, and what the message
/// says.
fn bad_inputs() -> Vec<(&'static str, String, Vec<&'static str>, Vec<String>)> {
    let good: String = (0..3000)
        .map(|row| format!("{row},\"two\nlines\"\n"))
        .collect();
    let after = |rows: &str, more: &str| format!("id,v\n{rows}{more}");
    let line = 1 + 2 * 3000 + 1;
    vec![
        (
            "column.csv",
            after(&good, ""),
            vec!["--by", "zip"],
            vec![
                "column.csv:1:".into(),
                "no column `zip`".into(),
                "id, v".into(),
            ],
        ),
        (
            "number.csv",
            after(&good, ""),
            vec!["--by", "3"],
            vec!["number.csv:1:".into(), "no column 3".into()],
        ),
        (
            "short.csv",
            after(&good, &format!("1,2\n7\n{good}")),
            vec!["--by", "id"],
            vec![format!("short.csv:{}:", line + 1), "1 column".into()],
        ),
        (
            "long.csv",
            after(&good, &format!("1,2,3\n{good}")),
            vec!["--by", "id"],
            vec![
                format!("long.csv:{line}:"),
                "3 columns, the header has 2".into(),
            ],
        ),
        (
            "open.csv",
            after(&good, "1,\"never closed\n2,3\n"),
            vec!["--by", "id"],
            vec![format!("open.csv:{line}:"), "never closed".into()],
        ),
        (
            "stray.csv",
            after(&good, &format!("5\" pipe,x\n{good}")),
            vec!["--by", "id"],
            vec![
                format!("stray.csv:{line}:"),
                "inside the unquoted field of column 1".into(),
            ],
        ),
        (
            "behind.csv",
            after(&good, &format!("1,\"a\"b\n{good}")),
            vec!["--by", "id"],
            vec![
                format!("behind.csv:{line}:"),
                "after the closing quote of column 2".into(),
            ],
        ),
        (
            "blank.csv",
            "\nid,v\n1,2\n".into(),
            vec!["--by", "id"],
            vec!["blank.csv:1:".into(), "blank".into()],
        ),
        (
            "torn header.csv",
            "id,\"v\n1,2\n".into(),
            vec!["--by", "id"],
            vec!["torn header.csv:1:".into(), "never closed".into()],
        ),
        (
            "json.jsonl",
            format!(
                "{}{{\"id\":1\n{{\"id\":2}}\n",
                "{\"id\":0}\n\n".repeat(2000)
            ),
            vec!["--by", "id"],
            vec!["json.jsonl:4001:".into(), "not a JSON record".into()],
        ),
        (
            "field.jsonl",
            format!("{}{{\"di\":1}}\n", "{\"id\":0}\n".repeat(2000)),
            vec!["--by", "id"],
            vec!["field.jsonl:2001:".into(), "no `id`".into()],
        ),
        (
            "object.jsonl",
            "{\"id\":{}}\n".into(),
            vec!["--by", "id"],
            vec!["object.jsonl:1:".into(), "is an object".into()],
        ),
    ]
}

#[test]
fn bad_input_is_told_by_file_and_line_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    for (name, content, options, expected) in bad_inputs() {
        let file = write(dir.path(), name, content);
        for (ranks, nodes) in [(1, 1), (4, 2)] {
            let out = dir.path().join(format!("out of {name}"));
            let mut command = partition(ranks, nodes);
            command.args(&options).arg("--out").arg(&out).arg(&file);
            let done = run(command);
            assert!(done.status != 0, "{name}: {}", done.stdout);
            for text in &expected {
                assert!(
                    done.stderr.contains(text.as_str()),
                    "{name}, {ranks} ranks: {text:?} is not in {}",
                    done.stderr
                );
            }
            assert_eq!(leftovers(&out), Vec::<String>::new(), "{name}");
        }
    }
}

/// An empty file has no header in which a key could be looked up; beside others it counts nothing.
/// Lines of JSON have no header, and no lines are none too few.
#[test]
fn tables_that_are_all_empty_are_refused() {
    let dir = TempDir::new().unwrap();
    // What gzip makes of nothing.
    let packed = *b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
    let files = [
        write(dir.path(), "empty.csv", ""),
        write(dir.path(), "mark.csv", "\u{feff}"),
        write(dir.path(), "packed.csv.gz", packed),
        write(dir.path(), "empty.jsonl", ""),
    ];
    let [empty, mark, packed, lines] = &files;
    let header = write(dir.path(), "header.csv", "k,v\n");
    let alone = "the file is empty: there is no header that names the columns of the key";
    let many = "empty.csv: this and all others of 3 files are empty: there is no header";
    for (inputs, options, refused) in [
        (vec![empty], vec!["--by", "k"], Some(alone)),
        (vec![mark], vec!["--by", "k"], Some(alone)),
        (vec![packed], vec!["--by", "1"], Some(alone)),
        (vec![empty, mark, packed], vec!["--by", "k"], Some(many)),
        (vec![empty, &header], vec!["--by", "k"], None),
        (vec![lines], vec!["--by", "k"], None),
    ] {
        for ranks in [1, 4] {
            let out = dir.path().join("out");
            let mut command = partition(ranks, 1);
            command.args(&options).arg("--out").arg(&out).args(&inputs);
            let done = run(command);
            let left = leftovers(&out);
            match refused {
                Some(why) => {
                    assert_eq!(done.status, 1, "{inputs:?}: {}", done.stdout);
                    assert_eq!(done.stderr.matches(why).count(), 1, "{}", done.stderr);
                    assert_eq!(left, Vec::<String>::new(), "{inputs:?}");
                }
                None => {
                    assert_eq!(done.status, 0, "{inputs:?}: {}", done.stderr);
                    assert!(!left.is_empty(), "{inputs:?}");
                    fs::remove_dir_all(&out).unwrap();
                }
            }
        }
    }
}

#[test]
fn the_file_at_fault_is_named_among_many() {
    let dir = TempDir::new().unwrap();
    let good = write(
        dir.path(),
        "good.csv",
        format!("k,v\n{}", "1,2\n".repeat(5000)),
    );
    let missing = dir.path().join("missing.csv");
    let other = write(dir.path(), "other.csv", "k,w\n1,2\n");
    let fewer = write(dir.path(), "fewer.csv", "k\n1\n");
    let late = write(dir.path(), "late.csv", "k,v\n1,2\n\n3\n");
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let cases = [
        (missing, "missing.csv: cannot read: No such file"),
        (empty, "empty: no file is in this directory"),
        (other, "other.csv:1: header differs: column 2 is `w`, in "),
        (fewer, "fewer.csv:1: header differs: 1 columns, 2 in "),
        (
            late,
            "late.csv:4: the record has 1 column, the header has 2",
        ),
    ];
    for (bad, expected) in cases {
        let out = dir.path().join("out");
        let mut command = partition(4, 2);
        command
            .args(["--format", "csv", "--by", "k", "--out"])
            .arg(&out)
            .arg(&good)
            .arg(&bad)
            .arg(&good);
        let done = run(command);
        assert!(
            done.status != 0 && done.stderr.contains(expected),
            "{expected:?} is not in {}",
            done.stderr
        );
        assert_eq!(leftovers(&out), Vec::<String>::new());
    }
}

#[test]
fn every_rank_ends_with_the_bad_status() {
    let dir = TempDir::new().unwrap();
    let statuses = dir.path().join("statuses");
    fs::create_dir(&statuses).unwrap();
    let file = write(
        dir.path(),
        "bad.csv",
        format!("k\n{}", "1\n".repeat(4000) + "1,2\n"),
    );
    let mut command = job(4, 2, "sh");
    let script =
        "\"$0\" partition --by k --out \"$1/out\" \"$1/bad.csv\"; echo $? > \"$1/statuses/$$\"";
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_trihop")])
        .arg(dir.path());
    let done = run(command);
    let told: Vec<String> = fs::read_dir(&statuses)
        .unwrap()
        .map(|entry| {
            fs::read_to_string(entry.unwrap().path())
                .unwrap()
                .trim()
                .to_owned()
        })
        .collect();
    assert_eq!(told, ["1"; 4], "{}", done.stderr);
    assert_eq!(
        done.stderr.matches("bad.csv:4002:").count(),
        1,
        "told once: {}",
        done.stderr
    );
    assert!(file.exists());
}

#[test]
fn a_record_above_the_longest_message_is_told() {
    let dir = TempDir::new().unwrap();
    let file = write(
        dir.path(),
        "large.csv",
        format!("k,v\n1,2\n3,{}\n4,5\n", "x".repeat(200_000)),
    );
    let out = dir.path().join("out");
    let mut command = partition(4, 2);
    command
        .env("TRIHOP_MAX_MESSAGE_BYTES", "100000")
        .args(["--by", "k", "--out"])
        .arg(&out)
        .arg(&file);
    let done = run(command);
    assert!(done.status != 0);
    assert!(
        done.stderr.contains("large.csv:3:") && done.stderr.contains("TRIHOP_MAX_MESSAGE_BYTES"),
        "{}",
        done.stderr
    );
    assert_eq!(leftovers(&out), Vec::<String>::new());
}

/// A file system of its own, gone at the end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut command = Command::new("umount");
        command.arg(&self.0);
        let _ = try_run(command);
    }
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("small");
    fs::create_dir(&out).unwrap();
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&out);
    if try_run(mount).is_none_or(|mount| mount.status != 0) {
        eprintln!(
            "skipped a_full_disk_is_told_and_leaves_nothing: mounting a small tmpfs needs root"
        );
        return;
    }
    let _mounted = Mounted(out.clone());
    let rows: String = (0..20_000)
        .map(|row| format!("{row},{}\n", "x".repeat(200)))
        .collect();
    let file = write(dir.path(), "big.csv", format!("k,v\n{rows}"));
    for (ranks, nodes) in [(1, 1), (4, 2)] {
        let mut command = partition(ranks, nodes);
        command.args(["--by", "k", "--out"]).arg(&out).arg(&file);
        let done = run(command);
        assert!(done.status != 0);
        assert!(
            done.stderr.contains("No space left on device"),
            "{}",
            done.stderr
        );
        let named = done.stderr.lines().any(|line| {
            line.split_once("part-")
                .is_some_and(|(_, rest)| rest.get(5..10) == Some(".csv:"))
        });
        assert!(named, "part and line are named: {}", done.stderr);
        assert_eq!(leftovers(&out), Vec::<String>::new());
    }
}

#[test]
fn bad_options_are_refused_before_anything_is_touched() {
    let dir = TempDir::new().unwrap();
    let file = write(dir.path(), "a.txt", "k\n1\n");
    let out = dir.path().join("out");
    for (options, io, expected) in [
        (vec![], "auto", "tells no format"),
        (vec!["--format", "csv"], "fast", "TRIHOP_IO=fast"),
        (
            vec!["--format", "jsonl", "--by", "/a~x"],
            "auto",
            "JSON pointer",
        ),
    ] {
        let mut command = partition(1, 1);
        command
            .env("TRIHOP_IO", io)
            .args(&options)
            .arg("--out")
            .arg(&out)
            .arg(&file);
        if !options.contains(&"--by") {
            command.args(["--by", "k"]);
        }
        let done = run(command);
        assert_eq!(done.status, 2, "{}", done.stderr);
        assert!(
            done.stderr.contains(expected),
            "{expected:?} is not in {}",
            done.stderr
        );
        assert!(!out.exists());
    }
}

#[test]
fn a_signal_removes_the_temporary_file() {
    let dir = TempDir::new().unwrap();
    let file = write(dir.path(), "long.csv", "k,v\n1,2\n3,4\n".repeat(8 << 20));
    let out = dir.path().join("out");
    let mut command = partition(1, 1);
    command.args(["--by", "1", "--out"]).arg(&out).arg(&file);
    let mut job = Launched::start(command);
    until("it writes", || {
        assert!(job.runs(), "it ended before it began to write");
        !leftovers(&out).is_empty()
    });
    job.signal(libc::SIGTERM);
    assert_ne!(job.wait().status, 0);
    assert_eq!(leftovers(&out), Vec::<String>::new());
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_names_the_feature() {
    let dir = TempDir::new().unwrap();
    let file = write(dir.path(), "a.parquet", "PAR1");
    for (ranks, nodes) in [(1, 1), (4, 2)] {
        let out = dir.path().join("out");
        let mut command = partition(ranks, nodes);
        command.args(["--by", "id", "--out"]).arg(&out).arg(&file);
        let told = run(command);
        assert_eq!(told.status, 2, "{}", told.stderr);
        assert!(
            told.stderr
                .contains("a.parquet: this build does not read Parquet")
                && told.stderr.contains("cargo feature `parquet`"),
            "{}",
            told.stderr
        );
        assert!(leftovers(&out).is_empty());
    }
}

/// Each rank is in a directory of its own, as on a disk of its node alone.
#[test]
fn a_directory_that_ranks_do_not_share_is_named() {
    let dir = TempDir::new().unwrap();
    let input = write(dir.path(), "in.csv", "k\n1\n2\n");
    let script = "mkdir $TRIHOP_RANK && cd $TRIHOP_RANK && exec \"$@\"";
    let mut command = job(2, 2, "sh");
    command
        .current_dir(dir.path())
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_trihop")])
        .args(["partition", "--by", "k", "--out", "parts"])
        .arg(&input);
    let told = run(command);
    assert_eq!(told.status, 2, "{}", told.stderr);
    for part in ["parts of rank 1 on ", "all nodes share"] {
        assert!(told.stderr.contains(part), "{part}: {}", told.stderr);
    }
    for rank in ["0", "1"] {
        let left = leftovers(&dir.path().join(rank).join("parts"));
        assert!(left.is_empty(), "{left:?}");
    }
}
