//! Seats: where the engine runs, who may use it, and how its calls wait.
//!
//! A seat has the job's state. All that callers do, they do with it for the time of one closure, or
//! by a wait that asks a closure again after each round of progress. So nothing is kept borrowed or
//! locked while others have their turn, and each call is written once for all seats.

mod at_end;
mod at_once;
mod calls;
mod collective;
mod end;
mod handler_outbox;
mod inline;
mod lent;
mod looking;
mod open;
mod park;
mod relay;
mod start;
mod steps;
#[cfg(test)]
mod tests;
mod window;

use std::cell::RefMut;
use std::io::Write;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Waker;

use trihop_transport::protocol::wire::BadRun;
use trihop_transport::topology::Rank;

use crate::config::StreamOptions;
use crate::deliver::Delivery;
use crate::endpoint::{Channel, StreamId};
use crate::engine::at_once::OwnSend;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::outbox::Outbox;
use crate::error::Result;
use crate::job::JobState;
use crate::queue::window::PushWindow;
use crate::signal::DumpOutput;
pub(crate) use at_end::AtEnd;
pub(crate) use calls::Handle;
pub(crate) use collective::{
    allgather, allreduce, barrier, barrier_of_process, broadcast, exscan, fence, start_fence,
    survive, test_fence, test_fence_or_wake, wait_for_fence,
};
pub(crate) use end::shut_down;
pub(crate) use handler_outbox::HandlerOutbox;
pub use inline::Inline;
pub(crate) use looking::{FIRST_NAP, Looking, Polls, Yields, timed_yield};
pub(crate) use open::open;
pub(crate) use park::{NAP, Park};
pub(crate) use relay::relay;
pub(crate) use start::{join, start};

/// Stands for the names of all streams of a job that was shut down.
pub(crate) const ALL: &str = "(all of the job)";

/// Where the engine of a job runs, and how its callers wait: [`Inline`] or
/// [`Threaded`](crate::threaded::Threaded). Handles of jobs and streams are the same over each.
#[expect(private_bounds, reason = "the seats are the library's own")]
pub trait Seat: Seating {}

impl<S: Seating> Seat for S {}

/// A handler of ours, which neither waits nor takes long: whoever makes progress calls it, with the
/// state in use. See [`Handlers::call`](crate::engine::sink::Handlers::call); who is to be woken
/// for it goes to the last argument.
pub(crate) type TurnHandler = Box<
    dyn FnMut(Delivery<'_>, usize, &mut Outbox<'_>, &mut Vec<Waker>) -> Result<usize, BadRun>
        + Send,
>;

/// What a seat does for those handles.
pub(crate) trait Seating: Clone {
    /// Whether it makes progress beside the calls of the program.
    const MOVES_ALONE: bool;

    /// What the seat keeps of a stream, in each of its handles.
    type OfStream: Clone;

    /// Ends the job when the last handle of it goes.
    type Guard: Clone;

    /// What is called for deliveries.
    type Handler;

    /// A handler of ours, as the seat calls it.
    fn in_turn(handler: TurnHandler) -> Self::Handler;

    /// What a handler sends with on its own stream.
    type Outbox<'a>: HandlerOutbox;

    /// A function of the program's that says which rank something belongs to, where handlers call
    /// it too.
    type OwnerOf: Deref<Target: Fn(u64) -> Rank> + Clone;

    /// The same outbox, for a value of its own.
    fn again<'a>(outbox: &'a mut Self::Outbox<'_>) -> Self::Outbox<'a>;

    /// What is called at the end of a step.
    type AtEnd;

    /// For the first handle of the job.
    fn guard(&self) -> Self::Guard;

    /// Opens a stream of items of so many bytes, or of byte records where they are 0, on all ranks,
    /// who agree on it over `channel`.
    fn open(
        &self,
        channel: Channel,
        name: &str,
        options: Option<StreamOptions>,
        item_bytes: usize,
        handler: Option<Self::Handler>,
    ) -> Result<Handle<Self>>;

