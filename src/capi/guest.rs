//! Guests: processes that are no ranks, and use channels through a rank of their node.

use std::ffi::c_char;
use std::ptr::null_mut;
use std::time::Duration;

use super::argument;
use super::channel::open::{load, trihop_channel_limits_t, trihop_channels_t};
use super::channel::{TRIHOP_NO_TIMEOUT, trihop_channel_t};
use super::seat::Either;
use super::status::{Failure, guard, trihop_status_t};
use crate::channel::Descriptor;
use crate::guest::{self, Guest, Guests, Lifetime};

/// What serves guests, as long as it is there: see `trihop_guests_serve`.
///
/// Threads: any, but one at a time.
pub struct trihop_guests_t {
    /// Dropped with it.
    _guests: Guests,
}

/// A process that is no rank, and uses the channels of a job all the same, through a rank of its
/// node that serves guests, or `trihop serve`. It needs no launcher and no other guest, and may come
/// and go at any time. Its ports are used as those of ranks are.
///
/// ```c
/// trihop_guest_open(NULL, TRIHOP_NO_TIMEOUT, &guest);
/// trihop_guest_attach(guest, descriptor, &tasks);
/// trihop_channel_send(tasks, 0, "a task", 6, TRIHOP_WHEN_DEPOSITED, TRIHOP_NO_TIMEOUT);
/// trihop_channel_free(tasks);
/// trihop_guest_free(guest);
/// ```
///
/// Threads: any.
pub struct trihop_guest_t {
    guest: Guest,
}

/// How long a channel is there that a guest has made.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_lifetime_t {
    /// Until the port that it was made with is freed, or the guest ends: it is closed then, and what
    /// is in it may still be got by those that are attached.
    TRIHOP_OF_GUEST = 0,
    /// Until it is closed, by any guest of that server, or the server ends.
    TRIHOP_OF_SERVER = 1,
}

fn parse_lifetime(number: i32) -> Result<Lifetime, Failure> {
    match number {
        0 => Ok(Lifetime::Guest),
        1 => Ok(Lifetime::Server),
        _ => Err(Failure::argument(format!(
            "{number} is no trihop_lifetime_t"
        ))),
    }
}

/// The name under which guests are served, which may be null for the default.
///
/// # Safety
/// Null, or a text that ends with NUL.
unsafe fn name_of(name: *const c_char) -> Result<String, Failure> {
    if name.is_null() {
        return Ok(guest::default_name());
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { argument::text(name, "name")? }.to_owned())
}

/// Serves guests under an abstract name of this node, from a thread of its own, until
/// `trihop_guests_free`. They are processes of the same user, and use the channels of all ranks
/// through this one: what they make is this rank's, and what they send comes from it. `name` null
/// is where guests look that are told no name: the variable `TRIHOP_GUESTS`, else `trihop-guests-`
/// and the number of the user.
///
/// Fails with `TRIHOP_ERR_MISUSE` for the channels of an inline job, which answer nobody while the
/// program does something else, and with `TRIHOP_ERR_SYSTEM` where another process has the name.
/// Threads: as the job; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guests_serve(
    channels: *const trihop_channels_t,
    name: *const c_char,
    guests: *mut *mut trihop_guests_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(guests, "guests")? };
        *place = null_mut();
        // SAFETY: the header asks for null or channels that were not closed.
        let channels = unsafe { argument::handle(channels, "channels")? };
        // SAFETY: the header asks for null or a text that ends with NUL.
        let name = unsafe { name_of(name)? };
        let Either::Threaded(channels) = &channels.channels else {
            let why = "guests are served by a job with threads: start it with TRIHOP_THREADED";
            return Err(Failure::new(trihop_status_t::TRIHOP_ERR_MISUSE, why));
        };
        let _guests = channels.serve_guests(&name)?;
        *place = Box::into_raw(Box::new(trihop_guests_t { _guests }));
        Ok(())
    })
}

/// Serves guests no longer: those that there are find their connections closed
/// (`TRIHOP_ERR_SERVER_FAILED`). What they have sent before, and there was room for, is in the
/// channels. Call it before the channels are closed. Null is fine.
///
/// Threads: as `trihop_guests_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guests_free(guests: *mut trihop_guests_t) {
    if !guests.is_null() {
        // SAFETY: made by `trihop_guests_serve`; the header allows no other call on it.
        drop(unsafe { Box::from_raw(guests) });
    }
}

/// Asks who serves guests under this name, and waits for `timeout_ns` until somebody does
/// (`TRIHOP_NO_TIMEOUT`: as long as it takes). `name` as of `trihop_guests_serve`.
///
/// Fails with `TRIHOP_ERR_SERVER_FAILED` where nobody has come to serve in time, or the server is of
/// another version, and with `TRIHOP_ERR_SYSTEM` where another user has the name.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guest_open(
    name: *const c_char,
    timeout_ns: i64,
    guest: *mut *mut trihop_guest_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(guest, "guest")? };
        *place = null_mut();
        // SAFETY: the header asks for null or a text that ends with NUL.
        let name = unsafe { name_of(name)? };
        let wait = match timeout_ns {
            TRIHOP_NO_TIMEOUT => Duration::MAX,
            _ => u64::try_from(timeout_ns)
                .map(Duration::from_nanos)
                .map_err(|_| Failure::argument(format!("a timeout of {timeout_ns} ns")))?,
        };
        let guest = Guest::of(&name, wait)?;
        *place = Box::into_raw(Box::new(trihop_guest_t { guest }));
        Ok(())
    })
}

