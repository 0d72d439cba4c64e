//! Streams of items of one size.

use std::ffi::{c_char, c_int, c_void};

use super::argument;
use super::callback::{Context, Gate};
use super::callback::{send_by_outbox, with_outbox};
use super::details::{self, trihop_details_t};
use super::dump;
use super::job::trihop_job_t;
use super::options::trihop_options_t;
use super::seat::{Either, either};
use super::shuffle::{trihop_broadcast_t, trihop_queues_t};
use super::stats::{self, trihop_stats_t};
use super::status::{Failure, guard, trihop_status_t};
use crate::{Error, Items, Outbox, Rank, threaded};

/// A stream of items of one size between all ranks of a job: a run of items has one header, so that small items cost less
/// than records.
///
/// Threads: except where a function says otherwise, any thread may call at any time, several at once too, and so may the
/// handler of any stream; but of an inline job as `trihop_job_t` says.
pub struct trihop_items_t {
    items: ItemsOf,
    item_bytes: usize,
}

/// A stream of items over either seat.
type ItemsOf = Either<threaded::Items, Items<'static>>;

/// Sends on a stream: inside a handler of an inline job by the handler's outbox, which spills what finds no room.
#[inline]
fn send(
    items: &ItemsOf,
    by_threaded: impl FnOnce(&threaded::Items) -> crate::Result<()>,
    by_inline: impl FnOnce(&Items<'static>) -> crate::Result<()>,
    by_outbox: impl FnOnce(&mut Outbox<'_>, &Items<'static>) -> crate::Result<()>,
) -> Result<(), Failure> {
    let items = match items {
        Either::Threaded(items) => return Ok(by_threaded(items)?),
        Either::Inline(items) => items,
    };
    match by_inline(items) {
        Err(Error::Nested(call)) => {
            let sent = send_by_outbox(|outbox| by_outbox(outbox, items));
            Ok(sent.unwrap_or(Err(Error::Nested(call)))?)
        }
        sent => Ok(sent?),
    }
}

/// Called for `count` items of one source that arrived one after the other. `items` are valid during the call only, and
/// aligned to 8 bytes where the size of an item is a multiple of 8.
///
/// Threads: as `trihop_handler_t`.
pub type trihop_items_handler_t =
    Option<unsafe extern "C" fn(context: *mut c_void, source: u32, items: *const c_void, count: usize)>;

/// Opens a stream of items of `item_bytes` bytes. Collective over all ranks: the same names in the same order, with the same
/// size and options. `options` null stands for those of the job. `context` is handed to `handler`. Where that is null, items
/// wait for `trihop_items_take`, up to `deliverq_max`; then their senders wait.
///
/// An item has at most 16,320 bytes, and less where a quarter of a lane less 64 bytes is less
/// (4,032 with 64 ranks on a node), or half of a link's part of what is for batches (about 4,000 with
/// 500 links), both shares of `memory_bytes`. What is longer is sent as a record of a shuffle.
///
/// Fails on impossible options or sizes, naming the option that admits longer items, and on every
/// rank with `TRIHOP_ERR_MISMATCH` where they do not agree.
/// Threads: any, but one that opens at a time; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_open(
    job: *const trihop_job_t,
    name: *const c_char,
    item_bytes: usize,
    options: *const trihop_options_t,
    handler: trihop_items_handler_t,
    context: *mut c_void,
    items: *mut *mut trihop_items_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(items, "items")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or a job that has not ended, and a text that ends with NUL.
        let (job, name) = unsafe { (argument::reference(job, "job")?, argument::text(name, "name")?) };
        if item_bytes == 0 {
            return Err(Failure::argument(
                "`item_bytes` is 0; an item has at least one byte",
            ));
        }
        // SAFETY: the header asks for null or initialised options.
        let options = unsafe { trihop_options_t::of_stream(options)? };
        let context = Context::new(context);
        let call = handler.map(|handler| {
            move |source: Rank, bytes: &[u8]| {
                let count = bytes.len() / item_bytes;
                // SAFETY: the header says how a handler is called, and this is how.
                unsafe { handler(context.get(), source.0, bytes.as_ptr().cast(), count) }
            }
        });
        let (mut gate, opened) = Gate::closed();
        let items = match &job.job {
            Either::Threaded(job) => {
                let mut builder = job.items(name, item_bytes);
                if let Some(options) = options {
                    builder = builder.options(options);
                }
                if let Some(call) = call {
                    builder = builder.handler(move |source, bytes| {
                        gate.pass();
                        call(source, bytes);
                    });
                }
                Either::Threaded(builder.open()?)
            }
            Either::Inline(job) => {
                let mut builder = job.items(name, item_bytes);
                if let Some(options) = options {
                    builder = builder.options(options);
                }
                if let Some(call) = call {
                    builder = builder.handler(move |source, bytes, outbox| {
                        with_outbox(&mut outbox.outbox(), || call(source, bytes));
                    });
                }
                Either::Inline(builder.open()?)
            }
        };
        *place = Box::into_raw(Box::new(trihop_items_t { items, item_bytes }));
        drop(opened);
        Ok(())
    })
}