    /// As [`with`](Self::with), for a call that leaves nothing to be sent: nobody has to be woken
    /// for that.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    fn with_quietly<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&mut JobState) -> Result<R>,
    ) -> Result<R> {
        self.with(what, call)
    }

    /// Whether a call that does not use the state has to ask, of a job with threads, what has
    /// become of it: it has failed, or was shut down.
    fn may_have_ended(&self) -> bool {
        false
    }

    /// Uses the state; `what` is the call that does.
    ///
    /// # Errors
    /// The closure's; [`crate::Error::Nested`] where the caller is called with the state in use, as
    /// handlers are; what has ended the job.
    fn with<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&mut JobState) -> Result<R>,
    ) -> Result<R>;

    /// Whether the caller may make a call that waits; asked before others are told that it comes.
    ///
    /// # Errors
    /// [`crate::Error::Nested`] where it may not.
    fn may_wait(&self, what: &'static str) -> Result<()>;

    /// One round of progress; true when anything moved.
    ///
    /// # Errors
    /// As [`Seating::with`], and progress's own.
    fn progress(&self, what: &'static str) -> Result<bool>;

    /// Something has changed that calls wait for, and no round of progress says so. Not with the
    /// state in use.
    fn notify_moved(&self) {}

    /// Progress by a caller who will be back soon. None is made where none may be.
    ///
    /// # Errors
    /// Progress's.
    fn progress_in_passing(&self) -> Result<()>;

    /// After a round of progress of a caller who asks in a loop: where it found nothing others may
    /// run, of whom there may be more than cores.
    fn give_way(&self, found_something: bool);

    /// Gives the processor away, for a caller that comes back again and again and found nothing to
    /// do: until something comes, at most a millisecond; at once where others make progress.
    ///
    /// # Errors
    /// As [`Seating::with`], and the system's.
    fn pause(&self, _what: &'static str) -> Result<()> {
        std::thread::yield_now();
        Ok(())
    }

    /// Makes progress until `done` gives a value; sleeps while nothing moves. `what` is waited for:
    /// it is logged once, at level warn, if it takes long.
    ///
    /// # Errors
    /// As [`Seating::progress`], and what `done` ends with.
    fn wait<T>(
        &self,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<T>;

    /// As [`Seating::wait`], for the end of a step, before which the handler of this stream, or
    /// those of all, have to return: the caller holds nothing that handlers may want.
    ///
    /// # Errors
    /// As that.
    fn wait_for_handlers<T>(
        &self,
        _of: Option<&Self::OfStream>,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait(what, done)
    }

    /// As [`Seating::wait`], but `None` where that would sleep.
    ///
    /// # Errors
    /// As that.
    fn wait_awake<T>(
        &self,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<Option<T>>;

    /// A call hands out deliveries from now on, without using the state.
    ///
    /// # Errors
    /// [`crate::Error::Nested`] where one does already, and that is one too many.
    fn begin_taking(&self) -> Result<()>;

    /// It has ended.
    fn end_taking(&self);

    /// Looks at the state, if it can be had soon.
    fn look<R>(&self, look: impl FnOnce(&mut JobState) -> R) -> Option<R>;

    /// Whether the caller is one whose sends are spilled where they find no room: a handler that
    /// does not send by an outbox, or what is called at the end of a step.
    fn is_in_handler(&self) -> bool;

    /// Whether the caller is called at the end of a step. What holds of a handler holds of it too,
    /// but that it may begin the next step.
    fn is_at_end(&self) -> bool;

    /// For a handle that what the seat calls keeps: the job ends as if it were not there.
    fn for_calls(&self) -> Self;

    /// Readies a call for the end of a step of the stream with this name, of which the number is
    /// said next, with the state in use.
    ///
    /// # Errors
    /// No thread is to be had for it.
    fn keep_at_end(
        &self,
        of: &Self::OfStream,
        name: &Arc<str>,
        call: Self::AtEnd,
    ) -> Result<impl FnOnce(u64)>;

    /// What a stream sends, kept by one caller for as long as it likes; `None` where nobody may.
    fn hold(&self, id: StreamId, what: &'static str) -> Result<Option<RefMut<'_, Outbound>>>;

    /// What pushes and sends of a stream go through while nobody uses the state.
    fn window(of: &Self::OfStream) -> &PushWindow;

    /// Whether an item of a stream could be sent with nothing of the state looked at.
    fn push_here(&self, of: &Self::OfStream, target: Rank, item: &[u8]) -> bool;

    /// As [`Seating::push_here`], for a record.
    fn send_here(&self, of: &Self::OfStream, target: Rank, kind: u32, bytes: &[u8]) -> bool;

    /// A push or a send of this stream had to use the state; those that follow may not have to.
    fn allow_pushes_here(&self, id: StreamId, of: &Self::OfStream, pushes: Pushes);

    /// Sends to the own rank by a call of the handler, where that may be called here and nothing
    /// that was sent before is in the way; whether it has.
    ///
    /// # Errors
    /// As [`Seating::with`]; a broadcast that finds no room; what the handler ends the job with.
    fn deliver_own(&self, _id: StreamId, _send: OwnSend<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Makes a call in which all ranks take part: on a stream, or on the job itself.
    fn one_at_a_time<R>(
        &self,
        of: Option<&Self::OfStream>,
        what: &'static str,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R>;

    /// The stream was shut down, with this outcome.
    fn closed(&self, id: StreamId, of: &Self::OfStream, failed: bool);

    /// The job was shut down, with this outcome.
    fn ended(&self, failed: bool);

    /// See [`crate::Job::dump_on`].
    fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()>;

    /// Writes what the seat itself knows, behind the queues of the streams.
    fn dump_own(&self, writer: &mut dyn Write) -> std::io::Result<()>;
}
