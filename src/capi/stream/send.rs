//! How programs send: records and items, to one rank or to all.

use std::cell::Cell;
use std::ffi::c_void;

use super::message::trihop_filler_t;
use super::{StreamOf, trihop_stream_t, with};
use crate::capi::argument;
use crate::capi::callback::send_by_outbox;
use crate::capi::seat::{Either, either};
use crate::capi::status::{Failure, trihop_status_t};
use crate::{BroadcastTo, Error, Rank, Untyped, UntypedOutbox, threaded};

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

/// Sends on a stream: inside a handler of an inline job by the handler's outbox, which spills what
/// finds no room.
#[inline(always)] // part of every send
fn send(
    stream: &StreamOf,
    by_threaded: impl FnOnce(&threaded::Untyped) -> crate::Result<()>,
    by_inline: impl FnOnce(&Untyped<'static>) -> crate::Result<()>,
    by_outbox: impl FnOnce(&mut UntypedOutbox<'_>, &Untyped<'static>) -> crate::Result<()>,
) -> Result<(), Failure> {
    let stream = match stream {
        Either::Threaded(stream) => return Ok(by_threaded(stream)?),
        Either::Inline(stream) => stream,
    };
    let sent = send_by_outbox(|outbox| {
        // Else it is of another job, or closed.
        outbox.has(stream).then(|| by_outbox(outbox, stream))
    });
    match sent {
        Some(Some(sent)) => sent?,
        None => by_inline(stream)?,
        Some(None) => by_inline(stream).map_err(|error| match error {
            Error::Nested(_) => Error::Closed(stream.name().to_owned()),
            error => error,
        })?,
    }
    Ok(())
}

/// Sends by a verb of the stream, or by one of the outbox, with the same arguments.
macro_rules! send_by {
    ($stream:expr, $verb:ident or $of_outbox:ident($($argument:expr),+)) => {
        send(
            $stream,
            |stream| stream.$verb($($argument),+),
            |stream| stream.$verb($($argument),+),
            |outbox, stream| outbox.on(stream)?.$of_outbox($($argument),+),
        )
    };
}

/// Runs `call` on the stream and on bytes of the caller's, as many as `length` says.
///
/// # Safety
/// As [`with`]; `bytes` is null or so many bytes that nobody changes meanwhile.
#[inline(always)] // part of every send
unsafe fn with_bytes(
    stream: *const trihop_stream_t,
    name: &str,
    bytes: *const c_void,
    length: impl FnOnce(&StreamOf) -> usize,
    call: impl FnOnce(&StreamOf, &[u8]) -> Result<(), Failure>,
) -> trihop_status_t {
    let call = |stream: &StreamOf| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { argument::bytes(bytes, length(stream), name)? };
        call(stream, bytes)
    };
    // SAFETY: as the caller promises.
    unsafe { with(stream, call) }
}

/// Sends a record of `length` bytes, which are copied; `kind` is handed to the handler. Waits while
/// there is no room. What one rank sends to another arrives in the order in which it was sent, each
/// exactly once.
///
/// Inside a handler it never waits for room: what no queue takes is kept in memory, the spill of
/// this stream, ahead of what the application sends. The next call of the handler waits while more
/// than a 32nd of `memory_bytes` of it is kept and less and less are.
///
/// Fails on a bad rank, a record that is too long, a stream of items, and a peer that is gone;
/// inside a handler with `TRIHOP_ERR_NO_MEMORY` where `spill_bytes` are used up, or memory is: then
/// the job fails too.
/// Threads: any. There is no order between what different threads send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_send(
    stream: *const trihop_stream_t,
    target: u32,
    kind: u32,
    bytes: *const c_void,
    length: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed, and for `length` bytes that
    // nobody changes during the call.
    unsafe {
        with_bytes(
            stream,
            "bytes",
            bytes,
            |_| length,
            |stream, bytes| {
                send(
                    stream,
                    |stream| stream.send(Rank(target), kind, bytes),
                    |stream| stream.send(Rank(target), kind, bytes),
                    |outbox, stream| send_record_by(outbox, stream, Rank(target), kind, bytes),
                )
            },
        )
    }
}

