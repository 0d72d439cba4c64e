//! One rank's part of a job, as its application holds it.

use std::rc::Rc;

use trihop_transport::bootstrap::{Bootstrap, Launcher};
use trihop_transport::topology::{Rank, Topology};

use super::shuffle::ShuffleBuilder;
use super::stream::{Item, StreamBuilder};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::job::{JobState, detect};
use crate::signal::DumpOutput;
use crate::terminate::collective::{Operation, Reduce};

/// One rank's part of a job. It stays on the thread that started it.
///
/// `'h` is how long handlers may borrow: what they use is declared before the job.
///
/// ```no_run
/// use std::cell::Cell;
/// use trihop_shuffle::{Job, Options, Rank};
///
/// let heard = Cell::new(0);
/// let job = Job::start(Options::from_env()?)?;
/// let shuffle = job.shuffle("greetings").handler(|_message, _outbox| heard.set(heard.get() + 1)).open()?;
/// for rank in 0..job.size() {
///     shuffle.send(Rank(rank), 0, b"hello")?;
/// }
/// shuffle.fence()?;
/// assert_eq!(heard.get(), job.size());
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Job<'h> {
    pub(crate) state: Rc<JobState<'h>>,
}

impl<'h> Job<'h> {
    /// Joins the job that this process was started in; without a launcher, a job of one.
    ///
    /// # Errors
    /// A bad option, no usable provider, a rank that does not arrive within `bootstrap_timeout_ms`, memory.
    pub fn start(options: Options) -> Result<Self> {
        let bootstrap = detect(&options)?;
        Self::start_with(options, bootstrap)
    }

    /// As [`Job::start`], with a bootstrap of the caller's: [`Custom`](trihop_transport::bootstrap::Custom) for ranks that know each other already.
    /// `options.launcher` then says nothing.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_with(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Self> {
        let state = JobState::start(options, bootstrap)?;
        Ok(Self { state })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.topology().rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.topology().size()
    }

    /// Who is where.
    pub fn topology(&self) -> &Topology {
        &self.state.endpoint.topology
    }

    /// Who started the job.
    pub fn launcher(&self) -> Launcher {
        self.state.launcher()
    }

    /// Provider that carries traffic between nodes, where this rank represents any.
    pub fn provider(&self) -> Option<String> {
        self.state.provider()
    }

    /// A shuffle of byte records. Opening is collective; the same names in the same order on every rank.
    pub fn shuffle(&self, name: &str) -> ShuffleBuilder<'h> {
        ShuffleBuilder::new(Rc::clone(&self.state), name)
    }

    /// A stream of items of one type. Opening is collective; the same names in the same order on every rank.
    pub fn stream<T: Item>(&self, name: &str) -> StreamBuilder<'h, T> {
        StreamBuilder::new(Rc::clone(&self.state), name)
    }

    /// Waits until every rank has called this as often as this rank.
    ///
    /// # Errors
    /// The transport's, and [`Error::Nested`] inside a handler.
    pub fn barrier(&self) -> Result<()> {
        self.state.barrier()
    }

    /// Replaces each value by its reduction over all ranks; every rank gives as many values.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let result = self.state.collective(Operation::Reduce(reduce), &bytes)?;
        if result.len() != bytes.len() {
            let why = format!("{} values here, {} elsewhere", values.len(), result.len() / 8);
            return Err(Error::Mismatch {
                name: "allreduce".into(),
                why,
            });
        }
        for (value, bytes) in values.iter_mut().zip(result.chunks_exact(8)) {
            *value = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
        }
        Ok(())
    }

    /// Every rank's contribution, by rank. For small strings: the result is as large as all of them on every rank.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>> {
        let result = self.state.collective(Operation::Gather, contribution)?;
        Ok(self.state.endpoint.collectives.borrow().contributions(&result))
    }

    /// One round of progress of everything in the job; true when anything moved.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn progress(&self) -> Result<bool> {
        self.state.progress()
    }

    /// Rounds of progress that were made so far, by whichever call.
    pub fn rounds(&self) -> u64 {
        self.state.rounds()
    }

    /// Ends the whole job through the launcher, where it can; the caller still has to exit. Whether the launcher could be
    /// asked: not while the job is being shut down.
    pub fn abort(&self, status: i32, why: &str) -> bool {
        self.state.abort(status, why)
    }

    /// Writes the queues of every stream with their use and their bounds.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        self.state.dump(writer)
    }

    /// Dumps whenever the process gets `signal` (`libc::SIGUSR1`, say): the handler sets a flag,
    /// and the next call that makes progress writes, at most once in a tenth of a second. Whatever
    /// handled the signal before is called too.
    ///
    /// # Errors
    /// A signal that cannot be handled.
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.state.dump_on_signal.install(signal, output)
    }

    /// Fences every stream that is still open, waits for everyone, and leaves the job. Collective.
    ///
    /// Records that wait for [`crate::Shuffle::take`] are given up here; the log says how many.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn shutdown(self) -> Result<()> {
        self.state.shutdown()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.state.close_streams();
    }
}
