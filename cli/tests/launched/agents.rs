//! Agents under test, and their ranks.

use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use trihop::channel::{Descriptor, Return, Timeout};
use trihop::transport::sync::Flag;
use trihop::{ChannelLimits, Job, Options, Rank, Reduce, Seat, State, over, threaded};

use super::{Ended, Launched, alive, until};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// What this process is to do, where it is a rank of a test.
pub const ENV_ROLE: &str = "TRIHOP_TEST_ROLE";

pub fn role() -> Option<String> {
    std::env::var(ENV_ROLE).ok()
}

/// An agent that is ready, and its name.
pub fn start_agent(what: &str, ranks: u32, linger: &str) -> (Launched, String) {
    let name = format!("trihop-test-{what}-{}", std::process::id());
    (start_agent_named(&name, ranks, linger), name)
}

/// The linger of an agent that has none, and serves one job.
pub const ONE_JOB: &str = "one job";

/// As [`start_agent`], of a process that may have so many descriptors.
pub fn start_agent_with(what: &str, ranks: u32, limit: u32) -> (Launched, String) {
    let name = format!("trihop-test-{what}-{}", std::process::id());
    let mut agent = Command::new("sh");
    agent.args([
        "-c",
        "ulimit -n $0 && exec \"$@\"",
        &limit.to_string(),
        TRIHOP,
    ]);
    agent.args(["agent", "--name", &name, "--ranks", &ranks.to_string()]);
    agent.args(["--linger-ms", "never"]);
    let mut agent = Launched::start(agent);
    assert_eq!(agent.wait_for_lines(1), [format!("ready {name}")]);
    (agent, name)
}

pub fn start_agent_named(name: &str, ranks: u32, linger: &str) -> Launched {
    // Whoever runs the tests may ignore signals, as `nohup` and `&` of a script do.
    let mut agent = Command::new("env");
    agent.args(["--default-signal=INT,HUP,TERM", TRIHOP]);
    agent.args(["agent", "--name", name, "--ranks", &ranks.to_string()]);
    match linger {
        ONE_JOB => &mut agent,
        "by variable" => agent.env("TRIHOP_AGENT_LINGER_MS", "100"),
        linger => agent.args(["--linger-ms", linger]),
    };
    let mut agent = Launched::start(agent);
    assert_eq!(agent.wait_for_lines(1), [format!("ready {name}")]);
    agent
}

/// Starts this test binary as a rank: there it runs the test again, in this role.
pub fn start_rank(test: &str, agent: &str, job: &str, role: &str) -> Launched {
    Launched::start(rank(test, agent, job, role))
}

/// As [`start_rank`], with its number among those of its agent.
pub fn start_rank_at(place: u32, test: &str, agent: &str, job: &str, role: &str) -> Launched {
    let mut rank = rank(test, agent, job, role);
    rank.env("TRIHOP_AGENT_PLACE", place.to_string());
    Launched::start(rank)
}

/// As [`start_rank`], of a job on so many of the agents' nodes.
pub fn start_rank_of(nodes: u32, test: &str, agent: &str, job: &str, role: &str) -> Launched {
    let mut rank = rank(test, agent, job, role);
    rank.env("TRIHOP_AGENT_NODES", nodes.to_string());
    Launched::start(rank)
}

fn rank(test: &str, agent: &str, job: &str, role: &str) -> Command {
    let mut rank = Command::new(std::env::current_exe().unwrap());
    rank.args([test, "--exact", "--nocapture"]);
    rank.env(ENV_ROLE, role).env("RUST_BACKTRACE", "0");
    rank.env("TRIHOP_AGENT", agent).env("TRIHOP_AGENT_JOB", job);
    rank
}

pub fn have_attached(ranks: &[Launched]) {
    until("all ranks have attached", || {
        ranks.iter().all(|rank| rank.has_said("attached"))
    });
}

pub fn has_ended_well(ended: &Ended, what: &str) {
    assert_eq!(
        ended.status, 0,
        "{what}: {}\n{}",
        ended.stdout, ended.stderr
    );
    assert!(!ended.stderr.contains("warn"), "{what}: {}", ended.stderr);
}

pub fn descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .count()
}

/// How many processes an agent watches.
pub fn watched_processes(agent: u32) -> usize {
    let links = std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap();
    let target = |link: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(link.unwrap().path()).unwrap_or_default()
    };
    let targets = links.map(target);
    let pidfds = targets.filter(|target| target.to_string_lossy().contains("pidfd"));
    pidfds.count()
}

/// Two agents of this node for three ranks, started by one command that is ready; and their name.
pub fn start_two(what: &str, linger: &[&str]) -> (Launched, String) {
    let name = format!("trihop-test-{what}-{}", std::process::id());
    // Whoever runs the tests may ignore signals, as `nohup` and `&` of a script do.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,HUP,TERM", TRIHOP]);
    command.args(["agent", "--nics", "2", "--ranks", "3", "--name", &name]);
    command.args(linger);
    let mut agents = Launched::start(command);
    assert_eq!(agents.wait_for_lines(1), [format!("ready {name}")]);
    (agents, name)
}

