//! Agents: each node has a process that is the relay of its ranks, which open no fabric.

mod launched;

use std::fs;
use std::path::Path;
use std::process::Command;

use launched::compiled::{Compiler, client_of};
use launched::{Ended, Launched, until};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Starts a job of so many ranks on so many nodes, with agents.
fn start(ranks: u32, nodes: u32, command: &str) -> Launched {
    let text = format!("--seat agent -n {ranks} --nodes {nodes} -- {command}");
    Launched::trihop(words(&text))
}

fn has_ended_well(ended: &Ended, what: &str) {
    assert_eq!(
        ended.status, 0,
        "{what}: {}\n{}",
        ended.stdout, ended.stderr
    );
    assert!(!ended.stderr.contains("warn"), "{what}: {}", ended.stderr);
}

#[test]
fn ranks_exchange_by_agents_as_they_do_by_themselves() {
    let shapes = [(1, 1), (3, 1), (2, 2), (8, 2), (6, 3), (8, 4)];
    for (ranks, nodes) in shapes {
        for how in [
            "",
            "--threaded",
            "--broadcast --count 50",
            "--size 1-100000 --count 200",
        ] {
            let count = if how.contains("--count") {
                ""
            } else {
                "--count 3000"
            };
            let command = format!("{TRIHOP} exchange {count} {how}");
            let ended = start(ranks, nodes, &command).wait();
            let what = format!("{ranks} on {nodes}: {how}");
            has_ended_well(&ended, &what);
            let shape = format!("ranks        {ranks} on {nodes} nodes, three-hop:1");
            assert!(ended.stdout.contains(&shape), "{what}: {}", ended.stdout);
        }
    }
}

