//! What calls return: mercury's numbers.

use std::ffi::{CStr, c_char, c_int};

use crate::capi::status::{Failure, guard, trihop_status_t};

/// A value of mercury's `enum hg_return`.
pub type hg_return_t = c_int;

pub(super) const HG_SUCCESS: hg_return_t = 0;
pub(super) const HG_INVALID_ARG: hg_return_t = 11;

/// The names of all values, in order.
const NAMES: [&CStr; 26] = [
    c"HG_SUCCESS",
    c"HG_PERMISSION",
    c"HG_NOENTRY",
    c"HG_INTERRUPT",
    c"HG_AGAIN",
    c"HG_NOMEM",
    c"HG_ACCESS",
    c"HG_FAULT",
    c"HG_BUSY",
    c"HG_EXIST",
    c"HG_NODEV",
    c"HG_INVALID_ARG",
    c"HG_PROTOCOL_ERROR",
    c"HG_OVERFLOW",
    c"HG_MSGSIZE",
    c"HG_PROTONOSUPPORT",
    c"HG_OPNOTSUPPORTED",
    c"HG_ADDRINUSE",
    c"HG_ADDRNOTAVAIL",
    c"HG_HOSTUNREACH",
    c"HG_TIMEOUT",
    c"HG_CANCELED",
    c"HG_IO_ERROR",
    c"HG_CHECKSUM_ERROR",
    c"HG_NA_ERROR",
    c"HG_OTHER_ERROR",
];

/// mercury's value for a status of ours, by its name.
fn named(status: trihop_status_t) -> &'static CStr {
    use trihop_status_t::*;
    match status {
        TRIHOP_OK => c"HG_SUCCESS",
        TRIHOP_ERR_WOULD_BLOCK => c"HG_AGAIN",
        TRIHOP_ERR_RANK | TRIHOP_ERR_MISMATCH | TRIHOP_ERR_CONFIG | TRIHOP_ERR_INVALID_ARGUMENT => {
            c"HG_INVALID_ARG"
        }
        TRIHOP_ERR_TOO_LARGE => c"HG_MSGSIZE",
        TRIHOP_ERR_NESTED => c"HG_OPNOTSUPPORTED",
        TRIHOP_ERR_CLOSED => c"HG_CANCELED",
        TRIHOP_ERR_FABRIC => c"HG_NA_ERROR",
        TRIHOP_ERR_NO_PROVIDER => c"HG_NODEV",
        TRIHOP_ERR_WIRE_VERSION | TRIHOP_ERR_BAD_PEER => c"HG_PROTOCOL_ERROR",
        TRIHOP_ERR_PEER_DEAD => c"HG_HOSTUNREACH",
        TRIHOP_ERR_BUFFER_TOO_SMALL => c"HG_OVERFLOW",
        TRIHOP_ERR_NO_MEMORY => c"HG_NOMEM",
        TRIHOP_ERR_PANIC => c"HG_FAULT",
        _ => c"HG_OTHER_ERROR",
    }
}

/// mercury's value for a status of ours.
pub(super) fn of(status: trihop_status_t) -> hg_return_t {
    let name = named(status);
    let at = NAMES.iter().position(|n| *n == name);
    at.map_or(NAMES.len() as hg_return_t - 1, |at| at as hg_return_t)
}

/// Runs the body of a call that returns an `hg_return_t`, behind the panic boundary.
#[inline]
pub(super) fn returning(body: impl FnOnce() -> Result<(), Failure>) -> hg_return_t {
    match guard(body) {
        trihop_status_t::TRIHOP_OK => HG_SUCCESS,
        status => of(status),
    }
}

/// A thing that is still referred to cannot be ended.
pub(super) const HG_BUSY: hg_return_t = 8;

/// The name of a value.
#[unsafe(no_mangle)]
pub extern "C" fn trihop_mercury_error_to_string(value: hg_return_t) -> *const c_char {
    let known = usize::try_from(value)
        .ok()
        .and_then(|value| NAMES.get(value));
    known.map_or(c"unknown value", |name| name).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(value: hg_return_t) -> &'static CStr {
        // SAFETY: the names are static.
        unsafe { CStr::from_ptr(trihop_mercury_error_to_string(value)) }
    }

    #[test]
    fn names_stand_at_the_numbers_of_mercury() {
        let pairs = [
            (HG_SUCCESS, c"HG_SUCCESS"),
            (5, c"HG_NOMEM"),
            (HG_BUSY, c"HG_BUSY"),
            (HG_INVALID_ARG, c"HG_INVALID_ARG"),
            (12, c"HG_PROTOCOL_ERROR"),
            (19, c"HG_HOSTUNREACH"),
            (25, c"HG_OTHER_ERROR"),
            (26, c"unknown value"),
            (-1, c"unknown value"),
        ];
        for (value, expected) in pairs {
            assert_eq!(name(value), expected, "{value}");
        }
    }

    #[test]
    fn every_failure_has_a_value_that_is_not_success() {
        use trihop_status_t::*;
        for status in [
            TRIHOP_ERR_RANK,
            TRIHOP_ERR_PEER_DEAD,
            TRIHOP_ERR_PANIC,
            TRIHOP_ERR_OTHER,
        ] {
            assert_ne!(of(status), HG_SUCCESS);
            assert_eq!(name(of(status)), named(status));
        }
        assert_eq!(of(TRIHOP_ERR_RANK), HG_INVALID_ARG);
    }
}
