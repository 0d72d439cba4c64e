//! Collectives over all ranks of a job.

use std::ffi::c_void;

use super::argument;
use super::job::trihop_job_t;
use super::seat::either;
use super::status::{Failure, guard, trihop_status_t};
use crate::Reduce;

/// How `trihop_allreduce` joins values.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_reduce_t {
    /// Sum, which wraps around at 2^64.
    TRIHOP_SUM = 0,
    /// Smallest.
    TRIHOP_MIN = 1,
    /// Largest.
    TRIHOP_MAX = 2,
    /// Exclusive or.
    TRIHOP_XOR = 3,
}

/// Waits until every rank has called this as often as this rank. Collective over all ranks; not
/// inside a handler.
///
/// Threads: any, but all ranks have to call collectives in one order, so one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_barrier(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        Ok(either!(&job.job, job => job.barrier())?)
    })
}

/// Replaces each of `count` values by its reduction over all ranks. `reduce` is one of
/// `trihop_reduce_t`. Collective over all ranks, each with as many values; not inside a handler.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_allreduce(
    job: *const trihop_job_t,
    reduce: i32,
    values: *mut u64,
    count: usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended, and values that nobody else
        // uses.
        let (job, values) = unsafe {
            (
                argument::reference(job, "job")?,
                argument::slice_mut(values, count, "values")?,
            )
        };
        let reduce = [
            (trihop_reduce_t::TRIHOP_SUM, Reduce::Sum),
            (trihop_reduce_t::TRIHOP_MIN, Reduce::Min),
            (trihop_reduce_t::TRIHOP_MAX, Reduce::Max),
            (trihop_reduce_t::TRIHOP_XOR, Reduce::Xor),
        ]
        .into_iter()
        .find_map(|(number, how)| (number as i32 == reduce).then_some(how))
        .ok_or_else(|| Failure::argument(format!("{reduce} is no reduction")))?;
        Ok(either!(&job.job, job => job.allreduce(values, reduce))?)
    })
}

/// Gathers `length` bytes of every rank into `all`, which has `trihop_size` times as many, in rank
/// order. Collective over all ranks, each with the same length; not inside a handler. `mine` may be
/// this rank's place in `all`.
///
/// Fails with `TRIHOP_ERR_MISMATCH` on every rank where lengths differ.
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_allgather(
    job: *const trihop_job_t,
    mine: *const c_void,
    length: usize,
    all: *mut c_void,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended, and for `length` bytes.
        let (job, mine) = unsafe {
            (
                argument::reference(job, "job")?,
                argument::bytes(mine, length, "mine")?,
            )
        };
        let total = (either!(&job.job, job => job.size()) as usize)
            .checked_mul(length)
            .ok_or_else(|| {
                Failure::argument(format!(
                    "{length} bytes of each rank are more than memory can hold"
                ))
            })?;
        // SAFETY: the header asks for as many bytes, which nobody else uses; the reference ends
        // here, as `mine` may be in them.
        unsafe { argument::slice(all.cast::<u8>(), total, "all")? };
        let gathered = either!(&job.job, job => job.allgather(mine))?;
        // SAFETY: as above; `mine` is not used any more.
        let all = unsafe { argument::slice_mut(all.cast::<u8>(), total, "all")? };
        for (rank, theirs) in gathered.iter().enumerate() {
            if theirs.len() != length {
                let why = format!("{length} bytes here, {} on rank {rank}", theirs.len());
                let name = "allgather".to_owned();
                return Err(crate::Error::Mismatch { name, why }.into());
            }
            all[rank * length..][..length].copy_from_slice(theirs);
        }
        Ok(())
    })
}
