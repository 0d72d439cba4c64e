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
use self::calls::{Begun, Limit, Port, UnderWay};
pub use self::calls::{Started, Starts};
use super::Lifetime;
use super::socket::Socket;
use super::wire::{Answer, HEAD_BYTES, Welcome};
use crate::error::{Error, Result};
use crate::face::channel::{Buffer, Opening};
use crate::threaded::{Channel, Threaded};

/// Connections at a time. The process's descriptors may be fewer.
pub const MOST_CONNECTIONS: usize = 1 << 16;

/// Why nobody more is served.
pub fn too_many() -> String {
    format!("{MOST_CONNECTIONS} ports and calls are open, and no more may be")
}

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
    /// Its waker, or a longer time: others may have the room that its send waits for, whose end
    /// nobody says here.
    Later,
    /// Nothing: it is over.
    End,
}

/// What a connection does.
enum Stage {
    /// The channel's owner opens a port.
    Opening(Opening<Threaded>),
    Open(Port),
    /// A call that a port has started.
    Call(OfCall),
    /// The guest was refused, or told what it wanted to know.
    Told,
}

/// A call that a port has started, and what was said of its end.
struct OfCall {
    call: UnderWay,
    /// Wakes the port.
    port: Waker,
    said: Said,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// Nothing: it is under way.
    Nothing,
    /// That it has ended: nothing is taken before the guest asks how.
    Ended,
    /// The guest has asked how.
    Asked,
}

pub struct Connection {
    waker: Waker,
    stage: Stage,
    input: Input,
    /// The first call that has come is a start that has found no room, and is tried once more.
    is_tried: bool,
    output: Output,
    /// The guest has closed its end, or is gone: what it has sent is still read.
    is_gone: bool,
    limit: Limit,
    /// None of a call whose guest is gone. Closed last: whoever sees that finds what was under way
    /// taken back.
    socket: Option<Socket>,
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
            call,
            limit,
            port,
            socket,
        } = started;
        let said = Said::Nothing;
        Self {
            limit,
            ..Self::over(socket, waker, Stage::Call(OfCall { call, port, said }))
        }
    }

    fn new(socket: OwnedFd, waker: Waker, stage: Stage) -> Self {
        Self::over(Socket::new(socket), waker, stage)
    }

    fn over(socket: Socket, waker: Waker, stage: Stage) -> Self {
        Self {
            socket: Some(socket),
            waker,
            stage,
            input: Input::default(),
            is_tried: false,
            output: Output::default(),
            is_gone: false,
            limit: Limit::default(),
        }
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// The kernel tells nothing of it any more: that of a call is closed, which goes on alone.
    pub fn is_heard_no_longer(&mut self) {
        if self.is_of_call() {
            self.socket = None;
        }
    }

    /// Nothing more is taken than what has come.
    pub fn shut(&self) {
        if let Some(socket) = &self.socket {
            // Where it is shut already nothing comes anyway.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
        }
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
        matches!(self.stage, Stage::Call(_))
    }

    /// The guest's end is closed.
    pub fn hang_up(&mut self) {
        self.is_gone = true;
    }

    /// Does what can be done now. What it starts goes to `starts`.
    pub fn advance(&mut self, starts: &mut Starts) -> Waits {
        self.limit.is_looked_at = self.limit.is_over();
        let mut calls = 0;
        loop {
            let flushed = match &self.socket {
                Some(socket) => self.output.flush(socket),
                None => Ok(true),
            };
            match flushed {
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
                Stage::Open(_) => match self.serve(&mut calls, starts) {
                    None => continue,
                    Some(waits) => return waits,
                },
                Stage::Call(_) => match self.attend() {
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
        let (Stage::Call(of), Some(socket)) = (&mut self.stage, &self.socket) else {
            return Some(self.go_on_alone());
        };
        if self.is_gone {
            return Some(self.go_on_alone());
        }
        match of.said {
            Said::Nothing if of.call.has_ended(&self.waker) => {
                of.said = Said::Ended;
                of.port.wake_by_ref();
                self.limit = Limit::default();
                self.output.put(Answer::ready(), Buffer::default());
            }
            Said::Nothing => return Some(self.limit.waits()),
            Said::Ended => match rustix::net::recv(socket, &mut [0], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return Some(Waits::Input),
                Err(Errno::INTR) => {}
                Ok((0, _)) | Err(_) => self.is_gone = true,
                // Whatever byte it is: there is nothing else to ask for.
                Ok(_) => of.said = Said::Asked,
            },
            Said::Asked => {
                let Some((answer, body)) = of.call.look(&self.waker) else {
                    return Some(Waits::Soon);
                };
                self.output.put(answer, body);
                self.stage = Stage::Told;
            }
        }
        None
    }

    /// Nobody takes what a call gives; but what was sent whole comes into the channel.
    fn go_on_alone(&mut self) -> Waits {
        let Stage::Call(of) = &mut self.stage else {
            return Waits::End;
        };
        if matches!(of.call, UnderWay::Send(_)) && of.said == Said::Nothing {
            if of.call.look(&self.waker).is_none() {
                return self.limit.waits();
            }
            of.port.wake_by_ref();
        }
        Waits::End
    }

    /// One step of an open port; what it waits for, where it can do no more.
    fn serve(&mut self, calls: &mut u32, starts: &mut Starts) -> Option<Waits> {
        let (Stage::Open(port), Some(socket)) = (&mut self.stage, &self.socket) else {
            return Some(Waits::End);
        };
        port.reap(&self.waker);
        if let Some(call) = &mut port.call {
            if self.is_gone {
                port.give_up();
                self.limit = Limit::default();
                return None;
            }
            let Some((answer, body)) = call.look(&self.waker) else {
                return Some(self.limit.waits());
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
                false => self.input.read(socket, self.is_gone),
            };
        };
        if *calls >= TURN_CALLS {
            return Some(Waits::Turn);
        }
        *calls += 1;
        let begun = match is_started {
            true => match port.start(call, body, &self.waker, starts) {
                // Calls that the guest has dropped before may still have the room.
                Err(Error::WouldBlock) if !std::mem::replace(&mut self.is_tried, true) => {
                    return Some(Waits::Turn);
                }
                begun => begun.unwrap_or_else(|error| Begun::failed(&error)),
            },
            false => port.begin(call, body, &mut self.limit),
        };
        self.is_tried = false;
        match begun {
            Begun::NoRoom => {
                // What is under way takes the room, unless queues of this rank are full.
                let has_ended = port.reap_all(&self.waker);
                return match port.is_told_of_room() {
                    _ if has_ended => None,
                    true => Some(Waits::Later),
                    false => Some(Waits::Soon),
                };
            }
            Begun::Answer(answer, body) => self.output.put(answer, body),
            Begun::Unanswered => {}
            Begun::UnderWay(call) => port.call = Some(call),
            Begun::Descriptor(value, given) => {
                self.output.put(Answer::of_value(value), Buffer::default());
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
