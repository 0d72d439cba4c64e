//! `trihop topo` as a user starts it: of jobs that are never started, and inside jobs of every
//! launcher.

mod launched;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use launched::exchanged::launcher;
use launched::{Ended, run};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// `trihop topo` with these words.
fn topo(words: &str) -> Ended {
    let mut command = Command::new(TRIHOP);
    command.arg("topo").args(words.split_whitespace());
    run(command)
}

fn report(ended: Ended) -> Value {
    let ended = ended.succeeded();
    serde_json::from_str(ended.stdout.trim()).expect(&ended.stdout)
}

fn histogram(summary: &Value) -> Vec<[u64; 3]> {
    let rows = summary["histogram"].as_array().unwrap().iter();
    rows.map(|row| ["from", "to", "ranks"].map(|field| row[field].as_u64().unwrap()))
        .collect()
}

/// Ranks 0, 2, 4 on node 0 and 1, 3, 5 on node 1, as launchers that deal ranks out in turn place
/// them.
const DEALT_OUT: &str = "--ranks 6 --mapping (vector,(0,2,1)) --route three-hop:1";

#[test]
fn maps_are_those_that_nexus_would_make() {
    // Node 0 talks to node 1 by its local rank 1 % 3, which is rank 2, and reaches it at local rank
    // 0 % 3: rank 1.
    let maps = topo(&format!("{DEALT_OUT} --rank 2,0")).succeeded().stdout;
    let lines: Vec<&str> = maps
        .lines()
        .take_while(|line| line.starts_with("NX-"))
        .collect();
    let expected = "NX-0: 0 6 0 3 0 2\nNX-0: lmap 0 0\nNX-0: lmap 2 2\nNX-0: lmap 4 4\nNX-2: 2 6 1 3 0 2\nNX-2: lmap 0 0\n\
                    NX-2: lmap 2 2\nNX-2: lmap 4 4\nNX-2: rmap 1 1";
    assert_eq!(lines.join("\n"), expected, "{maps}");
    assert!(
        !topo(DEALT_OUT).stdout.contains("NX-"),
        "maps come when asked for"
    );

    let report = report(topo(&format!("{DEALT_OUT} --rank 1-2 --json")));
    assert_eq!(report["placement"], "(vector,(0,2,1),(0,2,1),(0,2,1))");
    let map = json!({
        "rank": 1, "size": 6, "node": 1, "nodes": 2, "local_rank": 0, "local_size": 3, "local_map": [1, 3, 5],
        "remote_map": [{"node": 0, "rank": 2}],
    });
    assert_eq!(report["maps"][0], map);
    assert_eq!(report["maps"].as_array().unwrap().len(), 2);
}

#[test]
fn files_have_the_names_and_tables_of_nexus_dump() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = directory.path().join("map");
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect(name);
    let output = format!("--output {}", prefix.display());
    let shown = topo(&format!("{DEALT_OUT} --rank 2-3 {output}")).succeeded();
    assert!(
        !shown.stdout.contains("NX-"),
        "they are in files: {}",
        shown.stdout
    );
    let id = "NX-2: 2 6 1 3 0 2\nNX-2: local 2\nNX-2: remote 2\nNX-2: grank2node 0 1 0 1 0 1\n\
              NX-2: local2global 0 2 4\nNX-2: node2rep 0 1\n";
    assert_eq!(read("map.2.id"), id);
    assert_eq!(
        read("map.2.lmap"),
        "NX-2: lmap 0 0\nNX-2: lmap 2 2\nNX-2: lmap 4 4\n"
    );
    assert_eq!(read("map.2.rmap"), "NX-2: rmap 1 1\n");
    assert_eq!(read("map.3.rmap"), "", "rank 3 represents no node");
    assert_eq!(files(directory.path()), 6);
    topo(&format!("{DEALT_OUT} {output}")).succeeded();
    assert_eq!(files(directory.path()), 18, "all ranks when none is named");

    let refused = topo(&format!(
        "{DEALT_OUT} --output {}/none/map",
        directory.path().display()
    ));
    assert_eq!(refused.status, 1);
    assert!(
        refused.stderr.contains("none/map.0.id"),
        "{}",
        refused.stderr
    );
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn counts_of_a_small_job_are_those_on_paper() {
    // Nodes {0, 1} and {2}: rank 1 represents node 1, and rank 2 represents node 0, where it
    // reaches rank 1.
    let report = report(topo("--node-sizes 2,1 --json --route three-hop:1"));
    assert_eq!((&report["ranks"], &report["nodes"]), (&3.into(), &2.into()));
    let hops = json!([{"hops": 0, "pairs": 3}, {"hops": 1, "pairs": 4}, {"hops": 2, "pairs": 2}, {"hops": 3, "pairs": 0}]);
    assert_eq!(report["hops"], hops);
    assert_eq!(histogram(&report["links"]), [[0, 0, 1], [1, 1, 2]]);
    // 0 to 2 and back pass rank 1.
    for relayed in ["source_relayed_pairs", "target_relayed_pairs"] {
        assert_eq!(histogram(&report[relayed]), [[0, 0, 2], [1, 1, 1]]);
    }
    // 0 and 1 exchange two pairs each with 2, over the one link.
    assert_eq!(histogram(&report["carried_pairs"]), [[0, 0, 1], [4, 4, 2]]);
    // Of two by two, 8 pairs go over one link, or 4 over each of two.
    let shown = topo("--node-sizes 2,2 --route three-hop:1").succeeded();
    let advice =
        "has 2.00 times the mean on its links; with `three-hop:2` it would have 1.00 times.";
    assert!(shown.stdout.contains(advice), "{}", shown.stdout);
    let rails = self::report(topo("--node-sizes 2,2 --json"));
    assert_eq!(rails["route"], "three-hop:2");
    assert_eq!(histogram(&rails["links"]), [[1, 1, 4]]);
    assert_eq!(histogram(&rails["carried_pairs"]), [[4, 4, 4]]);
    let direct = self::report(topo("--node-sizes 2,1 --json --route direct"));
    assert_eq!(histogram(&direct["links"]), [[1, 1, 2], [2, 2, 1]]);
    assert_eq!(
        (&direct["mean_hops"], &direct["route"]),
        (&1.0.into(), &"direct".into())
    );
    assert_eq!(direct["source_relayed_pairs"]["total"], 0);
}

