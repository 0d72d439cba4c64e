//! Channels: bounded queues of messages, each on the rank that has made it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use trihop::ChannelLimits;
use trihop::channel::{
    self, Buffer, ChannelKind, Descriptor, Filled, Poll, Received, Return, Timeout,
};
use trihop::threaded;

use crate::array::{Room, Shared, View};
use crate::detached::{Detached, Ended, apart};
use crate::error::Failure;
use crate::guest::Guests;
use crate::handler;
use crate::port::Port;
use crate::request::{Given, Request, timeout_of, triple};
use crate::stream::counters;

/// The channels of a job on this rank: `Job.channels` opens them. Any rank makes some, and attaches
/// to those of others, at any time and alone.
#[pyclass(frozen, module = "trihop")]
pub struct Channels {
    channels: Detached<threaded::Channels>,
    ended: Ended,
}

impl Channels {
    pub fn over(channels: threaded::Channels) -> Self {
        let channels = Detached::new(channels);
        Self {
            channels,
            ended: Ended::default(),
        }
    }
}

#[pymethods]
impl Channels {
    /// The name that they were opened by.
    #[getter]
    fn name(&self) -> &str {
        self.channels.anywhere().name()
    }

    /// Makes a channel of this rank's: how many messages and bytes it holds, how many ports it may
    /// have, and what each of these may have under way.
    ///
    /// Raises `Config` for impossible limits.
    #[pyo3(signature = (*, messages=None, bytes=None, ports=None, window_messages=None, window_bytes=None))]
    fn create(
        &self,
        py: Python<'_>,
        messages: Option<u32>,
        bytes: Option<u64>,
        ports: Option<u32>,
        window_messages: Option<u32>,
        window_bytes: Option<u64>,
    ) -> PyResult<Channel> {
        let limits = limits_of((messages, bytes), ports, (window_messages, window_bytes));
        let channel = apart(py, || self.channels.create(limits));
        let channel = channel?;
        Ok(Channel::of(channel))
    }

    /// Makes a semaphore of this rank's: a number, from `value` on, that `poll("acquire")` takes
    /// one from, once there is one, and `poll("release")` gives one to, `most` at most. So many
    /// calls of a port may wait at once: `window_messages`.
    ///
    /// Raises `Config` for a value above `most`, and for impossible limits.
    #[pyo3(signature = (value=1, *, most=None, ports=None, window_messages=None))]
    fn semaphore(
        &self,
        py: Python<'_>,
        value: u64,
        most: Option<u64>,
        ports: Option<u32>,
        window_messages: Option<u32>,
    ) -> PyResult<Channel> {
        let limits = limits_of((None, None), ports, (window_messages, None));
        let most = most.unwrap_or(u64::MAX);
        let channel = apart(py, || self.channels.semaphore(value, most, limits));
        let channel = channel?;
        Ok(Channel::of(channel))
    }

    /// Makes a barrier of this rank's, in which as many calls of `poll("arrive")` wait for each
    /// other as it has parties, of whichever ranks and ports. Limits as of `semaphore`.
    #[pyo3(signature = (parties, *, ports=None, window_messages=None))]
    fn barrier(
        &self,
        py: Python<'_>,
        parties: u32,
        ports: Option<u32>,
        window_messages: Option<u32>,
    ) -> PyResult<Channel> {
        let limits = limits_of((None, None), ports, (window_messages, None));
        let channel = apart(py, || self.channels.barrier(parties, limits));
        let channel = channel?;
        Ok(Channel::of(channel))
    }

    /// A port of the channel that this descriptor names. Asks its owner, and waits for the answer.
    ///
    /// Raises `NoChannel` where there is none of that name.
    fn attach(&self, py: Python<'_>, descriptor: &str) -> PyResult<Channel> {
        let attach = || self.channels.attach(&descriptor.parse::<Descriptor>()?);
        let channel = apart(py, attach)?;
        Ok(Channel::of(channel))
    }

