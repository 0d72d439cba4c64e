//! What of the library's is dropped without Python's lock.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

use pyo3::prelude::*;

use crate::error::Failure;
use crate::handler;

/// What is ended once: ends that come again do nothing, as of Python's own files.
#[derive(Default)]
pub struct Ended(OnceLock<()>);

impl Ended {
    pub fn once<E>(&self, end: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.0.get().is_none() {
            end()?;
            self.0.get_or_init(|| ());
        }
        Ok(())
    }
}

/// A handle that an object of Python's owns. The last handle of a job waits for the delivery
/// threads as it goes, and these wait for Python's lock: who drops it lets go of the lock.
pub struct Detached<T: Send> {
    handle: Option<T>,
    process: u32,
    /// It refuses calls in a fork itself.
    knows_forks: bool,
}

impl<T: Send> Detached<T> {
    pub fn new(handle: T) -> Self {
        Self {
            handle: Some(handle),
            process: std::process::id(),
            knows_forks: false,
        }
    }

    /// One of a guest, which refuses calls in a fork itself.
    pub fn of_guest(handle: T) -> Self {
        let mut of_guest = Self::new(handle);
        of_guest.knows_forks = true;
        of_guest
    }
}

impl<T: Send> Detached<T> {
    /// What may be looked at in a fork, too.
    pub fn anywhere(&self) -> &T {
        self.handle.as_ref().expect("it goes with its owner")
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    /// # Panics
    /// In a fork of the process that has made it, which has none of its threads and not all of its
    /// memory: calls would end it by a signal, or do nothing. [`apart`] makes an exception of that.
    fn deref(&self) -> &T {
        if !self.knows_forks && self.process != std::process::id() {
            resume_unwind(Box::new(Forked(self.process)));
        }
        self.anywhere()
    }
}

/// Something of this process is used in a fork of it.
struct Forked(u32);

/// Makes a call without Python's lock; in a fork it is refused.
pub fn apart<R: Send, E>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<R, E> + Send,
) -> Result<R, Failure>
where
    Failure: From<E>,
    E: Send,
{
    let called = catch_unwind(AssertUnwindSafe(|| py.detach(call)));
    match called.map_err(|panic| panic.downcast::<Forked>()) {
        Ok(outcome) => Ok(outcome?),
        Err(Ok(forked)) => {
            let why = format!(
                "this is of process {}, of which this one is a fork: a fork uses nothing of a job; \
                 start processes by `spawn`",
                forked.0
            );
            Err(Failure::Misuse(why))
        }
        Err(Err(panic)) => resume_unwind(panic),
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let mut handle = self.handle.take();
        if handler::is_abandoned() || self.process != std::process::id() {
            // Its threads never come back from Python, or this is a fork, which has none of them.
            std::mem::forget(handle);
            return;
        }
        Python::try_attach(|py| py.detach(|| drop(handle.take())));
        // Where there is no interpreter any more there is no lock either, and no handler is called.
        drop(handle);
    }
}
