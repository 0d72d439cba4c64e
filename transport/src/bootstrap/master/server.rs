//! Rank 0's side: the thread that takes connections, lets only those in that know the secret, and
//! serves the store to them.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use rustix::process::{Resource, getrlimit};

use super::ENV_SECRET_FILE;
use super::handshake::{self, ANSWER_BYTES, Challenge, Claim, Refusal};
use crate::bootstrap::local::ENV_SIZE;
use crate::bootstrap::local::connection::Connection;
use crate::bootstrap::local::service::{Effect, Service};
use crate::bootstrap::local::wire::{Reply, Request};
use crate::error::{Error, Result};
use crate::masked::{self, MaskedThread};
use crate::random::random_bytes;
use crate::secret::Secret;

/// Connections that have not shown yet that they are of this job. More wait in the kernel.
const STRANGERS_MAX: usize = 64;

/// How long one of them may take; a rank that is slower tries again.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

/// How long nobody is accepted after the kernel had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Descriptors of the process besides those of ranks and strangers.
const DESCRIPTORS_OF_OURS: u64 = 64;

/// The thread; it ends once rank 0 hangs up, or this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    /// Another descriptor of rank 0's own connection.
    ours: OwnedFd,
    thread: Option<MaskedThread<()>>,
}

impl Server {
    /// Starts it, and returns rank 0's own connection to it.
    ///
    /// # Errors
    /// When the process may not have a descriptor for each rank, or there is no thread to be had.
    pub fn start(listener: TcpListener, secret: Secret, size: u32) -> Result<(Self, OwnedFd)> {
        let needed = u64::from(size) + STRANGERS_MAX as u64 + DESCRIPTORS_OF_OURS;
        if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|l| *l < needed) {
            let why = format!(
                "rank 0 needs {needed} descriptors for {size} ranks, its limit is {limit}; raise \
                 `ulimit -n`"
            );
            return Err(Error::config(ENV_SIZE, why));
        }
        let failed = |e: io::Error| Error::system("preparing the server of rank 0", e);
        listener.set_nonblocking(true).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|e| failed(e.into()))?;
        let client = ours.try_clone().map_err(failed)?;
        let mut serving = Serving::new(listener, secret, size, theirs);
        let thread = Some(masked::spawn("trihop-master", move || serving.run())?);
        Ok((Self { ours, thread }, client))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A close would not do: a forked child may have the connection open, too.
        let _ = shutdown(&self.ours, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // What it panicked with, it has said.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Serving {
    /// None once the first rank has taken leave: whoever comes now means the next job.
    listener: Option<TcpListener>,
    accepts_again: Option<Instant>,
    secret: Secret,
    service: Service,
    /// By rank; none before it has come and after it has hung up.
    ranks: Vec<Option<Connection>>,
    /// Whether a rank has come, and whether it has taken leave.
    has_come: Vec<bool>,
    has_left: Vec<bool>,
    /// Refused although they know the secret, until they have heard why.
    refused: Vec<Connection>,
    strangers: Vec<Stranger>,
}

/// A connection that has not shown yet that it is of this job.
struct Stranger {
    socket: OwnedFd,
    challenge: Challenge,
    heard: Vec<u8>,
    deadline: Instant,
}

/// What one entry of the poll stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Listener,
    Rank(usize),
    Refused(usize),
    Stranger(usize),
}

impl Serving {
    fn new(listener: TcpListener, secret: Secret, size: u32, rank_0: OwnedFd) -> Self {
        let size = size as usize;
        let mut ranks: Vec<Option<Connection>> = (0..size).map(|_| None).collect();
        let mut has_come = vec![false; size];
        ranks[0] = Some(Connection::new(rank_0));
        has_come[0] = true;
        Self {
            listener: Some(listener),
            accepts_again: None,
            secret,
            service: Service::new(size),
            ranks,
            has_come,
            has_left: vec![false; size],
            refused: Vec::new(),
            strangers: Vec::new(),
        }
    }

