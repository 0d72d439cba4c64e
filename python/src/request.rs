//! Calls on channels that are started: to be tested, waited for, slept on, or awaited.

use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use trihop::channel::{Received, Timeout};
use trihop::over::{Asked, Threaded};

use crate::error::{Failure, of_call};

/// What is under way, of whatever gives.
pub enum UnderWay {
    Get(Asked<Received, Threaded>),
    Poll(Asked<u64, Threaded>),
    Send(Asked<(), Threaded>),
}

/// What it has given.
enum Given {
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
        }
    };
}

impl From<Asked<Received, Threaded>> for UnderWay {
    fn from(asked: Asked<Received, Threaded>) -> Self {
        Self::Get(asked)
    }
}

impl From<Asked<u64, Threaded>> for UnderWay {
    fn from(asked: Asked<u64, Threaded>) -> Self {
        Self::Poll(asked)
    }
}

impl From<Asked<(), Threaded>> for UnderWay {
    fn from(asked: Asked<(), Threaded>) -> Self {
        Self::Send(asked)
    }
}

enum State {
    UnderWay(UnderWay),
    Ended(Result<Given, trihop::Error>),
    /// Its result was taken, or it was taken back.
    Gone,
}

/// A call on a channel that was started and not waited for: `Channel.start_get`, `start_poll` and
/// `start_send` give one. It is awaited in a coroutine of `asyncio`, or tested and waited for, or
/// slept on by its descriptor (`fileno`). Its result is had once. Dropped or cancelled before its
/// end it is taken back: a message that comes all the same goes back to its place in the channel.
#[pyclass(frozen, module = "trihop")]
pub struct Request {
    state: Mutex<State>,
    /// When its time is over.
    until: Option<Instant>,
}

impl Request {
    pub fn of<T>(
        asked: Result<Asked<T, Threaded>, trihop::Error>,
        timeout: Timeout,
    ) -> PyResult<Self>
    where
        UnderWay: From<Asked<T, Threaded>>,
    {
        let asked = asked.map_err(of_call)?;
        let until = match timeout {
            Timeout::After(time) => Instant::now().checked_add(time),
            Timeout::Never | Timeout::Once => None,
        };
        Ok(Self {
            state: Mutex::new(State::UnderWay(asked.into())),
            until,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves a request that has not ended, or has.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has ended.
    fn look(&self) -> Result<bool, Failure> {
        let mut state = self.state();
        let State::UnderWay(under_way) = &mut *state else {
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
        *state = State::Ended(ended);
        Ok(true)
    }

    fn take(&self) -> Result<Given, Failure> {
        match std::mem::replace(&mut *self.state(), State::Gone) {
            State::Ended(Ok(given)) => Ok(given),
            State::Ended(Err(error)) => Err(of_call(error)),
            State::UnderWay(_) | State::Gone => {
                let why = "the request has no result any more: that was had, or it was taken back";
                Err(Failure::Misuse(why.to_owned()))
            }
        }
    }
}

#[pymethods]
impl Request {
    /// Whether it has ended, in time or not. Does not wait.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| self.look())?)
    }

    /// Waits until it has ended, and gives what the call that waits gives, or raises what that
    /// raises. Once.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let wait = || -> Result<Given, Failure> {
            let mut state = self.state();
            if let State::UnderWay(under_way) = &mut *state {
                let said = each!(under_way, asked => asked.wait_mut().map(Given::from));
                *state = State::Ended(said);
            }
            drop(state);
            self.take()
        };
        into_python(py, py.detach(wait)?)
    }

    /// A file descriptor for `select` and its like, which is readable once the request has ended or
    /// the job has failed. It is the request's, and neither to be read nor closed. With a timeout,
    /// whoever sleeps on it wakes when that is over, and tests.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let descriptor = || match &mut *self.state() {
            State::UnderWay(under_way) => each!(under_way, asked => {
                asked.event().map(|event| event.as_raw_fd())
            })
            .map_err(of_call),
            State::Ended(_) | State::Gone => {
                let why = "the request has ended: there is nothing to sleep on";
                Err(Failure::Misuse(why.to_owned()))
            }
        };
        Ok(py.detach(descriptor)?)
    }

    /// Takes it back, unless it has ended.
    fn cancel(&self, py: Python<'_>) {
        let state = py.detach(|| std::mem::replace(&mut *self.state(), State::Gone));
        py.detach(|| drop(state));
    }

    /// Seconds until its time is over; None where it has no end.
    fn _left(&self) -> Option<f64> {
        let left = self.until?.saturating_duration_since(Instant::now());
        // A clock that is a little slow would test too early, and again.
        Some((left + Duration::from_millis(1)).as_secs_f64())
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
    let time = Duration::try_from_secs_f64(seconds)
        .map_err(|why| PyValueError::new_err(format!("a timeout of {seconds} seconds: {why}")))?;
    Ok(Timeout::After(time))
}
