//! Streams, of byte records or of items of one size.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use super::argument;
use super::callback::{Context, Gate};
use super::callback::{send_by_outbox, with_outbox};
use super::details::{self, trihop_details_t};
use super::dump;
use super::job::{JobOf, trihop_job_t};
use super::options::trihop_options_t;
use super::seat::{Either, either};
use super::stats::{self, trihop_stats_t};
use super::status::{Failure, guard, trihop_status_t};
use crate::{
    Arrival, BroadcastTo, Error, Messages, Queues, Rank, StreamOptions, Untyped, UntypedOutbox,
    threaded,
};

/// A stream between all ranks of a job: of byte records, each of its own length and with a kind, or
/// of items of one size, of which a run has one header, so that small ones cost less.
///
/// Threads: except where a function says otherwise, any thread may call at any time, several at
/// once too, and so may the handler of any stream; but of an inline job as `trihop_job_t` says.
pub struct trihop_stream_t {
    stream: StreamOf,
    rank: u32,
    size: u32,
}

/// A stream over either seat.
type StreamOf = Either<threaded::Untyped, Untyped<'static>>;

/// Sends on a stream: inside a handler of an inline job by the handler's outbox, which spills what
/// finds no room.
#[inline(always)] // part of every send
fn send(
    stream: &StreamOf,
    by_threaded: impl FnOnce(&threaded::Untyped) -> crate::Result<()>,
    by_inline: impl FnOnce(&Untyped<'static>) -> crate::Result<()>,
    by_outbox: impl FnOnce(&mut UntypedOutbox<'_>) -> crate::Result<()>,
) -> Result<(), Failure> {
    let stream = match stream {
        Either::Threaded(stream) => return Ok(by_threaded(stream)?),
        Either::Inline(stream) => stream,
    };
    match by_inline(stream) {
        Ok(()) => Ok(()),
        Err(Error::Nested(call)) => {
            let sent = send_by_outbox(|outbox| by_outbox(&mut outbox.on(stream)?));
            Ok(sent.unwrap_or(Err(Error::Nested(call)))?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends by a verb of the stream, or by one of the outbox, with the same arguments.
macro_rules! send_by {
    ($stream:expr, $verb:ident or $of_outbox:ident($($argument:expr),+)) => {
        send(
            $stream,
            |stream| stream.$verb($($argument),+),
            |stream| stream.$verb($($argument),+),
            |outbox| outbox.$of_outbox($($argument),+),
        )
    };
}

/// What a handler is called with: a record, or the items of one source that arrived one after the
/// other. Later versions add fields at the end.
#[repr(C)]
pub struct trihop_message_t {
    /// Stream that it came by. A handler may answer on it.
    pub stream: *const trihop_stream_t,
    /// Rank that sent it.
    pub source: u32,
    /// Of a record what its sender gave with it; 0 with items.
    pub kind: u32,
    /// This rank.
    pub rank: u32,
    /// Ranks of the job.
    pub size: u32,
    /// How many items lie in `bytes`, one after the other; 1 for a record.
    pub count: usize,
    /// Bytes of the record, or of all the items.
    pub length: usize,
    /// Valid during the call only, and never null. A record is aligned to 8 bytes, and so are items
    /// where their size is a multiple of 8.
    pub bytes: *const c_void,
    /// The library's, for `trihop_message_next`.
    pub run: *mut c_void,
}

/// Called for every record, or for every run of items, that arrives, with the `context` that the
/// stream was opened with.
///
/// Threads: of an inline job in calls that make progress, on the thread that makes them, and not
/// before the one that opens the stream has returned. Of a job with threads on a delivery thread,
/// one call at a time, the first one after the handle was stored; it may block, and its senders
/// then wait, and so do the other streams of the same thread: with the option `own_thread` a stream
/// has one of its own.
///
/// It may send on any stream of the job, its own one too, to any rank, any number of times: see
/// `trihop_stream_send`. It may not wait for others: no flush, fence, collective, open or close. It
/// must return: no exception and no longjmp across it.
pub type trihop_handler_t =
    Option<unsafe extern "C" fn(context: *mut c_void, message: *const trihop_message_t)>;

/// Fills the `length` zeroed bytes of a record in place: see `trihop_stream_reserve`.
pub type trihop_filler_t =
    Option<unsafe extern "C" fn(context: *mut c_void, bytes: *mut c_void, length: usize)>;

/// What calls a function of the caller's for what has arrived.
#[derive(Clone, Copy)]
struct Caller {
    handler: unsafe extern "C" fn(*mut c_void, *const trihop_message_t),
    context: Context,
    /// It is called for the records of a run at once.
    takes_runs: bool,
    /// The stream's handle, as the caller knows it.
    stream: Context,
    rank: u32,
    size: u32,
}

impl Caller {
    #[inline]
    fn call(&self, arrival: Arrival<'_>) {
        self.call_of_run(arrival, std::ptr::null_mut());
    }

    /// With all records of a run: the first one stands for them.
    fn call_with_run(&self, mut messages: Messages<'_>) {
        if let Some(first) = messages.clone().next() {
            let arrival = Arrival {
                source: first.source,
                kind: first.kind,
                count: messages.len(),
                bytes: first.bytes,
            };
            self.call_of_run(arrival, &raw mut messages);
        }
    }

    #[inline]
    fn call_of_run(&self, arrival: Arrival<'_>, run: *mut Messages<'_>) {
        let message = trihop_message_t {
            stream: self.stream.get().cast(),
            source: arrival.source.0,
            kind: arrival.kind,
            rank: self.rank,
            size: self.size,
            count: arrival.count,
            length: arrival.bytes.len(),
            bytes: arrival.bytes.as_ptr().cast(),
            run: run.cast(),
        };
        // SAFETY: the header says how a handler is called, and this is how.
        unsafe { (self.handler)(self.context.get(), &message) }
    }
}

/// Which queues a flush empties.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_queues_t {
    /// What this rank sent: until the next hop has taken it, or it is in a remote queue (which is
    /// where a representative's own sends go).
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

/// Opens a stream of items of `item_bytes` bytes, or of byte records where that is 0. Collective
/// over all ranks: the same names in the same order, with the same size and options. `options` null
/// stands for those of the job. `context` is handed to `handler`.
///
/// Where `handler` is null, what arrives waits for `trihop_stream_take`, up to `deliverq_max`; then
/// its senders wait. Calls on such a stream that wait (sends, flushes, fences, barriers, its close)
/// give way with `TRIHOP_ERR_WOULD_BLOCK` where only taking makes room: take, and call again.
///
/// An item has at most 16,320 bytes, and less where a quarter of a lane less 64 bytes is less
/// (4,032 with 64 ranks on a node), or half of a link's part of what is for batches (about 4,000
/// with 500 links), both shares of `memory_bytes`. What is longer is sent as a record.
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

/// Stores the next record of `run`, which a handler was called with that `trihop_stream_open_runs`
/// has installed, in `record`; 0, with nothing stored, where there is none left. It begins with the
/// first one, and goes through them once:
///
/// ```c
/// trihop_message_t record;
/// while (trihop_message_next(run, &record))
///     use(record.kind, record.bytes, record.length);
/// ```
///
/// 0 for any other message, where a pointer is null, and where both are the same. Threads: the one that the handler was
/// called on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_message_next(
    run: *const trihop_message_t,
    record: *mut trihop_message_t,
) -> i32 {
    if std::ptr::eq(run, record) {
        return 0; // it would be gone with the first record
    }
    // SAFETY: the header asks for null or the message of a call that has not returned, and for null
    // or a place for another message.
    let (run, record) = unsafe { (run.as_ref(), record.as_mut()) };
    let Some((run, record)) = run.zip(record) else {
        return 0;
    };
    // SAFETY: `Caller::call_with_run` has put the records there, which live as long as the call, and
    // only this function uses them.
    let Some(next) = unsafe { run.run.cast::<Messages<'_>>().as_mut() }.and_then(Iterator::next)
    else {
        return 0;
    };
    *record = trihop_message_t {
        source: next.source.0,
        kind: next.kind,
        count: 1,
        length: next.bytes.len(),
        bytes: next.bytes.as_ptr().cast(),
        run: std::ptr::null_mut(),
        ..*run
    };
    1
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
    let (job, name) = unsafe {
        (
            argument::reference(job, "job")?,
            argument::text(name, "name")?,
        )
    };
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
                    .write(trihop_stream_t { stream, rank, size })
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

/// Runs `call` on the stream.
///
/// # Safety
/// `stream` is null or a stream that was not closed.
#[inline]
unsafe fn with(
    stream: *const trihop_stream_t,
    call: impl FnOnce(&StreamOf) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let stream = unsafe { argument::reference(stream, "stream")? };
        call(&stream.stream)
    })
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
            |stream, bytes| send_by!(stream, send or send(Rank(target), kind, bytes)),
        )
    }
}

/// As `trihop_stream_send`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK`
/// and has taken nothing. Inside a handler of an inline job it is `trihop_stream_send`, which does
/// not wait there either.
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
            |stream, bytes| send_by!(stream, try_send or send(Rank(target), kind, bytes)),
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
        with_bytes(
            stream,
            "item",
            item,
            item_bytes,
            |stream, item| send_by!(stream, push or push(Rank(target), item)),
        )
    }
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
        with_bytes(
            stream,
            "item",
            item,
            item_bytes,
            |stream, item| send_by!(stream, try_push or push(Rank(target), item)),
        )
    }
}

