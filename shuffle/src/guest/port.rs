//! The guest's side: who serves, and ports.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};
use trihop_transport::Error as TransportError;
use trihop_transport::memory::descriptors::{DescriptorListener, wait_for_any};
use trihop_transport::park::{Backoff, Step};
use trihop_transport::sync::sleep;
use trihop_transport::sync::thread::yield_now;
use trihop_transport::topology::Rank;

use super::Lifetime;
use super::socket::{awake, pair, receive_some, send_some};
use super::wire::{Answer, Call, DONE, HEAD_BYTES, Hello, Make, Served, TOO_LONG, Welcome};
use crate::error::{Error, Result};
use crate::face::channel::{
    ChannelKind, ChannelLimits, Descriptor, Filled, Poll, Received, Return, Take, Timeout,
};
use crate::queue::long_buffers;

/// Longer than anybody waits.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// How often it is tried to reach a server that closes the connection at once, and how soon again.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(20);

/// How long a server that is there has to answer who it is.
const ANSWERS: Duration = Duration::from_secs(10);

const SEND: &str = "a send to a channel";
const GET: &str = "a get from a channel";
const POLL: &str = "a poll of a channel";
const OTHER: &str = "a call on a channel";

/// A process that is no rank, as a [server](crate::threaded::Channels::serve_guests) of its node
/// sees it. Clones are of the same server. It holds no connection: each [`Channel`] has its own.
/// Where a server has ended and another one has taken its name, it is that one's guest from then
/// on.
#[derive(Debug, Clone)]
pub struct Guest {
    name: Arc<str>,
    served: Arc<Served>,
}

impl Guest {
    /// Asks who serves guests under this name, and waits for so long until somebody does.
    ///
    /// # Errors
    /// [`Error::ServerFailed`] where nobody has come to serve in time, or the server is of another
    /// version; [`Error::System`] where another user has the name, or descriptors run out.
    pub fn of(name: &str, wait: Duration) -> Result<Self> {
        let deadline = Instant::now().checked_add(wait);
        let mut again = 0..TRIES;
        let (mut connection, served) = loop {
            let mut connection = Connection::open(name, &Hello::Look, Some(wait))?;
            match connection.welcomed(Some(Instant::now() + ANSWERS)) {
                // That one may have just ended, and the next one come.
                Err(Ended::Closed)
                    if deadline.is_none_or(|at| Instant::now() < at) && again.next().is_some() =>
                {
                    sleep(BETWEEN);
                }
                served => break (connection, served),
            }
        };
        let served = served.map_err(|ended| connection.refused(ended))?;
        let served = Served::parse(&served).ok_or_else(|| connection.bad())?;
        Ok(Self {
            name: name.into(),
            served: Arc::new(served),
        })
    }

    /// The name under which it is served.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rank that serves it: the owner of the channels that it makes, and the source of what it
    /// sends.
    pub fn rank(&self) -> Rank {
        Rank(self.served.rank)
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.served.size
    }

    /// Name of the channels that are served.
    pub fn channels(&self) -> &str {
        &self.served.channels
    }

    /// Makes a channel of the server's rank, and a port of it.
    ///
    /// # Errors
    /// As [`Channels::create`](crate::Channels::create); [`Error::ServerFailed`].
    pub fn create(&self, limits: ChannelLimits, lifetime: Lifetime) -> Result<Channel> {
        self.make(ChannelKind::Messages, (0, 0), limits, lifetime)
    }

    /// Makes a [semaphore](crate::Channels::semaphore) of the server's rank, and a port of it. What
    /// a guest has acquired when it ends stays acquired.
    ///
    /// # Errors
    /// As [`Channels::semaphore`](crate::Channels::semaphore); [`Error::ServerFailed`].
    pub fn semaphore(
        &self,
        value: u64,
        most: u64,
        limits: ChannelLimits,
        lifetime: Lifetime,
    ) -> Result<Channel> {
        self.make(ChannelKind::Semaphore, (value, most), limits, lifetime)
    }

    /// Makes a [barrier](crate::Channels::barrier) of the server's rank, and a port of it.
    ///
    /// # Errors
    /// As [`Channels::barrier`](crate::Channels::barrier); [`Error::ServerFailed`].
    pub fn barrier(
        &self,
        parties: u32,
        limits: ChannelLimits,
        lifetime: Lifetime,
    ) -> Result<Channel> {
        self.make(ChannelKind::Barrier, (parties.into(), 0), limits, lifetime)
    }

    fn make(
        &self,
        kind: ChannelKind,
        (value, most): (u64, u64),
        limits: ChannelLimits,
        lifetime: Lifetime,
    ) -> Result<Channel> {
        self.open(&Hello::Create(Make {
            lifetime,
            kind,
            value,
            most,
            limits,
        }))
    }

