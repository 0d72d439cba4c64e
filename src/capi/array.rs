//! Arrays: elements with keys, to which items are sent by key.

pub mod element;
pub mod open;

use std::cell::Cell;
use std::ffi::c_void;
use std::os::raw::c_int;
use std::ptr::{null, null_mut};

use super::argument;
use super::callback::send_by_outbox;
use super::seat::{Either, Home, Homed, either};
use super::status::{Failure, guard, trihop_status_t};
use super::stream::step::{begin_step, trihop_step_options_t};
use super::stream::trihop_contributors_t;
use crate::{Array, ArrayOutbox, End, Error, Rank, threaded};
use element::{Element, Item, Packing};

/// Elements with keys of 64 bits, of which each rank of a job has some, and to which items are sent
/// by key: the cells of a grid, the vertices of a graph, the patients of a simulation. An element
/// may move to another rank, between steps or while items are on their way to it: they are sent on
/// to where it is, each exactly once. What is sent to one element keeps its order as long as that
/// stays.
///
/// The owner of a key knows where its element is: what is sent to an element that is with its owner
/// goes straight there. All ranks insert their elements and then call `trihop_array_fence`, before
/// anybody sends to them. A rank keeps the broadcasts of a step and of the one before, for elements
/// that come to it: steps end by the calls of the array, not by `trihop_fence` alone.
///
/// ```c
/// struct cell { double heat; };
///
/// static void add(void *context, const trihop_array_item_t *item)
/// {
///     struct cell *cell = item->element;
///     cell->heat += *(const double *)item->bytes;
///     if (cell->heat > 100)
///         trihop_array_migrate(item->array, item->key, (item->rank + 1) % item->size);
/// }
///
/// trihop_array_calls_t calls = {sizeof calls, add, .element_bytes = sizeof(struct cell)};
/// trihop_array_open(job, "cells", NULL, &calls, &cells);
/// for (uint64_t key = rank; key < 1000; key += size)
///     trihop_array_insert(cells, key, &(struct cell){0});
/// trihop_array_fence(cells);
/// trihop_array_push(cells, 17, &heat, sizeof heat);
/// trihop_array_fence(cells);
/// trihop_array_close(cells);
/// ```
///
/// Threads: as `trihop_stream_t`. While the handler works on what has come in a run, calls of other
/// threads that use elements wait: insert, remove, migrate, each, count and late.
pub struct trihop_array_t {
    home: Home,
    array: ArrayOf,
    /// Ranks of the job.
    size: u32,
}

/// An array over either seat.
type ArrayOf =
    Either<threaded::Array<Element, Item, Packing>, Array<'static, Element, Item, Packing>>;

/// What the outbox of an inline job has for an array.
type OutboxOf<'a> = ArrayOutbox<'a, 'static, Element, Item, Packing>;

impl Homed for trihop_array_t {
    fn home(&self) -> Home {
        self.home
    }
}

/// Called for an element that is here: see `trihop_array_each`.
pub type trihop_array_visitor_t =
    Option<unsafe extern "C" fn(context: *mut c_void, key: u64, element: *mut c_void)>;

/// The element that a handler is called for.
struct Called {
    array: *const trihop_array_t,
    key: u64,
    /// Where it is to move.
    to: Cell<Option<Rank>>,
}

thread_local! {
    /// That of the handler that is being called on this thread.
    static CALLED: Cell<*const Called> = const { Cell::new(std::ptr::null()) };
}

impl Called {
    /// Makes a call of the handler; where its element is to move.
    fn during(array: *const trihop_array_t, key: u64, call: impl FnOnce()) -> Option<Rank> {
        let called = Self {
            array,
            key,
            to: Cell::new(None),
        };
        // It does not call itself: what it sends is handled later.
        CALLED.set(&raw const called);
        call();
        CALLED.set(std::ptr::null());
        called.to.take()
    }

    /// Uses that of the handler which is being called on this thread, if one of this array is.
    fn of<R>(array: *const trihop_array_t, call: impl FnOnce(&Self) -> R) -> Option<R> {
        // SAFETY: null, or `during` is up the stack, which has it.
        let called = unsafe { CALLED.get().as_ref() }?;
        std::ptr::eq(called.array, array).then(|| call(called))
    }
}

