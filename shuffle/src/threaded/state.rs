//! What a handler works on and the program's threads read.

use std::sync::{Arc, Mutex, PoisonError};

use trihop_transport::topology::Rank;

use super::{Shuffle, ShuffleBuilder, Stream, StreamBuilder};
use crate::deliver::Message;
use crate::face::stream::Item;

/// A value that handlers of a job with threads change and the program reads, behind a lock that is
/// taken for each call of a handler. Clones are handles of the same value.
///
/// As [`crate::State`] of an inline job.
#[derive(Debug, Default)]
pub struct State<V>(Arc<Mutex<V>>);

impl<V> Clone for State<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V> State<V> {
    /// A value for handlers.
    pub fn new(value: V) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    /// Uses the value, once no handler does. Handlers wait meanwhile: `call` makes no call of the
    /// job that waits for them, and no `with` of the same state, which would wait for ever.
    pub fn with<R>(&self, call: impl FnOnce(&mut V) -> R) -> R {
        // What a handler was changing when it panicked is for the program to judge: the job's
        // calls say that it did.
        let mut value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        call(&mut value)
    }

    /// The value itself; `Err` while other handles have it. A handler has one until its stream, or
    /// the job, is shut down.
    ///
    /// # Errors
    /// This handle.
    pub fn into_inner(self) -> Result<V, Self> {
        let value = Arc::try_unwrap(self.0).map_err(Self)?;
        Ok(value.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ShuffleBuilder {
    /// As [`handler`](Self::handler), with a [`State`] that the handler changes.
    pub fn handler_with<V: Send + 'static>(
        self,
        state: &State<V>,
        mut handler: impl FnMut(&mut V, Message<'_>, &Shuffle) + Send + 'static,
    ) -> Self {
        let state = state.clone();
        self.handler(move |message, shuffle| state.with(|state| handler(state, message, shuffle)))
    }
}

impl<T: Item> StreamBuilder<T> {
    /// As [`handler`](Self::handler), with a [`State`] that the handler changes.
    pub fn handler_with<V: Send + 'static>(
        self,
        state: &State<V>,
        mut handler: impl FnMut(&mut V, Rank, &[T], &Stream<T>) + Send + 'static,
    ) -> Self {
        let state = state.clone();
        self.handler(move |source, items, stream| {
            state.with(|state| handler(state, source, items, stream));
        })
    }
}