/// The agents, without the process that watches over what they start.
pub fn both_of(agents: &Launched) -> Vec<u32> {
    let is_warden = |id: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        name.trim() == "trihop-warden"
    };
    let mut processes = agents.children_with("agent");
    processes.retain(|id| !is_warden(id));
    assert_eq!(processes.len(), 2);
    processes
}

/// Signals a process that takes signals by a descriptor, and waits until it has taken this one.
pub fn signal_and_wait(process: &Launched, signal: i32) {
    process.signal(signal);
    until("the signal is taken", || {
        status(process.id(), "ShdPnd") == 0
    });
}

/// Mappings of shared memory that a process has, its own and those of others.
pub fn shared_mappings(process: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// A line of `/proc/PID/status` that has a number.
pub fn status(process: u32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    let number = line.trim_start_matches(':').split_whitespace().next();
    number.unwrap().parse().unwrap()
}

/// Whether standard input has ended.
pub fn input_has_ended() -> Arc<Flag> {
    let ended = Arc::<Flag>::default();
    let tell = Arc::clone(&ended);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        tell.raise();
    });
    ended
}

/// Threads of an agent that relay for a job each.
pub fn threads_of_jobs(agent: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default()
    };
    // The kernel keeps 15 letters.
    let names = threads.map(name);
    names
        .filter(|name| name.trim() == "trihop-agent-jo")
        .count()
}

/// Agents that stay on several simulated nodes, and their launcher.
pub struct Agents {
    pub launcher: Launched,
    /// By node.
    pub names: Vec<String>,
    /// Of each node.
    ranks: Vec<u32>,
    per_node: usize,
}

impl Agents {
    /// On two nodes, with two ranks and with one, in an environment with these words.
    pub fn start(what: &str, linger: &str, environment: &str) -> Self {
        Self::start_on(what, &[2, 1], linger, environment)
    }

    /// On nodes with so many ranks, one on each.
    pub fn start_on(what: &str, ranks: &[u32], linger: &str, environment: &str) -> Self {
        Self::start_many(what, (ranks, 1), linger, environment)
    }

    /// On nodes with so many ranks, so many on each.
    pub fn start_many(
        what: &str,
        (ranks, per_node): (&[u32], usize),
        linger: &str,
        environment: &str,
    ) -> Self {
        let name = format!("trihop-test-{what}-{}-", std::process::id());
        let nodes = ranks.len();
        let words: Vec<String> = ranks.iter().map(u32::to_string).collect();
        let agent = format!(
            "set {}; node=$((TRIHOP_RANK / {per_node})); shift $node; \
             exec env {environment} {TRIHOP} agent --ranks $1 --linger-ms {linger} \
             --name {name}$node",
            words.join(" ")
        );
        let (nodes_text, agents) = (nodes.to_string(), (nodes * per_node).to_string());
        let run = [
            "-n",
            &agents,
            "--nodes",
            &nodes_text,
            "--no-prefix",
            "--",
            "sh",
            "-c",
            &agent,
        ];
        let mut launcher = Launched::trihop(run.map(str::to_owned));
        let names: Vec<String> = (0..nodes).map(|node| format!("{name}{node}")).collect();
        let mut ready = launcher.wait_for_lines(nodes);
        ready.sort();
        let said = names.iter().map(|name| format!("ready {name}"));
        assert_eq!(ready, said.collect::<Vec<_>>());
        Self {
            launcher,
            names,
            ranks: ranks.to_vec(),
            per_node,
        }
    }

    /// The process of an agent; they count node by node.
    pub fn id(&self, agent: usize) -> u32 {
        let number = format!("TRIHOP_RANK={agent}");
        let has_number = |id: &u32| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            let mut lines = environment.split(|byte| *byte == 0);
            lines.any(|line| line == number.as_bytes())
        };
        let agents = self.launcher.children_with("agent");
        agents.into_iter().find(has_number).expect("it runs")
    }

    pub fn ids(&self) -> Vec<u32> {
        let agents = 0..self.names.len() * self.per_node;
        agents.map(|agent| self.id(agent)).collect()
    }

    pub fn signal(&self, agent: usize, signal: i32) {
        // SAFETY: a system call on integers; its launcher has not reaped it.
        assert_eq!(unsafe { libc::kill(self.id(agent) as i32, signal) }, 0);
    }

    /// All ranks of a job.
    pub fn ranks(&self, test: &str, job: &str, role: &str) -> Vec<Launched> {
        let nodes = self.names.iter().zip(&self.ranks);
        let places = nodes.flat_map(|(name, &ranks)| (0..ranks).map(move |place| (name, place)));
        places
            .map(|(name, place)| start_rank_at(place, test, name, job, role))
            .collect()
    }

    /// Has the job that stays end, and they with it, who were asked to before.
    pub fn end_with(self, mut steady: Vec<Launched>) {
        steady.iter_mut().for_each(Launched::close_stdin);
        end_well(steady, "the job that stays");
        self.launcher.wait().succeeded();
    }

    pub fn threads_of_jobs(&self) -> usize {
        self.ids().into_iter().map(threads_of_jobs).sum()
    }
}

