//! Passing descriptors between the processes of one node, over abstract-name unix sockets.
//!
//! An abstract name leaves no file behind, but anybody may take it or connect to it: both sides ask
//! the kernel for the other's user and go on only if it is their own. One message is one datagram:
//! bytes and descriptors together.

use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{Error, Result};
use crate::sync::{sleep, sleep_in_kernel};

/// Longest message in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// Most descriptors of one message.
pub const MAX_DESCRIPTORS: usize = 64;

/// Connections that may wait for their message to come; further ones wait in the kernel.
const MAX_WAITING: usize = 256;

/// Where all these are taken, those that have said nothing for so long make room.
const MOST_SILENCE: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 5000 });

/// Connections that are refused in a row, before what has come of others is looked at.
const MOST_REFUSED: u64 = 64;

/// How long [`DescriptorListener::send`] waits for the listener.
pub const SEND_DEADLINE: Duration = Duration::from_secs(30);

/// What [`DescriptorListener::accept`] returns: message, descriptors, process id of the sender.
pub type Accepted = (Vec<u8>, Vec<OwnedFd>, u32);

/// Bytes and descriptors of one message.
type Message = (Vec<u8>, Vec<OwnedFd>);

/// A connection of our user, whose message was not there when it was last looked for.
#[derive(Debug)]
struct Silent {
    connection: OwnedFd,
    pid: u32,
    since: Instant,
}

/// A listening end, which takes messages from processes of our own user.
#[derive(Debug)]
pub struct DescriptorListener {
    socket: OwnedFd,
    name: String,
    /// The oldest first.
    waiting: RefCell<Vec<Silent>>,
    refused: Cell<u64>,
    /// More may have connected when this listener last looked.
    is_behind: Cell<bool>,
    /// No descriptor was left for a connection when this listener last looked.
    is_short: Cell<bool>,
    reserve: Reserve,
}

/// A descriptor that is given up for a while where no other is left, so that what needs one only
/// for a moment goes on.
#[derive(Debug, Default)]
struct Reserve {
    is_kept: Cell<bool>,
    kept: RefCell<Option<OwnedFd>>,
}

impl Reserve {
    /// Gives it up; whether there was one.
    fn give_up(&self) -> bool {
        self.kept.borrow_mut().take().is_some()
    }

    /// Has one again, if there is one to be had.
    fn refill(&self, like: &OwnedFd) {
        if self.is_kept.get() && self.kept.borrow().is_none() {
            *self.kept.borrow_mut() = like.try_clone().ok();
        }
    }
}

