//! File descriptors of guests that are readable while something may be had from a channel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use trihop_transport::Error as TransportError;

use crate::error::Result;

/// Readable while the server's port says that something may be had, or once the server is gone.
#[derive(Debug)]
pub struct Event {
    epoll: OwnedFd,
    /// What the server's port sets and clears.
    _said: OwnedFd,
}

impl Event {
    /// Over the descriptor that the server has given, and the socket of the port.
    pub fn over(said: OwnedFd, socket: BorrowedFd<'_>) -> Result<Self> {
        let failed = |error: Errno| {
            let what = "a descriptor of a guest's channel to sleep on";
            TransportError::system(what, error)
        };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        // Answers make the socket readable too, but not this.
        for (of, flags) in [(said.as_fd(), EventFlags::IN), (socket, EventFlags::RDHUP)] {
            epoll::add(&epoll, of, EventData::new_u64(0), flags).map_err(failed)?;
        }
        Ok(Self { epoll, _said: said })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
