//! Where those come in who know a secret: takes connections, and sends strangers away.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::handshake::{self, ANSWER_BYTES, Challenge, Claim, Refusal};
use crate::random::random_bytes;
use crate::secret::Secret;
use crate::watch::keep_alive;

/// Connections that have not shown yet that they know the secret. More wait in the kernel, until
/// the oldest makes room.
pub(in crate::bootstrap) const STRANGERS_MAX: usize = 64;

/// How long one of them may take; who is slower tries again.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

/// How long each may take at least, where others wait.
const STRANGER_SHARE: Duration = Duration::from_millis(250);

/// How long the kernel of the other end may leave ours without an answer: then its host is gone. It
/// is asked every 30 s, so that nothing between the two takes the connection for a forgotten one.
const LOST_AFTER: Duration = Duration::from_secs(600);

/// How long nobody is accepted after the kernel had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener, and who has come there without having shown yet that they know the secret.
pub(in crate::bootstrap) struct Gate {
    /// None once nobody is let in any more.
    listener: Option<TcpListener>,
    accepts_again: Option<Instant>,
    secret: Secret,
    strangers: Vec<Stranger>,
    /// For the log: what somebody has connected to, and what may be wrong with another secret.
    name: &'static str,
    advice: String,
}

/// A connection that has not shown yet that it knows the secret.
struct Stranger {
    socket: OwnedFd,
    challenge: Challenge,
    heard: Vec<u8>,
    since: Instant,
}

/// A descriptor of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bootstrap) enum At {
    Listener,
    Stranger(usize),
}