/// As `trihop_stream_send`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK`
/// and has taken nothing. It makes no progress: on an inline job call `trihop_poll` before it is
/// tried again. Inside a handler of an inline job it is `trihop_stream_send`, which does not wait
/// there either.
///
/// Threads: any. It waits for the engine while another thread has it, never for room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_try_send(
    stream: *const trihop_stream_t,
    target: u32,
    kind: u32,
    bytes: *const c_void,
    length: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed, and for `length` bytes that
    // nobody changes during the call.
    unsafe {
        with_bytes(
            stream,
            "bytes",
            bytes,
            |_| length,
            |stream, bytes| {
                send(
                    stream,
                    |stream| stream.try_send(Rank(target), kind, bytes),
                    |stream| stream.try_send(Rank(target), kind, bytes),
                    |outbox, stream| send_record_by(outbox, stream, Rank(target), kind, bytes),
                )
            },
        )
    }
}

/// Sends a record of `length` bytes that `filler` fills, called once with `context`, on this
/// thread, before this returns. It may not call the library. On an inline job, outside of its
/// handlers, a record that fits a run of `run_bytes` is filled in the queue itself; elsewhere in
/// memory that is made for it, and copied. Otherwise as `trihop_stream_send`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_reserve(
    stream: *const trihop_stream_t,
    target: u32,
    kind: u32,
    length: usize,
    filler: trihop_filler_t,
    context: *mut c_void,
) -> trihop_status_t {
    let call = |stream: &StreamOf| {
        let filler = filler.ok_or_else(|| Failure::argument("`filler` is a null pointer"))?;
        let fill = |bytes: &mut [u8]| {
            // SAFETY: the header says how it is called, and this is how.
            unsafe { filler(context, bytes.as_mut_ptr().cast(), bytes.len()) }
        };
        send_by!(stream, send_filled or send_filled(Rank(target), kind, length, fill))
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, call) }
}

/// Sends one item of the stream's size, which is copied. Otherwise as `trihop_stream_send`, inside
/// a handler too.
///
/// Fails on a bad rank, a stream of records, and a peer that is gone; inside a handler with
/// `TRIHOP_ERR_NO_MEMORY` as `trihop_stream_send` does.
/// Threads: any. There is no order between what different threads send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_push(
    stream: *const trihop_stream_t,
    target: u32,
    item: *const c_void,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed, and for one item that
    // nobody changes during the call.
    unsafe {
        with_bytes(stream, "item", item, item_bytes, |stream, item| {
            push_item(stream, Rank(target), item)
        })
    }
}

/// Sends an item as `trihop_stream_push` does.
#[inline]
pub(crate) fn push_item(stream: &StreamOf, target: Rank, item: &[u8]) -> Result<(), Failure> {
    send(
        stream,
        |stream| stream.push(target, item),
        |stream| stream.push(target, item),
        |outbox, stream| push_by(outbox, stream, target, item),
    )
}

/// An item of a handler: more of them need no call.
#[inline]
fn push_by(
    outbox: &mut UntypedOutbox<'_>,
    stream: &Untyped<'static>,
    target: Rank,
    item: &[u8],
) -> crate::Result<()> {
    // SAFETY: it is the one that `with_outbox` was given, which its caller drops.
    unsafe { outbox.push_on(stream, target, item) }
}

/// A record of a handler: more of them need no call.
#[inline]
fn send_record_by(
    outbox: &mut UntypedOutbox<'_>,
    stream: &Untyped<'static>,
    target: Rank,
    kind: u32,
    bytes: &[u8],
) -> crate::Result<()> {
    // SAFETY: as for an item.
    unsafe { outbox.send_on(stream, target, kind, bytes) }
}

/// Bytes of an item; 0 where the stream has records.
#[inline]
fn item_bytes(stream: &StreamOf) -> usize {
    either!(stream, stream => stream.item_bytes())
}

/// As `trihop_stream_push`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK`
/// and has taken nothing. Inside a handler of an inline job it is `trihop_stream_push`, which does
/// not wait there either.
///
/// Threads: any. It waits for the engine while another thread has it, never for room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_try_push(
    stream: *const trihop_stream_t,
    target: u32,
    item: *const c_void,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed, and for one item that
    // nobody changes during the call.
    unsafe {
        with_bytes(stream, "item", item, item_bytes, |stream, item| {
            send(
                stream,
                |stream| stream.try_push(Rank(target), item),
                |stream| stream.try_push(Rank(target), item),
                |outbox, stream| push_by(outbox, stream, Rank(target), item),
            )
        })
    }
}

