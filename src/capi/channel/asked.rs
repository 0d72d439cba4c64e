//! Calls on channels that are started, and tested or waited for later.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use super::poll::parse_poll;
use super::{
    NOTHING, Port, giving, parse_return, parse_timeout, trihop_channel_t, trihop_received_t,
};
use crate::capi::argument;
use crate::capi::seat::{Home, Homed};
use crate::capi::status::{Failure, guard, trihop_status_t};
use crate::channel::Received;
use crate::{Inline, Result, guest, over};

/// A call on a channel that was started and not waited for: a get, a poll or a send. It may be
/// tested, waited for and slept on, and is given back by `trihop_asked_free`: before its end it is
/// taken back so. It stays when the port that it was started by is freed. What a port may have
/// under way is bounded by its window.
///
/// ```c
/// trihop_channel_start_get(tasks, TRIHOP_NO_TIMEOUT, &asked);
/// do
///     compute();
/// while ((status = trihop_asked_test(asked, &is_over)) == TRIHOP_OK && !is_over);
/// if (status == TRIHOP_OK)
///     trihop_asked_received(asked, &task);
/// trihop_asked_free(asked);
/// ```
///
/// Threads: as `trihop_channel_t`, and one call at a time on one request; that of a guest is any
/// thread's, whatever its port does meanwhile.
pub struct trihop_asked_t {
    home: Home,
    request: Request,
    /// How it has ended, once the caller was told.
    ended: Option<Result<()>>,
    value: Option<u64>,
    message: Option<Received>,
}

impl Homed for trihop_asked_t {
    fn home(&self) -> Home {
        self.home
    }
}

/// A request of a rank, on either seat, or of a guest.
enum Of<T> {
    Threaded(over::Asked<T, over::Threaded>),
    Inline(over::Asked<T, Inline<'static>>),
    Guest(guest::Asked<T>),
}

enum Request {
    Get(Of<Received>),
    Poll(Of<u64>),
    Send(Of<()>),
}

/// What a request gives where it is done.
enum Given {
    Nothing,
    Value(u64),
    Message(Received),
}

impl From<()> for Given {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

impl From<u64> for Given {
    fn from(value: u64) -> Self {
        Self::Value(value)
    }
}

impl From<Received> for Given {
    fn from(message: Received) -> Self {
        Self::Message(message)
    }
}

/// Calls the method of the request, whatever it is.
macro_rules! each {
    ($request:expr, $asked:ident => $call:expr) => {
        match $request {
            Request::Get(of) => whosever!(of, $asked => $call),
            Request::Poll(of) => whosever!(of, $asked => $call),
            Request::Send(of) => whosever!(of, $asked => $call),
        }
    };
}

/// Calls the method of the request, whosever it is.
macro_rules! whosever {
    ($of:expr, $asked:ident => $call:expr) => {
        match $of {
            Of::Threaded($asked) => $call,
            Of::Inline($asked) => $call,
            Of::Guest($asked) => $call,
        }
    };
}

impl trihop_asked_t {
    /// Notes what a call has said of the request; whether it is over.
    fn note(&mut self, said: Result<Option<Given>>) -> Result<bool> {
        let given = match said {
            Ok(None) => return Ok(false),
            Ok(Some(given)) => Ok(given),
            // The call could not be made, or the job has failed.
            Err(error) if each!(&self.request, asked => asked.is_under_way()) => return Err(error),
            Err(error) => Err(error),
        };
        self.ended = Some(given.map(|given| match given {
            Given::Nothing => {}
            Given::Value(value) => self.value = Some(value),
            Given::Message(message) => self.message = Some(message),
        }));
        Ok(true)
    }

    /// How it has ended.
    fn outcome(&self) -> Result<()> {
        self.ended.clone().unwrap_or(Ok(()))
    }

    /// Refuses what a request has not, or no more.
    fn has<T>(what: Option<T>, name: &str) -> Result<T, Failure> {
        what.ok_or_else(|| {
            let why = format!(
                "the request has no {name}: it is not over, has failed, or is none that gives one, \
                 or it was taken before"
            );
            Failure::new(trihop_status_t::TRIHOP_ERR_MISUSE, why)
        })
    }
}

/// Starts a call on a port, whose request goes to `asked`.
///
/// # Safety
/// `channel` is null or a port that was not freed, `asked` null or a place for a pointer.
unsafe fn start(
    channel: *const trihop_channel_t,
    asked: *mut *mut trihop_asked_t,
    call: impl FnOnce(&trihop_channel_t) -> Result<Request, Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let place = unsafe { argument::place(asked, "asked")? };
        *place = null_mut();
        // SAFETY: as the caller promises.
        let channel = unsafe { argument::handle(channel, "channel")? };
        let request = call(channel)?;
        *place = Box::into_raw(Box::new(trihop_asked_t {
            home: channel.home,
            request,
            ended: None,
            value: None,
            message: None,
        }));
        Ok(())
    })
}