#[test]
fn benchmarks_run_by_agents_and_are_verified() {
    for name in ["histo", "a2a", "push", "cc"] {
        let command = format!("bench {name} --seat agent --ranks 4 --nodes 2 --count 2000 --json");
        let mut bench = Command::new(TRIHOP);
        bench.args(words(&command));
        let ended = Launched::start(bench).wait().succeeded();
        assert!(ended.stdout.contains(r#""ranks":4"#), "{}", ended.stdout);
    }
    let mut bench = Command::new(TRIHOP);
    bench.args(words("bench ig --seat agent"));
    let ended = Launched::start(bench).wait();
    assert_eq!(ended.status, 2);
    assert!(
        ended.stderr.contains("ig has no --seat agent"),
        "{}",
        ended.stderr
    );
}

/// The ranks' library is one that cannot be loaded; the agents' is the system's.
#[test]
fn ranks_with_an_agent_open_no_fabric() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libfabric.so.1"), "").unwrap();
    let without = format!("env LD_LIBRARY_PATH={} {TRIHOP}", folder.path().display());
    let ended = start(4, 2, &format!("{without} exchange --count 1000")).wait();
    has_ended_well(&ended, "without libfabric");
    let alone = Launched::trihop(words(&format!("-n 4 --nodes 2 -- {without} exchange"))).wait();
    assert!(
        alone.stderr.contains("libfabric cannot be loaded"),
        "{}",
        alone.stderr
    );
}

#[test]
fn programs_in_c_run_by_agents_unchanged() {
    if !Compiler::C.is_there() {
        return eprintln!("skipped: there is no C compiler");
    }
    let program = client_of("lives", "phases", Compiler::C, &["include"]);
    for seat in ["inline", "threaded"] {
        let command = format!("{} {seat}", Path::new(&program).display());
        let mut job =
            Launched::command(words(&format!("--seat agent -n 4 --nodes 2 -- {command}")));
        job.env("LIVES_SEAT", seat).env("LIVES_VICTIM", "9");
        let ended = Launched::start(job).wait().succeeded();
        assert_eq!(ended.stdout.matches(" done").count(), 4, "{}", ended.stdout);
    }
}

/// Each node's agent is told by its place behind its name; ranks say nothing of places, or theirs.
#[test]
fn agents_and_ranks_meet_by_name_when_they_are_started_by_hand() {
    let name = format!("trihop-test-by-hand-{}-", std::process::id());
    let serve = format!("exec {TRIHOP} agent --ranks 2 --name {name}$TRIHOP_RANK");
    let agents = [
        "-n",
        "2",
        "--nodes",
        "2",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        &serve,
    ];
    let mut agents = Launched::trihop(agents.map(str::to_owned));
    let mut ready = agents.wait_for_lines(2);
    ready.sort();
    assert_eq!(ready, [format!("ready {name}0"), format!("ready {name}1")]);
    let rank = |node: u32, place: Option<&str>| {
        let mut rank = Command::new(TRIHOP);
        rank.args(["exchange", "--count", "1000"]);
        rank.env("TRIHOP_AGENT", format!("{name}{node}"));
        rank.env("TRIHOP_LOOPBACK", "1");
        rank.envs(place.map(|place| ("TRIHOP_AGENT_PLACE", place)));
        Launched::start(rank)
    };
    let ranks = [
        rank(0, None),
        rank(0, None),
        rank(1, Some("1")),
        rank(1, Some("0")),
    ];
    let mut reports = 0;
    for rank in ranks {
        let ended = rank.wait();
        has_ended_well(&ended, "a rank by hand");
        reports += ended.stdout.matches("4 on 2 nodes").count();
    }
    assert_eq!(reports, 1, "rank 0 is one of them");
    agents.wait().succeeded();
}

#[test]
fn a_job_that_a_rank_with_an_agent_starts_is_one_of_its_own() {
    for inner in ["", "--seat agent "] {
        let command = format!("{TRIHOP} run {inner}-n 2 -- {TRIHOP} exchange --count 1000");
        let mut outer = words("--seat agent -n 2 -- sh -c");
        outer.push(format!("exec {command}"));
        let ended = Launched::trihop(outer).wait();
        has_ended_well(&ended, inner);
        let jobs = ended.stdout.matches("2 on 1 nodes").count();
        assert_eq!(jobs, 2, "{inner}: {}", ended.stdout);
    }
}

#[test]
fn ranks_without_an_agent_say_so() {
    let mut rank = Command::new(TRIHOP);
    rank.arg("exchange")
        .env("TRIHOP_AGENT", "trihop-test-nobody");
    rank.env("TRIHOP_BOOTSTRAP_TIMEOUT_MS", "50");
    let ended = Launched::start(rank).wait();
    assert_eq!(ended.status, 1);
    assert!(
        ended
            .stderr
            .contains("no agent @trihop-test-nobody on this node"),
        "{}",
        ended.stderr
    );
}

/// The agents of a job that is started, once its ranks exchange.
fn busy(mut job: Launched) -> (Launched, Vec<u32>) {
    until("all agents run", || job.children_with("agent").len() == 2);
    let agents = job.children_with("agent");
    job.wait_for_lines(4);
    (job, agents)
}

#[test]
fn a_job_whose_agent_is_killed_ends_with_an_error_that_names_it() {
    // Ranks say that they have begun; what ends them is to be said by them before they are ended.
    let rank = format!("trap '' TERM; echo begins; exec {TRIHOP} exchange --count 1000000000");
    let command = [
        "--seat", "agent", "-n", "4", "--nodes", "2", "--", "sh", "-c", &rank,
    ];
    let (job, agents) = busy(Launched::trihop(command.map(str::to_owned)));
    // SAFETY: a system call on integers; the launcher has not reaped it.
    assert_eq!(unsafe { libc::kill(agents[1] as i32, libc::SIGKILL) }, 0);
    let ended = job.wait();
    assert_eq!(ended.status, 128 + libc::SIGKILL, "{}", ended.stderr);
    let said = |text: &str| ended.stderr.contains(text);
    assert!(
        said("the agent of node 1 was ended by SIGKILL"),
        "{}",
        ended.stderr
    );
    // Ranks of its node see its process; those of the other one hear that of its watch.
    let here = "rank 2 has failed: the agent of its node has ended before the job did";
    let there = "rank 2 is gone: its process ended before the job did";
    let early = "the agent @";
    assert!(said(here) || said(early), "{}", ended.stderr);
    assert!(said(here) && said(there) || said(early), "{}", ended.stderr);
}

#[test]
fn agents_of_programs_that_join_no_job_end_with_them() {
    for (program, status) in [("true", 0), ("false", 1)] {
        let ended = start(4, 2, program).wait();
        assert_eq!(ended.status, status, "{}", ended.stderr);
        assert!(!ended.stderr.contains("agent"), "{}", ended.stderr);
    }
}

#[test]
fn nodes_of_unequal_sizes_have_no_agents() {
    let ended = Launched::trihop(words("--seat agent --node-sizes 2,1 -- true")).wait();
    assert_eq!(ended.status, 2);
    assert!(
        ended.stderr.contains("equally many ranks on each node"),
        "{}",
        ended.stderr
    );
}
