//! Mini-ranks: a process that hosts several ranks of a job, each on a thread of the program's.

use std::cell::RefCell;
use std::ffi::c_void;

use super::argument;
use super::custom::{self, trihop_allgather_t};
use super::job::{load_or_environment, trihop_job_t};
use super::options::trihop_options_t;
use super::seat::Either;
use super::status::{Failure, guard, guard_or, trihop_status_t};
use crate::minirank::{self, Host};
use crate::{Job, Options};

/// The mini-ranks of this process: ranks of a job, each of which a thread of the program takes and
/// has as a process has its own. A thread of the library's, the communication thread, speaks with
/// other nodes for all of them; mini-ranks of one node reach each other without it.
///
/// ```c
/// static void *work(void *context)
/// {
///     struct part *part = context;
///     trihop_job_t *job;
///     trihop_minirank_start(part->miniranks, part->index, &job);
///     ... as on a rank that is a process, with TRIHOP_INLINE
///     trihop_finalize(job);
///     return NULL;
/// }
///
/// trihop_minirank_init(4, NULL, &miniranks);
/// for (i = 0; i < trihop_minirank_count(miniranks); i++)
///     pthread_create(&threads[i], NULL, work, &parts[i]);
/// for (i = 0; i < trihop_minirank_count(miniranks); i++)
///     pthread_join(threads[i], NULL);
/// trihop_minirank_finalize(miniranks);
/// ```
///
/// Threads: any, several at once too.
pub struct trihop_miniranks_t {
    host: Host,
    options: Options,
}

thread_local! {
    /// Jobs of mini-ranks that this thread has started and not ended.
    static RUNNING: Running = const { Running(RefCell::new(Vec::new())) };
}

/// Those that are left when the thread ends have failed.
struct Running(RefCell<Vec<*const trihop_job_t>>);

impl Drop for Running {
    fn drop(&mut self) {
        for job in self.0.take() {
            // SAFETY: `has_ended` takes out what is freed, and the thread that has started an
            // inline job alone may use it: this one.
            if let Either::Inline(job) = unsafe { &(*job).job } {
                minirank::leave(job);
            }
        }
    }
}

/// This thread has ended one of its jobs.
pub(super) fn has_ended(job: *const trihop_job_t) {
    // At the end of a thread nobody asks any more.
    let _ = RUNNING.try_with(|running| running.0.borrow_mut().retain(|&other| other != job));
}

/// Makes this process host `ranks` ranks of the job that it was started in: as many as
/// `TRIHOP_MINIS_PER_RANK` says where that is 0, and 1 where that says nothing. The ranks of a job
/// are numbered process by process, and all processes host equally many, 1,024 at most. `options`
/// null stands for those of the environment. Waits for the other processes.
///
/// Lines of logs have the number of this process's first rank. Fails as `trihop_init`, and with
/// `TRIHOP_ERR_CONFIG` on an impossible number, and where `minirank_cores` asks for more cores than
/// there are.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_minirank_init(
    ranks: u32,
    options: *const trihop_options_t,
    miniranks: *mut *mut trihop_miniranks_t,
) -> trihop_status_t {
    // SAFETY: the header asks for what this does.
    unsafe {
        give(ranks, options, miniranks, |options, ranks| {
            Ok(Host::start(options, ranks)?)
        })
    }
}

/// As `trihop_minirank_init`, in a process that knows the others already, inside MPI for instance:
/// it is number `process` of `processes`, which all call this, on the node with label `node`.
/// `allgather`, called with `context`, gathers among the processes; all as of `trihop_init_custom`.
///
/// Fails as `trihop_minirank_init`, and with `TRIHOP_ERR_BOOTSTRAP` where `allgather` fails or the
/// processes contradict each other. `allgather` has no deadline: where this or a mini-rank fails,
/// end the whole job by other means, `MPI_Abort` for instance. Other processes may wait in
/// `allgather` for ever, and so may `trihop_minirank_finalize`.
/// Threads: any. `allgather` is called on it, and twice by the communication thread: from when all
/// mini-ranks of the process are in `trihop_minirank_start` until these return, and from when all
/// are in `trihop_finalize` until `trihop_minirank_finalize` returns. So MPI is initialised with
/// `MPI_THREAD_SERIALIZED` at least, and nothing else of the program calls it meanwhile, or with
/// `MPI_THREAD_MULTIPLE` and a communicator that nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_minirank_init_custom(
    ranks: u32,
    process: u32,
    processes: u32,
    node: u64,
    allgather: trihop_allgather_t,
    context: *mut c_void,
    options: *const trihop_options_t,
    miniranks: *mut *mut trihop_miniranks_t,
) -> trihop_status_t {
    // SAFETY: the header asks for what this does.
    unsafe {
        give(ranks, options, miniranks, |options, ranks| {
            // SAFETY: the header says how `allgather` is called, and with which context.
            let bootstrap = custom::bootstrap(process, processes, node, allgather, context)?;
            Ok(Host::start_with(options, bootstrap, ranks)?)
        })
    }
}

