//! Raw bindings to the installed libfabric (1.17 or newer, 2.x included).
//!
//! Generated at build time from the headers that pkg-config finds. Most of libfabric's calls are
//! inline C functions over tables of function pointers; they are bound through compiled wrappers of
//! the same names. The library itself is opened by [`load`], or with the first call: without it,
//! calls fail. With the feature `link` it is linked. No other logic lives here.
//!
//! Attribute structures grow between versions: never build one by value, take it from
//! [`fi_allocinfo`].
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

#[cfg(not(feature = "link"))]
mod load;

#[cfg(not(feature = "link"))]
pub use load::*;

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// The library is linked, and there.
///
/// # Errors
/// None.
#[cfg(feature = "link")]
pub fn load() -> Result<(), &'static str> {
    Ok(())
}

/// Version number as libfabric's `FI_VERSION(major, minor)` packs it.
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// Major part of a packed version.
pub const fn FI_MAJOR(version: u32) -> u32 {
    version >> 16
}

/// Minor part of a packed version.
pub const fn FI_MINOR(version: u32) -> u32 {
    version & 0xffff
}

/// Address that stands for "any peer" in a receive (a cast in C, which the generator loses).
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;

/// Answer of an insertion that failed (a cast in C).
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;

/// Answer of `fi_mr_key` when there is no 64-bit key (a cast in C).
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_not_older_than_the_headers() {
        // SAFETY: fi_version takes nothing and only returns a constant of the library.
        let library = unsafe { fi_version() };
        assert!(
            FI_MAJOR(library) >= FI_MAJOR_VERSION as u32,
            "library {}.{} is older than headers {FI_MAJOR_VERSION}.{FI_MINOR_VERSION}",
            FI_MAJOR(library),
            FI_MINOR(library),
        );
    }

    #[test]
    fn attributes_are_allocated_by_the_library() {
        // SAFETY: a null argument asks fi_dupinfo (under fi_allocinfo) for a fresh, zeroed
        // structure.
        let info = unsafe { fi_allocinfo() };
        assert!(!info.is_null());
        // SAFETY: `info` is a fresh fi_info with its domain attributes allocated.
        unsafe { fi_shim_set_progress(info, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL) };
        // SAFETY: as above.
        assert_eq!(unsafe { fi_shim_data_progress(info) }, FI_PROGRESS_MANUAL);
        // SAFETY: allocated above and not used afterwards.
        unsafe { fi_freeinfo(info) };
    }
}
