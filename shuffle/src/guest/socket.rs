//! Bytes on the socket of a guest and its server.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, recv,
    sendmsg,
};
use trihop_transport::park::Awake;

/// How a guest and its server wait for each other before they sleep: they yield, as threads of
/// ranks do that have a core. How many share the cores neither of them knows.
pub fn awake() -> Awake {
    Awake::new(1.0, 2)
}

/// Two ends that are connected.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Sends some bytes of what is left behind the first `sent` of a head and a body; how many. No
/// signal is raised where the other end is closed.
pub fn send_some(
    socket: impl AsFd,
    head: &[u8],
    body: &[u8],
    sent: usize,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let from_head = head.get(sent..).unwrap_or_default();
    let from_body = &body[sent.saturating_sub(head.len())..];
    let parts = [IoSlice::new(from_head), IoSlice::new(from_body)];
    let nothing = &mut SendAncillaryBuffer::default();
    loop {
        match sendmsg(&socket, &parts, nothing, flags | SendFlags::NOSIGNAL) {
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
