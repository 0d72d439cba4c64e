//! One port of a guest, at its server: reads calls, makes them by a port of the server's rank, and
//! writes answers. It never waits: it says what it waits for.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll as Polled, Waker};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use trihop_transport::Error as TransportError;

use super::Lifetime;
use super::socket::{receive_some, receive_with, send_some};
use super::wire::{Answer, Call, HEAD_BYTES, OVER, TOO_LONG, UNDER_WAY, Welcome};
use crate::error::{Error, Result};
use crate::face::channel::{Asked, Buffer, Opening, Return, Taken, Timeout};
use crate::threaded::{Channel, Threaded};

/// Bytes that are read at once, at least.
const READ_BYTES: usize = 16 << 10;

/// Buffers that are longer are given up once they are empty.
const KEPT_BYTES: usize = 64 << 10;

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

struct Port {
    channel: Channel,
    /// The channel is closed with this port.
    ends_with_guest: bool,
    /// Sends that nobody waits for, in their order.
    sends: VecDeque<Asked<(), Threaded>>,
    call: Option<UnderWay>,
    failures: u64,
    last_failure: Option<Error>,
}

/// A call whose end the guest is to hear of.
enum UnderWay {
    Send(Asked<(), Threaded>),
    Take(Asked<Taken, Threaded>),
    Poll(Asked<u64, Threaded>),
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

/// A call that was started: its end is told over a socket of its own.
pub struct Started {
    socket: OwnedFd,
    call: UnderWay,
    limit: Limit,
}

/// Until when the call may take that is under way, or waits for room.
#[derive(Default)]
struct Limit {
    at: Option<Instant>,
    /// It was looked at when its time was over.
    is_looked_at: bool,
}

/// What was read and not yet used.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    used: usize,
    /// Nothing more comes.
    is_over: bool,
}

/// An answer that is being written.
#[derive(Default)]
struct Output {
    head: [u8; HEAD_BYTES],
    body: Buffer,
    /// What goes with it.
    given: Option<OwnedFd>,
    sent: usize,
    is_there: bool,
}

/// How a call has begun.
enum Begun {
    /// It is done, and this is the answer.
    Answer(Answer, Buffer),
    /// It is done, or counted, and nothing is answered.
    Unanswered,
    UnderWay(UnderWay),
    /// It is done, and this goes with the answer.
    Descriptor(OwnedFd),
    /// A send has found no room, and is to be tried again.
    NoRoom,
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

    fn is_over(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close_own();
    }
}

impl Port {
    fn new(channel: Channel, ends_with_guest: bool) -> Self {
        Self {
            channel,
            ends_with_guest,
            sends: VecDeque::new(),
            call: None,
            failures: 0,
            last_failure: None,
        }
    }

    /// Takes note of sends that have ended. They do so in their order, more or less, and whoever
    /// has ended behind one that has not is counted with it.
    fn reap(&mut self, waker: &Waker) {
        let mut context = Context::from_waker(waker);
        while let Some(first) = self.sends.front_mut() {
            let Polled::Ready(sent) = Pin::new(first).poll(&mut context) else {
                return;
            };
            self.sends.pop_front();
            if let Err(error) = sent {
                self.failures += 1;
                self.last_failure = Some(error);
            }
        }
    }

    /// Nobody waits for the call any more: a get or a poll is taken back, and a send goes on.
    fn give_up(&mut self) {
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
    fn finish(&mut self) -> Option<Waits> {
        if self.close_own() {
            return None;
        }
        match self.sends.is_empty() {
            true => Some(Waits::End),
            false => Some(Waits::Alarm),
        }
    }

    fn begin(&mut self, call: Call, body: &[u8], limit: &mut Limit) -> Begun {
        match self.try_begin(call, body, limit) {
            Ok(begun) => begun,
            Err(error) if call.is_answered() => Begun::failed(&error),
            Err(error) => {
                self.failures += 1;
                self.last_failure = Some(error);
                Begun::Unanswered
            }
        }
    }

    /// Begins a call whose end is told over a socket of its own, if it is under way: this answer
    /// says whether it is.
    fn start(
        &mut self,
        call: Call,
        body: &[u8],
        socket: Option<OwnedFd>,
        started: &mut Vec<Started>,
    ) -> Begun {
        let Some(socket) = socket else {
            let why = "it has no descriptor left for a call that is started: raise its `ulimit -n`";
            return Begun::failed(&Error::server_failed("", why));
        };
        let mut limit = Limit::default();
        let is_under_way = match self.try_begin(call, body, &mut limit) {
            Err(error) => return Begun::failed(&error),
            Ok(Begun::NoRoom) => return Begun::failed(&Error::WouldBlock),
            Ok(Begun::UnderWay(call)) => {
                started.push(Started {
                    socket,
                    call,
                    limit,
                });
                UNDER_WAY
            }
            Ok(_) => OVER,
        };
        Begun::Answer(Answer::of_value(is_under_way), Buffer::default())
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
                Ok(Begun::Descriptor(event?))
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
        match when == Return::WhenBuffered && timeout == Timeout::Never {
            true => Ok(Begun::Unanswered),
            false => Ok(Begun::done()),
        }
    }

    /// How many sends have failed, and the error of the last of them.
    fn said_failures(&self) -> Begun {
        let last = self.last_failure.as_ref().map(|error| {
            let (answer, text) = Answer::of_error(error);
            [&answer.encode()[..], &text].concat()
        });
        let body = Buffer::from(last.unwrap_or_default());
        let answer = Answer {
            value: self.failures,
            ..Answer::of_bytes(&body)
        };
        Begun::Answer(answer, body)
    }
}

impl Begun {
    fn done() -> Self {
        Self::Answer(Answer::default(), Buffer::default())
    }

