//! `trihop bench` as scripts call it: a few messages of everything, rows that parse, results that were checked.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Every row has these.
const FIELDS: [&str; 14] = [
    "bench",
    "ranks",
    "nodes",
    "hops",
    "provider",
    "size",
    "count",
    "msgs_per_s",
    "bytes_per_s",
    "cpu_us_per_msg",
    "peak_rss_bytes_per_rank",
    "wire_bytes_per_msg",
    "seconds",
    "checked",
];

/// A started command, ended with its process group when the test is given up.
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

/// Exit status, standard output and standard error of `trihop bench ARGUMENTS`; a watchdog turns a hang into a failure.
fn bench(arguments: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command
        .arg("bench")
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = Watched(command.spawn().unwrap());
    fn collected(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
        thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        })
    }
    let stdout = collected(child.0.stdout.take().unwrap());
    let stderr = collected(child.0.stderr.take().unwrap());
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(
            started.elapsed() < Duration::from_secs(240),
            "bench {arguments} hangs"
        );
        thread::sleep(Duration::from_millis(5));
    };
    (status.code(), stdout.join().unwrap(), stderr.join().unwrap())
}

/// The rows of a benchmark that has to succeed.
#[track_caller]
fn rows(arguments: &str) -> Vec<Value> {
    let (status, stdout, stderr) = bench(&format!("{arguments} --json"));
    assert_eq!(status, Some(0), "bench {arguments}\n{stdout}\n{stderr}");
    let rows: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line:?}")))
        .collect();
    let name = arguments.split_whitespace().next();
    for row in &rows {
        for field in FIELDS {
            assert!(
                row.get(field).is_some_and(|v| !v.is_null()),
                "no {field} in {row}"
            );
        }
        assert_eq!(row["bench"].as_str(), name);
        assert_eq!(row["checked"], true, "{row}");
        for field in ["msgs_per_s", "bytes_per_s", "seconds", "peak_rss_bytes_per_rank"] {
            assert!(positive(&row[field]), "{field} in {row}");
        }
    }
    rows
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|v| v > 0.0)
}

fn sizes(rows: &[Value]) -> Vec<u64> {
    let mut sizes: Vec<u64> = rows.iter().filter_map(|row| row["size"].as_u64()).collect();
    sizes.dedup();
    sizes
}

#[test]
fn ring_beside_cache_line_and_memcpy() {
    // One frame, a length that is not a multiple of 8, several pieces with a rest.
    let rows = rows("ring --count 40 --size 8 --size 1001 --size 1000003");
    assert_eq!(sizes(&rows), [8, 1001, 1_000_003]);
    assert_eq!(rows.len(), 6);
    for (row, access) in rows.iter().zip(["copy", "in_place"].iter().cycle()) {
        assert_eq!(row["access"], *access);
        assert_eq!((&row["ranks"], &row["nodes"]), (&2.into(), &1.into()));
        for field in [
            "latency_us",
            "latency_best_us",
            "cacheline_us",
            "ratio_to_cacheline",
            "memcpy_bytes_per_s",
        ] {
            assert!(positive(&row[field]), "{field} in {row}");
        }
    }
}

#[test]
fn p2p_by_every_protocol() {
    let rows = rows("p2p --count 70 --size 8 --size 1001 --size 300000");
    assert_eq!(sizes(&rows), [8, 1001, 300_000]);
    assert_eq!(rows.len(), 9);
    for (row, protocol) in rows.iter().zip(["eager", "read", "segments"].iter().cycle()) {
        assert_eq!(row["protocol"], *protocol);
        assert_eq!(
            (&row["ranks"], &row["nodes"], &row["hops"]),
            (&2.into(), &2.into(), &1.into())
        );
        assert!(positive(&row["latency_us"]), "{row}");
        let size = row["size"].as_f64().unwrap();
        assert!(
            row["wire_bytes_per_msg"].as_f64().unwrap() > size,
            "notices are counted too: {row}"
        );
        for field in ["fi_pingpong_us", "ratio_to_fi_pingpong"] {
            let value = row.get(field).unwrap_or_else(|| panic!("no {field} in {row}"));
            assert!(value.is_null() || positive(value), "{field} in {row}");
        }
    }
    for three in rows.chunks(3) {
        assert_eq!(three.iter().filter(|row| row["chosen"] == true).count(), 1);
    }
}

#[test]
fn p2p_without_fi_pingpong_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    let done = command
        .args(["bench", "p2p", "--count", "20", "--size", "64", "--json"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
    assert!(stderr.contains("fi_pingpong is not installed"), "{stderr}");
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        assert!(
            row["fi_pingpong_us"].is_null() && row["ratio_to_fi_pingpong"].is_null(),
            "{row}"
        );
    }
}

#[test]
fn histo_on_one_and_two_nodes() {
    for shape in ["--ranks 2 --nodes 1", "--ranks 4 --nodes 2"] {
        let rows = rows(&format!("histo --count 2000 {shape}"));
        assert_eq!(sizes(&rows), [8]);
    }
}

#[test]
fn a2a_typed_and_bytes() {
    let rows = rows("a2a --count 100 --ranks 4 --nodes 2 --size 8 --size 128 --size 32768");
    assert_eq!(sizes(&rows), [8, 128, 32768]);
    let of = |api: &str| rows.iter().filter(|row| row["api"] == api).count();
    assert_eq!((of("typed"), of("bytes")), (2, 3));
}

#[test]
fn tables_have_a_head() {
    for arguments in ["ring --count 20 --size 8", "p2p --count 20 --size 8"] {
        let (status, stdout, stderr) = bench(arguments);
        assert_eq!(status, Some(0), "{stderr}");
        assert!(
            stdout.starts_with("# ") && stdout.contains("Latency (us)"),
            "{stdout}"
        );
        assert!(
            stdout.lines().any(|line| line.trim_start().starts_with("8 ")),
            "{stdout}"
        );
    }
}

#[test]
fn impossible_sizes_and_shapes_are_refused() {
    for (arguments, said) in [
        ("ring --size 4", "8 bytes to 1 MiB, not of 4"),
        ("p2p --size 2000000", "8 bytes to 1 MiB, not of 2000000"),
        ("ring --ranks 3", "between two ranks, this job has 3"),
        ("ring --ranks 2 --nodes 2", "two ranks of one node"),
        ("p2p --nodes 1", "two ranks of two nodes"),
    ] {
        let (status, stdout, stderr) = bench(arguments);
        assert_eq!(status, Some(2), "{arguments}: {stdout}\n{stderr}");
        assert!(stderr.contains(said), "{arguments}: {stderr}");
    }
}
