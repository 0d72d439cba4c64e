//! What a handler works on and its program reads between calls.

use std::cell::RefCell;
use std::rc::Rc;

use trihop_transport::topology::Rank;

use super::shuffle::ShuffleBuilder;
use super::stream::{Item, ItemOutbox, StreamBuilder};
use crate::deliver::Message;
use crate::engine::outbox::Outbox;
use crate::seat::Inline;

/// A value that handlers of an inline job change and the program reads: a plain table, list or map,
/// without cells of the program's own. Clones are handles of the same value, so that handlers of
/// several streams may work on it.
///
/// ```no_run
/// use trihop_shuffle::{Job, Options, Rank, State};
///
/// let job = Job::start(Options::from_env()?)?;
/// let counts = State::new(vec![0u64; 1000]);
/// let stream = job
///     .stream::<u64>("hits")
///     .handler_with(&counts, |counts, _source, items, _outbox| {
///         for &item in items {
///             counts[item as usize] += 1;
///         }
///     })
///     .open()?;
/// for item in 0..1000 {
///     stream.push(Rank((item % u64::from(job.size())) as u32), item)?;
/// }
/// stream.fence()?;
/// let total: u64 = counts.with(|counts| counts.iter().sum());
/// stream.shutdown()?;
/// let counts: Vec<u64> = counts.into_inner().unwrap_or_default();
/// # let _ = (total, counts);
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct State<V>(Rc<RefCell<V>>);

impl<V> Clone for State<V> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<V> State<V> {
    /// A value for handlers.
    pub fn new(value: V) -> Self {
        Self(Rc::new(RefCell::new(value)))
    }

    /// Uses the value. Meanwhile no handler can: `call` makes no call of the job that makes
    /// progress.
    ///
    /// # Panics
    /// Where the value is in use: in a handler that has it already, or inside another `with`.
    pub fn with<R>(&self, call: impl FnOnce(&mut V) -> R) -> R {
        self.try_with(call).unwrap_or_else(|| {
            panic!(
                "the state of a handler is in use: a call that makes progress, or `with`, was made inside of `with`, or a handler uses a state twice"
            )
        })
    }

    /// As [`with`](Self::with); none where the value is in use.
    pub(crate) fn try_with<R>(&self, call: impl FnOnce(&mut V) -> R) -> Option<R> {
        self.0
            .try_borrow_mut()
            .ok()
            .map(|mut value| call(&mut value))
    }

    /// The value itself; `Err` while other handles have it. A handler has one until its stream, or
    /// the job, is shut down.
    ///
    /// # Errors
    /// This handle.
    pub fn into_inner(self) -> Result<V, Self> {
        Rc::try_unwrap(self.0)
            .map(RefCell::into_inner)
            .map_err(Self)
    }
}

impl<'h> ShuffleBuilder<Inline<'h>> {
    /// As [`handler`](Self::handler), with a [`State`] that the handler changes.
    pub fn handler_with<V: 'h>(
        self,
        state: &State<V>,
        mut handler: impl FnMut(&mut V, Message<'_>, &mut Outbox<'_>) + 'h,
    ) -> Self {
        let state = state.clone();
        self.handler(move |message, outbox| state.with(|state| handler(state, message, outbox)))
    }
}

impl<'h, T: Item> StreamBuilder<T, Inline<'h>> {
    /// As [`handler`](Self::handler), with a [`State`] that the handler changes.
    pub fn handler_with<V: 'h>(
        self,
        state: &State<V>,
        mut handler: impl FnMut(&mut V, Rank, &[T], &mut ItemOutbox<'_, T>) + 'h,
    ) -> Self {
        let state = state.clone();
        self.handler(move |source, items, outbox| {
            state.with(|state| handler(state, source, items, outbox));
        })
    }
}
