//! Elements and items of C programs, and how they become bytes.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Codec;
use crate::capi::argument;
use crate::capi::callback::Context;
use crate::capi::status::{Failure, guard, trihop_status_t};

/// What an element is packed into: see `trihop_pack`.
pub struct trihop_packer_t {
    bytes: Vec<u8>,
}

/// Writes an element as bytes by calls of `trihop_pack`, so that it can move; 0, or any other
/// number where it cannot: then it stays. It may call nothing else of the library.
///
/// Threads: called inside `trihop_array_migrate`, or behind a handler on its thread.
pub type trihop_pack_t = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        element: *const c_void,
        packer: *mut trihop_packer_t,
    ) -> i32,
>;

/// Makes an element of the `length` bytes that were packed on another rank, aligned to 8; null
/// where they are none, which ends the job with `TRIHOP_ERR_BAD_PEER`. It may not call the library.
///
/// Threads: as the handler.
pub type trihop_unpack_t = Option<
    unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, length: usize) -> *mut c_void,
>;

/// Frees an element that has moved away, or is left when the array goes. It may not call the
/// library.
///
/// Threads: any.
pub type trihop_free_t = Option<unsafe extern "C" fn(context: *mut c_void, element: *mut c_void)>;

/// Appends `length` bytes to what an element is packed into.
///
/// Threads: that which calls the function that packs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_pack(
    packer: *mut trihop_packer_t,
    bytes: *const c_void,
    length: usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or the packer of the call, and for `length` bytes.
        let (packer, bytes) = unsafe {
            (
                argument::place(packer, "packer")?,
                argument::bytes(bytes, length, "bytes")?,
            )
        };
        packer.bytes.try_reserve(length).map_err(|_| {
            let why = format!("no memory for {length} more bytes of an element");
            Failure::new(trihop_status_t::TRIHOP_ERR_NO_MEMORY, why)
        })?;
        packer.bytes.extend_from_slice(bytes);
        Ok(())
    })
}

/// What the elements of an array are.
enum Kind {
    /// So many bytes, from `malloc`.
    Bytes(usize),
    /// Pointers of the program's.
    Pointers {
        pack: trihop_pack_t,
        unpack: trihop_unpack_t,
        free: trihop_free_t,
        context: Context,
    },
}

/// How elements and items of an array become bytes and back.
#[derive(Clone)]
pub(crate) struct Packing(Arc<Kind>);

/// An element of a C program: freed when it is dropped.
pub(crate) struct Element {
    pointer: NonNull<c_void>,
    packing: Packing,
}

// SAFETY: the header says that elements are used on the threads of handlers and of callers, one at
// a time, and that any thread may free them.
unsafe impl Send for Element {}

/// An element that is not the array's yet.
pub(super) struct Given<'a> {
    element: NonNull<c_void>,
    /// The copy of one that the library keeps.
    copy: Option<Element>,
    packing: &'a Packing,
}

/// The bytes of an item, for as long as [`Item::over`] or the handler's call lasts.
pub(crate) struct Item {
    bytes: *const u8,
    length: usize,
}

impl Packing {
    /// Of elements that the library keeps, of `bytes` bytes each.
    pub(super) fn of_bytes(bytes: usize) -> Self {
        Self(Arc::new(Kind::Bytes(bytes)))
    }

    /// Of elements that are the program's.
    pub(super) fn of_pointers(
        pack: trihop_pack_t,
        unpack: trihop_unpack_t,
        free: trihop_free_t,
        context: Context,
    ) -> Self {
        Self(Arc::new(Kind::Pointers {
            pack,
            unpack,
            free,
            context,
        }))
    }

    /// An element of the caller's, which is copied where the library keeps elements.
    ///
    /// # Safety
    /// `element` is null, or one that the array may have; of elements that the library
    /// keeps, as many bytes as these have, which nobody changes meanwhile.
    pub(super) unsafe fn element(&self, element: *const c_void) -> Result<Given<'_>, Failure> {
        let place = NonNull::new(element.cast_mut());
        let place = place.ok_or_else(|| Failure::argument("`element` is a null pointer"))?;
        let copy = match *self.0 {
            Kind::Bytes(length) => {
                // SAFETY: as the caller promises.
                let bytes = unsafe { argument::bytes(element, length, "element")? };
                Some(self.copied(bytes).ok_or_else(|| {
                    let why = format!("no memory for an element of {length} bytes");
                    Failure::new(trihop_status_t::TRIHOP_ERR_NO_MEMORY, why)
                })?)
            }
            Kind::Pointers { .. } => None,
        };
        Ok(Given {
            element: place,
            copy,
            packing: self,
        })
    }

    fn copied(&self, bytes: &[u8]) -> Option<Element> {
        // SAFETY: any number of bytes may be asked for.
        let pointer = NonNull::new(unsafe { libc::malloc(bytes.len()) })?;
        // SAFETY: as many bytes were made just now.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.as_ptr().cast(), bytes.len());
        }
        Some(self.having(pointer))
    }

    fn having(&self, pointer: NonNull<c_void>) -> Element {
        let packing = self.clone();
        Element { pointer, packing }
    }
}

