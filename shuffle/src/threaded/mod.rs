//! Jobs with a progress thread, for applications that compute, sit in other libraries, or call from several threads.
//!
//! The progress thread routes, acknowledges and sends on by age while the application does something else; it sleeps
//! while there is nothing to do. Handlers run on a delivery thread of their stream, one call at a time and outside of
//! every lock: they may block, and then hold up those who send to them, nobody else. Calls make progress themselves
//! while they wait. All of it is the same engine as [`crate::Job`]'s, used by one thread at a time.

mod exit;
mod items;
mod seat;
mod shared;
mod shuffle;
#[cfg(test)]
mod tests;
mod thread;
mod usage;

use std::io::Write;
use std::sync::Arc;

use trihop_transport::bootstrap::{Bootstrap, Launcher};
use trihop_transport::topology::{Rank, Topology};

use crate::config::Options;
use crate::error::Result;
use crate::job::detect;
use crate::seat::{allgather, allreduce, barrier, start};
pub use crate::signal::DumpOutput;
use crate::terminate::collective::Reduce;
pub use items::{Items, ItemsBuilder};
use shared::Shared;
pub use shuffle::{Shuffle, ShuffleBuilder};
pub use usage::ThreadUse;

/// One rank's part of a job, for all threads of its process. Clones are handles of the same job.
///
/// Collective calls are made in the same order on every rank, whichever threads make them.
///
/// ```no_run
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::sync::Arc;
/// use trihop_shuffle::{Options, Rank, threaded};
///
/// let heard = Arc::new(AtomicU32::new(0));
/// let count = Arc::clone(&heard);
/// let job = threaded::Job::start(Options::from_env()?)?;
/// let shuffle = job
///     .shuffle("greetings")
///     .handler(move |_message| {
///         count.fetch_add(1, Ordering::Relaxed);
///     })
///     .open()?;
/// for rank in 0..job.size() {
///     shuffle.send(Rank(rank), 0, b"hello")?;
/// }
/// shuffle.fence()?;
/// assert_eq!(heard.load(Ordering::Relaxed), job.size());
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
#[derive(Clone)]
pub struct Job {
    shared: Arc<Shared>,
}

impl Job {
    /// As [`crate::Job::start`], with a progress thread.
    ///
    /// # Errors
    /// As [`crate::Job::start`], or no thread is to be had.
    pub fn start(options: Options) -> Result<Self> {
        let bootstrap = detect(&options)?;
        Self::start_with(options, bootstrap)
    }

    /// As [`crate::Job::start_with`], with a progress thread. A bootstrap that may be used on one thread only wants
    /// [`Job::start_with`] and [`Job::shutdown`] called there.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_with(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Self> {
        let shared = Shared::start(start(options, bootstrap)?)?;
        Ok(Self { shared })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.shared.topology.rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.shared.topology.size()
    }

    /// Who is where.
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// Who started the job.
    pub fn launcher(&self) -> Launcher {
        self.shared.launcher
    }

    /// Provider that carries traffic between nodes, where this rank represents any.
    pub fn provider(&self) -> Option<&str> {
        self.shared.provider.as_deref()
    }

    /// A shuffle of byte records. Opening is collective; the same names in the same order on every rank.
    pub fn shuffle(&self, name: &str) -> ShuffleBuilder {
        ShuffleBuilder::new(&self.shared, name)
    }

    /// A stream of items of `item_bytes` bytes. Opening is collective; the same names in the same order on every rank.
    pub fn items(&self, name: &str, item_bytes: usize) -> ItemsBuilder {
        ItemsBuilder::new(&self.shared, name, item_bytes)
    }

    /// As [`crate::Job::barrier`].
    ///
    /// # Errors
    /// As [`crate::Job::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.shared.collective("a barrier", barrier)
    }

    /// As [`crate::Job::allreduce`].
    ///
    /// # Errors
    /// As [`crate::Job::allreduce`].
    pub fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<()> {
        self.shared
            .collective("a reduction", |seat| allreduce(seat, values, reduce))
    }

    /// As [`crate::Job::allgather`].
    ///
    /// # Errors
    /// As [`crate::Job::allgather`].
    pub fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.shared
            .collective("a gathering", |seat| allgather(seat, contribution))
    }

    /// As [`crate::Job::abort`]; false also when the engine is in use and does not come free. The caller exits all the same.
    pub fn abort(&self, status: i32, why: &str) -> bool {
        self.shared
            .seat
            .try_look(|job| job.abort(status, why))
            .unwrap_or(false)
    }

    /// As [`crate::Job::rounds`]; `None` when the engine is in use and does not come free.
    pub fn rounds(&self) -> Option<u64> {
        self.shared.seat.try_look(|job| job.rounds)
    }

    /// Writes every stream's queues with their use and their bounds. Does not wait for long: where the engine cannot be
    /// had, it says so.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        self.shared.dump(writer)
    }

    /// Dumps whenever the process gets `signal` (`libc::SIGUSR1`, say), within a tenth of a second, also of a job that has
    /// failed: the handler sets a flag, and the progress thread has it written. Whatever handled the signal before is
    /// called too. The job's end waits for a dump that is being written.
    ///
    /// # Errors
    /// A signal that cannot be handled.
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.shared.dump_on(signal, output)
    }

    /// What the job's threads have used so far: progress, and deliveries of each stream.
    pub fn threads(&self) -> Vec<ThreadUse> {
        self.shared.threads()
    }

    /// As [`crate::Job::shutdown`], with everything delivered and all threads ended. Collective. Calls that come later
    /// fail with [`crate::Error::Closed`].
    ///
    /// Where it fails, the threads have ended too: handlers are not called any more, and what waited for them is dropped
    /// and counted ([`crate::Stats::undelivered`]). A call of a handler that is being made is waited for. That holds as
    /// well where the last handle of a job that has failed is dropped.
    ///
    /// # Errors
    /// As [`crate::Job::shutdown`]; [`crate::Error::Nested`] inside a handler, with nothing done.
    pub fn shutdown(self) -> Result<()> {
        self.shared.shutdown()
    }
}
