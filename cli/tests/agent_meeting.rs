//! Agents of several nodes that serve jobs as they come.

mod launched;

use std::process::Command;
use std::time::Duration;

use launched::agents::{
    Agents, ENV_ROLE, descriptors, end_well, exchange_until_told, has_ended_well, have_attached,
    input_has_ended, role, start_rank, start_rank_of, status, threads_of_jobs,
};
use launched::{Launched, alive, until};
use trihop::channel::{Descriptor, Return, Timeout};
use trihop::{ChannelLimits, Error, Job, Options, Rank, Seat, State, over, threaded};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// Joins a job, has each rank hear from each, and leaves it.
fn greet() -> trihop::Result<()> {
    greet_of(3, 2)
}

/// The same of a job with so many ranks on so many nodes.
fn greet_of(ranks: u32, nodes: u32) -> trihop::Result<()> {
    let job = Job::start(Options::from_env()?)?;
    assert_eq!((job.size(), job.topology().nodes()), (ranks, nodes));
    let heard = State::new(0);
    let shuffle = job
        .shuffle("hello")
        .handler_with(&heard, |heard, _, _| *heard += 1)
        .open()?;
    (0..ranks).try_for_each(|rank| shuffle.send(Rank(rank), 0, b"hello"))?;
    shuffle.fence()?;
    assert_eq!(heard.with(|heard| *heard), ranks);
    shuffle.shutdown()?;
    job.shutdown()
}

#[test]
fn jobs_of_several_nodes_come_and_go_while_another_one_sends() {
    let test = "jobs_of_several_nodes_come_and_go_while_another_one_sends";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(turns) => return (0..turns.parse().unwrap()).for_each(|_: u32| greet().unwrap()),
    }
    let agents = Agents::start("meeting", "never", "");
    let mut steady = agents.ranks(test, "steady", "steady");
    have_attached(&steady);
    let come_and_go = |turns: &str| {
        end_well(agents.ranks(test, "", turns), turns);
        until("the last job has ended", || agents.threads_of_jobs() == 2);
        [0, 1].map(|node| descriptors(agents.id(node)))
    };
    let few = come_and_go("5");
    assert_eq!(come_and_go("40"), few, "descriptors");
    // Several at a time, by their names.
    let jobs = ["a", "b", "c"].map(|job| agents.ranks(test, job, "3"));
    end_well(jobs.into_iter().flatten(), "one of three jobs");
    // Asked to end, one agent is the end of both, once their last job is over.
    agents.signal(1, libc::SIGTERM);
    assert!(steady.iter_mut().all(Launched::runs));
    agents.end_with(steady);
}

#[test]
fn agents_of_several_nodes_end_after_their_time_to_linger() {
    let test = "agents_of_several_nodes_end_after_their_time_to_linger";
    if role().is_some() {
        return greet().unwrap();
    }
    let agents = Agents::start("meeting-linger", "200", "");
    end_well(agents.ranks(test, "", "guest"), "a rank");
    agents.launcher.wait().succeeded();
}

/// Those of which one has no job stay as long as another one has.
#[test]
fn agents_linger_as_long_as_any_of_them_has_a_job() {
    let test = "agents_linger_as_long_as_any_of_them_has_a_job";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(_) => return greet_of(2, 2).unwrap(),
    }
    let agents = Agents::start_on("meeting-busy", &[1; 2], "200", "");
    let at = |node: usize, nodes: u32, role: &str| {
        start_rank_of(nodes, test, &agents.names[node], role, role)
    };
    let on_both = || {
        end_well(
            [0, 1].map(|node| at(node, 0, "both")),
            "a job on both nodes",
        );
    };
    let mut steady = at(1, 1, "steady");
    have_attached(std::slice::from_ref(&steady));
    on_both();
    // Several times as long as they linger.
    std::thread::sleep(Duration::from_secs(1));
    on_both();
    steady.close_stdin();
    has_ended_well(&steady.wait(), "the job on one node");
    agents.launcher.wait().succeeded();
}

