//! How messages are got: on the owner's rank out of the channel, and else by requests.

use trihop_transport::topology::Rank;

use super::asked::{Asked, FromAnswer};
use super::bytes::Bytes;
use super::client::{Answered, Expects};
use super::descriptor::Descriptor;
use super::office::News;
use super::owner::{Owner, Stored};
use super::port::{Channel, GET, Port};
use super::received::{Filled, Received};
use super::terms::{Take, Timeout};
use super::wait::Limit;
use super::wire::{Request, Status};
use crate::error::{Error, Result};
use crate::seat::Seat;

/// How often a get that waits looks for a message before it makes a request.
const LOOKS: u32 = 1000;

impl<S: Seat> Port<S> {
    pub fn start_get(&self, limit: &Limit) -> Result<u64> {
        self.start_take(Take::Get, limit)
    }

    fn start_take(&self, take: Take, limit: &Limit) -> Result<u64> {
        self.has_messages("messages to be got")?;
        let expects = match take {
            Take::Within(most) => Expects::MessageWithin(most),
            Take::Get => Expects::Message,
            Take::Peek | Take::Pop => Expects::MessageOnce,
        };
        self.start((GET, expects), limit, |id, timeout_ns| Request::Get {
            port: self.at_owner(),
            id,
            take,
            timeout_ns,
        })
    }

    /// The message that a get on the owner's rank finds there, where it has so many bytes at most.
    fn get_now(&self, most: u64) -> Result<Option<Stored>> {
        let channels = self.channels();
        channels.handle.seat.may_wait(GET)?;
        self.has_messages("messages to be got")?;
        channels.enter(GET)?;
        let office = &channels.office;
        let Descriptor { number, epoch, .. } = self.descriptor();
        let (message, goes_on) = channels.at_owner(|owner: &mut Owner| {
            let message = owner.get_now((number, epoch), most, || office.now_ns());
            (message, owner.take_step())
        });
        if goes_on {
            // Else senders would wait until the channel is empty. A failure is the next call's:
            // this one has a message.
            let _ = channels.handle.seat.progress_in_passing();
        }
        Ok(message)
    }

    /// As [`get_now`](Self::get_now), of a message that comes before this rank would sleep, or has
    /// looked some times: a get that waits so makes no request, and has no place among those that
    /// have.
    fn get_soon(&self, most: u64) -> Result<Option<Stored>> {
        let (channels, office) = (self.channels(), &self.channels().office);
        let Descriptor { number, epoch, .. } = self.descriptor();
        let (mut news, mut looks) = (News::default(), 0..LOOKS);
        let came = channels.handle.seat.wait_awake(GET, |job| {
            let mut owner = office.owner();
            let message = owner.get_now((number, epoch), most, || office.now_ns());
            if owner.has_answers() {
                news.add(office.tell(&mut owner, |stream, send| {
                    send(job.engine.out(stream.unwrap_or(channels.handle.id))?)
                }));
            }
            let ends = message.is_some() || looks.next().is_none();
            Ok(ends.then_some(message))
        });
        if news.is_any {
            channels.handle.seat.notify_moved();
        }
        news.wake();
        came.map(Option::flatten)
    }

    fn take(&self, take: Take, timeout: Timeout) -> Result<Stored> {
        let most = match take {
            Take::Get => Some(u64::MAX),
            Take::Within(most) => Some(most),
            Take::Peek | Take::Pop => None,
        };
        if let Some(most) = most
            && self.is_here()
        {
            if let Some(message) = self.get_now(most)? {
                return Ok(message);
            }
            if timeout == Timeout::Never
                && let Some(message) = self.get_soon(most)?
            {
                return Ok(message);
            }
        }
        let answered = self.call(GET, timeout, |limit| self.start_take(take, limit));
        let answered = answered.inspect_err(|error| self.got(error))?;
        match (take, answered.status) {
            (Take::Within(most), Status::TooLong) => {
                let [bytes, room] = [answered.value, most].map(|of| of as usize);
                Err(Error::BufferTooSmall { bytes, room })
            }
            _ => Ok(stored(answered)),
        }
    }