/// Runs `call` on the stream.
///
/// # Safety
/// `items` is null or a stream that was not closed.
#[inline]
unsafe fn with(
    items: *const trihop_items_t,
    call: impl FnOnce(&trihop_items_t) -> Result<(), Failure>,
) -> trihop_status_t {
    // SAFETY: as the caller promises.
    guard(|| call(unsafe { argument::reference(items, "items")? }))
}

/// Sends one item, which is copied. Waits while there is no room, but not inside a handler: there it
/// does as `trihop_shuffle_send`. Items from one rank to another arrive in the order in which they were
/// sent, each exactly once.
///
/// Fails on a bad rank and on a peer that is gone; inside a handler with `TRIHOP_ERR_NO_MEMORY` where
/// `spill_bytes` are used up, or memory is: then the job fails too.
/// Threads: any. There is no order between items of different threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_push(
    items: *const trihop_items_t,
    target: u32,
    item: *const c_void,
) -> trihop_status_t {
    let push = |stream: &trihop_items_t| {
        // SAFETY: the header asks for one item that nobody changes during the call.
        let bytes = unsafe { argument::bytes(item, stream.item_bytes, "item")? };
        send(
            &stream.items,
            |items| items.push(Rank(target), bytes),
            |items| items.push(Rank(target), bytes),
            |outbox, items| outbox.push_on(items, Rank(target), bytes),
        )
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, push) }
}

/// As `trihop_items_push`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK` and has taken nothing.
///
/// Threads: any. It waits for the engine while another thread has it, never for room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_try_push(
    items: *const trihop_items_t,
    target: u32,
    item: *const c_void,
) -> trihop_status_t {
    let push = |stream: &trihop_items_t| {
        // SAFETY: the header asks for one item that nobody changes during the call.
        let bytes = unsafe { argument::bytes(item, stream.item_bytes, "item")? };
        send(
            &stream.items,
            |items| items.try_push(Rank(target), bytes),
            |items| items.try_push(Rank(target), bytes),
            |outbox, items| outbox.push_on(items, Rank(target), bytes),
        )
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, push) }
}

/// Makes a round of progress, then hands all items that wait to `taker`, which may send: those of one source that came one
/// after the other by one call. Their number goes to `count`, which may be null. For streams that were opened without a
/// handler. `context` is handed to `taker`.
///
/// Threads: any; `taker` is called on the thread that calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_take(
    items: *const trihop_items_t,
    taker: trihop_items_handler_t,
    context: *mut c_void,
    count: *mut u64,
) -> trihop_status_t {
    let call = |stream: &trihop_items_t| {
        let taker = taker.ok_or_else(|| Failure::argument("`taker` is a null pointer"))?;
        let take = |source: Rank, bytes: &[u8]| {
            let items = bytes.len() / stream.item_bytes;
            // SAFETY: the header says how it is called, and this is how.
            unsafe { taker(context, source.0, bytes.as_ptr().cast(), items) }
        };
        let taken = either!(&stream.items, items => items.take(take))?;
        if !count.is_null() {
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(count, "count")? } = taken;
        }
        Ok(())
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, call) }
}

/// Sends `count` items, one after the other in memory, each to the rank in its place of `targets`: cheaper than one call
/// for each. Otherwise as `trihop_items_push`; after a failure, some of them may have been sent.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_push_many(
    items: *const trihop_items_t,
    targets: *const u32,
    values: *const c_void,
    count: usize,
) -> trihop_status_t {
    let push = |stream: &trihop_items_t| {
        let length = count.checked_mul(stream.item_bytes).ok_or_else(|| {
            let size = stream.item_bytes;
            Failure::argument(format!(
                "{count} items of {size} bytes are more than memory can hold"
            ))
        })?;
        // SAFETY: the header asks for `count` targets and items that nobody changes during the call.
        let (targets, bytes) = unsafe {
            (
                argument::slice(targets, count, "targets")?,
                argument::bytes(values, length, "values")?,
            )
        };
        send(
            &stream.items,
            |items| items.push_many(targets, bytes),
            |items| items.push_many(targets, bytes),
            |outbox, items| {
                let mut pairs = targets.iter().zip(bytes.chunks_exact(stream.item_bytes));
                pairs.try_for_each(|(&target, item)| outbox.push_on(items, Rank(target), item))
            },
        )
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, push) }
}