/// Puts the mini-ranks of a host that `start` starts where the caller asks for them: as many as
/// `ranks` says, or the environment where that is 0.
///
/// # Safety
/// `options` is null or initialised, `miniranks` null or a place for a pointer.
unsafe fn give(
    ranks: u32,
    options: *const trihop_options_t,
    miniranks: *mut *mut trihop_miniranks_t,
    start: impl FnOnce(Options, u32) -> Result<Host, Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the caller has promised it.
        let place = unsafe { argument::place(miniranks, "miniranks")? };
        *place = std::ptr::null_mut();
        // SAFETY: the caller has promised it.
        let options = unsafe { load_or_environment(options)? };
        // Before other processes wait for this one.
        let ranks = minirank::checked(match ranks {
            0 => minirank::asked_for()?,
            ranks => ranks,
        })?;
        let host = start(options.clone(), ranks)?;
        crate::log::set_rank_or_warn(host.first().0);
        *place = Box::into_raw(Box::new(trihop_miniranks_t { host, options }));
        Ok(())
    })
}

/// Mini-ranks of this process; 0 where `miniranks` is null.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_minirank_count(miniranks: *const trihop_miniranks_t) -> u32 {
    guard_or(|| {
        // SAFETY: the header asks for null or mini-ranks that were not finalized.
        Ok(unsafe { argument::reference(miniranks, "miniranks")? }
            .host
            .ranks())
    })
    .unwrap_or(0)
}

/// Joins the job as mini-rank `index` of this process, from 0, and waits for all ranks of the job.
/// `job` is an inline one (`TRIHOP_INLINE`) of the thread that calls: all that can be done with
/// such a job of a process can be done with it, by this thread alone: its streams, arrays and
/// channels are closed by it too, before it ends. A thread that ends without `trihop_finalize` has
/// failed, and the job with it, with an error that names its rank; the main thread ends with
/// `exit`, and with the return from `main`, before functions of `atexit` and destructors of
/// statics are called.
///
/// Once one mini-rank of a process is started, the others have `bootstrap_timeout_ms` for it; then
/// all fail.
///
/// Fails with `TRIHOP_ERR_INVALID_ARGUMENT` on an index that is not below `trihop_minirank_count`,
/// with `TRIHOP_ERR_MISUSE` where the mini-rank was started before, and as `trihop_init`: then the
/// mini-rank has failed. Threads: any, which has the job from then on, and keeps to a core where
/// `minirank_cores` says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_minirank_start(
    miniranks: *const trihop_miniranks_t,
    index: u32,
    job: *mut *mut trihop_job_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(job, "job")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or mini-ranks that were not finalized.
        let miniranks = unsafe { argument::reference(miniranks, "miniranks")? };
        let count = miniranks.host.ranks();
        if index >= count {
            let why = format!("mini-rank {index} of a process with {count} of them");
            return Err(Failure::argument(why));
        }
        let options = miniranks.options.clone();
        // From here on they are not looked at: the last rank that has started may end them.
        let started: Job<'static> = miniranks.host.minirank(index)?.start()?;
        let job = trihop_job_t::give_one_of_several(Either::Inline(started), options);
        // Where the thread ends already, nobody watches over it.
        let _ = RUNNING.try_with(|running| running.0.borrow_mut().push(job));
        *place = job;
        Ok(())
    })
}

/// Number of a job's rank among the ranks of its process, from 0: 0 where it is alone there, and
/// `UINT32_MAX` where `job` is null.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_minirank_index(job: *const trihop_job_t) -> u32 {
    guard_or(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        Ok(match &job.job {
            Either::Threaded(_) => 0,
            Either::Inline(job) => minirank::index(job),
        })
    })
    .unwrap_or(u32::MAX)
}

/// Waits until each mini-rank of this process has called this as often as this one; other processes
/// have no part in it. Makes progress meanwhile. Returns at once where the rank is alone in its
/// process. Not inside a handler.
///
/// Threads: as the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_minirank_barrier(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        match &job.job {
            Either::Threaded(_) => Ok(()),
            Either::Inline(job) => Ok(minirank::barrier(job)?),
        }
    })
}

/// Waits until all mini-ranks of this process have ended their jobs, and ends the communication
/// thread. One that was not started by now has failed, and the job with it.
///
/// The mini-ranks are gone afterwards, whatever is returned, but where that is `TRIHOP_ERR_MISUSE`:
/// on a thread that has not ended its own job. Returns what has ended the job, where that was no
/// `trihop_finalize`.
/// Threads: any, but no other call on them may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_minirank_finalize(
    miniranks: *mut trihop_miniranks_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or mini-ranks that were not finalized.
        unsafe { argument::reference(miniranks, "miniranks")? };
        // At the end of the thread, what it has not ended has failed.
        let is_running = RUNNING.try_with(|running| !running.0.borrow().is_empty());
        if is_running.unwrap_or(false) {
            let why = "this thread has the job of a mini-rank, which would be waited for: end it by trihop_finalize first";
            return Err(Failure::new(trihop_status_t::TRIHOP_ERR_MISUSE, why));
        }
        // SAFETY: made by `give`; the header allows no other call on it.
        let miniranks = unsafe { Box::from_raw(miniranks) };
        Ok(miniranks.host.finish()?)
    })
}
