//! Steps of streams: how they begin, and their end as a future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::Result;
use crate::seat::{self, Handle, Inline, Seat};
use crate::terminate::End;

/// What is called when a step begins.
type AtStart<'s, F> = Box<dyn FnOnce(&F) + 's>;

/// Begins a step: its priority, and what is called when it begins and when it is over, whichever
/// of the ways it [ends](crate::End) by. `F` is what sends on the stream:
/// [`Stream`](crate::Stream) and its like.
///
/// ```
/// use trihop_shuffle::{Contributors, End, Job, Options, Rank};
///
/// let job = Job::start(Options::from_env()?)?;
/// let stream = job.stream::<u64>("work").handler(|_, _, _| {}).open()?;
/// let step = stream
///     .step(Contributors::Local(1))
///     .priority(9)
///     .at_start(|work| {
///         work.push(Rank(0), 1).expect("there is a rank 0");
///         work.done(1).expect("the one that there is");
///     })
///     .at_end(|work| println!("rank {} has heard of the end", work.rank()))
///     .begin()?;
/// drop(step); // a future, for who awaits it
/// stream.wait()?;
/// // A round, of which nobody waits for the end.
/// let round = stream.step(End::Round).at_end(|work| work.push(Rank(0), 2).expect("there is"));
/// drop(round.begin()?);
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
#[must_use = "a step begins with `begin`"]
pub struct StepBuilder<'s, F, S: Seat> {
    /// What calls are made with.
    face: F,
    handle: Handle<S>,
    end: End,
    priority: Option<u8>,
    at_start: Option<AtStart<'s, F>>,
    at_end: Option<S::AtEnd>,
}

impl<'s, F: Clone, S: Seat> StepBuilder<'s, F, S> {
    /// A step of the stream with this handle; its calls are made with `face`.
    pub(crate) fn new(handle: Handle<S>, face: F, end: End) -> Self {
        Self {
            face,
            handle,
            end,
            priority: None,
            at_start: None,
            at_end: None,
        }
    }

    /// The stream's place among others while the step lasts, in the place of its option `priority`:
    /// a higher one is served first in each round of progress. Ranks need not have the same.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Calls `call` once, before [`begin`](Self::begin) returns and on the same thread, when what
    /// is pushed counts in this step: from then on where contributors end it, and until it returns
    /// where a round or a fence does, which then starts. Other ranks may not have begun the step,
    /// and need not have: what comes to them before is handled, and counts all the same. It may do
    /// what the caller of `begin` may.
    pub fn at_start(mut self, call: impl FnOnce(&F) + 's) -> Self {
        self.at_start = Some(Box::new(call));
        self
    }

    pub(crate) fn end_with(mut self, call: S::AtEnd) -> Self {
        self.at_end = Some(call);
        self
    }

    pub(crate) fn face(&self) -> F {
        self.face.clone()
    }

    /// Begins the step; its end as a future. Collective: see
    /// [`Stream::begin_step`](crate::Stream::begin_step) and
    /// [`Stream::start`](crate::Stream::start).
    ///
    /// # Errors
    /// As those, with nothing called; no thread is to be had for the call at the end. Where a round
    /// or fence could start, and another end has begun during its call at the start, or the job has
    /// failed, that was called.
    pub fn begin(self) -> Result<Step<S>> {
        let (end, handle) = (self.end, &self.handle);
        let call = self.at_start.map(|call| || call(&self.face));
        let (before, behind) = match end {
            End::Completion(_) => (None, call),
            End::Round | End::Fence => (call, None),
        };
        let number = handle.start_with(end, self.priority, self.at_end, before)?;
        if let Some(call) = behind {
            call();
        }
        Ok(Step::new(self.handle, number))
    }
}

impl<'h, F: Clone + 'h> StepBuilder<'_, F, Inline<'h>> {
    /// Calls `call` once, when the step is over for this rank, whoever asks for that or nobody:
    /// inside of a call that makes progress, between two of its rounds, with the stream. It may
    /// call `done`, and send, which never waits for room (what finds none is spilled, as what
    /// handlers send) but makes progress as ever: handlers may be called meanwhile. It may begin
    /// the next step, which binds it as it binds the program, and they so follow each other as
    /// often as one likes. What waits for others,
    /// or tests, is [`Error::Nested`](crate::Error::Nested) there. A panic ends the job, as that of
    /// a handler does.
    ///
    /// The step is over before it is called: the stream takes sends again, and others may be in
    /// the next step already. What they send behind a round is not handled, nor sent on here, until
    /// the call has returned or begins the next end: there is the place to make handlers ready for
    /// it. [`wait`](crate::Stream::wait) and [`test`](crate::Stream::test) say
    /// so too, once, unless another step has begun meanwhile. A job that fails before does not
    /// make the call.
    pub fn at_end(self, call: impl FnOnce(&F) + 'h) -> Self {
        let face = self.face();
        self.end_with(Box::new(move || call(&face)))
    }
}

/// The end of a step that [`StepBuilder::begin`] or
/// [`Stream::begin_step`](crate::Stream::begin_step) has begun, as a future: ready when the step is
/// over, whoever has heard so. It may be dropped, and the stream asked instead.
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

/// The end of a fence of all streams that [`Job::begin_fence`](crate::Job::begin_fence) has begun,
/// as a future: as a [`Step`].
pub struct FenceOfAll<S: Seat> {
    seat: S,
    number: u64,
}

impl<S: Seat> FenceOfAll<S> {
    /// Of the fence with this number, which is under way.
    pub(crate) fn new(seat: S, number: u64) -> Self {
        Self { seat, number }
    }
}

impl<S: Seat> Unpin for FenceOfAll<S> {}

impl<S: Seat> Future for FenceOfAll<S> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match seat::test_fence_or_wake(&self.seat, self.number, context.waker()) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
