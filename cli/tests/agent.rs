//! Agents: each node has a process that is the relay of its ranks, which open no fabric.

mod launched;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use launched::compiled::{Compiler, client_of};
use launched::{Ended, Launched, until};
use trihop::transport::bootstrap::{Bootstrap, Launcher, Single, environment_rank};
use trihop::transport::error::Result as TransportResult;
use trihop::{Error, Job, Options, Rank, Reduce, StreamOptions, Topology, agent, threaded};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Starts a job of so many ranks on so many nodes, with agents.
fn start(ranks: u32, nodes: u32, command: &str) -> Launched {
    let text = format!("--seat agent -n {ranks} --nodes {nodes} -- {command}");
    Launched::trihop(words(&text))
}

/// Says that this process is a rank of the test.
const ENV_ROLE: &str = "TRIHOP_TEST_ROLE";

fn is_rank() -> bool {
    std::env::var_os(ENV_ROLE).is_some()
}

/// Of this rank.
fn number() -> u32 {
    environment_rank().expect("it was started by a launcher")
}

/// Starts this test binary as each rank of a job with agents: there it runs the test again.
fn start_as_ranks(test: &str, ranks: u32, nodes: u32) -> Launched {
    Launched::start(as_ranks(test, ranks, nodes))
}

fn as_ranks(test: &str, ranks: u32, nodes: u32) -> Command {
    let exe = std::env::current_exe().unwrap();
    let command = format!("{} {test} --exact --nocapture", exe.display());
    let text = format!("--seat agent -n {ranks} --nodes {nodes} -- {command}");
    let mut job = Launched::command(words(&text));
    job.env(ENV_ROLE, "rank");
    job
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
        let has_agents = !ended.stderr.contains("leaves agents out");
        assert!(has_agents, "{name}: {}", ended.stderr);
    }
    let mut bench = Command::new(TRIHOP);
    bench.args(words("bench p2p --seat agent"));
    let ended = Launched::start(bench).wait();
    assert_eq!(ended.status, 2);
    assert!(
        ended.stderr.contains("p2p has no --seat agent"),
        "{}",
        ended.stderr
    );
}

/// `env` stands for whatever runs a command: it says that, and the agent has what it sets.
#[test]
fn agents_run_under_the_command_that_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("agent-{node}.log");
    let mut job = words("--seat agent -n 2 --nodes 2 --agent-under");
    job.push(format!(
        "env TRIHOP_LOG=info TRIHOP_LOG_FILE={}",
        log.display()
    ));
    job.extend(words(&format!("-- {TRIHOP} exchange --count 100")));
    has_ended_well(&Launched::trihop(job).wait(), "under env");
    let mut logs: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    logs.sort();
    let of = |node: usize| {
        logs.get(node).is_some_and(|name| {
            name.to_string_lossy()
                .starts_with(&format!("agent-{node}.log"))
        })
    };
    assert!(of(0) && of(1) && logs.len() == 2, "{logs:?}");
    for refused in [
        "-n 2 --agent-under env -- true",
        "--seat agent -n 2 --agent-under= -- true",
    ] {
        let ended = Launched::trihop(words(refused)).wait();
        assert_eq!(ended.status, 2, "{refused}: {}", ended.stderr);
        assert!(ended.stderr.contains("--agent-under"), "{}", ended.stderr);
    }
}

/// Of all streams that the agents of a job have opened.
fn pools_of_agents(ended: &Ended, of: &str) -> Vec<u64> {
    let sum = |agent: u32| {
        let prefix = format!("[agent {agent}]");
        let lines = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with(&prefix));
        let behind = lines.filter_map(|line| line.split_once(of)?.1.split_whitespace().next());
        behind.map(|number| number.parse::<u64>().unwrap()).sum()
    };
    vec![sum(0), sum(1)]
}

