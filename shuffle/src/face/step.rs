//! The end of a step, as a future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::Result;
use crate::seat::{Handle, Seat};

/// The end of a step that [`Stream::begin_step`](crate::Stream::begin_step) has begun, as a future:
/// ready once, when the step is over. It may be dropped, and the stream asked instead.
///
/// On a threaded job the progress thread wakes who awaits it. An inline job moves on only when the
/// future is polled, so it asks to be polled again at once.
pub struct Step<S: Seat> {
    handle: Handle<S>,
}

impl<S: Seat> Step<S> {
    pub(crate) fn new(handle: Handle<S>) -> Self {
        Self { handle }
    }
}

impl<S: Seat> Unpin for Step<S> {}

impl<S: Seat> Future for Step<S> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self.handle.test_or_wake(context.waker()) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