/// Runs `call` on the array.
///
/// # Safety
/// `array` is null or an array that was not closed.
unsafe fn with(
    array: *const trihop_array_t,
    call: impl FnOnce(&trihop_array_t) -> Result<(), Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        call(unsafe { argument::handle(array, "array")? })
    })
}

/// Sends to an array: inside a handler of an inline job by the handler's outbox.
fn send(
    array: &trihop_array_t,
    by_threaded: impl FnOnce(&threaded::Array<Element, Item, Packing>) -> crate::Result<()>,
    by_inline: impl FnOnce(&Array<'static, Element, Item, Packing>) -> crate::Result<()>,
    by_outbox: impl FnOnce(&mut OutboxOf<'_>) -> crate::Result<()>,
) -> Result<(), Failure> {
    let array = match &array.array {
        Either::Threaded(array) => return Ok(by_threaded(array)?),
        Either::Inline(array) => array,
    };
    let sent = send_by_outbox(|outbox| {
        let mut outbox = outbox.outbox();
        let mut to = outbox.to(array)?;
        Ok(by_outbox(&mut to))
    });
    match sent {
        Some(Ok(sent)) => sent?,
        None => by_inline(array)?,
        // It is of another job, or closed.
        Some(Err(closed)) => by_inline(array).map_err(|error| match error {
            Error::Nested(_) => closed,
            error => error,
        })?,
    }
    Ok(())
}

/// Sends an item to the element of a key.
fn push(array: &trihop_array_t, key: u64, item: &Item) -> Result<(), Failure> {
    send(
        array,
        |array| array.push(key, item),
        |array| array.push(key, item),
        |outbox| outbox.push(key, item),
    )
}

/// Runs `call` on the array and on an item of the caller's.
///
/// # Safety
/// As [`with`]; `item` is null or `length` bytes that nobody changes meanwhile.
unsafe fn with_item(
    array: *const trihop_array_t,
    item: *const c_void,
    length: usize,
    call: impl FnOnce(&trihop_array_t, &Item) -> Result<(), Failure>,
) -> trihop_status_t {
    let call = |array: &trihop_array_t| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { argument::bytes(item, length, "item")? };
        Item::over(bytes, |item| call(array, item))
    };
    // SAFETY: as the caller promises.
    unsafe { with(array, call) }
}

/// From now on, what this rank pushes to elements whose owner it is, is handed to the handler in
/// the push itself, where the element is here; else it is sent on at once. Called once, behind the
/// opening; other ranks need not do the same. Of inline jobs. Order is kept, as
/// `trihop_stream_own_at_once` says; broadcasts go the usual way, and so does what handlers, and
/// visitors of `trihop_array_each`, push.
///
/// Fails with `TRIHOP_ERR_CONFIG` on a job with threads. Not inside a handler.
/// Threads: the one of the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_own_at_once(array: *mut trihop_array_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or an array that was not closed.
        let open = unsafe { argument::handle(array, "array")? };
        let asked = match &open.array {
            Either::Threaded(array) => return Ok(array.clone().own_at_once()?),
            Either::Inline(array) => {
                let mut array = array.clone();
                array.own_at_once()?;
                Either::Inline(array)
            }
        };
        // SAFETY: as above; no call on it is under way, since that would have been refused, and one
        // thread makes them all.
        unsafe { argument::place(array, "array")? }.array = asked;
        Ok(())
    })
}

/// Puts an element here, which everybody sends to after the next fence, not before. Where the
/// library keeps elements (`element_bytes`) it is copied; else `element` is a pointer of the
/// program's that the array has from now on.
///
/// Fails with `TRIHOP_ERR_MISUSE` where this rank has the key, or knows where else it is (where
/// only its owner finds that another rank has it, the job ends with `TRIHOP_ERR_BAD_PEER`), inside
/// a handler of the array, or of an inline job, or a visitor with `TRIHOP_ERR_NESTED`; on an owner
/// that is no rank; and as `trihop_stream_send`. Then the element stays the program's.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_insert(
    array: *const trihop_array_t,
    key: u64,
    element: *const c_void,
) -> trihop_status_t {
    let insert = |array: &trihop_array_t| {
        let packing = either!(&array.array, array => array.codec());
        // SAFETY: the header asks for null, or an element that the array may have or copy.
        let made = unsafe { packing.element(element)? };
        let inserted = either!(&array.array, array => array.insert_with(key, || made.give()));
        Ok(inserted?)
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, insert) }
}

