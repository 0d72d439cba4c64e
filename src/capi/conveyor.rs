//! Streams by push, pull and advance.

use std::ffi::{c_int, c_void};

use super::argument;
use super::seat::{Either, either};
use super::status::{Failure, guard, trihop_status_t};
use super::stream::trihop_stream_t;
use crate::{ConveyorState, Inline, Rank, over};

/// A stream by push, pull and advance: for programs that neither wait nor have handlers. None of
/// its calls waits. Each step ends on all ranks once each has said that it pushes no more; nothing
/// of a later step is pulled in an earlier one.
///
/// ```c
/// size_t next = 0;
/// int goes_on = 1;
///
/// while (trihop_conveyor_advance(conveyor, next == count, &goes_on) == TRIHOP_OK && goes_on) {
///     while (next < count && trihop_conveyor_push(conveyor, target[next], &item[next]) == TRIHOP_OK)
///         next++;
///     while (trihop_conveyor_pull(conveyor, &pulled, NULL) == TRIHOP_OK)
///         use(pulled);
/// }
/// ```
///
/// Threads: one at a time; of an inline job that which has started it.
pub struct trihop_conveyor_t {
    conveyor: ConveyorOf,
}

/// A conveyor over either seat.
type ConveyorOf =
    Either<over::UntypedConveyor<over::Threaded>, over::UntypedConveyor<Inline<'static>>>;

/// How far a step has come on this rank.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_conveyor_state_t {
    /// It may push.
    TRIHOP_WORKING = 0,
    /// It pushes no more, and others may.
    TRIHOP_ENDGAME = 1,
    /// Nobody pushes any more, and all that was pushed to this rank is here to be pulled.
    TRIHOP_CLEANUP = 2,
    /// All of it has been pulled.
    TRIHOP_COMPLETE = 3,
}

/// Runs `call` on a conveyor; what it gives says whether it could do anything now.
///
/// # Safety
/// `conveyor` is null or one that was not freed, which nobody else uses.
#[inline(always)] // part of every push and pull
unsafe fn with(
    conveyor: *mut trihop_conveyor_t,
    call: impl FnOnce(&mut ConveyorOf) -> Result<bool, Failure>,
) -> trihop_status_t {
    let mut did = false;
    let status = guard(|| {
        // SAFETY: as the caller promises.
        let open = unsafe { argument::place(conveyor, "conveyor")? };
        did = call(&mut open.conveyor)?;
        Ok(())
    });
    match status {
        trihop_status_t::TRIHOP_OK if !did => trihop_status_t::TRIHOP_ERR_WOULD_BLOCK,
        status => status,
    }
}

/// Makes a conveyor of a stream of items without a handler, on which nothing else is called until
/// `trihop_conveyor_free`; then it is closed as any other.
///
/// Fails with `TRIHOP_ERR_MISUSE` on a stream that has a handler, or records, or whose step ends.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_over(
    stream: *const trihop_stream_t,
    conveyor: *mut *mut trihop_conveyor_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(conveyor, "conveyor")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or a stream that was not closed.
        let open = unsafe { argument::reference(stream, "stream")? };
        let conveyor = match open.of() {
            Either::Threaded(stream) => {
                Either::Threaded(over::UntypedConveyor::over(stream.clone())?)
            }
            Either::Inline(stream) => Either::Inline(over::UntypedConveyor::over(stream.clone())?),
        };
        *place = Box::into_raw(Box::new(trihop_conveyor_t { conveyor }));
        Ok(())
    })
}

/// Sends an item, which is copied. Where there is no room now it fails with
/// `TRIHOP_ERR_WOULD_BLOCK` and has taken nothing: advance and pull, then push it again.
///
/// Fails with `TRIHOP_ERR_MISUSE` after an advance that announced the last push.
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_push(
    conveyor: *mut trihop_conveyor_t,
    target: u32,
    item: *const c_void,
) -> trihop_status_t {
    let push = |conveyor: &mut ConveyorOf| {
        let length = either!(conveyor, conveyor => conveyor.item_bytes());
        // SAFETY: the header asks for one item that nobody changes during the call.
        let item = unsafe { argument::bytes(item, length, "item")? };
        Ok(either!(conveyor, conveyor => conveyor.push(Rank(target), item))?)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, push) }
}

