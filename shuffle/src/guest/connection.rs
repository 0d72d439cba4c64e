//! One port of a guest, at its server: reads calls, makes them by a port of the server's rank, and
//! writes answers. It never waits: it says what it waits for.

mod buffers;
mod calls;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Waker;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use self::buffers::{Input, Output};
pub use self::calls::Started;
use self::calls::{Begun, Limit, Port, UnderWay};
use super::Lifetime;
use super::wire::{Answer, HEAD_BYTES, Welcome};
use crate::error::{Error, Result};
use crate::face::channel::{Buffer, Opening};
use crate::threaded::{Channel, Threaded};

/// Calls that are made, and reads, before it is another connection's turn.
const TURN_CALLS: u32 = 64;

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// It is another one's turn.
    Turn,
    /// Something to read.
    Input,
    /// Room to write.
    Output,
    /// Its waker, or the end of its guest.
    Alarm,
    /// Its waker, or a short time: nothing says when there is room for its send.
    Soon,
    /// Nothing: it is over.
    End,
}

/// What a connection does.
enum Stage {
    /// The channel's owner opens a port.
    Opening(Opening<Threaded>),
    Open(Port),
    /// A call is under way that a port has started.
    Started(UnderWay),
    /// It has ended, which the guest is told: nothing is taken before it asks how.
    Ended(UnderWay),
    /// The guest was refused, or told what it wanted to know.
    Told,
}

pub struct Connection {
    waker: Waker,
    stage: Stage,
    input: Input,
    /// What has come with the call that is to be started.
    given: Option<OwnedFd>,
    output: Output,
    /// The guest has closed its end, or is gone: what it has sent is still read.
    is_gone: bool,
    limit: Limit,
    /// Closed last: whoever sees that finds what was under way taken back.
    socket: OwnedFd,
}

impl Connection {
    /// A guest that is told something, and no more.
    pub fn telling(socket: OwnedFd, waker: Waker, told: Result<Vec<u8>>) -> Self {
        let mut connection = Self::new(socket, waker, Stage::Told);
        connection.output.tell(told);
        connection
    }

    /// A guest with a port of a channel that this rank has just made.
    pub fn open(socket: OwnedFd, waker: Waker, channel: Channel, lifetime: Lifetime) -> Self {
        let welcome = welcome(&channel);
        let port = Port::new(channel, lifetime == Lifetime::Guest);
        let mut connection = Self::new(socket, waker, Stage::Open(port));
        connection.output.tell(Ok(welcome));
        connection
    }

    /// A guest whose port is being opened.
    pub fn opening(socket: OwnedFd, waker: Waker, opening: Opening<Threaded>) -> Self {
        Self::new(socket, waker, Stage::Opening(opening))
    }

    /// A guest that hears of the end of a call.
    pub fn started(started: Started, waker: Waker) -> Self {
        let Started {
            socket,
            call,
            limit,
        } = started;
        Self {
            limit,
            ..Self::new(socket, waker, Stage::Started(call))
        }
    }

