//! `trihop partition` as a user starts it, against a reference of its own that reads everything in one process.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Ranks and nodes; a job of one rank runs without launcher.
const SHAPES: [(u32, u32); 7] = [(1, 1), (2, 1), (3, 1), (4, 2), (3, 3), (4, 4), (8, 2)];

/// What a finished command left.
struct Done {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Done {
    #[track_caller]
    fn succeeded(self) -> Self {
        assert!(
            self.status.success(),
            "{}\n{}\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }
}

/// Ends the process that it started, and its group, when the test is given up.
struct Watched(Child);

impl Drop for Watched {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            if let Some(group) = rustix::process::Pid::from_raw(self.0.id() as i32) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}

/// Runs a command to its end; a watchdog turns a hang into a failure.
fn run(mut command: Command) -> Done {
    let dir = TempDir::new().unwrap();
    let (stdout, stderr) = (dir.path().join("stdout"), dir.path().join("stderr"));
    command
        .stdin(Stdio::null())
        .stdout(fs::File::create(&stdout).unwrap())
        .stderr(fs::File::create(&stderr).unwrap())
        .process_group(0);
    let mut child = Watched(command.spawn().unwrap());
    let started = Instant::now();
    let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(
            started.elapsed() < Duration::from_secs(180),
            "hangs: {command:?}\n{}\n{}",
            text(&stdout),
            text(&stderr)
        );
        std::thread::sleep(Duration::from_millis(5));
    };
    Done {
        status,
        stdout: text(&stdout),
        stderr: text(&stderr),
    }
}

/// `trihop run` with the program that every rank runs, or that program alone.
fn launched(ranks: u32, nodes: u32, program: &str) -> Command {
    if ranks == 1 {
        return Command::new(program);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.args([
        "run",
        "-n",
        &ranks.to_string(),
        "--nodes",
        &nodes.to_string(),
        "--",
        program,
    ]);
    command
}

fn partition(ranks: u32, nodes: u32) -> Command {
    let mut command = launched(ranks, nodes, env!("CARGO_BIN_EXE_trihop"));
    command.arg("partition");
    command
}

/// How the reference tells records apart.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Table { separator: u8, quotes: bool },
    Lines,
}

const CSV: Kind = Kind::Table {
    separator: b',',
    quotes: true,
};

/// Records of a file without line ends, blank lines left out; one byte at a time.
fn records(file: &[u8], kind: Kind) -> Vec<Vec<u8>> {
    let file = file.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(file);
    let (mut all, mut record, mut quoted) = (Vec::new(), Vec::new(), false);
    for &byte in file.iter().chain(if file.ends_with(b"\n") {
        b"".iter()
    } else {
        b"\n".iter()
    }) {
        if byte == b'"' && matches!(kind, Kind::Table { quotes: true, .. }) {
            quoted = !quoted;
        }
        if byte == b'\n' && !quoted {
            if record.last() == Some(&b'\r') {
                record.pop();
            }
            if !record.is_empty() {
                all.push(std::mem::take(&mut record));
            }
        } else {
            record.push(byte);
        }
    }
    all
}

/// The field number `column` (from 0) of a record, unquoted.
fn field(record: &[u8], column: usize, kind: Kind) -> Vec<u8> {
    let Kind::Table { separator, quotes } = kind else {
        let value: serde_json::Value = serde_json::from_slice(record).unwrap();
        return match &value["key"] {
            serde_json::Value::String(text) => text.clone().into_bytes(),
            other => other.to_string().into_bytes(),
        };
    };
    let (mut fields, mut quoted, mut at) = (vec![Vec::new()], false, 0);
    while at < record.len() {
        let byte = record[at];
        match byte {
            b'"' if quotes && quoted && record.get(at + 1) == Some(&b'"') => {
                fields.last_mut().unwrap().push(b'"');
                at += 1;
            }
            b'"' if quotes => quoted = !quoted,
            _ if byte == separator && !quoted => fields.push(Vec::new()),
            _ => fields.last_mut().unwrap().push(byte),
        }
        at += 1;
    }
    fields.swap_remove(column)
}

/// Checks that DIR holds exactly the records of `files`, each in the partition of its key, and the marker.
fn check(out: &Path, files: &[PathBuf], kind: Kind, column: usize, ranks: u32) {
    let mut expected: Vec<HashMap<Vec<u8>, i64>> = vec![HashMap::new(); ranks as usize];
    let mut header = None;
    let mut count = 0;
    for file in files {
        let mut records = records(&fs::read(file).unwrap(), kind);
        if kind != Kind::Lines && !records.is_empty() {
            header.get_or_insert(records.remove(0));
        }
        for record in records {
            let hash = xxhash_rust::xxh3::xxh3_64(&field(&record, column, kind));
            let owner = (u128::from(hash) * u128::from(ranks)) >> 64;
            *expected[owner as usize].entry(record).or_default() += 1;
            count += 1;
        }
    }
    let mut names: Vec<String> = fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let parts = (0..ranks).map(|rank| format!("part-{rank:05}"));
    assert_eq!(
        names,
        ["_SUCCESS".to_owned()]
            .into_iter()
            .chain(parts.clone())
            .collect::<Vec<_>>()
    );
    for (part, mut expected) in parts.zip(expected) {
        let content = fs::read(out.join(&part)).unwrap();
        assert!(
            content.is_empty() || content.ends_with(b"\n"),
            "{part} ends inside a line"
        );
        let mut found = records(&content, kind);
        if let Some(header) = &header {
            assert_eq!(&found.remove(0), header, "{part}");
        }
        for record in found {
            let left = expected.entry(record.clone()).or_default();
            *left -= 1;
            assert!(
                *left >= 0,
                "{part} has too many of {:?}",
                String::from_utf8_lossy(&record)
            );
        }
        let missing = expected.iter().find(|(_, left)| **left != 0);
        assert!(missing.is_none(), "{part} lacks {missing:?}");
    }
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("_SUCCESS")).unwrap()).unwrap();
    assert_eq!(summary["records"], count);
    assert_eq!(summary["hash"], "xxh3-64");
    assert_eq!(summary["verified"], true);
    assert_eq!(summary["read"], summary["written"]);
    assert_eq!(summary["partitions"].as_array().unwrap().len(), ranks as usize);
}

