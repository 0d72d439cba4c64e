//! What a port of a guest has under way, by a port of the server's rank.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll as Polled, Waker};
use std::time::Instant;

use trihop_transport::Error as TransportError;

use super::{Waits, too_many};
use crate::error::{Error, Result};
use crate::face::channel::{Asked, Buffer, Return, Taken, Timeout};
use crate::guest::socket::{Socket, pair};
use crate::guest::wire::{Answer, Call, OVER, TOO_LONG, UNDER_WAY};
use crate::threaded::{Channel, Threaded};

/// A port of the rank for a guest.
pub struct Port {
    pub channel: Channel,
    /// The channel is closed with this port.
    ends_with_guest: bool,
    /// Sends that nobody waits for, in their order.
    sends: VecDeque<Asked<(), Threaded>>,
    /// Some of these end once their time is over, which they hear of when they are looked at.
    are_timed: bool,
    pub call: Option<UnderWay>,
    failures: Failures,
}

/// Sends that have failed after they had returned.
#[derive(Default)]
struct Failures {
    count: u64,
    last: Option<Error>,
}

impl Failures {
    fn note(&mut self, error: Error) {
        self.count += 1;
        self.last = Some(error);
    }
}

/// A call whose end the guest is to hear of.
pub enum UnderWay {
    Send(Asked<(), Threaded>),
    Take(Asked<Taken, Threaded>),
    Poll(Asked<u64, Threaded>),
}

/// A call that was started: its end is told over a socket of its own.
pub struct Started {
    pub call: UnderWay,
    pub limit: Limit,
    /// Wakes the port, whose window has room where it is a send that has ended.
    pub port: Waker,
    /// Closed last, as that of a connection.
    pub socket: Socket,
}

/// Calls that are started.
pub struct Starts {
    pub begun: Vec<Started>,
    /// How many more may be.
    pub left: usize,
}

/// Until when the call may take that is under way, or waits for room.
#[derive(Default)]
pub struct Limit {
    pub at: Option<Instant>,
    /// It was looked at when its time was over.
    pub is_looked_at: bool,
}

/// How a call has begun.
pub enum Begun {
    /// It is done, and this is the answer.
    Answer(Answer, Buffer),
    /// It is done, or counted, and nothing is answered.
    Unanswered,
    UnderWay(UnderWay),
    /// This goes with the answer, which has this value.
    Descriptor(u64, OwnedFd),
    /// A send has found no room, and is to be tried again.
    NoRoom,
}

impl Limit {
    /// What is left of this time, which begins with the first time that it is asked for.
    fn left(&mut self, timeout: Timeout) -> Timeout {
        let Timeout::After(time) = timeout else {
            return timeout;
        };
        let now = Instant::now();
        if self.at.is_none() {
            self.at = now.checked_add(time);
        }
        match self.at {
            Some(at) => Timeout::After(at.saturating_duration_since(now)),
            None => Timeout::Never,
        }
    }

