//! Counters of a stream for C: a struct that may grow, and JSON.

use std::ffi::c_char;

use trihop_shuffle::counters_table;

use super::argument;
use super::sized::{check_size, store_sized};
use super::status::{Failure, trihop_status_t};
use crate::Stats;

/// Makes the struct out of the table of counters; the build script makes its text for the header.
macro_rules! c_struct {
    (
        stream { $($(#[doc = $doc:literal])+ $name:ident $unit:tt $text:tt;)+ }
        queue { $($queue:tt)* }
    ) => {
        /// What a stream has done on this rank since it was opened. Later versions add fields at
        /// the end.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct trihop_stats_t {
            /// Bytes of this struct as the caller knows it; set by the library.
            pub size: usize,
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl trihop_stats_t {
            fn from_rust(stats: &Stats) -> Self {
                Self {
                    size: size_of::<Self>(),
                    $($name: stats.$name,)+
                }
            }
        }
    };
}

counters_table!(c_struct);

/// Why there are no counters now.
pub(crate) fn busy() -> Failure {
    let why = "the engine is in use and does not come free; try again";
    Failure::new(trihop_status_t::TRIHOP_ERR_WOULD_BLOCK, why)
}

/// Fills the caller's struct, as much of it as both know.
///
/// # Safety
/// `place` is null, or points to `size` bytes that nobody else uses.
pub(crate) unsafe fn fill(
    stats: &Stats,
    place: *mut trihop_stats_t,
    size: usize,
) -> Result<(), Failure> {
    check_size(size)?;
    let mut filled = trihop_stats_t::from_rust(stats);
    filled.size = size;
    // SAFETY: as the caller promises; all fields have eight bytes, so that there is no padding.
    unsafe { store_sized(&filled, place, size, "stats") }
}

/// As [`fill`], with counters that may not have been to be had.
///
/// # Safety
/// As [`fill`].
pub(crate) unsafe fn give(
    stats: Option<Stats>,
    place: *mut trihop_stats_t,
    size: usize,
) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    unsafe { fill(&stats.ok_or_else(busy)?, place, size) }
}

const _: () = assert!(size_of::<trihop_stats_t>().is_multiple_of(8) && size_of::<usize>() == 8);

/// Writes the counters as one JSON object into the caller's buffer.
///
/// # Safety
/// As [`argument::give_json`].
pub(crate) unsafe fn give_json(
    stats: Option<Stats>,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    let stats = stats.ok_or_else(busy)?;
    // SAFETY: as the caller promises.
    unsafe { argument::give_json(&stats, text, capacity, length) }
}
