//! The guest's side: who serves, and ports.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::sync::sleep;
use trihop_transport::topology::Rank;

use super::Lifetime;
use super::asked::{Asked, FromAnswer};
use super::client::{Connection, Ended};
use super::event::Event;
use super::wire::{Answer, Call, DONE, HEAD_BYTES, Hello, Make, Served, TOO_LONG, Welcome};
use crate::error::{Error, Result};
use crate::face::channel::{
    Buffer, ChannelKind, ChannelLimits, Descriptor, Filled, Poll, Received, Return, Take, Timeout,
};

/// How often it is tried to reach a server that closes the connection at once, and how soon again.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(20);

/// How long a server that is there has to answer who it is.
const ANSWERS: Duration = Duration::from_secs(10);

const SEND: &str = "a send to a channel, which may be full";
const GET: &str = "a get from a channel";
const POLL: &str = "a poll of a channel";
pub(super) const OTHER: &str = "a call on a channel";

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
            event: None,
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
    event: Option<Event>,
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
        let call = self.to_send(kind, bytes, when, timeout)?;
        match call.is_answered() {
            true => self.call(&call, bytes, SEND).map(drop),
            false => self.connection.send(&call.encode(false), bytes),
        }
    }

    /// Memory for a message of so many bytes, as [`Channel::buffer`](crate::Channel::buffer) of a
    /// rank; of a guest it is its own.
    ///
    /// # Errors
    /// As that.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer> {
        self.knows_messages("messages to be sent")?;
        self.check_length(bytes)?;
        let mut own = Vec::new();
        own.try_reserve_exact(bytes)
            .map_err(|_| Error::NoMemory { bytes })?;
        own.resize(bytes, 0);
        Ok(own.into())
    }

    /// As [`Channel::send`], of a message whose memory is given away, for programs that are ranks
    /// too: a guest's is copied to the server. It has its bytes still where the call fails.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_buffer(
        &mut self,
        kind: u32,
        message: &mut Buffer,
        when: Return,
        timeout: Timeout,
    ) -> Result<()> {
        self.send(kind, message, when, timeout)?;
        *message = Buffer::default();
        Ok(())
    }

    fn check_length(&self, bytes: usize) -> Result<()> {
        match self.welcome.longest {
            longest if bytes as u64 > longest => {
                let limit = longest as usize;
                Err(Error::TooLarge { bytes, limit })
            }
            _ => Ok(()),
        }
    }

    fn to_send(&self, kind: u32, bytes: &[u8], when: Return, timeout: Timeout) -> Result<Call> {
        self.knows_messages("messages to be sent")?;
        self.check_length(bytes.len())?;
        Ok(Call::Send {
            kind,
            when,
            timeout: timeout.as_sent(),
            bytes: bytes.len() as u64,
        })
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
        Received::from_answer(&answer, &mut self.connection)
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

    /// Starts a [`get`](Channel::get), and does not wait for its end, but for the server, which
    /// begins it behind all that the port has asked for before.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] where as many calls of the port wait as [may](ChannelLimits);
    /// [`Error::System`] where descriptors run out; [`Error::ServerFailed`], also where the server
    /// has none left.
    pub fn start_get(&mut self, timeout: Timeout) -> Result<Asked<Received>> {
        self.knows_messages("messages to be got")?;
        let take = Take::Get;
        self.start(&Call::Take { take, timeout }, GET)
    }

    /// Starts a [`poll`](Channel::poll), as [`Channel::start_get`] does a get.
    ///
    /// # Errors
    /// As [`Channel::start_get`]; [`Error::Misuse`] for what channels of this kind do not know.
    pub fn start_poll(&mut self, poll: Poll, timeout: Timeout) -> Result<Asked<u64>> {
        self.start(&Call::Poll { poll, timeout }, POLL)
    }

    /// Starts a [`send`](Channel::send), as [`Channel::start_get`] does a get: it has ended when
    /// that would return.
    ///
    /// # Errors
    /// As that, and as [`Channel::start_get`], with nothing sent.
    pub fn start_send(
        &mut self,
        kind: u32,
        bytes: &[u8],
        when: Return,
        timeout: Timeout,
    ) -> Result<Asked<()>> {
        let call = self.to_send(kind, bytes, when, timeout)?;
        let started = self.connection.start(&call, bytes, SEND)?;
        Ok(match started {
            Some(connection) => Asked::new(connection, SEND),
            None => Asked::over((), SEND),
        })
    }

    /// Starts a [`send_buffer`](Channel::send_buffer), as [`Channel::start_send`] does a send.
    ///
    /// # Errors
    /// As that.
    pub fn start_send_buffer(
        &mut self,
        kind: u32,
        message: &mut Buffer,
        when: Return,
        timeout: Timeout,
    ) -> Result<Asked<()>> {
        let asked = self.start_send(kind, message, when, timeout)?;
        *message = Buffer::default();
        Ok(asked)
    }

    fn start<T: FromAnswer>(&mut self, call: &Call, what: &'static str) -> Result<Asked<T>> {
        match self.connection.start(call, &[], what)? {
            Some(connection) => Ok(Asked::new(connection, what)),
            None => Err(self.connection.bad()),
        }
    }

    /// A file descriptor for `poll`, `epoll` and their like, as [`event`](crate::Channel::event) of
    /// a rank's port, which the server's port of this one has: readable while something may be had
    /// from the channel without waiting, or once the server is gone. It is the port's: the same at
    /// each call, closed with the port, and neither to be read nor written.
    ///
    /// It is armed by the first call of this, and again by each call of the port that finds
    /// nothing, also by one that was started.
    ///
    /// # Errors
    /// Of the first call: [`Error::System`] where descriptors run out; [`Error::WouldBlock`] where
    /// as many calls of the port wait as may; [`Error::ServerFailed`], also where the server has no
    /// descriptors left.
    pub fn event(&mut self) -> Result<BorrowedFd<'_>> {
        let event = match self.event.take() {
            Some(event) => event,
            None => Event::over(self.connection.event(OTHER)?, self.connection.socket())?,
        };
        Ok(self.event.insert(event).fd())
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
            answer.error(text, SEND, self.connection.server())
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
        self.connection.send(&call.encode(false), bytes)?;
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
