//! An agent of one job that is asked to end, by signals.

mod launched;

use std::process::Command;

use launched::agents::{
    ONE_JOB, exchange_until_told, has_ended_well, have_attached, role, signal_and_wait,
    start_agent, start_rank, watched_processes,
};
use launched::{Launched, until};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");
const SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// In each round each rank counts what has come to it; after the last one they open another stream.
#[test]
fn a_job_that_runs_comes_to_its_end_with_all_that_was_sent() {
    let test = "a_job_that_runs_comes_to_its_end_with_all_that_was_sent";
    if role().is_some() {
        return exchange_until_told(true).unwrap();
    }
    for signal in SIGNALS {
        let (agent, name) = start_agent("end-runs", 2, ONE_JOB);
        let ranks = [(), ()].map(|()| start_rank(test, &name, "", "steady"));
        have_attached(&ranks);
        signal_and_wait(&agent, signal);
        end_ranks(ranks);
        has_ended_well(&agent.wait(), "the agent");
    }
}

/// Ranks that run on, and end well once they are told.
fn end_ranks(mut ranks: [Launched; 2]) {
    assert!(ranks.iter_mut().all(Launched::runs));
    ranks.iter_mut().for_each(Launched::close_stdin);
    for rank in ranks {
        has_ended_well(&rank.wait(), "a rank");
    }
}

/// The same over the fabric: `trihop run` passes its signal on to the agents of both nodes.
#[test]
fn a_job_of_two_nodes_comes_to_its_end_too() {
    let test = "a_job_of_two_nodes_comes_to_its_end_too";
    if role().is_some() {
        return exchange_until_told(true).unwrap();
    }
    let (agents, names) = start_on_two_nodes("end-nodes", 1);
    let ranks = names
        .each_ref()
        .map(|name| start_rank(test, name, "", "steady"));
    have_attached(&ranks);
    let ids = agents.children_with("agent");
    signal_and_wait(&agents, libc::SIGTERM);
    until("both agents have taken it", || {
        ids.iter()
            .all(|&agent| launched::agents::status(agent, "ShdPnd") == 0)
    });
    end_ranks(ranks);
    has_ended_well(&agents.wait(), "the agents");
}

#[test]
fn a_second_signal_ends_an_agent_at_once() {
    let test = "a_second_signal_ends_an_agent_at_once";
    if role().is_some() {
        return exchange_until_told(true).unwrap();
    }
    for (first, second) in [(libc::SIGTERM, libc::SIGTERM), (libc::SIGINT, libc::SIGHUP)] {
        let (agent, name) = start_agent("end-twice", 2, ONE_JOB);
        let ranks = [(), ()].map(|()| start_rank(test, &name, "", "steady"));
        have_attached(&ranks);
        signal_and_wait(&agent, first);
        agent.signal(second);
        has_ended_well(&agent.wait(), "the agent");
        // On one node ranks go on without it.
        end_ranks(ranks);
    }
}

#[test]
fn ranks_that_wait_for_others_hear_why_their_agent_ends() {
    let test = "ranks_that_wait_for_others_hear_why_their_agent_ends";
    if role().is_some() {
        return eprintln!("refused: {}", exchange_until_told(false).unwrap_err());
    }
    for signal in SIGNALS {
        let (agent, name) = start_agent("end-waits", 2, ONE_JOB);
        let rank = start_rank(test, &name, "", "rank");
        until("the rank waits", || watched_processes(agent.id()) > 0);
        agent.signal(signal);
        has_ended_well(&agent.wait(), "the agent");
        was_told(rank);
    }
}

#[test]
fn agents_of_two_nodes_end_while_they_wait_for_their_ranks() {
    let test = "agents_of_two_nodes_end_while_they_wait_for_their_ranks";
    if role().is_some() {
        return eprintln!("refused: {}", exchange_until_told(false).unwrap_err());
    }
    let (agents, names) = start_on_two_nodes("end-waiting", 2);
    let ids = agents.children_with("agent");
    let ranks = names
        .each_ref()
        .map(|name| start_rank(test, name, "", "rank"));
    until("the ranks wait", || {
        ids.iter().all(|&agent| watched_processes(agent) > 0)
    });
    agents.signal(libc::SIGTERM);
    has_ended_well(&agents.wait(), "the agents");
    ranks.into_iter().for_each(was_told);
}

/// As one that `nohup` runs.
#[test]
fn a_signal_that_was_ignored_before_is_ignored_still() {
    for nics in ["1", "2"] {
        let name = format!("trihop-test-end-ignored-{nics}-{}", std::process::id());
        let mut agent = Command::new("env");
        agent.args(["--default-signal=TERM", "--ignore-signal=HUP", TRIHOP]);
        agent.args(["agent", "--name", &name, "--ranks", "2", "--nics", nics]);
        let mut agent = Launched::start(agent);
        assert_eq!(agent.wait_for_lines(1), [format!("ready {name}")]);
        // Two of them would end several at once.
        for _ in 0..2 {
            signal_and_wait(&agent, libc::SIGHUP);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(agent.runs());
        agent.signal(libc::SIGTERM);
        has_ended_well(&agent.wait(), "the agent");
    }
}

#[test]
fn agents_go_on_where_nobody_reads_what_they_say() {
    let test = "agents_go_on_where_nobody_reads_what_they_say";
    if role().is_some() {
        return exchange_until_told(true).unwrap();
    }
    let name = format!("trihop-test-end-unheard-{}", std::process::id());
    let mut agents = Command::new("sh");
    agents.args(["-c", "exec \"$@\" >/dev/full", "sh", TRIHOP]);
    agents.args(["agent", "--name", &name, "--ranks", "2", "--nics", "2"]);
    let agents = Launched::start(agents);
    // No line of theirs says when they are ready.
    until("the agents have their name", || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        sockets
            .lines()
            .any(|line| line.ends_with(&format!(" @{name}")))
    });
    let ranks = [(), ()].map(|()| start_rank(test, &name, "", "steady"));
    have_attached(&ranks);
    end_ranks(ranks);
    has_ended_well(&agents.wait(), "the agents");
}

fn was_told(rank: Launched) {
    let ended = rank.wait();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let why = "refuses this rank: this agent was asked to end";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
}

/// Agents of one job of so many ranks on each of two nodes; how ranks find them, node by node.
fn start_on_two_nodes(what: &str, ranks: u32) -> (Launched, [String; 2]) {
    let name = format!("trihop-test-{what}-{}-", std::process::id());
    let agent = format!("exec {TRIHOP} agent --ranks {ranks} --name {name}$TRIHOP_RANK");
    let mut agents = Command::new(TRIHOP);
    agents.args(["run", "-n", "2", "--nodes", "2", "--no-prefix", "--"]);
    agents.args(["sh", "-c", &agent]);
    let mut agents = Launched::start(agents);
    let names = [0, 1].map(|node| format!("{name}{node}"));
    let mut ready = agents.wait_for_lines(2);
    ready.sort();
    assert_eq!(ready, names.each_ref().map(|name| format!("ready {name}")));
    (agents, names)
}
