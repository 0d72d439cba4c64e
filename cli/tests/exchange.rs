//! `trihop exchange` as a user starts it: real processes, real libfabric, every launcher; each
//! message is checked by its receiver.

mod launched;

use std::process::Command;

use launched::exchanged::{Exchanged, exchange, launcher, with};
use launched::run;

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// Queues of a few hundred bytes, one batch in flight, and no more memory than the least that may
/// be.
const TINY: &str = "--remote-maxrpc 1 --origin-maxrpc 1 --relay-maxrpc 1 --remote-buftarget-bytes 300 --origin-buftarget-bytes 64 \
                    --relay-buftarget-bytes 100 --run-bytes 64 --memory-bytes 65536";

/// Whether libfabric here has the provider; says so when it does not.
fn has_provider(name: &str) -> bool {
    let mut command = Command::new(TRIHOP);
    command.args(["info", "--provider", name]);
    let found = run(command).status == 0;
    if !found {
        eprintln!("skipped: libfabric has no provider `{name}` here (or `trihop info` rejects it)");
    }
    found
}

#[test]
fn one_process_needs_no_launcher() {
    let mut command = Command::new(TRIHOP);
    command.args("exchange --json --count 5000 --size 0-4K".split_whitespace());
    let report = run(command).report(5000);
    assert_eq!(
        (&report["ranks"], &report["nodes"], &report["wire_bytes"]),
        (&1.into(), &1.into(), &0.into())
    );
}

#[test]
fn every_shape_of_job_delivers_every_message_once() {
    let shapes = [
        "1", "2", "4", "1,1", "2,2", "4,4", "1,4", "3,1", "1,1,1", "3,3,3", "4,1,2", "1,1,1,1",
        "2,2,2,2", "1,3,2,4", "4,4,4,4",
    ];
    for shape in shapes {
        let ranks: u64 = shape
            .split(',')
            .map(|size| size.parse::<u64>().unwrap())
            .sum();
        let report = run(exchange(shape, "--count 400 --size 0-4K")).report(400 * ranks);
        assert_eq!(report["ranks"], ranks);
        assert_eq!(report["nodes"], shape.split(',').count());
        assert_eq!(
            report["wire_bytes"].as_u64() > Some(0),
            shape.contains(','),
            "{report}"
        );
    }
}

#[test]
fn grids_deliver_every_message_once_with_and_without_holes() {
    let grids = [
        ("1", "mesh"),
        ("3", "mesh"),
        ("2,2", "mesh"),
        ("4,1,2", "mesh:3d"),
        ("2,2,2,2", "mesh:2x2x2"),
        ("3,4", "mesh:5x3"),
        ("4,4", "mesh:8"),
        ("1,3,2,2", "mesh:2x2x2x2x2"),
        ("3,1,2", "node-mesh"),
        ("2,2,2,2", "node-mesh:2x2"),
        ("1,2,1,2,1", "node-mesh:2x2x2"),
        ("3,1,2", "team-mesh"),
        ("2,2,2,2", "team-mesh:2x2"),
        ("1,1", "team-mesh:1x2"),
        ("3,2", "team-mesh:1d"),
        ("1,2,4,2,1", "team-mesh:2x2x2"),
    ];
    for (at, (shape, grid)) in grids.into_iter().enumerate() {
        let ranks: u64 = shape
            .split(',')
            .map(|size| size.parse::<u64>().unwrap())
            .sum();
        // Ends and seats of two kinds on each, in turn: all are on each kind of grid.
        let ends = match at % 2 {
            0 => ["", "--flush four"],
            _ => ["--poll", "--flush round --fence-every 50"],
        };
        for options in ends {
            let options = format!("--count 400 --size 0-4K --route {grid} {options}");
            let report = run(exchange(shape, &options)).report(400 * ranks);
            let route = report["route"].as_str().unwrap();
            assert!(route.contains("mesh:") && !route.ends_with('d'), "{route}");
        }
        let broadcast = format!("--count 30 --size 0-4K --route {grid} -A -k");
        run(exchange(shape, &broadcast)).report(30 * ranks * ranks);
    }
    let refused = run(exchange("3,4", "--route mesh:2x3"));
    refused.refused(2, &["2x3 has 6 places for 7 ranks"]);
    run(exchange("1", "--route mesh:axb")).refused(2, &["`axb` is no grid"]);
}