/// Takes an element that is here away, and stores it in `element`: it is the program's then, and
/// one that the library has kept is freed by `free`. Null is stored where it is not here. Where
/// `element` is null it is freed. What is sent to it later ends the job with `TRIHOP_ERR_BAD_PEER`.
/// Its key may be inserted again once three steps, or fences, are over.
///
/// Fails with `TRIHOP_ERR_NESTED` as `trihop_array_insert`, and as `trihop_stream_send`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_remove(
    array: *const trihop_array_t,
    key: u64,
    element: *mut *mut c_void,
) -> trihop_status_t {
    let remove = |array: &trihop_array_t| {
        let removed = either!(&array.array, array => array.remove(key))?;
        if !element.is_null() {
            // SAFETY: not null, so the header asks for a place for a pointer.
            let place = unsafe { argument::place(element, "element")? };
            *place = removed.map_or(null_mut(), Element::into_pointer);
        }
        Ok(())
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, remove) }
}

/// Sends an item of `length` bytes, which are copied, to the element of a key, wherever that is.
/// Waits while there is no room, but not inside a handler, as `trihop_stream_send`.
///
/// Fails as that, and on an owner that is no rank. Where no rank has the element, the job ends with
/// `TRIHOP_ERR_BAD_PEER`.
/// Threads: any, and inside handlers. There is no order between what different threads send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_push(
    array: *const trihop_array_t,
    key: u64,
    item: *const c_void,
    length: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or an array that was not closed, and for `length` bytes that
    // nobody changes during the call.
    unsafe { with_item(array, item, length, |array, item| push(array, key, item)) }
}

/// As `trihop_array_push`, but where there is no room now it fails with `TRIHOP_ERR_WOULD_BLOCK`
/// and has taken nothing. Inside a handler of an inline job it is `trihop_array_push`, which does
/// not wait there either.
///
/// Threads: any. It waits for the engine while another thread has it, never for room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_try_push(
    array: *const trihop_array_t,
    key: u64,
    item: *const c_void,
    length: usize,
) -> trihop_status_t {
    // SAFETY: as for `trihop_array_push`.
    unsafe {
        with_item(array, item, length, |array, item| {
            send(
                array,
                |array| array.try_push(key, item),
                |array| array.try_push(key, item),
                |outbox| outbox.push(key, item),
            )
        })
    }
}

/// Sends `count` items of `length` bytes each, one after the other in memory, each to the element
/// of the key in its place of `keys`. How many were taken goes to `sent`, which may be null:
/// `count` unless the call fails. Otherwise as `trihop_array_push`.
///
/// Threads: any, and inside handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_push_many(
    array: *const trihop_array_t,
    keys: *const u64,
    items: *const c_void,
    length: usize,
    count: usize,
    sent: *mut usize,
) -> trihop_status_t {
    let push = |array: &trihop_array_t| {
        let bytes = count.checked_mul(length).ok_or_else(|| {
            Failure::argument(format!(
                "{count} items of {length} bytes are more than memory can hold"
            ))
        })?;
        // SAFETY: the header asks for `count` keys and items that nobody changes during the call.
        let (keys, items) = unsafe {
            (
                argument::slice(keys, count, "keys")?,
                argument::bytes(items, bytes, "items")?,
            )
        };
        let mut taken = 0;
        let mut push_one = |(at, &key): (usize, &u64)| {
            let item = &items[at * length..(at + 1) * length];
            Item::over(item, |item| push(array, key, item))?;
            taken = at + 1;
            Ok(())
        };
        let outcome = keys.iter().enumerate().try_for_each(&mut push_one);
        if !sent.is_null() {
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(sent, "sent")? } = taken;
        }
        outcome
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, push) }
}

/// Sends an item to every element, each of which gets it once, also one that moves meanwhile. It
/// crosses the job as a broadcast of a stream does. Otherwise as `trihop_array_push`.
///
/// Threads: any, and inside handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_broadcast(
    array: *const trihop_array_t,
    item: *const c_void,
    length: usize,
) -> trihop_status_t {
    // SAFETY: as for `trihop_array_push`.
    unsafe {
        with_item(array, item, length, |array, item| {
            send(
                array,
                |array| array.broadcast(item),
                |array| array.broadcast(item),
                |outbox| outbox.broadcast(item),
            )
        })
    }
}

