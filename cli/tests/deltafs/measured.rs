//! The client that measures what a client gets: its rows are whole, whatever its options.

use serde_json::Value;

use super::compiled::Compiler;
use super::under_mpi;

/// What a row of `trihop bench --json` has.
const KEYS: [&str; 19] = [
    "bench",
    "api",
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
    "seconds",
    "seconds_range",
    "syscalls_per_1e6_msgs",
    "minor_faults",
    "ctx_switches",
    "checked",
];

/// The rows of tests/deltafs/many.c on 8 ranks of four of MPI's nodes; none without MPICH.
fn measured(arguments: &[&str]) -> Option<Vec<Value>> {
    // MPICH alone takes one machine for as many nodes as it is told.
    let launcher = ["mpiexec.mpich", "-genv", "MPIR_CVAR_NUM_CLIQUES", "4"];
    let launcher = [&launcher[..], &["-n", "8"]].concat();
    let ended = under_mpi(Compiler::Mpich, &launcher, "many", arguments)?.succeeded();
    let rows = ended.stdout.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        for key in KEYS {
            assert!(row.get(key).is_some(), "{key}: {line}");
        }
        assert_eq!((&row["ranks"], &row["nodes"]), (&8.into(), &4.into()));
        assert_eq!(row["checked"], true);
        row
    });
    Some(rows.collect())
}

#[test]
fn a_client_that_measures_gets_every_message_whole() {
    let long = (2 << 20).to_string();
    for options in ["production", "default", "single"] {
        let sizes = ["-s", "24", "-s", "1024", "-s", "40000"];
        let more = ["-c", "300", "-r", "2", "-o", options];
        let Some(rows) = measured(&[&sizes[..], &more].concat()) else {
            return;
        };
        let got: Vec<_> = rows.iter().map(|row| row["size"].as_u64()).collect();
        assert_eq!(got, [24, 1024, 40_000].map(Some));
        for row in rows {
            assert_eq!(
                (&row["hops"], &row["options"]),
                (&3.into(), &options.into())
            );
        }
        let rows = measured(&["-s", &long, "-r", "1", "-o", options]).expect("as before");
        assert_eq!(rows[0]["count"], 1);
    }
}

#[test]
fn a_client_that_measures_takes_the_time_of_round_trips() {
    for (pair, hops) in [("node", 1), ("hops", 3)] {
        for more in [&["-o", "default"][..], &["-o", "single", "-u"]] {
            let arguments = ["-l", pair, "-c", "20", "-s", "24", "-s", "40000"];
            let Some(rows) = measured(&[&arguments[..], more].concat()) else {
                return;
            };
            assert_eq!(rows.len(), 2);
            for row in rows {
                assert_eq!(row["hops"], hops, "{row}");
                let half = row["latency_us"].as_f64().unwrap();
                let whole = row["round_trip_p50_us"].as_f64().unwrap();
                assert!(whole > 0.0 && (2.0 * half - whole).abs() < 0.01, "{row}");
            }
        }
    }
}
