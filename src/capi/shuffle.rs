//! Shuffles of byte records.

use std::ffi::{c_char, c_int, c_void};

use super::argument;
use super::callback::{Context, Gate};
use super::callback::{send_by_outbox, with_outbox};
use super::details::{self, trihop_details_t};
use super::dump;
use super::job::trihop_job_t;
use super::options::trihop_options_t;
use super::seat::{Either, either};
use super::stats::{self, trihop_stats_t};
use super::status::{Failure, guard, trihop_status_t};
use crate::{BroadcastTo, Error, Message, Outbox, Queues, Rank, Shuffle, threaded};

/// A shuffle of byte records between all ranks of a job.
///
/// Threads: except where a function says otherwise, any thread may call at any time, several at once too, and so may the
/// handler of any stream; but of an inline job as `trihop_job_t` says.
pub struct trihop_shuffle_t {
    shuffle: ShuffleOf,
}

/// A shuffle over either seat.
type ShuffleOf = Either<threaded::Shuffle, Shuffle<'static>>;

/// Sends on a shuffle: inside a handler of an inline job by the handler's outbox, which spills what finds no room.
#[inline]
fn send(
    shuffle: &ShuffleOf,
    by_threaded: impl FnOnce(&threaded::Shuffle) -> crate::Result<()>,
    by_inline: impl FnOnce(&Shuffle<'static>) -> crate::Result<()>,
    by_outbox: impl FnOnce(&mut Outbox<'_>) -> crate::Result<()>,
) -> Result<(), Failure> {
    let shuffle = match shuffle {
        Either::Threaded(shuffle) => return Ok(by_threaded(shuffle)?),
        Either::Inline(shuffle) => shuffle,
    };
    match by_inline(shuffle) {
        Err(Error::Nested(call)) => {
            let sent = send_by_outbox(|outbox| by_outbox(&mut outbox.on(shuffle)?));
            Ok(sent.unwrap_or(Err(Error::Nested(call)))?)
        }
        sent => Ok(sent?),
    }
}

/// Called for every record that arrives. `bytes` are valid during the call only, aligned to 8 bytes, and not null where
/// `length` is 0.
///
/// Threads: of an inline job in calls that make progress, on the thread that makes them; it may send, by the same functions,
/// on any stream of the job, and nothing else of the library. Of a job with threads: on the delivery thread of the shuffle, one call at a time; the first one comes after the handle was stored. It may
/// block, and its senders then wait. It may read counters, and send on any stream of the job, its own
/// one too, to any rank, any number of times: see `trihop_shuffle_send`. It may not wait for others:
/// no flush, fence, collective, open or close. It must return: no exception and no longjmp across it.
pub type trihop_handler_t = Option<
    unsafe extern "C" fn(context: *mut c_void, source: u32, kind: u32, bytes: *const c_void, length: usize),
>;

/// Which queues a flush empties.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_queues_t {
    /// What this rank sent: until the next hop has taken it.
    TRIHOP_ORIGIN_QUEUES = 0,
    /// Batches to other nodes: until the representatives there have taken them.
    TRIHOP_REMOTE_QUEUES = 1,
    /// What came from other nodes for ranks of this node: until these have taken it.
    TRIHOP_RELAY_QUEUES = 2,
    /// What has arrived here: until it was handled.
    TRIHOP_DELIVERY_QUEUE = 3,
}

impl trihop_queues_t {
    pub(crate) fn parse(number: i32) -> Result<Queues, Failure> {
        [
            (Self::TRIHOP_ORIGIN_QUEUES, Queues::ORIGIN),
            (Self::TRIHOP_REMOTE_QUEUES, Queues::REMOTE),
            (Self::TRIHOP_RELAY_QUEUES, Queues::RELAY),
            (Self::TRIHOP_DELIVERY_QUEUE, Queues::Delivery),
        ]
        .into_iter()
        .find_map(|(known, queues)| (known as i32 == number).then_some(queues))
        .ok_or_else(|| Failure::argument(format!("{number} is none of trihop_queues_t")))
    }
}

/// Who gets a broadcast.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_broadcast_t {
    /// All ranks but this one.
    TRIHOP_TO_OTHERS = 0,
    /// All ranks.
    TRIHOP_TO_EVERYONE = 1,
}

