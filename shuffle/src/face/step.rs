//! The end of a step, as a future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::Result;
use crate::seat::{Handle, Seat};

/// The end of a step that [`Stream::begin_step`](crate::Stream::begin_step) has begun, as a
/// future: ready when the step is over, whoever has heard so. It may be dropped, and the stream
/// asked instead.
///
/// On a threaded job the progress thread wakes who awaits it. An inline job moves on only when the
/// future is polled, so it asks to be polled again at once.
pub struct Step<S: Seat> {
    handle: Handle<S>,
    number: u64,
}

impl<S: Seat> Step<S> {
    /// Of the end with this number, which is under way.
    pub(crate) fn new(handle: Handle<S>, number: u64) -> Self {
        Self { handle, number }
    }
}

impl<S: Seat> Unpin for Step<S> {}

impl<S: Seat> Future for Step<S> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self.handle.test_or_wake(self.number, context.waker()) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
