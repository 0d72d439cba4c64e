//! One rank's connection, as the side that answers has it: requests in, replies out, never waiting.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::wire::{BadFrame, FRAME_BYTES_MAX, Frames, Reply, Request};

/// The launcher's end of a rank's connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    frames: Frames,
    unsent: VecDeque<u8>,
}

impl Connection {
    /// Of a connected stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            frames: Frames::default(),
            unsent: VecDeque::new(),
        }
    }

    /// Whether the next request may be read: answers are taken before more is asked.
    pub fn wants_requests(&self) -> bool {
        self.unsent.len() < FRAME_BYTES_MAX
    }

    /// Whether the rank has room for less than it is to get.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Answers; [`Connection::flush`] sends it.
    pub fn reply(&mut self, reply: &Reply) {
        let mut frame = Vec::new();
        reply.encode(&mut frame);
        self.unsent.extend(frame);
    }

    /// Sends what the rank has room for; false once the rank has hung up.
    pub fn flush(&mut self) -> bool {
        while !self.unsent.is_empty() {
            let (first, _) = self.unsent.as_slices();
            match send(
                &self.socket,
                first,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what has arrived and appends the requests in it; false once the rank has hung up.
    ///
    /// # Errors
    /// Bytes that no rank sends; the connection cannot be read on.
    pub fn receive(&mut self, requests: &mut Vec<Request>) -> Result<bool, BadFrame> {
        let mut chunk = [0_u8; 64 << 10];
        let open = match recv(&self.socket, &mut chunk[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => false,
            Ok((count, _)) => {
                self.frames
                    .tail()
                    .extend_from_slice(&chunk[..count.min(chunk.len())]);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        };
        while let Some(frame) = self.frames.next_frame()? {
            requests.push(Request::parse(frame)?);
        }
        Ok(open)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
