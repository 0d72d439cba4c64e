//! `trihop bench` as scripts call it: a few messages of everything, rows that parse, results that
//! were checked.

mod launched;

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use launched::{Ended, run};

/// Every row has these.
const FIELDS: [&str; 18] = [
    "bench",
    "seat",
    "ranks",
    "nodes",
    "route",
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
    "minor_faults",
    "ctx_switches",
    "checked",
];

/// `trihop bench ARGUMENTS`.
fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.arg("bench").args(arguments.split_whitespace());
    command
}

/// The rows of a benchmark that has to succeed.
#[track_caller]
fn rows(arguments: &str) -> Vec<Value> {
    checked_rows(arguments, run(command(&format!("{arguments} --json"))))
}

#[track_caller]
fn checked_rows(arguments: &str, ended: Ended) -> Vec<Value> {
    assert_eq!(
        ended.status, 0,
        "bench {arguments}\n{}\n{}",
        ended.stdout, ended.stderr
    );
    let parsed = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line:?}")));
    let rows: Vec<Value> = parsed.collect();
    assert!(!rows.is_empty(), "bench {arguments} has no rows");
    let uncounted = ended.stderr.contains("system calls are not counted: ");
    for row in &rows {
        for field in FIELDS {
            assert!(
                row.get(field).is_some_and(|v| !v.is_null()),
                "no {field} in {row}"
            );
        }
        assert_eq!(row["bench"].as_str(), arguments.split_whitespace().next());
        assert_eq!(row["checked"], true, "{row}");
        for field in [
            "msgs_per_s",
            "bytes_per_s",
            "seconds",
            "peak_rss_bytes_per_rank",
        ] {
            assert!(positive(&row[field]), "{field} in {row}");
        }
        let syscalls = row.get("syscalls_per_1e6_msgs").expect("null at least");
        assert!(
            if uncounted {
                syscalls.is_null()
            } else {
                positive(syscalls)
            },
            "{row}"
        );
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
    for (row, protocol) in rows
        .iter()
        .zip(["eager", "read", "segments"].iter().cycle())
    {
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
            let value = row
                .get(field)
                .unwrap_or_else(|| panic!("no {field} in {row}"));
            assert!(value.is_null() || positive(value), "{field} in {row}");
        }
    }
    for three in rows.chunks(3) {
        assert_eq!(three.iter().filter(|row| row["chosen"] == true).count(), 1);
    }
}

