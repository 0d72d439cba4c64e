//! Seats: where the engine runs, who may use it, and how its calls wait.
//!
//! A seat has the job's state. All that callers do, they do with it for the time of one closure, or
//! by a wait that asks a closure again after each round of progress. So nothing is kept borrowed or
//! locked while others have their turn, and each call is written once for all seats.

mod calls;
mod collective;
mod end;
mod inline;
mod open;
mod park;
mod start;

use crate::error::Result;
use crate::job::JobState;
pub(crate) use calls::Handle;
pub(crate) use collective::{allgather, allreduce, barrier};
pub(crate) use end::shut_down;
pub(crate) use inline::{Handler, Inline};
pub(crate) use open::open;
pub(crate) use park::{Park, backoff};
pub(crate) use start::start;

/// Who has the state of a job, and how its callers wait.
pub(crate) trait Seat {
    /// Uses the state; `what` is the call that does.
    ///
    /// # Errors
    /// The closure's; [`crate::Error::Nested`] where the caller is called with the state in use, as
    /// handlers are; what has ended the job.
    fn with<R>(&self, what: &'static str, call: impl FnOnce(&mut JobState) -> Result<R>) -> Result<R>;

    /// Whether the caller may make a call that waits; asked before others are told that it comes.
    ///
    /// # Errors
    /// [`crate::Error::Nested`] where it may not.
    fn may_wait(&self, what: &'static str) -> Result<()>;

    /// One round of progress; true when anything moved.
    ///
    /// # Errors
    /// As [`Seat::with`], and progress's own.
    fn progress(&self, what: &'static str) -> Result<bool>;

    /// Progress by a caller who will be back soon. None is made where none may be.
    ///
    /// # Errors
    /// Progress's.
    fn progress_in_passing(&self) -> Result<()>;

    /// Makes progress until `done` gives a value; sleeps while nothing moves. `what` is waited for:
    /// it is logged once, at level warn, if it takes long.
    ///
    /// # Errors
    /// As [`Seat::progress`], and what `done` ends with.
    fn wait<T>(&self, what: &'static str, done: impl FnMut(&mut JobState) -> Result<Option<T>>) -> Result<T>;

    /// A call hands out deliveries from now on, without using the state.
    ///
    /// # Errors
    /// [`crate::Error::Nested`] where one does already, and that is one too many.
    fn begin_taking(&self) -> Result<()>;

    /// It has ended.
    fn end_taking(&self);

    /// Nothing is delivered on this stream any more.
    fn forget_handler(&self, stream: usize);
}

/// Hands on to the seat behind a shared pointer.
macro_rules! shared_seat {
    ($pointer:ty) => {
        impl<S: Seat> Seat for $pointer {
            #[inline]
            fn with<R>(
                &self,
                what: &'static str,
                call: impl FnOnce(&mut JobState) -> Result<R>,
            ) -> Result<R> {
                (**self).with(what, call)
            }

            fn may_wait(&self, what: &'static str) -> Result<()> {
                (**self).may_wait(what)
            }

            fn progress(&self, what: &'static str) -> Result<bool> {
                (**self).progress(what)
            }

            fn progress_in_passing(&self) -> Result<()> {
                (**self).progress_in_passing()
            }

            fn wait<T>(
                &self,
                what: &'static str,
                done: impl FnMut(&mut JobState) -> Result<Option<T>>,
            ) -> Result<T> {
                (**self).wait(what, done)
            }

            fn begin_taking(&self) -> Result<()> {
                (**self).begin_taking()
            }

            fn end_taking(&self) {
                (**self).end_taking();
            }

            fn forget_handler(&self, stream: usize) {
                (**self).forget_handler(stream);
            }
        }
    };
}

shared_seat!(std::rc::Rc<S>);
shared_seat!(std::sync::Arc<S>);
