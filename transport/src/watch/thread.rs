//! The thread of a node's watch: it sleeps in one epoll until the kernel has something to say.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::graph::connects;
use super::handle::{Neighbour, Order, Setup, Shared};
use super::news::{Cause, News};
use super::spread::{Action, Spread};
use super::talk::{Heard, Talk};
use crate::error::{Error, Result};
use crate::random::random_bytes;
use crate::topology::NodeId;

/// Connections that have not shown yet that they are of this job. The oldest makes room for a new
/// one.
const MAX_STRANGERS: usize = 16;

/// Connections that are taken in a row.
const MOST_ACCEPTED: usize = 64;

/// How long a kernel may take to answer a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// How long the other end of a connection may take to show who it is.
const TALK_PATIENCE: Duration = Duration::from_secs(5);

/// How long after a connection that failed the next address is tried.
const REDIAL: Duration = Duration::from_millis(20);

/// How long neighbours that cannot be reached are waited for at the start.
const GIVE_UP: Duration = Duration::from_secs(10);

/// They are still dialled then, less often, since a node may be slow to start; after so long very
/// seldom, since a process may be stopped for longer.
const LATE_REDIAL: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(120);
const SELDOM_REDIAL: Duration = Duration::from_secs(10);

/// How often it looks for the end of processes that the system does not announce.
const LOOK: Duration = Duration::from_millis(100);

/// Tokens of the epoll.
const WAKE: u64 = 0;
const LISTENER: u64 = 1;
/// Behind it the processes of the node.
const PROCESSES: u64 = 1 << 32;
/// Behind it the connections.
const CONNECTIONS: u64 = 1 << 33;

/// Events taken per sleep; more stay ready for the next one.
const EVENTS: usize = 32;

/// A neighbour to which this watch connects.
struct Dial {
    neighbour: Neighbour,
    /// The next address, and when it is tried; none while a connection is being made, or is.
    next: Option<Instant>,
    attempts: usize,
    last_error: Option<String>,
}

struct Connection {
    socket: OwnedFd,
    talk: Talk,
    /// Which of the dials it belongs to; none where the other side has connected.
    dial: Option<usize>,
    /// The connection is not made yet.
    connecting: bool,
    /// When it is given up unless its other end has shown who it is.
    deadline: Instant,
    /// The other side has said goodbye.
    left: bool,
}

/// Has the epoll instance say when something can be read.
fn look_at(epoll: &OwnedFd, descriptor: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
    let (token, events) = (epoll::EventData::new_u64(token), epoll::EventFlags::IN);
    epoll::add(epoll, descriptor, token, events)
}

/// What the thread has.
pub(super) struct Watcher {
    setup: Setup,
    shared: Arc<Shared>,
    spread: Spread,
    epoll: OwnedFd,
    dials: Vec<Dial>,
    /// Places of the processes whose end nothing announces.
    silent: Vec<usize>,
    connections: Vec<Option<Connection>>,
    /// When neighbours that are missing are waited for no more; none afterwards.
    give_up: Option<Instant>,
    /// When they are dialled very seldom.
    late_from: Instant,
    /// Until when nobody is let in, for want of descriptors.
    deaf_until: Option<Instant>,
    /// Losses on the board that it has looked at.
    losses: usize,
}