impl Gate {
    /// # Errors
    /// The listener cannot be prepared.
    pub fn new(
        listener: TcpListener,
        secret: Secret,
        name: &'static str,
        advice: String,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: Some(listener),
            accepts_again: None,
            secret,
            strangers: Vec::new(),
            name,
            advice,
        })
    }

    /// Lets nobody in any more.
    pub fn close(&mut self) {
        self.listener = None;
        self.strangers.clear();
    }

    /// What becomes readable when there is something to [hear](Gate::hear).
    pub fn sources(&self, now: Instant) -> impl Iterator<Item = (At, BorrowedFd<'_>)> {
        let accepts = self.accepts_again.is_none_or(|at| at <= now);
        let listener = self
            .listener
            .as_ref()
            .filter(|_| accepts && self.has_room(now));
        let strangers = self.strangers.iter().enumerate();
        let listener = listener.map(|listener| (At::Listener, listener.as_fd()));
        let strangers = strangers.map(|(at, s)| (At::Stranger(at), s.socket.as_fd()));
        listener.into_iter().chain(strangers)
    }

    /// When it wants to be called although nothing is readable.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let has_room = self.has_room(now);
        let again = self.accepts_again.filter(|_| has_room);
        let oldest = self.strangers.first().map(|oldest| oldest.since);
        let leaves = oldest.map(|since| match has_room {
            true => since + STRANGER_PATIENCE,
            false => since + STRANGER_SHARE,
        });
        leaves.into_iter().chain(again).min()
    }

    /// The first is the oldest.
    fn has_room(&self, now: Instant) -> bool {
        let makes_room = |oldest: &Stranger| oldest.since + STRANGER_SHARE <= now;
        self.strangers.len() < STRANGERS_MAX || self.strangers.first().is_some_and(makes_room)
    }

    /// Takes what strangers have sent, and new ones; those who have shown that they know the
    /// secret, and who they say to be.
    pub fn hear(&mut self, ready: &[At]) -> Vec<(OwnedFd, Claim)> {
        let now = Instant::now();
        let mut known = Vec::new();
        let strangers = std::mem::take(&mut self.strangers);
        let is_full = strangers.len() >= STRANGERS_MAX;
        for (at, mut stranger) in strangers.into_iter().enumerate() {
            // All of them where they are many: one may make room for another.
            let is_heard = is_full || ready.contains(&At::Stranger(at));
            if is_heard && !stranger.hear() {
                continue;
            }
            match <[u8; ANSWER_BYTES]>::try_from(&*stranger.heard) {
                Ok(answer) => known.extend(self.judge(stranger, &answer)),
                Err(_) if now < stranger.since + STRANGER_PATIENCE => self.strangers.push(stranger),
                Err(_) => tracing::debug!("a connection to {} did not say who it is", self.name),
            }
        }
        if ready.contains(&At::Listener) {
            self.accept();
        }
        known
    }

    fn accept(&mut self) {
        self.accepts_again = None;
        let now = Instant::now();
        for _ in 0..STRANGERS_MAX {
            let Some(listener) = self.listener.as_ref().filter(|_| self.has_room(now)) else {
                return;
            };
            match listener.accept() {
                Ok((stream, _)) => {
                    if self.strangers.len() >= STRANGERS_MAX {
                        tracing::debug!("a silent connection to {} made room", self.name);
                        self.strangers.remove(0);
                    }
                    // A connection that cannot be prepared is dropped, and who has made it tries
                    // again.
                    let ready = stream.set_nonblocking(true).and_then(|()| prepare(&stream));
                    if let (Ok(()), Ok(challenge)) = (ready, random_bytes()) {
                        self.strangers
                            .extend(Stranger::greet(stream.into(), challenge));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "{} cannot accept a connection", self.name);
                    self.accepts_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn judge(&self, stranger: Stranger, answer: &[u8; ANSWER_BYTES]) -> Option<(OwnedFd, Claim)> {
        let (verdict, claim) = handshake::judge(answer, &self.secret, &stranger.challenge);
        let sent = say(&stranger.socket, &verdict);
        let Self { name, advice, .. } = self;
        match claim {
            Ok(claim) if sent => return Some((stranger.socket, claim)),
            // It tries again.
            Ok(_) => {}
            Err(Refusal::NotOurs) => tracing::debug!("a stranger has connected to {name}"),
            Err(Refusal::Secret) => {
                tracing::warn!("somebody with another secret has connected to {name}; {advice}");
            }
            Err(Refusal::Version(version)) => tracing::warn!(
                ?version,
                "somebody with another version of the launcher protocol has connected to {name}"
            ),
        }
        None
    }
}

impl Stranger {
    /// None where it has hung up already.
    fn greet(socket: OwnedFd, challenge: Challenge) -> Option<Self> {
        say(&socket, &handshake::hello(&challenge)).then(|| Self {
            socket,
            challenge,
            heard: Vec::with_capacity(ANSWER_BYTES),
            since: Instant::now(),
        })
    }

    /// Takes what has come, at most an answer's length; false once the other side has hung up.
    fn hear(&mut self) -> bool {
        let mut chunk = [0; ANSWER_BYTES];
        let room = ANSWER_BYTES - self.heard.len();
        match recv(&self.socket, &mut chunk[..room], RecvFlags::DONTWAIT) {
            Ok((0, _)) => false,
            Ok((count, _)) => {
                self.heard.extend_from_slice(&chunk[..count.min(room)]);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

/// Prepares either end of a connection that is idle for as long as a job runs.
pub(in crate::bootstrap) fn prepare(stream: &TcpStream) -> io::Result<()> {
    Ok(keep_alive(stream.as_fd(), LOST_AFTER)?)
}

/// Sends a few bytes, for which an idle connection has room; false where it has none.
fn say(socket: &OwnedFd, bytes: &[u8]) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(socket, bytes, flags).is_ok_and(|sent| sent == bytes.len())
}

/// Polls everything that can make progress, at most until `deadline`; what is ready.
pub(in crate::bootstrap) fn wait<S: Copy>(
    entries: &[(S, BorrowedFd<'_>, PollFlags)],
    deadline: Option<Instant>,
) -> io::Result<Vec<S>> {
    let now = Instant::now();
    // A wait is rounded down: one millisecond more, so that a deadline has passed after it.
    let timeout = deadline
        .map(|at| at.saturating_duration_since(now) + Duration::from_millis(1))
        .and_then(|left| Timespec::try_from(left).ok());
    let mut set: Vec<PollFd<'_>> = entries
        .iter()
        .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
        .collect();
    match poll(&mut set, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    let ready = entries
        .iter()
        .zip(&set)
        .filter(|(_, entry)| !entry.revents().is_empty());
    Ok(ready.map(|((source, ..), _)| *source).collect())
}
