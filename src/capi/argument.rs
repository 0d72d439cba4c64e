//! Pointers and texts of a caller, as checked references.

use std::ffi::{CStr, c_char, c_void};

use crate::Error;

use super::seat::Homed;
use super::status::{Failure, trihop_status_t};

fn null(name: &str) -> Failure {
    Failure::argument(format!("`{name}` is a null pointer"))
}

/// The object behind a pointer.
///
/// # Safety
/// The pointer is null, or points to a `T` that lives as long as `'a` and that nobody changes
/// meanwhile.
#[inline]
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// As [`reference`], of a handle that may be used on this thread.
///
/// # Safety
/// As [`reference`].
#[inline]
pub(crate) unsafe fn handle<'a, T: Homed>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    let handle = unsafe { reference(pointer, name)? };
    handle.home().check(name)?;
    Ok(handle)
}

/// Frees a handle that a call has closed with this outcome, unless what it stands for is still
/// open: handlers have the handle then, and it may be closed again.
///
/// # Safety
/// The pointer is a handle's that was made by [`Box::into_raw`], and no other call on it is under
/// way or follows, but where the outcome is `Nested`, `Misuse` or `WouldBlock`.
pub(crate) unsafe fn closed<T>(handle: *mut T, outcome: Result<(), Error>) -> Result<(), Failure> {
    let is_open = matches!(
        outcome,
        Err(Error::Nested(_) | Error::Misuse { .. } | Error::WouldBlock)
    );
    if !is_open {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(handle) });
    }
    match outcome {
        // The job has ended, and with it what was to be closed.
        Err(Error::Closed(_)) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// The place behind a pointer, to be read and written.
///
/// # Safety
/// The pointer is null, or points to a `T` that lives as long as `'a` and that nobody else uses
/// meanwhile.
#[inline]
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// The values behind a pointer; a null pointer is fine where there are none.
///
/// # Safety
/// The pointer is null, or points to `count` values that live as long as `'a` and that nobody
/// changes meanwhile.
#[inline]
pub(crate) unsafe fn slice<'a, T>(
    pointer: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    fits::<T>(count, name)?;
    // SAFETY: as the caller promises; not null, and the length is one that a slice can have.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// As [`slice`], for values that are written.
///
/// # Safety
/// The pointer is null, or points to `count` values that live as long as `'a` and that nobody else
/// uses meanwhile.
#[inline]
pub(crate) unsafe fn slice_mut<'a, T>(
    pointer: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    fits::<T>(count, name)?;
    // SAFETY: as the caller promises; not null, and the length is one that a slice can have.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

fn fits<T>(count: usize, name: &str) -> Result<(), Failure> {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Failure::argument(format!(
            "`{name}` with {count} values is longer than memory can be"
        ))),
    }
}

/// As [`slice`], for bytes.
///
/// # Safety
/// As [`slice`].
#[inline]
pub(crate) unsafe fn bytes<'a>(
    pointer: *const c_void,
    length: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    // SAFETY: as the caller promises.
    unsafe { slice(pointer.cast(), length, name) }
}

/// A text that ends with NUL.
///
/// # Safety
/// The pointer is null, or points to a text that ends with NUL, lives as long as `'a`, and is not
/// changed meanwhile.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null, and otherwise as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Failure::argument(format!("`{name}` is not UTF-8: {text:?}")))
}

/// Writes a text that ends with NUL into a caller's buffer, and its length without the NUL to
/// `length`.
///
/// # Safety
/// `buffer` is null where `capacity` is 0, else points to as many bytes that nobody else uses;
/// `length` is null, or a place for a number.
pub(crate) unsafe fn give_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    let (buffer, length) = unsafe {
        (
            slice_mut(buffer.cast::<u8>(), capacity, "text")?,
            place(length, "length")?,
        )
    };
    *length = text.len();
    let Some(room) = buffer.get_mut(..=text.len()) else {
        let why = format!("{} bytes and a NUL do not fit into {capacity}", text.len());
        return Err(Failure::new(
            trihop_status_t::TRIHOP_ERR_BUFFER_TOO_SMALL,
            why,
        ));
    };
    let (words, end) = room.split_at_mut(text.len());
    words.copy_from_slice(text.as_bytes());
    end[0] = 0;
    Ok(())
}

/// As [`give_text`], of a value as JSON.
///
/// # Safety
/// As [`give_text`].
pub(crate) unsafe fn give_json(
    value: &impl serde::Serialize,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    let json = serde_json::to_string(value).map_err(|error| {
        let why = format!("this cannot be written as JSON: {error}");
        Failure::new(trihop_status_t::TRIHOP_ERR_OTHER, why)
    })?;
    // SAFETY: as the caller promises.
    unsafe { give_text(&json, buffer, capacity, length) }
}
