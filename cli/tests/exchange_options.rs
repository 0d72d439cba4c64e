//! What `trihop exchange` has from nexus-runner: each option with its effect.

mod launched;

use std::fs;
use std::process::Command;

use launched::exchanged::{Exchanged, exchange, launcher, with};
use launched::run;
use serde_json::Value;

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

#[test]
fn an_exchange_that_takes_too_long_is_given_up_although_it_moves() {
    // Ten seconds of deliveries, one every 5 ms.
    let options = "--count 2000 --only-to 1 --deliver-delay-ms 5 --stall-s 60";
    let done = run(exchange("1,1", &format!("{options} --timeout-s 1")));
    done.refused(
        1,
        &["has not finished within 1 s (--timeout-s)", "received"],
    );
    let options = "--count 100 --only-to 1 --deliver-delay-ms 5 --timeout-s 200";
    run(exchange("1,1", options)).report(200);
}

#[test]
fn maps_of_the_job_are_those_that_topo_writes() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, theirs) = (directory.path().join("job"), directory.path().join("shape"));
    let options = format!("--count 10 --topo {}", ours.display());
    run(exchange("2,1,3", &options)).report(60);
    let mut command = Command::new(TRIHOP);
    command
        .args(["topo", "--node-sizes", "2,1,3", "--output"])
        .arg(&theirs);
    run(command).succeeded();
    for rank in 0..6 {
        for what in ["id", "lmap", "rmap"] {
            let text = |prefix: &str| {
                let name = format!("{prefix}.{rank}.{what}");
                fs::read_to_string(directory.path().join(&name)).expect(&name)
            };
            assert_eq!(text("job"), text("shape"));
        }
    }
    let refused = run(exchange(
        "1",
        &format!("--topo {}/none/x", directory.path().display()),
    ));
    refused.refused(1, &["none/x.0.id"]);
}

#[test]
fn every_message_is_printed_when_asked_for_and_none_otherwise() {
    for options in ["", "--poll"] {
        let done = run(exchange(
            "2,1",
            &format!("--count 7 --size 30 --print {options}"),
        ));
        done.report(21);
        for (what, count) in [
            (" sent message ", 21),
            (" received message ", 21),
            (" of 30 bytes ", 42),
        ] {
            let found = done.stderr.matches(what).count();
            assert_eq!(found, count, "{what}: {}", done.stderr);
        }
        assert!(
            done.stderr.contains("rank 2 sent message 0 "),
            "{}",
            done.stderr
        );
    }
    let done = run(exchange("2,1", "--count 7"));
    done.report(21);
    assert!(!done.stderr.contains("message"), "{}", done.stderr);
}

#[test]
fn a_terminal_gets_a_progress_bar_unless_it_shall_be_quiet() {
    let Some(script) = launcher(&["script"], "util-linux") else {
        return;
    };
    let on_a_terminal = |options: &str| {
        let mut command = Command::new(script);
        let line = format!("{TRIHOP} exchange --json --count 20000 {options}");
        command
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm");
        run(command).succeeded().stdout
    };
    assert!(on_a_terminal("").contains("/20000 messages"));
    let quiet = on_a_terminal("--quiet");
    assert!(
        quiet.contains("\"checked\":true") && !quiet.contains("/20000"),
        "{quiet}"
    );
}

#[test]
fn the_number_of_the_run_is_in_the_report() {
    let report = run(exchange("2", "--count 10 --run-number 41")).report(20);
    assert_eq!(report["run_number"], 41);
    let report = run(exchange("2", "--count 10")).report(20);
    assert_eq!(report.get("run_number"), None);
    let mut command = Command::new(TRIHOP);
    command.args(["exchange", "--count", "10", "-r", "41"]);
    let table = run(command).succeeded().stdout;
    assert!(table.starts_with("run          41\n"), "{table}");
}