    /// Counters of this rank by name, as docs/DIAGNOSTICS.md has them, of the stream of the
    /// channels: each request to another rank and each answer is a record of it.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters(py, apart(py, || Ok::<_, Failure>(self.channels.stats()))?)
    }

    /// Ends this rank's part, and keeps its channels with the messages in them for another job:
    /// `Job.channels(name, kept=)`. Collective where the job goes on.
    fn keep(&self, py: Python<'_>) -> PyResult<Kept> {
        let kept = apart(py, || threaded::Channels::clone(&self.channels).keep());
        Ok(Kept(kept?))
    }

    /// Serves guests under an abstract name of this node until it is closed: processes of the same
    /// user that are no ranks, and use the channels of all ranks through this one. See `Guest`. It
    /// is closed before the channels are.
    ///
    /// Raises `Error` where another process has the name.
    #[pyo3(signature = (name=None))]
    fn serve_guests(&self, py: Python<'_>, name: Option<String>) -> PyResult<Guests> {
        let name = name.unwrap_or_else(trihop::guest::default_name);
        let guests = apart(py, || self.channels.serve_guests(&name));
        Ok(Guests::of(guests?))
    }

    /// Ends this rank's part: its channels are closed and their messages dropped. Collective.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let close = || threaded::Channels::clone(&self.channels).shutdown();
        let closed = apart(py, || self.ended.once(close));
        Ok(closed?)
    }
}

/// The channels of a rank, with the messages in them, between two jobs: see `Channels.keep`.
#[pyclass(frozen, module = "trihop")]
pub struct Kept(pub channel::Kept);

#[pymethods]
impl Kept {
    /// The channels, by which they are attached to again; none once a job goes on with them.
    #[getter]
    fn descriptors(&self) -> Vec<String> {
        let all = self.0.descriptors();
        all.iter().map(Descriptor::to_string).collect()
    }
}

/// A port of a channel: what a rank sends to it, gets from it and polls it by. What one thread sends
/// by a port comes into the channel in that order. A guest's port is for one thread at a time.
///
/// `timeout` is how long a call may take in seconds: without an end where it is None; 0 tries once,
/// and raises `WouldBlock` where that cannot be done at once. A call whose time is over raises
/// `Timeout`, with nothing done.
#[pyclass(frozen, module = "trihop")]
pub struct Channel {
    channel: Detached<Port>,
}

impl Channel {
    pub fn of(channel: impl Into<Port>) -> Self {
        let port = channel.into();
        let channel = match port.is_guests() {
            true => Detached::of_guest(port),
            false => Detached::new(port),
        };
        Self { channel }
    }

    /// A get that hears signals while it waits. (What guests start takes a connection each time.)
    fn get_hearing(&self, timeout: Timeout) -> Result<Received, Failure> {
        // Inside of a handler it is refused with nothing done.
        if timeout == Timeout::Once || self.channel.is_guests() || handler::is_in_handler() {
            return self.channel.get(timeout);
        }
        if self.channel.is_here() {
            match self.channel.get(Timeout::Once) {
                Err(Failure::NotNow) => {}
                got => return got,
            }
        }
        let started = self.channel.start_get(timeout)?;
        match Request::begun(started, timeout).await_end()? {
            Given::Message(message) => Ok(message),
            Given::Value(_) | Given::Nothing => unreachable!("a get gives a message"),
        }
    }

    /// A poll that hears signals while it waits.
    fn poll_hearing(&self, what: Poll, timeout: Timeout) -> Result<u64, Failure> {
        let is_at_once = timeout == Timeout::Once || !what.may_wait();
        if is_at_once || self.channel.is_guests() || handler::is_in_handler() {
            return self.channel.poll(what, timeout);
        }
        let started = self.channel.start_poll(what, timeout)?;
        match Request::begun(started, timeout).await_end()? {
            Given::Value(value) => Ok(value),
            Given::Message(_) | Given::Nothing => unreachable!("a poll gives a number"),
        }
    }
}

#[pymethods]
impl Channel {
    /// What names the channel on all ranks: a text of at most 64 characters.
    #[getter]
    fn descriptor(&self) -> String {
        self.channel.anywhere().about().descriptor.to_string()
    }

    /// The rank that has the channel.
    #[getter]
    fn owner(&self) -> u32 {
        self.channel.anywhere().about().descriptor.owner().0
    }