#[test]
fn the_route_of_the_environment_counts_unless_one_is_given() {
    let route = |words: &str| {
        let mut command = Command::new(TRIHOP);
        command
            .args(["topo", "-n", "2", "--json"])
            .args(words.split_whitespace())
            .env("TRIHOP_ROUTE", "direct");
        report(run(command))["route"].clone()
    };
    assert_eq!(route(""), "direct");
    assert_eq!(route("--route three-hop"), "three-hop:1");
}

#[test]
fn ten_thousand_nodes_of_32_ranks_are_counted_without_starting_them() {
    for (shape, three_hop, direct) in [
        ("--nodes 10000 --per-node 32", [311, 313], [319_968; 2]),
        (
            "-n 320000 --mapping (vector,(0,10000,1))",
            [311, 313],
            [319_968; 2],
        ),
        ("-n 319999 --nodes 10000", [311, 323], [319_967, 319_968]),
    ] {
        for (route, links) in [("three-hop", three_hop), ("direct", direct)] {
            let report = report(topo(&format!("{shape} --route {route} --json")));
            let found = [&report["links"]["min"], &report["links"]["max"]];
            assert_eq!(found, [links[0], links[1]], "{report}");
            let ranks = report["ranks"].as_u64().unwrap();
            let pairs = report["hops"].as_array().unwrap().iter();
            assert_eq!(
                pairs.map(|row| row["pairs"].as_u64().unwrap()).sum::<u64>(),
                ranks * ranks
            );
        }
    }
    let map = &report(topo("--nodes 10000 --per-node 32 --json --rank 319998"))["maps"][0];
    assert_eq!(
        (&map["node"], &map["local_rank"]),
        (&9999.into(), &30.into())
    );
    let nodes = map["remote_map"].as_array().unwrap().iter();
    let nodes: Vec<u64> = nodes.map(|link| link["node"].as_u64().unwrap()).collect();
    assert_eq!(nodes, (30..10_000).step_by(32).collect::<Vec<u64>>());
}

#[test]
fn inside_a_job_rank_0_prints_and_each_rank_writes_its_own_files() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = directory.path().join("map");
    let started = |words: &str| {
        let mut command = Command::new(TRIHOP);
        command
            .args([
                "run",
                "--no-prefix",
                "--node-sizes",
                "3,1,2",
                "--",
                TRIHOP,
                "topo",
                "--json",
            ])
            .args(words.split_whitespace());
        report(run(command))
    };
    let alone = |words: &str| report(topo(&format!("--node-sizes 3,1,2 --json {words}")));
    assert_eq!(started("--rank all"), alone("--rank all"));
    started(&format!("--output {}", prefix.display()));
    assert_eq!(files(directory.path()), 18);
    let own = fs::read_to_string(directory.path().join("map.4.id")).unwrap();
    alone(&format!("--rank 4 --output {}", prefix.display()));
    assert_eq!(
        own,
        fs::read_to_string(directory.path().join("map.4.id")).unwrap()
    );
}

