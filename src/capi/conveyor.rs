//! Streams by push, pull and advance.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::null;

use super::argument;
use super::seat::{Either, Home, either};
use super::status::{Failure, guard, trihop_status_t};
use super::stream::trihop_stream_t;
use crate::{ConveyorState, Inline, PushWindow, Rank, over};

/// A stream by push, pull and advance: for programs that neither wait nor have handlers. None of
/// its calls waits for others. Each step ends on all ranks once each has said that it pushes no
/// more; nothing of a later step is pulled in an earlier one.
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
// Hidden from cbindgen, which would write the fields down: programs know the first two only, from
// windows.h.
#[cfg_attr(all(), repr(C))]
pub struct trihop_conveyor_t {
    push: *const PushWindow,
    pull: PullWindow,
    home: Home,
    conveyor: ConveyorOf,
}

/// The rest of a run of which items are pulled without a call; as far as the conveyor itself knows,
/// all of it was pulled.
#[repr(C)]
struct PullWindow {
    next: *const u8,
    end: *const u8,
    item_bytes: u32,
    source: u32,
    is_open: bool,
}

/// What `windows.h` says of them.
const _: () = {
    assert!(offset_of!(trihop_conveyor_t, push) == 0);
    assert!(offset_of!(trihop_conveyor_t, pull) == size_of::<usize>());
    assert!(offset_of!(PullWindow, next) == 0 && offset_of!(PullWindow, end) == size_of::<usize>());
    assert!(offset_of!(PullWindow, item_bytes) == 2 * size_of::<usize>());
    assert!(offset_of!(PullWindow, source) == 2 * size_of::<usize>() + 4);
};

impl trihop_conveyor_t {
    /// Tells the conveyor what was pulled without it: before all that asks for that.
    fn settle(&mut self) -> &mut ConveyorOf {
        if std::mem::take(&mut self.pull.is_open) {
            let rest = self.pull.end.addr() - self.pull.next.addr();
            either!(&mut self.conveyor, conveyor => conveyor.give_rest_back(rest));
            (self.pull.next, self.pull.end) = (null(), null());
        }
        &mut self.conveyor
    }
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
    call: impl FnOnce(&mut trihop_conveyor_t) -> Result<bool, Failure>,
) -> trihop_status_t {
    let mut did = false;
    let status = guard(|| {
        // SAFETY: as the caller promises.
        let open = unsafe { argument::place(conveyor, "conveyor")? };
        open.home.check("conveyor")?;
        did = call(open)?;
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
        let open = unsafe { argument::handle(stream, "stream")? };
        let conveyor = match open.of() {
            Either::Threaded(stream) => {
                Either::Threaded(over::UntypedConveyor::over(stream.clone())?)
            }
            Either::Inline(stream) => Either::Inline(over::UntypedConveyor::over(stream.clone())?),
        };
        let item_bytes = either!(&conveyor, conveyor => conveyor.item_bytes());
        *place = Box::into_raw(Box::new(trihop_conveyor_t {
            push: match &conveyor {
                Either::Inline(conveyor) => conveyor.window(),
                Either::Threaded(_) => null(),
            },
            pull: PullWindow {
                next: null(),
                end: null(),
                item_bytes: item_bytes as u32, // as `max_message_bytes` is
                source: 0,
                is_open: false,
            },
            home: Home::of(&conveyor),
            conveyor,
        }));
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
    let push = |open: &mut trihop_conveyor_t| {
        // SAFETY: the header asks for one item that nobody changes during the call.
        let item = unsafe { argument::bytes(item, open.pull.item_bytes as usize, "item")? };
        Ok(either!(&mut open.conveyor, conveyor => conveyor.push(Rank(target), item))?)
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
    let pull = |open: &mut trihop_conveyor_t| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(item, "item")? };
        if open.pull.next == open.pull.end {
            let Some((from, bytes)) =
                either!(open.settle(), conveyor => conveyor.pull(usize::MAX))?
            else {
                return Ok(false);
            };
            let bytes = bytes.as_ptr_range();
            (open.pull.next, open.pull.end) = (bytes.start, bytes.end);
            (open.pull.source, open.pull.is_open) = (from.0, true);
        }
        *place = open.pull.next.cast();
        open.pull.next = open.pull.next.wrapping_add(open.pull.item_bytes as usize);
        // SAFETY: the header asks for null or a place for a number.
        if let Some(place) = unsafe { source.as_mut() } {
            *place = open.pull.source;
        }
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, pull) }
}

