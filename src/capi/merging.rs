//! Items that are merged before they leave.

use std::ffi::c_void;

use super::argument;
use super::callback::Context;
use super::seat::{Either, Home, Homed, either};
use super::status::{Failure, guard, guard_or, trihop_status_t};
use super::stream::send::push_item;
use super::stream::{StreamOf, trihop_stream_t};
use crate::{MergingTable, Rank};

/// Items of a stream that are merged at their sender: a table keeps the last item for a rank and a
/// key, and what comes for the same two joins it. An item leaves its place when another one needs
/// that, and all do at `trihop_merging_flush`: memory is bounded, and what is common travels seldom.
/// Items for one rank do not keep their order.
///
/// Handlers may push to it too, also that of the stream it is before. What they push during a flush
/// may stay in the table, so where handlers push, flush and fence until no rank holds an item:
///
/// ```c
/// do {
///     trihop_merging_flush(merging);
///     trihop_stream_fence(stream);
///     held = trihop_merging_held(merging);
///     trihop_allreduce(job, TRIHOP_SUM, &held, 1);
/// } while (held > 0);
/// ```
///
/// Threads: any of a threaded job; of an inline job that which has started it.
pub struct trihop_merging_t {
    home: Home,
    stream: StreamOf,
    table: MergingTable,
    key: unsafe extern "C" fn(*mut c_void, *const c_void) -> u64,
    merge: unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void),
    context: Context,
}

impl Homed for trihop_merging_t {
    fn home(&self) -> Home {
        self.home
    }
}

/// Says what an item is about.
pub type trihop_key_t =
    Option<unsafe extern "C" fn(context: *mut c_void, item: *const c_void) -> u64>;

/// Joins `item` to `before`, an item of the same key; that stays the key of `before`.
pub type trihop_merge_t =
    Option<unsafe extern "C" fn(context: *mut c_void, before: *mut c_void, item: *const c_void)>;

/// Makes a table of `places` items, rounded up to a power of two and to four, before a stream of
/// items, which is used as ever beside it. `key` and `merge` are called with `context`, inside of
/// `trihop_merging_push`, and may not call the library.
///
/// Fails with `TRIHOP_ERR_CONFIG` on a stream of records.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_merging_over(
    stream: *const trihop_stream_t,
    places: usize,
    key: trihop_key_t,
    merge: trihop_merge_t,
    context: *mut c_void,
    merging: *mut *mut trihop_merging_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(merging, "merging")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or a stream that was not closed.
        let open = unsafe { argument::handle(stream, "stream")? };
        let key = key.ok_or_else(|| Failure::argument("`key` is a null pointer"))?;
        let merge = merge.ok_or_else(|| Failure::argument("`merge` is a null pointer"))?;
        let item_bytes = either!(open.of(), stream => stream.item_bytes());
        if item_bytes == 0 {
            let why = "items are merged, and the stream has records".to_owned();
            return Err(Failure::new(trihop_status_t::TRIHOP_ERR_CONFIG, why));
        }
        let is_shared = matches!(open.of(), Either::Threaded(_));
        *place = Box::into_raw(Box::new(trihop_merging_t {
            home: Home::of(open.of()),
            stream: open.of().clone(),
            table: MergingTable::new(places, item_bytes, open.size(), is_shared)?,
            key,
            merge,
            context: Context::new(context),
        }));
        Ok(())
    })
}

/// Sends an item, or merges it with one for the same rank and of the same key that has not left.
/// Waits as `trihop_stream_push` does, inside a handler too.
///
/// Fails on a bad rank, and as `trihop_stream_push`, of the item that has to leave for it: then that
/// stays, and this one is not taken.
/// Threads: as `trihop_merging_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_merging_push(
    merging: *const trihop_merging_t,
    target: u32,
    item: *const c_void,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or one that was not freed.
        let open = unsafe { argument::handle(merging, "merging")? };
        let item_bytes = either!(&open.stream, stream => stream.item_bytes());
        // SAFETY: the header asks for one item that nobody changes during the call.
        let item = unsafe { argument::bytes(item, item_bytes, "item")? };
        let (key, merge, context) = (open.key, open.merge, open.context.get());
        open.table.push(
            Rank(target),
            item,
            // SAFETY: the header says how it is called, and this is how.
            |item| unsafe { key(context, item.as_ptr().cast()) },
            |before, item| {
                let (before, item) = (before.as_mut_ptr().cast(), item.as_ptr().cast());
                // SAFETY: as above.
                unsafe { merge(context, before, item) }
            },
            |target, item| push_item(&open.stream, target, item),
        )
    })
}

/// Lets the items leave that are in the table, place by place: before a fence, a round, a flush or the close of the
/// stream, which know nothing of them.
///
/// Fails as `trihop_stream_push`; what has not left then stays.
/// Threads: as `trihop_merging_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_merging_flush(merging: *const trihop_merging_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or one that was not freed.
        let open = unsafe { argument::handle(merging, "merging")? };
        let send = |target, item: &[u8]| push_item(&open.stream, target, item);
        open.table.flush(send)
    })
}

/// How many items joined another one instead of travelling; 0 for a null pointer.
///
/// Threads: as `trihop_merging_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_merging_merged(merging: *const trihop_merging_t) -> u64 {
    // SAFETY: the header asks for null or one that was not freed.
    unsafe { count_of(merging, MergingTable::merged) }
}

/// How many items are in the table; 0 for a null pointer.
///
/// Threads: as `trihop_merging_t` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_merging_held(merging: *const trihop_merging_t) -> u64 {
    let held = |table: &MergingTable| Ok(table.held()? as u64);
    // SAFETY: the header asks for null or one that was not freed.
    unsafe { count_of(merging, held) }
}

/// A number of a table.
///
/// # Safety
/// `merging` is null or one that was not freed.
unsafe fn count_of(
    merging: *const trihop_merging_t,
    count: impl FnOnce(&MergingTable) -> crate::Result<u64>,
) -> u64 {
    if merging.is_null() {
        return 0;
    }
    guard_or(|| {
        // SAFETY: as the caller promises.
        let open = unsafe { argument::handle(merging, "merging")? };
        Ok(count(&open.table)?)
    })
    .unwrap_or(0)
}

/// Frees the table; items that are still in it are given up. Its stream goes on. Null is ignored.
///
/// Threads: any, but no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_merging_free(merging: *mut trihop_merging_t) {
    if !merging.is_null() {
        let free = || {
            // SAFETY: not null, so the header asks for one that was not freed.
            unsafe { argument::handle(merging, "merging")? };
            // SAFETY: made by `trihop_merging_over`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(merging) });
            Ok(())
        };
        if guard(free) != trihop_status_t::TRIHOP_OK {
            tracing::warn!("a merging table is not freed: it is another thread's");
        }
    }
}
