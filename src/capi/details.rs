//! Counters of each queue of a stream for C: as they were at one moment, in structs that may grow,
//! JSON and text.

use std::borrow::Cow;
use std::ffi::c_char;

use trihop_shuffle::counters_table;

use super::argument;
use super::sized::{check_size, store_sized};
use super::stats::{self, trihop_stats_t};
use super::status::{Failure, guard, trihop_status_t};
use super::stream::trihop_queues_t;
use crate::route::stage;
use crate::{DetailedStats, QueueStats, Queues, StageStats};

/// What a stream and each of its queues had done on this rank at one moment, of
/// `trihop_stream_details`. It does not change, and outlives its stream.
///
/// Threads: any thread may read it, several at once too.
pub struct trihop_details_t {
    details: DetailedStats,
}

/// Makes the structs out of the table of counters; the build script makes their text for the
/// header.
macro_rules! c_structs {
    (
        stream { $($stream:tt)* }
        queue { $($(#[doc = $doc:literal])+ $whole:ident $name:ident $unit:tt $text:tt;)+ }
    ) => {
        /// What one output queue has done. Later versions add fields at the end.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct trihop_queue_stats_t {
            /// Bytes of this struct as the caller knows it; set by the library.
            pub size: usize,
            /// Rank at the other end.
            pub peer: u64,
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        /// What the queues of one stage have done together. Later versions add fields at the end.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct trihop_stage_stats_t {
            /// Bytes of this struct as the caller knows it; set by the library.
            pub size: usize,
            /// Queues of the stage that were ever used: `trihop_details_queue` takes numbers below
            /// it.
            pub queues: u64,
            /// Times that own sends met the stage's limit, which clients of DeltaFS set.
            pub limit_hits: u64,
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl trihop_queue_stats_t {
            fn from_rust(stats: &QueueStats, size: usize) -> Self {
                Self {
                    size,
                    peer: u64::from(stats.peer),
                    $($name: stats.$name,)+
                }
            }
        }

        impl trihop_stage_stats_t {
            fn from_rust(stage: &StageStats, size: usize) -> Self {
                Self {
                    size,
                    queues: stage.queues.len() as u64,
                    limit_hits: stage.limit_hits,
                    $($name: stage.all.$name,)+
                }
            }
        }
    };
}

counters_table!(c_structs);

const _: () = assert!(size_of::<trihop_queue_stats_t>() == (2 + QueueStats::TABLE.len()) * 8);
const _: () = assert!(size_of::<trihop_stage_stats_t>() == (3 + QueueStats::TABLE.len()) * 8);

/// Hands a stream's counters of this moment to the caller.
///
/// # Safety
/// `place` is null or a place for a pointer.
pub(crate) unsafe fn give(
    details: Option<DetailedStats>,
    place: *mut *mut trihop_details_t,
) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    let place = unsafe { argument::place(place, "details")? };
    *place = std::ptr::null_mut();
    let details = details.ok_or_else(stats::busy)?;
    *place = Box::into_raw(Box::new(trihop_details_t { details }));
    Ok(())
}

/// Runs `call` on the details.
///
/// # Safety
/// `details` is null or was not freed.
unsafe fn with(
    details: *const trihop_details_t,
    call: impl FnOnce(&DetailedStats) -> Result<(), Failure>,
) -> trihop_status_t {
    // SAFETY: as the caller promises.
    guard(|| call(&unsafe { argument::reference(details, "details")? }.details))
}

/// The stage with this number, with nothing in it where the route has no such stage.
fn stage_of(details: &DetailedStats, queues: i32) -> Result<Cow<'_, StageStats>, Failure> {
    let named = |name| details.stage(name).map_or_else(Cow::default, Cow::Borrowed);
    match trihop_queues_t::parse(queues)? {
        Queues::Stage(name) => Ok(named(name)),
        Queues::Between => Ok(named(stage::REMOTE)),
        Queues::Delivery => Err(Failure::argument(
            "the delivery queue has no counters of its own: `delivered` and `blocked_deliveries` of the totals are its",
        )),
    }
}

/// Fills `counters` with those of the whole stream. `size` is `sizeof(trihop_stats_t)` as the
/// caller knows it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_details_totals(
    details: *const trihop_details_t,
    counters: *mut trihop_stats_t,
    size: usize,
) -> trihop_status_t {
    // SAFETY: the header asks for null or `size` bytes that nobody else uses.
    let give = |details: &DetailedStats| unsafe { stats::fill(&details.totals, counters, size) };
    // SAFETY: the header asks for null or details that were not freed.
    unsafe { with(details, give) }
}