/// Sends `count` items, one after the other in memory, each to the rank in its place of `targets`:
/// cheaper than one call for each. How many were taken goes to `sent`, which may be null: `count`
/// unless the call fails. Otherwise as `trihop_stream_push`.
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
            |outbox| keep(outbox.push_many(targets, items)),
        );
        if !sent.is_null() {
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(sent, "sent")? } = taken.get();
        }
        outcome
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, push) }
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
    // SAFETY: as for `trihop_stream_send`.
    unsafe {
        with_bytes(
            stream,
            "bytes",
            bytes,
            |_| length,
            |stream, bytes| {
                let to = trihop_broadcast_t::parse(to)?;
                send_by!(stream, broadcast or broadcast(kind, bytes, to))
            },
        )
    }
}

/// Makes a round of progress, then hands all that waits to `taker`, called with `context` as a
/// handler is. How many records or items goes to `count`, which may be null. For streams that were
/// opened without a handler.
///
/// `taker` may send. Of an inline job that waits for no room there: it fails with
/// `TRIHOP_ERR_WOULD_BLOCK` instead, with nothing taken. What `taker` cannot send it keeps, and
/// sends after this has returned.
/// Threads: any; `taker` is called on the thread that calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_take(
    stream: *const trihop_stream_t,
    taker: trihop_handler_t,
    context: *mut c_void,
    count: *mut u64,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a stream that was not closed.
        let open = unsafe { argument::reference(stream, "stream")? };
        let caller = Caller {
            handler: taker.ok_or_else(|| Failure::argument("`taker` is a null pointer"))?,
            context: Context::new(context),
            takes_runs: false,
            stream: Context::new(stream.cast_mut().cast()),
            rank: open.rank,
            size: open.size,
        };
        let taken = either!(&open.stream, stream => stream.take(|arrival| caller.call(arrival)))?;
        if !count.is_null() {
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(count, "count")? } = taken;
        }
        Ok(())
    })
}

