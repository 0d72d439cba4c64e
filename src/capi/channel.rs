//! Channels: bounded queues of messages, each on the rank that makes it.

pub mod asked;
pub mod open;
pub mod poll;

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

use super::argument;
use super::seat::{Either, Home, Homed};
use super::status::{Failure, guard, trihop_status_t};
use crate::channel::{Buffer, ChannelKind, Descriptor, Received, Return, Timeout};
use crate::transport::sync::{Mutex, MutexGuard, TryLockError};
use crate::{Channel, ChannelLimits, Error, guest, threaded};

/// A port of a channel: what a rank sends, gets and polls by. A channel is a bounded queue of
/// messages on the rank that has made it, its owner; any rank of the job sends to it and gets from
/// it. Semaphores and barriers are channels too, which are polled only. What one
/// thread sends by a port comes into the channel in that order; there is no order between ports.
///
/// The owner does what it is asked in the order in which that comes, and what cannot be done at once
/// waits there: until it can, until its timeout, or until the channel is closed. Owners of inline
/// jobs answer inside their calls that make progress, of whichever stream, and `trihop_poll`; those
/// with threads at any time.
///
/// ```c
/// trihop_channels_open(job, "work", NULL, &channels);
/// if (rank == 0) {
///     trihop_channel_create(channels, NULL, &tasks);
///     trihop_channel_descriptor(tasks, text, sizeof text, &length);
/// }
/// trihop_broadcast(job, 0, text, sizeof text);
/// if (rank != 0)
///     trihop_channel_attach(channels, text, &tasks);
/// trihop_channel_send(tasks, 0, "a task", 6, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT);
/// trihop_channel_get(tasks, TRIHOP_NO_TIMEOUT, &task);
/// trihop_received_free(&task);
/// ```
///
/// Threads: as `trihop_job_t`. Of a job with threads several may use one port; in a handler only
/// sends that return immediately may be made, and of an inline job no call at all
/// (`TRIHOP_ERR_NESTED`). That of a guest is for one thread at a time, whichever: a call on it while
/// another one is under way is `TRIHOP_ERR_MISUSE`.
pub struct trihop_channel_t {
    home: Home,
    channel: Port,
}

/// A port of a rank, on either seat, or of a guest.
pub(super) enum Port {
    Threaded(threaded::Channel),
    Inline(Channel<'static>),
    Guest(Box<GuestPort>),
}

/// What a guest's port says of itself at any time, and the port.
pub(super) struct GuestPort {
    descriptor: Descriptor,
    kind: ChannelKind,
    limits: ChannelLimits,
    /// What it is slept on by, once somebody has asked for that.
    event: OnceLock<RawFd>,
    port: Mutex<guest::Channel>,
}

impl GuestPort {
    /// The port, unless a call on it is under way.
    fn port(&self) -> Result<MutexGuard<'_, guest::Channel>, Failure> {
        match self.port.try_lock() {
            Ok(port) => Ok(port),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                trihop_status_t::TRIHOP_ERR_MISUSE,
                "another thread has a call on this guest's port under way; attach once more for \
                 each thread",
            )),
        }
    }

    /// What it is slept on by, also while a call on it is under way, and once it has failed.
    fn event(&self) -> Result<RawFd, Failure> {
        if let Some(event) = self.event.get() {
            return Ok(*event);
        }
        let event = self.port()?.event()?.as_raw_fd();
        Ok(*self.event.get_or_init(|| event))
    }

    fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    fn kind(&self) -> ChannelKind {
        self.kind
    }

    fn limits(&self) -> ChannelLimits {
        self.limits
    }
}

/// Calls the method of the port, whosever it is.
macro_rules! call_port {
    ($channel:expr, $port:ident => $call:expr) => {
        match &$channel.channel {
            Port::Threaded($port) => $call,
            Port::Inline($port) => $call,
            Port::Guest(guest) => {
                let mut port = guest.port()?;
                let $port = &mut *port;
                $call
            }
        }
    };
}

/// As [`call_port`], for what a port says of itself.
macro_rules! ask_port {
    ($channel:expr, $port:ident => $call:expr) => {
        match &$channel.channel {
            $crate::capi::channel::Port::Threaded($port) => $call,
            $crate::capi::channel::Port::Inline($port) => $call,
            $crate::capi::channel::Port::Guest($port) => $call,
        }
    };
}

use {ask_port, call_port};

impl Homed for trihop_channel_t {
    fn home(&self) -> Home {
        self.home
    }
}

