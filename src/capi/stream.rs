//! Streams, of byte records or of items of one size.

pub mod message;
pub mod open;
pub mod send;
pub mod step;

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use super::argument;
use super::callback::Context;
use super::details::{self, trihop_details_t};
use super::dump;
use super::seat::{Either, Home, Homed, either};
use super::stats::{self, trihop_stats_t};
use super::status::{Failure, guard, trihop_status_t};
use crate::{Contributors, End, PushWindow, Queues, Untyped, threaded};
use message::{Caller, trihop_handler_t};

/// A stream between all ranks of a job: of byte records, each of its own length and with a kind, or
/// of items of one size, of which a run has one header, so that small ones cost less.
///
/// Threads: except where a function says otherwise, any thread may call at any time, several at
/// once too, and so may the handler of any stream; but of an inline job as `trihop_job_t` says.
// Hidden from cbindgen, which would write the fields down: programs know the first only, from
// windows.h.
#[cfg_attr(all(), repr(C))]
pub struct trihop_stream_t {
    push: *const PushWindow,
    home: Home,
    stream: StreamOf,
    rank: u32,
    size: u32,
}

/// What `windows.h` says.
const _: () = assert!(offset_of!(trihop_stream_t, push) == 0);

impl Homed for trihop_stream_t {
    fn home(&self) -> Home {
        self.home
    }
}

impl trihop_stream_t {
    fn new(stream: StreamOf, rank: u32, size: u32) -> Self {
        Self {
            push: either!(&stream, stream => stream.window()),
            home: Home::of(&stream),
            stream,
            rank,
            size,
        }
    }

    pub(crate) fn of(&self) -> &StreamOf {
        &self.stream
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }
}

/// A stream over either seat.
pub(crate) type StreamOf = Either<threaded::Untyped, Untyped<'static>>;

/// Which queues a flush empties.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_queues_t {
    /// What this rank sent: until the next hop has taken it, or it is in a remote queue (which is
    /// where a representative's own sends go).
    TRIHOP_ORIGIN_QUEUES = 0,
    /// Batches to other nodes: until the representatives there have taken them. On grids with several
    /// stages between the first and the last those of all of them: so that all have passed, all ranks
    /// flush, and wait for each other, once for each of these stages.
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

/// How the ranks find out that a step of a stream is over: all call the same.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_end_t {
    /// As `trihop_stream_round`.
    TRIHOP_ROUND = 0,
    /// As `trihop_stream_fence`.
    TRIHOP_FENCE = 1,
}

impl trihop_end_t {
    fn parse(number: i32) -> Result<End, Failure> {
        [
            (Self::TRIHOP_ROUND, End::Round),
            (Self::TRIHOP_FENCE, End::Fence),
        ]
        .into_iter()
        .find_map(|(known, end)| (known as i32 == number).then_some(end))
        .ok_or_else(|| Failure::argument(format!("{number} is none of trihop_end_t")))
    }
}

/// Whose contributors end a step.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_contributors_t {
    /// Those of this rank: other ranks have their own, and a rank with none is done at once.
    TRIHOP_LOCAL_CONTRIBUTORS = 0,
    /// Those of all ranks together, wherever they are: each rank says the same number.
    TRIHOP_ALL_CONTRIBUTORS = 1,
}

impl trihop_contributors_t {
    pub(crate) fn parse(number: i32, count: u64) -> Result<Contributors, Failure> {
        [
            (Self::TRIHOP_LOCAL_CONTRIBUTORS, Contributors::Local(count)),
            (Self::TRIHOP_ALL_CONTRIBUTORS, Contributors::All(count)),
        ]
        .into_iter()
        .find_map(|(known, of)| (known as i32 == number).then_some(of))
        .ok_or_else(|| Failure::argument(format!("{number} is none of trihop_contributors_t")))
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
        let stream = unsafe { argument::handle(stream, "stream")? };
        call(&stream.stream)
    })
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
        let open = unsafe { argument::handle(stream, "stream")? };
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