    /// What it may hold, as `Channels.create` takes it: `messages`, `bytes`, `ports`,
    /// `window_messages` and `window_bytes`.
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ChannelLimits {
            messages,
            bytes,
            ports,
            window_messages,
            window_bytes,
        } = self.channel.anywhere().about().limits;
        let limits = PyDict::new(py);
        limits.set_item("messages", messages)?;
        limits.set_item("bytes", bytes)?;
        limits.set_item("ports", ports)?;
        limits.set_item("window_messages", window_messages)?;
        limits.set_item("window_bytes", window_bytes)?;
        Ok(limits)
    }

    /// What it is: "messages", "semaphore" or "barrier".
    #[getter]
    fn kind(&self) -> &'static str {
        match self.channel.anywhere().about().kind {
            ChannelKind::Messages => "messages",
            ChannelKind::Semaphore => "semaphore",
            ChannelKind::Barrier => "barrier",
        }
    }

    /// Sends `bytes`, or whatever has the buffer protocol, with 32 bits that mean what the program
    /// wants. Returns `when` the message was "deposited" in the channel, or "received" from it by
    /// somebody, or "buffered" here, or "immediately" (which raises `WouldBlock` where the port has
    /// as much under way as it may). What fails after the last two have returned is counted:
    /// `failures`.
    ///
    /// Raises `Misuse` for messages that are too long, `WouldBlock`, `Timeout`, `Closed`.
    #[pyo3(signature = (data, kind=0, *, when="deposited", timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        kind: u32,
        when: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let when = named("when", when, WHEN)?;
        let timeout = timeout_of(timeout)?;
        let view = View::of_bytes(data)?;
        let bytes = view.bytes();
        let sent = apart(py, || self.channel.send(kind, bytes, when, timeout));
        Ok(sent?)
    }

    /// Takes the first message out of the channel, and waits for one: its source, its kind, its
    /// bytes.
    ///
    /// Raises `WouldBlock`, `Timeout`; `Closed` once the channel is closed and empty.
    #[pyo3(signature = (*, timeout=None))]
    fn get<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Triple<'py>> {
        let timeout = timeout_of(timeout)?;
        got(py, apart(py, || self.get_hearing(timeout)))
    }

    /// As `get`, and the bytes are an array of `uint8` over the memory in which they came: nothing
    /// is copied. It is the program's.
    #[pyo3(signature = (*, timeout=None))]
    fn get_array<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Triple<'py>> {
        let timeout = timeout_of(timeout)?;
        let got = apart(py, || self.get_hearing(timeout));
        let got = got?;
        let array = Shared::from(got.bytes).array(py)?;
        (got.source.0, got.kind, array).into_pyobject(py)
    }

    /// As `get`, and the bytes are a `Message`, which `send_buffer` gives away again.
    #[pyo3(signature = (*, timeout=None))]
    fn get_buffer<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Triple<'py>> {
        let timeout = timeout_of(timeout)?;
        let got = apart(py, || self.get_hearing(timeout));
        let got = got?;
        let message = Bound::new(py, Message::from(got.bytes))?;
        (got.source.0, got.kind, message).into_pyobject(py)
    }

    /// Memory for a message of `length` bytes that is to be sent by this port: its `array` is
    /// written to, and then `send_buffer` gives it away. Of a long one, for an owner on this node,
    /// it is memory that the ranks of the node share, as long as there is some: then the message is
    /// not copied at all. What is in it at first means nothing.
    ///
    /// Raises `Misuse` for a message that is too long.
    fn buffer(&self, py: Python<'_>, length: usize) -> PyResult<Message> {
        Ok(apart(py, || self.channel.buffer(length))?.into())
    }

    /// As `send`, of a `Message`, whose memory is given away: it is empty once that is so, and has
    /// its bytes still where the call fails and nothing has left. The owner may refuse what has
    /// left, as for want of room when it is tried once: then it is gone with the call.
    ///
    /// Raises `Misuse` while an array over it is still there, and else as `send`.
    #[pyo3(signature = (message, kind=0, *, when="deposited", timeout=None))]
    fn send_buffer(
        &self,
        py: Python<'_>,
        message: &Message,
        kind: u32,
        when: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let when = named("when", when, WHEN)?;
        let timeout = timeout_of(timeout)?;
        let mut buffer = message.take()?;
        let had = buffer.len();
        let sent = apart(py, || {
            self.channel.send_buffer(kind, &mut buffer, when, timeout)
        });
        message.put(buffer, had, sent.is_err());
        Ok(sent?)
    }

    /// As `get`, into the beginning of an array or of whatever has the buffer protocol and may be
    /// written: its source, its kind, and how many bytes it has, which are copied once. Nothing
    /// else uses that memory meanwhile.
    ///
    /// Raises `Misuse` where the first message is longer, which stays in the channel: `length` of
    /// the exception is how many bytes it has.
    #[pyo3(signature = (buffer, *, timeout=None))]
    fn get_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<(u32, u32, usize)> {
        let timeout = timeout_of(timeout)?;
        let mut room = Room::of(buffer)?;
        let into = room.bytes();
        let filled = apart(py, || self.channel.get_into(into, timeout));
        let Filled {
            source,
            kind,
            length,
        } = filled?;
        Ok((source.0, kind, length))
    }

    /// As `get`, and the message stays where it is.
    #[pyo3(signature = (*, timeout=None))]
    fn peek<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Triple<'py>> {
        let timeout = timeout_of(timeout)?;
        got(py, apart(py, || self.channel.peek(timeout)))
    }

    /// As `get`, without the bytes, which are dropped.
    #[pyo3(signature = (*, timeout=None))]
    fn pop<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Triple<'py>> {
        let timeout = timeout_of(timeout)?;
        got(py, apart(py, || self.channel.pop(timeout)))
    }

    /// Waits until there is a message ("in", which gives how many), room ("out": for how many), one
    /// of both ("in_or_out": 1, 2, or 3 for both), no message ("empty"), no room ("full"), or the
    /// channel is "closed"; or asks for its "size" or "capacity" in messages, or how many gets wait
    /// ("receivers").
    ///
    /// Of a semaphore: waits until there is one and takes it ("acquire"), or takes nothing
    /// ("available"), or until there is none ("zero"); "release", "value". Of a barrier: waits for
    /// the others ("arrive"), which gives how many came before, or until one alone is missing
    /// ("one_missing"); "abort", "reset", "waiting", "broken".
    ///
    /// Raises `WouldBlock`, `Timeout`; `Closed` where it will never be; `BarrierBroken`; `Misuse`
    /// for what channels of this kind do not know.
    #[pyo3(signature = (what, *, timeout=None))]
    fn poll(&self, py: Python<'_>, what: &str, timeout: Option<f64>) -> PyResult<u64> {
        let what = named("what", what, WHAT)?;
        let timeout = timeout_of(timeout)?;
        Ok(apart(py, || self.poll_hearing(what, timeout))?)
    }

    /// Starts a `get`, and does not wait: what it gives is awaited, tested, waited for, or slept
    /// on.
    ///
    /// Raises `WouldBlock` where as many requests of the port wait as may.
    #[pyo3(signature = (*, timeout=None))]
    fn start_get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Request> {
        let timeout = timeout_of(timeout)?;
        Request::of(apart(py, || self.channel.start_get(timeout)), timeout)
    }

    /// Starts a `poll`, and does not wait. As `start_get`.
    #[pyo3(signature = (what, *, timeout=None))]
    fn start_poll(&self, py: Python<'_>, what: &str, timeout: Option<f64>) -> PyResult<Request> {
        let what = named("what", what, WHAT)?;
        let timeout = timeout_of(timeout)?;
        Request::of(
            apart(py, || self.channel.start_poll(what, timeout)),
            timeout,
        )
    }

    /// Starts a `send`, and does not wait. The bytes are copied.
    ///
    /// Raises `WouldBlock`, with nothing sent, where the port has as much under way as it may.
    #[pyo3(signature = (data, kind=0, *, when="deposited", timeout=None))]
    fn start_send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        kind: u32,
        when: &str,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let when = named("when", when, WHEN)?;
        let timeout = timeout_of(timeout)?;
        let view = View::of_bytes(data)?;
        let bytes = view.bytes();
        let started = apart(py, || self.channel.start_send(kind, bytes, when, timeout));
        Request::of(started, timeout)
    }

    /// A file descriptor for `select`, `selectors` and their like, which is readable while
    /// something may be had from the channel without waiting: a message, one of a semaphore, the
    /// place of the last one to come to a barrier, or an error. It is the port's, and neither to be
    /// read nor closed. Whoever is woken takes until `WouldBlock`, and then sleeps again.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(apart(py, || self.channel.event())?)
    }

    /// How many sends have failed after they had returned, and why the last of them has.
    fn failures(&self, py: Python<'_>) -> PyResult<(u64, Option<String>)> {
        let (count, last) = apart(py, || self.channel.failures())?;
        Ok((count, last.map(|error| error.to_string())))
    }

    /// Closes the channel; by its owner, and guests of that, only. What is in it
    /// may still be got.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = apart(py, || self.channel.close());
        Ok(closed?)
    }
}