/// Waits until this rank's queues of one stage, of `trihop_queues_t`, have passed on what was in
/// them. Not inside a handler.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_flush(
    stream: *const trihop_stream_t,
    queues: i32,
) -> trihop_status_t {
    let flush = |stream: &StreamOf| {
        let queues = trihop_queues_t::parse(queues)?;
        Ok(either!(stream, stream => stream.flush(queues))?)
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, flush) }
}

/// Returns on every rank when all that any rank sent before, and all that handlers sent because of
/// it, has been handled. Collective over all ranks; not inside a handler.
///
/// Threads: any, one fence of a stream at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_fence(stream: *const trihop_stream_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe {
        with(stream, |stream| {
            Ok(either!(stream, stream => stream.fence())?)
        })
    }
}

/// As `trihop_barrier`, of the job that the stream belongs to.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_barrier(stream: *const trihop_stream_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe {
        with(stream, |stream| {
            Ok(either!(stream, stream => stream.barrier())?)
        })
    }
}

/// Fills `counters` with what the stream has done on this rank. `size` is `sizeof(trihop_stats_t)`
/// as the caller knows it.
///
/// Threads: any. Fails with `TRIHOP_ERR_WOULD_BLOCK` where the engine is in use and does not come
/// free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_stats(
    stream: *const trihop_stream_t,
    counters: *mut trihop_stats_t,
    size: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or `size` bytes that nobody else uses.
    let give =
        |stream: &StreamOf| unsafe { stats::give(either!(stream, s => s.stats()), counters, size) };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, give) }
}