impl trihop_broadcast_t {
    pub(crate) fn parse(number: i32) -> Result<BroadcastTo, Failure> {
        [
            (Self::TRIHOP_TO_OTHERS, BroadcastTo::Others),
            (Self::TRIHOP_TO_EVERYONE, BroadcastTo::Everyone),
        ]
        .into_iter()
        .find_map(|(known, to)| (known as i32 == number).then_some(to))
        .ok_or_else(|| {
            Failure::argument(format!(
                "{number} is neither TRIHOP_TO_OTHERS nor TRIHOP_TO_EVERYONE"
            ))
        })
    }
}

/// Opens a shuffle. Collective over all ranks: the same names in the same order, with the same options. `options` null
/// stands for those of the job. `context` is handed to `handler`. Where that is null, records wait for
/// `trihop_shuffle_take`, up to `deliverq_max`; then their senders wait.
///
/// Fails on impossible options, and on every rank with `TRIHOP_ERR_MISMATCH` where they do not agree.
/// Threads: any, but one that opens at a time; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_open(
    job: *const trihop_job_t,
    name: *const c_char,
    options: *const trihop_options_t,
    handler: trihop_handler_t,
    context: *mut c_void,
    shuffle: *mut *mut trihop_shuffle_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(shuffle, "shuffle")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or a job that has not ended, and a text that ends with NUL.
        let (job, name) = unsafe { (argument::reference(job, "job")?, argument::text(name, "name")?) };
        // SAFETY: the header asks for null or initialised options.
        let options = unsafe { trihop_options_t::of_stream(options)? };
        let context = Context::new(context);
        let call = handler.map(|handler| {
            move |message: Message<'_>| {
                let (bytes, length) = (message.bytes.as_ptr().cast(), message.bytes.len());
                // SAFETY: the header says how a handler is called, and this is how.
                unsafe { handler(context.get(), message.source.0, message.kind, bytes, length) }
            }
        });
        let (mut gate, opened) = Gate::closed();
        let shuffle = match &job.job {
            Either::Threaded(job) => {
                let mut builder = job.shuffle(name);
                if let Some(options) = options {
                    builder = builder.options(options);
                }
                if let Some(call) = call {
                    builder = builder.handler(move |message| {
                        gate.pass();
                        call(message);
                    });
                }
                Either::Threaded(builder.open()?)
            }
            Either::Inline(job) => {
                let mut builder = job.shuffle(name);
                if let Some(options) = options {
                    builder = builder.options(options);
                }
                if let Some(call) = call {
                    builder = builder.handler(move |message, outbox| with_outbox(outbox, || call(message)));
                }
                Either::Inline(builder.open()?)
            }
        };
        *place = Box::into_raw(Box::new(trihop_shuffle_t { shuffle }));
        drop(opened);
        Ok(())
    })
}

/// Runs `call` on the shuffle.
///
/// # Safety
/// `shuffle` is null or a shuffle that was not closed.
#[inline]
unsafe fn with(
    shuffle: *const trihop_shuffle_t,
    call: impl FnOnce(&ShuffleOf) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let shuffle = unsafe { argument::reference(shuffle, "shuffle")? };
        call(&shuffle.shuffle)
    })
}

