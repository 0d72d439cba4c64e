//! What the threads of a job have used, for C: structs that may grow, and JSON.

use std::ffi::c_char;

use super::argument;
use super::job::trihop_job_t;
use super::seat::Either;
use super::sized::{check_size, store_sized};
use super::status::{Failure, guard, trihop_status_t};
use crate::threaded::ThreadUse;

/// What one thread of a job has used so far, as the kernel counts it. Later versions add fields at
/// the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct trihop_thread_use_t {
    /// Bytes of this struct as the caller knows it; set by the library.
    pub size: usize,
    /// Processor time in user mode, in milliseconds (counted in clock ticks, mostly of 10 ms).
    pub user_ms: u64,
    /// As `user_ms`, inside the kernel.
    pub system_ms: u64,
    /// Times that it waited.
    pub voluntary_switches: u64,
    /// Times that it had to give its core to others.
    pub involuntary_switches: u64,
    /// Page faults that cost no reading.
    pub minor_faults: u64,
    /// What the thread is for: `progress`, or `deliver` and the name of its stream, of which the
    /// end may be missing. Ends with NUL.
    pub name: [c_char; 64],
}

const _: () = assert!(size_of::<trihop_thread_use_t>() == 6 * 8 + 64);

impl trihop_thread_use_t {
    fn from_rust(used: &ThreadUse) -> Self {
        // The list is complete: a new counter of the library is missed by no field here.
        let ThreadUse {
            name: purpose,
            user_ms,
            system_ms,
            voluntary_switches,
            involuntary_switches,
            minor_faults,
        } = used;
        let mut name = [0; 64];
        let most = purpose.len().min(name.len() - 1);
        let end = (0..=most).rev().find(|&end| purpose.is_char_boundary(end));
        for (letter, byte) in name.iter_mut().zip(purpose[..end.unwrap_or(0)].bytes()) {
            *letter = byte as c_char;
        }
        Self {
            size: size_of::<Self>(),
            user_ms: *user_ms,
            system_ms: *system_ms,
            voluntary_switches: *voluntary_switches,
            involuntary_switches: *involuntary_switches,
            minor_faults: *minor_faults,
            name,
        }
    }
}

/// What the threads of a job have used; an inline one has none.
fn threads_of(job: &trihop_job_t) -> Vec<ThreadUse> {
    match &job.job {
        Either::Threaded(job) => job.threads(),
        Either::Inline(_) => Vec::new(),
    }
}

/// Fills `threads` with what each thread of the job has used so far: the progress thread, and
/// delivery threads (the common one, and those of streams with `own_thread`) once there are streams
/// with handlers; none for an inline job. There is room for `capacity` structs,
/// of `size` bytes each: `sizeof(trihop_thread_use_t)` as the caller knows it. The number of
/// threads goes to `count`. Where `capacity` is too small (`threads` may be null where it is 0),
/// the call fails with `TRIHOP_ERR_BUFFER_TOO_SMALL` and only stores that.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_threads(
    job: *const trihop_job_t,
    threads: *mut trihop_thread_use_t,
    size: usize,
    capacity: usize,
    count: *mut usize,
) -> trihop_status_t {
    guard(|| {
        check_size(size)?;
        // SAFETY: the header asks for null or a job that has not ended, and a place for a number.
        let (job, count) = unsafe {
            (
                argument::reference(job, "job")?,
                argument::place(count, "count")?,
            )
        };
        let used = threads_of(job);
        *count = used.len();
        if used.len() > capacity {
            let why = format!("{} threads do not fit into {capacity} structs", used.len());
            return Err(Failure::new(
                trihop_status_t::TRIHOP_ERR_BUFFER_TOO_SMALL,
                why,
            ));
        }
        for (index, used) in used.iter().enumerate() {
            let mut filled = trihop_thread_use_t::from_rust(used);
            filled.size = size;
            let place = threads.wrapping_byte_add(index * size);
            // SAFETY: the header asks for null, which the first round refuses, or room for
            // `capacity` structs of `size` bytes, and this is one of them. Fields have eight bytes,
            // or eight times eight, so that there is no padding.
            unsafe { store_sized(&filled, place, size, "threads")? };
        }
        Ok(())
    })
}

/// As `trihop_threads`, as a JSON array that ends with NUL, an object for each thread with the
/// names of the struct's fields; its length without the NUL goes to `length`. Where `capacity` is
/// too small (`text` may be null where it is 0), the call fails with `TRIHOP_ERR_BUFFER_TOO_SMALL`
/// and only stores the length; numbers may have grown when it is called again.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_threads_json(
    job: *const trihop_job_t,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        // SAFETY: the header asks for a buffer of `capacity` bytes and a place for the length.
        unsafe { argument::give_json(&threads_of(job), text, capacity, length) }
    })
}
