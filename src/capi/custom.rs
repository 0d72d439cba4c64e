//! A job whose ranks find each other through a function of the program, inside MPI for instance.

use std::ffi::c_void;

use super::argument;
use super::callback::Context;
use super::job::{load_or_environment, trihop_job_t};
use super::options::trihop_options_t;
use super::seat::{Either, trihop_seat_t};
use super::status::{Failure, guard, trihop_status_t};
use crate::transport::bootstrap::Custom;
use crate::{Job, threaded};

/// Gathers `bytes` bytes of every rank, which are at `mine`, into `all`, in rank order, as
/// `MPI_Allgather` does; returns 0, or a number of its own on failure. Every rank calls it equally
/// often, with the same `bytes`.
///
/// Threads: called by the thread that is in `trihop_init_custom` or `trihop_finalize`, during these
/// calls only; of mini-ranks as `trihop_minirank_init_custom` says.
pub type trihop_allgather_t = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        mine: *const c_void,
        bytes: usize,
        all: *mut c_void,
    ) -> i32,
>;

/// Starts a job among ranks that already know each other. Collective over all ranks. This one is
/// number `rank` of `size`, on the node with label `node`: any number that is equal for the ranks
/// of one node, and for them only. `context` is handed to `allgather`. `seat` and `options` are as
/// of `trihop_init`.
///
/// Fails as `trihop_init`, and with `TRIHOP_ERR_BOOTSTRAP` where `allgather` fails or the ranks
/// contradict each other.
/// Threads: any, and only on it `allgather` is called; so MPI may have been initialised for one
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_init_custom(
    seat: i32,
    rank: u32,
    size: u32,
    node: u64,
    allgather: trihop_allgather_t,
    context: *mut c_void,
    options: *const trihop_options_t,
    job: *mut *mut trihop_job_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(job, "job")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or initialised options.
        let options = unsafe { load_or_environment(options)? };
        let seat = trihop_seat_t::parse(seat)?;
        // SAFETY: the header says how `allgather` is called, and with which context.
        let bootstrap = unsafe { bootstrap(rank, size, node, allgather, context)? };
        let given = options.clone();
        let started = match seat {
            trihop_seat_t::TRIHOP_THREADED => {
                Either::Threaded(threaded::Job::start_with(given, bootstrap)?)
            }
            trihop_seat_t::TRIHOP_INLINE => Either::Inline(Job::start_with(given, bootstrap)?),
        };
        *place = trihop_job_t::give(started, options);
        Ok(())
    })
}

/// Processes that find each other through a function of the program.
///
/// # Safety
/// `allgather` is null, or may be called with `context` as its type says, until the job has ended.
pub(super) unsafe fn bootstrap(
    rank: u32,
    size: u32,
    node: u64,
    allgather: trihop_allgather_t,
    context: *mut c_void,
) -> Result<Box<Custom>, Failure> {
    let function = allgather.ok_or_else(|| Failure::argument("`allgather` is a null pointer"))?;
    let context = Context::new(context);
    let gather = move |mine: &[u8], all: &mut [u8]| {
        let (from, into) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: the caller has promised it; `all` has a place of as many bytes for each rank.
        match unsafe { function(context.get(), from, mine.len(), into) } {
            0 => Ok(()),
            status => Err(status),
        }
    };
    Ok(Box::new(Custom::new(rank, size, node, Box::new(gather))?))
}