    /// A port of the channel with this descriptor, whichever rank owns it.
    ///
    /// # Errors
    /// As [`Channels::attach`](crate::Channels::attach); [`Error::ServerFailed`].
    pub fn attach(&self, descriptor: &Descriptor) -> Result<Channel> {
        self.open(&Hello::Attach(*descriptor))
    }

    fn open(&self, hello: &Hello) -> Result<Channel> {
        let mut connection = Connection::open(&self.name, hello, None)?;
        let welcome = connection.welcomed(None);
        let welcome = welcome.map_err(|ended| connection.refused(ended))?;
        let welcome = Welcome::parse(&welcome).ok_or_else(|| connection.bad())?;
        Ok(Channel {
            connection,
            welcome,
        })
    }
}

/// A port of a channel that a guest has: what one thread of it sends, gets and polls by.
///
/// What is sent by it comes into the channel in that order. Each call waits for the server's answer
/// to it, but for a send that returns [when buffered](Return::WhenBuffered) with no timeout. Where
/// the guest ends, what it has sent still comes into the channel as there is room, and a message
/// that a get waited for stays there.
#[derive(Debug)]
pub struct Channel {
    pub(super) connection: Connection,
    welcome: Welcome,
}

impl Channel {
    /// What names the channel for all ranks and guests.
    pub fn descriptor(&self) -> Descriptor {
        self.welcome.descriptor
    }

    /// What the channel is.
    pub fn kind(&self) -> ChannelKind {
        self.welcome.kind
    }

    /// What the channel may hold, as its owner has made it.
    pub fn limits(&self) -> ChannelLimits {
        self.welcome.limits
    }

    /// As [`Channel::send`](crate::Channel::send) of a rank. [`Return::WhenBuffered`] is once the
    /// bytes are on their way to the server, where the timeout is [`Timeout::Never`]: a failure of
    /// such a send is counted ([`Channel::failures`]).
    ///
    /// # Errors
    /// As that; [`Error::ServerFailed`].
    pub fn send(&mut self, kind: u32, bytes: &[u8], when: Return, timeout: Timeout) -> Result<()> {
        self.knows_messages("messages to be sent")?;
        let longest = self.welcome.longest;
        if bytes.len() as u64 > longest {
            let (bytes, limit) = (bytes.len(), longest as usize);
            return Err(Error::TooLarge { bytes, limit });
        }
        let call = Call::Send {
            kind,
            when,
            timeout: timeout.as_sent(),
            bytes: bytes.len() as u64,
        };
        match call.is_answered() {
            true => self.call(&call, bytes, SEND).map(drop),
            false => self.connection.send(&call.encode(), bytes),
        }
    }

    /// Takes the first message out of the channel; waits for one.
    ///
    /// # Errors
    /// As [`Channel::get`](crate::Channel::get) of a rank; [`Error::ServerFailed`].
    pub fn get(&mut self, timeout: Timeout) -> Result<Received> {
        self.take(Take::Get, timeout)
    }

    /// As [`Channel::get`], and the message stays where it is: a copy is got.
    ///
    /// # Errors
    /// As [`Channel::get`].
    pub fn peek(&mut self, timeout: Timeout) -> Result<Received> {
        self.take(Take::Peek, timeout)
    }

    /// As [`Channel::get`], without the bytes of the message, which are dropped.
    ///
    /// # Errors
    /// As [`Channel::get`].
    pub fn pop(&mut self, timeout: Timeout) -> Result<Received> {
        self.take(Take::Pop, timeout)
    }

    fn take(&mut self, take: Take, timeout: Timeout) -> Result<Received> {
        self.knows_messages("messages to be got")?;
        let answer = self.call(&Call::Take { take, timeout }, &[], GET)?;
        let bytes = self.connection.body(answer.bytes)?;
        Ok(Received {
            source: Rank(answer.source),
            kind: answer.kind,
            bytes: bytes.into(),
        })
    }

    /// As [`Channel::get`], and the bytes of the message are read to the beginning of `into`. A
    /// message that has more bytes than that stays where it is.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] where the first message is longer, with nothing taken; else as
    /// [`Channel::get`].
    pub fn get_into(&mut self, into: &mut [u8], timeout: Timeout) -> Result<Filled> {
        self.knows_messages("messages to be got")?;
        let take = Take::Within(into.len() as u64);
        let answer = self.call(&Call::Take { take, timeout }, &[], GET)?;
        if answer.status == TOO_LONG {
            let (bytes, room) = (answer.value as usize, into.len());
            return Err(Error::BufferTooSmall { bytes, room });
        }
        let place = into.get_mut(..usize::try_from(answer.bytes).unwrap_or(usize::MAX));
        let place = place.ok_or_else(|| self.connection.bad())?;
        let length = place.len();
        self.connection.fill(place)?;
        Ok(Filled {
            source: Rank(answer.source),
            kind: answer.kind,
            length,
        })
    }