/// Ranks that wait for those of another node hear why they wait in vain, and are in nobody's way.
#[test]
fn a_job_that_comes_to_one_node_alone_does_not_disturb_the_next_one() {
    let test = "a_job_that_comes_to_one_node_alone_does_not_disturb_the_next_one";
    match role().as_deref() {
        None => {}
        Some("alone") => return eprintln!("refused: {}", greet().unwrap_err()),
        Some(_) => return greet().unwrap(),
    }
    let agents = Agents::start("meeting-alone", "never", "TRIHOP_BOOTSTRAP_TIMEOUT_MS=2000");
    let alone = |role| [(), ()].map(|()| start_rank(test, &agents.names[0], "", role));
    for rank in alone("alone") {
        let ended = rank.wait();
        let why = "agents to which no ranks of the job have come after 2s: 1";
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
    let killed = alone("killed");
    until("its agent waits for the other one", || {
        threads_of_jobs(agents.id(0)) == 1
    });
    for rank in killed {
        rank.signal(libc::SIGKILL);
        rank.wait();
    }
    until("its agent has given them up", || {
        agents.threads_of_jobs() == 0
    });
    end_well(agents.ranks(test, "", "next"), "the next job");
    agents.launcher.signal(libc::SIGTERM);
    agents.launcher.wait();
}

#[test]
fn jobs_on_some_of_the_nodes_come_and_go_beside_one_on_all() {
    let test = "jobs_on_some_of_the_nodes_come_and_go_beside_one_on_all";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some("too many") => return eprintln!("refused: {}", greet_of(5, 5).unwrap_err()),
        Some(nodes) => {
            let nodes = nodes.parse().unwrap();
            return greet_of(nodes, nodes).unwrap();
        }
    }
    let agents = Agents::start_on("meeting-some", &[1; 4], "never", "");
    let at = |node: usize, nodes: u32, job: &str, role: &str| {
        start_rank_of(nodes, test, &agents.names[node], job, role)
    };
    let steady: Vec<_> = (0..4).map(|node| at(node, 0, "steady", "steady")).collect();
    have_attached(&steady);
    for _ in 0..5 {
        // Of one name, and told apart by the number of nodes.
        let jobs = [(3, 2), (0, 1), (1, 2)].map(|(node, nodes)| {
            let text = nodes.to_string();
            at(node, nodes, "", &text)
        });
        end_well(jobs, "a job on some nodes");
        until("they have ended", || agents.threads_of_jobs() == 4);
    }
    let ended = at(2, 5, "", "too many").wait();
    let why = "its job has ranks on 5 nodes, of 4 with agents";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    for mut rank in steady {
        rank.close_stdin();
        has_ended_well(&rank.wait(), "the job on all nodes");
    }
    agents.launcher.signal(libc::SIGTERM);
    agents.launcher.wait();
}

#[test]
fn where_one_agent_is_killed_the_others_take_no_more_jobs() {
    let test = "where_one_agent_is_killed_the_others_take_no_more_jobs";
    if role().is_some() {
        let error = exchange_until_told(false).unwrap_err();
        assert!(matches!(error, Error::AgentDead { .. }), "{error}");
        return eprintln!("it has heard");
    }
    let agents = Agents::start("meeting-killed", "never", "");
    let ranks = agents.ranks(test, "", "steady");
    have_attached(&ranks);
    let survivor = agents.id(0);
    agents.signal(1, libc::SIGKILL);
    for rank in ranks {
        let ended = rank.wait();
        assert!(ended.stderr.contains("it has heard"), "{}", ended.stderr);
    }
    let ended = agents.launcher.wait();
    assert_ne!(ended.status, 0);
    assert!(!alive(survivor));
}

