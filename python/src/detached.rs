//! What of the library's is dropped without Python's lock.

use std::ops::Deref;
use std::sync::OnceLock;

use pyo3::prelude::*;

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
}

impl<T: Send> Detached<T> {
    pub fn new(handle: T) -> Self {
        Self {
            handle: Some(handle),
            process: std::process::id(),
        }
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.handle.as_ref().expect("it goes with its owner")
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