    pub fn is_over(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// What a call that is under way waits for. It keeps its time by itself, which may be over a
    /// little later than this one.
    pub fn waits(&self) -> Waits {
        match self.is_over() {
            true => Waits::Soon,
            false => Waits::Alarm,
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close_own();
    }
}

impl Port {
    pub fn new(channel: Channel, ends_with_guest: bool) -> Self {
        Self {
            channel,
            ends_with_guest,
            sends: VecDeque::new(),
            are_timed: false,
            call: None,
            failures: Failures::default(),
        }
    }

    /// Takes note of sends that have ended. They do so in their order, more or less, and whoever
    /// has ended behind one that has not is counted with it.
    pub fn reap(&mut self, waker: &Waker) {
        let mut context = Context::from_waker(waker);
        while let Some(first) = self.sends.front_mut() {
            let Polled::Ready(sent) = Pin::new(first).poll(&mut context) else {
                return;
            };
            self.sends.pop_front();
            if let Err(error) = sent {
                self.failures.note(error);
            }
        }
    }

    /// As [`Port::reap`], of all: of those too that have ended before one that has not. Whether any
    /// has.
    pub fn reap_all(&mut self, waker: &Waker) -> bool {
        let mut context = Context::from_waker(waker);
        let before = self.sends.len();
        self.sends.retain_mut(|send| {
            let Polled::Ready(sent) = Pin::new(send).poll(&mut context) else {
                return true;
            };
            if let Err(error) = sent {
                self.failures.note(error);
            }
            false
        });
        self.sends.len() < before
    }

    /// Whether its waker is woken once there is room for one more send.
    pub fn is_told_of_room(&mut self) -> bool {
        self.are_timed &= !self.sends.is_empty();
        !self.sends.is_empty() && !self.are_timed
    }

    /// Nobody waits for the call any more: a get or a poll is taken back, and a send goes on.
    pub fn give_up(&mut self) {
        if let Some(UnderWay::Send(asked)) = self.call.take() {
            self.sends.push_back(asked);
        }
    }

    /// Closes a channel that ends with its guest, once; whether it was one.
    fn close_own(&mut self) -> bool {
        let ends = std::mem::take(&mut self.ends_with_guest);
        if ends {
            // Where that fails the job has, and all channels are closed.
            let _ = self.channel.close();
        }
        ends
    }

    /// The guest asks for nothing more.
    pub fn finish(&mut self) -> Option<Waits> {
        if self.close_own() {
            return None;
        }
        match self.sends.is_empty() {
            true => Some(Waits::End),
            false => Some(Waits::Alarm),
        }
    }

    pub fn begin(&mut self, call: Call, body: &[u8], limit: &mut Limit) -> Begun {
        match self.try_begin(call, body, limit) {
            Ok(begun) => begun,
            Err(error) if call.is_answered() => Begun::failed(&error),
            Err(error) => {
                self.failures.note(error);
                Begun::Unanswered
            }
        }
    }

    /// Begins a call whose end is told over a socket of its own, where it is under way: that goes
    /// with the answer.
    pub fn start(
        &mut self,
        call: Call,
        body: &[u8],
        port: &Waker,
        starts: &mut Starts,
    ) -> Result<Begun> {
        if starts.left == 0 {
            return Err(Error::config("guests", too_many()));
        }
        let (ours, theirs) = pair().map_err(|error| {
            let what = "a socket for a call that is started";
            TransportError::system(what, error)
        })?;
        let mut limit = Limit::default();
        match self.try_begin(call, body, &mut limit) {
            Ok(Begun::UnderWay(call)) => {
                starts.left -= 1;
                starts.begun.push(Started {
                    call,
                    limit,
                    port: port.clone(),
                    socket: Socket::new(ours),
                });
                Ok(Begun::Descriptor(UNDER_WAY, theirs))
            }
            // A start waits for no room.
            Ok(Begun::NoRoom) | Err(Error::TimedOut(_)) => Err(Error::WouldBlock),
            Ok(_) => Ok(Begun::Answer(Answer::of_value(OVER), Buffer::default())),
            Err(error) => Err(error),
        }
    }

    fn try_begin(&mut self, call: Call, body: &[u8], limit: &mut Limit) -> Result<Begun> {
        match call {
            Call::Send {
                kind,
                when,
                timeout,
                ..
            } => self.begin_send((kind, body), (when, timeout), limit),
            Call::Take { take, timeout } => {
                let started = self.channel.start_take(take, limit.left(timeout));
                started.map(|asked| Begun::UnderWay(UnderWay::Take(asked)))
            }
            Call::Poll { poll, timeout } => {
                let started = self.channel.start_poll(poll, limit.left(timeout));
                started.map(|asked| Begun::UnderWay(UnderWay::Poll(asked)))
            }
            Call::Failures => Ok(self.said_failures()),
            Call::Close => self.channel.close().map(|()| Begun::done()),
            Call::Event => {
                let event = self.channel.event()?.try_clone_to_owned();
                let event = event.map_err(|error| {
                    TransportError::system("a descriptor of a channel for a guest", error)
                });
                Ok(Begun::Descriptor(0, event?))
            }
        }
    }

    fn begin_send(
        &mut self,
        (kind, bytes): (u32, &[u8]),
        (when, timeout): (Return, Timeout),
        limit: &mut Limit,
    ) -> Result<Begun> {
        let is_waited_for = matches!(when, Return::WhenDeposited | Return::WhenReceived);
        let at_owner = match is_waited_for {
            true => when,
            false => Return::WhenDeposited,
        };
        let left = limit.left(timeout);
        let asked = match self.channel.start_send(kind, bytes, at_owner, left) {
            Err(Error::WouldBlock) if when == Return::Immediately || timeout == Timeout::Once => {
                return Err(Error::WouldBlock);
            }
            Err(Error::WouldBlock) if limit.is_over() => return Err(Error::TimedOut("a send")),
            Err(Error::WouldBlock) => return Ok(Begun::NoRoom),
            asked => asked?,
        };
        if is_waited_for {
            return Ok(Begun::UnderWay(UnderWay::Send(asked)));
        }
        self.sends.push_back(asked);
        self.are_timed |= matches!(timeout, Timeout::After(_));
        match when == Return::WhenBuffered && timeout == Timeout::Never {
            true => Ok(Begun::Unanswered),
            false => Ok(Begun::done()),
        }
    }

    /// How many sends have failed, and the error of the last of them.
    fn said_failures(&self) -> Begun {
        let last = self.failures.last.as_ref().map(|error| {
            let (answer, text) = Answer::of_error(error);
            [&answer.encode()[..], &text].concat()
        });
        let body = Buffer::from(last.unwrap_or_default());
        let answer = Answer {
            value: self.failures.count,
            ..Answer::of_bytes(&body)
        };
        Begun::Answer(answer, body)
    }
}

impl Begun {
    fn done() -> Self {
        Self::Answer(Answer::default(), Buffer::default())
    }

    pub fn failed(error: &Error) -> Self {
        let (answer, text) = Answer::of_error(error);
        Self::Answer(answer, text.into())
    }
}

impl UnderWay {
    /// Whether it has, and nothing is taken; else `waker` is woken then.
    pub fn has_ended(&mut self, waker: &Waker) -> bool {
        match self {
            Self::Send(asked) => asked.has_ended(waker),
            Self::Poll(asked) => asked.has_ended(waker),
            Self::Take(asked) => asked.has_ended(waker),
        }
    }

    /// The answer, where the call has ended; else `waker` is woken then.
    pub fn look(&mut self, waker: &Waker) -> Option<(Answer, Buffer)> {
        let mut context = Context::from_waker(waker);
        let of_value = |value| (Answer::of_value(value), Buffer::default());
        let ended = match self {
            Self::Send(asked) => Pin::new(asked).poll(&mut context).map_ok(|()| of_value(0)),
            Self::Poll(asked) => Pin::new(asked).poll(&mut context).map_ok(of_value),
            Self::Take(asked) => Pin::new(asked).poll(&mut context).map_ok(of_taken),
        };
        match ended {
            Polled::Pending => None,
            Polled::Ready(Ok(answer)) => Some(answer),
            Polled::Ready(Err(error)) => {
                let (answer, text) = Answer::of_error(&error);
                Some((answer, text.into()))
            }
        }
    }
}

fn of_taken(taken: Taken) -> (Answer, Buffer) {
    match taken {
        Taken::Message(message) => {
            let answer = Answer {
                kind: message.kind,
                source: message.source.0,
                ..Answer::of_bytes(&message.bytes)
            };
            (answer, message.bytes)
        }
        Taken::TooLong(bytes) => {
            let answer = Answer {
                status: TOO_LONG,
                ..Answer::of_value(bytes)
            };
            (answer, Buffer::default())
        }
    }
}
