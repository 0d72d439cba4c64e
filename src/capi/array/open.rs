//! How arrays are opened.

use std::ffi::{c_char, c_void};

use super::element::{Element, Item, Packing, trihop_free_t, trihop_pack_t, trihop_unpack_t};
use super::{ArrayOf, Called, trihop_array_t};
use crate::capi::argument;
use crate::capi::callback::{Context, Gate, with_outbox};
use crate::capi::job::{JobOf, trihop_job_t};
use crate::capi::options::trihop_options_t;
use crate::capi::seat::{Either, Home, either};
use crate::capi::sized::load_sized;
use crate::capi::status::{Failure, guard, trihop_status_t};
use crate::{Rank, StreamOptions};

/// What the handler of an array is called with. Later versions add fields at the end.
#[repr(C)]
pub struct trihop_array_item_t {
    /// The array. The handler may send to it.
    pub array: *const trihop_array_t,
    /// That the item was sent to.
    pub key: u64,
    /// The element of the key, which the handler may change.
    pub element: *mut c_void,
    /// The item, aligned to 8 bytes; valid during the call only.
    pub bytes: *const c_void,
    /// Bytes of the item.
    pub length: usize,
    /// This rank.
    pub rank: u32,
    /// Ranks of the job.
    pub size: u32,
}

/// Called for each item, with the element that it was sent to and the `context` of the array. It
/// may push and broadcast, to its own array and others, send on any stream, have the element move
/// (`trihop_array_migrate`), and call `trihop_array_done`.
///
/// Threads: as `trihop_handler_t`.
pub type trihop_array_handler_t =
    Option<unsafe extern "C" fn(context: *mut c_void, item: *const trihop_array_item_t)>;

/// The rank that knows where the element of a key is: the same on all ranks, and for any key, since
/// those of other ranks are asked for too. It may not call the library.
///
/// Threads: any, several at once too.
pub type trihop_owner_t = Option<unsafe extern "C" fn(context: *mut c_void, key: u64) -> u32>;

/// What an array calls, and what its elements are. Fields that are not named are zero: of elements
/// that the library keeps, `element_bytes` is not; others are pointers of the program's, which move
/// where there are `pack` and `unpack`. Later versions add fields at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trihop_array_calls_t {
    /// Bytes of this struct as the caller knows it.
    pub size: usize,
    /// Called for each item.
    pub handler: trihop_array_handler_t,
    /// Handed to all functions.
    pub context: *mut c_void,
    /// Who knows where an element is; null: the ranks in turn, by key.
    pub owner: trihop_owner_t,
    /// Bytes of an element, where the library keeps elements: they are aligned to 16, and move byte
    /// by byte. 0: the program keeps them.
    pub element_bytes: usize,
    /// Writes an element of the program's as bytes; null: elements do not move.
    pub pack: trihop_pack_t,
    /// Makes an element of the program's of these bytes.
    pub unpack: trihop_unpack_t,
    /// Frees an element of the program's; null: nobody does.
    pub free: trihop_free_t,
}

impl trihop_array_calls_t {
    const NONE: Self = Self {
        size: 0,
        handler: None,
        context: std::ptr::null_mut(),
        owner: None,
        element_bytes: 0,
        pack: None,
        unpack: None,
        free: None,
    };

    /// How elements become bytes.
    fn packing(&self) -> Result<Packing, Failure> {
        let (pack, unpack, free) = (self.pack, self.unpack, self.free);
        if self.element_bytes == 0 {
            if pack.is_some() != unpack.is_some() {
                let why = "`pack` and `unpack` are given both, or none of them";
                return Err(Failure::argument(why));
            }
            let context = Context::new(self.context);
            return Ok(Packing::of_pointers(pack, unpack, free, context));
        }
        if pack.is_some() || unpack.is_some() || free.is_some() {
            let why = "`element_bytes` is for elements that the library keeps: `pack`, `unpack` \
                       and `free` are null there";
            return Err(Failure::argument(why));
        }
        Ok(Packing::of_bytes(self.element_bytes))
    }
}