/// Sends a record of `length` bytes, which are copied; `kind` is handed to the handler. Waits while there is no room.
/// Records from one rank to another arrive in the order in which they were sent, each exactly once.
///
/// Inside a handler it never waits for room: what no queue takes is kept in memory, the spill of this
/// shuffle, ahead of what the application sends. The next call of the handler waits while more than
/// a 32nd of `memory_bytes` of it is kept and less and less are.
///
/// Fails on a bad rank, a record that is too long, and a peer that is gone; inside a handler with
/// `TRIHOP_ERR_NO_MEMORY` where `spill_bytes` are used up, or memory is: then the job fails too.
/// Threads: any. There is no order between records of different threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_send(
    shuffle: *const trihop_shuffle_t,
    target: u32,
    kind: u32,
    bytes: *const c_void,
    length: usize,
) -> trihop_status_t {
    let call = |shuffle: &ShuffleOf| {
        // SAFETY: the header asks for `length` bytes that nobody changes during the call.
        let bytes = unsafe { argument::bytes(bytes, length, "bytes")? };
        send(
            shuffle,
            |shuffle| shuffle.send(Rank(target), kind, bytes),
            |shuffle| shuffle.send(Rank(target), kind, bytes),
            |outbox| outbox.send(Rank(target), kind, bytes),
        )
    };
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, call) }
}

/// As `trihop_shuffle_send`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK` and has taken nothing.
///
/// Threads: any. It waits for the engine while another thread has it, never for room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_try_send(
    shuffle: *const trihop_shuffle_t,
    target: u32,
    kind: u32,
    bytes: *const c_void,
    length: usize,
) -> trihop_status_t {
    let call = |shuffle: &ShuffleOf| {
        // SAFETY: the header asks for `length` bytes that nobody changes during the call.
        let bytes = unsafe { argument::bytes(bytes, length, "bytes")? };
        send(
            shuffle,
            |shuffle| shuffle.try_send(Rank(target), kind, bytes),
            |shuffle| shuffle.try_send(Rank(target), kind, bytes),
            |outbox| outbox.send(Rank(target), kind, bytes),
        )
    };
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, call) }
}

/// Sends a record to all other ranks or to every rank, as `to` says, one of `trihop_broadcast_t`: along the tree of the
/// route, one copy to each node. One that is longer than a frame (16 KiB with few ranks) goes to one rank after the other.
/// Otherwise as `trihop_shuffle_send`; after a failure, some of the ranks may get it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_broadcast(
    shuffle: *const trihop_shuffle_t,
    kind: u32,
    bytes: *const c_void,
    length: usize,
    to: i32,
) -> trihop_status_t {
    let call = |shuffle: &ShuffleOf| {
        // SAFETY: the header asks for `length` bytes that nobody changes during the call.
        let bytes = unsafe { argument::bytes(bytes, length, "bytes")? };
        let to = trihop_broadcast_t::parse(to)?;
        send(
            shuffle,
            |shuffle| shuffle.broadcast(kind, bytes, to),
            |shuffle| shuffle.broadcast(kind, bytes, to),
            |outbox| outbox.broadcast(kind, bytes, to),
        )
    };
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, call) }
}

/// Makes a round of progress, then hands every record that waits to `taker`, which may send; their number goes to `count`,
/// which may be null. For shuffles that were opened without a handler. `context` is handed to `taker`.
///
/// Threads: any; `taker` is called on the thread that calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_take(
    shuffle: *const trihop_shuffle_t,
    taker: trihop_handler_t,
    context: *mut c_void,
    count: *mut u64,
) -> trihop_status_t {
    let call = |shuffle: &ShuffleOf| {
        let taker = taker.ok_or_else(|| Failure::argument("`taker` is a null pointer"))?;
        let take = |message: Message<'_>| {
            let (bytes, length) = (message.bytes.as_ptr().cast(), message.bytes.len());
            // SAFETY: the header says how it is called, and this is how.
            unsafe { taker(context, message.source.0, message.kind, bytes, length) }
        };
        let taken = either!(shuffle, shuffle => shuffle.take(take))?;
        if !count.is_null() {
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(count, "count")? } = taken;
        }
        Ok(())
    };
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, call) }
}

