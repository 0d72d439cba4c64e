//! Requests under way: to be waited for, tested, or awaited.

use std::future::Future;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use trihop_transport::sync::Arc;

use super::client::{Answered, Client};
use super::event::Signal;
use super::port::Port;
use super::port::sending::Outgoing;
use super::taking::received;
use super::wait::{Limit, outcome};
use super::wire::Request;
use super::{Buffer, Channel, Received, Return, Timeout, poll};
use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
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
/// have started. It is a future, [`Asked::test`] and [`Asked::wait`] ask for its end, and
/// [`Asked::event`] is a descriptor to sleep on until then. Dropped before its end, it is taken
/// back: a message that comes all the same goes back to its place in the channel, and what was sent
/// may be sent all the same.
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
    /// Its end was said.
    is_said: bool,
    /// The owner was told that its time is over.
    is_cancelled: bool,
    /// Where it has found nothing, the event of its port is armed.
    arms: bool,
    /// The job wakes who awaits it where that fails.
    is_heard: bool,
    /// Set once it has ended, where somebody has asked for that.
    signal: Option<Arc<Signal>>,
    of: PhantomData<fn() -> T>,
}

impl<T, S: Seat> Unpin for Asked<T, S> {}

impl<T, S: Seat> Asked<T, S> {
    /// It has ended, or nobody waits for it any more.
    fn end(&mut self) {
        let id = std::mem::take(&mut self.id);
        if std::mem::take(&mut self.is_heard) {
            self.port.hears_no_longer(id);
        }
    }
}

#[expect(private_bounds, reason = "what answers are is the library's own")]
impl<T: FromAnswer, S: Seat> Asked<T, S> {
    /// Whether it has ended, so that a look at it finds how: nothing is taken, and where it is
    /// dropped then it is taken back as before its end. Else `waker` is woken by who hears of that;
    /// of an inline job by nobody.
    pub(crate) fn has_ended(&mut self, waker: &Waker) -> bool {
        let (port, id) = (Arc::clone(&self.port), self.id);
        let find = |client: &mut Client| client.is_answered(port.number(), id).then_some(());
        // What fails here fails then.
        id == 0
            || self.move_on().is_err()
            || !matches!(
                port.look_by(id, self.what, Some(waker), &mut self.is_heard, find),
                Ok(None)
            )
    }

