//! Several agents of a node, one for each of its adapters, and nodes of unequal sizes.

mod launched;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use launched::agents::{
    ENV_ROLE, both_of, exchange_until_told, go_on_without_agent, has_ended_well, have_attached,
    role, signal_and_wait, start_rank, start_two, threads_of_jobs, watched_processes,
};
use launched::{Launched, alive, until};
use trihop::channel::{Descriptor, Return, Timeout};
use trihop::transport::bootstrap::environment_rank;
use trihop::{ChannelLimits, Error, Job, Options, Rank};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Starts a job with agents as these options say.
fn start(how: &str, command: &str) -> Launched {
    Launched::trihop(words(&format!("--seat agent {how} -- {command}")))
}

#[test]
fn ranks_exchange_by_several_agents_of_each_node_and_on_unequal_nodes() {
    let shapes = [
        ("--nics 2 -n 8 --nodes 2", "8 on 2 nodes, three-hop:2"),
        ("--nics 3 -n 8 --nodes 2", "8 on 2 nodes, three-hop:3"),
        ("--nics 2 --node-sizes 5,3,2", "10 on 3 nodes, three-hop:2"),
        ("--nics 2 -n 4", "4 on 1 nodes, three-hop:1"),
        ("--node-sizes 4,1,2", "7 on 3 nodes, three-hop:1"),
    ];
    for (shape, said) in shapes {
        for how in [
            "--count 2000",
            "--count 2000 --threaded",
            "--count 50 --broadcast",
            "--count 100 --size 1-100000",
            "--count 500 --route mesh",
        ] {
            let ended = start(shape, &format!("{TRIHOP} exchange {how}")).wait();
            let what = format!("{shape}: {how}");
            has_ended_well(&ended, &what);
            let said = match how.contains("mesh") {
                true => said.split_once(',').unwrap().0,
                false => said,
            };
            let said = format!("ranks        {said}");
            assert!(ended.stdout.contains(&said), "{what}: {}", ended.stdout);
        }
    }
}

