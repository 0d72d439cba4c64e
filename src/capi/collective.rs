//! Collectives over all ranks of a job.

use std::ffi::c_void;
use std::os::raw::c_int;

use super::argument;
use super::job::trihop_job_t;
use super::seat::either;
use super::status::{Failure, guard, trihop_status_t};
use crate::{Number, Rank, Reduce};

/// How `trihop_allreduce` and its like join values.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_reduce_t {
    /// Sum; of integers it wraps around.
    TRIHOP_SUM = 0,
    /// Smallest.
    TRIHOP_MIN = 1,
    /// Largest.
    TRIHOP_MAX = 2,
    /// Exclusive or; of integers, as the next two.
    TRIHOP_XOR = 3,
    /// And, bit by bit.
    TRIHOP_AND = 4,
    /// Or, bit by bit.
    TRIHOP_OR = 5,
}

/// Waits until every rank has called this as often as this rank. It does not give way: where others
/// wait for room that only `trihop_stream_take` makes here, it waits for ever. Collective over all
/// ranks; not inside a handler.
///
/// Threads: any, but all ranks have to call collectives in one order, so one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_barrier(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        Ok(either!(&job.job, job => job.barrier())?)
    })
}

/// Returns on every rank when all that any rank sent before on any stream, and all that handlers
/// sent because of it on whichever stream, has been handled. Where handlers of one stream send on
/// another, fences of one after the other do not say that. Collective over all ranks; not inside a
/// handler. Gives way with `TRIHOP_ERR_WOULD_BLOCK` as `trihop_stream_fence` does, and fails with
/// `TRIHOP_ERR_MISUSE` while the end of a step of a stream is started.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_fence(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        Ok(either!(&job.job, job => job.fence())?)
    })
}

/// Starts a fence of all streams, and does not wait: `trihop_test_fence` and `trihop_wait_fence`
/// say when it is over. The program may send meanwhile, which that fence may cover or not. Other
/// collective calls of the job go on beside it, but no step of a stream ends, and the job is not
/// finalized: these fail with `TRIHOP_ERR_MISUSE`, as this does while one is under way, or a step
/// of a stream. Collective; on the inline seat it moves on in the calls that make progress. Not
/// inside a handler.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_start_fence(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        Ok(either!(&job.job, job => job.start_fence())?)
    })
}

/// Makes one round of progress, and stores 1 where the fence that was started is over, else 0.
/// That it is over is said once; without a start it fails with `TRIHOP_ERR_MISUSE`. Streams
/// without a handler are taken from meanwhile: a delivery queue that is full keeps all ranks from
/// the end. Not inside a handler.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_test_fence(
    job: *const trihop_job_t,
    is_over: *mut c_int,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        // SAFETY: the header asks for null or a place for a number.
        let place = unsafe { argument::place(is_over, "is_over")? };
        *place = either!(&job.job, job => job.test_fence())?.into();
        Ok(())
    })
}

/// Waits until the fence that was started is over; without a start it fails with
/// `TRIHOP_ERR_MISUSE`. Gives way as `trihop_fence` does. Not inside a handler.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_wait_fence(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        Ok(either!(&job.job, job => job.wait_fence())?)
    })
}

impl trihop_reduce_t {
    fn parse(number: i32) -> Result<Reduce, Failure> {
        [
            (Self::TRIHOP_SUM, Reduce::Sum),
            (Self::TRIHOP_MIN, Reduce::Min),
            (Self::TRIHOP_MAX, Reduce::Max),
            (Self::TRIHOP_XOR, Reduce::Xor),
            (Self::TRIHOP_AND, Reduce::And),
            (Self::TRIHOP_OR, Reduce::Or),
        ]
        .into_iter()
        .find_map(|(known, how)| (known as i32 == number).then_some(how))
        .ok_or_else(|| Failure::argument(format!("{number} is no reduction")))
    }
}

/// How a call joins values.
#[derive(Clone, Copy)]
enum Join {
    AllReduce,
    ExclusiveScan,
}

/// # Safety
/// `job` is null or a job that has not ended, and there are `count` values that nobody else uses.
unsafe fn join<N: Number>(
    how: Join,
    job: *const trihop_job_t,
    reduce: i32,
    values: *mut N,
    count: usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let (job, values) = unsafe {
            (
                argument::handle(job, "job")?,
                argument::slice_mut(values, count, "values")?,
            )
        };
        let reduce = trihop_reduce_t::parse(reduce)?;
        let joined = match how {
            Join::AllReduce => either!(&job.job, job => job.allreduce(values, reduce)),
            Join::ExclusiveScan => either!(&job.job, job => job.exscan(values, reduce)),
        };
        Ok(joined?)
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
    // SAFETY: as the header asks for.
    unsafe { join(Join::AllReduce, job, reduce, values, count) }
}

