//! A command under test: its output gathered, ended by a watchdog rather than hanging.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod agents;
pub mod compiled;
pub mod exchanged;
pub mod kills;

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// After this time a test is taken for hanging.
const WATCHDOG: Duration = Duration::from_secs(240);
const BUILD_WATCHDOG: Duration = Duration::from_secs(1800);

/// A process of a group of its own, which is ended with it when the test is given up.
struct Watched(Child);

impl Drop for Watched {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            if let Some(group) = rustix::process::Pid::from_raw(self.0.id() as i32) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}

/// A started command.
pub struct Launched {
    child: Watched,
    /// How it was started.
    command: String,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    /// What was read of its output so far.
    read: Vec<u8>,
    stderr: JoinHandle<()>,
    /// What was read of its standard error so far.
    said: Arc<Mutex<Vec<u8>>>,
    deadline: Instant,
}

/// The cores of a list such as `0-2,5` that this process may use: the kernel lists some that are
/// not there.
pub fn cores_of(list: &str, allowed: &[usize]) -> Vec<usize> {
    let ranges = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<usize>().unwrap()..=last.parse::<usize>().unwrap()
    });
    let ranges: Vec<_> = ranges.collect();
    let is_in = |core: &&usize| ranges.iter().any(|range| range.contains(*core));
    allowed.iter().filter(is_in).copied().collect()
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status, 128 + signal when a signal ended it.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Itself, when the command did what it should.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.status, 0, "{}\n{}", self.stdout, self.stderr);
        self
    }

    pub fn sorted_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

impl Launched {
    /// `trihop run` with these words, not yet started.
    pub fn command(words: impl IntoIterator<Item = String>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
        command.arg("run").args(words);
        command
    }

    /// Starts `trihop run` with these words.
    pub fn trihop(words: impl IntoIterator<Item = String>) -> Self {
        Self::start(Self::command(words))
    }

    /// Starts any command.
    pub fn start(mut command: Command) -> Self {
        Self::try_start(&mut command).unwrap_or_else(|e| panic!("starting {command:?}: {e}"))
    }

    /// As [`Launched::start`], for a command that may not be there.
    fn try_start(command: &mut Command) -> io::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn()?;
        let mut stderr = child.stderr.take().unwrap();
        let deadline = Instant::now() + WATCHDOG;
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let into = Arc::clone(&said);
        Ok(Self {
            command: format!("{command:?}"),
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            read: Vec::new(),
            stderr: thread::spawn(move || read_into(&mut stderr, deadline, &into)),
            said,
            child: Watched(child),
            deadline,
        })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Whether it has not ended yet.
    pub fn runs(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_none()
    }

    /// Whether it handles a signal in its own way.
    pub fn handles(&self, signal: i32) -> bool {
        handles(self.child.0.id(), signal)
    }

    /// Whether this was on its standard error so far.
    pub fn has_said(&self, text: &str) -> bool {
        self.said().contains(text)
    }

    /// What was on its standard error so far.
    pub fn said(&self) -> String {
        self::text(&self.said.lock().unwrap())
    }

    /// Processes that it has started by a command with this first argument.
    pub fn children_with(&self, argument: &str) -> Vec<u32> {
        let id = self.child.0.id();
        let children =
            fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let ids = children.split_whitespace().map(|id| id.parse().unwrap());
        ids.filter(|id: &u32| {
            let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(argument.as_bytes())
        })
        .collect()
    }

