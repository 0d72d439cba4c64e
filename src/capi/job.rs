//! A job: start, end, who started it, dumps.

use std::ffi::{CString, c_char, c_int};
use std::io::{self, Write};

use super::argument;
use super::dump;
use super::minirank;
use super::options::trihop_options_t;
use super::seat::{Either, Home, Homed, either, trihop_seat_t};
use super::status::{Failure, guard, guard_or, trihop_status_t};
use crate::threaded::DumpOutput;
use crate::{Job, Options, threaded};

/// One rank's part of a job, over the seat that `trihop_init` was given.
///
/// Threads: of a job with threads (`TRIHOP_THREADED`), except where a function says otherwise, any
/// thread may call at any time, several at once too. Of an inline job (`TRIHOP_INLINE`), and of its
/// streams, all functions are called on the thread that has started it, whatever they say of
/// threads themselves. Inside its handlers functions of streams send and no others; what never
/// changes (ranks, nodes, names, errors) may be asked for there.
pub struct trihop_job_t {
    pub(crate) job: JobOf,
    home: Home,
    options: Options,
    launcher: CString,
    provider: Option<CString>,
}

impl Homed for trihop_job_t {
    fn home(&self) -> Home {
        self.home
    }
}

/// A job of either seat.
pub(crate) type JobOf = Either<threaded::Job, Job<'static>>;

/// Version of the library that runs, for instance `0.1.0`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn trihop_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Joins the job that this process was started in by PMIx, PMI-1 or `trihop run`, or that
/// `TRIHOP_MASTER` or an agent (`TRIHOP_AGENT`, `TRIHOP_LAUNCHER=agent`) brings together; without
/// any, a job of one. Collective over all ranks; `seat`, of `trihop_seat_t`, may differ
/// between them. `options` null stands for those of the environment.
///
/// Fails on a bad option, where no provider can be used, where a rank does not arrive in time, and
/// where this is one of several tasks of a launcher that offers neither PMI nor PMIx.
/// Threads: any. A process can be in several jobs, if its launcher knows how: PMI-1 does
/// where MPI is initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_init(
    seat: i32,
    options: *const trihop_options_t,
    job: *mut *mut trihop_job_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(job, "job")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or initialised options.
        let options = unsafe { load_or_environment(options)? };
        let job = match trihop_seat_t::parse(seat)? {
            trihop_seat_t::TRIHOP_THREADED => {
                Either::Threaded(threaded::Job::start(options.clone())?)
            }
            trihop_seat_t::TRIHOP_INLINE => Either::Inline(Job::start(options.clone())?),
        };
        *place = trihop_job_t::give(job, options);
        Ok(())
    })
}

/// Options of a caller, or those of the environment.
///
/// # Safety
/// As [`trihop_options_t::load`].
pub(crate) unsafe fn load_or_environment(
    options: *const trihop_options_t,
) -> Result<Options, Failure> {
    if options.is_null() {
        return Ok(Options::from_env()?);
    }
    // SAFETY: as the caller promises.
    unsafe { trihop_options_t::load(options) }
}

/// Fills `options` with those of the job, as a start for the options of one stream. `size` is
/// `sizeof(trihop_options_t)` as the caller knows it.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_job_options(
    job: *const trihop_job_t,
    options: *mut trihop_options_t,
    size: usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        let filled = trihop_options_t::from_rust(&job.options)?;
        // SAFETY: the header asks for null or `size` bytes that nobody else uses.
        unsafe { filled.store(options, size) }
    })
}

/// Leaves the job: every stream that is still open is fenced, and everyone is waited for. Records
/// that wait for `trihop_stream_take`, or come for it until then, are given up; how many is said to
/// logs, or on standard error where there are none. Collective over all ranks.
///
/// The job is gone afterwards, whatever is returned, but where the call is refused: inside a
/// handler with `TRIHOP_ERR_NESTED`; with `TRIHOP_ERR_MISUSE` while contributors of this rank are
/// not done in a step of a stream, or an end of all streams that was started is not waited for, and
/// on another thread than that which has started an inline job. Handles of its streams remain
/// valid, answer `TRIHOP_ERR_CLOSED` or what has ended the job, and have to be closed for their
/// memory.
/// Threads: any, but no other call on the job may be under way or follow. After
/// `trihop_init_custom` the allgather is called on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_finalize(job: *mut trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let taken = unsafe { argument::handle(job, "job")? };
        let outcome = either!(&taken.job, job => job.clone().shutdown());
        if !matches!(
            outcome,
            Err(crate::Error::Nested(_) | crate::Error::Misuse { .. })
        ) {
            minirank::has_ended(job);
            // SAFETY: made by `give`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(job) });
        }
        Ok(outcome?)
    })
}

