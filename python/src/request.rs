//! Calls on channels that are started: to be tested, waited for, slept on, or awaited.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use trihop::channel::{Received, Timeout};
use trihop::guest;
use trihop::over::{Asked, Threaded};

use crate::detached::{Detached, apart};
use crate::error::{Failure, SIGNALS_EVERY, check_signals, of_call};
use crate::handler;

/// How long a wait asks for the end before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// A clock that is a little slow would have the end of a time looked at too early, and again.
const A_LITTLE: Duration = Duration::from_millis(1);

/// What is under way: of a rank, or of a guest.
pub enum UnderWay {
    Get(Asked<Received, Threaded>),
    Poll(Asked<u64, Threaded>),
    Send(Asked<(), Threaded>),
    GuestGet(guest::Asked<Received>),
    GuestPoll(guest::Asked<u64>),
    GuestSend(guest::Asked<()>),
}

/// What it has given.
pub enum Given {
    Message(Received),
    Value(u64),
    Nothing,
}

impl From<Received> for Given {
    fn from(message: Received) -> Self {
        Self::Message(message)
    }
}

impl From<u64> for Given {
    fn from(value: u64) -> Self {
        Self::Value(value)
    }
}

impl From<()> for Given {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

/// Calls the method of what is under way.
macro_rules! each {
    ($under_way:expr, $asked:ident => $call:expr) => {
        match $under_way {
            UnderWay::Get($asked) => $call,
            UnderWay::Poll($asked) => $call,
            UnderWay::Send($asked) => $call,
            UnderWay::GuestGet($asked) => $call,
            UnderWay::GuestPoll($asked) => $call,
            UnderWay::GuestSend($asked) => $call,
        }
    };
}

/// What is under way of each kind.
macro_rules! from_asked {
    ($($asked:ty => $kind:ident),+ $(,)?) => {$(
        impl From<$asked> for UnderWay {
            fn from(asked: $asked) -> Self {
                Self::$kind(asked)
            }
        }
    )+};
}

from_asked! {
    Asked<Received, Threaded> => Get,
    Asked<u64, Threaded> => Poll,
    Asked<(), Threaded> => Send,
    guest::Asked<Received> => GuestGet,
    guest::Asked<u64> => GuestPoll,
    guest::Asked<()> => GuestSend,
}

impl UnderWay {
    /// Wakes whoever sleeps on copies of its event, for good: it is about to be taken back.
    fn wake(&mut self) {
        let event = match self {
            Self::Get(asked) => asked.event(),
            Self::Poll(asked) => asked.event(),
            Self::Send(asked) => asked.event(),
            // The end of its connection does.
            Self::GuestGet(_) | Self::GuestPoll(_) | Self::GuestSend(_) => return,
        };
        // Where it fails there was none to be copied.
        if let Ok(event) = event {
            // EAGAIN: the counter is full, so it is readable anyway.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

enum State {
    UnderWay(UnderWay),
    Ended(Result<Given, trihop::Error>),
    /// There is no result any more: why.
    Gone(&'static str),
}

impl State {
    /// Where it is under way, whether it has ended by now. One that has ended, but for a failure
    /// that it had nothing to do with, says so in its state.
    fn look(&mut self) -> Result<bool, Failure> {
        let Self::UnderWay(under_way) = self else {
            return Ok(true);
        };
        let said = each!(under_way, asked => asked.test().map(|given| given.map(Given::from)));
        let ended = match said {
            Ok(None) => return Ok(false),
            Ok(Some(given)) => Ok(given),
            Err(error) if each!(under_way, asked => asked.is_under_way()) => {
                return Err(of_call(error));
            }
            Err(error) => Err(error),
        };
        *self = Self::Ended(ended);
        Ok(true)
    }

    /// The result, once; none while it is under way.
    fn take(&mut self) -> Result<Option<Given>, Failure> {
        match std::mem::replace(self, Self::Gone("it was had")) {
            Self::Ended(ended) => ended.map(Some).map_err(of_call),
            Self::Gone(why) => {
                *self = Self::Gone(why);
                Err(Failure::Misuse(format!(
                    "the request has no result any more: {why}"
                )))
            }
            under_way @ Self::UnderWay(_) => {
                *self = under_way;
                Ok(None)
            }
        }
    }

    /// What becomes readable at the end, and stays so. The caller's own: that of what is under way
    /// is closed then, and a loop that still watches it would hear nothing.
    fn event(&mut self) -> Result<OwnedFd, Failure> {
        let event = match self {
            Self::UnderWay(under_way) => each!(under_way, asked => asked.event())
                .map_err(of_call)?
                .try_clone_to_owned(),
            Self::Ended(_) | Self::Gone(_) => {
                eventfd(1, EventfdFlags::CLOEXEC).map_err(std::io::Error::from)
            }
        };
        Ok(event.map_err(PyErr::from)?)
    }
}

/// A call on a channel that was started and not waited for: `Channel.start_get`, `start_poll` and
/// `start_send` give one. It is awaited in a coroutine of `asyncio`, or tested and waited for, or
/// slept on by its descriptor (`fileno`). Its result is had once. Dropped or cancelled before its
/// end it is taken back: a message that comes all the same goes back to its place in the channel.
#[pyclass(frozen, module = "trihop")]
pub struct Request {
    state: Detached<Mutex<State>>,
    /// What the program sleeps on, once it has asked for that.
    event: OnceLock<OwnedFd>,
    /// When its time is over.
    until: Option<Instant>,
}

impl Request {
    pub fn of(started: Result<UnderWay, Failure>, timeout: Timeout) -> PyResult<Self> {
        Ok(Self::begun(started?, timeout))
    }

    pub fn begun(under_way: UnderWay, timeout: Timeout) -> Self {
        let until = match timeout {
            Timeout::After(time) => Instant::now().checked_add(time),
            Timeout::Never | Timeout::Once => None,
        };
        let is_guests = matches!(
            under_way,
            UnderWay::GuestGet(_) | UnderWay::GuestPoll(_) | UnderWay::GuestSend(_)
        );
        let state = Mutex::new(State::UnderWay(under_way));
        let state = match is_guests {
            true => Detached::of_guest(state),
            false => Detached::new(state),
        };
        Self {
            state,
            event: OnceLock::new(),
            until,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves a request that has not ended, or has.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has given, unless it is still under way.
    fn try_take(&self) -> Result<Option<Given>, Failure> {
        let mut state = self.state();
        state.look()?;
        state.take()
    }

    /// Sleeps until it has ended or its time is over, for a while at most, with no lock held:
    /// others may ask for its end meanwhile, or take it back.
    fn sleep(&self) -> Result<(), Failure> {
        let mut limit = SIGNALS_EVERY;
        if let Some(left) = self.left().filter(|left| !left.is_zero()) {
            limit = limit.min(left + A_LITTLE);
        }
        let event = self.state().event()?;
        let limit = Timespec::try_from(limit).expect("it is short");
        match poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(PyErr::from(std::io::Error::from(error)).into()),
        }
    }

    /// Waits for its end, and hears signals.
    pub fn await_end(&self) -> Result<Given, Failure> {
        let begun = Instant::now();
        loop {
            if let Some(given) = self.try_take()? {
                return Ok(given);
            }
            if handler::is_in_handler() {
                return Err(Failure::Engine(trihop::Error::Nested(
                    "a wait for a request",
                )));
            }
            match begun.elapsed() < SPIN {
                true => std::thread::yield_now(),
                false => {
                    self.sleep()?;
                    check_signals()?;
                }
            }
        }
    }

    /// The time that is left; none where it has no end.
    fn left(&self) -> Option<Duration> {
        Some(self.until?.saturating_duration_since(Instant::now()))
    }
}

#[pymethods]
impl Request {
    /// Whether it has ended, in time or not. Does not wait.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(apart(py, || self.state().look())?)
    }

    /// Waits until it has ended, and gives what the call that waits gives, or raises what that
    /// raises. Once. Signals are heard. Where another thread takes it back meanwhile, and inside
    /// handlers while it is under way, this raises `Misuse`; in handlers it stays under way.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        into_python(py, apart(py, || self.await_end())?)
    }

    /// A file descriptor for `select` and its like, which is readable once the request has ended,
    /// was taken back or the job has failed, and stays so. It is the request's, as long as that
    /// lives, and neither to be read nor closed. With a timeout, whoever sleeps on it wakes when
    /// that is over, and tests.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let event = || match self.event.get() {
            Some(event) => Ok(event),
            None => {
                // Of several threads that come first, one's is kept.
                let event = self.state().event()?;
                Ok::<_, Failure>(self.event.get_or_init(|| event))
            }
        };
        Ok(apart(py, event)?.as_raw_fd())
    }

    /// Takes it back. The result of one that `test` or `wait` has found ended stays; what was sent
    /// may have come all the same.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let cancelled = apart(py, || {
            let mut state = self.state();
            if let State::UnderWay(under_way) = &mut *state {
                under_way.wake();
                let taken_back = std::mem::replace(&mut *state, State::Gone("it was taken back"));
                drop(state);
                drop(taken_back);
            }
            Ok::<_, Failure>(())
        });
        Ok(cancelled?)
    }

    /// As `fileno`, and the caller's to be closed.
    fn _descriptor(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(apart(py, || self.state().event())?.into_raw_fd())
    }

    /// Seconds until its time is over; None where it has no end.
    fn _left(&self) -> Option<f64> {
        Some((self.left()? + A_LITTLE).as_secs_f64())
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static AWAITED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let awaited = AWAITED.get_or_try_init(py, || {
            let module = PyModule::from_code(
                py,
                c_str(concat!(include_str!("awaited.py"), "\0")),
                c"trihop/awaited.py",
                c"trihop._awaited",
            )?;
            Ok::<_, PyErr>(module.getattr("awaited")?.unbind())
        })?;
        let coroutine = awaited.bind(py).call1((slf,))?;
        coroutine.call_method0(intern!(py, "__await__"))
    }
}

const fn c_str(text: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text with NUL at its end alone"),
    }
}

fn into_python<'py>(py: Python<'py>, given: Given) -> PyResult<Bound<'py, PyAny>> {
    match given {
        Given::Message(message) => Ok(triple(py, &message)?.into_any()),
        Given::Value(value) => Ok(value.into_pyobject(py)?.into_any()),
        Given::Nothing => Ok(py.None().into_bound(py)),
    }
}

/// A message as Python has it: its source, its kind, its bytes.
pub fn triple<'py>(
    py: Python<'py>,
    message: &Received,
) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
    let bytes = PyBytes::new(py, &message.bytes);
    (message.source.0, message.kind, bytes).into_pyobject(py)
}

pub fn timeout_of(seconds: Option<f64>) -> PyResult<Timeout> {
    let Some(seconds) = seconds else {
        return Ok(Timeout::Never);
    };
    if seconds == 0.0 {
        return Ok(Timeout::Once);
    }
    if seconds == f64::INFINITY {
        return Ok(Timeout::Never);
    }
    let time = Duration::try_from_secs_f64(seconds)
        .map_err(|why| PyValueError::new_err(format!("a timeout of {seconds} seconds: {why}")))?;
    Ok(Timeout::After(time))
}