/// Runs `call` on a request.
///
/// # Safety
/// `asked` is null, or one that was not freed, which nobody else uses.
unsafe fn with(
    asked: *mut trihop_asked_t,
    call: impl FnOnce(&mut trihop_asked_t) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let asked = unsafe { argument::place(asked, "asked")? };
        asked.home.check("asked")?;
        call(asked)
    })
}

/// The call of the port, whosever it is.
macro_rules! started {
    ($channel:expr, $port:ident => $call:expr) => {
        match &$channel.channel {
            Port::Threaded($port) => Of::Threaded($call?),
            Port::Inline($port) => Of::Inline($call?),
            Port::Guest(guest) => {
                let mut $port = guest.port()?;
                Of::Guest($call?)
            }
        }
    };
}

/// Starts a get, as `trihop_channel_get`, and does not wait: `trihop_asked_test` and
/// `trihop_asked_wait` say when it is over, and `trihop_asked_received` gives the message. A guest's
/// waits for the server, which begins it behind all that the port has asked for before, and a test
/// of one that is over for the answer, with the message.
///
/// Fails with `TRIHOP_ERR_WOULD_BLOCK` where as many requests of the port wait as may.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_start_get(
    channel: *const trihop_channel_t,
    timeout_ns: i64,
    asked: *mut *mut trihop_asked_t,
) -> trihop_status_t {
    let get = |channel: &trihop_channel_t| {
        let timeout = parse_timeout(timeout_ns)?;
        let of = started!(channel, port => port.start_get(timeout));
        Ok(Request::Get(of))
    };
    // SAFETY: the header asks for null or a port that was not freed, and a place.
    unsafe { start(channel, asked, get) }
}

/// Starts a poll, as `trihop_channel_poll`, and does not wait; `trihop_asked_value` gives what that
/// says.
///
/// Fails with `TRIHOP_ERR_WOULD_BLOCK` where as many requests of the port wait as may, and with
/// `TRIHOP_ERR_MISUSE` for what channels of this kind do not know.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_start_poll(
    channel: *const trihop_channel_t,
    what: i32,
    timeout_ns: i64,
    asked: *mut *mut trihop_asked_t,
) -> trihop_status_t {
    let poll = |channel: &trihop_channel_t| {
        let timeout = parse_timeout(timeout_ns)?;
        let what = parse_poll(what)?;
        let of = started!(channel, port => port.start_poll(what, timeout));
        Ok(Request::Poll(of))
    };
    // SAFETY: the header asks for null or a port that was not freed, and a place.
    unsafe { start(channel, asked, poll) }
}

/// Starts a send, as `trihop_channel_send`, and does not wait: it is over when that would return.
/// The bytes are copied.
///
/// Fails with `TRIHOP_ERR_WOULD_BLOCK`, and nothing sent, where the port's window has no room, and
/// with `TRIHOP_ERR_TOO_LARGE` as `trihop_channel_send`.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_start_send(
    channel: *const trihop_channel_t,
    kind: u32,
    bytes: *const c_void,
    length: usize,
    when: i32,
    timeout_ns: i64,
    asked: *mut *mut trihop_asked_t,
) -> trihop_status_t {
    let send = |channel: &trihop_channel_t| {
        let timeout = parse_timeout(timeout_ns)?;
        // SAFETY: the header asks for `length` bytes that nobody changes during the call.
        let bytes = unsafe { argument::bytes(bytes, length, "bytes")? };
        let when = parse_return(when)?;
        let of = started!(channel, port => port.start_send(kind, bytes, when, timeout));
        Ok(Request::Send(of))
    };
    // SAFETY: the header asks for null or a port that was not freed, and a place.
    unsafe { start(channel, asked, send) }
}

/// Starts a send of a message whose memory is given away, as `trihop_channel_send_buffer`, and does
/// not wait: it is over when that would return.
///
/// Fails as `trihop_channel_start_send`: `message` has its bytes then.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_start_send_buffer(
    channel: *const trihop_channel_t,
    kind: u32,
    message: *mut trihop_received_t,
    when: i32,
    timeout_ns: i64,
    asked: *mut *mut trihop_asked_t,
) -> trihop_status_t {
    let send = |channel: &trihop_channel_t| {
        let timeout = parse_timeout(timeout_ns)?;
        let when = parse_return(when)?;
        // SAFETY: the header asks for a message of ours that nobody else uses.
        unsafe {
            giving(message, |buffer| {
                let start =
                    started!(channel, port => port.start_send_buffer(kind, buffer, when, timeout));
                Ok(Request::Send(start))
            })
        }
    };
    // SAFETY: the header asks for null or a port that was not freed, and a place.
    unsafe { start(channel, asked, send) }
}

