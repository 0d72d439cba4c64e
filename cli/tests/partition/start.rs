//! Starts the command as a user does, and looks at what it leaves.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// What a finished command left.
pub struct Done {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert!(
            self.status.success(),
            "{}\n{}\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }
}

/// Ends the process that it started, and its group, when the test is given up.
pub struct Watched(pub Child);

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

/// Runs a command to its end; a watchdog turns a hang into a failure.
pub fn run(mut command: Command) -> Done {
    let dir = TempDir::new().unwrap();
    let (stdout, stderr) = (dir.path().join("stdout"), dir.path().join("stderr"));
    command
        .stdin(Stdio::null())
        .stdout(fs::File::create(&stdout).unwrap())
        .stderr(fs::File::create(&stderr).unwrap())
        .process_group(0);
    let mut child = Watched(command.spawn().unwrap());
    let started = Instant::now();
    let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(
            started.elapsed() < Duration::from_secs(180),
            "hangs: {command:?}\n{}\n{}",
            text(&stdout),
            text(&stderr)
        );
        std::thread::sleep(Duration::from_millis(5));
    };
    Done {
        status,
        stdout: text(&stdout),
        stderr: text(&stderr),
    }
}

/// `trihop run` with the program that every rank runs, or that program alone.
pub fn launched(ranks: u32, nodes: u32, program: &str) -> Command {
    if ranks == 1 {
        return Command::new(program);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.args([
        "run",
        "-n",
        &ranks.to_string(),
        "--nodes",
        &nodes.to_string(),
        "--",
        program,
    ]);
    command
}

pub fn partition(ranks: u32, nodes: u32) -> Command {
    let mut command = launched(ranks, nodes, env!("CARGO_BIN_EXE_trihop"));
    command.arg("partition");
    command
}

/// Names in a directory that a failed job must not leave there.
pub fn leftovers(out: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(out) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.contains("part-") || name == "_SUCCESS")
        .collect()
}

pub fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    fs::File::create(&path)
        .unwrap()
        .write_all(content.as_ref())
        .unwrap();
    path
}