/// Writes what the stream has done on this rank as a JSON object that ends with NUL, and its length
/// without that. Where `capacity` is too small (`text` may be null where it is 0), the call fails
/// with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores the length.
///
/// Threads: as `trihop_stream_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_stats_json(
    stream: *const trihop_stream_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
    let give = |stream: &StreamOf| unsafe {
        stats::give_json(either!(stream, s => s.stats()), text, capacity, length)
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, give) }
}

/// Stores what the stream and each of its queues have done on this rank until now, to be read with
/// `trihop_details_stage` and the like, and freed with `trihop_details_free`.
///
/// Threads: as `trihop_stream_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_details(
    stream: *const trihop_stream_t,
    details: *mut *mut trihop_details_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a place for a pointer.
    let give = |stream: &StreamOf| unsafe {
        details::give(either!(stream, s => s.detailed_stats()), details)
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, give) }
}

/// As `trihop_dump`, of this stream alone and without lines of the log.
///
/// Threads: as `trihop_dump`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_dump(
    stream: *const trihop_stream_t,
    descriptor: c_int,
) -> trihop_status_t {
    let dump = |stream: &StreamOf| {
        dump::to_descriptor(descriptor, |writer| either!(stream, s => s.dump(writer)))
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, dump) }
}

/// Fences the stream and closes it. Collective over all ranks, unless the job has ended. The
/// handler is not called any more once this has returned. What still waits for `trihop_stream_take`
/// is given up; the log says how much.
///
/// The stream is gone afterwards, whatever is returned, with two exceptions: inside a handler the
/// call is refused with `TRIHOP_ERR_NESTED`; and where it gives way with `TRIHOP_ERR_WOULD_BLOCK`
/// (a stream without a handler, see `trihop_stream_open`), take what waits and close it again, with
/// nothing but that in between: a fence would be the others' close.
/// Threads: any, but no other call on the stream may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_close(stream: *mut trihop_stream_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a stream that was not closed.
        let open = unsafe { argument::reference(stream, "stream")? };
        let outcome = either!(&open.stream, stream => stream.clone().shutdown());
        if !matches!(outcome, Err(Error::Nested(_) | Error::WouldBlock)) {
            // SAFETY: made by `trihop_stream_open`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(stream) });
        }
        match outcome {
            // The job has ended, and with it the stream.
            Err(Error::Closed(_)) => Ok(()),
            outcome => Ok(outcome?),
        }
    })
}
