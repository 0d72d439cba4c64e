//! What a rank's handlers share with the thread that measures, on each seat.

#![allow(
    clippy::disallowed_types,
    reason = "atomics come from `transport::sync`, as they should"
)]

use trihop::Error;
use trihop::transport::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// A number that one thread at a time changes: the one that calls handlers and, while nothing is
/// under way, the one that measures. Barriers and fences order these, so relaxed; a load and a
/// store are then what a `Cell` would compile to.
#[derive(Debug, Default)]
#[repr(transparent)] // C has tables of it
pub(crate) struct Word(AtomicU64);

impl Word {
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    /// Exclusive or with a value.
    #[inline]
    pub fn mix_in(&self, value: u64) {
        self.set(self.get() ^ value);
    }

    /// So many zeros.
    pub fn zeros(length: u64) -> Vec<Self> {
        (0..length).map(|_| Self::default()).collect()
    }
}

/// What went wrong in a handler, which cannot return it.
#[derive(Debug, Default)]
pub(crate) struct Failure(Mutex<Option<Error>>);

impl Failure {
    /// Keeps the error of a call, if it is the first one.
    #[inline]
    pub fn note(&self, outcome: Result<(), Error>) {
        if let Err(error) = outcome {
            self.keep(error);
        }
    }

    #[cold]
    fn keep(&self, error: Error) {
        self.lock().get_or_insert(error);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error that was kept.
    ///
    /// # Errors
    /// That one.
    pub fn take(&self) -> Result<(), Error> {
        self.lock().take().map_or(Ok(()), Err)
    }
}
