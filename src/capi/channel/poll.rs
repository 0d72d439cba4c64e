//! What a C program polls channels for, and what it polls them with others by.

use std::os::fd::AsRawFd;

use super::{Port, ask_port, call_port, parse_timeout, trihop_channel_t, with};
use crate::capi::argument;
use crate::capi::status::{Failure, trihop_status_t};
use crate::channel::{ChannelKind, Poll};

/// What a channel is.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_channel_kind_t {
    /// A bounded queue of messages.
    TRIHOP_CHANNEL_MESSAGES = 0,
    /// A number that is taken from and given back to: `trihop_channel_create_semaphore`.
    TRIHOP_CHANNEL_SEMAPHORE = 1,
    /// Where so many wait for each other: `trihop_channel_create_barrier`.
    TRIHOP_CHANNEL_BARRIER = 2,
}

/// What `trihop_channel_poll` waits for, asks, or does. Each is of one kind of channel, and
/// `TRIHOP_POLL_CLOSED` of all: others are `TRIHOP_ERR_MISUSE`.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_poll_t {
    /// Until there is a message; how many there are.
    TRIHOP_POLL_IN = 0,
    /// Until there is room for a message of one byte; for how many messages.
    TRIHOP_POLL_OUT = 1,
    /// Until one of both: 1 for a message, 2 for room, 3 for both.
    TRIHOP_POLL_IN_OR_OUT = 2,
    /// Until there is no message, and no send waits; 0.
    TRIHOP_POLL_EMPTY = 3,
    /// Until there is no room for a message; how many messages there are.
    TRIHOP_POLL_FULL = 4,
    /// Until the channel is closed; how many messages are left.
    TRIHOP_POLL_CLOSED = 5,
    /// How many messages there are, at once.
    TRIHOP_POLL_SIZE = 6,
    /// How many messages it may hold, at once.
    TRIHOP_POLL_CAPACITY = 7,
    /// Of a semaphore, P: until its value is above 0, and takes one from it; what is left.
    TRIHOP_POLL_ACQUIRE = 8,
    /// Of a semaphore, V: adds one to its value, at once; what that is before anybody who waits
    /// takes from it. `TRIHOP_ERR_MISUSE` where it is the most that the semaphore may be.
    TRIHOP_POLL_RELEASE = 9,
    /// Of a semaphore, Z: until its value is 0; 0.
    TRIHOP_POLL_ZERO = 10,
    /// Of a semaphore: its value, at once.
    TRIHOP_POLL_VALUE = 11,
    /// Of a barrier: until as many calls have come as it has parties, this one among them; how many
    /// came before this one, so that exactly one has 0. It may be used again at once. A call whose
    /// time is over has not come.
    TRIHOP_POLL_ARRIVE = 12,
    /// Of a barrier: breaks it, at once; how many waited. These, and who comes from now on, get
    /// `TRIHOP_ERR_BROKEN`.
    TRIHOP_POLL_ABORT = 13,
    /// Of a barrier: makes it whole and empty, at once; how many waited. These get
    /// `TRIHOP_ERR_BROKEN`.
    TRIHOP_POLL_RESET = 14,
    /// Of a barrier: how many wait in it, at once.
    TRIHOP_POLL_WAITING = 15,
    /// Of a barrier: 1 where it is broken and 0 where not, at once.
    TRIHOP_POLL_BROKEN = 16,
    /// Of a semaphore: until its value is above 0, of which it takes nothing; the value.
    TRIHOP_POLL_AVAILABLE = 17,
    /// Of a barrier: until all of its parties but one wait in it; how many wait.
    /// `TRIHOP_ERR_BROKEN` where it is broken.
    TRIHOP_POLL_ONE_MISSING = 18,
    /// How many gets, peeks and pops wait, at once.
    TRIHOP_POLL_RECEIVERS = 19,
}

pub(super) fn parse_poll(what: i32) -> Result<Poll, Failure> {
    Ok(match what {
        0 => Poll::In,
        1 => Poll::Out,
        2 => Poll::InOrOut,
        3 => Poll::Empty,
        4 => Poll::Full,
        5 => Poll::Closed,
        6 => Poll::Size,
        7 => Poll::Capacity,
        8 => Poll::Acquire,
        9 => Poll::Release,
        10 => Poll::Zero,
        11 => Poll::Value,
        12 => Poll::Arrive,
        13 => Poll::Abort,
        14 => Poll::Reset,
        15 => Poll::Waiting,
        16 => Poll::Broken,
        17 => Poll::Available,
        18 => Poll::OneMissing,
        19 => Poll::Receivers,
        _ => return Err(Failure::argument(format!("{what} is no trihop_poll_t"))),
    })
}