/// As `trihop_allreduce`, of signed integers.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_allreduce_i64(
    job: *const trihop_job_t,
    reduce: i32,
    values: *mut i64,
    count: usize,
) -> trihop_status_t {
    // SAFETY: as the header asks for.
    unsafe { join(Join::AllReduce, job, reduce, values, count) }
}

/// As `trihop_allreduce`, of floating-point numbers: their sum, smallest or largest. A sum is the
/// same for the same values in the same placement, whatever came first.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_allreduce_f64(
    job: *const trihop_job_t,
    reduce: i32,
    values: *mut f64,
    count: usize,
) -> trihop_status_t {
    // SAFETY: as the header asks for.
    unsafe { join(Join::AllReduce, job, reduce, values, count) }
}

/// Replaces each of `count` values by its reduction over the ranks before this one; rank 0 gets
/// what changes no other value (0 of a sum). Otherwise as `trihop_allreduce`. The values of all
/// ranks are gathered on each.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_exscan(
    job: *const trihop_job_t,
    reduce: i32,
    values: *mut u64,
    count: usize,
) -> trihop_status_t {
    // SAFETY: as the header asks for.
    unsafe { join(Join::ExclusiveScan, job, reduce, values, count) }
}

/// As `trihop_exscan`, of signed integers.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_exscan_i64(
    job: *const trihop_job_t,
    reduce: i32,
    values: *mut i64,
    count: usize,
) -> trihop_status_t {
    // SAFETY: as the header asks for.
    unsafe { join(Join::ExclusiveScan, job, reduce, values, count) }
}

/// As `trihop_exscan`, of floating-point numbers.
///
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_exscan_f64(
    job: *const trihop_job_t,
    reduce: i32,
    values: *mut f64,
    count: usize,
) -> trihop_status_t {
    // SAFETY: as the header asks for.
    unsafe { join(Join::ExclusiveScan, job, reduce, values, count) }
}

/// Gives every rank the `length` bytes at `bytes` that the rank `root` has there. Collective over
/// all ranks, each with the same root and length; not inside a handler.
///
/// Fails with `TRIHOP_ERR_MISMATCH` where roots differ, and on a rank whose length is not the
/// root's; with `TRIHOP_ERR_RANK` where all name the same root, which is no rank.
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_broadcast(
    job: *const trihop_job_t,
    root: u32,
    bytes: *mut c_void,
    length: usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended, and for `length` bytes that
        // nobody else uses.
        let (job, bytes) = unsafe {
            (
                argument::handle(job, "job")?,
                argument::slice_mut(bytes.cast::<u8>(), length, "bytes")?,
            )
        };
        let given = either!(&job.job, job => job.broadcast(Rank(root), bytes))?;
        if given.len() != length {
            let why = format!("{length} bytes here, {} on rank {root}", given.len());
            let name = "broadcast".to_owned();
            return Err(crate::Error::Mismatch { name, why }.into());
        }
        bytes.copy_from_slice(&given);
        Ok(())
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
                argument::handle(job, "job")?,
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

/// Gathers `length` bytes of every rank into `all`, one behind the other in rank order. `lengths`
/// has `trihop_size` numbers, those of all ranks. Collective over all ranks; not inside a handler.
/// `mine` may be this rank's place in `all`.
///
/// Fails with `TRIHOP_ERR_MISMATCH` on a rank whose `lengths` are not what ranks have given.
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_allgatherv(
    job: *const trihop_job_t,
    mine: *const c_void,
    length: usize,
    all: *mut c_void,
    lengths: *const usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended, and for `length` bytes.
        let (job, mine) = unsafe {
            (
                argument::handle(job, "job")?,
                argument::bytes(mine, length, "mine")?,
            )
        };
        let size = either!(&job.job, job => job.size()) as usize;
        // SAFETY: the header asks for so many numbers.
        let lengths = unsafe { argument::slice(lengths, size, "lengths")? };
        let total = lengths
            .iter()
            .try_fold(0usize, |sum, length| sum.checked_add(*length))
            .ok_or_else(|| Failure::argument("`lengths` are more than memory can hold"))?;
        // SAFETY: the header asks for as many bytes, which nobody else uses; the reference ends
        // here, as `mine` may be in them.
        unsafe { argument::slice(all.cast::<u8>(), total, "all")? };
        let gathered = either!(&job.job, job => job.allgather(mine))?;
        // SAFETY: as above; `mine` is not used any more.
        let mut all = unsafe { argument::slice_mut(all.cast::<u8>(), total, "all")? };
        for (rank, (theirs, length)) in gathered.iter().zip(lengths).enumerate() {
            if theirs.len() != *length {
                let why = format!(
                    "{length} bytes of rank {rank} here, it gave {}",
                    theirs.len()
                );
                let name = "allgatherv".to_owned();
                return Err(crate::Error::Mismatch { name, why }.into());
            }
            let (place, rest) = std::mem::take(&mut all).split_at_mut(*length);
            place.copy_from_slice(theirs);
            all = rest;
        }
        Ok(())
    })
}
