//! An agent that is started by the first of its ranks that finds none.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};
use rustix::process::{Resource, getrlimit};

use super::{ENV_AGENT, ENV_JOB, ENV_NODES, ENV_PLACE, ENV_START, ENV_STARTED, failed};
use crate::bootstrap::local::ENV_BOUND;
use crate::error::{Error, Result};
use crate::memory::descriptors::{DescriptorListener, wait_for_any};
use crate::sync::sleep;

/// How often a rank looks for an agent that another one starts.
const PAUSE: Duration = Duration::from_millis(5);

/// The most that an agent says before it is ready.
const MOST_SAID_BYTES: usize = 64 << 10;

/// Reaches an agent, and starts it where there is none.
#[derive(Debug)]
pub(super) struct Starter {
    name: String,
    command: String,
}

impl Starter {
    /// Of the agent of this name, by a command whose words stand between blanks.
    pub fn new(name: &str, command: String) -> Self {
        Self {
            name: name.to_owned(),
            command,
        }
    }

    /// Sends a message to the agent; its process.
    ///
    /// # Errors
    /// The command fails, or no agent is there until `deadline`.
    pub fn reach(&self, message: &[u8], deadline: Instant) -> Result<u32> {
        let lock = format!("{}-start", self.name);
        loop {
            if let Some(process) = self.send(message, deadline)? {
                return Ok(process);
            }
            // One rank starts it; who has this name does.
            match DescriptorListener::listen(&lock, 1) {
                Ok(_lock) => match self.send(message, deadline)? {
                    // Another rank was faster.
                    Some(process) => return Ok(process),
                    None => {
                        let started = self.start(deadline);
                        // Where that has failed, somebody else's may have been faster.
                        if let Ok(Some(process)) = self.send(message, deadline) {
                            return Ok(process);
                        }
                        started?;
                    }
                },
                Err(error) if !error.is_taken() => return Err(error),
                Err(_) => sleep(PAUSE),
            }
            if Instant::now() >= deadline {
                return Err(
                    self.failed(&match DescriptorListener::stranger_with(&lock) {
                        Some(user) => {
                            format!("is started by nobody: user {user} has the name @{lock}")
                        }
                        None => "has started none in time".to_owned(),
                    }),
                );
            }
        }
    }

    /// None where nobody listens.
    fn send(&self, message: &[u8], deadline: Instant) -> Result<Option<u32>> {
        let sent = DescriptorListener::send_to_listener(&self.name, message, &[], deadline);
        match sent {
            Ok(process) => Ok(Some(process)),
            Err(error) if error.is_refused_connection() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns once the agent is ready.
    fn start(&self, deadline: Instant) -> Result<()> {
        let mut words = self.command.split_whitespace();
        let program = words.next();
        let program = program.ok_or_else(|| Error::config(ENV_START, "no command, only blanks"))?;
        let mut agent = Command::new(program);
        agent.args(words).env(ENV_AGENT, &self.name);
        // It is no task of this rank's launcher, and the next agent of other jobs too.
        agent.env("TRIHOP_LAUNCHER", "single").env(ENV_STARTED, "1");
        for name in [ENV_JOB, ENV_NODES, ENV_PLACE, ENV_BOUND] {
            agent.env_remove(name);
        }
        agent.stdin(Stdio::null()).stdout(Stdio::piped());
        if has_reader(std::io::stderr()) {
            // A launcher, which would wait for the end of this output.
            agent.stderr(Stdio::null());
        }
        let highest = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let detach = move || detach(i32::try_from(highest).unwrap_or(i32::MAX));
        // SAFETY: between fork and exec it makes system calls alone.
        unsafe { agent.pre_exec(detach) };
        tracing::debug!(command = self.command, "no agent is there: starts one");
        let what = || format!("starting an agent by {ENV_START}={:?}", self.command);
        // It panics where it cannot run the program in a process that reaps its children elsewhere.
        let spawned = catch_unwind(AssertUnwindSafe(|| agent.spawn()));
        let spawned = spawned.unwrap_or_else(|_| Err(ErrorKind::NotFound.into()));
        let mut child = spawned.map_err(|e| Error::system(what(), e))?;
        let said = child.stdout.take();
        // This was the process between the two, which has ended; a program that reaps all of its
        // children may have done so already.
        if let Err(error) = child.wait()
            && error.raw_os_error() != Some(libc::ECHILD)
        {
            return Err(Error::system(what(), error));
        }
        match said {
            Some(said) => self.hear(said, deadline),
            None => Err(self.failed("has no output")),
        }
    }

    /// Waits for the line by which an agent says that it is ready.
    fn hear(&self, mut said: ChildStdout, deadline: Instant) -> Result<()> {
        let (ready, mut heard) = (format!("ready {}", self.name), Vec::new());
        let mut chunk = [0; 1024];
        while Instant::now() < deadline && heard.len() < MOST_SAID_BYTES {
            if wait_for_any(&[said.as_fd()], deadline)?.is_none() {
                continue;
            }
            let count = said
                .read(&mut chunk)
                .map_err(|e| Error::system("hearing an agent that was started", e))?;
            if count == 0 {
                return Err(self.failed(
                    "has ended, or closed its output, without a word that an agent is ready: run it \
                     by hand to see why",
                ));
            }
            heard.extend_from_slice(&chunk[..count]);
            if heard
                .split(|byte| *byte == b'\n')
                .any(|line| line == ready.as_bytes())
            {
                return Ok(());
            }
        }
        Err(self.failed(&format!("has not said `{ready}` in time")))
    }

    fn failed(&self, why: &str) -> Error {
        failed(format!("{ENV_START}={:?} {why}", self.command))
    }
}

/// Whether somebody reads this output as it is written.
fn has_reader(output: impl AsFd) -> bool {
    let kind = fstat(output).map(|about| FileType::from_raw_mode(about.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// In the process that becomes the agent: it is nobody's child, of no terminal, and has no
/// descriptors of this one but the standard ones, since a launcher waits for their end.
fn detach(highest: i32) -> std::io::Result<()> {
    let checked = |result: i32| match result {
        -1 => Err(std::io::Error::last_os_error()),
        result => Ok(result),
    };
    // SAFETY: system calls on integers, and on a set on the stack, in which all bits may be set. The
    // flag leaves what is open to `exec`, which closes it.
    unsafe {
        checked(libc::setsid())?;
        // An agent serves all ranks of its node: it is not bound as the one that starts it. Where
        // that is refused, it works all the same.
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        std::ptr::from_mut(&mut all).write_bytes(0xff, 1);
        libc::sched_setaffinity(0, size_of_val(&all), &raw const all);
        let flag = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
        if libc::syscall(libc::SYS_close_range, 3, libc::c_int::MAX, flag) == -1 {
            // A kernel before 5.11.
            for descriptor in 3..highest {
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        match checked(libc::fork())? {
            0 => Ok(()),
            _ => libc::_exit(0),
        }
    }
}
