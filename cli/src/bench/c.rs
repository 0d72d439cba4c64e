//! A job as a C program has it: every call goes through the functions of `trihop.h`.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

use trihop::capi::collective::{trihop_allgather, trihop_allgatherv, trihop_allreduce};
use trihop::capi::collective::{trihop_barrier, trihop_reduce_t};
use trihop::capi::job::{trihop_finalize, trihop_init, trihop_job_t, trihop_provider};
use trihop::capi::minirank::{
    trihop_minirank_finalize, trihop_minirank_init, trihop_minirank_start, trihop_miniranks_t,
};
use trihop::capi::seat::trihop_seat_t;
use trihop::capi::status::{trihop_last_error, trihop_status_t};
use trihop::capi::stream::message::trihop_handler_t;
use trihop::capi::stream::open::trihop_stream_open;
use trihop::capi::stream::{trihop_stream_close, trihop_stream_t};
use trihop::capi::topology::{trihop_node_of, trihop_rank, trihop_size};
use trihop::{NodeId, Rank, Reduce, Topology};

use super::session::Team;
use super::{Error, Seat};

/// What a call has said.
///
/// # Errors
/// Its failure, as a C program reads it.
pub(crate) fn check(call: &'static str, status: trihop_status_t) -> Result<(), Error> {
    if status == trihop_status_t::TRIHOP_OK {
        return Ok(());
    }
    // SAFETY: a text of this thread that ends with NUL, copied at once.
    let text = unsafe { CStr::from_ptr(trihop_last_error()) };
    let text = text.to_string_lossy();
    Err(Error::Call {
        call,
        why: text.into_owned(),
    })
}

/// As [`check`], for calls that stand for those of [`trihop::Job`].
fn told(call: &'static str, status: trihop_status_t) -> Result<(), trihop::Error> {
    check(call, status).map_err(|error| trihop::Error::Environment {
        key: call.to_owned(),
        why: error.to_string(),
    })
}

/// The job.
pub(crate) struct CJob {
    job: *mut trihop_job_t,
    topology: Topology,
}

impl CJob {
    /// Joins the job that the environment names, with the options that it gives.
    ///
    /// # Errors
    /// The library's.
    pub fn start(seat: Seat) -> Result<Self, Error> {
        let seat = match seat {
            // A mini-rank's job is an inline one.
            Seat::Inline | Seat::Minirank | Seat::Agent => trihop_seat_t::TRIHOP_INLINE,
            Seat::Threaded => trihop_seat_t::TRIHOP_THREADED,
        };
        let mut job = null_mut();
        // SAFETY: a place for a pointer; no options.
        check("trihop_init", unsafe {
            trihop_init(seat as i32, null(), &mut job)
        })?;
        Self::of(job)
    }

    /// Of a job that was started.
    fn of(job: *mut trihop_job_t) -> Result<Self, Error> {
        // SAFETY: a job that was started.
        let (rank, size) = unsafe { (trihop_rank(job), trihop_size(job)) };
        let mut nodes = Vec::new();
        for other in 0..size {
            let mut node = 0;
            // SAFETY: as above; a place for a number.
            check("trihop_node_of", unsafe {
                trihop_node_of(job, other, &mut node)
            })?;
            nodes.push(NodeId(node));
        }
        let topology = Topology::from_node_of(&nodes, Rank(rank))?;
        Ok(Self { job, topology })
    }

    /// Opens a stream of items of so many bytes.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Safety
    /// `context` is what the handler needs, until the stream is closed.
    pub unsafe fn open(
        &self,
        name: &str,
        item_bytes: usize,
        handler: trihop_handler_t,
        context: *mut c_void,
    ) -> Result<CStream, Error> {
        let name = CString::new(name).expect("names of benchmarks have no NUL");
        let mut stream = null_mut();
        // SAFETY: a job that was started, and a text that ends with NUL; the context is as the
        // caller promises.
        check("trihop_stream_open", unsafe {
            let options = null();
            let name = name.as_ptr();
            trihop_stream_open(
                self.job,
                name,
                item_bytes,
                options,
                handler,
                context,
                &mut stream,
            )
        })?;
        Ok(CStream(stream))
    }

    /// Leaves the job.
    ///
    /// # Errors
    /// The library's.
    pub fn finish(self) -> Result<(), Error> {
        // SAFETY: a job that was started, and is used no more.
        check("trihop_finalize", unsafe { trihop_finalize(self.job) })
    }
}