/// Fills `counters` with those of the queues of one stage, of `trihop_queues_t`: what this rank
/// sent (`TRIHOP_ORIGIN_QUEUES`), what goes to other nodes (`TRIHOP_REMOTE_QUEUES`), what came from
/// there (`TRIHOP_RELAY_QUEUES`). `size` is `sizeof(trihop_stage_stats_t)` as the caller knows it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_details_stage(
    details: *const trihop_details_t,
    queues: i32,
    counters: *mut trihop_stage_stats_t,
    size: usize,
) -> trihop_status_t {
    let give = |details: &DetailedStats| {
        check_size(size)?;
        let stage = stage_of(details, queues)?;
        let filled = trihop_stage_stats_t::from_rust(&stage, size);
        // SAFETY: the header asks for null or `size` bytes that nobody else uses; all fields have
        // eight bytes, so that there is no padding.
        unsafe { store_sized(&filled, counters, size, "counters") }
    };
    // SAFETY: the header asks for null or details that were not freed.
    unsafe { with(details, give) }
}

/// Fills `counters` with those of one queue of a stage, of `trihop_queues_t`. `index` is below the
/// `queues` of the stage. `size` is `sizeof(trihop_queue_stats_t)` as the caller knows it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_details_queue(
    details: *const trihop_details_t,
    queues: i32,
    index: u64,
    counters: *mut trihop_queue_stats_t,
    size: usize,
) -> trihop_status_t {
    let give = |details: &DetailedStats| {
        check_size(size)?;
        let stage = stage_of(details, queues)?;
        let all = &stage.queues;
        let queue = usize::try_from(index).ok().and_then(|index| all.get(index));
        let queue = queue.ok_or_else(|| {
            let count = all.len();
            Failure::argument(format!(
                "queue {index} of a stage of which {count} were used"
            ))
        })?;
        let filled = trihop_queue_stats_t::from_rust(queue, size);
        // SAFETY: the header asks for null or `size` bytes that nobody else uses; all fields have
        // eight bytes, so that there is no padding.
        unsafe { store_sized(&filled, counters, size, "counters") }
    };
    // SAFETY: the header asks for null or details that were not freed.
    unsafe { with(details, give) }
}

/// Writes all of it as a JSON object that ends with NUL, and its length without that: `stream`,
/// `rank`, `totals`, and for each stage of the route (`origin`, `remote` and `relay` with three
/// hops) an object with `all`, `limit_hits` and an array `queues`, with the names of the structs'
/// fields. Where `capacity` is too small (`text` may be null where it is 0), the call fails with
/// `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores the length.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_details_json(
    details: *const trihop_details_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
    let give =
        |details: &DetailedStats| unsafe { argument::give_json(details, text, capacity, length) };
    // SAFETY: the header asks for null or details that were not freed.
    unsafe { with(details, give) }
}

/// As `trihop_details_json`, as lines for people to read; they may change.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_details_text(
    details: *const trihop_details_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    let give = |details: &DetailedStats| {
        // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
        unsafe { argument::give_text(&details.to_string(), text, capacity, length) }
    };
    // SAFETY: the header asks for null or details that were not freed.
    unsafe { with(details, give) }
}

/// Frees the details; null is fine.
///
/// Threads: any, but no other call on them may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_details_free(details: *mut trihop_details_t) {
    if !details.is_null() {
        // SAFETY: made by `give`; the header allows no other call on it.
        drop(unsafe { Box::from_raw(details) });
    }
}
