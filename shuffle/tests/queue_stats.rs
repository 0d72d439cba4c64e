//! Counters per queue and the dump say what the queues of simulated jobs did.

use trihop_shuffle::simulation::{Simulation, SimulationOptions};
use trihop_shuffle::{
    DetailedStats, Error, Rank, ShimOptions, StageStats, StreamOptions, Topology,
};

fn of<'s>(stats: &'s DetailedStats, stage: &str) -> &'s StageStats {
    stats.stage(stage).expect("three hops have this stage")
}

/// With the representatives that nexus would choose, and runs that records of 900 bytes do not
/// share.
fn one_rail() -> StreamOptions {
    StreamOptions {
        run_bytes: 1024,
        route: "three-hop:1".parse().expect("a route"),
        ..StreamOptions::default()
    }
}

fn runs(class: &StageStats) -> (u64, u64) {
    let sum = |of: fn(&trihop_shuffle::QueueStats) -> u64| class.queues.iter().map(of).sum::<u64>();
    assert_eq!(class.all.own_runs, sum(|q| q.own_runs));
    assert_eq!(class.all.sends, sum(|q| q.sends));
    assert_eq!(class.all.waits, sum(|q| q.waits));
    let longest = class
        .queues
        .iter()
        .map(|q| q.longest_wait_ns)
        .max()
        .unwrap_or(0);
    assert_eq!(class.all.longest_wait_ns, longest);
    (class.all.own_runs, class.all.forwarded_runs)
}

#[test]
fn each_hop_counts_what_is_its_own_and_what_it_forwards() {
    // Over three hops from rank 1 to rank 3: rank 0 speaks with node 1, rank 2 hears it.
    let topology = Topology::from_node_sizes(&[2, 1, 2], Rank(0)).unwrap();
    let (source, target) = (Rank(1), Rank(4));
    let options = SimulationOptions {
        stream: StreamOptions {
            origin_buftarget_bytes: 1,
            relay_buftarget_bytes: 1,
            remote_buftarget_bytes: 1,
            ..one_rail()
        },
        ..SimulationOptions::default()
    };
    let mut job = Simulation::new(&topology, options, |_, _, _| {}).unwrap();
    for number in 0..5 {
        // More than half a run: a run of its own.
        job.try_send(source, target, number, &[1; 900]).unwrap();
        job.settle().unwrap();
    }
    job.fence().unwrap();
    let at = |rank: u32| job.detailed_stats(Rank(rank));
    let (first, second, third) = (at(1), at(0), at(3));
    assert_eq!(
        (
            runs(of(&first, "origin")),
            runs(of(&first, "remote")),
            runs(of(&first, "relay"))
        ),
        ((5, 0), (0, 0), (0, 0))
    );
    assert_eq!(
        (
            of(&first, "origin").queues.len(),
            of(&first, "origin").queues[0].peer
        ),
        (1, 0)
    );
    assert_eq!(of(&first, "origin").all.sends, 5);
    assert_eq!(
        (runs(of(&second, "origin")), runs(of(&second, "remote"))),
        ((0, 0), (0, 5))
    );
    assert_eq!(
        (
            of(&second, "remote").queues[0].peer,
            of(&second, "remote").all.sends
        ),
        (3, 5)
    );
    assert_eq!(
        (runs(of(&third, "remote")), runs(of(&third, "relay"))),
        ((0, 0), (0, 5))
    );
    assert_eq!(
        (of(&third, "relay").queues[0].peer, at(4).totals.delivered),
        (4, 5)
    );
    assert_eq!((first.rank, first.stream.as_str()), (1, "simulated"));
    let text = second.to_string();
    assert!(
        text.contains("remote queues: 0 runs own, 5 forwarded; 5 sends"),
        "{text}"
    );
    assert!(
        text.contains("to rank 3: 0 runs own, 5 forwarded"),
        "{text}"
    );
}