    fn run(&mut self) {
        while self.ranks[0].is_some() {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the server of rank 0 cannot wait any more");
                    return;
                }
            };
            let mut effects = Vec::new();
            self.take_requests(&ready, &mut effects);
            self.hear_strangers(&ready, &mut effects);
            if ready.contains(&Source::Listener) {
                self.accept();
            }
            self.apply(effects);
            self.flush();
            self.let_rank_0_go();
        }
    }

    /// Polls everything that can make progress; returns what is ready.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut entries: Vec<(Source, BorrowedFd<'_>, PollFlags)> = Vec::new();
        let now = Instant::now();
        let has_room = self.strangers.len() < STRANGERS_MAX;
        let accepts = has_room && self.accepts_again.is_none_or(|at| at <= now);
        if let Some(listener) = self.listener.as_ref().filter(|_| accepts) {
            entries.push((Source::Listener, listener.as_fd(), PollFlags::IN));
        }
        for (at, stranger) in self.strangers.iter().enumerate() {
            entries.push((Source::Stranger(at), stranger.socket.as_fd(), PollFlags::IN));
        }
        for (at, connection) in self.refused.iter().enumerate() {
            entries.push((Source::Refused(at), connection.as_fd(), PollFlags::OUT));
        }
        for (rank, connection) in self.ranks.iter().enumerate() {
            let Some(connection) = connection else {
                continue;
            };
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, connection.wants_requests());
            flags.set(PollFlags::OUT, connection.has_unsent());
            entries.push((Source::Rank(rank), connection.as_fd(), flags));
        }
        let again = self.accepts_again.filter(|_| has_room);
        let next = self.strangers.iter().map(|s| s.deadline).chain(again).min();
        // A wait is rounded down: one millisecond more, so that a deadline has passed after it.
        let timeout = next
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

    fn take_requests(&mut self, ready: &[Source], effects: &mut Vec<Effect>) {
        for source in ready {
            let Source::Rank(rank) = *source else {
                continue;
            };
            let Some(connection) = &mut self.ranks[rank] else {
                continue;
            };
            let mut requests = Vec::new();
            let open = match connection.wants_requests() {
                true => connection.receive(&mut requests),
                false => Ok(true),
            };
            for request in requests {
                self.take(rank as u32, request, effects);
            }
            if !open.unwrap_or_else(|bad| {
                let why =
                    format!("rank {rank} sent rank 0's server bytes that are not valid: {bad}");
                tracing::error!("{why}");
                self.service.fail(why, effects);
                false
            }) {
                self.hang_up(rank, effects);
            }
        }
    }

    fn take(&mut self, rank: u32, request: Request, effects: &mut Vec<Effect>) {
        if request == Request::Finalize {
            self.listener = None;
            self.strangers.clear();
            self.has_left[rank as usize] = true;
            if rank == 0 {
                // Answered when all others have left: its process may end then.
                return;
            }
        }
        self.service.take(rank, request, effects);
    }

    fn hang_up(&mut self, rank: usize, effects: &mut Vec<Effect>) {
        if self.ranks[rank].take().is_some() {
            self.service.end(rank as u32, effects);
        }
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        let mut effects = effects;
        while let Some(effect) = (!effects.is_empty()).then(|| effects.remove(0)) {
            match effect {
                Effect::Reply { rank, reply } => {
                    if let Some(connection) = &mut self.ranks[rank as usize] {
                        connection.reply(&reply);
                    }
                }
                Effect::Abort { rank, status, why } => {
                    let why = format!("rank {rank} aborted the job with status {status}: {why}");
                    self.service.fail(why, &mut effects);
                }
            }
        }
    }

    /// Rank 0 has taken leave, and so have all others that came, and they have heard so.
    fn let_rank_0_go(&mut self) {
        let is_gone = |rank: usize| {
            let connection = self.ranks[rank].as_ref();
            connection.is_none_or(|c| self.has_left[rank] && !c.has_unsent())
        };
        if self.has_left[0] && (1..self.ranks.len()).all(is_gone) {
            self.has_left[0] = false;
            if let Some(connection) = &mut self.ranks[0] {
                connection.reply(&Reply::Done);
            }
        }
    }

    fn flush(&mut self) {
        let mut effects = Vec::new();
        for rank in 0..self.ranks.len() {
            if self.ranks[rank].as_mut().is_some_and(|c| !c.flush()) {
                self.hang_up(rank, &mut effects);
            }
        }
        self.refused.retain_mut(|c| c.flush() && c.has_unsent());
        self.apply(effects);
    }

    fn accept(&mut self) {
        self.accepts_again = None;
        while let Some(listener) = self
            .listener
            .as_ref()
            .filter(|_| self.strangers.len() < STRANGERS_MAX)
        {
            match listener.accept() {
                Ok((stream, _)) => {
                    // A connection that cannot be prepared is dropped, and its rank tries again.
                    let ready = stream
                        .set_nonblocking(true)
                        .and_then(|()| stream.set_nodelay(true));
                    if let (Ok(()), Ok(challenge)) = (ready, random_bytes()) {
                        self.strangers
                            .extend(Stranger::greet(stream.into(), challenge));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "the server of rank 0 cannot accept a connection");
                    self.accepts_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Takes what strangers have sent: some are ranks afterwards, some are sent away.
    fn hear_strangers(&mut self, ready: &[Source], effects: &mut Vec<Effect>) {
        let now = Instant::now();
        let strangers = std::mem::take(&mut self.strangers);
        for (at, mut stranger) in strangers.into_iter().enumerate() {
            if ready.contains(&Source::Stranger(at)) && !stranger.hear() {
                continue;
            }
            match <[u8; ANSWER_BYTES]>::try_from(&*stranger.heard) {
                Ok(answer) => self.judge(stranger, &answer, effects),
                Err(_) if now < stranger.deadline => self.strangers.push(stranger),
                Err(_) => tracing::debug!("a connection to rank 0 did not say who it is"),
            }
        }
    }

    fn judge(
        &mut self,
        stranger: Stranger,
        answer: &[u8; ANSWER_BYTES],
        effects: &mut Vec<Effect>,
    ) {
        let (verdict, claim) = handshake::judge(answer, &self.secret, &stranger.challenge);
        let sent = say(&stranger.socket, &verdict);
        match claim {
            Ok(claim) if sent => self.admit(stranger.socket, claim, effects),
            // Its rank tries again.
            Ok(_) => {}
            Err(Refusal::NotOurs) => tracing::debug!("a stranger has connected to rank 0"),
            Err(Refusal::Secret) => tracing::warn!(
                "a rank with another secret has connected to rank 0; {ENV_SECRET_FILE} has to name \
                 the same bytes for all"
            ),
            Err(Refusal::Version(version)) => tracing::warn!(
                ?version,
                "a rank with another version of the launcher protocol has connected to rank 0"
            ),
        }
    }

    /// Somebody who knows the secret: a rank that was missing, or one that ends the job.
    fn admit(&mut self, socket: OwnedFd, claim: Claim, effects: &mut Vec<Effect>) {
        let (rank, size) = (claim.rank.0 as usize, self.ranks.len());
        let mut connection = Connection::new(socket);
        let why = if claim.size as usize != size || rank >= size {
            let theirs = claim.size;
            format!("rank {rank} has {ENV_SIZE}={theirs}, rank 0 has {size}; give all the same")
        } else if self.has_come[rank] {
            format!(
                "two processes are rank {rank}; give each a number of its own, and start none \
                 again while the others run"
            )
        } else {
            self.has_come[rank] = true;
            self.ranks[rank] = Some(connection);
            return;
        };
        tracing::error!("{why}");
        connection.reply(&Reply::Failed(why.clone()));
        self.refused.push(connection);
        self.service.fail(why, effects);
    }
}

impl Stranger {
    /// None where it has hung up already.
    fn greet(socket: OwnedFd, challenge: Challenge) -> Option<Self> {
        say(&socket, &handshake::hello(&challenge)).then(|| Self {
            socket,
            challenge,
            heard: Vec::with_capacity(ANSWER_BYTES),
            deadline: Instant::now() + STRANGER_PATIENCE,
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

/// Sends a few bytes, for which an idle connection has room; false where it has none.
fn say(socket: &OwnedFd, bytes: &[u8]) -> bool {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(socket, bytes, flags).is_ok_and(|sent| sent == bytes.len())
}