/// Returns on every rank when all that any rank sent before has been handled; nothing that a rank
/// sends on the stream after its own call is handled earlier, on another stream it may be. Cheaper
/// than a fence, for programs in which each rank sends and then all wait. Handlers do not send in
/// such a program, nor other threads meanwhile: use a fence where they do. Collective over all
/// ranks; not inside a handler.
///
/// Threads: as `trihop_stream_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_round(stream: *const trihop_stream_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe {
        with(stream, |stream| {
            Ok(either!(stream, stream => stream.round())?)
        })
    }
}

/// Starts a fence or a round, of `trihop_end_t`, and does not wait: `trihop_stream_test` and
/// `trihop_stream_wait` say when it is over. Until then only handlers send on the stream: a send,
/// flush or other end of the program's fails with `TRIHOP_ERR_MISUSE`. Collective as these; on the
/// inline seat it moves on in the calls that make progress. Not inside a handler.
///
/// Threads: as `trihop_stream_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_start(
    stream: *const trihop_stream_t,
    end: i32,
) -> trihop_status_t {
    let start = |stream: &StreamOf| {
        let end = trihop_end_t::parse(end)?;
        Ok(either!(stream, stream => stream.start(end))?)
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, start) }
}

/// Begins a step that its contributors end, and does not wait. A contributor is whatever the
/// program likes: a thread, an object, a task. Each sends, and `trihop_stream_done` is called for
/// it once it has sent what it has to send; handlers send too, and may do that. The step is over
/// on all ranks when all contributors are done and all that was sent is handled, also what
/// handlers sent because of it: `trihop_stream_test` and `trihop_stream_wait` say when. There are
/// `count` contributors, of this rank or of all ranks, as `of` says (of `trihop_contributors_t`).
/// Collective: each rank begins as many steps, in the same order as other ends. Not inside a
/// handler.
///
/// Threads: as `trihop_stream_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_begin_step(
    stream: *const trihop_stream_t,
    of: i32,
    count: u64,
) -> trihop_status_t {
    let begin = |stream: &StreamOf| {
        let of = trihop_contributors_t::parse(of, count)?;
        either!(stream, stream => stream.begin_step(of).map(drop))?;
        Ok(())
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, begin) }
}

/// Makes one round of progress, and stores 1 where what was started is over, else 0. That it is
/// over is said once; without a start it fails with `TRIHOP_ERR_MISUSE`. Not inside a handler.
///
/// Threads: as `trihop_stream_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_test(
    stream: *const trihop_stream_t,
    is_over: *mut c_int,
) -> trihop_status_t {
    let test = |stream: &StreamOf| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(is_over, "is_over")? };
        *place = either!(stream, stream => stream.test())?.into();
        Ok(())
    };
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe { with(stream, test) }
}

/// Waits until what was started is over; without a start it fails with `TRIHOP_ERR_MISUSE`. Not
/// inside a handler.
///
/// Threads: as `trihop_stream_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_wait(stream: *const trihop_stream_t) -> trihop_status_t {
    // SAFETY: the header asks for null or a stream that was not closed.
    unsafe {
        with(stream, |stream| {
            Ok(either!(stream, stream => stream.wait())?)
        })
    }
}

/// As `trihop_barrier`, of the job that the stream belongs to. Unlike that it gives way with
/// `TRIHOP_ERR_WOULD_BLOCK`, as `trihop_stream_fence` does.
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
/// is given up; how much is said.
///
/// The stream is gone afterwards, whatever is returned, with three exceptions: inside a handler
/// the call is refused with `TRIHOP_ERR_NESTED`; where contributors of this rank are not done in
/// a step, or a fence of the job is under way, with `TRIHOP_ERR_MISUSE`; and where it gives way
/// with `TRIHOP_ERR_WOULD_BLOCK` (a stream without a handler, see `trihop_stream_open`), take what
/// waits and close it again, with nothing but that in between: a fence would be the others' close.
/// Threads: any, but no other call on the stream may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_stream_close(stream: *mut trihop_stream_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a stream that was not closed.
        let open = unsafe { argument::handle(stream, "stream")? };
        let outcome = either!(&open.stream, stream => stream.clone().shutdown());
        // SAFETY: made by `trihop_stream_open`; the header allows no other call on it.
        unsafe { argument::closed(stream, outcome) }
    })
}