/// Has ranks end that wait for the end of their input, and whose log may have warnings.
pub fn end_told(mut ranks: Vec<Launched>, what: &str) {
    ranks.iter_mut().for_each(Launched::close_stdin);
    for rank in ranks {
        let ended = rank.wait();
        let (status, said) = (ended.status, ended.stderr);
        assert_eq!(status, 0, "{what}: {}\n{said}", ended.stdout);
    }
}

/// Has an agent end once its jobs have, of which its log may have warnings.
pub fn end_agent(agent: Launched) {
    until("its jobs have ended", || threads_of_jobs(agent.id()) == 0);
    agent.signal(libc::SIGTERM);
    agent.wait().succeeded();
}

pub fn end_well(ranks: impl IntoIterator<Item = Launched>, what: &str) {
    for rank in ranks {
        has_ended_well(&rank.wait(), what);
    }
}

/// Sends to all ranks in rounds, until the standard input of one has ended; and opens another
/// stream then.
pub fn exchange_until_told(opens_another: bool) -> trihop::Result<()> {
    let told = input_has_ended();
    let job = Job::start(Options::from_env()?)?;
    let heard = State::new(0_u64);
    let shuffle = job
        .shuffle("steady")
        .handler_with(&heard, |heard, _, _| *heard += 1)
        .open()?;
    eprintln!("attached");
    let (mut rounds, mut stop) = (0, [0_u64]);
    while stop == [0] {
        for rank in 0..job.size() {
            (0..100).try_for_each(|_| shuffle.send(Rank(rank), 0, b"steady"))?;
        }
        shuffle.fence()?;
        rounds += 1;
        assert_eq!(
            heard.with(|heard| *heard),
            rounds * 100 * u64::from(job.size())
        );
        stop = [u64::from(told.is_raised())];
        job.allreduce(&mut stop, Reduce::Sum)?;
    }
    if opens_another {
        // An agent that is about to end does all for the jobs that it has.
        job.shuffle("another").open()?.shutdown()?;
    }
    job.shutdown()
}

/// A rank, by its seat and a process of one of its job's agents, of a job on one node: it opens
/// streams until that agent is gone, and goes on as with it.
pub fn go_on_without_agent(role: &str) {
    let (seat, agent) = role.split_once(' ').unwrap();
    let (options, agent) = (Options::from_env().unwrap(), agent.parse().unwrap());
    match seat {
        "inline" => outlive(Job::start(options).unwrap(), agent),
        _ => outlive(threaded::Job::start(options).unwrap(), agent),
    }
}

fn outlive<S: Seat>(job: over::Job<S>, agent: u32) {
    let opens = |name| job.shuffle(name).open();
    let before = opens("before").unwrap();
    eprintln!("attached");
    let mut any_sees_it = [1_u64];
    while any_sees_it != [0] {
        opens("meanwhile").unwrap().shutdown().unwrap();
        any_sees_it = [u64::from(alive(agent))];
        job.allreduce(&mut any_sees_it, Reduce::Sum).unwrap();
    }
    pass_around(&job, &before);
    before.shutdown().unwrap();
    let after = opens("after").unwrap();
    pass_around(&job, &after);
    after.shutdown().unwrap();
    let channels = job.channels("channels").open().unwrap();
    let own = channels.create(ChannelLimits::default()).unwrap();
    let all = job.allgather(&own.descriptor().to_bytes()).unwrap();
    let next = all.iter().cycle().nth(job.rank().0 as usize + 1).unwrap();
    let next = channels
        .attach(&Descriptor::from_bytes(next).unwrap())
        .unwrap();
    next.send(7, b"on", Return::WhenDeposited, Timeout::Never)
        .unwrap();
    assert_eq!(own.get(Timeout::Never).unwrap().bytes[..], b"on"[..]);
    drop((next, own));
    channels.shutdown().unwrap();
    job.shutdown().unwrap();
}

fn pass_around<S: Seat>(job: &over::Job<S>, stream: &over::Shuffle<S>) {
    for _ in 0..100 {
        (0..job.size()).for_each(|rank| stream.send(Rank(rank), 0, b"alone").unwrap());
        let (mut taken, mut sum) = (0, [1_u64]);
        while taken < job.size() {
            stream.flush_origin().unwrap();
            taken += stream.take(|_| ()).unwrap() as u32;
        }
        job.allreduce(&mut sum, Reduce::Sum).unwrap();
        assert_eq!(sum, [u64::from(job.size())]);
        stream.fence().unwrap();
    }
}