impl trihop_channel_t {
    /// A handle for the caller, which `trihop_channel_free` takes back.
    fn give(channel: Either<threaded::Channel, Channel<'static>>) -> *mut Self {
        let home = Home::of(&channel);
        let channel = match channel {
            Either::Threaded(port) => Port::Threaded(port),
            Either::Inline(port) => Port::Inline(port),
        };
        Box::into_raw(Box::new(Self { home, channel }))
    }

    /// As [`give`](Self::give), of a guest's.
    pub(super) fn give_guest(port: guest::Channel) -> *mut Self {
        let channel = Port::Guest(Box::new(GuestPort {
            descriptor: port.descriptor(),
            kind: port.kind(),
            limits: port.limits(),
            event: OnceLock::new(),
            port: Mutex::new(port),
        }));
        let home = Home::anywhere();
        Box::into_raw(Box::new(Self { home, channel }))
    }
}

/// Chars that the text of a descriptor needs at most, with its NUL.
pub const TRIHOP_CHANNEL_DESCRIPTOR_CHARS: usize = 65;

/// A call on a channel takes as long as it takes.
pub const TRIHOP_NO_TIMEOUT: i64 = -1;

/// A call on a channel is tried once: what cannot be done at once is `TRIHOP_ERR_WOULD_BLOCK`. The
/// channel's owner tries it: where that is another rank on the inline seat, the call waits until it
/// makes progress.
pub const TRIHOP_ONCE: i64 = 0;

/// When `trihop_channel_send` returns.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_return_t {
    /// At once; with `TRIHOP_ERR_WOULD_BLOCK` where the port has as much under way as it may. The
    /// bytes are copied. What becomes of the message later is counted: `trihop_channel_failures`.
    TRIHOP_IMMEDIATELY = 0,
    /// Once the port's window has room and the bytes are copied. Failures as above.
    TRIHOP_WHEN_BUFFERED = 1,
    /// Once the message is in the channel.
    TRIHOP_WHEN_DEPOSITED = 2,
    /// Once somebody has taken it out of the channel.
    TRIHOP_WHEN_RECEIVED = 3,
}

/// A message that was got from a channel. Its memory is the caller's, until `trihop_received_free`.
/// Later versions have other functions for more.
#[repr(C)]
pub struct trihop_received_t {
    /// Its bytes; null where there are none.
    pub bytes: *mut c_void,
    /// How many.
    pub length: usize,
    /// The library's.
    pub capacity: usize,
    /// Rank that sent it.
    pub source: u32,
    /// The 32 bits that the sender gave with it.
    pub kind: u32,
}

/// A message whose bytes are in memory of the caller's: see `trihop_channel_get_into`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct trihop_filled_t {
    /// How many bytes it has.
    pub length: usize,
    /// Rank that sent it.
    pub source: u32,
    /// The 32 bits that the sender gave with it.
    pub kind: u32,
}

impl trihop_filled_t {
    /// Of a call that has filled nothing: how many bytes the message has that stays.
    fn nothing(length: usize) -> Self {
        Self {
            length,
            source: 0,
            kind: 0,
        }
    }
}

const NOTHING: trihop_received_t = trihop_received_t {
    bytes: null_mut(),
    length: 0,
    capacity: 0,
    source: 0,
    kind: 0,
};

impl trihop_received_t {
    fn of(received: Received) -> Self {
        let Received {
            source,
            kind,
            bytes,
        } = received;
        let mut message = Self::with(bytes);
        (message.source, message.kind) = (source.0, kind);
        message
    }

    /// Of nobody.
    fn with(bytes: Buffer) -> Self {
        let bytes = match bytes.try_into_vec() {
            Ok(own) => own,
            Err(mut shared) => {
                let (first, length) = (shared.as_mut_ptr(), shared.len());
                let held = Box::into_raw(Box::new(shared)) as usize;
                return Self {
                    bytes: first.cast(),
                    length,
                    // It is aligned, and a vector has no capacity with the first bit.
                    capacity: SHARED | held >> 1,
                    ..NOTHING
                };
            }
        };
        let mut bytes = ManuallyDrop::new(bytes);
        match bytes.capacity() {
            0 => NOTHING,
            capacity => Self {
                bytes: bytes.as_mut_ptr().cast(),
                length: bytes.len(),
                capacity,
                ..NOTHING
            },
        }
    }