/// Names in a directory that a failed job must not leave there.
fn leftovers(out: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(out) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.contains("part-") || name == "_SUCCESS")
        .collect()
}

fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    fs::File::create(&path)
        .unwrap()
        .write_all(content.as_ref())
        .unwrap();
    path
}

/// A small generator, so that a failure replays.
struct Seeded(u64);

impl Seeded {
    fn from_env() -> Self {
        let seed = std::env::var("TRIHOP_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(7);
        println!("TRIHOP_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Records with separators, quotes, line breaks and lengths from nothing to above a batch; every kind of line end.
fn tricky_rows(seeded: &mut Seeded, rows: usize, line_end: &str) -> String {
    let mut text = String::new();
    for row in 0..rows {
        let note = match seeded.below(9) {
            0 => "\"a, b\"".to_owned(),
            1 => "\"line\nbreak\r\nand \"\"quotes\"\"\"".to_owned(),
            2 => "\"\"\"\"".to_owned(),
            3 => "\"\n\n\"".to_owned(),
            4 => String::new(),
            5 => "Übung".to_owned(),
            6 => format!("\"{}\"", "long\n".repeat(seeded.below(200) as usize)),
            7 if row % 40 == 0 => "y".repeat(150_000 + seeded.below(100_000) as usize),
            _ => format!("note {}", seeded.below(1000)),
        };
        let key = match seeded.below(4) {
            0 => format!("\"k {}\"", seeded.below(50)),
            1 => format!("\"k,{}\"", seeded.below(50)),
            _ => format!("k{}", seeded.below(50)),
        };
        text += &format!("{row},{key},{note}{line_end}");
        if seeded.below(30) == 0 {
            text += line_end;
        }
    }
    text
}

fn tricky_tables(dir: &Path) -> Vec<PathBuf> {
    let seeded = &mut Seeded::from_env();
    let unix = format!("id,\"the key\",note\n{}", tricky_rows(seeded, 700, "\n"));
    let windows = format!(
        "\u{FEFF}\"id\",the key,note\r\n{}",
        tricky_rows(seeded, 300, "\r\n")
    );
    let open = format!("id,the key,note\n{}", tricky_rows(seeded, 50, "\n"));
    vec![
        write(dir, "empty.csv", ""),
        write(dir, "unix.csv", unix),
        write(dir, "header only.csv", "id,the key,note\n"),
        write(dir, "header only, open.csv", "id,the key,note"),
        write(dir, "windows.csv", windows),
        write(dir, "bom.csv", "\u{FEFF}"),
        write(dir, "open.csv", open.trim_end()),
    ]
}

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
fn few_bytes_for_many_ranks() {
    let dir = TempDir::new().unwrap();
    for (name, content) in [
        ("none.csv", ""),
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
        "k\tv\n\"a\tb\"\t\"1\n2\"\nc,\t3\n".repeat(1),
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

/// Bad input: name and content of the file that is at fault, further options, and what the message says.
fn bad_inputs() -> Vec<(&'static str, String, Vec<&'static str>, Vec<String>)> {
    let good: String = (0..3000).map(|row| format!("{row},\"two\nlines\"\n")).collect();
    let after = |rows: &str, more: &str| format!("id,v\n{rows}{more}");
    let line = 1 + 2 * 3000 + 1;
    vec![
        (
            "column.csv",
            after(&good, ""),
            vec!["--by", "zip"],
            vec!["column.csv:1:".into(), "no column `zip`".into(), "id, v".into()],
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
            vec![format!("long.csv:{line}:"), "3 columns, the header has 2".into()],
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
            format!("{}{{\"id\":1\n{{\"id\":2}}\n", "{\"id\":0}\n\n".repeat(2000)),
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
            assert!(!done.status.success(), "{name}: {}", done.stdout);
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

#[test]
fn the_file_at_fault_is_named_among_many() {
    let dir = TempDir::new().unwrap();
    let good = write(dir.path(), "good.csv", format!("k,v\n{}", "1,2\n".repeat(5000)));
    let missing = dir.path().join("missing.csv");
    let other = write(dir.path(), "other.csv", "k,w\n1,2\n");
    let fewer = write(dir.path(), "fewer.csv", "k\n1\n");
    let late = write(dir.path(), "late.csv", "k,v\n1,2\n\n3\n");
    let cases = [
        (missing, "missing.csv:1: cannot read: No such file"),
        (dir.path().to_path_buf(), ":1: cannot read: it is a directory"),
        (other, "other.csv:1: header differs: column 2 is `w`, in "),
        (fewer, "fewer.csv:1: header differs: 1 columns, 2 in "),
        (late, "late.csv:4: the record has 1 column, the header has 2"),
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
            !done.status.success() && done.stderr.contains(expected),
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
    let mut command = launched(4, 2, "sh");
    let script = "\"$0\" partition --by k --out \"$1/out\" \"$1/bad.csv\"; echo $? > \"$1/statuses/$$\"";
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
    assert!(!done.status.success());
    assert!(
        done.stderr.contains("large.csv:3:") && done.stderr.contains("TRIHOP_MAX_MESSAGE_BYTES"),
        "{}",
        done.stderr
    );
    assert_eq!(leftovers(&out), Vec::<String>::new());
}

#[test]
fn old_partitions_are_replaced_only_by_force() {
    let dir = TempDir::new().unwrap();
    let file = write(dir.path(), "a.csv", format!("k,v\n{}", "1,2\n3,4\n".repeat(100)));
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
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("already holds") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    check(&out, std::slice::from_ref(&file), CSV, 0, 4);
    start(2, &["--force"]).succeeded();
    check(&out, std::slice::from_ref(&file), CSV, 0, 2);
    fs::write(&file, "k,v\n1\n").unwrap();
    assert_eq!(start(2, &["--force"]).status.code(), Some(1));
    assert_eq!(leftovers(&out).len(), 3, "a failed job leaves the old partitions");
}

/// A file system of its own, gone at the end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("small");
    fs::create_dir(&out).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&out)
        .output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        println!("skipped a_full_disk_is_told_and_leaves_nothing: mounting a small tmpfs needs root");
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
        assert!(!done.status.success());
        assert!(done.stderr.contains("No space left on device"), "{}", done.stderr);
        let named = done.stderr.lines().any(|line| {
            line.split_once("part-")
                .is_some_and(|(_, rest)| rest.as_bytes().get(5) == Some(&b':'))
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
        (vec!["--format", "jsonl", "--by", "/a~x"], "auto", "JSON pointer"),
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
        assert_eq!(done.status.code(), Some(2), "{}", done.stderr);
        assert!(
            done.stderr.contains(expected),
            "{expected:?} is not in {}",
            done.stderr
        );
        assert!(!out.exists());
    }
}

#[test]
fn the_real_input_is_partitioned_without_loss() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/cities.csv");
    if !file.exists() {
        println!("skipped the_real_input_is_partitioned_without_loss: data/fetch.sh was not run");
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