/// Opens an array, without elements. Collective over all ranks: the same names in the same order,
/// with the same owners, sizes and options. `options` null stands for those of the job. `calls` is
/// copied. Items have any length up to `max_message_bytes` less 8.
///
/// Fails with `TRIHOP_ERR_INVALID_ARGUMENT` on `calls` that contradict each other or lack a
/// handler, and as `trihop_stream_open`.
/// Threads: any, but one that opens at a time; not inside a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_array_open(
    job: *const trihop_job_t,
    name: *const c_char,
    options: *const trihop_options_t,
    calls: *const trihop_array_calls_t,
    array: *mut *mut trihop_array_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(array, "array")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or a job that has not ended, a text that ends with NUL,
        // initialised options, and calls that begin with their size.
        let (job, name, options, calls) = unsafe {
            (
                argument::handle(job, "job")?,
                argument::text(name, "name")?,
                trihop_options_t::of_stream(options)?,
                load_sized(calls, trihop_array_calls_t::NONE, "calls")?,
            )
        };
        let packing = calls.packing()?;
        let handler = calls
            .handler
            .ok_or_else(|| Failure::argument("`handler` is a null pointer"))?;
        let (rank, size) = either!(&job.job, job => (job.rank().0, job.size()));
        // Its place is made first: handlers are told of it, and none is called before it is filled.
        let handle = Box::into_raw(Box::<trihop_array_t>::new_uninit());
        let caller = Caller {
            handler,
            context: Context::new(calls.context),
            array: Context::new(handle.cast()),
            rank,
            size,
        };
        let (gate, opened) = Gate::closed();
        match open(&job.job, name, options, calls.owner, packing, caller, gate) {
            Ok(array) => {
                // SAFETY: made above and nobody else's yet: handlers wait for `opened`, or for this
                // call's end.
                unsafe {
                    handle.cast::<trihop_array_t>().write(trihop_array_t {
                        home: Home::of(&array),
                        array,
                        size,
                    });
                }
                *place = handle.cast();
                drop(opened);
                Ok(())
            }
            Err(error) => {
                // SAFETY: made above; what was to use it is gone with the array.
                drop(unsafe { Box::from_raw(handle) });
                Err(error.into())
            }
        }
    })
}

/// What calls the handler of an array.
#[derive(Clone, Copy)]
struct Caller {
    handler: unsafe extern "C" fn(*mut c_void, *const trihop_array_item_t),
    context: Context,
    /// The array's handle, as the caller knows it.
    array: Context,
    rank: u32,
    size: u32,
}

impl Caller {
    /// Where the element is to move.
    fn call(&self, key: u64, element: &Element, item: &Item) -> Option<Rank> {
        let array = self.array.get().cast::<trihop_array_t>().cast_const();
        item.hand_to(|bytes, length| {
            let item = trihop_array_item_t {
                array,
                key,
                element: element.pointer(),
                bytes,
                length,
                rank: self.rank,
                size: self.size,
            };
            Called::during(array, key, || {
                // SAFETY: the header says how a handler is called, and this is how.
                unsafe { (self.handler)(self.context.get(), &raw const item) }
            })
        })
    }

    /// What the program says of the owner of a key.
    fn owner(&self, owner: unsafe extern "C" fn(*mut c_void, u64) -> u32, key: u64) -> Rank {
        // SAFETY: the header says how it is called, and this is how.
        Rank(unsafe { owner(self.context.get(), key) })
    }
}

/// Opens an array over the seat of `job`.
fn open(
    job: &JobOf,
    name: &str,
    options: Option<StreamOptions>,
    owner: Option<unsafe extern "C" fn(*mut c_void, u64) -> u32>,
    packing: Packing,
    caller: Caller,
    mut gate: Gate,
) -> crate::Result<ArrayOf> {
    match job {
        Either::Threaded(job) => {
            let mut builder = job.array::<Element, Item, _>(name, packing);
            if let Some(options) = options {
                builder = builder.options(options);
            }
            if let Some(owner) = owner {
                builder = builder.owner(move |key| caller.owner(owner, key));
            }
            let opened = builder.open(move |key, element, item, outbox| {
                gate.pass();
                if let Some(to) = caller.call(key, element, &item) {
                    // `trihop_array_migrate` has seen that there is such a rank.
                    let _ = outbox.migrate(to);
                }
            });
            Ok(Either::Threaded(opened?))
        }
        Either::Inline(job) => {
            let mut builder = job.array::<Element, Item, _>(name, packing);
            if let Some(options) = options {
                builder = builder.options(options);
            }
            if let Some(owner) = owner {
                builder = builder.owner(move |key| caller.owner(owner, key));
            }
            let opened = builder.open(move |key, element, item, outbox| {
                let call = || caller.call(key, element, &item);
                let to = with_outbox(&mut outbox.outbox().into(), call);
                if let Some(to) = to {
                    let _ = outbox.migrate(to); // as above
                }
            });
            Ok(Either::Inline(opened?))
        }
    }
}