#[test]
fn waits_flushes_and_batches_in_flight_show_while_they_last_and_after() {
    let topology = Topology::from_node_sizes(&[1, 1], Rank(0)).unwrap();
    let options = SimulationOptions {
        stream: StreamOptions {
            remote_maxrpc: 1,
            remote_buftarget_bytes: 2000,
            shim: ShimOptions {
                remote_sender_limit: 2,
                ..ShimOptions::default()
            },
            linger_us: 10_000_000,
            ..one_rail()
        },
        ..SimulationOptions::default()
    };
    let mut job = Simulation::new(&topology, options, |_, _, _| {}).unwrap();
    let mut sent = 0;
    loop {
        match job.try_send(Rank(0), Rank(1), sent, &[1; 900]) {
            Ok(()) => sent += 1,
            Err(Error::WouldBlock) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let full = job.detailed_stats(Rank(0));
    let full = of(&full, "remote");
    assert_eq!((full.limit_hits, full.all.own_runs), (1, u64::from(sent)));
    // One turn posts the first batch; it is in flight until the other rank has had its turns.
    job.step().unwrap();
    let dump = job.dump(Rank(0));
    assert!(dump.contains("batch 0 is in flight for"), "{dump}");
    assert!(!dump.contains("CONTRADICTION"), "{dump}");
    job.try_send(Rank(0), Rank(1), sent, &[1; 100]).unwrap();
    job.fence().unwrap();
    let done = of(&job.detailed_stats(Rank(0)), "remote").all;
    assert!(
        done.flush_sends > 0,
        "the fence sent the last batch: {done}"
    );
    assert_eq!(done.waiting_ns, 0);
    // The collectives' own stream, which the dump shows first, may still have some.
    let dump = job.dump(Rank(0));
    let (_, stream) = dump.split_once("stream 1").unwrap();
    assert!(!stream.contains("in flight for"), "{dump}");
}

#[test]
fn a_full_lane_is_waited_for_once_until_it_takes_something() {
    let topology = Topology::from_node_sizes(&[2], Rank(0)).unwrap();
    let options = SimulationOptions {
        stream: StreamOptions {
            origin_maxrpc: 1,
            origin_buftarget_bytes: 64,
            ..one_rail()
        },
        ..SimulationOptions::default()
    };
    let mut job = Simulation::new(&topology, options, |_, _, _| {}).unwrap();
    job.try_send(Rank(0), Rank(1), 0, &[1; 900]).unwrap();
    for _ in 0..3 {
        let refused = job.try_send(Rank(0), Rank(1), 1, &[1; 900]);
        assert!(matches!(refused, Err(Error::WouldBlock)));
    }
    let full = job.detailed_stats(Rank(0));
    assert_eq!(of(&full, "origin").all.waits, 1);
    assert!(
        of(&full, "origin").all.waiting_ns > 0 && full.to_string().contains("by now"),
        "{full}"
    );
    assert!(job.dump(Rank(0)).contains("by now"));
    job.settle().unwrap();
    job.try_send(Rank(0), Rank(1), 1, &[1; 900]).unwrap();
    let done = of(&job.detailed_stats(Rank(0)), "origin").all;
    assert_eq!((done.waits, done.waiting_ns), (1, 0));
    assert!(done.longest_wait_ns > 0);
    assert_eq!((done.own_runs, done.sends), (2, 2));
}

/// What the dump of the stream says that each pool uses and may use, by name.
fn pools(job: &Simulation<'_>, rank: u32) -> Vec<(String, u64, u64)> {
    let dump = job.dump(Rank(rank));
    assert!(!dump.contains("CONTRADICTION"), "{dump}");
    let (_, stream) = dump.split_once("stream 1").unwrap();
    let line = |line: &str| -> Option<(String, u64, u64)> {
        let pool = line
            .strip_prefix("  memory in use: ")?
            .strip_suffix(" bytes")?;
        let (used, most) = pool.split_once(" of ")?;
        let (name, used) = used.rsplit_once(' ')?;
        Some((name.to_owned(), used.parse().ok()?, most.parse().ok()?))
    };
    stream.lines().filter_map(line).collect()
}

fn used(pools: &[(String, u64, u64)], name: &str) -> u64 {
    let found = pools.iter().find(|(pool, ..)| pool == name);
    found.unwrap_or_else(|| panic!("no {name} in {pools:?}")).1
}

#[test]
fn every_pool_shows_what_is_in_use_of_it_until_it_is_not() {
    let topology = Topology::from_node_sizes(&[2, 1], Rank(0)).unwrap();
    let options = SimulationOptions {
        stream: StreamOptions {
            remote_maxrpc: 1,
            remote_buftarget_bytes: 2000,
            origin_buftarget_bytes: 1,
            linger_us: 10_000_000,
            ..one_rail()
        },
        ..SimulationOptions::default()
    };
    let mut job = Simulation::new(&topology, options, |_, _, _| {}).unwrap();
    let empty = pools(&job, 1);
    let names: Vec<_> = empty.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "run table",
            "spill",
            "send pools",
            "inbox",
            "receive pools",
            "shared records",
            "delivery queue",
            "long records"
        ]
    );
    let formula = job.dump(Rank(1));
    for (name, used, most) in &empty {
        assert!(used <= most, "{name}");
        if name != "delivery queue" && name != "long records" {
            assert!(
                formula.contains(&format!("{name} {most} ")),
                "{name} {most}: {formula}"
            );
        }
    }
    // Batches fill up that nobody takes, and one short run is open; rank 1 speaks for its node with
    // the other.
    while job.try_send(Rank(1), Rank(2), 0, &[1; 900]).is_ok() {}
    job.try_send(Rank(1), Rank(0), 0, b"short").unwrap();
    let full = pools(&job, 1);
    assert!(
        used(&full, "run table") > used(&empty, "run table"),
        "{full:?}"
    );
    assert!(used(&full, "send pools") >= 2000, "{full:?}");
    let mut long = Simulation::new(&topology, SimulationOptions::default(), |_, _, _| {}).unwrap();
    // Inside of the node it lies in shared memory, whole.
    long.try_send(Rank(0), Rank(1), 0, &[1; 2 << 20]).unwrap();
    let shared = used(&pools(&long, 0), "shared records");
    assert!(shared >= 2 << 20, "{shared}");
    assert_eq!(used(&pools(&long, 0), "long records"), 0);
    long.try_send(Rank(0), Rank(2), 0, &[1; 2 << 20]).unwrap();
    let kept = used(&pools(&long, 0), "long records");
    assert!(kept > 0 && kept <= 2 << 20, "{kept}");
    job.fence().unwrap();
    long.fence().unwrap();
    for rank in 0..3 {
        for (job, name) in [
            (&job, "send pools"),
            (&job, "receive pools"),
            (&job, "inbox"),
            (&long, "long records"),
        ] {
            assert_eq!(used(&pools(job, rank), name), 0, "{name} of rank {rank}");
        }
    }
}
