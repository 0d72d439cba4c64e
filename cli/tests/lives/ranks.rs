//! A test as a job: it starts itself again, as every rank, under `trihop run`, and follows what
//! each rank says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use trihop::minirank::{self, MiniRank};
use trihop::{Job, Message, Options, Rank, Result, Shuffle, threaded};

/// A survivor that has said nothing after this time hangs.
pub const WATCHDOG: Duration = Duration::from_secs(20);

/// What stands before each word of a rank, since the test harness writes on the same lines.
const MARK: &str = "@@";

/// Where calls make progress, or a thread does; or the rank is a thread, with a relay beside it, or
/// has an agent for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeatKind {
    Inline,
    Threaded,
    Minirank,
    Agent,
}

impl SeatKind {
    pub const ALL: [Self; 2] = [Self::Inline, Self::Threaded];
    pub const WITH_RELAYS: [Self; 4] = [Self::Inline, Self::Threaded, Self::Minirank, Self::Agent];
}

/// A rank's part of the job.
pub enum Seat {
    Inline(Job<'static>),
    Threaded(threaded::Job),
}

/// A rank's shuffle.
pub enum Post {
    Inline(Shuffle<'static>),
    Threaded(threaded::Shuffle),
}

macro_rules! either {
    ($of:ident: $self:expr, $inner:ident => $call:expr) => {
        match $self {
            $of::Inline($inner) => $call,
            $of::Threaded($inner) => $call,
        }
    };
}

impl Seat {
    fn start() -> Result<Self> {
        let options = Options::from_env()?;
        match std::env::var("LIVES_SEAT").as_deref() {
            Ok("Threaded") => Ok(Self::Threaded(threaded::Job::start(options)?)),
            _ => Ok(Self::Inline(Job::start(options)?)),
        }
    }

    pub fn size(&self) -> u32 {
        either!(Self: self, job => job.size())
    }

    pub fn barrier(&self) -> Result<()> {
        either!(Self: self, job => job.barrier())
    }

    pub fn shutdown(self) -> Result<()> {
        either!(Self: self, job => job.shutdown())
    }

    pub fn open(
        &self,
        name: &str,
        mut handler: impl FnMut(Message<'_>) + Send + 'static,
    ) -> Result<Post> {
        match self {
            Self::Inline(job) => {
                let shuffle = job
                    .shuffle(name)
                    .handler(move |message, _| handler(message));
                shuffle.open().map(Post::Inline)
            }
            Self::Threaded(job) => {
                let shuffle = job
                    .shuffle(name)
                    .handler(move |message, _| handler(message));
                shuffle.open().map(Post::Threaded)
            }
        }
    }
}

impl Post {
    pub fn send(&self, target: u32, bytes: &[u8]) -> Result<()> {
        either!(Self: self, shuffle => shuffle.send(Rank(target), 0, bytes))
    }

    pub fn fence(&self) -> Result<()> {
        either!(Self: self, shuffle => shuffle.fence())
    }

