//! The launcher's loop: one poll over signals, exits, connections and output, until the job has
//! ended.

mod asked;
mod binding;
mod start;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use trihop::transport::bootstrap::local::service::{Effect, Service};
use trihop::transport::bootstrap::local::wire::Reply;

use trihop::transport::random::random_bytes;

use super::netns::Networks;
use super::output::Outputs;
use super::process::Process;
use super::progress::Progress;
use super::signals::{Signals, signal_name};
use super::warden::Warden;
use super::{Error, LaunchSpec, Outcome};
use trihop::log::Escaped;

/// Descriptors that a process costs the launcher: connection, pidfd, two pipes; and some of the
/// launcher's own.
const DESCRIPTORS_PER_PROCESS: u64 = 4;
const DESCRIPTORS_OF_OURS: u64 = 64;

/// Environment variable: address of the interface to use.
const ENV_INTERFACE: &str = "TRIHOP_INTERFACE";

/// Launches a job and waits for its end. Signals to this thread are forwarded meanwhile; start no
/// thread before it that does not block them.
///
/// # Errors
/// When the job cannot be set up; no process is left then.
pub fn launch(spec: LaunchSpec) -> Result<Outcome, Error> {
    if spec.command.is_empty() || spec.node_sizes.is_empty() || spec.node_sizes.contains(&0) {
        return Err(Error::Usage(
            "a job needs a command, and at least one rank on each node".into(),
        ));
    }
    let signals = Signals::block().map_err(|e| Error::system("blocking signals", e))?;
    let mut job = Job::start(spec, &signals)?;
    while !job.is_over() {
        job.step(&signals)?;
    }
    Ok(Outcome {
        status: job.failure.unwrap_or(0),
    })
}

struct Job {
    spec: LaunchSpec,
    /// The ranks, and behind them the agents, if there are any.
    processes: Vec<Process>,
    ranks: usize,
    /// The names by which ranks find their agents, by node.
    agent_names: Vec<String>,
    /// The ranks have ended, and the agents were asked to.
    agents_released: bool,
    warden: Warden,
    service: Service,
    outputs: Outputs,
    progress: Progress,
    /// Exit status of the first failure, once there is one.
    failure: Option<i32>,
    /// A process has failed, and another one may have been the cause.
    suspect: Option<Suspect>,
    /// None where there is no limit, or one beyond what the clock can say.
    time_limit: Option<Instant>,
    /// Ranks have been asked to end, and are killed at this time.
    kill_at: Option<Instant>,
    killed: bool,
    /// The job has failed, and ranks are asked to end at this time.
    ask_at: Option<Instant>,
    /// By which signal they were first asked to, and when.
    signalled: Option<(Signal, Instant)>,
    /// It was said who has not ended then.
    has_said_who: bool,
    /// Keeps the namespaces until the last rank has ended.
    networks: Option<Networks>,
    /// The cores that each process of ranks is bound to, where they are.
    cores: Vec<Vec<usize>>,
}

/// An agent that exits by itself may do so because of a rank, which says why and exits after it. A
/// rank may fail because an agent was killed, whose end is seen by its ranks before it is by us:
/// its connections close first. One rank may end because of another one, and before it. Where no
/// other one ends in time, it is this one that has failed.
struct Suspect {
    is_agent: bool,
    status: i32,
    text: Option<String>,
    counts_at: Instant,
}

/// From the end of a killed process's connections to its own there is little to do for the kernel.
const KILLED: Duration = Duration::from_millis(200);

/// So long ranks of a job that has failed have to say why, and to end by themselves: the one that
/// is the cause need not be the first to end.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// An agent that is asked to end once its ranks have is given as long.
const RELEASED: Duration = Duration::from_secs(60);

impl Drop for Job {
    fn drop(&mut self) {
        for process in &mut self.processes {
            if process.is_running() {
                process.sweep();
                let _ = self.warden.forget(process.id);
                let _ = process.reap();
            }
        }
    }
}

/// What one entry of the poll stands for.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Exit(usize),
    Connection(usize),
    Stream(usize, usize),
    Sink,
    Progress,
}