    /// Waits until what is polled holds, asks for a number, or uses a semaphore or a barrier: see
    /// [`Poll`].
    ///
    /// # Errors
    /// As [`Channel::poll`](crate::Channel::poll) of a rank; [`Error::ServerFailed`].
    pub fn poll(&mut self, poll: Poll, timeout: Timeout) -> Result<u64> {
        let answer = self.call(&Call::Poll { poll, timeout }, &[], POLL)?;
        Ok(answer.value)
    }

    /// Sends of this port that have failed after they had returned, and why the last of them has.
    ///
    /// # Errors
    /// [`Error::ServerFailed`].
    pub fn failures(&mut self) -> Result<(u64, Option<Error>)> {
        let answer = self.call(&Call::Failures, &[], OTHER)?;
        let said = self.connection.body(answer.bytes)?;
        let last = said.split_first_chunk::<HEAD_BYTES>().map(|(head, text)| {
            let answer = Answer::read(head);
            answer.error(text, SEND, &self.connection.server)
        });
        Ok((answer.value, last))
    }

    /// Closes the channel: what is sent from now on, or waits to be, fails with
    /// [`Error::ChannelClosed`], and so do gets once it is empty. By guests of its owner only.
    ///
    /// # Errors
    /// [`Error::Misuse`] where another rank owns it; [`Error::ServerFailed`].
    pub fn close(&mut self) -> Result<()> {
        self.call(&Call::Close, &[], OTHER).map(drop)
    }

    fn knows_messages(&self, what: &str) -> Result<()> {
        let Welcome {
            kind, descriptor, ..
        } = self.welcome;
        match kind {
            ChannelKind::Messages => Ok(()),
            _ => Err(Error::misuse("channels", kind.knows_no(descriptor, what))),
        }
    }

    /// What the server answers; the body is still to be read, but for that of an error.
    fn call(&mut self, call: &Call, bytes: &[u8], what: &'static str) -> Result<Answer> {
        self.connection.send(&call.encode(), bytes)?;
        let answer = self.connection.answer(None);
        let answer = answer.map_err(|ended| self.connection.refused(ended))?;
        let has_body = matches!(call, Call::Take { .. } | Call::Failures);
        match answer.status {
            DONE | TOO_LONG if answer.bytes == 0 || has_body => Ok(answer),
            DONE | TOO_LONG => Err(self.connection.bad()),
            _ => Err(self.connection.error(&answer, what)),
        }
    }
}

/// Why nothing more comes.
enum Ended {
    /// The other end was closed.
    Closed,
    /// It takes longer than it may.
    Late,
    Failed(Errno),
    /// What has come cannot be.
    Invalid,
    /// What this server says of what was asked for.
    Refused(Error),
}

/// A socket whose other end the server has.
#[derive(Debug)]
pub(super) struct Connection {
    server: Arc<str>,
    socket: OwnedFd,
    /// Whose it is: a fork shares the socket, and would take the other's answers.
    process: u32,
    /// How it waits for answers.
    backoff: Backoff,
    /// What has been the end of it.
    failed: Option<Error>,
}

impl Connection {
    /// Where it is said how long, it waits for somebody to serve.
    fn open(name: &str, hello: &Hello, wait: Option<Duration>) -> Result<Self> {
        let made = pair().map_err(|error| {
            let what = "connecting a guest of a channel's server";
            Error::from(TransportError::system(what, error))
        });
        let (socket, other) = made?;
        let (hello, others) = (hello.encode(), [other.as_fd()]);
        let after = |wait: Duration| Instant::now() + wait.min(LONG);
        let handed = match wait {
            Some(wait) => DescriptorListener::send_until(name, &hello, &others, after(wait)),
            None => DescriptorListener::send_to_listener(name, &hello, &others, after(LONG)),
        };
        handed.map_err(|error| {
            use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
            match &error {
                TransportError::System { source, .. }
                    if [BrokenPipe, ConnectionRefused, ConnectionReset]
                        .contains(&source.kind()) =>
                {
                    let why = "nobody serves guests under this name on this node";
                    Error::server_failed(name, why)
                }
                _ => error.into(),
            }
        })?;
        Ok(Self {
            server: name.into(),
            socket,
            process: std::process::id(),
            backoff: Backoff::new(awake()),
            failed: None,
        })
    }