/// Makes one round of progress of everything in the job: on an inline job handlers are called here.
/// `moved` becomes 1 where anything moved, else 0; it may be null. A job with threads makes
/// progress without it. Where nothing moved, others may run first: ranks may outnumber cores.
///
/// Fails with `TRIHOP_ERR_NESTED` inside a handler of an inline job, and as every call where a peer
/// is gone.
/// Threads: as the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_poll(
    job: *const trihop_job_t,
    moved: *mut c_int,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        let worked = either!(&job.job, job => job.progress())?;
        if !moved.is_null() {
            // SAFETY: not null, so the header asks for a place for a number.
            *unsafe { argument::place(moved, "moved")? } = c_int::from(worked);
        }
        Ok(())
    })
}

/// Ends the whole job: the calls of all ranks fail from then on, and say that this one has failed,
/// and `why`, which may be null (in a job that goes on without ranks, that it has left). Its
/// launcher ends it, where that can, and prints `why`. The caller still has to exit.
/// `TRIHOP_ERR_WOULD_BLOCK` when the launcher could not be asked, because the job is being
/// finalized, its engine does not come free, or this is a handler of an inline job: exiting is all
/// that is left.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_abort(
    job: *const trihop_job_t,
    exit_status: c_int,
    why: *const c_char,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        let why = if why.is_null() {
            "aborted by the program"
        } else {
            // SAFETY: the header asks for null or a text that ends with NUL.
            unsafe { argument::text(why, "why")? }
        };
        match either!(&job.job, job => job.abort(exit_status, why)) {
            true => Ok(()),
            false => Err(super::stats::busy()),
        }
    })
}

impl trihop_job_t {
    /// A handle for the caller, which [`trihop_finalize`] takes back.
    pub(crate) fn give(job: JobOf, options: Options) -> *mut Self {
        crate::log::set_rank_or_warn(either!(&job, job => job.rank()).0);
        Self::give_one_of_several(job, options)
    }

    /// As [`give`](Self::give), for one rank of several in this process, of which the logs know the
    /// first.
    pub(crate) fn give_one_of_several(job: JobOf, options: Options) -> *mut Self {
        let launcher =
            CString::new(either!(&job, job => job.launcher()).name()).unwrap_or_default();
        let provider =
            either!(&job, job => job.provider()).and_then(|name| CString::new(name).ok());
        Box::into_raw(Box::new(Self {
            home: Home::of(&job),
            job,
            options,
            launcher,
            provider,
        }))
    }
}

/// Who started the job: `master`, `pmix`, `pmi1`, `local`, `agent`, `custom` or `single`. Null where
/// `job` is.
///
/// Threads: any. The text lives as long as the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_launcher(job: *const trihop_job_t) -> *const c_char {
    let launcher = guard_or(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        Ok(job.launcher.as_ptr())
    });
    launcher.unwrap_or(std::ptr::null())
}

/// Provider that carries this rank's traffic to other nodes; null where it carries none, or where
/// `job` is null.
///
/// Threads: any. The text lives as long as the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_provider(job: *const trihop_job_t) -> *const c_char {
    guard_or(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        Ok(job
            .provider
            .as_ref()
            .map_or(std::ptr::null(), |name| name.as_ptr()))
    })
    .unwrap_or(std::ptr::null())
}

/// Writes the state of every stream to a file descriptor: queues with their use and bounds, the
/// memory formula with its value; then the lines that `trihop_log_recent` gives. For people to
/// read; the text may change.
///
/// Threads: any; also while other threads wait in a call. It waits for nobody but the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_dump(
    job: *const trihop_job_t,
    descriptor: c_int,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        dump::to_descriptor(descriptor, |writer| whole(&job.job, writer))
    })
}

/// As `trihop_dump`, into a file, which is made or replaced.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_dump_to_file(
    job: *const trihop_job_t,
    path: *const c_char,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended, and a text that ends with
        // NUL.
        let (job, path) = unsafe { (argument::handle(job, "job")?, argument::text(path, "path")?) };
        dump::to_file(path, |writer| whole(&job.job, writer))
    })
}

/// All that is to be known of a job.
fn whole(job: &JobOf, out: &mut dyn Write) -> io::Result<()> {
    either!(job, job => job.dump(out))?;
    dump::write_recent(out)
}

/// Dumps as `trihop_dump` does, without lines of logs, whenever the process gets signal `number`
/// (`SIGUSR1`, say): to the file `<path>.<rank>`, behind what is in it, or to standard error where
/// `path` is null. A job with threads does so within a tenth of a second, an inline one at its next
/// call that makes progress. Whatever handled the signal before is called too. No
/// signal is handled without this call.
///
/// Fails with `TRIHOP_ERR_CONFIG` on a signal that cannot be handled.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_dump_on_signal(
    job: *const trihop_job_t,
    number: c_int,
    path: *const c_char,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        let output = if path.is_null() {
            DumpOutput::Stderr
        } else {
            // SAFETY: not null, so the header asks for a text that ends with NUL.
            DumpOutput::Files(unsafe { argument::text(path, "path")? }.into())
        };
        Ok(either!(&job.job, job => job.dump_on(number, output))?)
    })
}