#[test]
fn messages_of_any_size_arrive() {
    run(exchange("2,1", "--count 3000 --size 0")).report(9000);
    run(exchange("2,1", "--count 3000 --size 0-13")).report(9000);
    run(exchange(
        "2,2",
        "--count 60 --size 8,1000,1008,1016,16368,16376,16384,65536,70000",
    ))
    .report(240);
    run(exchange("2,2", "--count 12 --size 0-3M")).report(48);
}

#[test]
fn a_message_of_64_mib_crosses_three_hops() {
    // Rank 1 is not the source representative for node 1, and rank 3 not the target representative.
    let report = run(exchange(
        "2,2",
        "--count 2 --size 64M --min-sender 0 --max-sender 0 --only-to 3",
    ))
    .report(2);
    assert_eq!(report["bytes"], 2u64 << 26);
}

#[test]
fn one_batch_in_flight_and_tiny_queues_lose_nothing() {
    run(exchange(
        "2,2",
        "--count 2000 --size 0-4K --remote-maxrpc 1",
    ))
    .report(8000);
    run(exchange("2,2", &format!("--count 250 --size 0-4K {TINY}"))).report(1000);
    run(exchange(
        "1,3,2",
        &format!("--count 250 --size 0-300 {TINY} --poll --deliverq-max 1"),
    ))
    .report(1500);
    run(exchange(
        "2,2,2,2",
        "--count 300 --size 0-2K --memory-bytes 65536",
    ))
    .report(2400);
}

#[test]
fn every_provider_and_both_movers_carry_it() {
    for provider in ["net", "tcp", "tcp;ofi_rxm", "shm"] {
        if !has_provider(provider) {
            continue;
        }
        let chosen = [("TRIHOP_PROVIDER", provider)];
        let report = run(with(exchange("2,2,1", "--count 500 --size 0-4K"), &chosen)).report(2500);
        assert!(
            report["provider"].as_str() != Some("none (one node)"),
            "{report}"
        );
        for mover in ["read", "segments"] {
            let forced = [
                ("TRIHOP_MOVER", mover),
                ("TRIHOP_EAGER_BYTES", "4096"),
                chosen[0],
            ];
            for (nodes, options, messages) in [
                ("2,2", "--count 300 --size 0-4K", 1200),
                ("2,1", "--count 4 --size 0-2M", 12),
            ] {
                let report = run(with(exchange(nodes, options), &forced)).report(messages);
                assert!(
                    report["announced"].as_u64() > Some(0),
                    "no batch came by rendezvous: {report}"
                );
            }
        }
    }
}

#[test]
fn taking_instead_of_handling_never_gets_stuck() {
    run(exchange("2,2", "--count 2000 --size 0-1K --poll")).report(8000);
    for most in ["1", "3", "50"] {
        let options = format!("--count 500 --size 0-1K --poll --deliverq-max {most}");
        run(exchange("2,1,2", &options)).report(2500);
        run(exchange(
            "2,1,2",
            &(options + " --flush four --fence-every 200"),
        ))
        .report(2500);
    }
}

#[test]
fn four_flushes_end_it_as_a_fence_does() {
    run(exchange("2,2", "--count 2000 --size 0-1K --flush four")).report(8000);
    run(exchange(
        "1,3,2",
        "--count 500 --size 0-9K --flush four --fence-every 90",
    ))
    .report(3000);
}

#[test]
fn rounds_end_it_as_a_fence_does() {
    for options in ["", "--threaded", "--poll", "--route direct", "-A -k"] {
        let count = if options.starts_with("-A") { 7 } else { 1 };
        for (shape, ranks) in [("1", 1), ("3", 3), ("2,2", 4), ("1,3,2,1", 7)] {
            let options =
                format!("--count 600 --size 0-9K --flush round --fence-every 50 {options}");
            let all = if count > 1 { ranks } else { 1 };
            run(exchange(shape, &options)).report(600 * ranks * all);
        }
    }
}