/// Has an element that is here move to another rank: it is packed here, freed, and unpacked there.
/// Inside the array's handler it is the element that this is called for, and moves as soon as the
/// handler has returned; what keeps it from moving then is said by the program's next call of the
/// array, with the element still here.
///
/// Fails with `TRIHOP_ERR_MISUSE` where it is not here, with `TRIHOP_ERR_RANK`, with
/// `TRIHOP_ERR_CONFIG` where it cannot be packed, with `TRIHOP_ERR_NESTED` inside the array's
/// handler for another element, and as `trihop_array_insert`; and as `trihop_stream_send`. Then it
/// stays.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_migrate(
    array: *const trihop_array_t,
    key: u64,
    to: u32,
) -> trihop_status_t {
    let migrate = |open: &trihop_array_t| {
        let own = Called::of(array, |called| {
            if called.key != key {
                return Err(Error::Nested("the migration of another element").into());
            }
            if to >= open.size {
                let (rank, size) = (to, open.size);
                return Err(Error::Rank { rank, size }.into());
            }
            called.to.set(Some(Rank(to)));
            Ok(())
        });
        own.unwrap_or_else(|| {
            either!(&open.array, array => array.migrate(key, Rank(to))).map_err(Failure::from)
        })
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, migrate) }
}

/// Calls `visitor` with `context` for every element that is here, in no order, before it returns.
/// Handlers wait meanwhile, or on an inline job no progress is made. The visitor may push, but that
/// waits for no room: where there is none it fails with `TRIHOP_ERR_WOULD_BLOCK`.
///
/// Fails with `TRIHOP_ERR_NESTED` inside itself, and inside handlers of arrays.
/// Threads: any; `visitor` is called on the thread that calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_each(
    array: *const trihop_array_t,
    visitor: trihop_array_visitor_t,
    context: *mut c_void,
) -> trihop_status_t {
    let each = |array: &trihop_array_t| {
        let visitor = visitor.ok_or_else(|| Failure::argument("`visitor` is a null pointer"))?;
        let visit = |key, element: &mut Element| {
            // SAFETY: the header says how it is called, and this is how.
            unsafe { visitor(context, key, element.pointer()) }
        };
        either!(&array.array, array => array.with(visit))?;
        Ok(())
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, each) }
}

/// Stores how many elements are here.
///
/// Fails with `TRIHOP_ERR_NESTED` inside a visitor, and inside handlers of arrays.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_count(
    array: *const trihop_array_t,
    count: *mut usize,
) -> trihop_status_t {
    let give = |array: &trihop_array_t| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(count, "count")? };
        *place = either!(&array.array, array => array.count())?;
        Ok(())
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, give) }
}

/// Stores how many items have come here for elements elsewhere, and were sent on.
///
/// Fails as `trihop_array_count`.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_late(
    array: *const trihop_array_t,
    late: *mut u64,
) -> trihop_status_t {
    let give = |array: &trihop_array_t| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(late, "late")? };
        *place = either!(&array.array, array => array.late())?;
        Ok(())
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, give) }
}

/// Returns on every rank when all that any rank sent before is handled, also what handlers sent
/// because of it, and every element is where it was sent. Collective over all ranks; not inside a
/// handler.
///
/// Threads: any, one fence of an array at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_fence(array: *const trihop_array_t) -> trihop_status_t {
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe {
        with(array, |array| {
            Ok(either!(&array.array, array => array.fence())?)
        })
    }
}

/// Starts a fence, and does not wait: `trihop_array_test` and `trihop_array_wait` say when it is
/// over. Until then only handlers push to the array. Collective over all ranks; not inside a
/// handler.
///
/// Threads: as `trihop_array_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_start_fence(array: *const trihop_array_t) -> trihop_status_t {
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe {
        with(array, |array| {
            Ok(either!(&array.array, array => array.start_fence())?)
        })
    }
}

/// Begins a step of which each element is a contributor, wherever it is by then: a rank without any
/// is done at once. Waits until all ranks do. The step is over when `trihop_array_done` was called
/// for each of them and all that was sent is handled: `trihop_array_test` and `trihop_array_wait`
/// say when. A rank that calls it for its own elements counts them before, behind the last fence or
/// step: items of others may have some move as soon as the step has begun. Nobody inserts or
/// removes elements meanwhile. See `trihop_stream_begin_step`. Collective over all ranks; not
/// inside a handler.
///
/// Threads: as `trihop_array_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_begin_step(array: *const trihop_array_t) -> trihop_status_t {
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe {
        with(array, |array| {
            Ok(either!(&array.array, array => array.begin_step())?)
        })
    }
}