    /// A rank that only receives: it looks for messages until there is an error.
    pub fn only_receive(&self) -> Result<()> {
        loop {
            match self {
                Self::Inline(shuffle) => shuffle.poll().map(drop)?,
                // The progress thread receives; a message to oneself is a call that hears of a
                // failure.
                Self::Threaded(shuffle) => shuffle.send(Rank(number()), 0, b"")?,
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Number of this rank.
pub fn number() -> u32 {
    trihop::transport::bootstrap::environment_rank().expect("a rank was started by a launcher")
}

/// Whether this process is a rank of the test.
pub fn is_rank() -> bool {
    std::env::var_os("LIVES_SEAT").is_some()
}

/// A rank says a word to the test.
pub fn say(word: &str) {
    let line = format!("{MARK}{} {} {word}\n", number(), std::process::id());
    let mut to: Box<dyn Write> = match std::env::var("LIVES_FIFO") {
        Ok(path) => Box::new(File::options().write(true).open(path).unwrap()),
        Err(_) => Box::new(std::io::stdout()),
    };
    // One write, so that lines of ranks stay apart.
    to.write_all(line.as_bytes()).unwrap();
    to.flush().unwrap();
}

/// The rank that shall die, or be slow.
pub fn victim() -> u32 {
    std::env::var("LIVES_VICTIM").unwrap().parse().unwrap()
}

/// A rank without calls, until it is killed.
pub fn wait_for_death() -> ! {
    loop {
        thread::park();
    }
}

/// Runs a rank: says how its part of the job ended.
pub fn rank(body: impl Fn(Seat) -> Result<()> + Sync) {
    if std::env::var_os(ENV_NO_PIDFD).is_some() {
        forbid_pidfd().expect("who started this rank has tried it");
    }
    say("begins");
    let outcome = match std::env::var("LIVES_SEAT").as_deref() {
        Ok("Minirank") => on_a_thread(body),
        _ => Seat::start().and_then(body),
    };
    match outcome {
        Ok(()) => say("done"),
        Err(error) => {
            say(&format!("error {error}"));
            // As a program that fails: nothing is taken apart, and its end may be seen before its
            // words are.
            std::process::exit(1);
        }
    }
}

/// Has a rank do without `pidfd_open`.
pub const ENV_NO_PIDFD: &str = "LIVES_NO_PIDFD";

/// From now on this process has no `pidfd_open`, as under some sandboxes.
fn forbid_pidfd() -> io::Result<()> {
    let word = |code: u32, jumps: (u8, u8), k: u32| libc::sock_filter {
        code: code as u16,
        jt: jumps.0,
        jf: jumps.1,
        k,
    };
    // The number of the call stands first in what a filter sees.
    let mut filter = [
        word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0),
        word(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            (0, 1),
            libc::SYS_pidfd_open as u32,
        ),
        word(
            libc::BPF_RET | libc::BPF_K,
            (0, 0),
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        ),
        word(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a system call on integers.
    let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the kernel copies the filter, whose length is given.
    let filtered = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
            0,
            0,
        )
    };
    match (alone, filtered) {
        (0, 0) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether processes can do without the call: some kernels and sandboxes take no filter.
pub fn can_forbid_pidfd() -> bool {
    // Filters are of a thread.
    thread::spawn(forbid_pidfd).join().unwrap().is_ok()
}

/// A process with one mini-rank, whose numbers are the same.
fn on_a_thread(body: impl Fn(Seat) -> Result<()> + Sync) -> Result<()> {
    let program = |mini: MiniRank| body(Seat::Inline(mini.start()?));
    let outcomes = minirank::run(Options::from_env()?, 1, program)?;
    outcomes.into_iter().collect()
}

/// A running job, and what its ranks have said.
pub struct Ranks {
    child: Child,
    lines: Receiver<(Instant, String)>,
    pids: BTreeMap<u32, i32>,
    /// How each rank that has come to an end did so, and when.
    pub ends: BTreeMap<u32, (Instant, String)>,
    /// What each rank has said.
    pub said: BTreeMap<u32, Vec<String>>,
    /// Where ranks say their words if their launcher may lose them: MPICH's does when a rank is
    /// killed.
    fifo: Option<(File, tempfile::TempDir)>,
    other: Vec<String>,
    size: u32,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // The launcher's warden ends the ranks.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        let _ = self.child.wait();
        if let Some((fifo, _)) = &mut self.fifo {
            // Ends the thread that reads it.
            let _ = fifo.write_all(END.as_bytes());
        }
    }
}

/// The last line of a fifo.
const END: &str = "end\n";

/// What starts a job: the calling test's full name, nodes, seat, and who is to die.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    pub test: &'a str,
    pub node_sizes: &'a str,
    pub seat: SeatKind,
    pub victim: u32,
    /// Options of `trihop run`, or another launcher with its options.
    pub launch: &'a [&'a str],
    pub launcher: Option<&'a str>,
    /// A program that is each rank in place of the test; its argument is the seat, and what it
    /// says is as [`say`] writes it.
    pub program: Option<&'a Path>,
    pub variables: &'a [(&'a str, &'a str)],
}

impl<'a> Spec<'a> {
    /// Under `trihop run`, with default options.
    pub fn new(test: &'a str, node_sizes: &'a str, seat: SeatKind, victim: u32) -> Self {
        Self {
            test,
            node_sizes,
            seat,
            victim,
            launch: &[],
            launcher: None,
            program: None,
            variables: &[],
        }
    }

    pub fn start(&self) -> Ranks {
        let mut command = Command::new(self.launcher.unwrap_or(env!("CARGO_BIN_EXE_trihop")));
        if self.launcher.is_none() {
            command.args(["run", "--node-sizes", self.node_sizes]);
        }
        if self.seat == SeatKind::Agent {
            command.args(["--seat", "agent"]);
        }
        command.args(self.launch);
        if self.launcher.is_none() {
            // It ends the others when a rank fails. They are to say first what they have noticed.
            command.args(["--", "sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""]);
        }
        if self.launcher.is_some() {
            // MPICH's ends all ranks, or itself by a fault, when one of its processes ends: the
            // rank's shell does not.
            command.args(["sh", "-c", "\"$0\" \"$@\"; exec sleep 1000"]);
        }
        match self.program {
            Some(program) => {
                command.arg(program);
                // A rank with an agent is a process as any other.
                let seat = match self.seat {
                    SeatKind::Agent => SeatKind::Inline,
                    seat => seat,
                };
                command.arg(format!("{seat:?}").to_lowercase());
            }
            None => {
                command.arg(std::env::current_exe().unwrap());
                command.args([self.test, "--exact", "--nocapture", "--test-threads=1"]);
            }
        }
        command
            .env("RUST_BACKTRACE", "0")
            .env("LIVES_SEAT", format!("{:?}", self.seat));
        command.env("LIVES_VICTIM", self.victim.to_string());
        command.envs(self.variables.iter().copied());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let fifo = self.launcher.map(|_| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("words");
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            command.env("LIVES_FIFO", &path);
            // For writing too: then it can be opened before, and does not end between two ranks'
            // words.
            (
                File::options().read(true).write(true).open(path).unwrap(),
                directory,
            )
        });
        let mut child = command.spawn().expect("`trihop run` starts");
        let (tell, lines) = channel();
        let fifo = fifo.map(|(fifo, directory)| {
            let (tell, reader) = (tell.clone(), fifo.try_clone().unwrap());
            thread::spawn(move || {
                for line in BufReader::new(reader).lines().map_while(Result::ok) {
                    if line == END.trim_end() {
                        break;
                    }
                    let _ = tell.send((Instant::now(), line));
                }
            });
            (fifo, directory)
        });
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for stream in streams {
            let tell = tell.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = tell.send((Instant::now(), line));
                }
            });
        }
        let size = self
            .node_sizes
            .split(',')
            .map(|n| n.parse::<u32>().unwrap())
            .sum();
        let (pids, ends, said, other) = (
            BTreeMap::new(),
            BTreeMap::new(),
            BTreeMap::new(),
            Vec::new(),
        );
        Ranks {
            child,
            lines,
            pids,
            ends,
            said,
            fifo,
            other,
            size,
        }
    }
}

impl Ranks {
    /// The next word of a rank; none when all output has ended, or at the deadline.
    pub fn next(&mut self, deadline: Instant) -> Option<(u32, String)> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (at, line) = self.lines.recv_timeout(left).ok()?;
            let Some((_, words)) = line.split_once(MARK) else {
                self.other.push(line);
                continue;
            };
            let mut words = words.splitn(3, ' ');
            let rank: u32 = words.next()?.parse().ok()?;
            self.pids.insert(rank, words.next()?.parse().ok()?);
            let word = words.next()?.to_owned();
            self.said.entry(rank).or_default().push(word.clone());
            if word == "done" || word.starts_with("error") {
                self.ends.insert(rank, (at, word.clone()));
            }
            return Some((rank, word));
        }
    }

