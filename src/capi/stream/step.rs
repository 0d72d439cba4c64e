//! Steps with a priority, and with calls when they begin and are over, whichever way they end by.

use std::ffi::c_void;

use super::{StreamOf, trihop_contributors_t, trihop_end_t, trihop_stream_t};
use crate::capi::argument;
use crate::capi::callback::Context;
use crate::capi::seat::either;
use crate::capi::sized::{check_size, load_sized, store_sized};
use crate::capi::status::{Failure, guard, trihop_status_t};

/// Called when a step begins, or when it is over, with the `context` of its options and the stream:
/// see `trihop_step_options_t`. It must return: no exception and no longjmp across it.
pub type trihop_step_call_t =
    Option<unsafe extern "C" fn(context: *mut c_void, stream: *const trihop_stream_t)>;

/// What a step has. Later versions add fields at the end. Fill it with `trihop_step_options_init`.
#[repr(C)]
pub struct trihop_step_options_t {
    /// Bytes of this struct as the caller knows it; set by `trihop_step_options_init`.
    pub size: usize,
    /// How many contributors there are. 0 at first.
    pub count: u64,
    /// Whose they are, of `trihop_contributors_t`: those of this rank at first.
    pub of: i32,
    /// The stream's place among others while the step lasts, 0 to 255, in the place of its option
    /// `priority`; -1, as at first, for that. Ranks need not have the same.
    pub priority: i32,
    /// Called once, before `trihop_stream_begin_step_with` returns and on the same thread, when
    /// contributors of this rank may push: what they push from now on counts in this step. Of a
    /// round or a fence, it is called before that starts: what it pushes counts. Other ranks may
    /// not have begun it, and need not have. Null for nothing.
    pub at_start: trihop_step_call_t,
    /// Called once, when the step is over for this rank, whoever asks for that or nobody: on an
    /// inline job inside of a call that makes progress, between two rounds of it; with threads on
    /// the delivery thread of the stream, between two calls of handlers, or, without a handler, on
    /// the one that the job's streams share. It may send, which never waits for room, call
    /// `trihop_stream_done`, and begin the next step; what waits for others, or tests, fails with
    /// `TRIHOP_ERR_NESTED`. It is not called where the job fails before, and no more once
    /// `trihop_stream_close` has returned. Null for nothing.
    pub at_end: trihop_step_call_t,
    /// Handed to both.
    pub context: *mut c_void,
}

impl trihop_step_options_t {
    fn defaults() -> Self {
        Self {
            size: size_of::<Self>(),
            count: 0,
            of: trihop_contributors_t::TRIHOP_LOCAL_CONTRIBUTORS as i32,
            priority: -1,
            at_start: None,
            at_end: None,
            context: std::ptr::null_mut(),
        }
    }

    /// # Safety
    /// `options` is null or initialised.
    pub(crate) unsafe fn load(options: *const Self) -> Result<Self, Failure> {
        // SAFETY: as the caller promises.
        unsafe { load_sized(options, Self::defaults(), "options") }
    }

    /// How its functions are called.
    pub(crate) fn caller(
        &self,
        stream: *const trihop_stream_t,
    ) -> impl Fn(unsafe extern "C" fn(*mut c_void, *const trihop_stream_t)) + Copy + Send + 'static
    {
        let handle = Context::new(stream.cast_mut().cast());
        let context = Context::new(self.context);
        move |call| {
            // SAFETY: the header says how it is called, and this is how.
            unsafe { call(context.get(), handle.get().cast()) }
        }
    }

    pub(crate) fn priority(&self) -> Result<Option<u8>, Failure> {
        match (self.priority, u8::try_from(self.priority)) {
            (-1, _) => Ok(None),
            (_, Ok(priority)) => Ok(Some(priority)),
            (other, Err(_)) => Err(Failure::argument(format!(
                "priority {other}: it is 0 to 255, or -1 for that of the stream's options"
            ))),
        }
    }
}

/// Begins the step of a builder with all that its options say. What they call gets the `stream`.
macro_rules! begin_step {
    ($step:expr, $options:expr, $stream:expr) => {{
        let (mut step, options) = ($step, $options);
        let call = options.caller($stream);
        if let Some(priority) = options.priority()? {
            step = step.priority(priority);
        }
        if let Some(at_start) = options.at_start {
            step = step.at_start(move |_| call(at_start));
        }
        if let Some(at_end) = options.at_end {
            step = step.at_end(move |_| call(at_end));
        }
        drop(step.begin()?);
        Ok(())
    }};
}

pub(crate) use begin_step;

/// Fills `options` with the defaults. `size` is `sizeof(trihop_step_options_t)` as the caller knows
/// it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_step_options_init(
    options: *mut trihop_step_options_t,
    size: usize,
) -> trihop_status_t {
    guard(|| {
        check_size(size)?;
        let mut filled = trihop_step_options_t::defaults();
        filled.size = size;
        // SAFETY: the header asks for null or `size` bytes that nobody else uses, and the struct
        // has no padding.
        unsafe { store_sized(&filled, options, size, "options") }
    })
}

/// Runs `call` on the stream and on what its step has. On a clone: what is called may change the
/// stream's own.
///
/// # Safety
/// `stream` is null or a stream that was not closed, `options` null or initialised.
unsafe fn with_step(
    stream: *const trihop_stream_t,
    options: *const trihop_step_options_t,
    call: impl FnOnce(StreamOf, trihop_step_options_t) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let open = unsafe { argument::handle(stream, "stream")? }
            .stream
            .clone();
        // SAFETY: as the caller promises.
        call(open, unsafe { trihop_step_options_t::load(options)? })
    })
}

/// As `trihop_stream_begin_step`, with all that a step can have. Where it fails, nothing is called.
/// That it is over is told to `at_end`, and once by `trihop_stream_test` or `trihop_stream_wait`
/// too, once that has returned, unless another step has begun meanwhile.
///
/// Threads: as `trihop_stream_begin_step`, and what is called at the end of a step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_begin_step_with(
    stream: *const trihop_stream_t,
    options: *const trihop_step_options_t,
) -> trihop_status_t {
    let begin = |open: StreamOf, options: trihop_step_options_t| {
        let of = trihop_contributors_t::parse(options.of, options.count)?;
        either!(&open, open => begin_step!(open.step(of), options, stream))
    };
    // SAFETY: the header asks for null or a stream that was not closed, and for null or initialised
    // options.
    unsafe { with_step(stream, options, begin) }
}

/// As `trihop_stream_start`, with a priority, and with calls when what is to end has begun and when
/// it is over: `at_end` may start the next. Nothing that others push behind a round is handled here
/// before `at_end` has returned or starts the next end. `count` and `of` of its options are not
/// used. Where it fails, nothing is called, unless another end has begun during `at_start`, or the
/// job has failed.
///
/// Threads: as `trihop_stream_begin_step_with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_start_with(
    stream: *const trihop_stream_t,
    end: i32,
    options: *const trihop_step_options_t,
) -> trihop_status_t {
    let start = |open: StreamOf, options: trihop_step_options_t| {
        let end = trihop_end_t::parse(end)?;
        either!(&open, open => begin_step!(open.step(end), options, stream))
    };
    // SAFETY: the header asks for null or a stream that was not closed, and for null or initialised
    // options.
    unsafe { with_step(stream, options, start) }
}
