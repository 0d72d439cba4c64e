//! Runs a program to its end, or to a deadline, and gives back what it printed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time that a program has to end after it has printed everything: MPICH over tcp sometimes never
/// returns from MPI_Finalize.
const GRACE: Duration = Duration::from_millis(700);

/// Lines of a complaint that are worth telling.
const COMPLAINT_CHARS: usize = 160;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Executable and arguments.
    pub argv: Vec<String>,
    /// Variables on top of ours.
    pub env: Vec<(String, String)>,
}

impl Program {
    /// Without variables.
    pub fn new<S: ToString>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(|a| a.to_string()).collect(),
            env: Vec::new(),
        }
    }

    /// As one would type it.
    pub fn text(&self) -> String {
        let variables = self.env.iter().map(|(key, value)| format!("{key}={value}"));
        variables
            .chain(self.argv.iter().cloned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Starts it. It stays in our process group, so that an interrupt of the group reaches it and
    /// all that it started.
    ///
    /// # Errors
    /// Why it could not be started: most often, it is not installed.
    pub fn start(&self) -> Result<Running, String> {
        let child = Command::new(&self.argv[0])
            .args(&self.argv[1..])
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => Ok(Running(child)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("{} is not installed", self.argv[0]))
            }
            Err(error) => Err(format!("starting {}: {error}", self.argv[0])),
        }
    }
}

/// A program that runs; it ends with its owner.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Waits for the end and returns the lines that it printed. A program that has printed `enough`
    /// lines and does not end is ended; one that has not by the deadline is, too, and that is an
    /// error.
    ///
    /// # Errors
    /// When it fails, or does not print enough in time.
    pub fn lines(mut self, enough: Option<usize>, within: Duration) -> Result<Vec<String>, String> {
        let deadline = Instant::now() + within;
        let (sender, receiver) = mpsc::channel();
        let output = BufReader::new(self.0.stdout.take().ok_or("its output was taken already")?);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut errors = self
            .0
            .stderr
            .take()
            .ok_or("its errors were taken already")?;
        let complaint = thread::spawn(move || {
            let mut text = String::new();
            // What is not text is not told.
            let _ = errors.read_to_string(&mut text);
            text
        });
        let (mut lines, mut limit) = (Vec::new(), deadline);
        let ended = loop {
            if enough.is_some_and(|enough| lines.len() >= enough) {
                limit = limit.min(Instant::now() + GRACE);
            }
            match receiver.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => {
                    break self.wait_until(limit.max(Instant::now() + GRACE));
                }
                Err(RecvTimeoutError::Timeout) => break None,
            }
        };
        self.end();
        let complete = enough.is_some_and(|enough| lines.len() >= enough);
        match ended {
            Some(true) => Ok(lines),
            None if complete => Ok(lines),
            None => Err(format!("it did not end within {} s", within.as_secs())),
            Some(false) => Err(summary(&complaint.join().unwrap_or_default())),
        }
    }

    /// Whether it succeeded, if it ends by then.
    fn wait_until(&mut self, limit: Instant) -> Option<bool> {
        loop {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some(status.success());
            }
            if Instant::now() >= limit {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks first: launchers end their ranks, which are no children of ours, when they are asked.
    fn end(&mut self) {
        let Some(process) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        for signal in [Signal::TERM, Signal::KILL] {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            // Fails where it has ended meanwhile.
            let _ = kill_process(process, signal);
            self.wait_until(Instant::now() + GRACE);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// The line of a complaint that says most: the first that speaks of an error, else the first.
fn summary(complaint: &str) -> String {
    let lines = || {
        complaint
            .lines()
            .map(str::trim)
            .filter(|line| line.chars().any(char::is_alphabetic))
    };
    let line = lines()
        .find(|line| line.to_lowercase().contains("error"))
        .or_else(|| lines().next());
    match line {
        Some(line) => line.chars().take(COMPLAINT_CHARS).collect(),
        None => "it failed and did not say why".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Program {
        Program::new(["sh", "-c", script])
    }

    #[test]
    fn the_lines_of_a_program_that_succeeds() {
        let mut program = shell("echo one; echo $TWO");
        program.env.push(("TWO".into(), "two".into()));
        assert_eq!(program.text(), "TWO=two sh -c echo one; echo $TWO");
        let lines = program.start().expect("a shell").lines(None, LONG);
        assert_eq!(lines, Ok(vec!["one".to_owned(), "two".to_owned()]));
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let complaint =
            shell("echo ------ >&2; echo hello >&2; echo 'Error: no such fabric' >&2; exit 3");
        let result = complaint.start().expect("a shell").lines(None, LONG);
        assert_eq!(result, Err("Error: no such fabric".to_owned()));
        let silent = shell("exit 3")
            .start()
            .expect("a shell")
            .lines(Some(0), LONG);
        assert!(silent.is_err());
    }

    #[test]
    fn a_program_that_has_printed_everything_and_hangs_is_ended() {
        let hangs = shell("echo row; exec sleep 1000").start().expect("a shell");
        assert_eq!(hangs.lines(Some(1), LONG), Ok(vec!["row".to_owned()]));
    }

    #[test]
    fn a_program_that_prints_too_little_is_ended_at_its_deadline() {
        let hangs = shell("echo row; exec sleep 1000").start().expect("a shell");
        let result = hangs.lines(Some(2), Duration::from_millis(300));
        assert_eq!(result, Err("it did not end within 0 s".to_owned()));
    }

    #[test]
    fn what_is_not_there_is_said_by_name() {
        let error = Program::new(["trihop-no-such-program"]).start().map(|_| ());
        assert_eq!(
            error,
            Err("trihop-no-such-program is not installed".to_owned())
        );
    }
}