    pub fn stdin(&mut self) -> &mut ChildStdin {
        self.stdin.as_mut().unwrap()
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until so many lines were printed, and returns all until then.
    pub fn wait_for_lines(&mut self, count: usize) -> Vec<String> {
        let stdout = self.stdout.as_mut().unwrap();
        loop {
            let mut lines = text(&self.read);
            if lines.matches('\n').count() >= count {
                lines.truncate(lines.rfind('\n').unwrap_or(0));
                return lines.lines().take(count).map(str::to_owned).collect();
            }
            match read_some(stdout, &mut self.read, self.deadline) {
                Ok(0) => panic!("the output ended after {lines:?}"),
                Ok(_) => {}
                Err(error) => panic!("waiting for {count} lines, got {lines:?}: {error}"),
            }
        }
    }

    /// Closes our end of its output.
    pub fn hang_up(&mut self) {
        self.stdout = None;
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a system call on integers; the child is not reaped yet, so the id is its own.
        assert_eq!(unsafe { libc::kill(self.child.0.id() as i32, signal) }, 0);
    }

    /// Waits for the end, and for the end of the output.
    pub fn wait(mut self) -> Ended {
        use std::os::unix::process::ExitStatusExt;
        self.stdin = None;
        let deadline = self.deadline;
        let stdout = self
            .stdout
            .take()
            .map(|mut stdout| thread::spawn(move || read_to_end(&mut stdout, deadline)));
        let Some(status) = end_before(&mut self.child.0, deadline) else {
            let shown = shown(self.child.0.id());
            drop(self.child);
            self.stderr.join().unwrap();
            panic!(
                "{} still runs after {WATCHDOG:?}; stderr: {}\n{shown}",
                self.command,
                text(&self.said.lock().unwrap())
            );
        };
        let rest = stdout.map_or(Vec::new(), |s| s.join().unwrap());
        self.read.extend(rest);
        self.stderr.join().unwrap();
        Ended {
            status: status.code().or(status.signal().map(|s| 128 + s)).unwrap(),
            stdout: text(&self.read),
            stderr: text(&self.said.lock().unwrap()),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a rank waits for, or each rank of a launcher, with its queues.
fn shown(process: u32) -> String {
    let mut dump = Command::new(env!("CARGO_BIN_EXE_trihop"));
    dump.args(["dump", &process.to_string()]);
    match dump.output() {
        Ok(dump) => text(&[dump.stdout, dump.stderr].concat()),
        Err(error) => format!("no dump: {error}"),
    }
}

/// The status of a child once it has ended, none at the deadline.
fn end_before(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Appends what a pipe has, at least one byte unless it has ended.
fn read_some(
    pipe: &mut (impl Read + AsFd),
    bytes: &mut Vec<u8>,
    deadline: Instant,
) -> io::Result<usize> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).unwrap();
    if poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut chunk = [0; 16 << 10];
    let count = pipe.read(&mut chunk)?;
    bytes.extend_from_slice(&chunk[..count]);
    Ok(count)
}

/// All that comes through a pipe. Where somebody holds its other end beyond the deadline, what came
/// until then: the process itself is waited for elsewhere.
fn read_to_end(pipe: &mut (impl Read + AsFd), deadline: Instant) -> Vec<u8> {
    let mut bytes = Vec::new();
    while read_some(pipe, &mut bytes, deadline).is_ok_and(|count| count > 0) {}
    bytes
}

/// As [`read_to_end`], for who looks meanwhile.
fn read_into(pipe: &mut (impl Read + AsFd), deadline: Instant, into: &Mutex<Vec<u8>>) {
    let mut bytes = Vec::new();
    while read_some(pipe, &mut bytes, deadline).is_ok_and(|count| count > 0) {
        into.lock().unwrap().append(&mut bytes);
    }
}

/// Whether a process handles a signal in its own way.
pub fn handles(id: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught
        .is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1)
}

/// Runs a command to its end, with nothing to read.
pub fn run(command: Command) -> Ended {
    Launched::start(command).wait()
}

/// Runs a command to its end; none where it cannot be started.
pub fn try_run(mut command: Command) -> Option<Ended> {
    Launched::try_start(&mut command).ok().map(Launched::wait)
}

/// Waits for a build, which takes longer than anything else.
pub fn build(mut command: Command) {
    let child = command.process_group(0).spawn().expect("cargo runs");
    let mut child = Watched(child);
    let ended = end_before(&mut child.0, Instant::now() + BUILD_WATCHDOG);
    assert!(
        ended.is_some_and(|status| status.success()),
        "{command:?} failed or hangs"
    );
}

/// Waits for a condition that must come true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs (a zombie does not).
pub fn alive(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Number of processes with this text in their command line.
pub fn processes_named(text: &str) -> usize {
    let ids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    })
    .count()
}

/// Whether a command is found in PATH.
pub fn is_installed(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(command).is_file())
}

/// The bootstrap probe of the transport package, built where that has not happened yet.
pub fn probe() -> &'static Path {
    static PROBE: OnceLock<PathBuf> = OnceLock::new();
    PROBE.get_or_init(|| example("trihop-transport", "bootstrap_probe"))
}

/// An example of a package, built where that has not happened yet.
pub fn example(package: &str, name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_BIN_EXE_trihop")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            package,
            "--example",
            name,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .arg("--target-dir")
        .arg(directory.parent().unwrap())
        // As tests are, so that cargo has most of it already.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    if directory.ends_with("release") {
        build.arg("--release");
    }
    self::build(build);
    directory.join("examples").join(name)
}