/// As `trihop_conveyor_pull`, for items of one source that lie one behind the other: at most
/// `most`. Stores how many in `count`. Fails with `TRIHOP_ERR_INVALID_ARGUMENT` where `most` is 0 or
/// `count` null.
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
    let pull = |open: &mut trihop_conveyor_t| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(items, "items")? };
        // SAFETY: as above, for a number.
        let count = unsafe { argument::place(count, "count")? };
        if most == 0 {
            return Err(Failure::argument("`most` is 0: no item would be pulled"));
        }
        either!(open.settle(), conveyor => {
            let item_bytes = conveyor.item_bytes();
            let Some((from, bytes)) = conveyor.pull(most)? else {
                return Ok(false);
            };
            *place = bytes.as_ptr().cast();
            *count = bytes.len() / item_bytes;
            // SAFETY: as above.
            if let Some(place) = unsafe { source.as_mut() } {
                *place = from.0;
            }
        });
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
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
    let unpull = |open: &mut trihop_conveyor_t| {
        either!(open.settle(), conveyor => conveyor.unpull())?;
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, unpull) }
}

/// Makes a round of progress, and fetches what has come once all that was fetched before has been
/// pulled. `is_done` is not 0 where this rank pushes no more in this step. Stores 0 once no rank
/// does and everything has been pulled, else 1. Where nothing has moved several times in a row,
/// the last push was announced or found no room, and nothing is here on any stream, it sleeps
/// until something comes, at most for a millisecond.
///
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_advance(
    conveyor: *mut trihop_conveyor_t,
    is_done: c_int,
    goes_on: *mut c_int,
) -> trihop_status_t {
    let advance = |open: &mut trihop_conveyor_t| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(goes_on, "goes_on")? };
        *place = either!(open.settle(), conveyor => conveyor.advance(is_done != 0))?.into();
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
    let give = |open: &mut trihop_conveyor_t| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(state, "state")? };
        use trihop_conveyor_state_t::*;
        let state = match either!(&open.conveyor, conveyor => conveyor.state()) {
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
    let reset = |open: &mut trihop_conveyor_t| {
        either!(open.settle(), conveyor => conveyor.reset())?;
        Ok(true)
    };
    // SAFETY: the header asks for null or a conveyor that was not freed.
    unsafe { with(conveyor, reset) }
}

/// As `trihop_conveyor_reset`, with items of another size in the next step: of the same on all
/// ranks. Items from a rank that has another one fail to be pulled, with `TRIHOP_ERR_BAD_PEER`,
/// where so many cannot be in the bytes of their run; else they are taken for what they are not.
/// When the conveyor is freed, its stream has its first size again.
///
/// Fails with `TRIHOP_ERR_MISUSE` as that, and with `TRIHOP_ERR_CONFIG` on a size of none, or one
/// that is longer than an item of the stream may be; nothing has changed then.
/// Threads: as `trihop_conveyor_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_conveyor_reset_to(
    conveyor: *mut trihop_conveyor_t,
    item_bytes: usize,
) -> trihop_status_t {
    let reset = |open: &mut trihop_conveyor_t| {
        either!(open.settle(), conveyor => conveyor.reset_to(item_bytes))?;
        open.pull.item_bytes = item_bytes as u32;
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
            // SAFETY: not null, so the header asks for one that was not freed.
            unsafe { argument::reference(conveyor, "conveyor")? }
                .home
                .check("conveyor")?;
            // SAFETY: made by `trihop_conveyor_over`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(conveyor) });
            Ok(())
        };
        if guard(free) != trihop_status_t::TRIHOP_OK {
            tracing::warn!("a conveyor is not freed: it is another thread's");
        }
    }
}