#[test]
fn a_slow_receiver_is_waited_for() {
    // One receiver, 60 messages from each of 4 ranks, 2 ms each.
    let options = "--count 60 --size 0-2K --only-to 1 --deliver-delay-ms 2";
    let report = run(exchange("2,2", options)).report(240);
    assert!(report["seconds"].as_f64() > Some(0.48), "{report}");
    run(exchange(
        "2,2",
        &format!("{options} --poll --deliverq-max 2 {TINY}"),
    ))
    .report(240);
}

#[test]
fn senders_and_targets_are_the_chosen_ones() {
    run(exchange("2,2", "--count 100 --min-sender 1 --max-sender 2")).report(200);
    run(exchange("2,2", "--count 100 --only-to 3 --exclude-self")).report(300);
    run(exchange(
        "2,2",
        "--count 100 --only-to 3 --fence-every 10 --min-sender 3 --exclude-self",
    ))
    .report(0);
    let report = run(exchange(
        "1,1",
        "--count 100 --round-robin --exclude-self --size 10",
    ))
    .report(200);
    assert_eq!(report["bytes"], 2000);
    run(exchange("2,1", "--count 99 --round-robin")).report(297);
}

#[test]
fn a_seed_replays_the_same_exchange() {
    let bytes = |options: &str, seed: &str| {
        let report = run(with(exchange("2,1", options), &[("TRIHOP_SEED", seed)])).report(900);
        (
            report["seed"].as_u64().unwrap(),
            report["bytes"].as_u64().unwrap(),
        )
    };
    let (seed, first) = bytes("--count 300 --size 0-4K", "77");
    assert_eq!(seed, 77);
    assert_eq!(
        bytes("--count 300 --size 0-4K --seed 77", "5"),
        (77, first),
        "the option counts more"
    );
    assert_ne!(bytes("--count 300 --size 0-4K", "78").1, first);
}

#[test]
fn bad_options_are_refused_with_the_reason() {
    let alone = |options: &str| {
        let mut command = Command::new(TRIHOP);
        command.arg("exchange").args(options.split_whitespace());
        run(command)
    };
    alone("--remote-maxrpc 0").refused(2, &["remote_maxrpc", "1", "1024"]);
    alone("--run-bytes many").refused(2, &["run_bytes", "many"]);
    alone("--size 9-3").refused(2, &["--size", "9 is above 3"]);
    alone("--size 65M").refused(2, &["--size", "67108864", "--max-message-bytes"]);
    alone("--min-sender 3 --max-sender 2").refused(2, &["--max-sender 2", "--min-sender 3"]);
    alone("--exclude-self").refused(2, &["--exclude-self"]);
    alone("--remote-maxrcp 4").refused(2, &["--remote-maxrpc"]);
    let mut command = Command::new(TRIHOP);
    command.arg("exchange").env("TRIHOP_SEED", "soon");
    run(command).refused(2, &["TRIHOP_SEED", "soon"]);
    // What only the job's size shows is told once, and all ranks end alike.
    let refused = run(exchange("2,1", "--only-to 3"));
    refused.refused(2, &["--only-to 3", "0 to 2"]);
    assert_eq!(
        refused.stderr.matches("--only-to 3").count(),
        1,
        "{}",
        refused.stderr
    );
}

#[test]
fn ranks_with_different_options_are_refused() {
    let script = format!(
        "if [ $TRIHOP_RANK = 1 ]; then n=5; else n=6; fi; exec {TRIHOP} exchange --count $n"
    );
    let mut command = Command::new(TRIHOP);
    command.args(["run", "--no-prefix", "-n", "3", "--", "sh", "-c", &script]);
    run(command).refused(2, &["different options"]);
}

