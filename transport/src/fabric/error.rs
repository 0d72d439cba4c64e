//! libfabric's return codes as errors of this crate.

use std::ffi::CStr;
use std::fmt::Display;

use libfabric_sys as sys;

use crate::error::Error;

/// What libfabric returns when a call should be repeated after progress.
pub(super) const EAGAIN: isize = -(sys::FI_EAGAIN as isize);
/// What a completion queue returns when an error entry waits.
pub(super) const EAVAIL: isize = -(sys::FI_EAVAIL as isize);

/// libfabric's text for a code of either sign.
pub(super) fn text(code: i32) -> String {
    // SAFETY: fi_strerror returns a constant string for any number.
    let text = unsafe { sys::fi_strerror(positive(code)) };
    if text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: a non-null answer of fi_strerror is a NUL-terminated string that lives as long as the
    // library.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Error numbers are positive in entries and negative in returns, and shm 1.17 mixes them up.
pub(super) fn positive(code: i32) -> i32 {
    code.checked_abs().unwrap_or(i32::MAX)
}

/// Whether a receive ended with this code because its message was longer than its buffer.
pub(super) fn is_too_long(code: i32) -> bool {
    code == sys::FI_ETRUNC as i32 || code == sys::FI_EMSGSIZE
}

/// Whether a receive ended with this code because the connection ended before the message did. It
/// says nothing of the endpoint: the next message is as welcome as before.
pub(super) fn is_cut(code: i32) -> bool {
    [
        sys::FI_ECONNRESET,
        sys::FI_ECONNABORTED,
        sys::FI_ENOTCONN,
        sys::FI_ESHUTDOWN,
        sys::FI_ETIMEDOUT,
        sys::FI_ECANCELED,
        libc::EPIPE,
        libc::EREMOTEIO,
        // A node or a network that is gone, once the kernel gives up on it.
        libc::EHOSTUNREACH,
        libc::EHOSTDOWN,
        libc::ENETUNREACH,
        libc::ENETDOWN,
    ]
    .contains(&code)
}

/// The error for a call that returned `code`, on `object`.
pub(super) fn failure(call: &'static str, code: isize, object: impl Display) -> Error {
    let code = positive(i32::try_from(code).unwrap_or(i32::MAX));
    let remedy = match code {
        libc::EMFILE | libc::ENFILE => "; raise the limit of descriptors (`ulimit -n`)",
        _ => "",
    };
    Error::Fabric {
        call,
        code,
        detail: format!("{} ({object}){remedy}", text(code)),
    }
}