    pub(super) fn new(
        port: &Arc<Port<S>>,
        id: u64,
        (what, arms): (&'static str, bool),
        limit: Limit,
    ) -> Self {
        Self {
            port: Arc::clone(port),
            id,
            what,
            limit,
            arms,
            is_said: false,
            is_cancelled: false,
            is_heard: false,
            signal: None,
            of: PhantomData,
        }
    }

    fn finish(&mut self, answered: Answered) -> Result<T> {
        if self.is_said {
            let why = format!("how {} has ended was said already", self.what);
            return Err(Error::misuse(self.port.channels().name(), why));
        }
        self.is_said = true;
        self.end();
        if let Some(signal) = &self.signal {
            // Whoever awaits it may have been told in place of this.
            signal.set();
        }
        let ended = outcome(answered.status, self.what, &self.port.descriptor());
        ended.inspect_err(|error| {
            if self.arms {
                self.port.got(error);
            }
        })?;
        Ok(T::from_answer(answered))
    }

    /// Whether its end is still to come, or to be said. A send that returns when it is started has
    /// none.
    pub fn is_under_way(&self) -> bool {
        self.id != 0
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As of the call that waits at once.
    pub fn wait(mut self) -> Result<T> {
        self.wait_mut()
    }

    /// As [`Asked::wait`], and where that fails without the request having ended, it is still under
    /// way. Said once, as by [`Asked::test`].
    ///
    /// # Errors
    /// As [`Asked::wait`].
    pub fn wait_mut(&mut self) -> Result<T> {
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

    /// A file descriptor for `poll`, `epoll` and their like, which is readable once the request has
    /// ended or the job has failed: a [test](Asked::test) then says how. It is made by the first
    /// call, one for each request, closed with the request, and neither to be read nor written.
    ///
    /// On an inline job it becomes readable only inside calls that make progress. Whoever sleeps on
    /// it with a [timeout](Timeout::After) wakes when that is over, and tests: the owner may have
    /// no clock that runs. A request that is awaited as well tells first whoever awaits it.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) where descriptors run out; as of every call where
    /// the job has failed.
    pub fn event(&mut self) -> Result<BorrowedFd<'_>> {
        let signal = match self.signal.take() {
            Some(signal) => signal,
            None => self.signal_at_end()?,
        };
        Ok(self.signal.insert(signal).fd())
    }

    fn signal_at_end(&mut self) -> Result<Arc<Signal>> {
        let signal = Arc::new(Signal::new()?);
        let (port, id) = (Arc::clone(&self.port), self.id);
        if id == 0 {
            signal.set();
            return Ok(signal);
        }
        let waker = Waker::from(Arc::clone(&signal));
        self.is_heard |= port.hear_of_failure(id, self.what, &waker)?;
        let mut client = port.channels().office.client();
        let before = client.wake(port.number(), id, &waker);
        let has_ended = client.is_answered(port.number(), id);
        drop(client);
        let handle = &port.channels().handle;
        // Who asks once the channels have ended, or their owner is lost, is told so by nobody.
        let owner = port.descriptor().owner();
        let is_over = || {
            let may_come = |out: &mut Outbound| {
                out.check_open()?;
                Ok(out.check_within_reach(owner).is_ok())
            };
            let may_come = handle.with_out(self.what, may_come);
            matches!(may_come, Err(Error::Closed(_)) | Ok(false))
        };
        if has_ended || is_over() {
            signal.set();
        }
        if let Some(before) = before {
            // Whoever awaits it polls once more, and is then told in place of this.
            before.wake();
        }
        Ok(signal)
    }

    /// Does what brings it on, and tells the owner once its time is over; whether anything has
    /// moved.
    fn move_on(&mut self) -> Result<bool> {
        // Of what this rank asks itself on a job with threads nothing has to be brought here.
        let has_moved = match S::MOVES_ALONE && self.port.is_here() {
            true => false,
            false => self.port.channels().handle.seat.progress(self.what)?,
        };
        if self.limit.is_over() && !self.is_cancelled {
            self.is_cancelled = true;
            let (port, id) = (self.port.at_owner(), self.id);
            let given_up = false;
            self.port.ask(Request::Cancel { port, id, given_up }, &[])?;
        }
        Ok(has_moved)
    }

    /// What it has ended with; else `waker` is woken by who hears of that.
    fn look(&mut self, waker: Option<&Waker>) -> Result<Option<T>> {
        let (port, id) = (Arc::clone(&self.port), self.id);
        if id == 0 {
            return self.finish(Answered::nothing()).map(Some);
        }
        let has_moved = self.move_on()?;
        let answered = port.look_for(id, self.what, waker, &mut self.is_heard)?;
        let asks_again = waker.is_none() || !S::MOVES_ALONE;
        let seat = &port.channels().handle.seat;
        seat.give_way(answered.is_some() || has_moved || !asks_again);
        answered.map(|answered| self.finish(answered)).transpose()
    }
}

impl<S: Seat> Port<S> {
    /// Has `waker` woken where the job fails, and whether it will be. Of an inline job a call says
    /// so.
    fn hear_of_failure(&self, id: u64, what: &'static str, waker: &Waker) -> Result<bool> {
        if S::MOVES_ALONE {
            let (seat, awaited) = (&self.channels().handle.seat, self.awaited(id));
            let hear = |job: &mut JobState| Ok(job.parked.hear_of_failure(awaited, waker));
            drop(seat.with_quietly(what, hear)?);
        }
        Ok(S::MOVES_ALONE)
    }

    /// Nobody is to be woken any more where the job fails.
    pub(super) fn hears_no_longer(&self, id: u64) {
        let awaited = self.awaited(id);
        let no_longer = |job: &mut JobState| Ok(job.parked.no_longer_hears(awaited));
        // A job that has failed has woken all.
        drop((self.channels().handle.seat).with_quietly("a request", no_longer));
    }

    /// The answer to a request, where it is there; else `waker` is woken by who hears of it, and
    /// where the job fails, which `is_heard` then says.
    pub(super) fn look_for(
        &self,
        id: u64,
        what: &'static str,
        waker: Option<&Waker>,
        is_heard: &mut bool,
    ) -> Result<Option<Answered>> {
        let take = |client: &mut Client| client.take_answer(self.number(), id);
        self.look_by(id, what, waker, is_heard, take)
    }

    /// As [`Port::look_for`], for what `find` makes of an answer that is there.
    fn look_by<R>(
        &self,
        id: u64,
        what: &'static str,
        waker: Option<&Waker>,
        is_heard: &mut bool,
        find: impl Fn(&mut Client) -> Option<R>,
    ) -> Result<Option<R>> {
        let office = &self.channels().office;
        let mut client = office.client();
        let found = find(&mut client);
        let before = match (&found, waker) {
            (None, Some(waker)) => client.wake(self.number(), id, waker),
            _ => None,
        };
        drop(client);
        drop(before); // with no lock held: it may own anything
        if found.is_some() {
            return Ok(found);
        }
        if let Some(waker) = waker {
            *is_heard |= self.hear_of_failure(id, what, waker)?;
        }
        match self.check_may_come(what) {
            Ok(()) => Ok(None),
            // As of who waits. It may have been answered in between.
            Err(closed) => match find(&mut office.client()) {
                None => Err(closed),
                found => Ok(found),
            },
        }
    }

    /// # Errors
    /// Why no answer of the owner can come any more.
    fn check_may_come(&self, what: &'static str) -> Result<()> {
        let (handle, owner) = (&self.channels().handle, self.descriptor().owner());
        let check = |job: &mut JobState| {
            let out = job.engine.out(handle.id)?;
            out.check_open()?;
            out.check_within_reach(owner)
        };
        handle.seat.with_quietly(what, check)
    }
}

impl<T, S: Seat> Drop for Asked<T, S> {
    fn drop(&mut self) {
        if self.id == 0 {
            return;
        }
        let id = self.id;
        self.end();
        self.port.abandon(id);
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
        Ok(Asked::new(port, id, (super::port::GET, true), limit))
    }

    /// Starts a [`poll`](Channel::poll), and does not wait.
    ///
    /// # Errors
    /// As [`Channel::start_get`].
    pub fn start_poll(&self, poll: poll::Poll, timeout: Timeout) -> Result<Asked<u64, S>> {
        let (limit, port) = (Limit::new(timeout), self.port());
        let id = port.start_poll(poll, &limit)?;
        Ok(Asked::new(
            port,
            id,
            (super::port::POLL, poll.takes()),
            limit,
        ))
    }

    /// Starts a [`send`](Channel::send), and does not wait: it has ended when that would return.
    ///
    /// # Errors
    /// As that; [`Error::WouldBlock`](crate::Error::WouldBlock), with nothing sent, where the
    /// port's window has no room, or another thread waits for that.
    pub fn start_send(
        &self,
        kind: u32,
        bytes: &[u8],
        when: Return,
        timeout: Timeout,
    ) -> Result<Asked<(), S>> {
        self.start_send_out(kind, Outgoing::Lent(bytes), when, timeout)
    }

    /// Starts a [`send_buffer`](Channel::send_buffer), and does not wait.
    ///
    /// # Errors
    /// As [`Channel::start_send`]: `message` has its bytes then.
    pub fn start_send_buffer(
        &self,
        kind: u32,
        message: &mut Buffer,
        when: Return,
        timeout: Timeout,
    ) -> Result<Asked<(), S>> {
        self.start_send_out(kind, Outgoing::Given(message), when, timeout)
    }

    fn start_send_out(
        &self,
        kind: u32,
        mut message: Outgoing<'_>,
        when: Return,
        timeout: Timeout,
    ) -> Result<Asked<(), S>> {
        let (limit, port) = (Limit::new(timeout), self.port());
        let id = port.start_send(kind, &mut message, when, &limit, true)?;
        Ok(Asked::new(port, id, (super::port::SEND, false), limit))
    }
}