/// Makes one round of progress, and stores 1 where the request is over, else 0. Where it is over
/// the status is that of the call that waits: `TRIHOP_ERR_TIMED_OUT`, `TRIHOP_ERR_CLOSED` and its
/// like too, and the same however often it is asked for. Other failures leave 0: the job has
/// failed, or it is `TRIHOP_ERR_NESTED` inside a handler of an inline job.
///
/// Threads: as `trihop_asked_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_asked_test(
    asked: *mut trihop_asked_t,
    is_over: *mut c_int,
) -> trihop_status_t {
    let test = |asked: &mut trihop_asked_t| {
        // SAFETY: the header asks for a place for a number.
        let place = unsafe { argument::place(is_over, "is_over")? };
        *place = 0;
        if asked.ended.is_none() {
            let said = each!(&mut asked.request, asked => {
                asked.test().map(|given| given.map(Given::from))
            });
            asked.note(said)?;
        }
        *place = c_int::from(asked.ended.is_some());
        Ok(asked.outcome()?)
    };
    // SAFETY: the header asks for null or a request that was not freed, one call at a time.
    unsafe { with(asked, test) }
}

/// Waits until the request is over; the status is that of the call that waits at once, the same
/// however often it is asked for. Not inside a handler.
///
/// Threads: as `trihop_asked_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_asked_wait(asked: *mut trihop_asked_t) -> trihop_status_t {
    let wait = |asked: &mut trihop_asked_t| {
        if asked.ended.is_none() {
            let said = each!(&mut asked.request, asked => asked.wait_mut().map(Given::from));
            asked.note(said.map(Some))?;
        }
        Ok(asked.outcome()?)
    };
    // SAFETY: the header asks for null or a request that was not freed, one call at a time.
    unsafe { with(asked, wait) }
}

/// The message of a get that is over, once; give its memory back by `trihop_received_free`. It is
/// filled with zeros where the call fails: `TRIHOP_ERR_MISUSE` where there is none, or no more.
///
/// Threads: as `trihop_asked_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_asked_received(
    asked: *mut trihop_asked_t,
    received: *mut trihop_received_t,
) -> trihop_status_t {
    let take = |asked: &mut trihop_asked_t| {
        // SAFETY: the header asks for a place that nobody else uses.
        let place = unsafe { argument::place(received, "received")? };
        *place = NOTHING;
        let message = trihop_asked_t::has(asked.message.take(), "message")?;
        *place = trihop_received_t::of(message);
        Ok(())
    };
    // SAFETY: the header asks for null or a request that was not freed, one call at a time.
    unsafe { with(asked, take) }
}

/// What a poll that is over says; `TRIHOP_ERR_MISUSE` of any other request.
///
/// Threads: as `trihop_asked_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_asked_value(
    asked: *mut trihop_asked_t,
    value: *mut u64,
) -> trihop_status_t {
    let ask = |asked: &mut trihop_asked_t| {
        // SAFETY: the header asks for a place for a number.
        let place = unsafe { argument::place(value, "value")? };
        *place = trihop_asked_t::has(asked.value, "value")?;
        Ok(())
    };
    // SAFETY: the header asks for null or a request that was not freed, one call at a time.
    unsafe { with(asked, ask) }
}

/// Gives a file descriptor for `poll`, `epoll` and their like, which is readable once the request
/// has ended, or the job has failed: `trihop_asked_test` then says how. It is the request's: one
/// for each, made by the first call, closed by `trihop_asked_free`, and neither to be read, written
/// nor closed.
///
/// Of a job with threads it becomes readable by itself. Of an inline job it does so only inside
/// calls that make progress: whoever sleeps on it there calls `trihop_poll` now and then. Where the
/// request has a timeout, who sleeps on it wakes when that is over, and tests: the owner may have
/// no clock that runs. Of a guest it becomes readable by itself, at a timeout too, and where the
/// server is gone.
/// Threads: as `trihop_asked_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_asked_event(
    asked: *mut trihop_asked_t,
    descriptor: *mut i32,
) -> trihop_status_t {
    let event = |asked: &mut trihop_asked_t| {
        // SAFETY: the header asks for a place for a number.
        let place = unsafe { argument::place(descriptor, "descriptor")? };
        *place = -1;
        *place = each!(&mut asked.request, asked => asked.event()?.as_raw_fd());
        Ok(())
    };
    // SAFETY: the header asks for null or a request that was not freed, one call at a time.
    unsafe { with(asked, event) }
}

/// Gives a request back. One that is not over is taken back: a message that comes all the same goes
/// back to its place in the channel, what was acquired goes back too, and what was sent may be sent
/// all the same. A message that was not taken by `trihop_asked_received` is dropped. Null is fine.
///
/// Threads: as `trihop_asked_t`, and no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_asked_free(asked: *mut trihop_asked_t) -> trihop_status_t {
    guard(|| {
        if !asked.is_null() {
            // SAFETY: not null, so the header asks for a request that was not freed.
            unsafe { argument::handle(asked, "asked")? };
            // SAFETY: made by `start`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(asked) });
        }
        Ok(())
    })
}