    /// The bytes with their memory; what is left has none.
    ///
    /// # Safety
    /// It was made by [`trihop_received_t::with`], or has no bytes.
    unsafe fn take(&mut self) -> Buffer {
        let Self {
            bytes,
            length,
            capacity,
            ..
        } = std::mem::replace(self, NOTHING);
        if bytes.is_null() {
            return Buffer::default();
        }
        if capacity & SHARED != 0 {
            let held = (capacity & !SHARED) << 1;
            // SAFETY: `with` has made this number of a box's address.
            return *unsafe { Box::from_raw(held as *mut Buffer) };
        }
        // SAFETY: made by `with` out of a vector with these parts.
        unsafe { Vec::from_raw_parts(bytes.cast::<u8>(), length, capacity) }.into()
    }
}

/// In the capacity of a message: it lies in memory that is shared, and the rest is half of the
/// address of what holds it.
const SHARED: usize = 1 << (usize::BITS - 1);

const _: () = assert!(align_of::<Buffer>() > 1);

fn parse_return(when: i32) -> Result<Return, Failure> {
    match when {
        0 => Ok(Return::Immediately),
        1 => Ok(Return::WhenBuffered),
        2 => Ok(Return::WhenDeposited),
        3 => Ok(Return::WhenReceived),
        _ => Err(Failure::argument(format!("{when} is no trihop_return_t"))),
    }
}

fn parse_timeout(timeout_ns: i64) -> Result<Timeout, Failure> {
    match timeout_ns {
        TRIHOP_ONCE => Ok(Timeout::Once),
        TRIHOP_NO_TIMEOUT => Ok(Timeout::Never),
        // As what is left until a time that has passed may be.
        _ => u64::try_from(timeout_ns)
            .map(|time| Timeout::After(Duration::from_nanos(time)))
            .map_err(|_| Failure::argument(format!("a timeout of {timeout_ns} ns"))),
    }
}

/// Runs `call` on a port.
///
/// # Safety
/// `channel` is null or a port that was not freed.
unsafe fn with(
    channel: *const trihop_channel_t,
    call: impl FnOnce(&trihop_channel_t) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        call(unsafe { argument::handle(channel, "channel")? })
    })
}

/// Runs a get, whose message goes to `received`.
///
/// # Safety
/// As [`with`]; `received` is null, or a place that nobody else uses.
unsafe fn get(
    channel: *const trihop_channel_t,
    received: *mut trihop_received_t,
    call: impl FnOnce(&trihop_channel_t) -> Result<Received, Failure>,
) -> trihop_status_t {
    let call = |channel: &trihop_channel_t| {
        // SAFETY: as the caller promises.
        let place = unsafe { argument::place(received, "received")? };
        *place = NOTHING;
        *place = trihop_received_t::of(call(channel)?);
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { with(channel, call) }
}

/// Sends `length` bytes, with 32 bits that mean what the program wants them to mean, and returns
/// when `when`, of `trihop_return_t`, says. `timeout_ns` is in nanoseconds, `TRIHOP_NO_TIMEOUT` or
/// `TRIHOP_ONCE`: that of the message's way into the channel (of `TRIHOP_WHEN_RECEIVED`, to a
/// receiver), also where the call returns before. The owner keeps it, to about a millisecond.
///
/// With nothing sent it fails with `TRIHOP_ERR_WOULD_BLOCK`, `TRIHOP_ERR_TIMED_OUT`,
/// `TRIHOP_ERR_CLOSED` where the channel is, `TRIHOP_ERR_TOO_LARGE` above the channel's bytes and
/// `max_message_bytes` less 56, and `TRIHOP_ERR_INVALID_ARGUMENT` for another time below zero.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_send(
    channel: *const trihop_channel_t,
    kind: u32,
    bytes: *const c_void,
    length: usize,
    when: i32,
    timeout_ns: i64,
) -> trihop_status_t {
    let send = |channel: &trihop_channel_t| {
        // SAFETY: the header asks for `length` bytes that nobody changes during the call.
        let bytes = unsafe { argument::bytes(bytes, length, "bytes")? };
        let when = parse_return(when)?;
        let timeout = parse_timeout(timeout_ns)?;
        Ok(call_port!(channel, port => port.send(kind, bytes, when, timeout))?)
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, send) }
}

