//! `trihop bench scale`: whole simulated jobs, checked; a seed replays; what cannot be done is
//! refused with the reason.

mod launched;

use std::process::Command;

use serde_json::Value;

use launched::{Ended, run};

fn scale(arguments: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command
        .args(["bench", "scale"])
        .args(arguments.split_whitespace());
    run(command)
}

#[track_caller]
fn row(arguments: &str) -> Value {
    let done = scale(&format!("{arguments} --json")).succeeded();
    serde_json::from_str(&done.stdout).expect("one JSON object")
}

#[test]
fn a_seed_replays_a_whole_job() {
    let run = |seed| {
        row(&format!(
            "--ranks 100 --per-node 8 --messages 6 --seed {seed}"
        ))
    };
    let figures =
        |row: &Value| ["hops", "wire_bytes_per_msg", "rounds_per_msg"].map(|f| row[f].to_string());
    let (first, again, other) = (run(3), run(3), run(4));
    assert_eq!(first["checked"], true);
    assert_eq!(
        (&first["nodes"], &first["messages"]),
        (&13.into(), &600.into())
    );
    assert!(first["touched_bytes_per_rank"].as_u64() > Some(0));
    assert_eq!(figures(&first), figures(&again));
    assert_ne!(figures(&first), figures(&other));
}

#[test]
fn a_simulated_job_goes_along_the_grid_that_is_asked_for() {
    // Those along the last dimension are lanes.
    for (route, links) in [
        ("mesh:4x4x4", 6),
        ("mesh:16x4", 15),
        ("node-mesh:4x4", 2),
        ("team-mesh:4x4", 6),
    ] {
        let row = row(&format!(
            "--ranks 64 --per-node 4 --messages 6 --route {route}"
        ));
        assert_eq!(row["checked"], true, "{row}");
        assert_eq!(row["most_links_per_rank"], links, "{row}");
        assert_eq!(row["route"], route, "{row}");
        let relayed = |row: &Value| row.as_f64().unwrap();
        let (most, mean) = (&row["most_relayed_runs"], &row["relayed_runs_per_rank"]);
        assert!(
            relayed(most) >= relayed(mean) && relayed(mean) > 0.0,
            "{row}"
        );
        // Of 16 nodes of 4 ranks, each the rail of as many others.
        let three_hop = &row["three_hop"];
        assert_eq!(three_hop["most_links_per_rank"], 4, "{row}");
        assert!(relayed(&three_hop["relayed_msgs_per_rank"]) > 0.0, "{row}");
    }
}

/// One rail leaves most ranks of few nodes without a link; many spread what is passed on.
#[test]
fn relayed_bytes_and_batches_are_counted_for_one_rail_and_many() {
    let of = |route: &str| {
        let shape = "--ranks 64 --nodes 2 --pattern all-to-all";
        let row = row(&format!("{shape} --route {route}"));
        let number = |key: &str| row[key].as_f64().unwrap();
        let (mean, most) = (number("batches_per_rank"), number("most_batches"));
        assert!(most >= mean && mean > 0.0, "{row}");
        let (mean, most) = (
            number("relayed_bytes_per_rank"),
            number("most_relayed_bytes"),
        );
        assert!(most >= mean, "{row}");
        (number("busiest_representative"), mean, most)
    };
    let (busiest, mean, most) = of("three-hop:1");
    // One of 32 ranks of each node has all of its links.
    assert!((31.9..32.1).contains(&busiest), "{busiest}");
    assert!(mean > 0.0 && most > 30.0 * mean, "{most} of {mean}");
    let (busiest, mean, most) = of("three-hop");
    // Each rank has its own rail, so nothing is passed on behind the link.
    assert!(busiest <= 1.25, "{busiest}");
    assert!(most <= 1.25 * mean, "{most} of {mean}");
}

#[test]
fn there_are_as_many_nodes_as_asked_for() {
    // 3 ranks on each node would be 34 nodes: they are spread evenly, as by `trihop run`.
    for nodes in [10, 15, 40] {
        let done = row(&format!("--ranks 100 --nodes {nodes} --messages 2"));
        assert_eq!(
            (&done["ranks"], &done["nodes"]),
            (&100.into(), &nodes.into())
        );
    }
    let refused = scale("--ranks 3 --nodes 4");
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("3 ranks cannot be spread over 4 nodes"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_large_job_is_compared_with_a_small_one_at_equal_messages_per_link() {
    let row = row("--ranks 2048 --messages 2");
    let (large, small) = (&row["msgs_per_link"], &row["compared"]["msgs_per_link"]);
    let ratio = large.as_f64().unwrap() / small.as_f64().unwrap();
    assert!(
        (0.8..1.25).contains(&ratio),
        "{large} and {small} messages per link"
    );
}

#[test]
fn a_complete_all_to_all_is_checked_and_refused_where_it_is_too_large() {
    let done = row("--ranks 64 --per-node 16 --pattern all-to-all");
    assert_eq!(
        (&done["messages"], &done["checked"]),
        (&4096.into(), &true.into())
    );
    let refused = scale("--ranks 4097 --pattern all-to-all");
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    for said in ["16785409 messages", "--pattern random"] {
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
}
