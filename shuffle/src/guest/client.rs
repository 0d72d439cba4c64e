//! The guest's side of a socket whose other end the server has.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};
use trihop_transport::Error as TransportError;
use trihop_transport::memory::descriptors::{DescriptorListener, wait_for_any};
use trihop_transport::park::Step;

use super::port::OTHER;
use super::socket::{Socket, pair, receive_some, receive_with, send_some, waits};
use super::wire::{ASKS, Answer, Call, DONE, HEAD_BYTES, Hello, OVER, READY, UNDER_WAY};
use crate::error::{Error, Result};
use crate::queue::long_buffers;
use crate::seat::{Looking, Yields, timed_yield};

/// Longer than anybody waits.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why nothing more comes.
pub enum Ended {
    /// The other end was closed.
    Closed,
    /// It takes longer than it may.
    Late,
    Failed(Errno),
    /// What has come cannot be.
    Invalid,
    /// What this server says of what was asked for.
    Refused(Error),
}

/// Nothing has come that was to come with an answer.
fn none_left() -> Error {
    let what = "taking a descriptor from a server of guests (`ulimit -n`)";
    TransportError::system(what, Errno::MFILE).into()
}

/// Two ends: this process's, and the server's.
pub fn connected() -> Result<(OwnedFd, OwnedFd)> {
    pair().map_err(|error| {
        let what = "connecting a guest of a channel's server";
        TransportError::system(what, error).into()
    })
}

/// A socket whose other end the server has.
#[derive(Debug)]
pub struct Connection {
    server: Arc<str>,
    /// A fork shares it, and would take the other's answers.
    socket: Socket,
    /// How it waits for answers.
    looking: Looking,
    yields: Yields,
    /// What has been the end of it.
    failed: Option<Error>,
}

impl Connection {
    /// Where it is said how long, it waits for somebody to serve.
    pub fn open(name: &str, hello: &Hello, wait: Option<Duration>) -> Result<Self> {
        let (socket, other) = connected()?;
        let (hello, others) = (hello.encode(), [other.as_fd()]);
        let after = |wait: Duration| Instant::now() + wait.min(LONG);
        let handed = match wait {
            Some(wait) => DescriptorListener::send_until(name, &hello, &others, after(wait)),
            None => DescriptorListener::send_to_listener(name, &hello, &others, after(LONG)),
        };
        handed.map_err(|error| {
            use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
            match &error {
                TransportError::System { source, .. }
                    if [BrokenPipe, ConnectionRefused, ConnectionReset]
                        .contains(&source.kind()) =>
                {
                    let why = "nobody serves guests under this name on this node";
                    Error::server_failed(name, why)
                }
                _ => error.into(),
            }
        })?;
        Ok(Self::over(name.into(), socket))
    }

    fn over(server: Arc<str>, socket: OwnedFd) -> Self {
        let (looking, yields) = waits();
        Self {
            server,
            socket: Socket::new(socket),
            looking,
            yields,
            failed: None,
        }
    }

    /// The name of the server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Readable where something has come, or the server has closed its end.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Starts a call: a connection of its own, on which its end is said, or `None` where there is
    /// none to come.
    pub fn start(&mut self, call: &Call, bytes: &[u8], what: &'static str) -> Result<Option<Self>> {
        self.send(&call.encode(true), bytes)?;
        let (answer, given) = self.answer_with(what)?;
        match (answer.value, given) {
            (OVER, None) => Ok(None),
            (UNDER_WAY, Some(socket)) => Ok(Some(Self::over(Arc::clone(&self.server), socket))),
            (UNDER_WAY, None) => Err(none_left()),
            _ => Err(self.bad()),
        }
    }

    /// The descriptor by which a port is slept on.
    pub fn event(&mut self, what: &'static str) -> Result<OwnedFd> {
        self.send(&Call::Event.encode(false), &[])?;
        let (_, given) = self.answer_with(what)?;
        given.ok_or_else(none_left)
    }