    fn new(socket: OwnedFd, waker: Waker, stage: Stage) -> Self {
        Self {
            socket,
            waker,
            stage,
            input: Input::default(),
            given: None,
            output: Output::default(),
            is_gone: false,
            limit: Limit::default(),
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Nothing more is taken than what has come.
    pub fn shut(&self) {
        // Where it is shut already nothing comes anyway.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Read);
    }

    /// When it is to be looked at, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        self.limit.at.filter(|_| !self.limit.is_looked_at)
    }

    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether it is of one call, and no port.
    pub fn is_of_call(&self) -> bool {
        matches!(self.stage, Stage::Started(_) | Stage::Ended(_))
    }

    /// The guest's end is closed.
    pub fn hang_up(&mut self) {
        self.is_gone = true;
    }

    /// Does what can be done now. What it starts goes to `started`.
    pub fn advance(&mut self, started: &mut Vec<Started>) -> Waits {
        self.limit.is_looked_at = self.limit.is_over();
        let mut calls = 0;
        loop {
            match self.output.flush(&self.socket) {
                Ok(true) => {}
                Ok(false) if !self.is_gone => return Waits::Output,
                // Nobody reads it any more.
                Ok(false) | Err(_) => {
                    self.is_gone = true;
                    self.output = Output::default();
                }
            }
            let next = match &mut self.stage {
                Stage::Told => return Waits::End,
                Stage::Opening(opening) => opening.look(&self.waker),
                Stage::Open(_) => match self.serve(&mut calls, started) {
                    None => continue,
                    Some(waits) => return waits,
                },
                Stage::Started(_) | Stage::Ended(_) => match self.attend() {
                    None => continue,
                    Some(waits) => return waits,
                },
            };
            match next {
                // An opening that is dropped closes its port.
                Ok(None) if self.is_gone => return Waits::End,
                Ok(None) => return Waits::Alarm,
                Ok(Some(channel)) => {
                    self.output.tell(Ok(welcome(&channel)));
                    self.stage = Stage::Open(Port::new(channel, false));
                }
                Err(error) => {
                    self.output.tell(Err(error));
                    self.stage = Stage::Told;
                }
            }
        }
    }

    /// One step of a call that was started; what it waits for, where it can do no more.
    fn attend(&mut self) -> Option<Waits> {
        let (call, has_ended) = match &mut self.stage {
            Stage::Started(call) => (call, false),
            Stage::Ended(call) => (call, true),
            _ => return None,
        };
        if self.is_gone {
            // Nobody takes what it gives; but what was sent whole comes into the channel.
            let goes_on = matches!(call, UnderWay::Send(_)) && !has_ended;
            return Some(match goes_on && call.look(&self.waker).is_none() {
                true => Waits::Alarm,
                false => Waits::End,
            });
        }
        if !has_ended {
            if !call.has_ended(&self.waker) {
                // The call keeps its time by itself, which may be over a little later.
                return Some(match self.limit.is_over() {
                    true => Waits::Soon,
                    false => Waits::Alarm,
                });
            }
            self.limit = Limit::default();
            self.output.put(Answer::ready(), Buffer::default());
            if let Stage::Started(call) = std::mem::replace(&mut self.stage, Stage::Told) {
                self.stage = Stage::Ended(call);
            }
            return None;
        }
        match rustix::net::recv(&self.socket, &mut [0], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Some(Waits::Input),
            Err(Errno::INTR) => {}
            Ok((0, _)) | Err(_) => self.is_gone = true,
            // Whatever byte it is: there is nothing else to ask for.
            Ok(_) => {
                let ended = call.look(&self.waker);
                let (answer, body) = ended.unwrap_or_else(|| {
                    let why = "a call has ended, and does not say how";
                    let (answer, text) = Answer::of_error(&Error::server_failed("", why));
                    (answer, text.into())
                });
                self.output.put(answer, body);
                self.stage = Stage::Told;
            }
        }
        None
    }

    /// One step of an open port; what it waits for, where it can do no more.
    fn serve(&mut self, calls: &mut u32, started: &mut Vec<Started>) -> Option<Waits> {
        let Stage::Open(port) = &mut self.stage else {
            return None;
        };
        port.reap(&self.waker);
        if let Some(call) = &mut port.call {
            if self.is_gone {
                port.give_up();
                self.limit = Limit::default();
                return None;
            }
            let Some((answer, body)) = call.look(&self.waker) else {
                // The call keeps its time by itself, which may be over a little later.
                return Some(match self.limit.is_over() {
                    true => Waits::Soon,
                    false => Waits::Alarm,
                });
            };
            port.call = None;
            self.limit = Limit::default();
            self.output.put(answer, body);
            return None;
        }
        let next = match self.input.next(port.channel.longest() as u64) {
            Ok(next) => next,
            Err(why) => {
                tracing::warn!(why, "a guest has sent what is not valid, and is dropped");
                self.input.end();
                None
            }
        };
        let Some((call, is_started, body)) = next else {
            if self.input.is_over {
                return port.finish();
            }
            *calls += 1;
            return match *calls > TURN_CALLS {
                true => Some(Waits::Turn),
                false => self.input.read(&self.socket, &mut self.given, self.is_gone),
            };
        };
        if *calls >= TURN_CALLS {
            return Some(Waits::Turn);
        }
        *calls += 1;
        let begun = match is_started {
            true => port.start(call, body, self.given.take(), started),
            false => port.begin(call, body, &mut self.limit),
        };
        match begun {
            Begun::NoRoom => {
                // What is under way takes the room, unless queues of this rank are full.
                return Some(match port.sends.is_empty() {
                    true => Waits::Soon,
                    false => Waits::Alarm,
                });
            }
            Begun::Answer(answer, body) => self.output.put(answer, body),
            Begun::Unanswered => {}
            Begun::UnderWay(call) => port.call = Some(call),
            Begun::Descriptor(given) => {
                self.output.put(Answer::default(), Buffer::default());
                self.output.given = Some(given);
            }
        }
        if port.call.is_none() {
            self.limit = Limit::default();
        }
        self.input.use_up(HEAD_BYTES + call.bytes() as usize);
        None
    }
}

fn welcome(channel: &Channel) -> Vec<u8> {
    let welcome = Welcome {
        descriptor: channel.descriptor(),
        kind: channel.kind(),
        limits: channel.limits(),
        longest: channel.longest() as u64,
    };
    welcome.encode()
}