#[test]
fn ranks_with_different_routes_are_refused() {
    // Rank 0, whom everyone asks; its neighbour; one of another node.
    for odd in [0, 1, 3] {
        let script = format!(
            "if [ $TRIHOP_RANK = {odd} ]; then export TRIHOP_ROUTE=direct; else export TRIHOP_ROUTE=three-hop; fi; \
             exec {TRIHOP} exchange --json --count 10"
        );
        let mut command = Command::new(TRIHOP);
        command.args("run --no-prefix -n 4 --nodes 2 -- sh -c".split_whitespace());
        command.arg(&script);
        let said = [
            "stream `exchange` differs between ranks",
            "route is `",
            "here and another on another rank",
        ];
        run(command).refused(2, &said);
    }
}

#[test]
fn a_rank_that_stands_still_ends_the_job_and_says_so() {
    // The receiver sleeps for ten minutes in its handler.
    let done = run(exchange(
        "1,1",
        "--count 1 --only-to 1 --deliver-delay-ms 600000 --stall-s 1",
    ));
    done.refused(1, &["has neither sent nor received anything", "--stall-s"]);
}

#[test]
fn every_rank_dumps_its_queues_when_asked() {
    let done = run(exchange("2,1", "--count 10 --dump"));
    done.report(30);
    for rank in 0..3 {
        let line = format!("`exchange` on rank {rank} ");
        assert!(done.stderr.contains(&line), "{}", done.stderr);
    }
    assert!(done.stderr.contains("memory bound"), "{}", done.stderr);
}

#[test]
fn the_table_for_people_says_the_same() {
    let mut command = Command::new(TRIHOP);
    command
        .args("run --no-prefix -n 4 --nodes 2 --".split_whitespace())
        .arg(TRIHOP);
    command.args("exchange --count 1000 --size 0-100".split_whitespace());
    let done = run(command);
    assert_eq!(done.status, 0, "{}", done.stderr);
    for text in [
        "4 on 2 nodes",
        "4000 of 0-100 bytes, each checked once",
        "provider",
        "seed",
        "us per message",
        "peak RSS",
    ] {
        assert!(
            done.stdout.contains(text),
            "no `{text}` in: {}",
            done.stdout
        );
    }
}

#[test]
fn mpiexec_of_mpich_starts_it_too() {
    let Some(mpiexec) = launcher(&["mpiexec.hydra", "mpiexec.mpich", "mpiexec"], "HYDRA") else {
        return;
    };
    let start = |hosts: &str, per_host: &str, ranks: &str, options: &str| {
        let mut command = Command::new(mpiexec);
        command
            .args([
                "-launcher",
                "fork",
                "-hosts",
                hosts,
                "-ppn",
                per_host,
                "-n",
                ranks,
                TRIHOP,
                "exchange",
                "--json",
            ])
            .args(options.split_whitespace())
            .env("TRIHOP_LOOPBACK", "1");
        run(command)
    };
    let report = start("127.0.0.1", "4", "4", "--count 1000 --size 0-4K").report(4000);
    assert_eq!(report["nodes"], 1);
    let report = start("127.0.0.1,127.0.0.2", "2", "4", "--count 1000 --size 0-4K").report(4000);
    assert_eq!(report["nodes"], 2, "{report}");
    let report = start(
        "127.0.0.1,127.0.0.2,127.0.0.3",
        "2",
        "5",
        "--count 500 --size 0-4K --flush four",
    )
    .report(2500);
    assert_eq!(report["nodes"], 3, "{report}");
    let refused = start("127.0.0.1", "2", "2", "--only-to 2");
    assert_eq!(refused.status, 2, "{}", refused.stderr);
}

#[test]
fn mpirun_of_open_mpi_starts_it_too() {
    let Some(mpirun) = launcher(&["mpirun.openmpi", "mpirun"], "Open MPI") else {
        return;
    };
    let mut command = Command::new(mpirun);
    // Open MPI refuses root without being told, and more ranks than cores.
    command
        .args("--allow-run-as-root --oversubscribe -n 4".split_whitespace())
        .arg(TRIHOP)
        .args("exchange --json --count 1000 --size 0-4K".split_whitespace())
        .env("TRIHOP_LOOPBACK", "1");
    let report = run(command).report(4000);
    assert_eq!((&report["ranks"], &report["nodes"]), (&4.into(), &1.into()));
}