    /// Waits until all of `count` ranks have said `word`.
    pub fn wait_for(&mut self, count: u32, word: &str) {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut said = std::collections::BTreeSet::new();
        while said.len() < count as usize {
            match self.next(deadline) {
                Some((rank, said_word)) if said_word == word => {
                    said.insert(rank);
                }
                Some((rank, end)) if end.starts_with("error") => {
                    panic!(
                        "rank {rank} before `{word}`: {end}\n{}",
                        self.other.join("\n")
                    )
                }
                Some(_) => {}
                None => panic!(
                    "{said:?} of {count} have said `{word}`\n{}",
                    self.other.join("\n")
                ),
            }
        }
    }

    pub fn signal(&self, rank: u32, signal: Signal) {
        let pid = Pid::from_raw(self.pids[&rank]).unwrap();
        kill_process(pid, signal).expect("the rank runs");
    }

    /// Signals a rank if it still runs; whether it did.
    pub fn try_signal(&self, rank: u32, signal: Signal) -> bool {
        let pid = Pid::from_raw(self.pids[&rank]).unwrap();
        kill_process(pid, signal).is_ok()
    }

    /// Whether a rank has said this so far.
    pub fn has_said(&self, rank: u32, word: &str) -> bool {
        self.said
            .get(&rank)
            .is_some_and(|words| words.iter().any(|said| said == word))
    }