/// Runs `call` on a guest.
///
/// # Safety
/// `guest` is null or a guest that was not freed.
unsafe fn with(
    guest: *const trihop_guest_t,
    call: impl FnOnce(&Guest) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        call(unsafe { &argument::reference(guest, "guest")?.guest })
    })
}

/// Makes a port of one that `call` gives.
///
/// # Safety
/// As [`with`]; `channel` is null or a place for a pointer.
unsafe fn port(
    guest: *const trihop_guest_t,
    channel: *mut *mut trihop_channel_t,
    call: impl FnOnce(&Guest) -> Result<guest::Channel, Failure>,
) -> trihop_status_t {
    let make = |guest: &Guest| {
        // SAFETY: as the caller promises.
        let place = unsafe { argument::place(channel, "channel")? };
        *place = null_mut();
        *place = trihop_channel_t::give_guest(call(guest)?);
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { with(guest, make) }
}

/// The rank that serves the guest, in `rank`, and how many ranks its job has, in `size`: the rank
/// is the owner of the channels that the guest makes, and the source of what it sends. Either may
/// be null.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guest_server(
    guest: *const trihop_guest_t,
    rank: *mut u32,
    size: *mut u32,
) -> trihop_status_t {
    let say = |guest: &Guest| {
        for (place, number) in [(rank, guest.rank().0), (size, guest.size())] {
            if !place.is_null() {
                // SAFETY: not null, so the header asks for a place for a number.
                *unsafe { argument::place(place, "number")? } = number;
            }
        }
        Ok(())
    };
    // SAFETY: the header asks for null or a guest that was not freed.
    unsafe { with(guest, say) }
}

/// Makes a channel of the server's rank, and a port of it. `limits` null stands for the defaults;
/// `lifetime` is of `trihop_lifetime_t`.
///
/// Fails as `trihop_channel_create`, and with `TRIHOP_ERR_SERVER_FAILED`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guest_create(
    guest: *const trihop_guest_t,
    limits: *const trihop_channel_limits_t,
    lifetime: i32,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or as many bytes of limits as their first field says, null or
    // a guest that was not freed, and a place.
    unsafe {
        port(guest, channel, |guest| {
            Ok(guest.create(load(limits)?, parse_lifetime(lifetime)?)?)
        })
    }
}

/// Makes a semaphore of the server's rank, and a port of it, as `trihop_channel_create_semaphore`.
/// What a guest has acquired when it ends stays acquired.
///
/// Fails as that, and with `TRIHOP_ERR_SERVER_FAILED`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guest_create_semaphore(
    guest: *const trihop_guest_t,
    value: u64,
    most: u64,
    limits: *const trihop_channel_limits_t,
    lifetime: i32,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    // SAFETY: as of `trihop_guest_create`.
    unsafe {
        port(guest, channel, |guest| {
            Ok(guest.semaphore(value, most, load(limits)?, parse_lifetime(lifetime)?)?)
        })
    }
}

/// Makes a barrier of the server's rank, and a port of it, as `trihop_channel_create_barrier`.
///
/// Fails as that, and with `TRIHOP_ERR_SERVER_FAILED`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guest_create_barrier(
    guest: *const trihop_guest_t,
    parties: u32,
    limits: *const trihop_channel_limits_t,
    lifetime: i32,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    // SAFETY: as of `trihop_guest_create`.
    unsafe {
        port(guest, channel, |guest| {
            Ok(guest.barrier(parties, load(limits)?, parse_lifetime(lifetime)?)?)
        })
    }
}

/// Makes a port of the channel with this descriptor, whichever rank owns it.
///
/// Fails as `trihop_channel_attach`, and with `TRIHOP_ERR_SERVER_FAILED`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guest_attach(
    guest: *const trihop_guest_t,
    descriptor: *const c_char,
    channel: *mut *mut trihop_channel_t,
) -> trihop_status_t {
    let attach = |guest: &Guest| {
        // SAFETY: the header asks for null or a text that ends with NUL.
        let text = unsafe { argument::text(descriptor, "descriptor")? };
        let descriptor: Descriptor = text.parse()?;
        Ok(guest.attach(&descriptor)?)
    };
    // SAFETY: the header asks for null or a guest that was not freed, and a place.
    unsafe { port(guest, channel, attach) }
}

/// Frees a guest. Its ports stay, and so do its channels. Null is fine.
///
/// Threads: any, and no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_guest_free(guest: *mut trihop_guest_t) {
    if !guest.is_null() {
        // SAFETY: made by `trihop_guest_open`; the header allows no other call on it.
        drop(unsafe { Box::from_raw(guest) });
    }
}