/// Memory for a message of `length` bytes that is to be sent by this port: `message` is filled,
/// with zeros where the call fails. The program writes to its `bytes`, and gives it away by
/// `trihop_channel_send_buffer`, or back by `trihop_received_free`. Of a long one, for an owner on
/// this node, it is memory that the ranks of the node share, as long as there is some: then the
/// message is not copied at all. What is in it at first means nothing. Of a guest it is its own.
///
/// Fails with `TRIHOP_ERR_TOO_LARGE` above what a message of the channel may have,
/// `TRIHOP_ERR_MISUSE` where it has no messages, and `TRIHOP_ERR_NO_MEMORY`.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_buffer(
    channel: *const trihop_channel_t,
    length: usize,
    message: *mut trihop_received_t,
) -> trihop_status_t {
    let buffer = |channel: &trihop_channel_t| {
        // SAFETY: the header asks for a place that nobody else uses.
        let place = unsafe { argument::place(message, "message")? };
        *place = NOTHING;
        let buffer = call_port!(channel, port => port.buffer(length))?;
        *place = trihop_received_t::with(buffer);
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, buffer) }
}

/// As `trihop_channel_send`, of a message whose memory is given away: one of
/// `trihop_channel_buffer`, or one that was got, from whichever channel. Inside of a node nothing
/// of it is copied where it is in shared memory, and on the owner's rank in any case; for another
/// node it is sent as all others.
///
/// `message` has no bytes once its memory is given away, and has them still where the call fails
/// with nothing sent; give it back by `trihop_received_free` then. The owner may refuse what has
/// left, as for want of room when it is tried once: then it is gone with the call.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_send_buffer(
    channel: *const trihop_channel_t,
    kind: u32,
    message: *mut trihop_received_t,
    when: i32,
    timeout_ns: i64,
) -> trihop_status_t {
    let send = |channel: &trihop_channel_t| {
        let when = parse_return(when)?;
        let timeout = parse_timeout(timeout_ns)?;
        // SAFETY: the header asks for a message of ours that nobody else uses.
        unsafe {
            giving(message, |buffer| {
                Ok(call_port!(channel, port => port.send_buffer(kind, buffer, when, timeout))?)
            })
        }
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, send) }
}

/// Gives the memory of a message to a call, and keeps what that leaves.
///
/// # Safety
/// `message` is null, or one of ours that nobody else uses.
pub(super) unsafe fn giving<R>(
    message: *mut trihop_received_t,
    call: impl FnOnce(&mut Buffer) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: as the caller promises.
    let message = unsafe { argument::place(message, "message")? };
    let (source, kind) = (message.source, message.kind);
    // SAFETY: as the caller promises.
    let mut buffer = unsafe { message.take() };
    let outcome = call(&mut buffer);
    *message = trihop_received_t::with(buffer);
    (message.source, message.kind) = (source, kind);
    outcome
}

/// Takes the first message out of the channel, and waits for one as long as `timeout_ns` says (see
/// `trihop_channel_send`). `received` is filled, with zeros where the call fails; give its memory
/// back by `trihop_received_free`.
///
/// Fails with `TRIHOP_ERR_WOULD_BLOCK` and `TRIHOP_ERR_TIMED_OUT` where there is none, and with
/// `TRIHOP_ERR_CLOSED` once the channel is closed and empty. Where as many calls of the port wait
/// as its window has places, it is `TRIHOP_ERR_WOULD_BLOCK` at once, whatever `timeout_ns` says; an
/// event that is armed has a place, too.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_get(
    channel: *const trihop_channel_t,
    timeout_ns: i64,
    received: *mut trihop_received_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a port that was not freed, and a place.
    unsafe {
        get(channel, received, |channel| {
            let timeout = parse_timeout(timeout_ns)?;
            Ok(call_port!(channel, port => port.get(timeout))?)
        })
    }
}

/// As `trihop_channel_get`, and the bytes of the message are copied to `bytes`, which has room for
/// `capacity` of them, once, out of the memory in which they came; nothing has to be given back.
/// `filled` says what they are, with zeros where the call fails.
///
/// Where the first message is longer it fails with `TRIHOP_ERR_BUFFER_TOO_SMALL`, and the length in
/// `filled` is that of the message: it stays where it is, as if nobody had asked for it, and what
/// is in `bytes` is as it was. Else as `trihop_channel_get`.
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_get_into(
    channel: *const trihop_channel_t,
    timeout_ns: i64,
    bytes: *mut c_void,
    capacity: usize,
    filled: *mut trihop_filled_t,
) -> trihop_status_t {
    let get = |channel: &trihop_channel_t| {
        // SAFETY: the header asks for a place that nobody else uses.
        let place = unsafe { argument::place(filled, "filled")? };
        *place = trihop_filled_t::nothing(0);
        // SAFETY: the header asks for `capacity` bytes that nobody else uses.
        let into = unsafe { argument::slice_mut(bytes.cast::<u8>(), capacity, "bytes")? };
        let timeout = parse_timeout(timeout_ns)?;
        let got = call_port!(channel, port => port.get_into(into, timeout));
        *place = match got {
            Ok(of) => trihop_filled_t {
                length: of.length,
                source: of.source.0,
                kind: of.kind,
            },
            Err(error) => {
                if let Error::BufferTooSmall { bytes, .. } = error {
                    *place = trihop_filled_t::nothing(bytes);
                }
                return Err(error.into());
            }
        };
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, get) }
}