    /// Whether the call that this connection is of has ended, which it waits for, or does not. How
    /// it has is then [to be asked](Self::ask).
    pub fn has_ended(&mut self, waits: bool) -> Result<bool> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        if !waits && let Err(Errno::AGAIN) = recv(&self.socket, &mut [0], flags) {
            return Ok(false);
        }
        let answer = self.answer(None).map_err(|ended| self.refused(ended))?;
        match (answer.status, answer.bytes) {
            (READY, 0) => Ok(true),
            _ => Err(self.bad()),
        }
    }

    /// How the call has ended that this connection is of.
    pub fn ask(&mut self) -> Result<Answer> {
        self.send(&[ASKS], &[])?;
        self.answer(None).map_err(|ended| self.refused(ended))
    }

    /// What the server answers to the hello.
    pub fn welcomed(&mut self, deadline: Option<Instant>) -> std::result::Result<Vec<u8>, Ended> {
        let answer = self.answer(deadline)?;
        if answer.status != DONE {
            return Err(Ended::Refused(self.error(&answer, OTHER)));
        }
        match answer.bytes {
            0..=Answer::TEXT_BYTES_MAX => self.read(answer.bytes as usize),
            _ => Err(Ended::Invalid),
        }
    }

    /// The head of the next answer.
    pub fn answer(&mut self, deadline: Option<Instant>) -> std::result::Result<Answer, Ended> {
        if let Some(deadline) = deadline {
            while !matches!(wait_for_any(&[self.socket.as_fd()], deadline), Ok(Some(_))) {
                // It may have been a signal.
                if Instant::now() >= deadline {
                    return Err(Ended::Late);
                }
            }
        }
        self.stay_awake();
        let mut head = [0; HEAD_BYTES];
        self.read_into(&mut head)?;
        Ok(Answer::read(&head))
    }

    /// The head of the next answer, which is no error, and the descriptor that comes with it.
    fn answer_with(&mut self, what: &'static str) -> Result<(Answer, Option<OwnedFd>)> {
        let (answer, given) = self.receive_with().map_err(|ended| self.refused(ended))?;
        match (answer.status, answer.bytes) {
            (DONE, 0) => Ok((answer, given)),
            (DONE, _) => Err(self.bad()),
            _ => Err(self.error(&answer, what)),
        }
    }

    fn receive_with(&mut self) -> std::result::Result<(Answer, Option<OwnedFd>), Ended> {
        self.stay_awake();
        let mut head = [0; HEAD_BYTES];
        let (read, given) = match receive_with(&self.socket, &mut head) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Err(Ended::Closed),
            Ok(received) => received,
            Err(error) => return Err(Ended::Failed(error)),
        };
        self.read_into(&mut head[read..])?;
        Ok((Answer::read(&head), given))
    }

    /// Waits without sleeping, as long as that is worth it: answers mostly come soon, and to be
    /// woken takes longer.
    fn stay_awake(&mut self) {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        while let Err(Errno::AGAIN) = recv(&self.socket, &mut byte, flags) {
            match self.looking.next(&self.yields, || false) {
                Step::Spin => {}
                Step::Yield => self.yields.note(timed_yield()),
                Step::Park => return self.looking.begin(),
            }
        }
        self.looking.reset();
    }

    /// What an answer says that is an error, with its text.
    pub fn error(&mut self, answer: &Answer, what: &'static str) -> Error {
        if answer.bytes > Answer::TEXT_BYTES_MAX {
            return self.bad();
        }
        match self.read(answer.bytes as usize) {
            Ok(text) => answer.error(&text, what, &self.server),
            Err(ended) => self.refused(ended),
        }
    }

    /// That calls may be made.
    pub fn check(&self) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if !self.socket.is_own() {
            let why = "this port is of the process that has forked this one; attach once more here";
            return Err(Error::misuse("channels", why));
        }
        Ok(())
    }

    pub fn send(&mut self, head: &[u8], body: &[u8]) -> Result<()> {
        self.check()?;
        let mut sent = 0;
        while sent < head.len() + body.len() {
            match send_some(&self.socket, (head, body), None, sent, SendFlags::empty()) {
                Ok(more) => sent += more,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(self.refused(Ended::Closed)),
                Err(error) => return Err(self.refused(Ended::Failed(error))),
            }
        }
        Ok(())
    }

    /// The bytes of a message.
    pub fn body(&mut self, bytes: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let Ok(mut body) = long_buffers::take(length) else {
            // It is on its way, and there is nowhere to put it.
            self.failed = Some(Error::server_failed(&self.server, "a message was given up"));
            return Err(Error::NoMemory { bytes: length });
        };
        body.clear();
        let read = self.read_behind(&mut body, length);
        read.map_err(|ended| self.refused(ended))?;
        Ok(body)
    }

    pub fn fill(&mut self, place: &mut [u8]) -> Result<()> {
        self.read_into(place).map_err(|ended| self.refused(ended))
    }

    fn read(&mut self, bytes: usize) -> std::result::Result<Vec<u8>, Ended> {
        let mut all = Vec::with_capacity(bytes);
        self.read_behind(&mut all, bytes)?;
        Ok(all)
    }

    /// Reads so many bytes, for which there is room, and behind which nothing comes that was not
    /// asked for.
    fn read_behind(&self, all: &mut Vec<u8>, bytes: usize) -> std::result::Result<(), Ended> {
        while all.len() < bytes {
            match receive_some(&self.socket, all, RecvFlags::empty()) {
                Ok(0) | Err(Errno::CONNRESET) => return Err(Ended::Closed),
                Ok(_) => {}
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        match all.len() == bytes {
            true => Ok(()),
            false => Err(Ended::Invalid),
        }
    }

    fn read_into(&self, mut place: &mut [u8]) -> std::result::Result<(), Ended> {
        while !place.is_empty() {
            match rustix::io::read(&self.socket, &mut *place) {
                Ok(0) | Err(Errno::CONNRESET) => return Err(Ended::Closed),
                Ok(read) => place = &mut place[read..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        Ok(())
    }

    /// The error of every call from now on.
    pub fn refused(&mut self, ended: Ended) -> Error {
        let why = match ended {
            Ended::Refused(error) => return error,
            Ended::Closed => {
                "it has closed the connection: it has ended, has no descriptors or memory left \
                 (see its log), or is no server of guests"
                    .to_owned()
            }
            Ended::Late => "it does not answer in time".to_owned(),
            Ended::Failed(error) => format!("the connection has failed: {error}"),
            Ended::Invalid => "it says what is not valid".to_owned(),
        };
        let error = Error::server_failed(&self.server, why);
        self.failed = Some(error.clone());
        error
    }

    pub fn bad(&mut self) -> Error {
        self.refused(Ended::Invalid)
    }
}
