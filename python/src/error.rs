//! One class of exceptions for each kind of failure that a program acts on.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    trihop,
    Error,
    PyException,
    "What a call of a job, stream or channel has failed with. Of this class itself is what a \
     program can do nothing about: the launcher, libfabric, the operating system."
);
create_exception!(
    trihop,
    WouldBlock,
    Error,
    "There is no room, or nothing to get, now. Of streams: pull what has arrived, then call again."
);
create_exception!(
    trihop,
    Timeout,
    Error,
    "A call of a channel has taken as long as it may. Nothing was sent, nothing taken."
);
create_exception!(
    trihop,
    Closed,
    Error,
    "The stream, the channel or the whole job was shut down."
);
create_exception!(
    trihop,
    Misuse,
    Error,
    "A mistake of the program: a rank that does not exist, a record that is too long, calls that \
     do not go together, ranks that do not agree. Nothing was done. A buffer that is too small for \
     a message: `length` is that of the message, which is still the first of its channel."
);
create_exception!(
    trihop,
    Config,
    Error,
    "An option or a variable of the environment that is unknown, impossible, or contradicts \
     another one."
);
create_exception!(
    trihop,
    NoChannel,
    Error,
    "A descriptor that names no channel: not one, of another job, or of a channel that is gone."
);
create_exception!(
    trihop,
    BarrierBroken,
    Error,
    "A barrier is broken, or was made whole while this call waited in it."
);
create_exception!(trihop, NoMemory, Error, "There is no memory for a record.");
create_exception!(
    trihop,
    PeerGone,
    Error,
    "A rank is gone, has failed, or is out of reach: `rank` says which. The job has ended."
);
create_exception!(
    trihop,
    AgentDead,
    Error,
    "The agent of a node is gone: `rank` is the first of its ranks. Nothing reaches these from \
     other nodes, or leaves them. The job has ended; a new one may find channels that were kept."
);
create_exception!(
    trihop,
    ServerFailed,
    Error,
    "What served a guest has ended, or can serve it no longer. What was sent and not waited for may be \
     lost. Attach at the next server."
);

/// What a call here has failed with: the engine's error, or one of this package.
pub enum Failure {
    Engine(trihop::Error),
    /// So many bytes wait to be pulled from this stream, and no more may.
    Held {
        stream: String,
        bytes: usize,
        limit: usize,
    },
    /// What a channel cannot do at once.
    NotNow,
    /// What makes no sense, and the remedy.
    Misuse(String),
    /// What Python has raised.
    Python(PyErr),
}

impl From<trihop::Error> for Failure {
    fn from(error: trihop::Error) -> Self {
        Self::Engine(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Failure {
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Engine(trihop::Error::WouldBlock))
    }

    /// The exception, which has `taken`: how many items were sent before.
    pub fn after(self, py: Python<'_>, taken: usize) -> PyErr {
        let raised = PyErr::from(self);
        match raised.value(py).setattr("taken", taken) {
            Ok(()) => raised,
            Err(error) => error,
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Engine(error) => raised(&error),
            Failure::Held {
                stream,
                bytes,
                limit,
            } => WouldBlock::new_err(format!(
                "stream `{stream}`: {bytes} bytes have arrived and wait to be pulled, of \
                 {limit} that may (held_bytes); pull, then call again"
            )),
            Failure::NotNow => WouldBlock::new_err(
                "the channel has no message, no room, or as much of this port under way as it may; \
                 try again, or give the call a timeout",
            ),
            Failure::Misuse(why) => Misuse::new_err(why),
            Failure::Python(error) => error,
        }
    }
}

/// How often a wait looks whether a signal of Python's has come.
pub const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// What a handler of signals raises that is due. Of an interpreter that ends none is called.
pub fn check_signals() -> PyResult<()> {
    Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()))
}

/// Of a call of a channel, which is not about the room of a stream.
pub fn of_call(error: trihop::Error) -> Failure {
    match error {
        trihop::Error::WouldBlock => Failure::NotNow,
        error => Failure::Engine(error),
    }
}

/// What a handler has raised last. It has ended the job, which the calls of the program say.
static RAISED: Mutex<Option<PyErr>> = Mutex::new(None);

/// Keeps what a handler has raised, for whoever is told that it has.
pub fn keep_raised(error: PyErr) {
    let before = RAISED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .replace(error);
    drop(before); // with no lock held: it may own anything
}

/// That a handler has failed, because of what it has raised.
fn by_handler(text: String) -> PyErr {
    Python::attach(|py| {
        let error = Error::new_err(text);
        let raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = raised.as_ref().map(|raised| raised.clone_ref(py));
        drop(raised); // what Python makes may have it call whatever finalizers there are
        error.set_cause(py, cause);
        error
    })
}

/// The exception, which has a number by this name.
fn with_number(raised: PyErr, name: &str, number: usize) -> PyErr {
    let named = Python::attach(|py| raised.value(py).setattr(name, number));
    named.err().unwrap_or(raised)
}

/// The exception, which has `rank`.
fn of_rank(raised: PyErr, rank: u32) -> PyErr {
    with_number(raised, "rank", rank as usize)
}

fn raised(error: &trihop::Error) -> PyErr {
    use trihop::Error as Engine;
    let text = error.to_string();
    match error {
        Engine::WouldBlock => WouldBlock::new_err(text),
        Engine::TimedOut(_) => Timeout::new_err(text),
        Engine::Closed(_) | Engine::ChannelClosed { .. } => Closed::new_err(text),
        Engine::Misuse { .. }
        | Engine::Nested(_)
        | Engine::Rank { .. }
        | Engine::TooLarge { .. }
        | Engine::Mismatch { .. } => Misuse::new_err(text),
        Engine::Config { .. } | Engine::Environment { .. } => Config::new_err(text),
        Engine::BufferTooSmall { bytes, .. } => {
            with_number(Misuse::new_err(text), "length", *bytes)
        }
        Engine::BarrierBroken { .. } => BarrierBroken::new_err(text),
        Engine::Handler { .. } => by_handler(text),
        Engine::NoChannel { .. } => NoChannel::new_err(text),
        Engine::NoMemory { .. } | Engine::SpillFull { .. } | Engine::BroadcastsFull { .. } => {
            NoMemory::new_err(text)
        }
        Engine::PeerDead { rank, .. }
        | Engine::PeerFailed { rank, .. }
        | Engine::LinkFailed { rank, .. }
        | Engine::BadPeer { rank, .. }
        | Engine::NoElement { rank, .. } => of_rank(PeerGone::new_err(text), *rank),
        Engine::AgentDead { rank, .. } => of_rank(AgentDead::new_err(text), *rank),
        Engine::ServerFailed { .. } => ServerFailed::new_err(text),
        _ => Error::new_err(text),
    }
}

/// Puts the classes into the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    for (name, class) in [
        ("Error", py.get_type::<Error>()),
        ("WouldBlock", py.get_type::<WouldBlock>()),
        ("Timeout", py.get_type::<Timeout>()),
        ("Closed", py.get_type::<Closed>()),
        ("Misuse", py.get_type::<Misuse>()),
        ("Config", py.get_type::<Config>()),
        ("NoChannel", py.get_type::<NoChannel>()),
        ("BarrierBroken", py.get_type::<BarrierBroken>()),
        ("NoMemory", py.get_type::<NoMemory>()),
        ("PeerGone", py.get_type::<PeerGone>()),
        ("AgentDead", py.get_type::<AgentDead>()),
        ("ServerFailed", py.get_type::<ServerFailed>()),
    ] {
        module.add(name, class)?;
    }
    Ok(())
}
