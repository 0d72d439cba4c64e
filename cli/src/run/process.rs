//! One rank's process: how it is started, with its connection and its output.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use trihop::agent;
use trihop::transport::bootstrap::local::ENV_BOUND;
use trihop::transport::bootstrap::local::connection::Connection;

use super::output::{Lines, Outputs, Target};
use super::signals::FORWARDED;

/// What a rank's process is started with.
pub(super) struct Start<'a> {
    pub(super) command: &'a [OsString],
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Variables that the rank must not inherit.
    pub(super) removed: &'static [&'static str],
    /// Name of the variable that tells the descriptor of the connection.
    pub(super) descriptor_variable: &'static str,
    pub(super) inherit_stdin: bool,
    pub(super) stdout: (Target, Option<String>),
    pub(super) stderr: (Target, Option<String>),
    pub(super) network: Option<BorrowedFd<'a>>,
    /// Name of a variable and the descriptor that it tells: where the rank says how far it is.
    pub(super) progress: Option<(&'static str, BorrowedFd<'a>)>,
    /// Signals that stay blocked in the rank.
    pub(super) signal_mask: libc::sigset_t,
}

/// A started rank.
pub(super) struct Process {
    child: Child,
    pub(super) id: Pid,
    pub(super) exit: OwnedFd,
    pub(super) connection: Option<Connection>,
    pub(super) streams: [Stream; 2],
    pub(super) status: Option<ExitStatus>,
}

impl Process {
    /// Starts the process, in a process group of its own, to be killed should this thread end.
    pub(super) fn start(start: &Start<'_>) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut command = Command::new(&start.command[0]);
        command.args(&start.command[1..]);
        for (name, _) in
            env::vars_os().filter(|(name, _)| is_of_other_launchers(&name.to_string_lossy()))
        {
            command.env_remove(name);
        }
        for name in start.removed {
            command.env_remove(name);
        }
        command.envs(start.environment.iter().map(|(name, value)| (name, value)));
        command.env(start.descriptor_variable, theirs.as_raw_fd().to_string());
        if let Some((variable, descriptor)) = start.progress {
            command.env(variable, descriptor.as_raw_fd().to_string());
        }
        let stdin_of_ours = start.inherit_stdin && !io::stdin().is_terminal();
        command.stdin(if stdin_of_ours {
            Stdio::inherit()
        } else {
            Stdio::null()
        });
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let progress = start.progress.map(|(_, descriptor)| descriptor.as_raw_fd());
        let kept = [Some(theirs.as_raw_fd()), progress];
        let mask = start.signal_mask;
        let network = start.network.map(|n| n.as_raw_fd());
        let launcher = rustix::process::getpid();
        // SAFETY: `prepare` makes system calls only, on integers and a copied mask; no allocation,
        // no lock.
        unsafe { command.pre_exec(move || prepare(launcher, kept, network, &mask)) };
        let mut child = command.spawn()?;
        let id = Pid::from_child(&child);
        let parts = pidfd_open(id, PidfdFlags::empty())
            .map_err(io::Error::from)
            .and_then(|exit| {
                let stdout = Stream::new(child.stdout.take().map(OwnedFd::from), &start.stdout)?;
                let stderr = Stream::new(child.stderr.take().map(OwnedFd::from), &start.stderr)?;
                Ok((exit, [stdout, stderr]))
            });
        match parts {
            Ok((exit, streams)) => Ok(Self {
                child,
                id,
                exit,
                connection: Some(Connection::new(ours)),
                streams,
                status: None,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.status.is_none()
    }

    /// Sends a signal to the rank and what it has started; its id is ours as long as it is not
    /// reaped.
    pub(super) fn signal(&self, signal: Signal) {
        if self.is_running() {
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// Ends what an ended rank has left running in its group, before [`Process::reap`] gives its id
    /// free.
    pub(super) fn sweep(&self) {
        self.signal(Signal::KILL);
    }

    /// Takes the exit status; the process has ended.
    pub(super) fn reap(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }
}

/// Variables of a launcher around us that the ranks must not take for theirs. How long agents stay
/// is said to ours.
fn is_of_other_launchers(name: &str) -> bool {
    let of_others = [
        "PMI_",
        "PMIX_",
        "TRIHOP_LAUNCHER",
        "TRIHOP_MASTER",
        ENV_BOUND,
        agent::ENV_NAME, // and its place
        crate::progress::VARIABLE,
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix));
    of_others && name != crate::agent::ENV_LINGER
}

/// In the child, before exec.
fn prepare(
    launcher: Pid,
    kept: [Option<RawFd>; 2],
    network: Option<RawFd>,
    mask: &libc::sigset_t,
) -> io::Result<()> {
    let check = |code: i32| {
        if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: each call takes integers, or a pointer to the mask, which lives in the closure.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getppid() != launcher.as_raw_nonzero().get() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        for descriptor in kept.into_iter().flatten() {
            check(libc::fcntl(descriptor, libc::F_SETFD, 0))?;
        }
        if let Some(network) = network {
            check(libc::setns(network, libc::CLONE_NEWNET))?;
        }
        // Who started the launcher with a signal ignored (nohup, some CI systems) did not mean its
        // ranks: a shell could not even trap what we forward.
        for signal in FORWARDED {
            if libc::signal(signal, libc::SIG_DFL) == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        check(libc::sigprocmask(
            libc::SIG_SETMASK,
            mask,
            std::ptr::null_mut(),
        ))
    }
}

/// One output stream of a rank.
pub(super) struct Stream {
    pipe: Option<File>,
    pub(super) target: Target,
    lines: Lines,
}

impl Stream {
    fn new(pipe: Option<OwnedFd>, (target, prefix): &(Target, Option<String>)) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        Ok(Self {
            pipe: pipe.map(File::from),
            target: *target,
            lines: Lines::new(prefix.clone()),
        })
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Forwards one piece of output. The stream closes at its end, or, once the rank has ended,
    /// when it is empty: a process that left the rank's group may hold the other end for ever.
    pub(super) fn forward(&mut self, outputs: &mut Outputs, rank_ended: bool) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0_u8; 64 << 10];
        match pipe.read(&mut chunk) {
            Ok(0) => self.close(outputs),
            Ok(count) => outputs.take(self.target, &mut self.lines, &chunk[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !rank_ended => {}
            Err(_) => self.close(outputs),
        }
    }

    fn close(&mut self, outputs: &mut Outputs) {
        self.pipe = None;
        outputs.close(self.target, &mut self.lines);
    }
}
