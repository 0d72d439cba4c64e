//! `trihop bench scale`: whole simulated jobs, checked; a seed replays; what cannot be done is refused with the reason.

use std::process::{Command, Output};

use serde_json::Value;

fn scale(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.args(["bench", "scale"]).args(arguments);
    command.output().expect("the command starts")
}

fn row(arguments: &[&str]) -> Value {
    let done = scale(&[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&done.stdout).expect("one JSON object")
}

#[test]
fn a_seed_replays_a_whole_job() {
    let run = |seed| {
        row(&[
            "--ranks",
            "100",
            "--per-node",
            "8",
            "--messages",
            "6",
            "--seed",
            seed,
        ])
    };
    let figures = |row: &Value| ["hops", "wire_bytes_per_msg", "rounds_per_msg"].map(|f| row[f].to_string());
    let (first, again, other) = (run("3"), run("3"), run("4"));
    assert_eq!(first["checked"], true);
    assert_eq!((&first["nodes"], &first["messages"]), (&13.into(), &600.into()));
    assert!(first["touched_bytes_per_rank"].as_u64() > Some(0));
    assert_eq!(figures(&first), figures(&again));
    assert_ne!(figures(&first), figures(&other));
}

#[test]
fn a_large_job_is_compared_with_a_small_one_at_equal_messages_per_link() {
    let row = row(&["--ranks", "2048", "--messages", "2"]);
    let (large, small) = (&row["msgs_per_link"], &row["compared"]["msgs_per_link"]);
    let ratio = large.as_f64().unwrap() / small.as_f64().unwrap();
    assert!(
        (0.8..1.25).contains(&ratio),
        "{large} and {small} messages per link"
    );
}

#[test]
fn a_complete_all_to_all_is_checked_and_refused_where_it_is_too_large() {
    let done = row(&["--ranks", "64", "--per-node", "16", "--pattern", "all-to-all"]);
    assert_eq!(
        (&done["messages"], &done["checked"]),
        (&4096.into(), &true.into())
    );
    let refused = scale(&["--ranks", "4097", "--pattern", "all-to-all"]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("16785409 messages") && errors.contains("--pattern random"),
        "{errors}"
    );
}