#[test]
fn what_agents_hold_for_other_nodes_stays_within_the_limits_that_they_are_given() {
    let run = |limits: &[(&str, &str)]| {
        let command = format!("--seat agent -n 4 --nodes 2 -- {TRIHOP} exchange --count 3000");
        let mut job = Launched::command(words(&command));
        job.env("TRIHOP_LOG", "memory=info");
        // As many batches as a stream's memory is for.
        job.env("TRIHOP_REMOTE_MAXRPC", "64");
        job.envs(limits.iter().copied());
        Launched::start(job).wait()
    };
    let most = 1 << 20;
    let ended = run(&[]).succeeded();
    for of in ["send pools ", "receive pools "] {
        let pools = pools_of_agents(&ended, of);
        assert!(
            pools.iter().all(|&bytes| bytes > most),
            "{of}{pools:?}: {}",
            ended.stderr
        );
    }
    let both = [
        ("TRIHOP_MAX_INJECTION_MB", "1"),
        ("TRIHOP_MAX_EJECTION_MB", "1"),
    ];
    let ended = run(&both).succeeded();
    for of in ["send pools ", "receive pools "] {
        let pools = pools_of_agents(&ended, of);
        let are_within = pools.iter().all(|bytes| (1..=most).contains(bytes));
        assert!(are_within, "{of}{pools:?}: {}", ended.stderr);
    }
    for limit in both {
        let ended = run(&[limit, ("TRIHOP_REMOTE_BUFTARGET_BYTES", "1048576")]);
        assert_ne!(ended.status, 0, "{}", ended.stdout);
        let is_named =
            ended.stderr.contains(limit.0) && ended.stderr.contains("of 1048576 are left");
        assert!(is_named, "{}", ended.stderr);
    }
}

