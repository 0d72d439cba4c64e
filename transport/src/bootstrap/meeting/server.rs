//! The thread of the first agent by which all agents meet.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::net::{SendFlags, Shutdown, shutdown};

use super::gathering::{Gatherings, Replies};
use crate::bootstrap::local::connection::Connection;
use crate::bootstrap::local::wire::Reply;
use crate::bootstrap::master::gate::{At, Gate, wait};
use crate::error::{Error, Result};
use crate::masked::{self, MaskedThread};
use crate::topology::Topology;
use crate::watch::keep_alive;

/// The thread; it ends at once when this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    ours: OwnedFd,
    thread: Option<MaskedThread<()>>,
}

impl Server {
    /// Starts it for these agents, as ranks of a job, whose nodes are lost where nothing has come
    /// from them for so long.
    ///
    /// # Errors
    /// When there is no thread to be had, or no descriptor.
    pub fn start(gate: Gate, agents: Topology, lost_after: Duration) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|e| Error::system("preparing the meeting of agents", e))?;
        let mut serving = Serving {
            gate,
            theirs,
            may_end: false,
            connections: BTreeMap::new(),
            accepted: 0,
            lost_after,
            gatherings: Gatherings::new(agents),
        };
        let thread = Some(masked::spawn("trihop-meeting", move || serving.run())?);
        Ok(Self { ours, thread })
    }

    /// Has it end once no agent is connected any more.
    pub fn end_when_alone(&self) {
        // A thread that is gone needs no word.
        let _ = send(&self.ours, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(MaskedThread::is_finished)
    }
}

impl AsFd for Server {
    /// Becomes readable when the thread ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A close would not do: a forked child may have it open, too.
        let _ = shutdown(&self.ours, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // What it panicked with, it has said.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Serving {
    gate: Gate,
    /// The other end of [`Server::ours`].
    theirs: OwnedFd,
    may_end: bool,
    /// By the order in which they came.
    connections: BTreeMap<u64, Guest>,
    accepted: u64,
    lost_after: Duration,
    gatherings: Gatherings,
}

struct Guest {
    connection: Connection,
    /// Refused: it hears why, and is no guest any more.
    is_refused: bool,
}

/// What one entry of the poll stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Owner,
    Gate(At),
    Guest(u64),
}

impl Serving {
    fn run(&mut self) {
        while !(self.may_end && self.gatherings.is_empty()) {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the meeting of agents cannot wait any more");
                    return;
                }
            };
            if ready.contains(&Source::Owner) && !self.hear_owner() {
                return;
            }
            let mut replies = Vec::new();
            for source in &ready {
                if let Source::Guest(guest) = source {
                    self.hear(*guest, &mut replies);
                }
            }
            self.let_in(&ready);
            self.answer(replies);
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let now = Instant::now();
        let gate = self.gate.sources(now);
        let gate = gate.map(|(at, descriptor)| (Source::Gate(at), descriptor, PollFlags::IN));
        let guests = self.connections.iter().map(|(number, guest)| {
            let mut flags = PollFlags::empty();
            let connection = &guest.connection;
            let listens = !guest.is_refused && connection.wants_requests();
            flags.set(PollFlags::IN, listens);
            flags.set(PollFlags::OUT, connection.has_unsent());
            (Source::Guest(*number), connection.as_fd(), flags)
        });
        let owner = (Source::Owner, self.theirs.as_fd(), PollFlags::IN);
        let entries: Vec<_> = gate.chain(guests).chain([owner]).collect();
        wait(&entries, self.gate.deadline(now))
    }

    /// False where the owner wants no more of it.
    fn hear_owner(&mut self) -> bool {
        let mut word = [0; 1];
        match recv(&self.theirs, &mut word[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => false,
            Ok(_) => {
                self.may_end = true;
                true
            }
            Err(_) => true,
        }
    }

    fn hear(&mut self, number: u64, replies: &mut Replies) {
        let Some(guest) = self.connections.get_mut(&number) else {
            return;
        };
        if guest.is_refused || !guest.connection.wants_requests() {
            return;
        }
        let mut requests = Vec::new();
        let open = guest.connection.receive(&mut requests);
        for request in requests {
            self.gatherings.take(number, request, replies);
        }
        let is_open = open.unwrap_or_else(|bad| {
            tracing::error!("an agent sent the meeting bytes that are not valid: {bad}");
            false
        });
        if !is_open {
            self.hang_up(number, replies);
        }
    }

    fn hang_up(&mut self, number: u64, replies: &mut Replies) {
        self.connections.remove(&number);
        self.gatherings.end(number, replies);
    }

    fn let_in(&mut self, ready: &[Source]) {
        let gate = ready.iter().filter_map(|source| match source {
            Source::Gate(at) => Some(*at),
            _ => None,
        });
        for (socket, claim) in self.gate.hear(&gate.collect::<Vec<_>>()) {
            if let Err(error) = keep_alive(socket.as_fd(), self.lost_after) {
                tracing::warn!(%error, "the end of an agent's node will not be seen");
            }
            let (number, mut connection) = (self.accepted, Connection::new(socket));
            self.accepted += 1;
            let admitted = self.gatherings.admit(number, claim.rank.0, claim.size);
            let is_refused = admitted.is_err();
            if let Err(why) = admitted {
                tracing::error!("{why}");
                connection.reply(&Reply::Failed(why));
            }
            let guest = Guest {
                connection,
                is_refused,
            };
            self.connections.insert(number, guest);
        }
    }

    /// Says it, also what follows from who has hung up meanwhile.
    fn answer(&mut self, mut replies: Replies) {
        loop {
            for (number, reply) in replies.drain(..) {
                if let Some(guest) = self.connections.get_mut(&number) {
                    guest.connection.reply(&reply);
                }
            }
            let gone = self.connections.iter_mut().filter_map(|(number, guest)| {
                let is_heard = |guest: &Guest| guest.is_refused && !guest.connection.has_unsent();
                (!guest.connection.flush() || is_heard(guest)).then_some(*number)
            });
            let gone: Vec<u64> = gone.collect();
            if gone.is_empty() {
                return;
            }
            for number in gone {
                self.hang_up(number, &mut replies);
            }
        }
    }
}