impl Job {
    fn start(spec: LaunchSpec, signals: &Signals) -> Result<Self, Error> {
        let ranks: usize = spec.node_sizes.iter().map(|s| *s as usize).sum();
        let agent_names = match spec.agents {
            0 => Vec::new(),
            agents => agent_names(&spec.node_sizes, agents)?,
        };
        let nodes = spec.node_sizes.len();
        let agents = nodes * spec.agents as usize;
        let processes = ranks + agents;
        let namespaces = if spec.netns {
            Networks::namespaces(nodes)
        } else {
            0
        };
        raise_descriptor_limit(processes, namespaces)?;
        let networks = spec
            .netns
            .then(|| Networks::create(nodes, spec.agents.max(1)))
            .transpose()?;
        let warden = Warden::start(processes)
            .map_err(|e| Error::system("starting the warden process", e))?;
        let outputs = Outputs::new().map_err(|e| Error::system("taking our own output", e))?;
        let (progress, theirs) =
            Progress::new().map_err(|e| Error::system("making a pipe for progress", e))?;
        let time_limit = spec
            .timeout
            .and_then(|limit| Instant::now().checked_add(limit));
        let cores = match spec.binds && !spec.are_agents {
            true => binding::shares(ranks, spec.minis),
            false => Vec::new(),
        };
        let mut job = Self {
            cores,
            service: Service::new(if agents == 0 { ranks } else { agents }),
            outputs,
            progress,
            processes: Vec::with_capacity(processes),
            ranks,
            agent_names,
            agents_released: false,
            failure: None,
            suspect: None,
            kill_at: None,
            killed: false,
            ask_at: None,
            signalled: None,
            has_said_who: false,
            networks: None,
            spec,
            warden,
            time_limit,
        };
        for (node, size) in job.spec.node_sizes.clone().into_iter().enumerate() {
            for local in 0..size {
                job.start_rank((node, local), networks.as_ref(), theirs.as_ref(), signals)?;
            }
        }
        for agent in 0..agents {
            job.start_agent(agent, networks.as_ref(), signals)?;
        }
        job.networks = networks;
        Ok(job)
    }

    fn first_member(&self) -> usize {
        match self.spec.agents {
            0 => 0,
            _ => self.ranks,
        }
    }

    /// The node of an agent, and its number there.
    fn place_of_agent(&self, agent: usize) -> (usize, usize) {
        let on_each = self.spec.agents as usize;
        (agent / on_each, agent % on_each)
    }

    /// The process's number among those that have our store: the agents, where there are some.
    fn member(&self, process: usize) -> Option<u32> {
        process
            .checked_sub(self.first_member())
            .map(|member| member as u32)
    }

    /// The process of a member.
    fn process_of(&self, member: u32) -> usize {
        self.first_member() + member as usize
    }

    /// What users call a process.
    fn name_of(&self, process: usize) -> String {
        match process.checked_sub(self.ranks) {
            None if self.spec.are_agents => format!("agent {process}"),
            None => match self.spec.minis {
                1 => format!("rank {process}"),
                minis => {
                    let first = process * minis as usize;
                    let last = first + minis as usize - 1;
                    format!("process {process}, of ranks {first} to {last},")
                }
            },
            Some(agent) => match (self.place_of_agent(agent), self.spec.agents) {
                ((node, _), 1) => format!("the agent of node {node}"),
                ((node, local), _) => format!("agent {local} of node {node}"),
            },
        }
    }

    /// No process runs, and all that they printed is written.
    fn is_over(&self) -> bool {
        let printing = self
            .processes
            .iter()
            .any(|p| p.streams.iter().any(|s| s.descriptor().is_some()));
        let running = self.processes.iter().any(Process::is_running);
        !running && !printing && self.outputs.stdout.is_empty() && self.outputs.stderr.is_empty()
    }

    fn step(&mut self, signals: &Signals) -> Result<(), Error> {
        let ready = self.wait(signals)?;
        self.take_requests(&ready);
        self.take_exits(&ready)?;
        self.forward_output(&ready);
        if ready.iter().any(|s| matches!(s, Source::Signals)) {
            self.take_signals(signals);
        }
        self.watch_clock();
        Ok(())
    }

