//! A port of a channel, of a rank or of a guest.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

use trihop::channel::{Buffer, ChannelKind, Descriptor, Filled, Poll, Received, Return, Timeout};
use trihop::{ChannelLimits, guest, threaded};

use crate::error::{Failure, of_call};
use crate::request::UnderWay;

/// What a port says of itself at any time.
#[derive(Clone, Copy)]
pub struct About {
    pub descriptor: Descriptor,
    pub limits: ChannelLimits,
    pub kind: ChannelKind,
}

/// What sends, gets and polls.
pub enum Port {
    Rank(threaded::Channel),
    Guest(Box<OfGuest>),
}

/// A guest's port, for one thread at a time.
pub struct OfGuest {
    about: About,
    /// What it is slept on by, once somebody has asked for that.
    event: OnceLock<RawFd>,
    port: Mutex<guest::Channel>,
}

impl From<threaded::Channel> for Port {
    fn from(port: threaded::Channel) -> Self {
        Self::Rank(port)
    }
}

impl From<guest::Channel> for Port {
    fn from(port: guest::Channel) -> Self {
        Self::Guest(Box::new(OfGuest {
            about: About {
                descriptor: port.descriptor(),
                limits: port.limits(),
                kind: port.kind(),
            },
            event: OnceLock::new(),
            port: Mutex::new(port),
        }))
    }
}

impl OfGuest {
    /// The port, unless a call on it is under way.
    fn free(&self) -> Result<MutexGuard<'_, guest::Channel>, Failure> {
        match self.port.try_lock() {
            Ok(port) => Ok(port),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::Misuse(
                "another thread has a call on this guest's port under way; attach once more for \
                 each thread"
                    .to_owned(),
            )),
        }
    }
}

/// Calls the method of the port.
macro_rules! call {
    ($this:expr, $port:ident => $call:expr) => {
        match $this {
            Self::Rank($port) => $call.map_err(of_call),
            Self::Guest(guest) => {
                let mut $port = guest.free()?;
                $call.map_err(of_call)
            }
        }
    };
}

impl Port {
    pub fn about(&self) -> About {
        match self {
            Self::Rank(port) => About {
                descriptor: port.descriptor(),
                limits: port.limits(),
                kind: port.kind(),
            },
            Self::Guest(guest) => guest.about,
        }
    }

    pub fn is_guests(&self) -> bool {
        matches!(self, Self::Guest(_))
    }

    /// Whether the channel is this rank's.
    pub fn is_here(&self) -> bool {
        matches!(self, Self::Rank(port) if port.is_here())
    }

    pub fn send(
        &self,
        kind: u32,
        bytes: &[u8],
        when: Return,
        timeout: Timeout,
    ) -> Result<(), Failure> {
        call!(self, port => port.send(kind, bytes, when, timeout))
    }

    pub fn buffer(&self, bytes: usize) -> Result<Buffer, Failure> {
        match self {
            Self::Rank(port) => port.buffer(bytes).map_err(of_call),
            Self::Guest(guest) => guest.free()?.buffer(bytes).map_err(of_call),
        }
    }

    pub fn send_buffer(
        &self,
        kind: u32,
        message: &mut Buffer,
        when: Return,
        timeout: Timeout,
    ) -> Result<(), Failure> {
        call!(self, port => port.send_buffer(kind, message, when, timeout))
    }

    pub fn get(&self, timeout: Timeout) -> Result<Received, Failure> {
        call!(self, port => port.get(timeout))
    }

    pub fn get_into(&self, into: &mut [u8], timeout: Timeout) -> Result<Filled, Failure> {
        call!(self, port => port.get_into(into, timeout))
    }

    pub fn peek(&self, timeout: Timeout) -> Result<Received, Failure> {
        call!(self, port => port.peek(timeout))
    }

    pub fn pop(&self, timeout: Timeout) -> Result<Received, Failure> {
        call!(self, port => port.pop(timeout))
    }

    pub fn poll(&self, what: Poll, timeout: Timeout) -> Result<u64, Failure> {
        call!(self, port => port.poll(what, timeout))
    }

    pub fn start_get(&self, timeout: Timeout) -> Result<UnderWay, Failure> {
        call!(self, port => port.start_get(timeout).map(UnderWay::from))
    }

    pub fn start_poll(&self, what: Poll, timeout: Timeout) -> Result<UnderWay, Failure> {
        call!(self, port => port.start_poll(what, timeout).map(UnderWay::from))
    }

    pub fn start_send(
        &self,
        kind: u32,
        bytes: &[u8],
        when: Return,
        timeout: Timeout,
    ) -> Result<UnderWay, Failure> {
        call!(self, port => port.start_send(kind, bytes, when, timeout).map(UnderWay::from))
    }

    /// The descriptor that it is slept on by, which stays the port's. That of a guest is had again
    /// while a call on its port is under way, and once that has failed: whoever has it in a loop
    /// takes it out of that then.
    pub fn event(&self) -> Result<RawFd, Failure> {
        if let Self::Guest(guest) = self
            && let Some(event) = guest.event.get()
        {
            return Ok(*event);
        }
        let event = call!(self, port => port.event().map(|event| event.as_raw_fd()))?;
        Ok(match self {
            Self::Rank(_) => event,
            Self::Guest(guest) => *guest.event.get_or_init(|| event),
        })
    }

    pub fn failures(&self) -> Result<(u64, Option<trihop::Error>), Failure> {
        match self {
            Self::Rank(port) => Ok(port.failures()),
            Self::Guest(guest) => guest.free()?.failures().map_err(of_call),
        }
    }

    pub fn close(&self) -> Result<(), Failure> {
        call!(self, port => port.close())
    }
}