/// Stores where the next item that is here lies, until the next call on the conveyor, and, where
/// `source` is not null, who sent it. Where none is here it returns `TRIHOP_ERR_WOULD_BLOCK`:
/// advance.
///
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_pull(
    conveyor: *mut trihop_conveyor_t,
    item: *mut *const c_void,
    source: *mut u32,
) -> trihop_status_t {
    // SAFETY: the header asks for null or a conveyor that was not freed, which nobody else uses,
    // and for null or a place for a pointer.
    if let (Some(open), Some(place)) = unsafe { (conveyor.as_mut(), item.as_mut()) }
        && let Some((from, bytes)) = either!(&mut open.conveyor, conveyor => conveyor.pull_here())
    {
        *place = bytes.as_ptr().cast();
        // SAFETY: the header asks for null or a place for a number.
        if let Some(place) = unsafe { source.as_mut() } {
            *place = from.0;
        }
        return trihop_status_t::TRIHOP_OK;
    }
    // SAFETY: as the header asks.
    unsafe { pull(conveyor, 1, item, std::ptr::null_mut(), source) }
}

/// As `trihop_conveyor_pull`, for items of one source that lie one behind the other: at most
/// `most`. Stores how many in `count`.
///
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_pull_many(
    conveyor: *mut trihop_conveyor_t,
    most: usize,
    items: *mut *const c_void,
    count: *mut usize,
    source: *mut u32,
) -> trihop_status_t {
    // SAFETY: as the header asks.
    unsafe { pull(conveyor, most, items, count, source) }
}

/// # Safety
/// As [`with`]; the pointers are null or places for what they are for.
#[cold]
unsafe fn pull(
    conveyor: *mut trihop_conveyor_t,
    most: usize,
    items: *mut *const c_void,
    count: *mut usize,
    source: *mut u32,
) -> trihop_status_t {
    let pull = |conveyor: &mut ConveyorOf| {
        // SAFETY: as the caller promises.
        let place = unsafe { argument::place(items, "item")? };
        either!(conveyor, conveyor => {
            let item_bytes = conveyor.item_bytes();
            let Some((from, bytes)) = conveyor.pull(most)? else {
                return Ok(false);
            };
            *place = bytes.as_ptr().cast();
            if !count.is_null() {
                // SAFETY: not null, so a place for a number, as the caller promises.
                *unsafe { argument::place(count, "count")? } = bytes.len() / item_bytes;
            }
            if !source.is_null() {
                // SAFETY: as above.
                *unsafe { argument::place(source, "source")? } = from.0;
            }
        });
        Ok(true)
    };
    // SAFETY: as the caller promises.
    unsafe { with(conveyor, pull) }
}

/// The next pull gives what the last one gave; once for each pull.
///
/// Fails with `TRIHOP_ERR_MISUSE` where nothing was pulled since.
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_unpull(
    conveyor: *mut trihop_conveyor_t,
) -> trihop_status_t {
    let unpull = |conveyor: &mut ConveyorOf| {
        either!(conveyor, conveyor => conveyor.unpull())?;
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, unpull) }
}

/// Makes a round of progress, and fetches what has come once all that was fetched before has been
/// pulled. `is_done` is not 0 where this rank pushes no more in this step. Stores 0 once no rank
/// does and everything has been pulled, else 1.
///
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_advance(
    conveyor: *mut trihop_conveyor_t,
    is_done: c_int,
    goes_on: *mut c_int,
) -> trihop_status_t {
    let advance = |conveyor: &mut ConveyorOf| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(goes_on, "goes_on")? };
        *place = either!(conveyor, conveyor => conveyor.advance(is_done != 0))?.into();
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, advance) }
}

/// Stores how far the step has come, of `trihop_conveyor_state_t`.
///
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_state(
    conveyor: *mut trihop_conveyor_t,
    state: *mut i32,
) -> trihop_status_t {
    let give = |conveyor: &mut ConveyorOf| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(state, "state")? };
        use trihop_conveyor_state_t::*;
        let state = match either!(conveyor, conveyor => conveyor.state()) {
            ConveyorState::Working => TRIHOP_WORKING,
            ConveyorState::Endgame => TRIHOP_ENDGAME,
            ConveyorState::Cleanup => TRIHOP_CLEANUP,
            ConveyorState::Complete => TRIHOP_COMPLETE,
        };
        *place = state as i32;
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, give) }
}

/// Begins the next step, where one is complete: each rank at its own time.
///
/// Fails with `TRIHOP_ERR_MISUSE` before that.
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_reset(
    conveyor: *mut trihop_conveyor_t,
) -> trihop_status_t {
    let reset = |conveyor: &mut ConveyorOf| {
        either!(conveyor, conveyor => conveyor.reset())?;
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, reset) }
}

/// Frees the conveyor; its stream goes on, and what nobody has pulled waits there for
/// `trihop_stream_take`. Null is ignored. Where a step is ending, `trihop_stream_close` waits for
/// that.
///
/// Threads: any, but no other call on the conveyor may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_free(conveyor: *mut trihop_conveyor_t) {
    if !conveyor.is_null() {
        let free = || {
            // SAFETY: made by `trihop_conveyor_over`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(conveyor) });
            Ok(())
        };
        let _ = guard(free);
    }
}