#[test]
fn p2p_without_fi_pingpong_says_so() {
    let mut alone = command("p2p --count 20 --size 64 --json");
    alone.env("PATH", "/nonexistent");
    let ended = run(alone);
    assert!(
        ended.stderr.contains("fi_pingpong is not installed"),
        "{}",
        ended.stderr
    );
    for row in checked_rows("p2p", ended) {
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
fn a2a_with_threads_and_through_the_deltafs_interface() {
    let asked = "--api deltafs --api bytes --api threaded";
    let rows = rows(&format!(
        "a2a --count 2000 --ranks 4 --nodes 2 --size 24 --size 32768 {asked} --provider tcp --route direct"
    ));
    let of = |row: &Value| {
        (
            row["api"].as_str().unwrap().to_owned(),
            row["size"].as_u64().unwrap(),
        )
    };
    let got: Vec<_> = rows.iter().map(of).collect();
    let want =
        ["bytes", "threaded", "deltafs"].map(|api| [24, 32768].map(|size| (api.to_owned(), size)));
    assert_eq!(got, want.concat());
    for row in &rows {
        let seat = match row["api"] == "bytes" {
            true => "inline",
            false => "threaded",
        };
        assert_eq!(row["seat"], seat, "{row}");
        assert_eq!(row["hops"], 1, "the route that was asked for: {row}");
        assert!(
            row["wire_bytes_per_msg"].as_f64().unwrap() >= row["size"].as_f64().unwrap(),
            "{row}"
        );
    }
}

#[test]
fn the_direct_route_is_one_hop() {
    let by = |arguments: &str| {
        let row = &rows(&format!(
            "histo --count 1000 --ranks 4 --nodes 2 {arguments}"
        ))[0];
        (
            row["route"].as_str().unwrap().to_owned(),
            row["hops"].as_u64().unwrap(),
        )
    };
    assert_eq!(by("--route direct"), ("direct".to_owned(), 1));
    assert_eq!(by("--route three-hop:1"), ("three-hop:1".to_owned(), 3));
    // A rail for each rank: the last hop is gone.
    assert_eq!(by(""), ("three-hop:2".to_owned(), 2));
    let mut from_environment = command("ig --count 1000 --ranks 4 --nodes 2 --json");
    from_environment.env("TRIHOP_ROUTE", "direct");
    assert_eq!(
        checked_rows("ig", run(from_environment))[0]["route"],
        "direct"
    );
}

#[test]
fn ig_on_one_and_two_nodes() {
    for shape in ["--ranks 3 --nodes 1", "--ranks 4 --nodes 2"] {
        let rows = rows(&format!("ig --count 3000 {shape}"));
        assert_eq!((rows.len(), sizes(&rows)), (1, vec![16]));
    }
}

#[test]
fn histo_goes_along_grids_on_each_seat() {
    for seat in ["inline", "minirank --minis-per-rank 1", "agent"] {
        for (route, name) in [
            ("mesh:2x3", "mesh:2x3"),
            ("node-mesh:1d", "node-mesh:3"),
            ("team-mesh:2d", "team-mesh:2x2"),
        ] {
            let words = format!("histo --count 5000 --ranks 6 --nodes 3 --route {route}");
            let rows = rows(&format!("{words} --seat {seat}"));
            assert_eq!((rows.len(), &rows[0]["route"]), (1, &name.into()), "{seat}");
        }
    }
    let refused = run(command(
        "histo --ranks 4 --nodes 2 --route fabric-only --seat agent",
    ));
    let why = "ranks with an agent have no links of their own";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
}

#[test]
fn round_checks_every_round_by_itself() {
    for shape in [
        "--ranks 1",
        "--ranks 3",
        "--ranks 5 --nodes 3",
        "--ranks 4 --nodes 2 --route mesh:2x2",
    ] {
        let rows = rows(&format!("round --count 50 {shape}"));
        assert_eq!((rows.len(), sizes(&rows)), (6, vec![8, 64, 1024]));
        let ends: Vec<_> = rows
            .iter()
            .map(|row| row["end"].as_str().unwrap())
            .collect();
        assert_eq!(ends, ["round", "fence"].repeat(3));
        assert!(
            rows.iter()
                .all(|row| row["us_per_round"].as_f64() > Some(0.0))
        );
        let is_one_hop = rows[0]["hops"] == 1;
        for row in rows
            .iter()
            .filter(|row| is_one_hop && row["end"] == "round")
        {
            let wakes = row["most_wakes_of_a_pair"].as_f64();
            assert!(wakes.is_some_and(|wakes| wakes <= 1.0), "{row}");
        }
    }
}

#[test]
fn round_is_measured_on_each_seat() {
    for seat in ["threaded", "minirank", "agent"] {
        let rows = rows(&format!(
            "round --count 50 --size 8 --ranks 4 --nodes 2 --seat {seat}"
        ));
        assert_eq!(rows.len(), 2, "{seat}");
        assert!(
            rows.iter()
                .all(|row| row["seat"] == seat && row["checked"] == true)
        );
    }
}

#[test]
fn channel_is_measured_on_each_seat() {
    for shape in [
        "--nodes 1",
        "--nodes 2",
        "--seat threaded",
        "--seat minirank",
        "--seat agent --nodes 2",
    ] {
        let rows = rows(&format!("channel --count 200 --size 8 --size 5000 {shape}"));
        assert_eq!((rows.len(), sizes(&rows)), (2, vec![8, 5000]));
        for field in ["latency_us", "get_us"] {
            assert!(rows.iter().all(|row| positive(&row[field])), "{field}");
        }
    }
}

#[test]
fn push_is_measured_by_handlers_and_by_pulls_in_rust_and_c() {
    let all = ["typed", "conveyor", "c", "c-conveyor"];
    for shape in ["--ranks 1", "--ranks 2", "--ranks 5 --nodes 2"] {
        let rows = rows(&format!("push --count 20000 {shape}"));
        let apis: Vec<_> = rows
            .iter()
            .map(|row| row["api"].as_str().unwrap())
            .collect();
        assert_eq!(apis, all);
    }
    for shape in ["--ranks 4", "--ranks 6 --nodes 2 --minis-per-rank 3"] {
        let rows = rows(&format!("push --count 20000 --seat minirank {shape}"));
        let apis = rows.iter().map(|row| row["api"].as_str().unwrap());
        assert_eq!(apis.collect::<Vec<_>>(), all);
    }
    let rows = rows("push --count 20000 --ranks 3 --api c --seat threaded");
    assert_eq!((rows.len(), &rows[0]["api"]), (1, &"c".into()));
}

#[test]
fn mini_ranks_have_wire_bytes_and_a_ring_beside_a_cache_line() {
    for bench in [
        "histo --count 20000",
        "a2a --count 2000 --size 8 --size 3000",
        "cc --count 5000",
    ] {
        for seat in ["minirank --minis-per-rank 2", "agent"] {
            let rows = rows(&format!("{bench} --ranks 4 --nodes 2 --seat {seat}"));
            for row in &rows {
                let size = row["size"].as_f64();
                assert!(row["wire_bytes_per_msg"].as_f64() >= size, "{seat}: {row}");
            }
        }
    }
    let rows = rows("ring --count 4000 --seat minirank");
    assert_eq!((rows.len(), &rows[0]["access"]), (1, &"handler".into()));
    for field in ["latency_us", "cacheline_us", "ratio_to_cacheline"] {
        assert!(positive(&rows[0][field]), "{field}");
    }
    let refused = run(command("ring --size 64 --seat minirank"));
    assert!(
        refused.stderr.contains("items of 8 bytes"),
        "{}",
        refused.stderr
    );
}

/// Benchmarks of handlers, as small as they go.
const OF_HANDLERS: [&str; 6] = [
    "histo --count 2000",
    "skew --count 2000",
    "ig --count 2000",
    "agups --count 200",
    "exchange --count 50 --size 24 --size 32768",
    "around --count 5",
];

#[track_caller]
fn is_measured_on(seat: &str, bench: &str, ranks: u32, nodes: u32) -> Vec<Value> {
    let rows = rows(&format!(
        "{bench} --ranks {ranks} --nodes {nodes} --seat {seat}"
    ));
    for row in &rows {
        let shape = (&row["ranks"], &row["nodes"]);
        assert_eq!(shape, (&ranks.into(), &nodes.into()), "{row}");
        assert_eq!(row["seat"], seat, "{row}");
        let crosses = row["wire_bytes_per_msg"].as_f64() >= row["size"].as_f64();
        assert_eq!(crosses, nodes > 1, "{row}");
    }
    rows
}

#[test]
fn handlers_are_measured_on_mini_ranks_and_with_agents() {
    for seat in ["minirank", "agent"] {
        for bench in OF_HANDLERS {
            is_measured_on(seat, bench, 4, 2);
        }
        let around = is_measured_on(seat, "around --count 5", 4, 2);
        let pair = around.iter().filter(|row| row["path"] == "pair");
        assert_eq!(pair.count(), 2, "{seat}: no rank represents its node");
    }
}

#[test]
fn jobs_with_threads_and_agents_have_the_bytes_of_the_agents() {
    is_measured_on("agent", "a2a --api threaded --count 500 --size 64", 4, 2);
}

#[test]
fn handlers_are_measured_in_jobs_with_threads() {
    for bench in OF_HANDLERS.iter().filter(|b| !b.starts_with("around")) {
        is_measured_on("threaded", bench, 3, 1);
        is_measured_on("threaded", bench, 4, 2);
    }
}

#[test]
fn agups_counts_every_update_of_its_updaters() {
    let rows = rows("agups --count 500 --ranks 4 --nodes 2");
    assert_eq!((rows.len(), &rows[0]["count"]), (1, &5000.into()));
    assert!(
        rows[0]["wire_bytes_per_msg"].as_f64() >= Some(16.0),
        "{}",
        rows[0]
    );
}

#[test]
fn handlers_that_forward_labels_do_not_stand_still_on_any_shape_and_seat() {
    let shapes = [
        (1, 1),
        (2, 1),
        (2, 2),
        (3, 1),
        (4, 2),
        (4, 4),
        (5, 3),
        (8, 1),
        (8, 4),
    ];
    let mut graphs = BTreeSet::new();
    for seat in ["inline", "threaded"] {
        for (ranks, nodes) in shapes {
            let rows = rows(&format!(
                "cc --count 2000 --seat {seat} --ranks {ranks} --nodes {nodes}"
            ));
            assert_eq!((rows.len(), sizes(&rows)), (1, vec![8]));
            let row = &rows[0];
            assert_eq!((&row["seat"], &row["ranks"]), (&seat.into(), &ranks.into()));
            // Every edge is told from both of its ends at least, once.
            let labels = row["count"].as_u64().unwrap() * ranks + ranks;
            assert!(labels >= 2 * 32_000, "{row}");
            let crosses = row["wire_bytes_per_msg"].as_f64() >= Some(8.0);
            assert_eq!(crosses, nodes > 1, "{row}");
            let figures =
                ["vertices", "edges", "components"].map(|field| row[field].as_u64().unwrap());
            graphs.insert(figures);
        }
    }
    // The graph is the same for every split over ranks, and it is not one that says nothing.
    assert_eq!(graphs.len(), 1, "{graphs:?}");
    let [vertices, edges, components] = graphs.pop_first().unwrap();
    assert_eq!((vertices, edges), (2000, 32_000));
    assert!(components > 1 && components < 1000, "{components}");
}

#[test]
fn more_ranks_than_vertices_still_have_the_right_labels() {
    for seat in ["inline", "threaded"] {
        let rows = rows(&format!("cc --count 3 --seat {seat} --ranks 5 --nodes 2"));
        assert_eq!(rows[0]["vertices"], 3);
    }
}

#[test]
fn around_polls_and_parks_on_every_path_that_the_job_has() {
    for (shape, paths) in [
        ("--ranks 4 --nodes 2", &["around", "pair"][..]),
        ("--ranks 2 --nodes 2", &["around"]),
        ("--ranks 3 --nodes 1", &["around"]),
    ] {
        let rows = rows(&format!("around --count 30 {shape}"));
        let cases: Vec<_> = rows
            .iter()
            .map(|r| (r["path"].as_str(), r["waiting"].as_str()))
            .collect();
        let waits = |path: &&'static str| {
            [
                (Some(*path), Some("polling")),
                (Some(*path), Some("parked")),
            ]
        };
        assert_eq!(cases, paths.iter().flat_map(waits).collect::<Vec<_>>());
        for row in &rows {
            let figures =
                ["latency_us", "latency_p50_us", "latency_p99_us"].map(|f| row[f].as_f64());
            assert!(
                figures[0] > Some(0.0) && figures[1] > Some(0.0) && figures[2] >= figures[1],
                "{row}"
            );
            assert_eq!(row["laps"], 30);
        }
    }
}

#[test]
fn exchange_of_every_size() {
    let rows = rows("exchange --count 50 --ranks 4 --nodes 2");
    assert_eq!(sizes(&rows), [24, 64, 256, 1024, 32768]);
    assert_eq!(
        sizes(&self::rows(
            "exchange --count 9 --size 1 --size 7 --ranks 1"
        )),
        [1, 7]
    );
}

#[test]
fn skew_by_every_kind_of_indices() {
    let kinds = |rows: &[Value]| -> Vec<String> {
        rows.iter()
            .map(|row| row["indices"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        kinds(&rows("skew --count 2000 --ranks 4 --nodes 2")),
        ["rmat", "zipf", "all-to-one"]
    );
    assert_eq!(
        kinds(&rows("skew --count 2000 --indices zipf --ranks 3")),
        ["zipf"]
    );
}

#[test]
fn tables_have_a_head() {
    for (arguments, column, begins) in [
        ("ring --count 20 --size 8", "Mean us", "8 "),
        ("p2p --count 20 --size 8", "Mean us", "8 "),
        ("around --count 5", "p99 us", "pair "),
        ("histo --count 100 --ranks 2", "Rate M/s", "8 "),
        ("skew --count 100 --ranks 2 --indices rmat", "Sys/1e6", "8 "),
    ] {
        let ended = run(command(arguments)).succeeded();
        let table = &ended.stdout;
        assert!(table.starts_with("# ") && table.contains(column), "{table}");
        assert_eq!(table.matches(column).count(), 1, "{table}");
        assert!(
            table
                .lines()
                .any(|line| line.trim_start().starts_with(begins)),
            "{table}"
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
        ("histo --size 16", "items of 8 bytes, not of 16"),
        ("ig --size 8", "items of 16 bytes, not of 8"),
        ("a2a --size 7", "a checked word of 8 bytes; 7 is less"),
        ("histo --indices zipf", "no --indices"),
        ("histo --api deltafs", "no --api"),
        ("histo --ranks 1 --netns", "--netns separates nodes"),
        ("around --seat threaded", "it has inline, minirank, agent"),
        ("a2a --seat threaded", "--api threaded is in its place"),
        ("push --seat threaded", "`push --api c` has"),
        ("ring --seat agent", "it has inline, minirank"),
        ("p2p --seat minirank", "it has inline"),
        ("scale --seat agent", "it has inline"),
        ("attach --seat minirank", "always has an agent"),
        ("a2a --seat agent --api deltafs", "no --api deltafs"),
        ("a2a --seat minirank --api threaded", "no --api threaded"),
        ("cc --size 16", "items of 8 bytes, not of 16"),
        ("cc --count 4294967297", "at most 4294967296"),
    ] {
        let ended = run(command(arguments));
        assert_eq!(
            ended.status, 2,
            "{arguments}: {}\n{}",
            ended.stdout, ended.stderr
        );
        assert!(ended.stderr.contains(said), "{arguments}: {}", ended.stderr);
    }
}

#[test]
fn startup_of_processes_of_mini_ranks_and_with_agents() {
    for (arguments, processes, fabrics) in [
        ("startup --ranks 3 --nodes 2", 3, 3),
        ("startup --ranks 4 --nodes 2 --seat minirank", 2, 2),
        ("startup --ranks 3 --nodes 1 --seat agent", 4, 0),
    ] {
        let ended = run(command(&format!("{arguments} --json")));
        assert_eq!(ended.status, 0, "{arguments}: {}", ended.stderr);
        let row: Value = serde_json::from_str(ended.stdout.trim()).expect(&ended.stdout);
        assert_eq!(row["checked"], true, "{row}");
        assert_eq!(
            (&row["processes"], &row["fabrics"]),
            (&processes.into(), &fabrics.into()),
            "{row}"
        );
        // One after the other, in each job and so in the medians.
        let moments = ["first_message_seconds", "seconds", "job_seconds"];
        let moments = moments.map(|moment| row[moment].as_f64().unwrap());
        assert!(
            moments[0] > 0.0 && moments.is_sorted(),
            "{moments:?} in {row}"
        );
        assert!(positive(&row["joined_seconds"]) && positive(&row["empty_seconds"]));
        assert_eq!(positive(&row["libfabric_seconds"]), fabrics > 0, "{row}");
    }
}

#[test]
fn startup_is_of_jobs_of_its_own() {
    let mut inside = Command::new(env!("CARGO_BIN_EXE_trihop"));
    inside.args(["bench", "startup"]);
    inside.env("TRIHOP_LAUNCHER", "master");
    inside.envs([("TRIHOP_MASTER", "localhost:1"), ("TRIHOP_RANK", "0")]);
    inside.envs([("TRIHOP_SIZE", "1"), ("TRIHOP_SECRET_FILE", "/dev/null")]);
    let ended = run(inside);
    assert_eq!(ended.status, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("not inside"), "{}", ended.stderr);
}