#[test]
fn inside_a_job_of_mpich_it_shows_what_mpiexec_placed() {
    let Some(mpiexec) = launcher(&["mpiexec.hydra", "mpiexec.mpich", "mpiexec"], "HYDRA") else {
        return;
    };
    let mut command = Command::new(mpiexec);
    command
        .args("-launcher fork -hosts 127.0.0.1,127.0.0.2 -ppn 1 -n 5".split_whitespace())
        .args([TRIHOP, "topo", "--json", "--rank", "all"]);
    let started = report(run(command));
    assert_eq!(started["nodes"], 2, "{started}");
    let placement = started["placement"].as_str().unwrap();
    let alone = report(topo(&format!(
        "-n 5 --mapping {placement} --rank all --json"
    )));
    assert_eq!(started, alone);
}

#[test]
fn what_names_no_job_or_no_rank_is_refused_with_the_remedy() {
    for (words, texts) in [
        ("", &["which job?", "--node-sizes"][..]),
        ("--nodes 3", &["--ranks", "--per-node"]),
        ("-n 2 --nodes 3", &["a node needs a rank"]),
        ("-n 4 --rank 4", &["--rank 4", "0 to 3"]),
        ("-n 4 --rank two", &["`two`", "all"]),
        ("-n 4 --route no-hop", &["no-hop", "three-hop"]),
        ("-n 4000000000", &["16777216"]),
    ] {
        let refused = topo(words);
        assert_eq!(refused.status, 2, "{words}: {}", refused.stderr);
        for text in texts {
            assert!(
                refused.stderr.contains(text),
                "{words}: no `{text}` in {}",
                refused.stderr
            );
        }
        assert_eq!(refused.stdout, "");
    }
    let mut command = Command::new(TRIHOP);
    command.args(["run", "-n", "2", "--", TRIHOP, "topo", "-n", "3"]);
    let refused = run(command);
    assert_eq!(refused.status, 2);
    assert!(
        refused.stderr.contains("a rank of a job already"),
        "{}",
        refused.stderr
    );
}