/// As `trihop_channel_get`, and the message stays where it is: a copy is got.
///
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_peek(
    channel: *const trihop_channel_t,
    timeout_ns: i64,
    received: *mut trihop_received_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a port that was not freed, and a place.
    unsafe {
        get(channel, received, |channel| {
            let timeout = parse_timeout(timeout_ns)?;
            Ok(call_port!(channel, port => port.peek(timeout))?)
        })
    }
}

/// As `trihop_channel_get`, and the bytes of the message are dropped.
///
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_pop(
    channel: *const trihop_channel_t,
    timeout_ns: i64,
) -> trihop_status_t {
    let pop = |channel: &trihop_channel_t| {
        let timeout = parse_timeout(timeout_ns)?;
        call_port!(channel, port => port.pop(timeout))?;
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, pop) }
}

/// Gives the memory of a message back, and makes it one of no bytes. Null is fine.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_received_free(received: *mut trihop_received_t) {
    // SAFETY: the header asks for null, or a message of ours that nobody else uses.
    let Some(received) = (unsafe { received.as_mut() }) else {
        return;
    };
    // SAFETY: as the header asks. The next message may have its memory.
    drop(unsafe { received.take() });
}

/// How many sends of this port have failed after they had returned, and, where `last` is not null,
/// the status of the last of them: `TRIHOP_OK` where none has.
///
/// Threads: any; of a guest's port one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_failures(
    channel: *const trihop_channel_t,
    count: *mut u64,
    last: *mut i32,
) -> trihop_status_t {
    let failures = |channel: &trihop_channel_t| {
        let (failed, error) = match &channel.channel {
            Port::Threaded(port) => port.failures(),
            Port::Inline(port) => port.failures(),
            Port::Guest(guest) => guest.port()?.failures()?,
        };
        // SAFETY: the header asks for a place for a number.
        *unsafe { argument::place(count, "count")? } = failed;
        if !last.is_null() {
            let status = error.as_ref().map(trihop_status_t::of);
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(last, "last")? } = status.map_or(0, |status| status as i32);
        }
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, failures) }
}

/// Writes what names the channel on all ranks as a text, of at most
/// `TRIHOP_CHANNEL_DESCRIPTOR_CHARS` with its NUL, and its length without that. It may go by
/// messages, files or arguments.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_descriptor(
    channel: *const trihop_channel_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    let write = |channel: &trihop_channel_t| {
        let descriptor = ask_port!(channel, port => port.descriptor());
        // SAFETY: the header asks for `capacity` chars that nobody else uses, and a place for a
        // number.
        unsafe { argument::give_text(&descriptor.to_string(), text, capacity, length) }
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, write) }
}

/// The rank that has made the channel, and has its messages.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_owner(
    channel: *const trihop_channel_t,
    owner: *mut u32,
) -> trihop_status_t {
    let ask = |channel: &trihop_channel_t| {
        let of = ask_port!(channel, port => port.descriptor().owner());
        // SAFETY: the header asks for a place for a number.
        *unsafe { argument::place(owner, "owner")? } = of.0;
        Ok(())
    };
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, ask) }
}

/// Closes the channel: what is sent from now on, or waits to be, fails with `TRIHOP_ERR_CLOSED`, and
/// so do gets once it is empty. On its owner only, or by that one's guests, else
/// `TRIHOP_ERR_MISUSE`. The port stays, for what is left.
///
/// Threads: as `trihop_channel_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_close(channel: *const trihop_channel_t) -> trihop_status_t {
    let close = |channel: &trihop_channel_t| Ok(call_port!(channel, port => port.close())?);
    // SAFETY: the header asks for null or a port that was not freed.
    unsafe { with(channel, close) }
}

/// Gives a port back. What it has sent still comes into the channel as there is room. A channel
/// that is closed goes with its last port. Null is fine.
///
/// Threads: as `trihop_channel_t`, and no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_channel_free(channel: *mut trihop_channel_t) -> trihop_status_t {
    guard(|| {
        if !channel.is_null() {
            // SAFETY: not null, so the header asks for a port that was not freed.
            unsafe { argument::handle(channel, "channel")? };
            // SAFETY: made by `give`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(channel) });
        }
        Ok(())
    })
}
