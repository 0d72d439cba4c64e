//! Calls of guests that are started, to be tested, waited for, slept on or awaited.

use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll as Polled, Waker};

use trihop_transport::topology::Rank;

use super::client::{Connection, connected};
use super::reactor::Watch;
use super::wire::{Answer, DONE};
use crate::error::{Error, Result};
use crate::face::channel::Received;

/// A call of a guest that is under way: a get, a poll or a send that
/// [`Channel::start_get`](super::Channel::start_get) and its like have started. It is a future,
/// [`Asked::test`] and [`Asked::wait`] ask for its end, and [`Asked::event`] is a descriptor to
/// sleep on until then. It stays when its port is dropped. Dropped itself before its end is said,
/// it is taken back once the server has heard of that, also where a fork has a copy of it: a message
/// that comes all the same goes back to its place in the channel, what was acquired from a semaphore
/// goes back too, and what was sent comes all the same.
///
/// Whoever awaits it is woken by a thread of this process that sleeps until an answer has come, and
/// that all calls of its guests have in common; it begins with the first call that is awaited.
#[must_use = "a call is taken back when it is dropped"]
#[derive(Debug)]
pub struct Asked<T> {
    what: &'static str,
    /// `None` where it was over at once.
    connection: Option<Box<Connection>>,
    /// What it has given then.
    given: Option<T>,
    /// What is slept on then: readable at once.
    readable: Option<OwnedFd>,
    /// Its end was said.
    is_over: bool,
    watch: Option<Watch>,
}

impl<T> Unpin for Asked<T> {}

/// What an answer is to the caller; what is behind it is still to be read.
pub(super) trait FromAnswer: Sized {
    fn from_answer(answer: &Answer, connection: &mut Connection) -> Result<Self>;
}

impl FromAnswer for u64 {
    fn from_answer(answer: &Answer, connection: &mut Connection) -> Result<Self> {
        match answer.bytes {
            0 => Ok(answer.value),
            _ => Err(connection.bad()),
        }
    }
}

impl FromAnswer for () {
    fn from_answer(answer: &Answer, connection: &mut Connection) -> Result<Self> {
        u64::from_answer(answer, connection).map(drop)
    }
}

impl FromAnswer for Received {
    fn from_answer(answer: &Answer, connection: &mut Connection) -> Result<Self> {
        let bytes = connection.body(answer.bytes)?;
        Ok(Self {
            source: Rank(answer.source),
            kind: answer.kind,
            bytes: bytes.into(),
        })
    }
}

#[expect(private_bounds, reason = "what answers are is the library's own")]
impl<T: FromAnswer> Asked<T> {
    /// A call whose end comes over this connection.
    pub(super) fn new(connection: Connection, what: &'static str) -> Self {
        Self {
            what,
            connection: Some(Box::new(connection)),
            given: None,
            readable: None,
            is_over: false,
            watch: None,
        }
    }

    /// One that was over at once.
    pub(super) fn over(given: T, what: &'static str) -> Self {
        Self {
            what,
            connection: None,
            given: Some(given),
            readable: None,
            is_over: false,
            watch: None,
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As of the call that waits at once; [`Error::ServerFailed`].
    pub fn wait(mut self) -> Result<T> {
        self.wait_mut()
    }

    /// As [`Asked::wait`]. Said once, as by [`Asked::test`].
    ///
    /// # Errors
    /// As [`Asked::wait`]; [`Error::Misuse`] where the end was said, and in a fork of the process
    /// that has started it, where it is still under way.
    pub fn wait_mut(&mut self) -> Result<T> {
        let ended = self.look(true)?;
        Ok(ended.expect("it has waited for that"))
    }

    /// What it has ended with, said once, or `None` while it is under way. Of one that has ended the
    /// server is asked how, so this waits for that answer, and the message in it, and for no other.
    ///
    /// # Errors
    /// As [`Asked::wait_mut`].
    pub fn test(&mut self) -> Result<Option<T>> {
        self.look(false)
    }

    fn look(&mut self, waits: bool) -> Result<Option<T>> {
        if self.is_over {
            return Err(Error::misuse("channels", "the end of this call was said"));
        }
        let Some(connection) = &mut self.connection else {
            self.is_over = true;
            return Ok(self.given.take());
        };
        connection.check()?;
        let ended = match connection.has_ended(waits) {
            Ok(false) => return Ok(None),
            Ok(true) => connection.ask(),
            Err(error) => Err(error),
        };
        self.is_over = true;
        let answer = ended?;
        match answer.status {
            DONE => T::from_answer(&answer, connection).map(Some),
            _ => Err(connection.error(&answer, self.what)),
        }
    }
}

impl<T> Asked<T> {
    /// Whether its end is still to come, or to be said. A send that returns when it is started has
    /// none.
    pub fn is_under_way(&self) -> bool {
        self.connection.is_some() && !self.is_over
    }

    /// A file descriptor for `poll`, `epoll` and their like, which is readable once the call has
    /// ended or the server is gone: a [test](Asked::test) then says how. It is the call's, closed
    /// with it, and neither to be read nor written. A copy of it is readable once the call is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::System`] where descriptors run out.
    pub fn event(&mut self) -> Result<BorrowedFd<'_>> {
        if let Some(connection) = &self.connection {
            return Ok(connection.socket());
        }
        let readable = match self.readable.take() {
            Some(readable) => readable,
            // Its other end is closed.
            None => connected()?.0,
        };
        let readable: &OwnedFd = self.readable.insert(readable);
        Ok(readable.as_fd())
    }

    /// Has it woken once something has come of a call that is under way.
    fn have_woken(&mut self, waker: &Waker) -> Result<()> {
        let Some(connection) = &self.connection else {
            return Ok(());
        };
        let socket = connection.socket();
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => Watch::of(socket)?,
        };
        self.watch.insert(watch).wake(socket, waker)
    }

    fn end_watch(&mut self) {
        if let (Some(watch), Some(connection)) = (self.watch.take(), &self.connection) {
            watch.end(connection.socket());
        }
    }
}

impl<T> Drop for Asked<T> {
    fn drop(&mut self) {
        self.end_watch();
    }
}

impl<T: FromAnswer> Future for Asked<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled<Result<T>> {
        let this = &mut *self;
        let ended = this.test();
        if let Some(ended) = ended.transpose() {
            this.end_watch();
            return Polled::Ready(ended);
        }
        match this.have_woken(context.waker()) {
            Ok(()) => Polled::Pending,
            Err(error) => Polled::Ready(Err(error)),
        }
    }
}
