//! Structs whose first field is their size, so that they may grow while programs of other versions
//! go on using them.

use std::mem::MaybeUninit;

use super::argument;
use super::status::Failure;

/// What a caller's struct says whose first field is its size; fields that the caller's version does
/// not have are those of `defaults`.
///
/// # Safety
/// `place` is null, or points to as many bytes as its first field says, filled by this library. Any
/// bytes are a `T`.
pub(crate) unsafe fn load_sized<T>(place: *const T, defaults: T, name: &str) -> Result<T, Failure> {
    // SAFETY: as the caller promises, there is at least the first field.
    let size = *unsafe { argument::reference(place.cast::<usize>(), name)? };
    check_size(size)?;
    let mut copy = defaults;
    // SAFETY: the caller promises `size` readable bytes, and ours hold `size_of::<T>()`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            place.cast::<u8>(),
            (&raw mut copy).cast(),
            size.min(size_of::<T>()),
        );
    }
    if size > size_of::<T>() {
        // SAFETY: the caller promises `size` readable bytes.
        let newer = unsafe { std::slice::from_raw_parts(place.cast::<u8>(), size) };
        if newer[size_of::<T>()..].iter().any(|byte| *byte != 0) {
            let why = format!(
                "`{name}` has {size} bytes and sets fields that this library, which knows {}, does not have; use the \
                 library that the program was compiled for",
                size_of::<T>()
            );
            return Err(Failure::argument(why));
        }
    }
    Ok(copy)
}

/// Copies what both sides know of a struct whose first field is its size; the rest of the caller's
/// becomes zero.
///
/// # Safety
/// `place` is null, or points to `size` bytes that nobody else uses. `T` has no padding.
pub(crate) unsafe fn store_sized<T>(
    value: &T,
    place: *mut T,
    size: usize,
    name: &str,
) -> Result<(), Failure> {
    // SAFETY: bytes may hold anything; the caller promises that there are `size`.
    let room = unsafe { argument::slice_mut(place.cast::<MaybeUninit<u8>>(), size, name)? };
    // SAFETY: a `T` is as many bytes, none of them padding.
    let bytes = unsafe {
        std::slice::from_raw_parts(
            (&raw const *value).cast::<MaybeUninit<u8>>(),
            size_of::<T>(),
        )
    };
    let both = size.min(bytes.len());
    room[..both].copy_from_slice(&bytes[..both]);
    room[both..].fill(MaybeUninit::zeroed());
    Ok(())
}

/// No version of a struct was smaller than its first field, and none will be a page.
pub(crate) fn check_size(size: usize) -> Result<(), Failure> {
    if (size_of::<usize>()..=4096).contains(&size) && size.is_multiple_of(size_of::<usize>()) {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "{size} is no size of the struct; fill it with the function that the header names"
    )))
}
