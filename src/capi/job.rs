//! A job: start, who is where, collectives, dump, end.

use std::ffi::{CString, c_char, c_int};

use super::argument;
use super::dump;
use super::options::trihop_options_t;
use super::status::{Failure, guard, guard_or, trihop_status_t};
use crate::threaded::{DumpOutput, Job};
use crate::{NodeId, Options, Rank, Reduce, Topology};

/// One rank's part of a job, with a progress thread of its own: traffic goes on while the program computes.
///
/// Threads: except where a function says otherwise, any thread may call at any time, several at once too.
pub struct trihop_job_t {
    pub(crate) job: Job,
    options: Options,
    launcher: CString,
    provider: Option<CString>,
}

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

/// Version of the library that runs, for instance `0.1.0`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn trihop_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Joins the job that this process was started in by PMIx, PMI-1 or `trihop run`; without a launcher, a job of one.
/// Collective over all ranks. `options` null stands for those of the environment.
///
/// Fails on a bad option, where no provider can be used, and where a rank does not arrive in time.
/// Threads: any. A process can be in several jobs, if its launcher knows how.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_init(
    options: *const trihop_options_t,
    job: *mut *mut trihop_job_t,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a place for a pointer.
        let place = unsafe { argument::place(job, "job")? };
        *place = std::ptr::null_mut();
        // SAFETY: the header asks for null or initialised options.
        let options = unsafe { load_or_environment(options)? };
        *place = trihop_job_t::give(Job::start(options.clone())?, options);
        Ok(())
    })
}

/// Options of a caller, or those of the environment.
///
/// # Safety
/// As [`trihop_options_t::load`].
pub(crate) unsafe fn load_or_environment(options: *const trihop_options_t) -> Result<Options, Failure> {
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

/// Leaves the job: every stream that is still open is fenced, and everyone is waited for. Collective over all ranks.
///
/// The job is gone afterwards, whatever is returned, with one exception: inside a handler the call is refused with
/// `TRIHOP_ERR_NESTED`. Handles of its shuffles and streams remain valid, answer `TRIHOP_ERR_CLOSED`, and have to be closed
/// for their memory.
/// Threads: any, but no other call on the job may be under way or follow. After `trihop_init_custom` the allgather is
/// called on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_finalize(job: *mut trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let taken = unsafe { argument::reference(job, "job")? };
        let outcome = taken.job.clone().shutdown();
        if !matches!(outcome, Err(crate::Error::Nested(_))) {
            // SAFETY: made by `give`; the header allows no other call on it.
            drop(unsafe { Box::from_raw(job) });
        }
        Ok(outcome?)
    })
}

/// Ends the whole job through its launcher, where that can; the caller still has to exit. `why` goes to the launcher's
/// output; it may be null.
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
        let job = unsafe { argument::reference(job, "job")? };
        let why = if why.is_null() {
            "aborted by the program"
        } else {
            // SAFETY: the header asks for null or a text that ends with NUL.
            unsafe { argument::text(why, "why")? }
        };
        job.job.abort(exit_status, why);
        Ok(())
    })
}

impl trihop_job_t {
    /// A handle for the caller, which [`trihop_finalize`] takes back.
    pub(crate) fn give(job: Job, options: Options) -> *mut Self {
        if let Err(error) = crate::log::set_rank(job.rank().0) {
            tracing::warn!(%error, "the logs of this rank");
        }
        let launcher = CString::new(job.launcher().name()).unwrap_or_default();
        let provider = job.provider().and_then(|name| CString::new(name).ok());
        Box::into_raw(Box::new(Self {
            job,
            options,
            launcher,
            provider,
        }))
    }
}

/// A number of the job's topology; `UINT32_MAX` and a noted failure where there is no job.
///
/// # Safety
/// `job` is null or a job that has not ended.
unsafe fn number(job: *const trihop_job_t, of: impl FnOnce(&Topology) -> u32) -> u32 {
    guard_or(|| {
        // SAFETY: as the caller promises.
        let job = unsafe { argument::reference(job, "job")? };
        Ok(of(job.job.topology()))
    })
    .unwrap_or(u32::MAX)
}

/// This rank: 0 to `trihop_size` - 1. `UINT32_MAX` where `job` is null, as for the other numbers.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_rank(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, |topology| topology.rank().0) }
}

/// Ranks of the job.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_size(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::size) }
}

/// Node of this rank: 0 to `trihop_nodes` - 1.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_node(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, |topology| topology.node().0) }
}

/// Nodes of the job.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_nodes(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::nodes) }
}

/// Number of this rank among the ranks of its node, from 0.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_rank(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::local_rank) }
}

/// Ranks of this rank's node.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_size(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::local_size) }
}

fn checked_rank(topology: &Topology, rank: u32) -> Result<Rank, Failure> {
    let size = topology.size();
    if rank < size {
        Ok(Rank(rank))
    } else {
        Err(crate::Error::Rank { rank, size }.into())
    }
}

fn checked_node(topology: &Topology, node: u32) -> Result<NodeId, Failure> {
    let nodes = topology.nodes();
    if node < nodes {
        Ok(NodeId(node))
    } else {
        let why = format!("node {node} does not exist in a job of {nodes} nodes");
        Err(Failure::argument(why))
    }
}

