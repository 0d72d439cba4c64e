//! How streams are opened.

use std::ffi::{c_char, c_void};

use super::message::{Caller, trihop_handler_t, trihop_message_t};
use super::{StreamOf, trihop_stream_t};
use crate::StreamOptions;
use crate::capi::argument;
use crate::capi::callback::{Context, Gate, with_outbox};
use crate::capi::job::{JobOf, trihop_job_t};
use crate::capi::options::trihop_options_t;
use crate::capi::seat::{Either, either};
use crate::capi::status::{Failure, guard, trihop_status_t};

/// Opens a stream of items of `item_bytes` bytes, or of byte records where that is 0. Collective
/// over all ranks: the same names in the same order, with the same size and options. `options` null
/// stands for those of the job. `context` is handed to `handler`.
///
/// Where `handler` is null, what arrives waits for `trihop_stream_take`, up to `deliverq_max`; then
/// its senders wait. Calls on such a stream that wait (sends, flushes, fences, barriers, its close)
/// give way with `TRIHOP_ERR_WOULD_BLOCK` where only taking makes room: take, and call again.
///
/// An item has `max_message_bytes` at most. One of more than a frame (16,320 bytes; 4,032 with 64
/// ranks on a node) travels in fragments, or inside of a node through memory that it shares, as a
/// long record does.
///
/// Fails on impossible options or sizes, naming the option that admits longer items, and on every
/// rank with `TRIHOP_ERR_MISMATCH` where they do not agree.
/// Threads: any, but one that opens at a time; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_open(
    job: *const trihop_job_t,
    name: *const c_char,
    item_bytes: usize,
    options: *const trihop_options_t,
    handler: trihop_handler_t,
    context: *mut c_void,
    stream: *mut *mut trihop_stream_t,
) -> trihop_status_t {
    guard(|| {
        let handler = handler.map(Handler::OfEach);
        // SAFETY: as the header asks.
        unsafe { open_by(job, name, item_bytes, options, handler, context, stream) }
    })
}

/// As `trihop_stream_open` of a stream of records, but `handler` is called for all records at once
/// that arrived one after the other from one source, as many as a run has: for programs that take a
/// lock, or look something up, once for all of them. The message has the first record and their
/// `count`; `trihop_message_next` goes through them.
///
/// A handler that sends is not kept waiting between the records of a run. Fails where `handler` is
/// null, and as `trihop_stream_open`.
/// Threads: as `trihop_stream_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_open_runs(
    job: *const trihop_job_t,
    name: *const c_char,
    options: *const trihop_options_t,
    handler: trihop_handler_t,
    context: *mut c_void,
    stream: *mut *mut trihop_stream_t,
) -> trihop_status_t {
    guard(|| {
        let handler = handler.ok_or_else(|| Failure::argument("`handler` is a null pointer"))?;
        let handler = Some(Handler::OfRuns(handler));
        // SAFETY: as the header asks.
        unsafe { open_by(job, name, 0, options, handler, context, stream) }
    })
}

/// From now on, what this rank sends to itself by this handle is handed to the handler in the call
/// itself: a push or send, the own copy of a broadcast, a record that was filled in place. Called
/// once, behind the opening; other ranks need not do the same. Of inline jobs.
///
/// Order is kept: while something waits that was sent before (by handlers to this rank, or for want
/// of room), the next one goes the usual way, and is handled in a later call that makes progress. So
/// are what handlers send, what is sent inside of `trihop_stream_take`, and a broadcast that has to
/// wait for room.
///
/// Fails with `TRIHOP_ERR_CONFIG` on a job with threads, where a delivery thread calls the handler,
/// and for a stream without one. Not inside a handler.
/// Threads: the one of the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_own_at_once(
    stream: *mut trihop_stream_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a stream that was not closed.
        let open = unsafe { argument::handle(stream, "stream")? };
        let asked = match &open.stream {
            Either::Threaded(stream) => return Ok(stream.clone().own_at_once()?),
            Either::Inline(stream) => {
                let mut stream = stream.clone();
                stream.own_at_once()?;
                Either::Inline(stream)
            }
        };
        // SAFETY: as above; no call on it is under way, since that would have been refused, and one
        // thread makes them all.
        unsafe { argument::place(stream, "stream")? }.stream = asked;
        Ok(())
    })
}

