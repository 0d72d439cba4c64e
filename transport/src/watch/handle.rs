//! A node's watch as its first rank has it: where it listens, what it needs, and the thread's
//! handle.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::address::own_addresses;
use super::board::Board;
use super::thread::Watcher;
use crate::error::{Error, Result};
use crate::masked::{self, MaskedThread};
use crate::park::ProcessWatch;
use crate::ring::Bell;
use crate::secret::Secret;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::topology::{EndpointId, NodeId, Topology};

/// Connections of other watches that may wait to be taken.
const BACKLOG: i32 = 128;

/// A socket of version 6 that takes connections of version 4 too, whatever the system's default is
/// (net.ipv6.bindv6only), where the first of these places is one for both.
fn bind_both(places: &[SocketAddr]) -> std::io::Result<TcpListener> {
    let [both @ SocketAddr::V6(_), _, ..] = places else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, both)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Where a node's watch will listen: others are told before it starts.
#[derive(Debug)]
pub struct Listening {
    pub(super) listener: TcpListener,
    addresses: Vec<SocketAddr>,
}

impl Listening {
    /// Listens on a free port of loopback, of the interface with this name or address, or of all:
    /// those of several names, and all that are up where none is given.
    ///
    /// # Errors
    /// When there is no address, or none can be listened on.
    pub fn open(interfaces: &[String], loopback: bool) -> Result<Self> {
        let own = own_addresses(interfaces, loopback)?;
        let any: &[IpAddr] = match &own[..] {
            [one] => &[*one],
            // Both versions at once where the machine has version 6.
            _ => &[IpAddr::from([0_u16; 8]), IpAddr::from([0_u8; 4])],
        };
        let places: Vec<SocketAddr> = any.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
        let what = || format!("listening for the watches of other nodes on {places:?}");
        let listener = bind_both(&places).or_else(|_| TcpListener::bind(&places[..]));
        let listener = listener.map_err(|e| Error::system(what(), e))?;
        listener
            .set_nonblocking(true)
            .map_err(|e| Error::system(what(), e))?;
        let port = listener
            .local_addr()
            .map_err(|e| Error::system(what(), e))?
            .port();
        let addresses = own
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect();
        Ok(Self {
            listener,
            addresses,
        })
    }

    /// The listener, which does not block, for another use than a watch.
    pub fn into_listener(self) -> TcpListener {
        self.listener
    }

    /// Where it can be reached.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// A neighbour of a watch: its node, and where its watch listens.
#[derive(Debug)]
pub struct Neighbour {
    /// The node.
    pub node: NodeId,
    /// From its card.
    pub addresses: Vec<SocketAddr>,
}

/// What a watch needs.
pub struct Setup {
    /// As its node's first rank sees it.
    pub topology: Topology,
    /// The job's.
    pub secret: Secret,
    /// Where it listens.
    pub listening: Listening,
    /// The nodes that [`super::neighbours`] names.
    pub neighbours: Vec<Neighbour>,
    /// Its node's board.
    pub board: Board,
    /// Of all ranks of the node.
    pub bells: Vec<Arc<Bell>>,
    /// The other processes of the node, each with the first endpoint that lives there.
    pub processes: Vec<(EndpointId, ProcessWatch)>,
    /// An eventfd: a rank that posts news on the board writes to it.
    pub wake: Arc<OwnedFd>,
    /// How long a node may be out of reach before it counts as gone.
    pub timeout: Duration,
}

/// What the watch is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Watch,
    /// The job has ended for all.
    Goodbye,
    Stop,
}

#[derive(Debug)]
pub(super) struct State {
    pub order: Order,
    /// All neighbours are connected, or given up.
    pub settled: bool,
    /// The first news have been told to all neighbours.
    pub told: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `until`, at most for `limit`; whether it came.
    pub fn wait(&self, limit: Duration, until: impl Fn(&State) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        while !until(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

/// A node's watch. Dropped without a goodbye, it leaves as a process that ends does.
pub struct Watch {
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    thread: Option<MaskedThread<()>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.shared.lock())
    }
}

impl Watch {
    /// Starts the thread, which connects to its neighbours.
    ///
    /// # Errors
    /// When descriptors run out, or there is no thread to be had.
    pub fn start(setup: Setup) -> Result<Self> {
        let (order, settled, told) = (Order::Watch, false, false);
        let state = Mutex::new(State {
            order,
            settled,
            told,
        });
        let shared = Arc::new(Shared {
            state,
            changed: Condvar::new(),
        });
        let wake = Arc::clone(&setup.wake);
        let mut watcher = Watcher::new(setup, Arc::clone(&shared))?;
        let thread = Some(masked::spawn("trihop-watch", move || watcher.run())?);
        Ok(Self {
            shared,
            wake,
            thread,
        })
    }

    /// Whether all neighbours are connected or given up, which comes within ten seconds; its ranks'
    /// bells ring then.
    pub fn is_settled(&self) -> bool {
        self.shared.lock().settled
    }

    /// Waits until the board's news have gone out to all neighbours: who ends this process because
    /// of them takes the watch along. Whether they have.
    pub fn wait_told(&self, limit: Duration) -> bool {
        self.shared.wait(limit, |state| state.told)
    }

    /// Says goodbye to all neighbours, and ends: all ranks have arrived at the end of the job.
    pub fn goodbye(mut self) {
        self.end(Order::Goodbye);
    }

    fn end(&mut self, order: Order) {
        self.shared.change(|state| state.order = order);
        wake(&self.wake);
        if let Some(thread) = self.thread.take() {
            // What it panicked with, it has said.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(Order::Stop);
        }
    }
}

/// Wakes a watch, whose eventfd this is.
pub fn wake(eventfd: &OwnedFd) {
    // EAGAIN: the counter is full, so it is woken anyway.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Whether somebody has called [`wake`] since this was asked last.
pub fn is_woken(eventfd: &OwnedFd) -> bool {
    rustix::io::read(eventfd, &mut [0; 8]).is_ok()
}

/// An eventfd that wakes a watch.
///
/// # Errors
/// When descriptors run out.
pub fn eventfd() -> Result<OwnedFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags)
        .map_err(|e| Error::system("creating the eventfd of the watch", io::Error::from(e)))
}