/// Whether descriptors have run out, of this process or of the machine.
fn is_want_of_descriptors(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

impl DescriptorListener {
    /// Takes `name` and listens; up to `backlog` senders may connect before they are accepted.
    ///
    /// # Errors
    /// When the name is too long (107 bytes) or taken.
    pub fn listen(name: &str, backlog: u32) -> Result<Self> {
        let address = address(name)?;
        let what = || format!("listening on the abstract socket @{name}");
        let socket = socket().map_err(|e| Error::system(what(), e))?;
        rustix::net::bind(&socket, &address).map_err(|e| match e {
            Errno::ADDRINUSE => {
                let what = format!("{}, a name that another process has", what());
                Error::system(what, e)
            }
            e => Error::system(what(), e),
        })?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        rustix::net::listen(&socket, backlog).map_err(|e| Error::system(what(), e))?;
        Ok(Self {
            socket,
            name: name.into(),
            waiting: RefCell::default(),
            refused: Cell::new(0),
            is_behind: Cell::new(false),
            is_short: Cell::new(false),
            reserve: Reserve::default(),
        })
    }

    /// Keeps a descriptor in reserve: where the process has no other one left, messages without
    /// descriptors still come in, and [`with_reserve`](Self::with_reserve) can send some.
    ///
    /// # Errors
    /// When descriptors have run out already.
    pub fn keep_reserve(&self) -> Result<()> {
        let what = || {
            format!(
                "a descriptor in reserve for the abstract socket @{}",
                self.name
            )
        };
        let kept = self.socket.try_clone();
        let kept = kept.map_err(|e| Error::system(what(), e))?;
        *self.reserve.kept.borrow_mut() = Some(kept);
        self.reserve.is_kept.set(true);
        Ok(())
    }

    /// Makes a call that needs a descriptor for as long as it takes: once more with the one in
    /// reserve, where it fails for want of descriptors.
    ///
    /// # Errors
    /// The call's.
    pub fn with_reserve<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        let outcome = call();
        if !outcome.as_ref().is_err_and(Error::is_want_of_descriptors) || !self.reserve.give_up() {
            return outcome;
        }
        let outcome = call();
        self.reserve.refill(&self.socket);
        outcome
    }

    /// Sends one message with descriptors to the listener of `name`, waiting for it at most
    /// [`SEND_DEADLINE`].
    ///
    /// # Errors
    /// As [`send_until`](Self::send_until).
    pub fn send(name: &str, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<u32> {
        Self::send_until(name, message, fds, Instant::now() + SEND_DEADLINE)
    }

    /// Sends one message with descriptors to the listener of `name`, which may still have to
    /// appear.
    ///
    /// The descriptors are the receiver's as soon as this returns; that the receiver read them is
    /// not said. Returns the process id of the listener.
    ///
    /// # Errors
    /// When message or descriptors are none or too many, nobody listens until `deadline`, or the
    /// listener is another user.
    pub fn send_until(
        name: &str,
        message: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<u32> {
        let parcel = Parcel {
            message,
            fds,
            deadline,
        };
        parcel.hand(name, true, &mut || Ok(()))
    }

    /// As [`send_until`](Self::send_until), to a listener that is known to have been there: where
    /// nobody listens, it is gone, and that is an error at once (`ConnectionRefused`).
    ///
    /// # Errors
    /// As [`send_until`](Self::send_until).
    pub fn send_to_listener(
        name: &str,
        message: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<u32> {
        Self::send_meanwhile(name, message, fds, deadline, &mut || Ok(()))
    }

    /// As [`send_to_listener`](Self::send_to_listener), for processes that give each other
    /// descriptors all at once: while it waits, `meanwhile` is called again and again, and accepts
    /// what others have for this one. Linux lets a process of an ordinary user send none while more
    /// of that user's are under way than it may have open (`ulimit -n`), and no listener keeps more
    /// than `net.core.somaxconn` waiting.
    ///
    /// # Errors
    /// As [`send_until`](Self::send_until), and what `meanwhile` says.
    pub fn send_meanwhile(
        name: &str,
        message: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<u32> {
        let parcel = Parcel {
            message,
            fds,
            deadline,
        };
        parcel.hand(name, false, meanwhile)
    }

    /// Waits until `deadline` for the next message: its bytes, descriptors, and the sender's
    /// process id.
    ///
    /// Strangers and broken messages are dropped and counted; a sender that is slow to write holds
    /// nobody up.
    ///
    /// # Errors
    /// `TimedOut` when nothing came; otherwise when the socket itself fails.
    pub fn accept(&self, deadline: Instant) -> Result<Accepted> {
        let what = || format!("accepting on the abstract socket @{}", self.name);
        let mut waiting = self.waiting.borrow_mut();
        loop {
            self.accept_connections(&mut waiting)
                .map_err(|e| Error::system(what(), e))?;
            let taken = self.take_message(&mut waiting);
            if let Some(parcel) = taken.map_err(|e| Error::system(what(), e))? {
                return Ok(parcel);
            }
            let mut watched: Vec<_> = waiting
                .iter()
                .map(|silent| PollFd::new(&silent.connection, PollFlags::IN))
                .collect();
            if self.has_room(&waiting) {
                watched.push(PollFd::new(&self.socket, PollFlags::IN));
            }
            let until = deadline.min(makes_room_at(&waiting).unwrap_or(deadline));
            match wait(&mut watched, until) {
                Err(Errno::TIMEDOUT) if until < deadline => {}
                outcome => outcome.map_err(|e| Error::system(what(), e))?,
            }
        }
    }

    /// The next message if one is here; never waits. See [`accept`](Self::accept).
    ///
    /// # Errors
    /// When the socket itself fails.
    pub fn try_accept(&self) -> Result<Option<Accepted>> {
        let mut waiting = self.waiting.borrow_mut();
        let accepted = self.accept_connections(&mut waiting);
        let taken = accepted.and_then(|()| self.take_message(&mut waiting));
        taken.map_err(|e| {
            let what = format!("accepting on the abstract socket @{}", self.name);
            Error::system(what, e)
        })
    }

    /// Waits until somebody has connected or a message has come, for [`try_accept`], one of
    /// `others` is readable, or the deadline has passed, or somebody who says nothing makes room;
    /// whether one of the others is.
    ///
    /// # Errors
    /// When the system refuses to wait.
    ///
    /// [`try_accept`]: Self::try_accept
    pub fn wait_with(&self, others: &[BorrowedFd<'_>], deadline: Instant) -> Result<bool> {
        let waiting = self.waiting.borrow();
        let sent = waiting.iter().map(|silent| silent.connection.as_fd());
        let deadline = deadline.min(makes_room_at(&waiting).unwrap_or(deadline));
        let socket = self.has_room(&waiting).then(|| self.socket.as_fd());
        let own = sent.chain(socket);
        let watched: Vec<_> = others.iter().copied().chain(own).collect();
        let ready = wait_for_any(&watched, deadline)?;
        Ok(ready.is_some_and(|first| first < others.len()))
    }

    /// Whether somebody has connected whose message was not there when this listener last looked,
    /// or more than it has looked at.
    /// Nothing announces it: [`try_accept`](Self::try_accept) has to be called again soon.
    pub fn is_owed(&self) -> bool {
        self.is_behind.get() || !self.waiting.borrow().is_empty()
    }

    /// Lets nobody connect any more. Who has connected so far may still be
    /// [accepted](Self::try_accept), and the name is taken until this is dropped.
    pub fn lock_out(&self) {
        // A socket that listens can be shut down.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Becomes readable when somebody connects.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Connections and messages that were dropped: strangers, no message, too long a message, and
    /// those that said nothing where others had no room.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// The other user who listens under a name, if one does. A listener of this user's finds that
    /// somebody has connected who says nothing.
    pub fn stranger_with(name: &str) -> Option<u32> {
        let socket = connect(&address(name).ok()?).ok()?;
        let user = credentials(socket.as_fd()).ok()?.uid;
        (user != rustix::process::geteuid().as_raw()).then_some(user)
    }

    /// Name that was taken.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether another connection may come in.
    fn has_room(&self, waiting: &[Silent]) -> bool {
        waiting.len() < MAX_WAITING && !self.is_short.get()
    }

    fn accept_connections(&self, waiting: &mut Vec<Silent>) -> Result<(), Errno> {
        self.is_short.set(false);
        self.is_behind.set(false);
        let refused = self.refused.get();
        while waiting.len() < MAX_WAITING {
            if self.refused.get() - refused >= MOST_REFUSED {
                self.is_behind.set(true);
                return Ok(());
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let connection = match rustix::net::accept_with(&self.socket, flags) {
                Ok(connection) => connection,
                // The second one where nobody can connect any more.
                Err(Errno::AGAIN | Errno::INVAL) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // Those that are here give theirs back first.
                Err(e) if is_want_of_descriptors(e) && !waiting.is_empty() => {
                    self.is_short.set(true);
                    return Ok(());
                }
                Err(e) if is_want_of_descriptors(e) && self.reserve.give_up() => continue,
                Err(e) => return Err(e),
            };
            match credentials(connection.as_fd()) {
                Ok(peer) if peer.uid == rustix::process::geteuid().as_raw() => {
                    waiting.push(Silent {
                        connection,
                        pid: peer.pid.try_into().unwrap_or(0),
                        since: Instant::now(),
                    });
                }
                _ => self.refuse(),
            }
        }
        Ok(())
    }

    fn take_message(&self, waiting: &mut Vec<Silent>) -> Result<Option<Accepted>, Errno> {
        let taken = self.take_first(waiting);
        self.reserve.refill(&self.socket);
        // All that are left were silent just now.
        if matches!(taken, Ok(None)) {
            let now = Instant::now();
            while makes_room_at(waiting).is_some_and(|at| at <= now) {
                waiting.remove(0);
                self.refuse();
            }
        }
        taken
    }

    fn take_first(&self, waiting: &mut Vec<Silent>) -> Result<Option<Accepted>, Errno> {
        let mut index = 0;
        while index < waiting.len() {
            match receive(waiting[index].connection.as_fd()) {
                Err(Errno::AGAIN | Errno::INTR) => index += 1,
                Ok(Some((message, fds))) => {
                    let Silent { pid, .. } = waiting.remove(index);
                    return Ok(Some((message, fds, pid)));
                }
                // The message is lost, and with it what its sender was to hand over.
                Err(e @ Errno::MFILE) => {
                    waiting.remove(index);
                    return Err(e);
                }
                Ok(None) | Err(_) => {
                    waiting.remove(index);
                    self.refuse();
                }
            }
        }
        Ok(None)
    }

    fn refuse(&self) {
        self.refused.set(self.refused.get() + 1);
        if self.refused.get() == 1 {
            tracing::warn!(
                "dropped a connection to @{}: another user, not a message of ours, or none at all",
                self.name
            );
        }
    }
}

/// When one of those who say nothing makes room for others, where all places are taken.
fn makes_room_at(waiting: &[Silent]) -> Option<Instant> {
    let oldest = waiting.first().filter(|_| waiting.len() >= MAX_WAITING)?;
    Some(oldest.since + MOST_SILENCE)
}

/// What is handed to a listener.
struct Parcel<'a> {
    message: &'a [u8],
    fds: &'a [BorrowedFd<'a>],
    deadline: Instant,
}

impl Parcel<'_> {
    /// Hands it to the listener of `name`; the number of its process.
    fn hand(
        &self,
        name: &str,
        may_appear: bool,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<u32> {
        let (bytes, descriptors) = (self.message.len(), self.fds.len());
        if bytes == 0 || bytes > MAX_MESSAGE_BYTES || descriptors > MAX_DESCRIPTORS {
            let why = format!(
                "{bytes} bytes and {descriptors} descriptors in one message; possible are 1 to \
                 {MAX_MESSAGE_BYTES} and 0 to {MAX_DESCRIPTORS}"
            );
            return Err(Error::config("listener", why));
        }
        let address = address(name)?;
        let what = || format!("handing {descriptors} descriptors to the abstract socket @{name}");
        let failed = |e: Errno| Error::system(what(), e);
        let mut pause = Pause::until(self.deadline);
        let socket = loop {
            match connect(&address) {
                Ok(socket) => break socket,
                // Nobody listens yet, or has room: a unix socket offers nothing to wait on.
                Err(e) if e == Errno::AGAIN || (e == Errno::CONNREFUSED && may_appear) => {
                    pause.sleep(&mut *meanwhile, || failed(e))?;
                }
                Err(e) => return Err(failed(e)),
            }
        };
        let peer = credentials(socket.as_fd()).map_err(|e| Error::system(what(), e))?;
        let ours = rustix::process::geteuid().as_raw();
        if peer.uid != ours {
            let why = format!(
                "its listener is user {}, this process is user {ours}",
                peer.uid
            );
            return Err(Error::system(
                what(),
                std::io::Error::new(std::io::ErrorKind::PermissionDenied, why),
            ));
        }
        if peer.pid == 0 {
            // Neither could watch the other's life.
            let why = "its listener is in another process namespace, such as a container has: \
                       start the processes of a node in one";
            return Err(Error::system(what(), std::io::Error::other(why)));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if descriptors > 0 {
            // The buffer has room for `MAX_DESCRIPTORS`.
            ancillary.push(SendAncillaryMessage::ScmRights(self.fds));
        }
        loop {
            let message = [IoSlice::new(self.message)];
            match rustix::net::sendmsg(&socket, &message, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(peer.pid as u32),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    wait(&mut [PollFd::new(&socket, PollFlags::OUT)], self.deadline)
                        .map_err(failed)?
                }
                Err(Errno::TOOMANYREFS) => pause.sleep(&mut *meanwhile, || {
                    let why = "more descriptors of this user are under way between processes \
                               than one process may have open: raise `ulimit -n`";
                    Error::system(what(), std::io::Error::other(why))
                })?,
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

/// Short sleeps, each longer than the one before, until a deadline.
struct Pause {
    next: Duration,
    deadline: Instant,
}

impl Pause {
    fn until(deadline: Instant) -> Self {
        Self {
            next: Duration::from_micros(50),
            deadline,
        }
    }

    /// Sleeps, after `meanwhile`, unless the time is over.
    fn sleep(
        &mut self,
        meanwhile: &mut dyn FnMut() -> Result<()>,
        is_over: impl FnOnce() -> Error,
    ) -> Result<()> {
        meanwhile()?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(is_over());
        }
        sleep(self.next.min(left));
        self.next = (self.next * 2).min(Duration::from_millis(10));
        Ok(())
    }
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    if name.is_empty() {
        return Err(Error::config("listener", "an abstract socket needs a name"));
    }
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|e| {
        Error::system(
            format!("using `{name}` as the name of an abstract socket (107 bytes at most)"),
            e,
        )
    })
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn connect(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    loop {
        let socket = socket()?;
        match rustix::net::connect(&socket, address) {
            Err(Errno::INTR) => {}
            connected => return connected.map(|()| socket),
        }
    }
}

/// User and process at the other end, as the kernel noted them when the connection was made.
fn credentials(socket: BorrowedFd<'_>) -> std::io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `bytes` are writable for the duration of the call, and `bytes` is the size
    // of `peer`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    if status == 0 {
        Ok(peer)
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// What one look at a connection finds.
enum Received {
    Whole(Message),
    /// More than a message of ours can be.
    Broken,
    /// This process had no descriptors left for those that came with it.
    Short,
    /// The sender has closed it.
    End,
}

/// One message; `None` where the sender hung up or sent what is not a message of ours.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<Message>, Errno> {
    // The kernel looks into the queue first, and only then whether the sender has closed. A sender
    // that sends and closes in between makes it report the end although the message is there: the
    // second look finds that.
    let mut received = receive_once(socket)?;
    if matches!(received, Received::End) {
        received = receive_once(socket)?;
    }
    Ok(match received {
        Received::Whole(message) => Some(message),
        Received::Short => return Err(Errno::MFILE),
        Received::Broken | Received::End => None,
    })
}

fn receive_once(socket: BorrowedFd<'_>) -> Result<Received, Errno> {
    let mut message = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut message)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    let has_lost = received.flags.contains(ReturnFlags::CTRUNC);
    // There was room for more of them, so the kernel had none to give.
    if has_lost && fds.len() < MAX_DESCRIPTORS {
        return Ok(Received::Short);
    }
    if has_lost || received.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Received::Broken);
    }
    message.truncate(received.bytes);
    Ok(Received::Whole((message, fds)))
}

/// Waits until one of them is readable: the place of the first one that is; none at the deadline.
///
/// # Errors
/// When the system refuses to wait.
pub fn wait_for_any(descriptors: &[BorrowedFd<'_>], deadline: Instant) -> Result<Option<usize>> {
    let readable = descriptors
        .iter()
        .map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    let mut watched: Vec<_> = readable.collect();
    match wait(&mut watched, deadline) {
        Ok(()) => {
            let mut watched = watched.iter();
            Ok(watched.position(|entry| !entry.revents().is_empty()))
        }
        Err(Errno::TIMEDOUT) => Ok(None),
        Err(e) => Err(Error::system("waiting for descriptors", e)),
    }
}

/// Waits until something is ready; `TIMEDOUT` at the deadline.
fn wait(watched: &mut [PollFd<'_>], deadline: Instant) -> Result<(), Errno> {
    let left = deadline.saturating_duration_since(Instant::now());
    let poll = |limit: Duration| {
        let limit = Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        rustix::event::poll(watched, Some(&limit))
    };
    match sleep_in_kernel(left, poll, |polled| *polled != Ok(0)) {
        Ok(0) => Err(Errno::TIMEDOUT),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
#[path = "descriptors_tests.rs"]
mod tests;
