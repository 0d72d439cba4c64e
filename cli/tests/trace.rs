//! `TRIHOP_TRACE`: the files are JSON that Perfetto reads, spans nest, and events of batches are as
//! many as the counters say.

mod launched;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use launched::run;
use serde_json::Value;

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// What numbers of so many microseconds are not exact about, twice.
const ROUNDING_US: f64 = 0.02;

/// Runs an exchange that is traced to files in this folder; the details of its ranks.
fn traced(folder: &Path, more: &str) -> Vec<Value> {
    let words =
        format!("run -n 4 --nodes 2 -- {TRIHOP} exchange --count 20000 --json --detail {more}");
    let mut command = Command::new(TRIHOP);
    command
        .args(words.split_whitespace())
        .env("TRIHOP_TRACE", folder.join("trace-%r.json"));
    let ended = run(command).succeeded();
    let json = &ended.stdout[ended.stdout.find('{').unwrap()..];
    let report: Value = serde_json::from_str(json).unwrap();
    report["detail"].as_array().unwrap().clone()
}

fn events(folder: &Path, rank: usize) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(format!("trace-{rank}.json"))).unwrap();
    let events: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("rank {rank}: {e}"));
    events.as_array().unwrap().clone()
}

fn count(events: &[Value], phase: &str, kind: &str) -> u64 {
    let of_stream = |event: &&Value| {
        event["ph"] == phase && event["cat"] == kind && event["args"]["stream"] == 1
    };
    events.iter().filter(of_stream).count() as u64
}

/// Each begun span has one end, of the same name.
fn check_async(events: &[Value]) {
    let mut open = BTreeMap::new();
    for event in events {
        let id = event["id"].to_string();
        match event["ph"].as_str().unwrap() {
            "b" => assert!(open.insert(id, event).is_none(), "begun twice: {event}"),
            "n" => assert!(open.contains_key(&id), "not begun: {event}"),
            "e" => {
                let begun = open
                    .remove(&id)
                    .unwrap_or_else(|| panic!("not begun: {event}"));
                assert_eq!(begun["name"], event["name"]);
                assert!(begun["ts"].as_f64() <= event["ts"].as_f64());
            }
            _ => {}
        }
    }
    // What ends the job may stay without an acknowledgement: collectives, which are stream 0.
    open.retain(|_, event| event["args"]["stream"] != 0);
    assert!(open.is_empty(), "no end: {open:?}");
}

/// Spans of a thread lie in each other or apart.
fn check_nesting(events: &[Value]) -> usize {
    let mut threads = BTreeMap::<u64, Vec<(f64, f64, String)>>::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let begin = event["ts"].as_f64().unwrap();
        let end = begin + event["dur"].as_f64().unwrap();
        let spans = threads.entry(event["tid"].as_u64().unwrap()).or_default();
        spans.push((begin, end, event["name"].to_string()));
    }
    let mut count = 0;
    for mut spans in threads.into_values() {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut around: Vec<(f64, f64, String)> = Vec::new();
        for span in spans {
            while around
                .last()
                .is_some_and(|outer| outer.1 <= span.0 + ROUNDING_US)
            {
                around.pop();
            }
            if let Some(outer) = around.last() {
                assert!(span.1 <= outer.1 + ROUNDING_US, "{span:?} leaves {outer:?}");
            }
            around.push(span);
            count += 1;
        }
    }
    count
}

#[test]
fn events_nest_and_are_as_many_as_the_counters_say() {
    for more in ["", "--threaded"] {
        let folder = tempfile::tempdir().unwrap();
        let details = traced(folder.path(), more);
        assert_eq!(details.len(), 4);
        for (rank, detail) in details.iter().enumerate() {
            let events = events(folder.path(), rank);
            let totals = &detail["totals"];
            for (phase, kind, counter) in [
                ("b", "sent", "batches_sent"),
                ("n", "sent", "batches_sent"),
                ("e", "sent", "batches_sent"),
                ("b", "received", "batches_received"),
                ("e", "received", "batches_received"),
            ] {
                let counted = totals[counter].as_u64().unwrap();
                assert_eq!(
                    count(&events, phase, kind),
                    counted,
                    "rank {rank}: {phase} {kind}"
                );
            }
            assert!(
                totals["batches_sent"].as_u64().unwrap() > 0,
                "rank {rank} has a link"
            );
            check_async(&events);
            assert!(check_nesting(&events) > 10, "rank {rank}");
            let has = |phase: &str, name: &str| {
                let mut events = events.iter();
                events.any(|e| e["ph"] == phase && e["name"].as_str().unwrap().contains(name))
            };
            assert!(has("X", "round") && has("C", "batches to ") && has("b", " of exchange"));
            assert!(events.iter().all(|event| event["pid"] == rank));
        }
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_told_and_the_job_goes_on() {
    let mut command = Command::new(TRIHOP);
    command
        .args(["exchange", "--count", "100"])
        .env("TRIHOP_TRACE", "/proc/nowhere/trace");
    let ended = run(command).succeeded();
    assert!(ended.stderr.contains("TRIHOP_TRACE"), "{}", ended.stderr);
}