/// Waits until this rank's queues of one stage, of `trihop_queues_t`, have passed on what was in them. Not inside a
/// handler.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_flush(
    shuffle: *const trihop_shuffle_t,
    queues: i32,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe {
        with(shuffle, |shuffle| {
            let queues = trihop_queues_t::parse(queues)?;
            Ok(either!(shuffle, shuffle => shuffle.flush(queues))?)
        })
    }
}

/// Returns on every rank when every record that any rank sent before, and every record that handlers sent because of
/// them, has been handled. Collective over all ranks; not inside a handler.
///
/// Threads: any, one fence of a shuffle at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_fence(shuffle: *const trihop_shuffle_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe {
        with(shuffle, |shuffle| {
            Ok(either!(shuffle, shuffle => shuffle.fence())?)
        })
    }
}

/// As `trihop_barrier`, of the job that the shuffle belongs to.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_barrier(shuffle: *const trihop_shuffle_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe {
        with(shuffle, |shuffle| {
            Ok(either!(shuffle, shuffle => shuffle.barrier())?)
        })
    }
}

/// Fills `counters` with what the shuffle has done on this rank. `size` is `sizeof(trihop_stats_t)` as the caller knows
/// it.
///
/// Threads: any. Fails with `TRIHOP_ERR_WOULD_BLOCK` where the engine is in use and does not come free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_stats(
    shuffle: *const trihop_shuffle_t,
    counters: *mut trihop_stats_t,
    size: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or `size` bytes that nobody else uses.
    let give = |shuffle: &ShuffleOf| unsafe { stats::give(either!(shuffle, s => s.stats()), counters, size) };
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, give) }
}

/// Writes what the shuffle has done on this rank as a JSON object that ends with NUL, and its length without that. Where
/// `capacity` is too small (`text` may be null where it is 0), the call fails with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only
/// stores the length.
///
/// Threads: as `trihop_shuffle_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_stats_json(
    shuffle: *const trihop_shuffle_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
    let give = |shuffle: &ShuffleOf| unsafe {
        stats::give_json(either!(shuffle, s => s.stats()), text, capacity, length)
    };
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, give) }
}

/// Stores what the shuffle and each of its queues have done on this rank until now, to be read with `trihop_details_stage` and
/// the like, and freed with `trihop_details_free`.
///
/// Threads: as `trihop_shuffle_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_details(
    shuffle: *const trihop_shuffle_t,
    details: *mut *mut trihop_details_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a place for a pointer.
    let give =
        |shuffle: &ShuffleOf| unsafe { details::give(either!(shuffle, s => s.detailed_stats()), details) };
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, give) }
}

/// As `trihop_dump`, of this shuffle alone and without lines of the log.
///
/// Threads: as `trihop_dump`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_dump(
    shuffle: *const trihop_shuffle_t,
    descriptor: c_int,
) -> trihop_status_t {
    let dump =
        |shuffle: &ShuffleOf| dump::to_descriptor(descriptor, |writer| either!(shuffle, s => s.dump(writer)));
    // SAFETY: the header asks for null or a shuffle that was not closed.
    unsafe { with(shuffle, dump) }
}

/// Fences the shuffle and closes it. Collective over all ranks, unless the job has ended.
///
/// The shuffle is gone afterwards, whatever is returned, with one exception: inside a handler the call is refused with
/// `TRIHOP_ERR_NESTED`. The handler is not called any more once this has returned.
/// Threads: any, but no other call on the shuffle may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_shuffle_close(shuffle: *mut trihop_shuffle_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a shuffle that was not closed.
        let open = unsafe { argument::reference(shuffle, "shuffle")? };
        let outcome = either!(&open.shuffle, shuffle => shuffle.clone().shutdown());
        if !matches!(outcome, Err(Error::Nested(_))) {
            // SAFETY: made by `trihop_shuffle_open`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(shuffle) });
        }
        match outcome {
            // The job has ended, and with it the shuffle.
            Err(Error::Closed(_)) => Ok(()),
            outcome => Ok(outcome?),
        }
    })
}