/// As `trihop_array_begin_step`, with all that a step can have, and of contributors that the program
/// counts: it waits for nobody, and may begin at the end of the step before. What is called gets a
/// null stream: the array is in its context. See `trihop_step_options_t`.
///
/// Threads: as `trihop_stream_begin_step_with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_begin_step_with(
    array: *const trihop_array_t,
    options: *const trihop_step_options_t,
) -> trihop_status_t {
    let end = |options: &trihop_step_options_t| {
        let of = trihop_contributors_t::parse(options.of, options.count)?;
        Ok(End::Completion(of))
    };
    // SAFETY: the header asks for null or an array that was not closed, and for null or initialised
    // options.
    unsafe { begin_with(array, options, end) }
}

/// Begins a step of an array, by the end that `end` gives, with what its options have.
///
/// # Safety
/// `array` is null or an array that was not closed, `options` null or initialised.
unsafe fn begin_with(
    array: *const trihop_array_t,
    options: *const trihop_step_options_t,
    end: impl FnOnce(&trihop_step_options_t) -> Result<End, Failure>,
) -> trihop_status_t {
    let begin = |array: &trihop_array_t| {
        // SAFETY: as the caller promises.
        let options = unsafe { trihop_step_options_t::load(options)? };
        let end = end(&options)?;
        // A clone: what is called may change the array's own.
        let open = array.array.clone();
        either!(&open, array => begin_step!(array.step_of(end)?, options, null()))
    };
    // SAFETY: as the caller promises.
    unsafe { with(array, begin) }
}

/// As `trihop_array_start_fence`, with a priority and with calls: what `at_start` pushes, the fence
/// waits for, and `at_end` may start the next. `count` and `of` of its options are not used.
///
/// Threads: as `trihop_array_begin_step_with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_start_fence_with(
    array: *const trihop_array_t,
    options: *const trihop_step_options_t,
) -> trihop_status_t {
    // SAFETY: the header asks for null or an array that was not closed, and for null or initialised
    // options.
    unsafe { begin_with(array, options, |_| Ok(End::Fence)) }
}

/// So many elements have sent what they have to send in the step, on whichever rank they are.
/// Otherwise as `trihop_stream_done`, of contributors of all ranks.
///
/// Threads: any, and inside handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_done(
    array: *const trihop_array_t,
    elements: u64,
) -> trihop_status_t {
    let done = |array: &trihop_array_t| {
        send(
            array,
            |array| array.done(elements),
            |array| array.done(elements),
            |outbox| outbox.done(elements),
        )
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, done) }
}

/// Makes one round of progress, and stores 1 where the step is over, else 0. That it is over is
/// said once; without a step it fails with `TRIHOP_ERR_MISUSE`. Not inside a handler.
///
/// Threads: as `trihop_array_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_test(
    array: *const trihop_array_t,
    is_over: *mut c_int,
) -> trihop_status_t {
    let test = |array: &trihop_array_t| {
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(is_over, "is_over")? };
        *place = either!(&array.array, array => array.test())?.into();
        Ok(())
    };
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe { with(array, test) }
}

/// Waits until the step is over; without a step it fails with `TRIHOP_ERR_MISUSE`. Not inside a
/// handler.
///
/// Threads: as `trihop_array_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_wait(array: *const trihop_array_t) -> trihop_status_t {
    // SAFETY: the header asks for null or an array that was not closed.
    unsafe {
        with(array, |array| {
            Ok(either!(&array.array, array => array.wait())?)
        })
    }
}

/// Fences the array and closes it; elements that are here are freed. Collective over all ranks,
/// unless the job has ended. The handler is not called any more once this has returned. The array
/// is gone afterwards, whatever is returned, but where that is `TRIHOP_ERR_NESTED`, inside a
/// handler or a visitor, or `TRIHOP_ERR_MISUSE`, in a step whose contributors of this rank are not
/// done, or beside a fence of all streams: it may be closed again then.
///
/// Threads: any, but no other call on the array may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_close(array: *mut trihop_array_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or an array that was not closed.
        let open = unsafe { argument::handle(array, "array")? };
        let outcome = either!(&open.array, array => array.close().map(drop));
        // SAFETY: made by `trihop_array_open`; the header allows no other call on it.
        unsafe { argument::closed(array, outcome) }
    })
}