impl Watcher {
    pub fn new(mut setup: Setup, shared: Arc<Shared>) -> Result<Self> {
        let what = "the epoll instance of the watch";
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::system(what, e))?;
        let own = setup.topology.node();
        let add = |fd: BorrowedFd<'_>, token: u64| {
            look_at(&epoll, fd, token).map_err(|e| Error::system(what, e))
        };
        add(setup.wake.as_fd(), WAKE)?;
        add(setup.listening.listener.as_fd(), LISTENER)?;
        for (token, (_, process)) in (PROCESSES..).zip(&setup.processes) {
            add(process.descriptor(), token)?;
        }
        let now = Instant::now();
        let (ours, theirs): (Vec<_>, Vec<_>) = std::mem::take(&mut setup.neighbours)
            .into_iter()
            .partition(|n| connects(own, n.node));
        setup.neighbours = theirs;
        let dial = |neighbour| Dial {
            neighbour,
            next: Some(now),
            attempts: 0,
            last_error: None,
        };
        Ok(Self {
            spread: Spread::new(setup.topology.clone()),
            give_up: Some(now + GIVE_UP),
            deaf_until: None,
            losses: 0,
            late_from: now + LATE,
            dials: ours.into_iter().map(dial).collect(),
            silent: (0..setup.processes.len())
                .filter(|&at| setup.processes[at].1.is_silent())
                .collect(),
            connections: Vec::new(),
            epoll,
            shared,
            setup,
        })
    }

    pub fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = Instant::now();
            self.keep_time(now);
            let timeout = self
                .next_time()
                .map(|at| Timespec::try_from(at.saturating_duration_since(now)));
            let timeout = timeout.and_then(|left| left.ok());
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the watch cannot wait: deaths on other nodes are not told any more");
                    // Its connections stay: this process lives.
                    while !self.shared.wait(Duration::from_secs(3600), |state| {
                        state.order != Order::Watch
                    }) {}
                    return;
                }
            }
            if self.setup.board.goes_on() {
                self.spread.go_on();
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => drain(&self.setup.wake),
                    LISTENER => self.accept(),
                    token if token >= CONNECTIONS => self.serve((token - CONNECTIONS) as usize),
                    token => self.process_ended((token - PROCESSES) as usize),
                }
            }
            self.look_at_board();
            match self.shared.lock().order {
                Order::Watch => {}
                Order::Stop => return,
                Order::Goodbye => break,
            }
        }
        for index in 0..self.connections.len() {
            if let Some(connection) = self.connections[index]
                .as_mut()
                .filter(|c| c.talk.peer().is_some())
            {
                connection.talk.say_goodbye();
                self.send(index);
            }
        }
    }

    /// What becomes due by time alone: only until all neighbours are connected, while strangers are
    /// here, and where descriptors have run out.
    fn keep_time(&mut self, now: Instant) {
        if self.deaf_until.is_some_and(|until| until <= now) {
            let listener = self.setup.listening.listener.as_fd();
            let listens = look_at(&self.epoll, listener, LISTENER);
            self.deaf_until = listens.is_err().then(|| now + LOOK);
        }
        let processes = &self.setup.processes;
        let ended = |at: &mut usize| processes[*at].1.has_ended();
        let ended: Vec<usize> = self.silent.extract_if(.., ended).collect();
        ended.into_iter().for_each(|at| self.process_ended(at));
        for index in 0..self.connections.len() {
            let late = |c: &Connection| c.talk.is_stranger() && c.deadline <= now;
            if self.connections[index].as_ref().is_some_and(late) {
                // Its answer may be here: it is this thread that may have stood still.
                self.serve(index);
            }
            if self.connections[index].as_ref().is_some_and(late) {
                self.close(index, Cause::Silent, "no answer in time");
            }
        }
        for dial in 0..self.dials.len() {
            if self.dials[dial].next.is_some_and(|at| at <= now) {
                self.dial(dial, now);
            }
        }
        let Some(give_up) = self.give_up else { return };
        let missing = self.missing();
        if missing.is_empty() || give_up <= now {
            self.give_up = None;
            if !missing.is_empty() {
                self.say_missing(&missing);
            }
            self.shared.change(|state| state.settled = true);
            self.setup.bells.iter().for_each(|bell| bell.ring());
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let dials = self.dials.iter().filter_map(|dial| dial.next);
        let strangers = self
            .connections
            .iter()
            .flatten()
            .filter(|c| c.talk.is_stranger());
        dials
            .chain(strangers.map(|c| c.deadline))
            .chain(self.give_up)
            .chain(self.deaf_until)
            .chain((!self.silent.is_empty()).then(|| Instant::now() + LOOK))
            .min()
    }

    /// Neighbours that are not connected.
    fn missing(&self) -> BTreeSet<NodeId> {
        let dialled = self.dials.iter().map(|dial| dial.neighbour.node);
        let all = dialled.chain(self.setup.neighbours.iter().map(|neighbour| neighbour.node));
        all.filter(|node| !self.spread.is_joined(*node)).collect()
    }

    fn say_missing(&self, missing: &BTreeSet<NodeId>) {
        let nodes: Vec<u32> = missing.iter().map(|node| node.0).collect();
        let dials = self
            .dials
            .iter()
            .filter(|dial| missing.contains(&dial.neighbour.node));
        let tried: Vec<String> = dials
            .map(|dial| {
                let error = dial.last_error.as_deref().unwrap_or("not tried");
                format!("{:?}: {error}", dial.neighbour.addresses)
            })
            .collect();
        if tried.is_empty() {
            // They connect to this one once they have started, and say themselves if they cannot.
            tracing::info!(?nodes, "the watches of these nodes have not connected yet");
            return;
        }
        tracing::warn!(
            rank = self.setup.topology.rank().0,
            ?nodes,
            ?tried,
            "the watches of these nodes cannot be reached, so that a death there may go unnoticed here; name the \
             interface that all nodes share by TRIHOP_INTERFACE, and let its ports through"
        );
    }

    /// Tries the next address of a neighbour.
    fn dial(&mut self, index: usize, now: Instant) {
        let own = self.setup.topology.node();
        let dial = &mut self.dials[index];
        dial.next = None;
        let addresses = &dial.neighbour.addresses;
        let Some(address) = addresses
            .get(dial.attempts % addresses.len().max(1))
            .copied()
        else {
            dial.last_error = Some("its card names no address".to_owned());
            return;
        };
        dial.attempts += 1;
        let made = random_bytes()
            .map_err(|e| e.to_string())
            .and_then(|challenge| {
                Ok((challenge, self.connect(address).map_err(|e| e.to_string())?))
            });
        match made {
            Ok((challenge, socket)) => {
                let peer = self.dials[index].neighbour.node;
                let talk = Talk::connecting(&self.setup.secret, own, peer, challenge);
                let (dial, deadline) = (Some(index), now + CONNECT_PATIENCE);
                self.keep(Connection {
                    socket,
                    talk,
                    dial,
                    connecting: true,
                    deadline,
                    left: false,
                });
            }
            Err(error) => self.redial(index, error),
        }
    }

    fn redial(&mut self, index: usize, error: String) {
        let dial = &mut self.dials[index];
        dial.last_error = Some(error);
        let now = Instant::now();
        let pause = match self.give_up {
            Some(_) => REDIAL,
            None if now < self.late_from => LATE_REDIAL,
            None => SELDOM_REDIAL,
        };
        dial.next = Some(now + pause);
    }

    fn connect(&self, address: SocketAddr) -> Result<OwnedFd, Errno> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        keep_alive(socket.as_fd(), self.setup.timeout)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
            Err(error) => Err(error),
        }
    }

    fn accept(&mut self) {
        // Whoever is left wakes the thread again, which has others to listen to.
        for _ in 0..MOST_ACCEPTED {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.setup.listening.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    // Out of descriptors, say: a peer that waits stays in the kernel's queue, and
                    // wakes us again.
                    tracing::debug!(%error, "the watch cannot take a connection");
                    if let Some(oldest) = self.oldest_stranger() {
                        self.close(oldest, Cause::Closed, "no descriptors are left");
                        continue;
                    }
                    // Nothing of ours to give up: no endless loop over a listener that stays ready.
                    let _ = epoll::delete(&self.epoll, &self.setup.listening.listener);
                    self.deaf_until = Some(Instant::now() + LOOK);
                    return;
                }
            };
            let strangers = self.connections.iter().flatten();
            if strangers
                .filter(|c| c.dial.is_none() && c.talk.is_stranger())
                .count()
                >= MAX_STRANGERS
                && let Some(oldest) = self.oldest_stranger()
            {
                self.close(oldest, Cause::Closed, "too many strangers");
            }
            let Ok(challenge) = random_bytes() else {
                continue;
            };
            if keep_alive(socket.as_fd(), self.setup.timeout).is_err() {
                continue;
            }
            let talk = Talk::accepting(&self.setup.secret, self.setup.topology.node(), challenge);
            let deadline = Instant::now() + TALK_PATIENCE;
            let (dial, connecting, left) = (None, false, false);
            if let Some(index) = self.keep(Connection {
                socket,
                talk,
                dial,
                connecting,
                deadline,
                left,
            }) {
                self.send(index);
            }
        }
    }

    fn oldest_stranger(&self) -> Option<usize> {
        let numbered = self.connections.iter().enumerate();
        let strangers = numbered.filter_map(|(index, connection)| {
            let stranger = connection
                .as_ref()
                .filter(|c| c.dial.is_none() && c.talk.is_stranger());
            stranger.map(|c| (c.deadline, index))
        });
        strangers.min().map(|(_, index)| index)
    }

    fn keep(&mut self, connection: Connection) -> Option<usize> {
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or(self.connections.len());
        if free.is_none() {
            self.connections.push(None);
        }
        let dial = connection.dial;
        let token = epoll::EventData::new_u64(CONNECTIONS + index as u64);
        let events = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, &connection.socket, token, events) {
            if let Some(dial) = dial {
                self.redial(dial, error.to_string());
            }
            return None;
        }
        self.connections[index] = Some(connection);
        Some(index)
    }

    /// Something happened on a connection. Events are those of edges: reads go on until there is
    /// nothing.
    fn serve(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        if connection.connecting {
            match sockopt::socket_error(&connection.socket) {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => {
                    return self.close(index, Cause::Silent, &error.to_string());
                }
            }
            if rustix::net::getpeername(&connection.socket).is_err() {
                return; // not yet
            }
            connection.connecting = false;
            connection.deadline = Instant::now() + TALK_PATIENCE;
        }
        let mut heard = Vec::new();
        let end = self.read(index, &mut heard);
        for word in heard {
            if !self.hear(index, word) {
                return self.close(index, Cause::Closed, "it is no neighbour that may connect");
            }
        }
        self.send(index);
        match end {
            None => {}
            Some(Ok(why)) => self.close(index, Cause::Closed, why),
            Some(Err(Errno::CONNRESET | Errno::PIPE)) => self.close(index, Cause::Closed, "reset"),
            Some(Err(error)) => self.close(index, Cause::Silent, &error.to_string()),
        }
    }

    /// Reads what is there; how the connection has ended, if it has.
    fn read(
        &mut self,
        index: usize,
        heard: &mut Vec<Heard>,
    ) -> Option<Result<&'static str, Errno>> {
        let connection = self.connections[index].as_mut()?;
        let mut bytes = [0_u8; 1024];
        loop {
            match rustix::net::recv(&connection.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Some(Ok("closed")),
                Ok((count, _)) => {
                    let count = count.min(bytes.len());
                    if let Err(why) = connection.talk.receive(&bytes[..count], heard) {
                        return Some(Ok(why));
                    }
                }
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Takes a word; whether the connection may stay.
    fn hear(&mut self, index: usize, word: Heard) -> bool {
        let peer = self.connections[index].as_ref().and_then(|c| c.talk.peer());
        let actions = match word {
            Heard::Joined(node) => {
                let dialled = self.connections[index]
                    .as_ref()
                    .is_some_and(|c| c.dial.is_some());
                let expected = dialled || self.setup.neighbours.iter().any(|n| n.node == node);
                if !expected || self.spread.is_joined(node) {
                    // Not to be taken for a neighbour that is lost.
                    self.connections[index]
                        .iter_mut()
                        .for_each(|c| c.left = true);
                    return false;
                }
                tracing::debug!(node = node.0, "watches are connected");
                self.spread.joined(node)
            }
            Heard::News(news) => match peer {
                Some(from) => self.spread.heard(from, news),
                None => Vec::new(),
            },
            Heard::Goodbye => {
                self.connections[index]
                    .iter_mut()
                    .for_each(|c| c.left = true);
                self.spread.end();
                self.setup.board.end();
                Vec::new()
            }
        };
        self.act(actions);
        true
    }

    /// Sends what there is to say; what finds no room waits for the next event.
    fn send(&mut self, index: usize) {
        let Some(connection) = self.connections[index].as_mut().filter(|c| !c.connecting) else {
            return;
        };
        let output = &mut connection.talk.output;
        while !output.is_empty() {
            match rustix::net::send(
                &connection.socket,
                output,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(sent) => {
                    output.drain(..sent);
                }
                Err(Errno::INTR) => {}
                // The reason of any other error comes with an event of the connection.
                Err(_) => return,
            }
        }
    }

    fn close(&mut self, index: usize, cause: Cause, why: &str) {
        let Some(connection) = self.connections[index].take() else {
            return;
        };
        let (peer, left) = (connection.talk.peer(), connection.left);
        drop(connection.socket);
        if let Some(node) = peer.filter(|_| !left) {
            tracing::debug!(
                node = node.0,
                why,
                "the connection to a neighbour's watch has ended"
            );
            let actions = self.spread.lost(node, cause);
            self.act(actions);
        } else if peer.is_none() {
            tracing::debug!(why, "a connection to the watch came to nothing");
            if let Some(dial) = connection.dial {
                self.redial(dial, why.to_owned());
            }
        }
    }

    fn process_ended(&mut self, index: usize) {
        let Some((end, process)) = self.setup.processes.get(index) else {
            return;
        };
        let news = News::ended(*end, &self.setup.topology);
        let _ = epoll::delete(&self.epoll, process.descriptor());
        // Who ends because of news, or at the end of the job, is not their cause.
        if !self.setup.board.is_over() && !self.setup.board.has_news() {
            let actions = self.spread.found(news);
            self.act(actions);
        }
    }

    /// A rank of the node may have posted something.
    fn look_at_board(&mut self) {
        while self.setup.board.has_lost(self.losses) {
            let loss = self.setup.board.loss(self.losses);
            self.losses += 1;
            let found = |loss| self.spread.found(loss);
            let actions = loss.map_or_else(Vec::new, found);
            self.act(actions);
        }
        // News first: what is posted once all have arrived at the end is no news.
        let news = self.setup.board.news();
        if self.setup.board.is_over() {
            self.spread.end();
        }
        if let Some(news) = news
            && !self.shared.lock().told
        {
            let actions = self.spread.found(news);
            self.act(actions);
            self.shared.change(|state| state.told = true);
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Tell(node, news) => {
                    let to = |c: &Option<Connection>| {
                        c.as_ref().is_some_and(|c| c.talk.peer() == Some(node))
                    };
                    if let Some(index) = self.connections.iter().position(to)
                        && let Some(connection) = &mut self.connections[index]
                    {
                        connection.talk.say_news(&news);
                        self.send(index);
                    }
                }
                Action::Post(news) => {
                    self.setup.board.post(&news);
                    self.setup.bells.iter().for_each(|bell| bell.ring());
                }
            }
        }
    }
}