#[test]
fn routes_are_compared_by_what_they_ask_of_the_busiest_rank() {
    let report = report(topo("-n 8 --nodes 2 --advise --json"));
    let routes = report["routes"].as_array().unwrap();
    let of = |name: &str| routes.iter().find(|route| route["route"] == name).unwrap();
    let (direct, three_hop, rails) = (of("direct"), of("three-hop:1"), of("three-hop:4"));
    // Of 64 pairs 8 are a rank and itself, 24 of one node, 32 of two: all by one pair of ranks.
    assert_eq!(
        (&direct["hops"], &direct["fabric_hops"]),
        (&json!(0.875), &json!(0.5))
    );
    assert_eq!(
        (&direct["links"], &direct["most_relayed_bytes"]),
        (&json!(4), &json!(0.0))
    );
    let hops = (24.0 + 32.0 + 2.0 * 2.0 * 12.0) / 64.0;
    assert_eq!(
        (&three_hop["hops"], &three_hop["links"]),
        (&json!(hops), &json!(1))
    );
    // The busiest passes on what 3 others exchange with 4, both ways: 24 of 64 pairs, and each
    // rank sends an eighth of its 100,000 messages of 8 bytes to each.
    assert_eq!(
        three_hop["most_relayed_bytes"],
        json!(24.0 / 8.0 * 800_000.0)
    );
    // With a rail for each rank, it passes on what 3 others send to the one at the other end.
    assert_eq!(
        (&rails["hops"], &rails["most_relayed_bytes"]),
        (
            &json!((24.0 + 8.0 + 2.0 * 24.0) / 64.0),
            &json!(3.0 / 8.0 * 800_000.0)
        )
    );
    let times = routes
        .iter()
        .map(|route| route["predicted_us"].as_f64().unwrap());
    assert!(times.is_sorted(), "{report}");
    // Where messages are few, links cost; where they are long, hops do.
    let first = |words: &str| {
        let words = format!("--advise --json {words}");
        let report = self::report(topo(&words));
        report["routes"][0]["route"].as_str().unwrap().to_owned()
    };
    assert_ne!(first("--nodes 64 --per-node 16 --messages 100"), "direct");
    assert_eq!(
        first("--nodes 4 --per-node 4 --message-bytes 4096"),
        "direct"
    );
    // Grids of all factors, and the one that is asked for.
    let compared = self::report(topo(
        "--nodes 3 --per-node 4 --advise --route mesh:5x3 --json",
    ));
    let names: Vec<&str> = compared["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["route"].as_str().unwrap())
        .collect();
    for name in ["mesh:5x3", "mesh:3x4", "mesh:4x3", "mesh:2x6", "mesh:6x2"] {
        assert_eq!(
            names.iter().filter(|n| **n == name).count(),
            1,
            "{name} in {names:?}"
        );
    }
    assert_eq!(topo("-n 8 --nodes 2 --advise --route mesh:3x2").status, 2);
    assert_eq!(topo("-n 8 --nodes 2 --advise --rank 1").status, 2);
    assert_eq!(topo("-n 8 --nodes 2 --advise --batch-us=-1").status, 2);
    assert_eq!(topo("-n 8 --nodes 2 --messages 3").status, 2);
    let shown = topo("--nodes 100 --per-node 20 --advise")
        .succeeded()
        .stdout;
    assert!(
        shown.contains("mesh:100x20") && shown.contains('~'),
        "{shown}"
    );
}

#[test]
fn lanes_and_buffers_of_routes_that_are_compared_are_those_on_paper() {
    let told = report(topo("-n 8 --nodes 2 --advise --route team-mesh:2 --json"));
    let routes = told["routes"].as_array().unwrap();
    let of = |name: &str| {
        let route = routes.iter().find(|route| route["route"] == name).unwrap();
        ["links", "lanes", "buffer_bytes"].map(|figure| route[figure].as_u64().unwrap())
    };
    // A lane to oneself and to each of three others, and where what has come from another node goes
    // on inside of its own, one more to each of those. Buffers are two batches of 64 KiB for each
    // link.
    for (name, links, lanes) in [
        ("direct", 4, 4),
        ("three-hop:1", 1, 4 + 3),
        // With a rail for each rank, it has come to its target.
        ("three-hop:4", 1, 4),
        ("mesh:2x4", 1, 4),
        // Rows of two inside of a node, and one to a rank of it and two of the other one.
        ("mesh:4x2", 2, 3),
        ("node-mesh:2", 1, 4 + 3),
        ("team-mesh:2", 1, 4 + 3),
        // Inside of a node before, between and behind two dimensions, one of which is of length 1.
        ("node-mesh:2x1", 1, 4 + 3 + 3),
        ("team-mesh:2x1", 1, 4 + 3 + 3),
    ] {
        assert_eq!(
            of(name),
            [links, lanes, 2 * links * 65_536],
            "{name}: {told}"
        );
    }
    // So many links have all of an eighth of 32 MiB.
    let shown = topo("--nodes 513 --per-node 1 --advise").succeeded().stdout;
    let direct = shown
        .lines()
        .find(|line| line.starts_with("direct "))
        .unwrap();
    let columns: Vec<&str> = direct.split_whitespace().take(4).collect();
    assert_eq!(columns, ["direct", "512", "1", "4194"], "{shown}");
}

/// Four ranks on each of two nodes: each agent has the link to the ranks of the other one's.
#[test]
fn what_agents_carry_is_counted_as_on_paper() {
    let agents = report(topo("--nodes 2 --per-node 4 --nics 2 --json"));
    assert_eq!(
        (&agents["report"], &agents["route"]),
        (&"agents".into(), &"three-hop:2".into())
    );
    assert_eq!(histogram(&agents["ranks_per_agent"]), [[2, 2, 4]]);
    assert_eq!(histogram(&agents["links"]), [[1, 1, 4]]);
    // Of four ranks to two, and back.
    assert_eq!(histogram(&agents["carried_pairs"]), [[16, 16, 4]]);
    // One rail: one agent of a node has all of it, and the other nothing.
    let one = report(topo(
        "--nodes 2 --per-node 4 --nics 2 --route three-hop:1 --json",
    ));
    assert_eq!(histogram(&one["carried_pairs"]), [[0, 0, 2], [32, 32, 2]]);
    let unequal = report(topo("--node-sizes 5,2 --nics 2 --json"));
    assert_eq!(
        histogram(&unequal["ranks_per_agent"]),
        [[1, 1, 2], [2, 2, 1], [3, 3, 1]]
    );
    // Five ranks to one, and two to three or to two.
    assert_eq!(
        histogram(&unequal["carried_pairs"]),
        [[9, 9, 2], [11, 11, 2]]
    );
    let shown = topo("--nodes 2 --per-node 4 --nics 2").succeeded();
    assert!(
        shown.stdout.contains("# pairs per agent on its links"),
        "{}",
        shown.stdout
    );
    for (words, why) in [
        (
            "--nodes 2 --per-node 1 --nics 2",
            "node 0 has 1 ranks and 2 agents",
        ),
        (
            "--nodes 2000 --per-node 4 --nics 2",
            "possible are 2048 in all",
        ),
        ("--nics 2", "give its shape"),
        (
            "--nodes 2 --per-node 2 --nics 1 --route fabric-only",
            "no links of their own",
        ),
    ] {
        let refused = topo(words);
        assert_eq!(refused.status, 2, "{words}");
        assert!(refused.stderr.contains(why), "{words}: {}", refused.stderr);
    }
}