#[test]
fn benchmarks_run_by_several_agents_and_are_verified() {
    for name in ["histo", "a2a", "push", "cc"] {
        let command = "--seat agent --nics 2 --ranks 4 --nodes 2 --count 1000 --json";
        let mut bench = Command::new(TRIHOP);
        bench.args(["bench", name]).args(words(command));
        let ended = Launched::start(bench).wait().succeeded();
        assert!(ended.stdout.contains(r#""ranks":4"#), "{}", ended.stdout);
    }
}

/// What is wrong, by options of the launcher.
#[test]
fn agents_without_ranks_are_refused() {
    let refused = |command: &str, status, why: &str| {
        let ended = Launched::trihop(words(command)).wait();
        let said = &ended.stderr;
        assert_eq!(ended.status, status, "{command}: {said}");
        assert!(said.contains(why), "{command}: {said}");
    };
    let few = "--nics 3 needs as many ranks on each node, and node 1 has 2";
    refused("--seat agent --nics 3 --node-sizes 3,2 -- true", 2, few);
    refused("--nics 2 -n 4 -- true", 2, "--nics is for agents");
    refused(
        "--seat agent --node-sizes 3,0 -- true",
        2,
        "'--node-sizes <SIZES>': a whole number from 1 to",
    );
    let name = format!("trihop-test-few-{}", std::process::id());
    // Each agent says why, whichever is rank 0.
    for (ranks, why) in [
        ("1", "node 0 has 2 agents and 1 ranks: each agent needs a"),
        (
            "$((2+TRIHOP_RANK))",
            "the agents of node 0 were told 2 and 3 ranks",
        ),
    ] {
        let agent = format!("exec {TRIHOP} agent --ranks {ranks} --name {name}");
        let mut job = words("-n 2 -- sh -c");
        job.push(agent);
        let ended = Launched::trihop(job).wait();
        assert_eq!(ended.status, 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
}

/// The first agent of a node has its name; ranks know nothing of the other one.
#[test]
fn several_agents_and_ranks_meet_by_name_when_they_are_started_by_hand() {
    let name = format!("trihop-test-nics-{}-", std::process::id());
    let node = "node=$((TRIHOP_RANK/2))";
    let serve = format!("{node}; exec {TRIHOP} agent --ranks $((3-node)) --name {name}$node");
    let mut agents = words("-n 4 --nodes 2 --no-prefix -- sh -c");
    agents.push(serve);
    let mut agents = Launched::trihop(agents);
    let mut ready = agents.wait_for_lines(2);
    ready.sort();
    assert_eq!(ready, [format!("ready {name}0"), format!("ready {name}1")]);
    let rank = |node: u32| {
        let mut rank = Command::new(TRIHOP);
        rank.args(["exchange", "--count", "1000"]);
        rank.env("TRIHOP_AGENT", format!("{name}{node}"));
        rank.env("TRIHOP_LOOPBACK", "1");
        Launched::start(rank)
    };
    let mut reports = 0;
    for rank in [0, 0, 1, 1, 0].map(rank) {
        let ended = rank.wait();
        has_ended_well(&ended, "a rank by hand");
        reports += ended.stdout.matches("5 on 2 nodes").count();
    }
    assert_eq!(reports, 1, "rank 0 is one of them");
    agents.wait().succeeded();
}

/// Nobody ends the others where a plain shell has started them: the one that waits for ranks looks
/// itself.
#[test]
fn an_agent_of_several_ends_where_another_has_ended_before_the_ranks_came() {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "0123456789abcdef").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let name = format!("trihop-test-nics-left-{}", std::process::id());
    let agent = |rank: u32| {
        let mut agent = Command::new(TRIHOP);
        agent.args(["agent", "--ranks", "2", "--name", &name]);
        agent.env("TRIHOP_MASTER", format!("127.0.0.1:{port}"));
        agent
            .env("TRIHOP_RANK", rank.to_string())
            .env("TRIHOP_SIZE", "2");
        agent
            .env("TRIHOP_SECRET_FILE", &secret)
            .env("TRIHOP_LOOPBACK", "1");
        Launched::start(agent)
    };
    let (mut first, other) = (agent(0), agent(1));
    assert_eq!(first.wait_for_lines(1), [format!("ready {name}")]);
    // SAFETY: a system call on integers; its handle has not reaped it.
    assert_eq!(unsafe { libc::kill(other.id() as i32, libc::SIGKILL) }, 0);
    let ended = first.wait();
    assert_eq!(ended.status, 1, "{}", ended.stderr);
    let why = "another agent of this node has ended";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    other.wait();
}

/// Says when it has joined, and what ends it.
fn waits_for_the_end_of_an_agent() {
    let number = environment_rank().expect("it was started by a launcher");
    let ended = Job::start(Options::from_env().unwrap()).and_then(|job| {
        job.barrier()?;
        eprintln!("rank {number} is ready");
        (0..u64::MAX).try_for_each(|_| job.barrier())
    });
    let error = ended.unwrap_err();
    assert!(matches!(error, Error::AgentDead { .. }), "{error}");
    eprintln!("rank {number} ends: {error}");
    std::process::exit(1);
}

/// Whichever agent it is: all ranks hear it, on both nodes, and no process stays.
#[test]
fn a_job_of_which_one_of_several_agents_is_killed_ends_with_an_error_that_names_it() {
    let test = "a_job_of_which_one_of_several_agents_is_killed_ends_with_an_error_that_names_it";
    if role().is_some() {
        return waits_for_the_end_of_an_agent();
    }
    let exe = std::env::current_exe().unwrap();
    // What ends ranks is to be said by them before they are ended.
    let rank = format!(
        "trap '' TERM; exec {} {test} --exact --nocapture",
        exe.display()
    );
    for (victim, of_rank) in [(0, 0), (1, 2), (2, 4), (3, 6)] {
        let mut command = words("--seat agent --nics 2 -n 8 --nodes 2 -- sh -c");
        command.push(rank.clone());
        let mut command = Launched::command(command);
        command.env(ENV_ROLE, "rank");
        let job = Launched::start(command);
        until("all ranks are ready", || {
            (0..8).all(|rank| job.has_said(&format!("rank {rank} is ready")))
        });
        let agents = job.children_with("agent");
        let ranks = job.children_with(test);
        assert_eq!((agents.len(), ranks.len()), (4, 8));
        // SAFETY: a system call on integers; the launcher has not reaped it.
        let killed = unsafe { libc::kill(agents[victim] as i32, libc::SIGKILL) };
        assert_eq!(killed, 0);
        let ended = job.wait();
        let said = &ended.stderr;
        // The launcher names whom it finds first: the agent, or a rank that has ended by then.
        let named = format!(
            "agent {} of node {} was ended by SIGKILL",
            victim % 2,
            victim / 2
        );
        match ended.status {
            1 => assert!(said.contains("exited with status 1"), "{said}"),
            status => {
                assert_eq!(status, 128 + libc::SIGKILL, "{said}");
                assert!(said.contains(&named), "{said}");
            }
        }
        for rank in 0..8 {
            let end = format!("rank {rank} ends: the agent of rank {of_rank} is gone");
            assert!(said.contains(&end), "{said}");
        }
        let mut all = agents.iter().chain(&ranks);
        assert!(!all.any(|&process| alive(process)), "{said}");
    }
}

/// Ranks that run on, and end well once they are told.
fn end_ranks(mut ranks: [Launched; 3]) {
    assert!(ranks.iter_mut().all(Launched::runs));
    ranks.iter_mut().for_each(Launched::close_stdin);
    for rank in ranks {
        has_ended_well(&rank.wait(), "a rank");
    }
}

/// How two agents end that one command has started: well, and without a process left or another
/// word than `ready`.
fn end_well(agents: Launched, processes: &[u32]) {
    let ended = agents.wait();
    has_ended_well(&ended, "the agents");
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    assert!(!processes.iter().any(|&process| alive(process)));
}

#[test]
fn one_command_starts_several_agents_of_this_node_for_a_job() {
    let test = "one_command_starts_several_agents_of_this_node_for_a_job";
    if role().is_some() {
        return exchange_until_told(true).unwrap();
    }
    let (agents, name) = start_two("nics-one", &[]);
    let processes = both_of(&agents);
    let ranks = [(); 3].map(|()| start_rank(test, &name, "", "steady"));
    have_attached(&ranks);
    // Both have a part of the job, which a signal lets come to its end.
    let are_watched = processes.iter().all(|&agent| watched_processes(agent) > 0);
    assert!(are_watched);
    signal_and_wait(&agents, libc::SIGTERM);
    end_ranks(ranks);
    end_well(agents, &processes);
}

#[test]
fn agents_that_one_command_starts_stay_and_end_as_a_single_one() {
    let test = "agents_that_one_command_starts_stay_and_end_as_a_single_one";
    match role().as_deref() {
        None => {}
        Some("refused") => return eprintln!("{}", exchange_until_told(false).unwrap_err()),
        Some(_) => return exchange_until_told(true).unwrap(),
    }
    let (agents, name) = start_two("nics-stay", &["--linger-ms", "never"]);
    let processes = both_of(&agents);
    let job = |job: &str, role: &str| [(); 3].map(|()| start_rank(test, &name, job, role));
    // One job after the other, and two at a time.
    let kept = job("kept", "steady");
    have_attached(&kept);
    for turn in ["first", "second"] {
        for mut rank in job(turn, "steady") {
            rank.close_stdin();
            has_ended_well(&rank.wait(), turn);
        }
    }
    let first = processes[0];
    until("the last of these has ended", || {
        threads_of_jobs(first) == 1
    });
    let before = watched_processes(first);
    let early = start_rank(test, &name, "early", "refused");
    until("a rank waits for the others", || {
        watched_processes(first) > before
    });
    signal_and_wait(&agents, libc::SIGTERM);
    let refused = early.wait().stderr;
    // By the signal, or since the other agent has it already.
    let why = "refuses this rank: this agent ";
    assert!(refused.contains(why), "{refused}");
    end_ranks(kept);
    end_well(agents, &processes);
    // A second signal ends all of them.
    let (agents, name) = start_two("nics-twice", &["--linger-ms", "never"]);
    let processes = both_of(&agents);
    let ranks = [(); 3].map(|()| start_rank(test, &name, "", "steady"));
    have_attached(&ranks);
    signal_and_wait(&agents, libc::SIGINT);
    until("the agents take no more jobs", || {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        !sockets
            .lines()
            .any(|line| line.ends_with(&format!(" @{name}")))
    });
    agents.signal(libc::SIGINT);
    // Whichever ends first, the other one may say so; one that had not taken the first signal yet
    // is killed a while later.
    let ended = agents.wait();
    let statuses = [0, 128 + libc::SIGKILL];
    assert!(statuses.contains(&ended.status), "{}", ended.stderr);
    assert!(!processes.iter().any(|&process| alive(process)));
    end_ranks(ranks);
}

#[test]
fn a_job_of_one_node_goes_on_when_one_of_several_agents_is_killed() {
    let test = "a_job_of_one_node_goes_on_when_one_of_several_agents_is_killed";
    if let Some(role) = role() {
        return go_on_without_agent(&role);
    }
    for turn in 0..8 {
        let (agents, name) = start_two("nics-gone", &["--linger-ms", "never"]);
        let victim = both_of(&agents)[turn % 2];
        let seat = if turn < 4 { "inline" } else { "threaded" };
        let role = format!("{seat} {victim}");
        let ranks = [(); 3].map(|()| start_rank(test, &name, "", &role));
        have_attached(&ranks);
        // SAFETY: a system call on integers; what has started it has not reaped it.
        assert_eq!(unsafe { libc::kill(victim as i32, libc::SIGKILL) }, 0);
        for rank in ranks {
            has_ended_well(&rank.wait(), "a job without one of its agents");
        }
        agents.signal(libc::SIGTERM);
        agents.wait();
    }
}

#[test]
fn an_agent_that_takes_no_signal_is_killed_after_the_second_one() {
    let (agents, _) = start_two("nics-stopped", &["--linger-ms", "never"]);
    let processes = both_of(&agents);
    // SAFETY: a system call on integers; its launcher has not reaped it.
    let stopped = unsafe { libc::kill(processes[1] as i32, libc::SIGSTOP) };
    assert_eq!(stopped, 0);
    signal_and_wait(&agents, libc::SIGHUP);
    agents.signal(libc::SIGTERM);
    let ended = agents.wait();
    assert_eq!(ended.status, 128 + libc::SIGKILL, "{}", ended.stderr);
    let why = "trihop agent: agent 1 was ended by SIGKILL";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    assert!(!processes.iter().any(|&process| alive(process)));
}

#[test]
fn one_command_that_cannot_start_several_agents_says_what_to_do() {
    let refused = |before: &[&str], ranks: &str, variable: (&str, &str), why: &str| {
        let mut command = Command::new(TRIHOP);
        command.args(before);
        command.args(["agent", "--nics", "2", "--ranks", ranks]);
        command.env(variable.0, variable.1);
        let ended = Launched::start(command).wait();
        assert_eq!(ended.status, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    };
    let none = ("TRIHOP_TEST_NOTHING", "");
    let few = "--nics 2 needs as many ranks on this node, and --ranks is 1";
    refused(&[], "1", none, few);
    let remedy = "have it start 2 agents on each node, such as by `mpiexec -ppn 2`";
    refused(&["run", "-n", "1", "--", TRIHOP], "2", none, remedy);
    refused(&[], "2", ("PMI_FD", "7"), remedy);
}

/// Each agent of a node takes another one of its adapters.
#[test]
fn each_agent_of_a_node_opens_an_adapter_of_its_own() {
    let command = "--netns --nics 2 -n 4 --nodes 2";
    let text = format!("--seat agent {command} -- {TRIHOP} exchange --count 500");
    let mut job = Launched::command(words(&text));
    job.env("TRIHOP_LOG", "fabric=debug");
    let ended = Launched::start(job).wait();
    if ended.status == 1 && ended.stderr.contains("--netns") {
        return eprintln!("skipped: {}", ended.stderr);
    }
    let ended = ended.succeeded();
    for (node, agent) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let prefix = format!("[agent {node}.{agent}]");
        let taken = format!("network adapter taken device=\"trihop{agent}\"");
        let mut lines = ended.stderr.lines();
        let has_taken = lines.any(|line| line.starts_with(&prefix) && line.contains(&taken));
        assert!(has_taken, "{prefix}: {}", ended.stderr);
    }
}

/// Of four streams that parts would go by, the limits of relays hold three: what does not wait, as
/// the answer to a get, would have a part that is longer than these carry.
#[test]
fn long_messages_of_a_channel_pass_where_not_all_streams_fit_the_limits() {
    let bench = format!("{TRIHOP} bench channel --size 4000000 --count 2 --reps 3");
    for how in [
        format!("--seat agent --nics 4 -n 8 --nodes 2 -- {bench}"),
        format!("--minis-per-rank 1 -n 8 --nodes 2 -- {bench} --seat minirank"),
    ] {
        let mut job = Launched::command(words(&how));
        job.env("TRIHOP_MAX_MESSAGE_BYTES", (4 << 20).to_string());
        job.env("TRIHOP_MAX_EJECTION_MB", "1");
        job.env("TRIHOP_LOG", "warn");
        let ended = Launched::start(job).wait().succeeded();
        let said = &ended.stderr;
        assert!(
            said.contains("long messages go over fewer relays"),
            "{said}"
        );
        assert!(ended.stdout.contains("4000000"), "{}", ended.stdout);
    }
}

/// Long messages of one rank go over the adapters of all agents of its node, and over all of those
/// of its target's.
#[test]
fn long_messages_of_a_channel_use_the_adapters_of_all_agents() {
    const SENT: u64 = 8 << 20;
    let bench = format!("{TRIHOP} bench channel --size 4194304 --count 2 --reps 3");
    let mut job = Launched::command(words(
        "--seat agent --netns --nics 2 -n 4 --nodes 2 -- sh -c",
    ));
    job.arg(format!("{bench} && sed s/^/adapter/ /proc/net/dev"));
    let ended = Launched::start(job).wait();
    if ended.status == 1 && ended.stderr.contains("--netns") {
        return eprintln!("skipped: {}", ended.stderr);
    }
    let ended = ended.succeeded();
    // Bytes that came and that went, of each adapter of the first rank's node and the last one's.
    for (rank, adapter) in [(0, 0), (0, 1), (3, 0), (3, 1)] {
        let begin = format!("[{rank}] adapter");
        let lines = ended
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix(&begin));
        let name = format!("trihop{adapter}:");
        let mut counters = lines.filter_map(|line| line.trim_start().strip_prefix(&name));
        let counters = counters
            .next()
            .unwrap_or_else(|| panic!("{name} {}", ended.stdout));
        let counters: Vec<u64> = counters
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let (came, went) = (counters[0], counters[8]);
        assert!(
            came > SENT / 4 && went > SENT / 4,
            "{rank} {name} {came} {went}"
        );
    }
}

/// The file by which the first rank hears that it is to send.
const ENV_GO: &str = "TRIHOP_TEST_GO";

/// A message of 64 parts.
fn long_message() -> Vec<u8> {
    let block: Vec<u8> = (0..65_537_u32)
        .map(|at| (at * 31 + at / 256) as u8)
        .collect();
    let mut message = block.repeat(256);
    message.truncate(16 << 20);
    message
}

/// Rank 0 sends the last one a long message once it is told to. Each rank says what its agent has
/// sent of that.
fn send_a_long_message() -> trihop::Result<()> {
    let number = environment_rank().expect("it was started by a launcher");
    let job = Job::start(Options::from_env()?)?;
    let (me, last) = (job.rank().0, job.size() - 1);
    let channels = job.channels("long").open()?;
    let limits = ChannelLimits {
        bytes: 64 << 20,
        ..ChannelLimits::default()
    };
    let mine = channels.create(limits)?;
    let named = job.broadcast(Rank(last), &mine.descriptor().to_bytes())?;
    let theirs = channels.attach(&Descriptor::from_bytes(&named)?)?;
    job.barrier()?;
    eprintln!("rank {number} is ready");
    if me == 0 {
        let go = PathBuf::from(std::env::var_os(ENV_GO).unwrap());
        until("it is to send", || go.exists());
        theirs.send(7, &long_message(), Return::WhenBuffered, Timeout::Never)?;
        eprintln!("all parts are with agents");
    }
    if me == last {
        let message = mine.get(Timeout::Never)?;
        assert!(message.kind == 7 && message.bytes[..] == long_message());
    }
    job.barrier()?;
    eprintln!(
        "agent of rank {number} sent {} bytes",
        channels.relays_wire_bytes()?
    );
    drop((mine, theirs));
    channels.shutdown()?;
    job.shutdown()
}

/// Ranks 0 and 1 are of one node, and each of another agent. What that of rank 1 takes before its
/// queue is full is a part or two, of 64; the other one has all the rest before it goes on.
#[test]
fn an_agent_that_stands_still_leaves_nearly_all_parts_of_a_long_message_to_the_other_one() {
    let test =
        "an_agent_that_stands_still_leaves_nearly_all_parts_of_a_long_message_to_the_other_one";
    if role().is_some() {
        return send_a_long_message().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let exe = std::env::current_exe().unwrap();
    let shape = "--seat agent --nics 2 -n 4 --nodes 2 --no-prefix";
    let command = format!("{shape} -- {} {test} --exact --nocapture", exe.display());
    let mut command = Launched::command(words(&command));
    command.env(ENV_ROLE, "rank").env(ENV_GO, &go);
    let job = Launched::start(command);
    until("all ranks are ready", || {
        (0..4).all(|rank| job.has_said(&format!("rank {rank} is ready")))
    });
    let slow = job.children_with("agent")[1] as i32;
    // SAFETY: a system call on integers; the launcher has not reaped it.
    assert_eq!(unsafe { libc::kill(slow, libc::SIGSTOP) }, 0);
    fs::write(&go, "").unwrap();
    until("the other agent has had the rest", || {
        job.has_said("all parts are with agents")
    });
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(slow, libc::SIGCONT) }, 0);
    let said = job.wait().succeeded().stderr;
    let sent = |rank: u32| -> u64 {
        let behind = format!("agent of rank {rank} sent ");
        let rest = said.split_once(&behind).expect("each rank says so").1;
        rest.split_once(' ').unwrap().0.parse().unwrap()
    };
    let (other, slow) = (sent(0), sent(1));
    eprintln!("the agent that stood still sent {slow} bytes, the other one {other}");
    assert!(other + slow > 16 << 20, "{other} and {slow}");
    assert!(other > 9 * slow && slow > 0, "{other} and {slow}");
}