    fn failed(error: &Error) -> Self {
        let (answer, text) = Answer::of_error(error);
        Self::Answer(answer, text.into())
    }
}

impl UnderWay {
    /// Whether it has, and nothing is taken; else `waker` is woken then.
    fn has_ended(&mut self, waker: &Waker) -> bool {
        match self {
            Self::Send(asked) => asked.has_ended(waker),
            Self::Poll(asked) => asked.has_ended(waker),
            Self::Take(asked) => asked.has_ended(waker),
        }
    }

    /// The answer, where the call has ended; else `waker` is woken then.
    fn look(&mut self, waker: &Waker) -> Option<(Answer, Buffer)> {
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

impl Input {
    /// The first call that has come whole.
    ///
    /// # Errors
    /// Why no guest of ours has sent this.
    fn next(&self, longest: u64) -> Result<Option<(Call, bool, &[u8])>, &'static str> {
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

    fn use_up(&mut self, bytes: usize) {
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
    fn end(&mut self) {
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
    fn read(
        &mut self,
        socket: &OwnedFd,
        given: &mut Option<OwnedFd>,
        is_gone: bool,
    ) -> Option<Waits> {
        let missing = self.missing();
        self.bytes.drain(..self.used);
        self.used = 0;
        let received = match missing < READ_BYTES {
            true => self.read_calls(socket, given),
            false => self.read_message(socket, missing),
        };
        match received {
            Err(Errno::NOMEM) => {
                tracing::warn!("no memory for the message of a guest, which is dropped");
                self.end();
            }
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

    /// Reads some bytes of a long message alone.
    fn read_message(&mut self, socket: &OwnedFd, missing: usize) -> Result<usize, Errno> {
        // Memory for what has come, and not for what is said to come.
        let more = missing.min(READ_BYTES.max(self.bytes.len()));
        (self.bytes.try_reserve_exact(more)).map_err(|_| Errno::NOMEM)?;
        receive_some(socket, &mut self.bytes, more, RecvFlags::DONTWAIT)
    }

    /// Reads what may be the beginning of calls, with which descriptors come.
    fn read_calls(
        &mut self,
        socket: &OwnedFd,
        given: &mut Option<OwnedFd>,
    ) -> Result<usize, Errno> {
        let mut read = [0; READ_BYTES];
        let (bytes, received) = receive_with(socket, &mut read, RecvFlags::DONTWAIT)?;
        self.bytes.try_reserve(bytes).map_err(|_| Errno::NOMEM)?;
        self.bytes.extend_from_slice(&read[..bytes]);
        if received.is_some() {
            *given = received;
        }
        Ok(bytes)
    }
}

impl Output {
    fn put(&mut self, answer: Answer, body: Buffer) {
        *self = Self {
            head: answer.encode(),
            body,
            given: None,
            sent: 0,
            is_there: true,
        };
    }

    /// What stands at the beginning of a connection.
    fn tell(&mut self, told: Result<Vec<u8>>) {
        let (answer, body) = match told {
            Ok(body) => (Answer::of_bytes(&body), body),
            Err(error) => Answer::of_error(&error),
        };
        self.put(answer, body.into());
    }

    /// Writes what there is to be written; whether that is all of it.
    fn flush(&mut self, socket: &OwnedFd) -> Result<bool, Errno> {
        while self.is_there {
            let given = self.given.as_ref().map(AsFd::as_fd);
            let parts = (&self.head[..], &self.body[..]);
            let sent = send_some(socket, parts, given, self.sent, SendFlags::DONTWAIT);
            match sent {
                Ok(more) => self.sent += more,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
            if self.sent == HEAD_BYTES + self.body.len() {
                *self = Self::default();
            }
        }
        Ok(true)
    }
}
