//! Rank 0's side: the thread that takes connections, lets only those in that know the secret, and
//! serves the store to them.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Resource, getrlimit};

use super::ENV_SECRET_FILE;
use super::gate::{self, At, Gate, STRANGERS_MAX};
use super::handshake::Claim;
use crate::bootstrap::local::connection::Connection;
use crate::bootstrap::local::service::{Effect, Service};
use crate::bootstrap::local::wire::{Reply, Request};
use crate::bootstrap::local::{ENV_RANK, ENV_SIZE};
use crate::error::{Error, Result};
use crate::masked::{self, MaskedThread};
use crate::secret::Secret;

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
        let advice = format!("{ENV_SECRET_FILE} has to name the same bytes for all");
        let gate = Gate::new(listener, secret, "rank 0", advice).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|e| failed(e.into()))?;
        let client = ours.try_clone().map_err(failed)?;
        let mut serving = Serving::new(gate, size, theirs);
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
    /// Closed once the first rank has taken leave: whoever comes now means the next job.
    gate: Gate,
    service: Service,
    /// By rank; none before it has come and after it has hung up.
    ranks: Vec<Option<Connection>>,
    /// Whether a rank has come, and whether it has taken leave.
    has_come: Vec<bool>,
    has_left: Vec<bool>,
    /// Refused although they know the secret, until they have heard why.
    refused: Vec<Connection>,
}

/// What one entry of the poll stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Gate(At),
    Rank(usize),
    Refused(usize),
}

impl Serving {
    fn new(gate: Gate, size: u32, rank_0: OwnedFd) -> Self {
        let size = size as usize;
        let mut ranks: Vec<Option<Connection>> = (0..size).map(|_| None).collect();
        let mut has_come = vec![false; size];
        ranks[0] = Some(Connection::new(rank_0));
        has_come[0] = true;
        Self {
            gate,
            service: Service::new(size),
            ranks,
            has_come,
            has_left: vec![false; size],
            refused: Vec::new(),
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
            self.let_in(&ready, &mut effects);
            self.apply(effects);
            self.flush();
            self.let_rank_0_go();
        }
    }

    /// Polls everything that can make progress; returns what is ready.
    fn wait(&self) -> io::Result<Vec<Source>> {
        let now = Instant::now();
        let gate = self.gate.sources(now);
        let mut entries: Vec<(Source, BorrowedFd<'_>, PollFlags)> = gate
            .map(|(at, descriptor)| (Source::Gate(at), descriptor, PollFlags::IN))
            .collect();
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
        gate::wait(&entries, self.gate.deadline(now))
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
            self.gate.close();
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
            // It may host several ranks.
            let who = format!("the process with {ENV_RANK}={rank}");
            self.service.end(rank as u32, &who, effects);
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

    fn let_in(&mut self, ready: &[Source], effects: &mut Vec<Effect>) {
        let gate = ready.iter().filter_map(|source| match source {
            Source::Gate(at) => Some(*at),
            _ => None,
        });
        for (socket, claim) in self.gate.hear(&gate.collect::<Vec<_>>()) {
            self.admit(socket, claim, effects);
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