#[test]
fn the_same_limits_bound_relays_of_mini_ranks_and_ranks_that_have_links() {
    let most_of = |seat: &str, limit: &str, of: &str| {
        let mut bench = Command::new(TRIHOP);
        let shape = format!("--seat {seat} --ranks 4 --nodes 2 --count 50 --size 64");
        bench.args(words(&format!("bench exchange {shape}")));
        bench.env("TRIHOP_LOG", "memory=info");
        bench.env("TRIHOP_REMOTE_MAXRPC", "64");
        bench.env("TRIHOP_MAX_INJECTION_MB", limit);
        bench.env("TRIHOP_MAX_EJECTION_MB", limit);
        let ended = launched::run(bench).succeeded();
        let lines = ended.stderr.lines();
        let behind = lines.filter_map(|line| line.split_once(of)?.1.split_whitespace().next());
        let pools = behind.map(|number| number.parse::<u64>().unwrap());
        pools.max().expect("a line for each stream")
    };
    for seat in ["minirank", "inline"] {
        for of in ["send pools ", "receive pools "] {
            assert!(most_of(seat, "", of) > 1 << 20, "{seat}, {of}");
            assert!(
                (1..=1 << 20).contains(&most_of(seat, "1", of)),
                "{seat}, {of}"
            );
        }
    }
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

/// Says when it has joined, and what ends it.
fn waits_for_the_end_of_its_agent() {
    let ended = Job::start(Options::from_env().unwrap()).and_then(|job| {
        job.barrier()?;
        eprintln!("rank {} is ready", number());
        (0..u64::MAX).try_for_each(|_| job.barrier())
    });
    eprintln!("rank {} ends: {}", number(), ended.unwrap_err());
    std::process::exit(1);
}

#[test]
fn a_job_whose_agent_is_killed_ends_with_an_error_that_names_it() {
    if is_rank() {
        return waits_for_the_end_of_its_agent();
    }
    let test = "a_job_whose_agent_is_killed_ends_with_an_error_that_names_it";
    let exe = std::env::current_exe().unwrap();
    // What ends ranks is to be said by them before they are ended.
    let rank = format!(
        "trap '' TERM; exec {} {test} --exact --nocapture",
        exe.display()
    );
    let command = [
        "--seat", "agent", "-n", "4", "--nodes", "2", "--", "sh", "-c", &rank,
    ];
    let mut command = Launched::command(command.map(str::to_owned));
    command.env(ENV_ROLE, "rank");
    let job = Launched::start(command);
    until("all ranks are ready", || {
        (0..4).all(|rank| job.has_said(&format!("rank {rank} is ready")))
    });
    let agents = job.children_with("agent");
    // SAFETY: a system call on integers; the launcher has not reaped it.
    assert_eq!(unsafe { libc::kill(agents[1] as i32, libc::SIGKILL) }, 0);
    let ended = job.wait();
    let said = &ended.stderr;
    assert_eq!(ended.status, 128 + libc::SIGKILL, "{said}");
    assert!(
        said.contains("the agent of node 1 was ended by SIGKILL"),
        "{said}"
    );
    // Ranks of its node see its process; those of the other one hear that of its watch.
    let end = "the agent of rank 2 is gone: its process ended before the job did";
    for rank in 0..4 {
        assert!(said.contains(&format!("rank {rank} ends: {end}")), "{said}");
    }
}

#[test]
fn agents_of_programs_that_join_no_job_end_with_them() {
    for (program, status) in [("true", 0), ("false", 1)] {
        let ended = start(4, 2, program).wait();
        assert_eq!(ended.status, status, "{}", ended.stderr);
        assert!(!ended.stderr.contains("agent"), "{}", ended.stderr);
    }
}

/// A rank that starts a job of its own does not hand on whose rank it is.
#[test]
fn jobs_that_ranks_start_are_not_their_agents() {
    let inner = format!("{TRIHOP} run -n 2 --no-prefix -- {TRIHOP} exchange --count 100");
    let ended = start(2, 1, &inner).wait();
    has_ended_well(&ended, "a job in a job");
    let reports = ended.stdout.matches("2 on 1 nodes").count();
    assert_eq!(reports, 2, "{}", ended.stdout);
}

/// The options cannot be told to the agent: no value of a table of theirs is out of range.
fn opens_what_no_rank_can_open() -> trihop::Result<()> {
    let job = Job::start(Options::from_env()?)?;
    let refused = StreamOptions {
        run_bytes: 0,
        ..StreamOptions::default()
    };
    let outcome = job.shuffle("refused").options(refused).open();
    let error = outcome.err().expect("a run has bytes");
    assert!(matches!(error, Error::Config { .. }), "{error}");
    // Some ranks alone: what the agent was asked before is not what it opens.
    let some = StreamOptions {
        run_bytes: if job.rank().0 % 2 == 0 { 4096 } else { 0 },
        ..StreamOptions::default()
    };
    let outcome = job.shuffle("refused by some").options(some).open();
    assert!(outcome.is_err());
    job.shuffle("opened").open()?.shutdown()?;
    job.shutdown()
}

#[test]
fn options_out_of_range_are_refused_at_once() {
    if is_rank() {
        return opens_what_no_rank_can_open().unwrap();
    }
    let ended = start_as_ranks("options_out_of_range_are_refused_at_once", 4, 2).wait();
    has_ended_well(&ended, "options out of range");
}

/// Each rank may say to its agent that a stream is closed before or after it asks for the next one.
fn opens_and_closes_side_by_side() -> trihop::Result<()> {
    let job = threaded::Job::start(Options::from_env()?)?;
    for turn in 0..40 {
        let closed = job.shuffle("closed").open()?;
        let opened = thread::scope(|scope| {
            let closing = scope.spawn(|| closed.shutdown());
            if (job.rank().0 + turn) % 2 == 0 {
                thread::yield_now();
            }
            let opened = job.shuffle("opened").open();
            closing.join().unwrap()?;
            opened
        })?;
        opened.shutdown()?;
    }
    job.shutdown()
}

#[test]
fn a_thread_may_close_a_stream_while_another_one_opens_one() {
    if is_rank() {
        return opens_and_closes_side_by_side().unwrap();
    }
    let test = "a_thread_may_close_a_stream_while_another_one_opens_one";
    has_ended_well(&start_as_ranks(test, 4, 2).wait(), test);
}

/// A launcher after whose last word its process ends.
struct LastWord(Single);

impl Bootstrap for LastWord {
    fn launcher(&self) -> Launcher {
        self.0.launcher()
    }

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    fn value_limit(&self) -> usize {
        self.0.value_limit()
    }

    fn put(&mut self, key: &str, value: &[u8]) -> TransportResult<()> {
        self.0.put(key, value)
    }

    fn fence(&mut self) -> TransportResult<()> {
        self.0.fence()
    }

    fn get(&mut self, from: Rank, key: &str) -> TransportResult<Option<Vec<u8>>> {
        self.0.get(from, key)
    }

    fn abort(&mut self, status: i32, why: &str) {
        self.0.abort(status, why);
    }

    fn finalize(&mut self) -> TransportResult<()> {
        std::process::exit(0)
    }
}

/// All have arrived, and it has not told its ranks.
#[test]
fn an_agent_that_dies_before_its_last_answer_leaves_no_rank_waiting() {
    let test = "an_agent_that_dies_before_its_last_answer_leaves_no_rank_waiting";
    if is_rank() {
        let name = std::env::var(ENV_ROLE).unwrap();
        let options = Options {
            loopback: true,
            ..Options::default()
        };
        let launcher = LastWord(Single::new().unwrap());
        agent::serve_with(options, Box::new(launcher), &name, 2, || ()).unwrap();
        panic!("its launcher ends it before");
    }
    let name = format!("trihop-test-last-word-{}", std::process::id());
    let mut agent = Command::new(std::env::current_exe().unwrap());
    agent.args([test, "--exact", "--nocapture"]);
    agent.env(ENV_ROLE, &name);
    let agent = Launched::start(agent);
    let rank = || {
        let mut rank = Command::new(TRIHOP);
        rank.args(["exchange", "--count", "1000"]);
        rank.env("TRIHOP_AGENT", &name).env("TRIHOP_LOOPBACK", "1");
        Launched::start(rank)
    };
    for rank in [rank(), rank()] {
        has_ended_well(&rank.wait(), "a rank whose agent is gone");
    }
    agent.wait().succeeded();
}

/// As a program that joins and leaves a job several times.
fn has_several_jobs() -> trihop::Result<()> {
    for number in 1..=5 {
        let job = Job::start(Options::from_env()?)?;
        let stream = job.shuffle("one of several").open()?;
        let (mut taken, mut sum) = (0, [number]);
        (0..job.size()).try_for_each(|rank| stream.send(Rank(rank), 0, b"hello"))?;
        stream.flush_origin()?;
        while taken < job.size() {
            taken += stream.take(|_| ())? as u32;
        }
        job.allreduce(&mut sum, Reduce::Sum)?;
        assert_eq!(sum, [number * u64::from(job.size())]);
        stream.shutdown()?;
        job.shutdown()?;
    }
    Ok(())
}

#[test]
fn a_process_has_several_jobs_at_the_agents_of_one_run() {
    if is_rank() {
        return has_several_jobs().unwrap();
    }
    let test = "a_process_has_several_jobs_at_the_agents_of_one_run";
    for (ranks, nodes) in [(2, 1), (3, 2)] {
        has_ended_well(&start_as_ranks(test, ranks, nodes).wait(), test);
    }
}

/// Its agent hears of its error before its process ends, and ends first.
fn fails_and_ends_after_its_agent() -> trihop::Result<()> {
    let job = threaded::Job::start(Options::from_env()?)?;
    let failing = job.shuffle("failing").handler(|_, _| panic!("on purpose"));
    let failing = failing.open()?;
    failing.send(Rank(0), 0, b"")?;
    assert!(failing.fence().is_err());
    let launcher = rustix::process::getppid().unwrap();
    until("the agent ends", || running_agents(launcher) == 0);
    std::process::exit(7);
}

/// Children of the launcher that are agents.
fn running_agents(launcher: rustix::process::Pid) -> usize {
    let id = launcher.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    let is_agent = |id: &&str| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"agent".as_slice())
    };
    children.split_whitespace().filter(is_agent).count()
}

#[test]
fn a_rank_that_fails_is_the_cause_though_its_agent_ends_first() {
    if is_rank() {
        return fails_and_ends_after_its_agent().unwrap();
    }
    let test = "a_rank_that_fails_is_the_cause_though_its_agent_ends_first";
    let mut command = as_ranks(test, 1, 1);
    command.env("TRIHOP_AGENT_LINGER_MS", "0");
    let ended = Launched::start(command).wait();
    let said = &ended.stderr;
    assert_eq!(ended.status, 7, "{said}");
    assert!(said.contains("rank 0 exited with status 7"), "{said}");
    assert!(!said.contains("the agent of node 0"), "{said}");
}