/// Sends `count` items, one after the other in memory, each to the rank in its place of `targets`:
/// cheaper than one call for each, above all where several threads push at once. How many were
/// taken goes to `sent`, which may be null: `count` unless the call fails, and else all those
/// before the item that it has failed with. Otherwise as `trihop_stream_push`.
///
/// Where it gives way with `TRIHOP_ERR_WOULD_BLOCK`, go on behind those that were taken.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_push_many(
    stream: *const trihop_stream_t,
    targets: *const u32,
    items: *const c_void,
    count: usize,
    sent: *mut usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a place for a number.
    let mut sent = unsafe { sent.as_mut() };
    let mut tell = |so_many| sent.iter_mut().for_each(|sent| **sent = so_many);
    tell(0); // also where the arguments are refused
    let push = |stream: &StreamOf| {
        let taken = Cell::new(0);
        let keep = |(so_many, outcome)| {
            taken.set(so_many);
            outcome
        };
        let size = item_bytes(stream);
        let length = count.checked_mul(size).ok_or_else(|| {
            Failure::argument(format!(
                "{count} items of {size} bytes are more than memory can hold"
            ))
        })?;
        // SAFETY: the header asks for `count` targets and items that nobody changes during the
        // call.
        let (targets, items) = unsafe {
            (
                argument::slice(targets, count, "targets")?,
                argument::bytes(items, length, "items")?,
            )
        };
        let outcome = send(
            stream,
            |stream| keep(stream.push_many(targets, items)),
            |stream| keep(stream.push_many(targets, items)),
            |outbox, stream| keep(outbox.on(stream)?.push_many(targets, items)),
        );
        tell(taken.get());
        outcome
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, push) }
}

/// Broadcasts by a verb of the stream, or by the outbox.
macro_rules! broadcast_by {
    ($stream:ident, $kind:ident, $bytes:ident, $length:ident, $to:ident, $verb:ident) => {
        // SAFETY: as for `trihop_stream_send`.
        unsafe {
            with_bytes(
                $stream,
                "bytes",
                $bytes,
                |_| $length,
                |stream, bytes| {
                    let to = trihop_broadcast_t::parse($to)?;
                    send_by!(stream, $verb or broadcast($kind, bytes, to))
                },
            )
        }
    };
}

/// Sends a record, or an item of `length` bytes and kind 0, to all other ranks or to every rank, as
/// `to` says, one of `trihop_broadcast_t`: along the tree of the route, one copy to each node. A
/// record that is longer than a frame (16 KiB with few ranks) goes to one rank after the other.
/// Otherwise as `trihop_stream_send`; after a failure, some of the ranks may get it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_broadcast(
    stream: *const trihop_stream_t,
    kind: u32,
    bytes: *const c_void,
    length: usize,
    to: i32,
) -> trihop_status_t {
    broadcast_by!(stream, kind, bytes, length, to, broadcast)
}

/// As `trihop_stream_broadcast`, but where there is no room now it fails with
/// `TRIHOP_ERR_WOULD_BLOCK`, and no rank gets it. Inside a handler of an inline job it is
/// `trihop_stream_broadcast`, which does not wait there either.
///
/// Threads: as `trihop_stream_try_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_try_broadcast(
    stream: *const trihop_stream_t,
    kind: u32,
    bytes: *const c_void,
    length: usize,
    to: i32,
) -> trihop_status_t {
    broadcast_by!(stream, kind, bytes, length, to, try_broadcast)
}

/// So many contributors of the step that has begun have sent what they have to send. Once all of
/// this rank are done, or all of all ranks, sends of the program fail with `TRIHOP_ERR_MISUSE`
/// until the step is over, as this does without a step, or for more than there are (where those
/// of all ranks are counted, another rank may find that, and the job ends with
/// `TRIHOP_ERR_MISMATCH`). What handlers say before the step has begun on this rank counts in it.
/// That none is done, 0, may be said at any time.
///
/// The call makes a round of progress where it is the last of this rank's, and, where those of
/// all ranks are counted, if it is one of the first 16 of a step. Later ones are passed on by the
/// next call that makes progress; with threads, by the progress thread.
///
/// Threads: any, and inside handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_done(
    stream: *const trihop_stream_t,
    contributors: u64,
) -> trihop_status_t {
    let done = |stream: &StreamOf| send_by!(stream, done or done(contributors));
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, done) }
}
