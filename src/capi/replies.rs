//! Requests and their replies.

use std::ffi::{c_char, c_void};

use super::argument;
use super::callback::Context;
use super::job::trihop_job_t;
use super::seat::{Either, Home, Homed};
use super::status::{Failure, guard, guard_or, trihop_status_t};
use crate::{Rank, UntypedReplies};

/// Requests of one size to any rank, each answered there by a function, whose replies, of one size
/// too, are pulled in the order of the requests: a look-up in a table that is spread over the ranks.
/// Only of inline jobs; none of its calls waits but the fence and the close.
///
/// ```c
/// while (asked < count || trihop_replies_outstanding(replies) > 0) {
///     while (asked < count && trihop_replies_ask(replies, owner[asked], &index[asked]) == TRIHOP_OK)
///         asked++;
///     while (trihop_replies_pull(replies, &value[pulled]) == TRIHOP_OK)
///         pulled++;
/// }
/// ```
///
/// Threads: that which has started the job.
pub struct trihop_replies_t {
    home: Home,
    replies: UntypedReplies<'static>,
}

impl Homed for trihop_replies_t {
    fn home(&self) -> Home {
        self.home
    }
}

/// Answers a request of `source`: fills `reply`, which is zeroed. Both are aligned to 8. It may not
/// call the library.
pub type trihop_answer_t = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        source: u32,
        request: *const c_void,
        reply: *mut c_void,
    ),
>;

/// Runs `call` on replies; what it gives says whether it could do anything now.
///
/// # Safety
/// `replies` is null or one that was not closed.
unsafe fn with(
    replies: *const trihop_replies_t,
    call: impl FnOnce(&UntypedReplies<'static>) -> Result<bool, Failure>,
) -> trihop_status_t {
    let mut did = false;
    let status = guard(|| {
        // SAFETY: as the caller promises.
        did = call(&unsafe { argument::handle(replies, "replies")? }.replies)?;
        Ok(())
    });
    match status {
        trihop_status_t::TRIHOP_OK if !did => trihop_status_t::TRIHOP_ERR_WOULD_BLOCK,
        status => status,
    }
}

/// Opens a stream for requests of `request_bytes` bytes and replies of `reply_bytes`, one at least.
/// Collective over all ranks, with the same sizes. `answer` is called with `context` for each request
/// that comes, inside of other calls. At most `most` requests of this rank are under way, or have
/// replies that were not pulled: 1 to 2^30, and memory for as many replies.
///
/// Fails with `TRIHOP_ERR_CONFIG` on a threaded job and on impossible sizes, with
/// `TRIHOP_ERR_TOO_LARGE` above `max_message_bytes`, with `TRIHOP_ERR_MISMATCH` where ranks have
/// different sizes or one of them has failed, and as `trihop_stream_open`.
/// Threads: that which has started the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_replies_open(
    job: *const trihop_job_t,
    name: *const c_char,
    request_bytes: usize,
    reply_bytes: usize,
    most: usize,
    answer: trihop_answer_t,
    context: *mut c_void,
    replies: *mut *mut trihop_replies_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(replies, "replies")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or a job that has not ended, and a text that ends with
        // NUL.
        let (job, name) = unsafe { (argument::handle(job, "job")?, argument::text(name, "name")?) };
        let answer = answer.ok_or_else(|| Failure::argument("`answer` is a null pointer"))?;
        let Either::Inline(job) = &job.job else {
            let why = "requests with replies are of inline jobs: start it with TRIHOP_INLINE";
            return Err(Failure::new(
                trihop_status_t::TRIHOP_ERR_CONFIG,
                why.to_owned(),
            ));
        };
        let context = Context::new(context);
        let call = move |source: Rank, request: &[u8], reply: &mut [u8]| {
            let (request, reply) = (request.as_ptr().cast(), reply.as_mut_ptr().cast());
            // SAFETY: the header says how it is called, and this is how.
            unsafe { answer(context.get(), source.0, request, reply) }
        };
        let sizes = (request_bytes, reply_bytes);
        let replies = UntypedReplies::open(job, name, most, sizes, call)?;
        *place = Box::into_raw(Box::new(trihop_replies_t {
            home: Home::here(),
            replies,
        }));
        Ok(())
    })
}

/// Asks a rank; the request is copied. Where as many requests as may be are under way, or there is no
/// room now, it fails with `TRIHOP_ERR_WOULD_BLOCK` and has asked nothing: pull, then ask again.
///
/// Threads: as `trihop_replies_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_replies_ask(
    replies: *const trihop_replies_t,
    target: u32,
    request: *const c_void,
) -> trihop_status_t {
    let ask = |replies: &UntypedReplies<'static>| {
        // SAFETY: the header asks for one request that nobody changes during the call.
        let request = unsafe { argument::bytes(request, replies.request_bytes(), "request")? };
        Ok(replies.ask(Rank(target), request)?)
    };
    // SAFETY: the header asks for null or replies that were not closed.
    unsafe { with(replies, ask) }
}

/// Copies the reply to the oldest request that has none yet to `reply`. Where it is not here, a round
/// of progress is made, and if that does not bring it the call returns `TRIHOP_ERR_WOULD_BLOCK`.
///
/// Fails with `TRIHOP_ERR_MISUSE` where a rank has sent a request or a reply of another size, or a
/// reply that nobody asked for.
/// Threads: as `trihop_replies_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_replies_pull(
    replies: *const trihop_replies_t,
    reply: *mut c_void,
) -> trihop_status_t {
    let pull = |replies: &UntypedReplies<'static>| {
        let bytes = replies.reply_bytes();
        // SAFETY: the header asks for room for a reply that nobody else uses.
        let place = unsafe { argument::slice_mut(reply.cast::<u8>(), bytes, "reply")? };
        let pulled = replies.pull(|reply| place.copy_from_slice(reply))?;
        Ok(pulled.is_some())
    };
    // SAFETY: the header asks for null or replies that were not closed.
    unsafe { with(replies, pull) }
}

/// How many requests have replies that were not pulled, or none yet; 0 for a null pointer.
///
/// Threads: as `trihop_replies_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_replies_outstanding(replies: *const trihop_replies_t) -> usize {
    if replies.is_null() {
        return 0;
    }
    guard_or(|| {
        // SAFETY: not null, so the header asks for replies that were not closed.
        Ok(unsafe { argument::handle(replies, "replies")? }
            .replies
            .outstanding())
    })
    .unwrap_or(0)
}

/// As `trihop_stream_fence`: afterwards all replies are here, to be pulled. Fails with
/// `TRIHOP_ERR_MISUSE` as `trihop_replies_pull`.
///
/// Threads: as `trihop_replies_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_replies_fence(replies: *const trihop_replies_t) -> trihop_status_t {
    let fence = |replies: &UntypedReplies<'static>| {
        replies.fence()?;
        Ok(true)
    };
    // SAFETY: the header asks for null or replies that were not closed.
    unsafe { with(replies, fence) }
}

/// Fences the stream of the requests, and closes it. Collective over all ranks. Replies that were
/// not pulled are given up. It is gone afterwards, whatever is returned, but where that is
/// `TRIHOP_ERR_NESTED` or `TRIHOP_ERR_MISUSE` (beside a fence of all streams, for instance): it may
/// be closed again then. Null is refused.
///
/// Threads: as `trihop_replies_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_replies_close(replies: *mut trihop_replies_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or replies that were not closed.
        let open = unsafe { argument::handle(replies, "replies")? };
        let outcome = open.replies.close();
        // SAFETY: made by `trihop_replies_open`; the header allows no other call on it.
        unsafe { argument::closed(replies, outcome) }
    })
}