/// A handler of the caller's, and what it is called for.
enum Handler {
    /// Each record, or each run of items.
    OfEach(unsafe extern "C" fn(*mut c_void, *const trihop_message_t)),
    /// All records of a run.
    OfRuns(unsafe extern "C" fn(*mut c_void, *const trihop_message_t)),
}

/// Opens a stream.
///
/// # Safety
/// As the header says of `trihop_stream_open`.
unsafe fn open_by(
    job: *const trihop_job_t,
    name: *const c_char,
    item_bytes: usize,
    options: *const trihop_options_t,
    handler: Option<Handler>,
    context: *mut c_void,
    stream: *mut *mut trihop_stream_t,
) -> Result<(), Failure> {
    // SAFETY: the header asks for null or a place for a pointer.
    let place = unsafe { argument::place(stream, "stream")? };
    *place = std::ptr::null_mut();
    // SAFETY: the header asks for null or a job that has not ended, and a text that ends with
    // NUL.
    let (job, name) = unsafe { (argument::handle(job, "job")?, argument::text(name, "name")?) };
    // SAFETY: the header asks for null or initialised options.
    let options = unsafe { trihop_options_t::of_stream(options)? };
    let (rank, size) = either!(&job.job, job => (job.rank().0, job.size()));
    // Its place is made first: handlers are told of it, and none is called before it is filled.
    let handle = Box::into_raw(Box::<trihop_stream_t>::new_uninit());
    let takes_runs = matches!(handler, Some(Handler::OfRuns(_)));
    let caller = handler.map(
        |(Handler::OfEach(handler) | Handler::OfRuns(handler))| Caller {
            handler,
            context: Context::new(context),
            takes_runs,
            stream: Context::new(handle.cast()),
            rank,
            size,
        },
    );
    let (gate, opened) = Gate::closed();
    match open(&job.job, name, item_bytes, options, caller, gate) {
        Ok(stream) => {
            // SAFETY: made above and nobody else's yet: handlers wait for `opened`, or for this
            // call's end.
            unsafe {
                handle
                    .cast::<trihop_stream_t>()
                    .write(trihop_stream_t::new(stream, rank, size))
            };
            *place = handle.cast();
            drop(opened);
            Ok(())
        }
        Err(error) => {
            // SAFETY: made above; what was to use it is gone with the stream.
            drop(unsafe { Box::from_raw(handle) });
            Err(error.into())
        }
    }
}

/// Opens a stream over the seat of `job`.
fn open(
    job: &JobOf,
    name: &str,
    item_bytes: usize,
    options: Option<StreamOptions>,
    caller: Option<Caller>,
    mut gate: Gate,
) -> crate::Result<StreamOf> {
    match job {
        Either::Threaded(job) => {
            let mut builder = job.untyped(name, item_bytes);
            if let Some(options) = options {
                builder = builder.options(options);
            }
            if let Some(caller) = caller {
                builder = match caller.takes_runs {
                    true => builder.run_handler(move |messages, _| {
                        gate.pass();
                        caller.call_with_run(messages);
                    }),
                    false => builder.handler(move |arrival, _| {
                        gate.pass();
                        caller.call(arrival);
                    }),
                };
            }
            Ok(Either::Threaded(builder.open()?))
        }
        Either::Inline(job) => {
            let mut builder = job.untyped(name, item_bytes);
            if let Some(options) = options {
                builder = builder.options(options);
            }
            if let Some(caller) = caller {
                builder = match caller.takes_runs {
                    true => builder.run_handler(move |messages, outbox| {
                        with_outbox(outbox, || caller.call_with_run(messages));
                    }),
                    false => builder.handler(move |arrival, outbox| {
                        with_outbox(outbox, || caller.call(arrival));
                    }),
                };
            }
            Ok(Either::Inline(builder.open()?))
        }
    }
}