/// Waits until `what`, of `trihop_poll_t`, holds, asks for a number, or uses a semaphore or a
/// barrier; `value` is set to what that says, and may be null. `timeout_ns` as of
/// `trihop_channel_send`.
///
/// Fails with `TRIHOP_ERR_WOULD_BLOCK` and `TRIHOP_ERR_TIMED_OUT` where it does not hold, with
/// nothing done, with `TRIHOP_ERR_CLOSED` where it never will, with `TRIHOP_ERR_BROKEN` of a barrier
/// that is, and with `TRIHOP_ERR_MISUSE` for what channels of this kind do not know. Where the
/// port's window is full it is `TRIHOP_ERR_WOULD_BLOCK` at once, as `trihop_channel_get` is.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_poll(
    channel: *const trihop_channel_t,
    what: i32,
    timeout_ns: i64,
    value: *mut u64,
) -> trihop_status_t {
    let poll = |channel: &trihop_channel_t| {
        let what = parse_poll(what)?;
        let timeout = parse_timeout(timeout_ns)?;
        let polled = call_port!(channel, port => port.poll(what, timeout))?;
        if !value.is_null() {
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(value, "value")? } = polled;
        }
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, poll) }
}

/// What the channel is, of `trihop_channel_kind_t`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_kind(
    channel: *const trihop_channel_t,
    kind: *mut i32,
) -> trihop_status_t {
    let ask = |channel: &trihop_channel_t| {
        let of = ask_port!(channel, port => port.kind());
        // SAFETY: the header asks for a place for a number.
        *unsafe { argument::place(kind, "kind")? } = match of {
            ChannelKind::Messages => trihop_channel_kind_t::TRIHOP_CHANNEL_MESSAGES,
            ChannelKind::Semaphore => trihop_channel_kind_t::TRIHOP_CHANNEL_SEMAPHORE,
            ChannelKind::Barrier => trihop_channel_kind_t::TRIHOP_CHANNEL_BARRIER,
        } as i32;
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, ask) }
}

/// Gives a file descriptor for `poll`, `epoll` and their like, which is readable while something
/// may be had from the channel without waiting: a message; one of a semaphore
/// (`TRIHOP_POLL_ACQUIRE`); of a barrier, the place of the last one to come (`TRIHOP_POLL_ARRIVE`),
/// or the error that it is broken; or the error that the channel is closed or the job has failed.
/// It is the port's: the same at each call, closed by `trihop_channel_free`, and neither to be
/// read, written nor closed. Who comes to a barrier before the last one starts that, and sleeps on
/// `trihop_asked_event`.
///
/// It is armed by the first call of this, and again by each get, peek, pop, acquisition and arrival
/// of this port that finds nothing (`TRIHOP_ERR_WOULD_BLOCK`, `TRIHOP_ERR_TIMED_OUT`): whoever is
/// woken takes until nothing is found, and then sleeps. Until then it stays readable. While it is
/// armed it counts as one request of the port's that waits.
///
/// Of a job with threads it becomes readable by itself. Of an inline job it does so only inside
/// calls that make progress: whoever sleeps on it there calls `trihop_poll` now and then. Of a guest
/// it becomes readable by itself, and where the server is gone.
///
/// Fails with `TRIHOP_ERR_WOULD_BLOCK` where as many requests of the port wait as may.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_event(
    channel: *const trihop_channel_t,
    descriptor: *mut i32,
) -> trihop_status_t {
    let event = |channel: &trihop_channel_t| {
        // SAFETY: the header asks for a place for a number.
        let place = unsafe { argument::place(descriptor, "descriptor")? };
        *place = -1;
        *place = match &channel.channel {
            Port::Threaded(port) => port.event()?.as_raw_fd(),
            Port::Inline(port) => port.event()?.as_raw_fd(),
            Port::Guest(guest) => guest.event()?,
        };
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, event) }
}