/// Stores an answer of the topology.
///
/// # Safety
/// `job` is null or a job that has not ended; `place` is null or a place for a number.
unsafe fn answer(
    job: *const trihop_job_t,
    place: *mut u32,
    name: &str,
    find: impl FnOnce(&Topology) -> Result<u32, Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let (job, place) = unsafe { (argument::reference(job, "job")?, argument::place(place, name)?) };
        *place = find(job.job.topology())?;
        Ok(())
    })
}

/// Stores the node of a rank.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_node_of(
    job: *const trihop_job_t,
    rank: u32,
    node: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| Ok(topology.node_of(checked_rank(topology, rank)?).0);
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, node, "node", find) }
}

/// Stores the number of a rank among the ranks of its node.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_rank_of(
    job: *const trihop_job_t,
    rank: u32,
    local_rank: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| Ok(topology.local_rank_of(checked_rank(topology, rank)?));
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, local_rank, "local_rank", find) }
}

/// Stores how many ranks a node has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_size_of(
    job: *const trihop_job_t,
    node: u32,
    local_size: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| Ok(topology.local_size_of(checked_node(topology, node)?));
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, local_size, "local_size", find) }
}

/// Stores the rank with number `local_rank` on a node.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_rank_at(
    job: *const trihop_job_t,
    node: u32,
    local_rank: u32,
    rank: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| {
        let node = checked_node(topology, node)?;
        let size = topology.local_size_of(node);
        if local_rank >= size {
            let why = format!("node {node} has {size} ranks, and none with number {local_rank}");
            return Err(Failure::argument(why));
        }
        Ok(topology.rank_at(node, local_rank).0)
    };
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, rank, "rank", find) }
}

/// Stores the rank on node `of` that speaks with node `towards` on the three-hop route.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_representative(
    job: *const trihop_job_t,
    of: u32,
    towards: u32,
    rank: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| {
        let (of, towards) = (checked_node(topology, of)?, checked_node(topology, towards)?);
        Ok(topology.representative(of, towards).0)
    };
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, rank, "rank", find) }
}

/// Who started the job: `pmix`, `pmi1`, `local`, `custom` or `single`. Null where `job` is.
///
/// Threads: any. The text lives as long as the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_launcher(job: *const trihop_job_t) -> *const c_char {
    // SAFETY: the header asks for null or a job that has not ended.
    let launcher = guard_or(|| Ok(unsafe { argument::reference(job, "job")? }.launcher.as_ptr()));
    launcher.unwrap_or(std::ptr::null())
}

/// Provider that carries this rank's traffic to other nodes; null where it carries none, or where `job` is null.
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

/// Waits until every rank has called this as often as this rank. Collective over all ranks; not inside a handler.
///
/// Threads: any, but all ranks have to call collectives in one order, so one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_barrier(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        Ok(job.job.barrier()?)
    })
}

/// Replaces each of `count` values by its reduction over all ranks. `reduce` is one of `trihop_reduce_t`. Collective over
/// all ranks, each with as many values; not inside a handler.
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
        // SAFETY: the header asks for null or a job that has not ended, and values that nobody else uses.
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
        Ok(job.job.allreduce(values, reduce)?)
    })
}

/// Gathers `length` bytes of every rank into `all`, which has `trihop_size` times as many, in rank order. Collective over
/// all ranks, each with the same length; not inside a handler.
///
/// Fails with `TRIHOP_ERR_MISMATCH` on every rank where lengths differ.
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_allgather(
    job: *const trihop_job_t,
    mine: *const std::ffi::c_void,
    length: usize,
    all: *mut std::ffi::c_void,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended, and for `length` bytes.
        let (job, mine) = unsafe {
            (
                argument::reference(job, "job")?,
                argument::bytes(mine, length, "mine")?,
            )
        };
        let total = (job.job.size() as usize).checked_mul(length).ok_or_else(|| {
            Failure::argument(format!(
                "{length} bytes of each rank are more than memory can hold"
            ))
        })?;
        // SAFETY: the header asks for as many bytes, which nobody else uses.
        let all = unsafe { argument::slice_mut(all.cast::<u8>(), total, "all")? };
        let gathered = job.job.allgather(mine)?;
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

/// Writes the state of every stream to a file descriptor: queues with their use and bounds, the memory formula with its
/// value. For people to read; the text may change.
///
/// Threads: any; also while other threads wait in a call. It waits for nobody but the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_dump(job: *const trihop_job_t, descriptor: c_int) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::reference(job, "job")? };
        dump::to_descriptor(descriptor, |writer| job.job.dump(writer))
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
        // SAFETY: the header asks for null or a job that has not ended, and a text that ends with NUL.
        let (job, path) = unsafe { (argument::reference(job, "job")?, argument::text(path, "path")?) };
        dump::to_file(path, |writer| job.job.dump(writer))
    })
}

/// Dumps as `trihop_dump` does whenever the process gets signal `number` (`SIGUSR1`, say), within a tenth of a second: to the
/// file `<path>.<rank>`, behind what is in it, or to standard error where `path` is null. Whatever handled the signal before
/// is called too. No signal is handled without this call.
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
        let job = unsafe { argument::reference(job, "job")? };
        let output = if path.is_null() {
            DumpOutput::Stderr
        } else {
            // SAFETY: not null, so the header asks for a text that ends with NUL.
            DumpOutput::Files(unsafe { argument::text(path, "path")? }.into())
        };
        Ok(job.job.dump_on(number, output)?)
    })
}
