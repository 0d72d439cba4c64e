//! Guests: processes that are no ranks, and use channels through a rank of their node.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use trihop::channel::Descriptor;
use trihop::guest::{self, Lifetime};

use crate::channel::{Channel, limits_of};
use crate::detached::Detached;
use crate::error::Failure;

/// A process that is no rank, and uses the channels of a job all the same, through a rank of its
/// node that serves guests (`Channels.serve_guests`, or the command `trihop serve`). It needs no
/// launcher and no other guest, and may come and go at any time. `name` is that of the server: the
/// variable `TRIHOP_GUESTS` where it is None, else `trihop-guests-` and the number of the user.
/// `wait` is how many seconds it waits for one that serves, 10 by default; without an end where it
/// is None.
///
/// Raises `ServerFailed` where nobody has come to serve in time.
#[pyclass(frozen, module = "trihop")]
pub struct Guest {
    guest: guest::Guest,
}

fn lifetime_of(lasting: bool) -> Lifetime {
    match lasting {
        true => Lifetime::Server,
        false => Lifetime::Guest,
    }
}

#[pymethods]
impl Guest {
    #[new]
    #[pyo3(signature = (name=None, *, wait=Some(10.0)))]
    fn new(py: Python<'_>, name: Option<String>, wait: Option<f64>) -> PyResult<Self> {
        let name = name.unwrap_or_else(guest::default_name);
        let wait = match wait {
            None => Duration::MAX,
            Some(wait) if wait >= 0.0 => Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX),
            Some(wait) => return Err(PyValueError::new_err(format!("wait is {wait} s"))),
        };
        let guest = py.detach(|| guest::Guest::of(&name, wait));
        Ok(Self {
            guest: guest.map_err(Failure::from)?,
        })
    }

    /// The name of its server.
    #[getter]
    fn name(&self) -> &str {
        self.guest.name()
    }

    /// The rank that serves it: the owner of the channels that it makes, and the source of what it
    /// sends.
    #[getter]
    fn rank(&self) -> u32 {
        self.guest.rank().0
    }

    /// Ranks of the job.
    #[getter]
    fn size(&self) -> u32 {
        self.guest.size()
    }

    /// Makes a channel of the server's, as `Channels.create` does of a rank. It is there until this
    /// port of it goes, or, where it is `lasting`, until a guest of that server closes it.
    #[pyo3(signature = (*, lasting=false, messages=None, bytes=None, ports=None, window_messages=None, window_bytes=None))]
    #[expect(clippy::too_many_arguments, reason = "they are words in Python")]
    fn create(
        &self,
        py: Python<'_>,
        lasting: bool,
        messages: Option<u32>,
        bytes: Option<u64>,
        ports: Option<u32>,
        window_messages: Option<u32>,
        window_bytes: Option<u64>,
    ) -> PyResult<Channel> {
        let limits = limits_of((messages, bytes), ports, (window_messages, window_bytes));
        let made = py.detach(|| self.guest.create(limits, lifetime_of(lasting)));
        Ok(Channel::of(made.map_err(Failure::from)?))
    }

    /// Makes a semaphore of the server's, as `Channels.semaphore` does of a rank. What a guest has
    /// acquired when it ends stays acquired.
    #[pyo3(signature = (value=1, *, most=None, lasting=false, ports=None, window_messages=None))]
    fn semaphore(
        &self,
        py: Python<'_>,
        value: u64,
        most: Option<u64>,
        lasting: bool,
        ports: Option<u32>,
        window_messages: Option<u32>,
    ) -> PyResult<Channel> {
        let limits = limits_of((None, None), ports, (window_messages, None));
        let most = most.unwrap_or(u64::MAX);
        let made = py.detach(|| {
            self.guest
                .semaphore(value, most, limits, lifetime_of(lasting))
        });
        Ok(Channel::of(made.map_err(Failure::from)?))
    }

    /// Makes a barrier of the server's, as `Channels.barrier` does of a rank.
    #[pyo3(signature = (parties, *, lasting=false, ports=None, window_messages=None))]
    fn barrier(
        &self,
        py: Python<'_>,
        parties: u32,
        lasting: bool,
        ports: Option<u32>,
        window_messages: Option<u32>,
    ) -> PyResult<Channel> {
        let limits = limits_of((None, None), ports, (window_messages, None));
        let made = py.detach(|| self.guest.barrier(parties, limits, lifetime_of(lasting)));
        Ok(Channel::of(made.map_err(Failure::from)?))
    }

    /// A port of the channel that this descriptor names, whichever rank owns it.
    ///
    /// Raises `NoChannel` where there is none of that name.
    fn attach(&self, py: Python<'_>, descriptor: &str) -> PyResult<Channel> {
        let attach = || self.guest.attach(&descriptor.parse::<Descriptor>()?);
        let port = py.detach(attach).map_err(Failure::from)?;
        Ok(Channel::of(port))
    }
}

/// What serves guests, as long as it is there: `Channels.serve_guests` gives it. It may stand in a
/// `with`.
#[pyclass(frozen, module = "trihop")]
pub struct Guests {
    name: String,
    guests: Mutex<Option<Detached<guest::Guests>>>,
}

impl Guests {
    pub fn of(guests: guest::Guests) -> Self {
        Self {
            name: guests.name().to_owned(),
            guests: Mutex::new(Some(Detached::new(guests))),
        }
    }
}

#[pymethods]
impl Guests {
    /// The name under which guests are served.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Serves guests no longer: those that there are find their connections closed.
    fn close(&self) {
        let guests = self.guests.lock();
        let guests = guests.unwrap_or_else(PoisonError::into_inner).take();
        drop(guests); // with no lock held
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close();
    }
}
