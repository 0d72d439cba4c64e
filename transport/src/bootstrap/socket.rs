//! A stream socket to a launcher, inherited or connected, with a deadline on every wait.

use std::env;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::{Error, Result};

/// The most that is received at once.
const CHUNK_BYTES: usize = 4096;

/// Why a wait on the launcher ended without what was waited for.
#[derive(Debug)]
pub(super) enum Broken {
    /// The deadline passed.
    Late,
    /// The launcher closed the connection.
    Closed,
    /// The operating system refused.
    System(io::Error),
}

impl Broken {
    /// As the error of a bootstrap call; `doing` completes "while ...".
    pub(super) fn into_error(self, launcher: &'static str, doing: &str) -> Error {
        match self {
            Self::Late => Error::Bootstrap {
                launcher,
                why: format!("the launcher did not answer before the deadline while {doing}"),
            },
            Self::Closed => Error::Bootstrap {
                launcher,
                why: format!(
                    "the launcher closed the connection while {doing}; it or the job has ended"
                ),
            },
            Self::System(source) => {
                Error::system(format!("bootstrap ({launcher}) while {doing}"), source)
            }
        }
    }
}

/// The socket; where it was inherited, a duplicate, so that the descriptor stays open for other
/// users of it.
#[derive(Debug)]
pub(super) struct LauncherSocket {
    descriptor: OwnedFd,
    wait: Duration,
}

impl LauncherSocket {
    /// The socket whose descriptor number is the value of an environment variable.
    pub(super) fn inherited(variable: &str, wait: Duration) -> Result<Self> {
        let text =
            env::var(variable).map_err(|_| Error::config(variable, "not set, or not text"))?;
        let number: RawFd =
            text.parse().ok().filter(|n| *n >= 0).ok_or_else(|| {
                Error::config(variable, format!("{text:?} is no descriptor number"))
            })?;
        // SAFETY: the borrow ends with this statement, and the kernel answers EBADF where nothing
        // is open there.
        let duplicate = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
        let descriptor = duplicate.map_err(|e| {
            Error::system(
                format!("{variable}={number} names no open descriptor; was it closed before start"),
                e,
            )
        })?;
        rustix::net::sockopt::socket_type(&descriptor).map_err(|e| {
            Error::system(format!("{variable}={number} is no socket of a launcher"), e)
        })?;
        Ok(Self { descriptor, wait })
    }

    /// A socket that is connected to the port whose address, `HOST:PORT`, is the value of an
    /// environment variable.
    pub(super) fn connected(variable: &str, wait: Duration) -> Result<Self> {
        let text =
            env::var(variable).map_err(|_| Error::config(variable, "not set, or not text"))?;
        let failed =
            |doing: &str, e: io::Error| Error::system(format!("{variable}={text:?}: {doing}"), e);
        let addresses: Vec<_> = text
            .to_socket_addrs()
            .map_err(|e| {
                failed(
                    "this is not HOST:PORT of a launcher, or the host is not known",
                    e,
                )
            })?
            .collect();
        let deadline = Instant::now() + wait;
        let mut refusal = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    // Each request waits for its answer, so nothing may wait for more to send.
                    stream
                        .set_nodelay(true)
                        .map_err(|e| failed("setting TCP_NODELAY", e))?;
                    return Ok(Self {
                        descriptor: stream.into(),
                        wait,
                    });
                }
                Err(e) => refusal = e,
            }
        }
        Err(failed(
            "the launcher cannot be reached; has it ended",
            refusal,
        ))
    }

    /// A socket that is ours.
    pub(super) fn of(descriptor: OwnedFd, wait: Duration) -> Self {
        Self { descriptor, wait }
    }

    /// Bounds every wait from now on.
    pub(super) fn wait_at_most(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// End of a wait that starts now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.wait
    }

    /// The bound of every wait.
    pub(super) fn wait(&self) -> Duration {
        self.wait
    }

    /// Sends all of `bytes`.
    pub(super) fn send_all(&self, mut bytes: &[u8], deadline: Instant) -> Result<(), Broken> {
        while !bytes.is_empty() {
            match send(
                &self.descriptor,
                bytes,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.ready(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Broken::Closed),
                Err(e) => return Err(Broken::System(e.into())),
            }
        }
        Ok(())
    }

    /// Appends what has arrived to `bytes`, at least one byte.
    pub(super) fn receive(&self, bytes: &mut Vec<u8>, deadline: Instant) -> Result<(), Broken> {
        self.receive_at_most(CHUNK_BYTES, bytes, deadline)
    }

    /// As [`LauncherSocket::receive`], but leaves what is behind `most` bytes in the socket.
    pub(super) fn receive_at_most(
        &self,
        most: usize,
        bytes: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<(), Broken> {
        let mut chunk = [0_u8; CHUNK_BYTES];
        let room = most.min(CHUNK_BYTES);
        loop {
            match recv(&self.descriptor, &mut chunk[..room], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(Broken::Closed),
                Ok((count, _)) => {
                    bytes.extend_from_slice(&chunk[..count.min(room)]);
                    return Ok(());
                }
                Err(Errno::AGAIN) => self.ready(PollFlags::IN, deadline)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Broken::System(e.into())),
            }
        }
    }

    fn ready(&self, what: PollFlags, deadline: Instant) -> Result<(), Broken> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Broken::Late);
            }
            let timeout = Timespec::try_from(left).ok();
            match poll(
                &mut [PollFd::from_borrowed_fd(self.descriptor.as_fd(), what)],
                timeout.as_ref(),
            ) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(Broken::System(e.into())),
            }
        }
    }
}

impl AsFd for LauncherSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