    /// Leaves the buffer of a message to the next one.
    fn spare(&self, bytes: Bytes) {
        let office = &self.channels().office;
        match self.is_here() {
            true => office.owner().spare(bytes),
            false => office.client().spare(bytes),
        }
    }
}

fn stored(answered: Answered) -> Stored {
    let message = answered.message;
    message.unwrap_or_else(|| unreachable!("a get that is done has a message"))
}

pub(super) fn received(answered: Answered) -> Received {
    Received::of(stored(answered))
}

/// What a get that is started has come to.
#[derive(Debug)]
pub(crate) enum Taken {
    Message(Received),
    /// The first message has so many bytes, more than [there may be](Take::Within); it stays.
    TooLong(u64),
}

impl FromAnswer for Taken {
    fn from_answer(answered: Answered) -> Self {
        match answered.status {
            Status::TooLong => Self::TooLong(answered.value),
            _ => Self::Message(received(answered)),
        }
    }
}

impl<S: Seat> Channel<S> {
    /// Starts a get of any kind, and does not wait.
    pub(crate) fn start_take(&self, take: Take, timeout: Timeout) -> Result<Asked<Taken, S>> {
        let (limit, port) = (Limit::new(timeout), self.port());
        let id = port.start_take(take, &limit)?;
        Ok(Asked::new(port, id, (GET, true), limit))
    }

    /// Takes the first message out of the channel; waits for one.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] and [`Error::TimedOut`] where there is none, and where 64 requests of
    /// the port (its `window_messages`) wait already; [`Error::ChannelClosed`] once the channel is
    /// closed and empty; [`Error::Nested`] in handlers; as every call where a rank is gone.
    pub fn get(&self, timeout: Timeout) -> Result<Received> {
        self.port().take(Take::Get, timeout).map(Received::of)
    }

    /// As [`Channel::get`], and the bytes of the message are copied to the beginning of `into`:
    /// once, out of the memory in which they came, which serves the next message. A message that
    /// has more bytes than `into` stays where it is, and its sender is not told that it was
    /// received; whoever gets next has it. For programs that have memory of their own for what
    /// comes: [`Channel::get`] copies nothing, and hands that memory over.
    ///
    /// ```
    /// use trihop_shuffle::channel::{Return, Timeout};
    /// use trihop_shuffle::{ChannelLimits, Error, Job, Options};
    ///
    /// let job = Job::start(Options::from_env()?)?;
    /// let channels = job.channels("samples").open()?;
    /// let samples = channels.create(ChannelLimits::default())?;
    /// samples.send(7, &[1; 12], Return::WhenDeposited, Timeout::Never)?;
    /// let mut buffer = [0; 16];
    /// let too_small = samples.get_into(&mut buffer[..8], Timeout::Never);
    /// assert_eq!(too_small, Err(Error::BufferTooSmall { bytes: 12, room: 8 }));
    /// let filled = samples.get_into(&mut buffer, Timeout::Never)?;
    /// assert_eq!((filled.kind, &buffer[..filled.length]), (7, &[1; 12][..]));
    /// drop(samples);
    /// channels.shutdown()?;
    /// job.shutdown()?;
    /// # Ok::<(), trihop_shuffle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`] where the first message is longer, with nothing taken; else as
    /// [`Channel::get`].
    pub fn get_into(&self, into: &mut [u8], timeout: Timeout) -> Result<Filled> {
        let Stored { about, bytes, .. } =
            self.port().take(Take::Within(into.len() as u64), timeout)?;
        let length = bytes.len();
        into[..length].copy_from_slice(&bytes);
        self.port().spare(bytes);
        Ok(Filled {
            source: Rank(about.source),
            kind: about.kind,
            length,
        })
    }

    /// As [`Channel::get`], and the message stays where it is: a copy is got.
    ///
    /// # Errors
    /// As [`Channel::get`].
    pub fn peek(&self, timeout: Timeout) -> Result<Received> {
        self.port().take(Take::Peek, timeout).map(Received::of)
    }

    /// As [`Channel::get`], without the bytes of the message, which are dropped.
    ///
    /// # Errors
    /// As [`Channel::get`].
    pub fn pop(&self, timeout: Timeout) -> Result<Received> {
        self.port().take(Take::Pop, timeout).map(Received::of)
    }
}