#[test]
fn each_rank_tells_what_it_used_while_sending_and_altogether() {
    let report = run(exchange("2,1", "--count 20000 --usage")).report(60_000);
    let rows = report["usage"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    let field = |row: usize, name: &str| {
        rows[row][name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    for rank in 0..3 {
        let (sending, whole) = (2 * rank, 2 * rank + 1);
        assert_eq!(
            (&rows[sending]["phase"], &rows[whole]["phase"]),
            (&"sending".into(), &"whole".into())
        );
        assert_eq!(
            (&rows[sending]["rank"], &rows[whole]["rank"]),
            (&rank.into(), &rank.into())
        );
        assert!(
            field(sending, "seconds") > 0.0
                && field(whole, "user_s") + field(whole, "system_s") > 0.0
        );
        for name in [
            "seconds",
            "user_s",
            "minor_faults",
            "voluntary_switches",
            "involuntary_switches",
        ] {
            assert!(
                field(sending, name) <= field(whole, name),
                "{name}: {report}"
            );
        }
    }
    assert_eq!(
        run(exchange("2", "--count 10")).report(20).get("usage"),
        None
    );
    let mut command = Command::new(TRIHOP);
    command.args(["exchange", "--count", "10", "-T"]);
    let table = run(command).succeeded().stdout;
    let of_all = |line: &str| line.split_whitespace().take(2).eq(["0", "whole"]);
    assert!(
        table.contains("switches") && table.lines().any(of_all),
        "{table}"
    );
}

#[test]
fn each_rank_tells_what_its_queues_and_threads_did() {
    let options =
        "--count 5000 --detail --remote-buftarget-bytes 2000 --remote-maxrpc 1 --run-bytes 1024";
    for (options, threads) in [
        (options.to_owned(), &[][..]),
        (format!("{options} --threaded"), &["progress", "deliver"]),
    ] {
        let report = run(exchange("2,1", &options)).report(15_000);
        let ranks = report["detail"].as_array().unwrap();
        assert_eq!(ranks.len(), 3);
        let number = |value: &Value| {
            value
                .as_u64()
                .unwrap_or_else(|| panic!("{value} in {report}"))
        };
        let (mut waits, mut limit_hits, mut batches, mut forwarded) = (0, 0, 0, 0);
        for (rank, detail) in ranks.iter().enumerate() {
            assert_eq!(
                (&detail["rank"], &detail["stream"]),
                (&rank.into(), &"exchange".into())
            );
            for class in ["origin", "remote", "relay"] {
                let class = &detail[class];
                let queues = class["queues"].as_array().unwrap();
                for name in [
                    "own_runs",
                    "forwarded_runs",
                    "sends",
                    "flush_sends",
                    "aged_sends",
                    "waits",
                ] {
                    let sum: u64 = queues.iter().map(|queue| number(&queue[name])).sum();
                    assert_eq!(number(&class["all"][name]), sum, "{name}: {detail}");
                }
                waits += number(&class["all"]["waits"]);
                limit_hits += number(&class["limit_hits"]);
                forwarded += number(&class["all"]["forwarded_runs"]);
            }
            batches += number(&detail["remote"]["all"]["sends"]);
            let used: Vec<_> = detail["threads"]
                .as_array()
                .unwrap()
                .iter()
                .map(|t| &t["name"])
                .collect();
            assert_eq!(used, threads);
        }
        let told = ["queue_waits", "limit_hits", "batches"].map(|name| number(&report[name]));
        assert_eq!([waits, limit_hits, batches], told);
        assert!(batches > 100 && waits > 0 && forwarded > 0, "{report}");
    }
    assert_eq!(
        run(exchange("2", "--count 10")).report(20).get("detail"),
        None
    );
    let mut command = Command::new(TRIHOP);
    command.args(["exchange", "--count", "10", "--detail", "--threaded"]);
    let table = run(command).succeeded().stdout;
    for text in [
        "stream `exchange` on rank 0",
        "origin queues: ",
        "    to rank 0: ",
        "thread progress: ",
    ] {
        assert!(table.contains(text), "no `{text}` in {table}");
    }
}

#[test]
fn options_of_the_library_count_more_than_the_environment() {
    let job = with(
        exchange("2,2", "--count 100 --route direct"),
        &[("TRIHOP_ROUTE", "three-hop")],
    );
    assert_eq!(run(job).report(400)["route"], "direct");
    let job = with(
        exchange("2,2", "--count 100 --provider none-such"),
        &[("TRIHOP_PROVIDER", "net")],
    );
    run(job).refused(1, &["none-such"]);
    let options = "--count 300 --size 0-4K --eager-bytes 4096 --mover segments";
    let report = run(exchange("2,2", options)).report(1200);
    assert!(
        report["announced"].as_u64() > Some(0),
        "no batch came by rendezvous: {report}"
    );
    let refused = run(exchange("2,2", "--count 100 --launcher pmix"));
    refused.refused(2, &["pmix"]);
}

#[test]
fn ranks_of_a_node_meet_over_the_fabric_where_the_route_says_so() {
    for (nodes, ranks) in [("1", 1), ("3", 3), ("2,1,3", 6)] {
        for options in [
            "--route fabric-only",
            "--route fabric-only --broadcast --threaded",
        ] {
            let report = run(exchange(
                nodes,
                &format!("--count 300 --size 0-9K --flush four {options}"),
            ));
            let copies = if options.contains("broadcast") {
                ranks - 1
            } else {
                1
            };
            let report = report.report(300 * ranks * copies);
            let on_wire = report["wire_bytes"].as_u64().unwrap();
            // Some of what a rank sends it sends to itself.
            let at_least = report["bytes"].as_u64().unwrap() / 3;
            assert!(
                ranks == 1 && on_wire == 0 || on_wire > at_least,
                "{nodes}: {report}"
            );
        }
    }
}

#[test]
fn logs_go_where_the_options_say() {
    // What every rank says at start, at the level `debug`.
    const LINE: &str = "debug bootstrap rank";
    let directory = tempfile::tempdir().unwrap();
    let said = |options: &str| {
        let done = run(exchange("2,1", &format!("--count 5 {options}")));
        done.report(15);
        done.stderr.matches(LINE).count()
    };
    assert_eq!(said(""), 0);
    assert_eq!(said("--log debug"), 3);
    assert_eq!(said("--log warn,bootstrap=debug"), 3);
    assert_eq!(said("--log debug,bootstrap=warn"), 0);
    assert_eq!(said("--log warn --log-extra debug --log-extra-max 1"), 2);
    assert_eq!(said("--log warn --log-extra debug"), 3);
    assert_eq!(said("--log debug --log-stderr error"), 0);

    let to_files = |name: &str, options: &str| {
        let prefix = directory.path().join(name);
        let on_stderr = said(&format!("--log-file {} {options}", prefix.display()));
        let file = |rank: u32| {
            fs::read_to_string(directory.path().join(format!("{name}.{rank}"))).unwrap()
        };
        let lines = [0, 1, 2].map(|rank| file(rank).matches(LINE).count());
        (on_stderr, lines)
    };
    assert_eq!(
        to_files("all", "--log debug --log-stderr error"),
        (0, [1, 1, 1])
    );
    assert_eq!(
        to_files("extra", "--log-extra debug --log-extra-max 0"),
        (1, [1, 0, 0])
    );

    assert_eq!(
        said("--log debug --log-stderr off --dump"),
        3,
        "memory shows them"
    );
    assert_eq!(
        said("--log debug --log-stderr off --dump --log-ring-bytes 0"),
        0
    );
}

#[test]
fn logs_that_cannot_be_are_refused() {
    let alone = |options: &[&str]| {
        let mut command = Command::new(TRIHOP);
        command.args(["exchange", "--count", "1"]).args(options);
        run(command)
    };
    alone(&["--log", "a=b=c"]).refused(2, &["--log", "a=b=c"]);
    alone(&["--log-file", "/proc/none/log"]).refused(1, &["/proc/none/log.0"]);
    alone(&["--log-extra-max", "3"]).refused(2, &["--log-extra"]);
    alone(&["--log-stderr", "loud"]).refused(2, &["--log-stderr", "loud"]);
}

#[test]
fn a_progress_and_a_delivery_thread_carry_it_as_calls_do() {
    for (nodes, options, messages) in [
        ("1", "--count 500", 500),
        ("2,2", "--count 2000 --size 0-4K", 8000),
        (
            "1,3,2",
            "--count 300 --size 0-9K --flush four --fence-every 90",
            1800,
        ),
        ("2,1", "--count 300 --deliverq-max 4", 900),
        ("2,1", "--count 4 --size 0-3M", 12),
    ] {
        run(exchange(nodes, &format!("--threaded {options}"))).report(messages);
    }
    let dumped = |options: &str| {
        let done = run(exchange("2", &format!("--count 50 --dump {options}")));
        done.report(100);
        done.stderr
    };
    assert!(!dumped("").contains("delivery thread's queue"));
    assert!(
        dumped("--threaded --deliverq-max 77").contains("delivery thread's queue: 0 of 77 records")
    );
    run(exchange("2", "--threaded --poll")).refused(2, &["--poll"]);
    run(exchange("2", "--deliverq-max 0")).refused(2, &["deliverq_max", "between 1 and"]);
}

#[test]
fn broadcasts_come_to_all_others_once_and_to_their_sender_when_asked() {
    for shape in ["1", "3", "1,1", "2,2", "1,3,2", "2,2,2,2"] {
        let ranks: u64 = shape
            .split(',')
            .map(|size| size.parse::<u64>().unwrap())
            .sum();
        let report = run(exchange(shape, "--count 200 --size 0-2K --broadcast"))
            .report(200 * ranks * (ranks - 1));
        assert_eq!(report["broadcast"], true);
        let options = "--count 200 --size 0-2K --broadcast --broadcast-self";
        run(exchange(shape, options)).report(200 * ranks * ranks);
    }
    for options in [
        "--poll --deliverq-max 3",
        "--flush four --fence-every 30",
        "--threaded --fence-every 30",
        "--min-sender 1 --max-sender 1",
        "--route direct",
        "--remote-maxrpc 1 --origin-maxrpc 1 --relay-maxrpc 1 --remote-buftarget-bytes 300 --memory-bytes 65536",
    ] {
        let senders = if options.contains("sender") { 1 } else { 5 };
        let options = format!("--count 100 --size 0-300 -A -k {options}");
        run(exchange("2,1,2", &options)).report(100 * senders * 5);
    }
    run(exchange("2,2", "--count 3 --size 200000 -A")).report(3 * 4 * 3);
}

#[test]
fn a_broadcast_crosses_to_a_node_once_by_each_rail() {
    let bytes = |options: &str| {
        let report = run(exchange(
            "4,4",
            &format!("--count 500 --size 1000 --max-sender 0 {options}"),
        ))
        .report(3500);
        report["wire_bytes"].as_u64().unwrap()
    };
    // Four ranks there, 500 messages of 1,000 bytes.
    for (route, rails) in [("three-hop:1", 1), ("three-hop:2", 2), ("three-hop", 4)] {
        let wire_bytes = bytes(&format!("--broadcast --route {route}"));
        let once = 500_000 * rails..900_000 * rails;
        assert!(once.contains(&wire_bytes), "{route}: {wire_bytes}");
    }
    let printed = run(exchange("2,1", "--count 3 --broadcast --print"));
    printed.report(18);
    assert_eq!(
        printed.stderr.matches(" to all ranks").count(),
        9,
        "{}",
        printed.stderr
    );
    assert_eq!(printed.stderr.matches(" received message ").count(), 18);
    run(exchange("2", "--broadcast --only-to 1")).refused(2, &["--broadcast", "--only-to"]);
    run(exchange("2", "--broadcast-self")).refused(2, &["--broadcast"]);
}

#[test]
fn a_full_delivery_queue_holds_deliveries_up() {
    let blocked = |options: &str| {
        let options = format!("--count 200 --only-to 0 --deliver-delay-ms 1 --threaded {options}");
        let report = run(exchange("2", &options)).report(400);
        report["blocked_deliveries"].as_u64().unwrap()
    };
    assert_eq!(blocked(""), 0);
    assert!(blocked("--deliverq-max 3") > 0);
}