/// Sends one item to all other ranks or to every rank, as `trihop_shuffle_broadcast` does with a record. Otherwise as
/// `trihop_items_push`; after a failure, some of the ranks may get it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_broadcast(
    items: *const trihop_items_t,
    item: *const c_void,
    to: i32,
) -> trihop_status_t {
    let send = |stream: &trihop_items_t| {
        // SAFETY: the header asks for one item that nobody changes during the call.
        let bytes = unsafe { argument::bytes(item, stream.item_bytes, "item")? };
        let to = trihop_broadcast_t::parse(to)?;
        send(
            &stream.items,
            |items| items.broadcast(bytes, to),
            |items| items.broadcast(bytes, to),
            |outbox, items| outbox.broadcast_on(items, bytes, to),
        )
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, send) }
}

/// Waits until this rank's queues of one stage, of `trihop_queues_t`, have passed on what was in them. Not inside a
/// handler.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_flush(items: *const trihop_items_t, queues: i32) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe {
        with(items, |stream| {
            let queues = trihop_queues_t::parse(queues)?;
            Ok(either!(&stream.items, items => items.flush(queues))?)
        })
    }
}

/// Returns on every rank when every record that any rank sent before, and every record that handlers sent because of
/// them, has been handled. Collective over all ranks; not inside a handler.
///
/// Threads: any, one fence of a stream at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_fence(items: *const trihop_items_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe {
        with(items, |stream| {
            Ok(either!(&stream.items, items => items.fence())?)
        })
    }
}

/// As `trihop_barrier`, of the job that the stream belongs to.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_barrier(items: *const trihop_items_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe {
        with(items, |stream| {
            Ok(either!(&stream.items, items => items.barrier())?)
        })
    }
}

/// Fills `counters` with what the stream has done on this rank. `size` is `sizeof(trihop_stats_t)` as the caller knows
/// it.
///
/// Threads: any. Fails with `TRIHOP_ERR_WOULD_BLOCK` where the engine is in use and does not come free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_stats(
    items: *const trihop_items_t,
    counters: *mut trihop_stats_t,
    size: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or `size` bytes that nobody else uses.
    let give = |stream: &trihop_items_t| unsafe {
        stats::give(either!(&stream.items, items => items.stats()), counters, size)
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, give) }
}

/// Writes what the stream has done on this rank as a JSON object that ends with NUL, and its length without that. Where
/// `capacity` is too small (`text` may be null where it is 0), the call fails with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only
/// stores the length.
///
/// Threads: as `trihop_items_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_stats_json(
    items: *const trihop_items_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
    let give = |stream: &trihop_items_t| unsafe {
        stats::give_json(
            either!(&stream.items, items => items.stats()),
            text,
            capacity,
            length,
        )
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, give) }
}

/// Stores what the stream and each of its queues have done on this rank until now, to be read with `trihop_details_stage` and
/// the like, and freed with `trihop_details_free`.
///
/// Threads: as `trihop_items_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_details(
    items: *const trihop_items_t,
    details: *mut *mut trihop_details_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a place for a pointer.
    let give = |stream: &trihop_items_t| unsafe {
        details::give(either!(&stream.items, items => items.detailed_stats()), details)
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, give) }
}

/// As `trihop_dump`, of this stream alone and without lines of the log.
///
/// Threads: as `trihop_dump`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_dump(
    items: *const trihop_items_t,
    descriptor: c_int,
) -> trihop_status_t {
    let dump = |stream: &trihop_items_t| {
        dump::to_descriptor(
            descriptor,
            |writer| either!(&stream.items, items => items.dump(writer)),
        )
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(items, dump) }
}

/// Fences the stream and closes it. Collective over all ranks, unless the job has ended.
///
/// The stream is gone afterwards, whatever is returned, with one exception: inside a handler the call is refused with
/// `TRIHOP_ERR_NESTED`. The handler is not called any more once this has returned.
/// Threads: any, but no other call on the stream may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_items_close(items: *mut trihop_items_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a stream that was not closed.
        let open = unsafe { argument::reference(items, "items")? };
        let outcome = either!(&open.items, items => items.clone().shutdown());
        if !matches!(outcome, Err(Error::Nested(_))) {
            // SAFETY: made by `trihop_items_open`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(items) });
        }
        match outcome {
            // The job has ended, and with it the stream.
            Err(Error::Closed(_)) => Ok(()),
            outcome => Ok(outcome?),
        }
    })
}
