//! What has come from a guest and is not yet used, and what is on its way to it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Waits;
use crate::error::{Error, Result};
use crate::face::channel::Buffer;
use crate::guest::socket::{receive_some, send_some};
use crate::guest::wire::{Answer, Call, HEAD_BYTES};

/// Bytes that are read at once, at least.
const READ_BYTES: usize = 16 << 10;

/// Buffers that are longer are given up once they are empty.
const KEPT_BYTES: usize = 64 << 10;

/// A call that has come whole, whether it is started, and the bytes behind its head.
type Whole<'a> = (Call, bool, &'a [u8]);

/// What was read and not yet used.
#[derive(Default)]
pub struct Input {
    bytes: Vec<u8>,
    used: usize,
    /// Nothing more comes.
    pub is_over: bool,
}

/// An answer that is being written.
#[derive(Default)]
pub struct Output {
    head: [u8; HEAD_BYTES],
    body: Buffer,
    /// What goes with it.
    pub given: Option<OwnedFd>,
    sent: usize,
    is_there: bool,
}

impl Input {
    /// The first call that has come whole.
    ///
    /// # Errors
    /// Why no guest of ours has sent this.
    pub fn next(&self, longest: u64) -> Result<Option<Whole<'_>>, &'static str> {
        let rest = &self.bytes[self.used..];
        let Some((head, behind)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let (call, is_started) = Call::parse(head).ok_or("a call that there is not")?;
        if call.bytes() > longest {
            return Err("a message that is longer than its channel takes");
        }
        let body = behind.get(..call.bytes() as usize);
        Ok(body.map(|body| (call, is_started, body)))
    }

    pub fn use_up(&mut self, bytes: usize) {
        self.used += bytes;
        if self.used == self.bytes.len() {
            (self.used, self.bytes) = (0, self.emptied());
        }
    }

    /// The buffer for what comes next.
    fn emptied(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        match bytes.capacity() > KEPT_BYTES {
            true => Vec::new(),
            false => bytes,
        }
    }

    /// Nothing more is read.
    pub fn end(&mut self) {
        *self = Self {
            is_over: true,
            ..Self::default()
        };
    }

    /// Bytes of the call that has come in part, beyond those that are here.
    fn missing(&self) -> usize {
        let rest = &self.bytes[self.used..];
        let head = rest.first_chunk().and_then(Call::parse);
        let whole = head.map_or(0, |(call, _)| HEAD_BYTES + call.bytes() as usize);
        whole.saturating_sub(rest.len())
    }

    /// Reads what has come; what is waited for, where nothing has.
    pub fn read(&mut self, socket: impl AsFd, is_gone: bool) -> Option<Waits> {
        let missing = self.missing();
        self.bytes.drain(..self.used);
        self.used = 0;
        // Memory for what has come, and not for what is said to come.
        let more = missing.clamp(READ_BYTES, READ_BYTES.max(self.bytes.len()));
        if self.bytes.try_reserve(more).is_err() {
            tracing::warn!(
                bytes = more,
                "no memory for the message of a guest, which is dropped"
            );
            self.end();
            return None;
        }
        match receive_some(socket, &mut self.bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) if !is_gone => {
                if self.bytes.is_empty() {
                    self.bytes = Vec::new();
                }
                return Some(Waits::Input);
            }
            Ok(0) | Err(_) => {
                if !self.bytes.is_empty() {
                    tracing::debug!("a guest has ended in the middle of a call");
                }
                self.end();
            }
            Ok(_) => {}
        }
        None
    }
}

impl Output {
    pub fn put(&mut self, answer: Answer, body: Buffer) {
        *self = Self {
            head: answer.encode(),
            body,
            given: None,
            sent: 0,
            is_there: true,
        };
    }

    /// What stands at the beginning of a connection.
    pub fn tell(&mut self, told: Result<Vec<u8>>) {
        let (answer, body) = match told {
            Ok(body) => (Answer::of_bytes(&body), body),
            Err(error) => Answer::of_error(&error),
        };
        self.put(answer, body.into());
    }

    /// Writes what there is to be written; whether that is all of it.
    pub fn flush(&mut self, socket: impl AsFd) -> Result<bool, Errno> {
        while self.is_there {
            let given = self.given.as_ref().map(AsFd::as_fd);
            let parts = (&self.head[..], &self.body[..]);
            let sent = send_some(&socket, parts, given, self.sent, SendFlags::DONTWAIT);
            match sent {
                Ok(more) => self.sent += more,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::TOOMANYREFS) if self.given.is_some() => {
                    let why = "more descriptors of this user are under way between processes than \
                               a process may have open (`ulimit -n`)";
                    self.tell(Err(Error::server_failed("", why)));
                }
                Err(error) => return Err(error),
            }
            if self.sent == HEAD_BYTES + self.body.len() {
                *self = Self::default();
            }
        }
        Ok(true)
    }
}