/// Mini-ranks of this process, as C has them: any thread may use them.
struct CMiniRanks(*mut trihop_miniranks_t);

// SAFETY: the header says of each function that is called here that any thread may call it.
unsafe impl Sync for CMiniRanks {}

impl CMiniRanks {
    fn start(&self, index: u32) -> Result<CJob, Error> {
        let mut job = null_mut();
        // SAFETY: mini-ranks that were not finalized, and a place for a pointer.
        check("trihop_minirank_start", unsafe {
            trihop_minirank_start(self.0, index, &mut job)
        })?;
        CJob::of(job)
    }
}

/// Runs `rank` for each of so many ranks of this process, on threads of their own.
///
/// # Errors
/// Those of the first rank that has any, and the library's.
pub(crate) fn on_miniranks(
    ranks: u32,
    rank: impl Fn(CJob) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let mut miniranks = null_mut();
    // SAFETY: a place for a pointer; no options.
    check("trihop_minirank_init", unsafe {
        trihop_minirank_init(ranks, null(), &mut miniranks)
    })?;
    let miniranks = CMiniRanks(miniranks);
    let outcomes: Result<Vec<()>, Error> = std::thread::scope(|scope| {
        let (rank, miniranks) = (&rank, &miniranks);
        let start = |index| scope.spawn(move || rank(miniranks.start(index)?));
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        let ended: Vec<_> = ended.collect();
        ended
            .into_iter()
            .map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    // SAFETY: all threads that have used them have ended.
    let finished = check("trihop_minirank_finalize", unsafe {
        trihop_minirank_finalize(miniranks.0)
    });
    outcomes.and(finished)
}

/// A stream of such a job.
pub(crate) struct CStream(pub *mut trihop_stream_t);

impl CStream {
    /// Fences the stream, and closes it.
    ///
    /// # Errors
    /// The library's.
    pub fn close(self) -> Result<(), Error> {
        // SAFETY: a stream that was opened, and is used no more.
        check("trihop_stream_close", unsafe {
            trihop_stream_close(self.0)
        })
    }
}

impl Team for CJob {
    fn rank(&self) -> Rank {
        self.topology.rank()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn provider(&self) -> Option<String> {
        // SAFETY: a job that was started; a text that lives as long, or null.
        let provider = unsafe {
            let text = trihop_provider(self.job);
            (!text.is_null()).then(|| CStr::from_ptr(text))
        };
        provider.map(|text| text.to_string_lossy().into_owned())
    }

    fn barrier(&self) -> Result<(), trihop::Error> {
        // SAFETY: a job that was started.
        told("trihop_barrier", unsafe { trihop_barrier(self.job) })
    }

    fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<(), trihop::Error> {
        let reduce = match reduce {
            Reduce::Sum => trihop_reduce_t::TRIHOP_SUM,
            Reduce::Min => trihop_reduce_t::TRIHOP_MIN,
            Reduce::Max => trihop_reduce_t::TRIHOP_MAX,
            Reduce::Xor => trihop_reduce_t::TRIHOP_XOR,
            Reduce::And => trihop_reduce_t::TRIHOP_AND,
            Reduce::Or => trihop_reduce_t::TRIHOP_OR,
        };
        // SAFETY: a job that was started, and so many values.
        told("trihop_allreduce", unsafe {
            trihop_allreduce(self.job, reduce as i32, values.as_mut_ptr(), values.len())
        })
    }

    fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>, trihop::Error> {
        let mut lengths = vec![0usize; self.topology.size() as usize];
        let length = contribution.len();
        // SAFETY: a job that was started; a number of this rank's, and places for all.
        told("trihop_allgather", unsafe {
            let mine = (&raw const length).cast();
            trihop_allgather(
                self.job,
                mine,
                size_of::<usize>(),
                lengths.as_mut_ptr().cast(),
            )
        })?;
        let mut all = vec![0u8; lengths.iter().sum()];
        // SAFETY: a job that was started; as many bytes as the lengths say.
        told("trihop_allgatherv", unsafe {
            let mine = contribution.as_ptr().cast();
            let all = all.as_mut_ptr().cast();
            trihop_allgatherv(self.job, mine, length, all, lengths.as_ptr())
        })?;
        let mut rest = &all[..];
        let take = |length: &usize| {
            let (theirs, behind) = rest.split_at(*length);
            rest = behind;
            theirs.to_vec()
        };
        Ok(lengths.iter().map(take).collect())
    }
}