type Triple<'py> = Bound<'py, PyTuple>;

fn got<'py>(py: Python<'py>, got: Result<Received, Failure>) -> PyResult<Triple<'py>> {
    triple(py, &got?)
}

const WHEN: &[(&str, Return)] = &[
    ("immediately", Return::Immediately),
    ("buffered", Return::WhenBuffered),
    ("deposited", Return::WhenDeposited),
    ("received", Return::WhenReceived),
];

const WHAT: &[(&str, Poll)] = &[
    ("in", Poll::In),
    ("out", Poll::Out),
    ("in_or_out", Poll::InOrOut),
    ("empty", Poll::Empty),
    ("full", Poll::Full),
    ("closed", Poll::Closed),
    ("size", Poll::Size),
    ("capacity", Poll::Capacity),
    ("receivers", Poll::Receivers),
    ("acquire", Poll::Acquire),
    ("release", Poll::Release),
    ("zero", Poll::Zero),
    ("value", Poll::Value),
    ("available", Poll::Available),
    ("arrive", Poll::Arrive),
    ("abort", Poll::Abort),
    ("reset", Poll::Reset),
    ("waiting", Poll::Waiting),
    ("broken", Poll::Broken),
    ("one_missing", Poll::OneMissing),
];

/// The bytes of a message with their memory: one that `Channel.get_buffer` has got, or one that
/// `Channel.buffer` has made and that is to be sent.
#[pyclass(frozen, module = "trihop")]
pub struct Message {
    shared: Mutex<Shared>,
    /// It was given away, or a call that does so has it.
    is_gone: Mutex<bool>,
}

