//! A command under test: its output gathered, ended by a watchdog rather than hanging.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod exchanged;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// After this time a test is taken for hanging.
const WATCHDOG: Duration = Duration::from_secs(240);

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
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    lines: Vec<String>,
    stderr: JoinHandle<String>,
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
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
        let mut stderr = child.stderr.take().unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(BufReader::new),
            lines: Vec::new(),
            stderr: thread::spawn(move || {
                let mut text = Vec::new();
                let _ = stderr.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            }),
            child: Watched(child),
        }
    }

    /// Whether it has not ended yet.
    pub fn runs(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_none()
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
        while self.lines.len() < count {
            let mut line = String::new();
            assert_ne!(
                stdout.read_line(&mut line).unwrap(),
                0,
                "the output ended after {:?}",
                self.lines
            );
            self.lines.push(line.trim_end().to_owned());
        }
        self.lines.clone()
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
        let stdout = self.stdout.take().map(|mut stdout| {
            thread::spawn(move || {
                let mut text = Vec::new();
                let _ = stdout.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.0.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > WATCHDOG {
                drop(self.child);
                panic!(
                    "still running after {WATCHDOG:?}; stderr: {}",
                    self.stderr.join().unwrap()
                );
            }
            thread::sleep(Duration::from_millis(5));
        };
        let rest = stdout.map_or(String::new(), |s| s.join().unwrap());
        let before: String = self.lines.iter().map(|l| format!("{l}\n")).collect();
        Ended {
            status: status.code().or(status.signal().map(|s| 128 + s)).unwrap(),
            stdout: before + &rest,
            stderr: self.stderr.join().unwrap(),
        }
    }
}

/// Runs a command to its end, with nothing to read.
pub fn run(command: Command) -> Ended {
    Launched::start(command).wait()
}

/// Waits for a condition that must come true.
pub fn until(what: &str, condition: impl Fn() -> bool) {
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
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "{build:?} failed");
    directory.join("examples").join(name)
}