/// The kernel asks for the other one's kernel, whatever the processes do, and gives up after the
/// timeout.
pub(crate) fn keep_alive(socket: BorrowedFd<'_>, timeout: Duration) -> Result<(), Errno> {
    // In whole seconds, since the kernel counts in these.
    let step = Duration::from_secs((timeout.as_secs() / 5).clamp(1, 30));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, step)?;
    sockopt::set_tcp_keepintvl(socket, step)?;
    sockopt::set_tcp_user_timeout(socket, timeout.as_millis().clamp(1, u32::MAX.into()) as u32)?;
    sockopt::set_tcp_nodelay(socket, true)
}

fn drain(eventfd: &OwnedFd) {
    let mut count = [0; 8];
    // EAGAIN: nobody wrote.
    let _ = rustix::io::read(eventfd, &mut count);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No test here can show the end of a machine. This one shows that the kernel is told to look
    /// for it.
    #[test]
    fn the_kernel_looks_after_connections_and_gives_up_in_time() {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        for (timeout_ms, step_s) in [(5000, 1), (20_000, 4), (1000, 1), (1_000_000, 30)] {
            keep_alive(socket.as_fd(), Duration::from_millis(timeout_ms)).unwrap();
            assert!(sockopt::socket_keepalive(&socket).unwrap());
            let step = Duration::from_secs(step_s);
            assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), step);
            assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), step);
            assert_eq!(
                u64::from(sockopt::tcp_user_timeout(&socket).unwrap()),
                timeout_ms
            );
            assert!(sockopt::tcp_nodelay(&socket).unwrap());
        }
    }
}