impl Given<'_> {
    /// It is the array's from now on.
    pub(super) fn give(self) -> Element {
        self.copy
            .unwrap_or_else(|| self.packing.having(self.element))
    }
}

impl Element {
    pub(super) fn pointer(&self) -> *mut c_void {
        self.pointer.as_ptr()
    }

    /// It is the program's from now on.
    pub(super) fn into_pointer(self) -> *mut c_void {
        let element = ManuallyDrop::new(self);
        // SAFETY: never used again, nor dropped.
        drop(unsafe { std::ptr::read(&raw const element.packing) });
        element.pointer()
    }
}

impl Drop for Element {
    fn drop(&mut self) {
        match &*self.packing.0 {
            // SAFETY: from `malloc`, and nobody else has it.
            Kind::Bytes(_) => unsafe { libc::free(self.pointer()) },
            Kind::Pointers { free, context, .. } => {
                if let Some(free) = free {
                    // SAFETY: the header says how it is called, and this is how.
                    unsafe { free(context.get(), self.pointer()) }
                }
            }
        }
    }
}

impl Codec<Element> for Packing {
    fn encode(&self, element: &Element, bytes: &mut Vec<u8>) -> Result<(), String> {
        match &*self.0 {
            Kind::Bytes(length) => {
                let pointer = element.pointer().cast::<u8>();
                // SAFETY: an element has as many, and whoever has it here is alone with it.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(pointer, *length) });
                Ok(())
            }
            Kind::Pointers { pack: None, .. } => {
                Err("elements move where the array was opened with `pack` and `unpack`".to_owned())
            }
            Kind::Pointers {
                pack: Some(pack),
                context,
                ..
            } => {
                let mut packer = trihop_packer_t {
                    bytes: std::mem::take(bytes),
                };
                // SAFETY: the header says how it is called, and this is how.
                let status = unsafe { pack(context.get(), element.pointer(), &raw mut packer) };
                *bytes = packer.bytes;
                match status {
                    0 => Ok(()),
                    status => Err(format!("the element was not packed: status {status}")),
                }
            }
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Element, String> {
        match &*self.0 {
            Kind::Bytes(length) if *length == bytes.len() => {
                let none = || format!("no memory for an element of {length} bytes");
                self.copied(bytes).ok_or_else(none)
            }
            Kind::Bytes(length) => {
                let got = bytes.len();
                Err(format!("{got} bytes where an element has {length}"))
            }
            Kind::Pointers { unpack: None, .. } => {
                Err("an element has come, and the array was opened without `unpack`".to_owned())
            }
            Kind::Pointers {
                unpack: Some(unpack),
                context,
                ..
            } => {
                let length = bytes.len();
                let made = aligned(bytes, |bytes| {
                    // SAFETY: the header says how it is called, and this is how.
                    unsafe { unpack(context.get(), bytes.cast(), length) }
                });
                match NonNull::new(made) {
                    Some(pointer) => Ok(self.having(pointer)),
                    None => Err(format!("`unpack` refuses an element of {length} bytes")),
                }
            }
        }
    }
}

impl Item {
    /// An item of the caller's.
    pub(super) fn over<R>(bytes: &[u8], call: impl FnOnce(&Self) -> R) -> R {
        call(&Self::of(bytes))
    }

    fn of(bytes: &[u8]) -> Self {
        let (bytes, length) = (bytes.as_ptr(), bytes.len());
        Self { bytes, length }
    }

    /// Hands out its bytes, aligned to 8, and their number.
    pub(super) fn hand_to<R>(&self, call: impl FnOnce(*const c_void, usize) -> R) -> R {
        aligned(self.bytes(), |bytes| call(bytes.cast(), self.length))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: made of a slice that outlives it: of the caller of `over`, or of the record that
        // the handler is called for.
        unsafe { std::slice::from_raw_parts(self.bytes, self.length) }
    }
}

impl Codec<Item> for Packing {
    fn encode(&self, item: &Item, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.extend_from_slice(item.bytes());
        Ok(())
    }

    /// What was decoded is used during the handler's call, and the record lives longer.
    fn decode(&self, bytes: &[u8]) -> Result<Item, String> {
        Ok(Item::of(bytes))
    }
}

/// Hands out bytes where they are aligned to 8, as those of records are, else a copy of them.
fn aligned<R>(bytes: &[u8], call: impl FnOnce(*const u8) -> R) -> R {
    if bytes.as_ptr().cast::<u64>().is_aligned() {
        return call(bytes.as_ptr());
    }
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    let copy = words.as_mut_ptr().cast::<u8>();
    // SAFETY: the words hold as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    call(copy)
}
