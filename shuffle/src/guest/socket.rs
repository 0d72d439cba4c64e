//! Bytes on the socket of a guest and its server.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg,
    shutdown,
};
use trihop_transport::park::Awake;

use crate::seat::{Looking, Yields};

/// An end of a connection. Dropped by the process that has it, it is shut down: a copy of it, as a
/// fork has, keeps nothing open.
#[derive(Debug)]
pub struct Socket {
    end: OwnedFd,
    process: u32,
}

impl Socket {
    pub fn new(end: OwnedFd) -> Self {
        let process = std::process::id();
        Self { end, process }
    }

    /// Whether it is of this process, and not of the one that has forked this one.
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_own() {
            // Where it is shut down already there is nothing to do.
            let _ = shutdown(&self.end, Shutdown::Both);
        }
    }
}

/// How a guest and its server wait for each other before they sleep, and whether they yield: as
/// threads of ranks do that have a core. How many share the cores neither of them knows.
pub fn waits() -> (Looking, Yields) {
    let awake = Awake::new(1.0, 2);
    (Looking::new(awake), Yields::new(awake, 1.0))
}

/// Two ends that are connected.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Sends some bytes of what is left behind the first `sent` of a head and a body; how many. A
/// descriptor goes with the first of them. No signal is raised where the other end is closed.
pub fn send_some(
    socket: impl AsFd,
    (head, body): (&[u8], &[u8]),
    given: Option<BorrowedFd<'_>>,
    sent: usize,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let from_head = head.get(sent..).unwrap_or_default();
    let from_body = &body[sent.saturating_sub(head.len())..];
    let parts = [IoSlice::new(from_head), IoSlice::new(from_body)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let given = given.as_slice();
    if sent == 0 && !given.is_empty() {
        // The buffer has room for one.
        with.push(SendAncillaryMessage::ScmRights(given));
    }
    loop {
        match sendmsg(&socket, &parts, &mut with, flags | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}

/// Reads some bytes behind those of `into`, within its capacity; how many, 0 at the end.
pub fn receive_some(
    socket: impl AsFd,
    into: &mut Vec<u8>,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    loop {
        match recv(&socket, spare_capacity(into), flags) {
            Err(Errno::INTR) => {}
            received => return received.map(|(bytes, _)| bytes),
        }
    }
}

/// Reads some bytes; how many, 0 at the end, and the descriptor that has come with them.
pub fn receive_with(socket: impl AsFd, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(into)];
        match recvmsg(&socket, parts, &mut with, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let given = with.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok((received.bytes, given))
}