/// Has a channel, goes on without its job when an agent is dead, and with the channel in a job of
/// the agents that take their place.
fn outlast_agents<S: Seat>(
    start: impl Fn(Options) -> trihop::Result<over::Job<S>>,
    open: impl Fn(over::ChannelsBuilder<S>) -> trihop::Result<over::Channels<S>>,
) -> trihop::Result<()> {
    let told = input_has_ended();
    let job = start(Options::from_env()?)?;
    let (rank, size) = (job.rank().0, job.size());
    let channels = open(job.channels("tasks"))?;
    let mine = channels.create(ChannelLimits::default())?;
    let named = job.allgather(&mine.descriptor().to_bytes())?;
    let named: trihop::Result<Vec<_>> = named.iter().map(|of| Descriptor::from_bytes(of)).collect();
    let (named, next) = (named?, (rank + 1) % size);
    let put = |channels: &over::Channels<S>, bytes: &[u8]| {
        let port = channels.attach(&named[next as usize])?;
        port.send(rank, bytes, Return::WhenDeposited, Timeout::Never)
    };
    put(&channels, b"before")?;
    job.barrier()?;
    eprintln!("attached");
    let dead = loop {
        if let Err(error) = job.barrier() {
            break error;
        }
    };
    assert!(matches!(dead, Error::AgentDead { .. }), "{dead}");
    let kept = channels.keep()?;
    drop(mine);
    let dead = job.shutdown().unwrap_err();
    assert!(matches!(dead, Error::AgentDead { .. }), "{dead}");
    eprintln!("kept");
    while !told.is_raised() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let job = start(Options::from_env()?)?;
    let channels = open(job.channels("tasks").keeping(&kept))?;
    put(&channels, b"after")?;
    job.barrier()?;
    let mine = channels.attach(&named[rank as usize])?;
    for bytes in [&b"before"[..], b"after"] {
        let message = mine.get(Timeout::Never)?;
        assert_eq!(
            (&message.bytes[..], message.kind),
            (bytes, (rank + size - 1) % size)
        );
    }
    assert_eq!(mine.get(Timeout::Once), Err(Error::WouldBlock));
    drop(mine);
    channels.shutdown()?;
    job.shutdown()
}

#[test]
fn channels_outlast_agents_that_are_killed() {
    let test = "channels_outlast_agents_that_are_killed";
    match role().as_deref() {
        None => {}
        Some("inline") => return outlast_agents(Job::start, |of| of.open()).unwrap(),
        Some(_) => return outlast_agents(threaded::Job::start, |of| of.open()).unwrap(),
    }
    for (seat, killed) in [("inline", 1), ("threaded", 0)] {
        let agents = Agents::start("meeting-kept", "never", "");
        let mut ranks = agents.ranks(test, "", seat);
        have_attached(&ranks);
        agents.signal(killed, libc::SIGKILL);
        until("all ranks have kept their channels", || {
            ranks.iter().all(|rank| rank.has_said("kept"))
        });
        assert_ne!(agents.launcher.wait().status, 0);
        let agents = Agents::start("meeting-kept", "never", "");
        ranks.iter_mut().for_each(Launched::close_stdin);
        end_well(ranks, seat);
        agents.launcher.signal(libc::SIGTERM);
        agents.launcher.wait();
    }
}

#[test]
fn several_agents_of_a_node_stay_and_share_each_job() {
    let test = "several_agents_of_a_node_stay_and_share_each_job";
    let greet_at = |job: &str| match job {
        "on one" => greet_of(2, 1),
        _ => greet_of(5, 2),
    };
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(job) => return greet_at(job).unwrap(),
    }
    let agents = Agents::start_many("meeting-nics", (&[3, 2], 2), "never", "");
    let all = |job: &str, role: &str| agents.ranks(test, job, role);
    let steady = all("steady", "steady");
    have_attached(&steady);
    let come_and_go = |turns: u32| {
        (0..turns).for_each(|_| end_well(all("", "one"), "one after the other"));
        until("the last job has ended", || agents.threads_of_jobs() == 4);
        agents
            .ids()
            .into_iter()
            .map(descriptors)
            .collect::<Vec<_>>()
    };
    let few = come_and_go(2);
    assert_eq!(come_and_go(10), few, "descriptors");
    // Several at a time, by their names; one of them has ranks on the second node alone.
    let jobs = ["a", "b", "c"].map(|job| all(job, "one"));
    let alone = [(), ()].map(|()| start_rank_of(1, test, &agents.names[1], "d", "on one"));
    end_well(alone, "the job on one node");
    end_well(jobs.into_iter().flatten(), "one of three jobs");
    // One that has no ranks of its own to receive is the end of all, too.
    agents.signal(3, libc::SIGTERM);
    until("the agents take no more jobs", || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let is_taken = |name: &String| {
            let name = format!(" @{name}");
            sockets.lines().any(|line| line.ends_with(&name))
        };
        !agents.names.iter().any(is_taken)
    });
    // As launchers do, which pass a signal on to all: it is the first one of each.
    (0..3).for_each(|agent| agents.signal(agent, libc::SIGTERM));
    until("all have taken it", || {
        agents.ids().into_iter().all(|id| status(id, "ShdPnd") == 0)
    });
    agents.end_with(steady);
}