    /// Whether each has said something, and so survives the launcher's word that it should end.
    pub fn all_have_begun(&self) -> bool {
        self.said.len() == self.size as usize
    }

    /// Ranks, or processes with mini-ranks, that it has.
    pub fn size(&self) -> u32 {
        self.size
    }

    pub fn pid(&self, rank: u32) -> i32 {
        self.pids[&rank]
    }

    /// Waits until every rank but `victim` has come to an end, or the watchdog barks.
    pub fn wait_for_survivors(&mut self, victim: Option<u32>, watchdog: Duration) {
        let deadline = Instant::now() + watchdog;
        let others = |ranks: &Self| {
            (0..ranks.size)
                .filter(|r| Some(*r) != victim && !ranks.ends.contains_key(r))
                .count()
        };
        while others(self) > 0 && self.next(deadline).is_some() {}
    }

    /// What else was said: by the launcher and by the test harness.
    pub fn told(&self) -> String {
        self.other.join("\n")
    }

    /// Checks that every survivor names `victim`; the time to the last one's error.
    #[track_caller]
    pub fn assert_named(&mut self, victim: u32, killed: Instant) -> Duration {
        self.wait_for_survivors(Some(victim), WATCHDOG);
        let mut last = Duration::ZERO;
        for rank in (0..self.size).filter(|r| *r != victim) {
            let Some((at, end)) = self.ends.get(&rank) else {
                panic!(
                    "rank {rank} hangs after the death of rank {victim}; ended: {:?}\n{}",
                    self.ends,
                    self.told()
                );
            };
            assert!(
                end.contains(&format!("rank {victim} is gone")),
                "rank {rank} says `{end}` after the death of rank {victim}: {:?}\n{}",
                self.ends,
                self.told()
            );
            last = last.max(at.saturating_duration_since(killed));
        }
        last
    }

    /// Checks that every rank has come to its end without an error.
    #[track_caller]
    pub fn assert_done(&mut self) {
        self.wait_for_survivors(None, Duration::from_secs(120));
        for rank in 0..self.size {
            let end = self.ends.get(&rank).map(|(_, end)| end.as_str());
            assert_eq!(
                end,
                Some("done"),
                "rank {rank}: {:?}\n{}",
                self.ends,
                self.told()
            );
        }
    }
}

/// Whether a command is found in PATH.
pub fn is_installed(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(command).is_file())
}