impl From<Buffer> for Message {
    fn from(bytes: Buffer) -> Self {
        Self {
            shared: Mutex::new(bytes.into()),
            is_gone: Mutex::new(false),
        }
    }
}

impl Message {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes, where nothing else refers to them; what is left is empty.
    fn take(&self) -> PyResult<Buffer> {
        let mut shared = self.shared();
        let mut is_gone = self.is_gone();
        if *is_gone {
            let why = "the message was given away by a call before";
            return Err(Failure::Misuse(why.to_owned()).into());
        }
        let taken = std::mem::replace(&mut *shared, Buffer::default().into());
        let taken = taken.into_buffer().map_err(|taken| {
            *shared = taken;
            let why = "an array over the message is still there; delete it before it is sent";
            Failure::Misuse(why.to_owned())
        })?;
        *is_gone = true;
        Ok(taken)
    }

    fn is_gone(&self) -> MutexGuard<'_, bool> {
        self.is_gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call has left of it: all, or nothing, where the owner has refused it, too.
    fn put(&self, bytes: Buffer, had: usize, has_failed: bool) {
        let mut shared = self.shared();
        *self.is_gone() = !has_failed || bytes.len() < had;
        *shared = bytes.into();
    }
}

#[pymethods]
impl Message {
    /// An array of `uint8` over the bytes, to be read and written. The message cannot be sent
    /// while it is there.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared().clone();
        shared.array(py)
    }

    fn __len__(&self) -> usize {
        self.shared().len()
    }
}

/// Those that are given, and the usual ones.
pub fn limits_of(
    (messages, bytes): (Option<u32>, Option<u64>),
    ports: Option<u32>,
    (window_messages, window_bytes): (Option<u32>, Option<u64>),
) -> ChannelLimits {
    let usual = ChannelLimits::default();
    ChannelLimits {
        messages: messages.unwrap_or(usual.messages),
        bytes: bytes.unwrap_or(usual.bytes),
        ports: ports.unwrap_or(usual.ports),
        window_messages: window_messages.unwrap_or(usual.window_messages),
        window_bytes: window_bytes.unwrap_or(usual.window_bytes),
    }
}

/// What a word stands for.
pub fn named<T: Copy>(argument: &str, word: &str, all: &[(&str, T)]) -> PyResult<T> {
    let found = all.iter().find(|(name, _)| *name == word);
    found.map(|&(_, value)| value).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|&(name, _)| name).collect();
        let names = names.join(", ");
        PyValueError::new_err(format!("{argument} is `{word}`: it is one of {names}"))
    })
}
