//! Requests under way: to be waited for, tested, or awaited.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use trihop_transport::sync::Arc;

use super::client::Answered;
use super::port::{Port, received};
use super::wait::{Limit, outcome};
use super::wire::Request;
use super::{Channel, Received, Return, Timeout, poll};
use crate::error::Result;
use crate::job::JobState;
use crate::seat::Seat;

/// What an answer is to the caller.
pub(super) trait FromAnswer {
    fn from_answer(answered: Answered) -> Self;
}

impl FromAnswer for () {
    fn from_answer(_: Answered) {}
}

impl FromAnswer for u64 {
    fn from_answer(answered: Answered) -> Self {
        answered.value
    }
}

impl FromAnswer for Received {
    fn from_answer(answered: Answered) -> Self {
        received(answered)
    }
}

/// A request that is under way: a get, a poll or a send that [`Channel::start_get`] and its like
/// have started. It is a future, and [`Asked::test`] and [`Asked::wait`] ask for its end. Dropped
/// before that, it is taken back: a message that comes all the same goes back to its place in the
/// channel, and what was sent may be sent all the same.
///
/// On a job with threads whoever awaits it is woken by the thread that hears the answer. An inline
/// job moves on only when the future is polled, so it asks to be polled again at once. A deadline
/// is looked at when the future is polled, or when the owner hears of anything.
#[must_use = "a request is taken back when it is dropped"]
pub struct Asked<T, S: Seat> {
    port: Arc<Port<S>>,
    /// 0 where there is nothing to wait for.
    id: u64,
    what: &'static str,
    limit: Limit,
    /// The owner was told that its time is over.
    is_cancelled: bool,
    /// The job wakes who awaits it where that fails.
    is_heard: bool,
    of: PhantomData<fn() -> T>,
}

impl<T, S: Seat> Unpin for Asked<T, S> {}

impl<T, S: Seat> Asked<T, S> {
    /// It has ended, or nobody waits for it any more.
    fn end(&mut self) {
        let awaited = self.port.awaited(self.id);
        self.id = 0;
        if std::mem::take(&mut self.is_heard) {
            let seat = &self.port.channels().handle.seat;
            // A job that has failed has woken all.
            let before = seat.with("a request", |job| Ok(job.parked.no_longer_hears(awaited)));
            drop(before);
        }
    }
}

#[expect(private_bounds, reason = "what answers are is the library's own")]
impl<T: FromAnswer, S: Seat> Asked<T, S> {
    fn new(port: &Arc<Port<S>>, id: u64, what: &'static str, limit: Limit) -> Self {
        Self {
            port: Arc::clone(port),
            id,
            what,
            limit,
            is_cancelled: false,
            is_heard: false,
            of: PhantomData,
        }
    }

    fn finish(&mut self, answered: Answered) -> Result<T> {
        self.end();
        let ended = outcome(answered.status, self.what, &self.port.descriptor());
        if self.what == super::port::GET {
            ended.inspect_err(|error| self.port.got(error))?;
        } else {
            ended?;
        }
        Ok(T::from_answer(answered))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As of the call that waits at once.
    pub fn wait(mut self) -> Result<T> {
        let answered = match self.id {
            0 => Answered::nothing(),
            id => self.port.answer(id, self.what, self.limit)?,
        };
        self.finish(answered)
    }

    /// One round of progress; what it has ended with, said once, or `None` while it is under way.
    ///
    /// # Errors
    /// As of the call that waits at once.
    pub fn test(&mut self) -> Result<Option<T>> {
        self.look(None)
    }

    /// What it has ended with; else `waker` is woken by who hears of that.
    fn look(&mut self, waker: Option<&Waker>) -> Result<Option<T>> {
        let (port, id) = (Arc::clone(&self.port), self.id);
        if id == 0 {
            return self.finish(Answered::nothing()).map(Some);
        }
        let channels = port.channels();
        channels.handle.seat.progress(self.what)?;
        if self.limit.is_over() && !self.is_cancelled {
            self.is_cancelled = true;
            let port = self.port.at_owner();
            self.port.ask(Request::Cancel { port, id }, &[])?;
        }
        let mut client = channels.office.client();
        let answered = client.take_answer(port.number(), id);
        let before = match (&answered, waker) {
            (None, Some(waker)) => client.wake(port.number(), id, waker),
            _ => None,
        };
        drop(client);
        drop(before); // with no lock held: it may own anything
        if let (None, Some(waker), true) = (&answered, waker, S::MOVES_ALONE) {
            let awaited = self.port.awaited(id);
            let hear = |job: &mut JobState| Ok(job.parked.hear_of_failure(awaited, waker));
            drop(channels.handle.seat.with(self.what, hear)?);
            self.is_heard = true;
        }
        answered.map(|answered| self.finish(answered)).transpose()
    }
}

impl<T, S: Seat> Drop for Asked<T, S> {
    fn drop(&mut self) {
        if self.id == 0 {
            return;
        }
        let id = self.id;
        self.end();
        let office = &self.port.channels().office;
        let requests = office.client().abandon(self.port.number(), id);
        for (request, bytes) in requests {
            self.port.ask_later(request, bytes);
        }
    }
}

impl<T: FromAnswer, S: Seat> Future for Asked<T, S> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match self.look(Some(context.waker())) {
            Ok(Some(value)) => Poll::Ready(Ok(value)),
            Err(error) => Poll::Ready(Err(error)),
            Ok(None) => {
                if !S::MOVES_ALONE {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}

impl<S: Seat> Channel<S> {
    /// Starts a [`get`](Channel::get), and does not wait.
    ///
    /// # Errors
    /// As that; [`Error::WouldBlock`](crate::Error::WouldBlock) where as many requests of the port
    /// wait as may.
    pub fn start_get(&self, timeout: Timeout) -> Result<Asked<Received, S>> {
        let (limit, port) = (Limit::new(timeout), self.port());
        let id = port.start_get(&limit)?;
        Ok(Asked::new(port, id, super::port::GET, limit))
    }

    /// Starts a [`poll`](Channel::poll), and does not wait.
    ///
    /// # Errors
    /// As [`Channel::start_get`].
    pub fn start_poll(&self, poll: poll::Poll, timeout: Timeout) -> Result<Asked<u64, S>> {
        let (limit, port) = (Limit::new(timeout), self.port());
        let id = port.start_poll(poll, &limit)?;
        Ok(Asked::new(port, id, super::port::POLL, limit))
    }

    /// Starts a [`send`](Channel::send), and does not wait: it has ended when that would return.
    ///
    /// # Errors
    /// As that; [`Error::WouldBlock`](crate::Error::WouldBlock), with nothing sent, where the
    /// port's window has no room.
    pub fn start_send(
        &self,
        kind: u32,
        bytes: &[u8],
        when: Return,
        timeout: Timeout,
    ) -> Result<Asked<(), S>> {
        let (limit, port) = (Limit::new(timeout), self.port());
        let id = port.start_send(kind, bytes, when, &limit, true)?;
        Ok(Asked::new(port, id, super::port::SEND, limit))
    }
}