    /// Polls everything that can make progress; returns what is ready.
    fn wait(&self, signals: &Signals) -> Result<Vec<Source>, Error> {
        let mut entries: Vec<(Source, BorrowedFd<'_>, PollFlags)> =
            vec![(Source::Signals, signals.as_fd(), PollFlags::IN)];
        let mut drain = false;
        for (rank, process) in self.processes.iter().enumerate() {
            if process.is_running() {
                entries.push((Source::Exit(rank), process.exit.as_fd(), PollFlags::IN));
            }
            if let Some(connection) = &process.connection {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, connection.wants_requests());
                flags.set(PollFlags::OUT, connection.has_unsent());
                entries.push((Source::Connection(rank), connection.as_fd(), flags));
            }
            for (which, stream) in process.streams.iter().enumerate() {
                let room = self.outputs.has_room(stream.target);
                if let Some(descriptor) = stream.descriptor().filter(|_| room) {
                    entries.push((Source::Stream(rank, which), descriptor, PollFlags::IN));
                    drain |= !process.is_running();
                }
            }
        }
        if let Some(descriptor) = self.progress.descriptor() {
            entries.push((Source::Progress, descriptor, PollFlags::IN));
        }
        for sink in [&self.outputs.stdout, &self.outputs.stderr] {
            if !sink.is_empty() {
                entries.push((Source::Sink, sink.descriptor(), PollFlags::OUT));
            }
        }
        let mut set: Vec<PollFd<'_>> = entries
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        let timeout = if drain {
            Some(Duration::ZERO)
        } else {
            self.time_left()
        };
        match poll(
            &mut set,
            timeout.and_then(|t| Timespec::try_from(t).ok()).as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Error::system("polling the ranks", e)),
        }
        let ended = |source: &Source| matches!(source, Source::Stream(r, _) if !self.processes[*r].is_running());
        let ready = entries.iter().zip(&set).filter(|((source, ..), entry)| {
            // The output of an ended rank is read until it is empty, even if another process still
            // holds the other end.
            !entry.revents().is_empty() || ended(source)
        });
        Ok(ready.map(|((source, ..), _)| *source).collect())
    }

    /// Serves the bootstrap.
    fn take_requests(&mut self, ready: &[Source]) {
        let mut effects = Vec::new();
        for source in ready {
            let Source::Connection(rank) = *source else {
                continue;
            };
            let Some(connection) = &mut self.processes[rank].connection else {
                continue;
            };
            let mut requests = Vec::new();
            let open = if connection.wants_requests() {
                connection.receive(&mut requests)
            } else {
                Ok(true)
            };
            if let Some(member) = self.member(rank) {
                for request in requests {
                    self.service.take(member, request, &mut effects);
                }
            }
            let hung_up = match open {
                Ok(open) => !open,
                Err(bad) => {
                    let name = self.name_of(rank);
                    self.fail(
                        1,
                        &format!("{name} sent the launcher bytes that are not valid: {bad}"),
                    );
                    true
                }
            };
            if hung_up {
                self.processes[rank].connection = None;
            }
        }
        self.apply(effects);
        for process in &mut self.processes {
            process.connection.take_if(|c| !c.flush());
        }
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply { rank, reply } => self.reply(rank, &reply),
                Effect::Abort { rank, status, why } => {
                    let status = if status & 0xff == 0 { 1 } else { status & 0xff };
                    self.fail(
                        status,
                        &format!(
                            "{} aborted the job with status {status}: {}",
                            self.name_of(self.process_of(rank)),
                            Escaped(why.as_bytes())
                        ),
                    );
                }
            }
        }
    }

    fn reply(&mut self, rank: u32, reply: &Reply) {
        let process = self.process_of(rank);
        if let Some(connection) = &mut self.processes[process].connection {
            connection.reply(reply);
        }
    }

    /// Reaps the ranks that have ended. Of several at once, one that a signal ended is taken for
    /// the first: the others may have failed because of it.
    fn take_exits(&mut self, ready: &[Source]) -> Result<(), Error> {
        let mut ended = Vec::new();
        for source in ready {
            let Source::Exit(rank) = *source else {
                continue;
            };
            let process = &mut self.processes[rank];
            process.sweep();
            self.warden
                .forget(process.id)
                .map_err(|e| Error::system("telling the warden of an end", e))?;
            let status = process
                .reap()
                .map_err(|e| Error::system(format!("waiting for rank {rank}"), e))?;
            // What it said last comes before what we say about it.
            for stream in &mut process.streams {
                while stream.descriptor().is_some() && self.outputs.has_room(stream.target) {
                    stream.forward(&mut self.outputs, true);
                }
            }
            ended.push((rank, status));
        }
        ended.sort_by_key(|(rank, status)| (status.signal().is_none(), *rank));
        let mut effects = Vec::new();
        for (rank, status) in ended {
            if let Some(member) = self.member(rank) {
                let who = self.name_of(rank);
                self.service.end(member, &who, &mut effects);
            }
            let is_asked = [libc::SIGTERM, libc::SIGKILL].map(Some);
            let was_released = rank >= self.ranks && self.agents_released;
            let ends_as_asked = was_released && is_asked.contains(&status.signal());
            if !status.success() && !ends_as_asked {
                let text = format!("{} {}", self.name_of(rank), how(status));
                let is_said = self.spec.says_why && status.code().is_some();
                let text = Some(text).filter(|_| !is_said);
                match (rank >= self.ranks, status.code()) {
                    // It is the cause, or nobody is left to be.
                    (true, Some(_)) if was_released => {
                        self.end(status_of(status), text.as_deref());
                    }
                    (true, None) => self.end(status_of(status), text.as_deref()),
                    (is_agent, _) => self.suspect(is_agent, status_of(status), text),
                }
            }
        }
        self.apply(effects);
        for process in &mut self.processes {
            process.connection.take_if(|c| !c.flush());
        }
        self.release_agents();
        Ok(())
    }

    /// Ranks are given as long to say why an agent exits as to end when they are asked to. Of two
    /// ranks the one is taken for the cause that a signal has ended, or whose status says more
    /// than 1: who hears of a failure ends with that most often.
    fn suspect(&mut self, is_agent: bool, status: i32, text: Option<String>) {
        let weight = |is_agent: bool, status: i32| match (is_agent, status) {
            (true, _) => 0,
            (false, 1) => 1,
            (false, ..128) => 2,
            (false, _) => 3,
        };
        if let Some(first) = &mut self.suspect {
            if weight(is_agent, status) <= weight(first.is_agent, first.status) {
                return;
            }
            if !first.is_agent {
                (first.status, first.text) = (status, text);
                return;
            }
        }
        let patience = if is_agent { self.spec.grace } else { KILLED };
        self.suspect = Some(Suspect {
            is_agent,
            status,
            text,
            counts_at: Instant::now() + patience,
        });
    }

    /// No other process has been the cause.
    fn end_by_suspect(&mut self) {
        if let Some(suspect) = self.suspect.take() {
            self.end(suspect.status, suspect.text.as_deref());
        }
    }

    /// Ranks that have not joined a job, or not ended it, leave agents behind.
    fn release_agents(&mut self) {
        if self.agents_released || self.processes[..self.ranks].iter().any(Process::is_running) {
            return;
        }
        let agents_run = self.processes[self.ranks..].iter().any(Process::is_running);
        let is_open = |suspect: &Suspect| !suspect.is_agent && Instant::now() < suspect.counts_at;
        if agents_run && self.failure.is_none() && self.suspect.as_ref().is_some_and(is_open) {
            return;
        }
        self.end_by_suspect();
        let agents = &self.processes[self.ranks..];
        self.agents_released = true;
        for agent in agents {
            agent.signal(Signal::TERM);
            agent.signal(Signal::CONT);
        }
        if self.spec.agent_under.is_empty() {
            // Nobody needs it any more.
            self.kill_at.get_or_insert(Instant::now() + RELEASED);
        }
    }

    fn forward_output(&mut self, ready: &[Source]) {
        for source in ready {
            if let Source::Stream(rank, which) = *source {
                let process = &mut self.processes[rank];
                let ended = !process.is_running();
                process.streams[which].forward(&mut self.outputs, ended);
            }
        }
        if ready.iter().any(|s| matches!(s, Source::Progress)) {
            self.progress.forward();
        }
        if !self.processes.iter().any(Process::is_running) {
            self.progress.close();
        }
        let outputs = &mut self.outputs;
        if !outputs.stdout.is_empty() || !outputs.stderr.is_empty() {
            self.progress.bar.aside(|| {
                outputs.stdout.flush();
                outputs.stderr.flush();
            });
        }
        // Who does not listen to agents does not wait for them; others may need them.
        let broken = self.outputs.stdout.broken();
        if let Some(errno) = broken.filter(|_| !self.spec.are_agents) {
            let status = if errno == Errno::PIPE {
                128 + libc::SIGPIPE
            } else {
                1
            };
            // Who closes a pipe knows it.
            let text = match errno {
                Errno::PIPE => None,
                _ => Some(format!("standard output cannot be written: {errno}")),
            };
            self.end(status, text.as_deref());
        }
    }

    /// Notes the first failure, says what it was and asks the other ranks to end.
    fn fail(&mut self, status: i32, text: &str) {
        self.end(status, Some(text));
    }

    /// As [`Job::fail`], silently where there is nothing to say.
    fn end(&mut self, status: i32, text: Option<&str>) {
        if self.failure.is_some() {
            return;
        }
        if let Some(text) = text {
            let command = match self.spec.are_agents {
                true => "agent",
                false => "run",
            };
            let text = format!("trihop {command}: {text}");
            self.outputs.stderr.say(&text);
        }
        self.failure = Some(status);
        self.ask_at = Some(Instant::now() + LAST_WORDS);
    }

    pub(super) fn ask_to_end(&mut self) {
        self.kill_at = Some(Instant::now() + self.spec.grace);
        for process in &self.processes[..self.ranks] {
            process.signal(Signal::TERM);
            // A stopped rank takes its SIGTERM only when it goes on.
            process.signal(Signal::CONT);
        }
    }

    fn kill(&mut self) {
        self.killed = true;
        self.processes.iter().for_each(|p| p.signal(Signal::KILL));
    }
}