    /// What the server answers to the hello.
    fn welcomed(&mut self, deadline: Option<Instant>) -> std::result::Result<Vec<u8>, Ended> {
        let answer = self.answer(deadline)?;
        if answer.status != DONE {
            return Err(Ended::Refused(self.error(&answer, OTHER)));
        }
        match answer.bytes {
            0..=Answer::TEXT_BYTES_MAX => self.read(answer.bytes as usize),
            _ => Err(Ended::Invalid),
        }
    }

    /// The head of the next answer.
    fn answer(&mut self, deadline: Option<Instant>) -> std::result::Result<Answer, Ended> {
        if let Some(deadline) = deadline {
            while !matches!(wait_for_any(&[self.socket.as_fd()], deadline), Ok(Some(_))) {
                // It may have been a signal.
                if Instant::now() >= deadline {
                    return Err(Ended::Late);
                }
            }
        }
        self.stay_awake();
        let mut head = [0; HEAD_BYTES];
        self.read_into(&mut head)?;
        Ok(Answer::read(&head))
    }

    /// Waits without sleeping, as long as that is worth it: answers mostly come soon, and to be
    /// woken takes longer.
    fn stay_awake(&mut self) {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        while let Err(Errno::AGAIN) = recv(&self.socket, &mut byte, flags) {
            if self.backoff.next() == Step::Park {
                self.backoff.begin();
                return;
            }
            yield_now();
        }
        self.backoff.reset();
    }

    /// What an answer says that is an error, with its text.
    fn error(&mut self, answer: &Answer, what: &'static str) -> Error {
        if answer.bytes > Answer::TEXT_BYTES_MAX {
            return self.bad();
        }
        match self.read(answer.bytes as usize) {
            Ok(text) => answer.error(&text, what, &self.server),
            Err(ended) => self.refused(ended),
        }
    }

    pub(super) fn send(&mut self, head: &[u8], body: &[u8]) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if self.process != std::process::id() {
            let why = "this port is of the process that has forked this one; attach once more here";
            return Err(Error::misuse("channels", why));
        }
        let mut sent = 0;
        while sent < head.len() + body.len() {
            match send_some(&self.socket, head, body, sent, SendFlags::empty()) {
                Ok(more) => sent += more,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(self.refused(Ended::Closed)),
                Err(error) => return Err(self.refused(Ended::Failed(error))),
            }
        }
        Ok(())
    }

    /// The bytes of a message.
    fn body(&mut self, bytes: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let Ok(mut body) = long_buffers::take(length) else {
            // It is on its way, and there is nowhere to put it.
            self.failed = Some(Error::server_failed(&self.server, "a message was given up"));
            return Err(Error::NoMemory { bytes: length });
        };
        body.clear();
        let read = self.read_behind(&mut body, length);
        read.map_err(|ended| self.refused(ended))?;
        Ok(body)
    }

    fn fill(&mut self, place: &mut [u8]) -> Result<()> {
        self.read_into(place).map_err(|ended| self.refused(ended))
    }

    fn read(&mut self, bytes: usize) -> std::result::Result<Vec<u8>, Ended> {
        let mut all = Vec::with_capacity(bytes);
        self.read_behind(&mut all, bytes)?;
        Ok(all)
    }

    /// Reads so many bytes, for which there is room, and behind which nothing comes that was not
    /// asked for.
    fn read_behind(&self, all: &mut Vec<u8>, bytes: usize) -> std::result::Result<(), Ended> {
        while all.len() < bytes {
            match receive_some(&self.socket, all, RecvFlags::empty()) {
                Ok(0) | Err(Errno::CONNRESET) => return Err(Ended::Closed),
                Ok(_) => {}
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        match all.len() == bytes {
            true => Ok(()),
            false => Err(Ended::Invalid),
        }
    }

    fn read_into(&self, mut place: &mut [u8]) -> std::result::Result<(), Ended> {
        while !place.is_empty() {
            match rustix::io::read(&self.socket, &mut *place) {
                Ok(0) | Err(Errno::CONNRESET) => return Err(Ended::Closed),
                Ok(read) => place = &mut place[read..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        Ok(())
    }

    /// The error of every call from now on.
    fn refused(&mut self, ended: Ended) -> Error {
        let why = match ended {
            Ended::Refused(error) => return error,
            Ended::Closed => {
                "it has closed the connection: it has ended, has no descriptors or memory left \
                 (see its log), or is no server of guests"
                    .to_owned()
            }
            Ended::Late => "it does not answer in time".to_owned(),
            Ended::Failed(error) => format!("the connection has failed: {error}"),
            Ended::Invalid => "it says what is not valid".to_owned(),
        };
        let error = Error::server_failed(&self.server, why);
        self.failed = Some(error.clone());
        error
    }

    fn bad(&mut self) -> Error {
        self.refused(Ended::Invalid)
    }
}
