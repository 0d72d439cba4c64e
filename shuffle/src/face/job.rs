//! One rank's part of a job, as its application holds it.

use std::rc::Rc;

use trihop_transport::bootstrap::{Bootstrap, Launcher};
use trihop_transport::topology::{Rank, Topology};

use super::shuffle::ShuffleBuilder;
use super::stream::{Item, StreamBuilder};
use crate::config::Options;
use crate::error::Result;
use crate::job::detect;
use crate::seat::{self, Inline, Seat};
use crate::signal::DumpOutput;
use crate::terminate::collective::Reduce;

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
    seat: Rc<Inline<'h>>,
    topology: Topology,
    launcher: Launcher,
    provider: Option<String>,
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
        let seat = seat::start(options, bootstrap)?;
        seat.with("the start", |job| {
            Ok((job.engine.topology.clone(), job.launcher, job.provider()))
        })
        .map(|(topology, launcher, provider)| Self {
            seat: Rc::new(seat),
            topology,
            launcher,
            provider,
        })
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
        &self.topology
    }

    /// Who started the job.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Provider that carries traffic between nodes, where this rank represents any.
    pub fn provider(&self) -> Option<String> {
        self.provider.clone()
    }

    /// A shuffle of byte records. Opening is collective; the same names in the same order on every rank.
    pub fn shuffle(&self, name: &str) -> ShuffleBuilder<'h> {
        ShuffleBuilder::new(&self.seat, name)
    }

    /// A stream of items of one type. Opening is collective; the same names in the same order on every rank.
    pub fn stream<T: Item>(&self, name: &str) -> StreamBuilder<'h, T> {
        StreamBuilder::new(&self.seat, name)
    }

    /// Waits until every rank has called this as often as this rank.
    ///
    /// # Errors
    /// The transport's, and [`Error::Nested`] inside a handler.
    pub fn barrier(&self) -> Result<()> {
        seat::barrier(&self.seat)
    }

    /// Replaces each value by its reduction over all ranks; every rank gives as many values.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<()> {
        seat::allreduce(&self.seat, values, reduce)
    }

    /// Every rank's contribution, by rank. For small strings: the result is as large as all of them on every rank.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>> {
        seat::allgather(&self.seat, contribution)
    }

    /// One round of progress of everything in the job; true when anything moved.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn progress(&self) -> Result<bool> {
        self.seat.progress("poll")
    }

    /// Rounds of progress that were made so far, by whichever call; 0 inside a handler.
    pub fn rounds(&self) -> u64 {
        let rounds = self.seat.with("a look at counters", |job| Ok(job.rounds));
        rounds.unwrap_or(0)
    }

    /// Ends the whole job through the launcher, where it can; the caller still has to exit. Whether the launcher could be
    /// asked: not while the job is being shut down.
    pub fn abort(&self, status: i32, why: &str) -> bool {
        let asked = self.seat.with("an abort", |job| Ok(job.abort(status, why)));
        asked.unwrap_or(false)
    }

    /// Writes the queues of every stream with their use and their bounds.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        let mut written = Ok(());
        let looked = self.seat.with("a dump", |job| {
            written = job.dump(writer);
            Ok(())
        });
        looked.map_err(std::io::Error::other).and(written)
    }

    /// Dumps whenever the process gets `signal` (`libc::SIGUSR1`, say): the handler sets a flag,
    /// and the next call that makes progress writes, at most once in a tenth of a second. Whatever
    /// handled the signal before is called too.
    ///
    /// # Errors
    /// A signal that cannot be handled.
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.seat
            .with("a dump", |job| job.dump_on_signal.install(signal, output))
    }

    /// Fences every stream that is still open, waits for everyone, and leaves the job. Collective.
    ///
    /// Records that wait for [`crate::Shuffle::take`] are given up here; the log says how many.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn shutdown(self) -> Result<()> {
        seat::shut_down(&self.seat)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.seat.close_streams();
    }
}
