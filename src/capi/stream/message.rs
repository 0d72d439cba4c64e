//! What handlers are called with, and how.

use std::ffi::c_void;

use super::trihop_stream_t;
use crate::capi::callback::Context;
use crate::{Arrival, Messages};

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
/// before the one that opens the stream has returned. Of a job with threads on a delivery thread, or
/// by a call that waits for the end of a step, of this stream or another one (a fence, a round, a
/// close), one call at a time, the first one after the handle was stored. It may block, but neither
/// for what the program does behind such a call, nor for a lock that the program keeps meanwhile.
/// Its senders then wait, and so do the other streams of the same thread: with the option
/// `own_thread` a stream has one of its own.
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
pub(super) struct Caller {
    pub(super) handler: unsafe extern "C" fn(*mut c_void, *const trihop_message_t),
    pub(super) context: Context,
    /// It is called for the records of a run at once.
    pub(super) takes_runs: bool,
    /// The stream's handle, as the caller knows it.
    pub(super) stream: Context,
    pub(super) rank: u32,
    pub(super) size: u32,
}

impl Caller {
    #[inline]
    pub(super) fn call(&self, arrival: Arrival<'_>) {
        self.call_of_run(arrival, std::ptr::null_mut());
    }

    /// With all records of a run: the first one stands for them.
    pub(super) fn call_with_run(&self, mut messages: Messages<'_>) {
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
/// 0 for any other message, where a pointer is null, and where both are the same.
/// Threads: the one that the handler was called on.
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
    // SAFETY: `Caller::call_with_run` has put the records there, which live as long as the call,
    // and only this function uses them.
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
