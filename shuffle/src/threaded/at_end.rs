//! What a program wants called at the ends of steps, on the threaded seat: by the delivery thread
//! that calls the stream's handler, outside of every lock.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use trihop_transport::sync::{Mutex, MutexGuard, PoisonError, thread_local};

use super::shared::SharedEngine;
use crate::deliver::Deliveries;
use crate::error::Error;

/// A call at the end of a step.
pub(crate) type AtEnd = Box<dyn FnOnce() + Send>;

thread_local! {
    /// This thread makes such a call.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is called at the end of a step.
pub(super) fn is_at_end() -> bool {
    CALLING.with(Cell::get)
}

/// A call at the end of the step with this number, as a delivery thread makes it. One that panics
/// ends the job, as a handler does.
pub(super) fn guarded(
    name: &Arc<str>,
    engine: Weak<SharedEngine>,
    number: u64,
    call: AtEnd,
) -> AtEnd {
    let name = Arc::clone(name);
    Box::new(move || {
        CALLING.with(|calling| calling.set(true));
        let called = catch_unwind(AssertUnwindSafe(call));
        CALLING.with(|calling| calling.set(false));
        let Some(engine) = engine.upgrade() else {
            return;
        };
        match called {
            Ok(()) => engine.was_called(number),
            Err(panic) => engine.fail(Error::handler(&name, &*panic)),
        }
    })
}

/// Calls at ends that no thread has yet.
#[derive(Default)]
pub(super) struct AtEnds(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Those that are to come, and the threads that make them, by the numbers of their steps.
    calls: HashMap<u64, (Arc<Deliveries>, AtEnd)>,
    /// Those whose thread has ended before: they go where nothing is in use.
    refused: Vec<AtEnd>,
}

impl AtEnds {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the call for the end of a step.
    pub fn keep(&self, number: u64, thread: Arc<Deliveries>, call: AtEnd) {
        self.lock().calls.insert(number, (thread, call));
    }

    /// The step is over: its thread makes the call; false where nobody makes it any more.
    pub fn hand_over(&self, number: u64) -> bool {
        let kept = self.lock().calls.remove(&number);
        let Some((thread, call)) = kept else {
            return false;
        };
        let refused = thread.call(call).err();
        let is_made = refused.is_none();
        self.lock().refused.extend(refused);
        is_made
    }

    /// None is made any more.
    pub fn clear(&self) {
        // With nothing locked: they may own anything.
        let kept = std::mem::take(&mut *self.lock());
        drop(kept);
    }
}