/// Names by which ranks of nodes of these sizes find their agents, so many on each, that no other
/// job's have.
fn agent_names(sizes: &[u32], agents: u32) -> Result<Vec<String>, Error> {
    if let Some((node, ranks)) = (0..).zip(sizes).find(|(_, ranks)| **ranks < agents) {
        return Err(Error::Usage(format!(
            "--nics {agents} needs as many ranks on each node, and node {node} has {ranks}"
        )));
    }
    let number: [u8; 8] =
        random_bytes().map_err(|e| Error::system("naming agents", io::Error::other(e)))?;
    let number = u64::from_ne_bytes(number);
    let nodes = 0..sizes.len();
    Ok(nodes
        .map(|node| format!("trihop-agent-{number:016x}-{node}"))
        .collect())
}

fn status_of(status: ExitStatus) -> i32 {
    status
        .code()
        .or(status.signal().map(|s| 128 + s))
        .unwrap_or(1)
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) if status.core_dumped() => {
            format!("was ended by {} (core dumped)", signal_name(signal))
        }
        (None, Some(signal)) => format!("was ended by {}", signal_name(signal)),
        (None, None) => "ended for an unknown reason".to_owned(),
    }
}

/// Many processes need many descriptors; the soft limit is often far below the hard one.
fn raise_descriptor_limit(processes: usize, namespaces: usize) -> Result<(), Error> {
    let needed =
        processes as u64 * DESCRIPTORS_PER_PROCESS + namespaces as u64 + DESCRIPTORS_OF_OURS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        let networks = match namespaces {
            0 => String::new(),
            namespaces => format!(" and {namespaces} network namespaces"),
        };
        return Err(Error::Usage(format!(
            "{processes} processes{networks} need {needed} descriptors, the hard limit is {}; \
             raise `ulimit -Hn`",
            limit.maximum.unwrap_or(0)
        )));
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            maximum: limit.maximum,
        },
    )
    .map_err(|e| Error::system(format!("raising the descriptor limit to {needed}"), e))
}