#[test]
fn several_agents_of_one_node_end_after_their_time_to_linger() {
    let test = "several_agents_of_one_node_end_after_their_time_to_linger";
    if role().is_some() {
        return greet_of(3, 1).unwrap();
    }
    let agents = Agents::start_many("meeting-node", (&[3], 3), "200", "");
    end_well(
        [(), (), ()].map(|()| start_rank(test, &agents.names[0], "", "guest")),
        "a rank",
    );
    agents.launcher.wait().succeeded();
}

#[test]
fn where_one_of_several_agents_of_a_node_is_killed_its_jobs_hear_of_it_and_all_end() {
    let test = "where_one_of_several_agents_of_a_node_is_killed_its_jobs_hear_of_it_and_all_end";
    if role().is_some() {
        let error = exchange_until_told(false).unwrap_err();
        assert!(matches!(error, Error::AgentDead { .. }), "{error}");
        return eprintln!("it has heard");
    }
    // The first agent of a node, and one that follows it.
    for victim in [2, 3] {
        let agents = Agents::start_many("meeting-nic-killed", (&[3, 3], 2), "never", "");
        let of_node = |node: usize| {
            let name = &agents.names[node];
            [(), (), ()].map(|()| start_rank(test, name, "", "steady"))
        };
        let ranks: Vec<_> = [of_node(0), of_node(1)].into_iter().flatten().collect();
        have_attached(&ranks);
        let all = agents.ids();
        agents.signal(victim, libc::SIGKILL);
        for rank in ranks {
            let ended = rank.wait();
            assert!(ended.stderr.contains("it has heard"), "{}", ended.stderr);
        }
        let ended = agents.launcher.wait();
        assert_ne!(ended.status, 0);
        assert!(all.into_iter().all(|agent| !alive(agent)));
    }
}

/// Agents that have no ranks of their own to receive do not end the others' time to linger.
#[test]
fn agents_of_a_node_stay_while_a_rank_waits_for_the_others_of_its_job() {
    let test = "agents_of_a_node_stay_while_a_rank_waits_for_the_others_of_its_job";
    if role().is_some() {
        return greet_of(2, 1).unwrap();
    }
    let agents = Agents::start_many("meeting-half", (&[2], 2), "300", "");
    let rank = || start_rank(test, &agents.names[0], "", "guest");
    end_well([rank(), rank()], "a rank");
    let early = rank();
    // Several times as long as they linger.
    std::thread::sleep(Duration::from_secs(1));
    end_well([early, rank()], "a rank");
    agents.launcher.wait().succeeded();
}

/// What is wrong with an agent is said as it starts, not with its first job.
#[test]
fn agents_that_cannot_share_their_nodes_ranks_say_so_at_once() {
    let refused = |ranks: &str| {
        let agent = format!(
            "set {ranks}; shift $TRIHOP_RANK; \
             exec {TRIHOP} agent --ranks $1 --linger-ms 0 --name trihop-test-unequal-{}",
            std::process::id()
        );
        let mut command = Command::new(TRIHOP);
        command.args(["run", "-n", "2", "--", "sh", "-c", &agent]);
        command.env_remove(ENV_ROLE);
        let ended = Launched::start(command).wait();
        assert_eq!(ended.status, 1, "{}", ended.stderr);
        ended.stderr
    };
    let said = refused("2 3");
    assert!(said.contains("were told 2 and 3 ranks"), "{said}");
    let said = refused("1 1");
    assert!(said.contains("has 2 agents and 1 ranks"), "{said}");
}
