//! A rank's part of a job: who is where, progress, collectives, the lives of its peers.

mod card;
mod end;
mod lives;
mod open;
mod start;
mod wait;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use trihop_transport::bootstrap::{Bootstrap, Launcher};
use trihop_transport::park::Turn;
use trihop_transport::topology::{Rank, Topology};

use crate::collective::{Operation, Reduce, Ticket};
use crate::config::Options;
use crate::deliver::Sink;
use crate::dump;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::node::NodeExchange;
use crate::shuffle::ShuffleBuilder;
use crate::signal::{DumpOnSignal, DumpOutput};
use crate::stream::{Item, StreamBuilder};
use wait::{PARK, Waiting};

/// Target of events about deliveries, by which they have their facility.
const DELIVER: &str = "trihop_shuffle::deliver";

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
    pub(crate) inner: Rc<Inner<'h>>,
}

pub(crate) struct Inner<'h> {
    pub endpoint: Endpoint<'h>,
    pub options: Options,
    bootstrap: RefCell<Option<Box<dyn Bootstrap>>>,
    launcher: Launcher,
    node: RefCell<NodeExchange>,
    waiting: Waiting,
    epoch: Instant,
    closing: Cell<bool>,
    /// A thread of ours waits for the launcher's fence.
    fencing: Cell<bool>,
    checked_ns: Cell<u64>,
    /// The other ends of links that answer at any time, and may be asked whether they live: threads make progress at both.
    lively: Vec<Rank>,
    asked_ns: Cell<u64>,
    /// The neighbours know which rank is gone.
    told: Cell<bool>,
    /// Rounds of progress.
    rounds: Cell<u64>,
    dump_on_signal: DumpOnSignal,
    /// Records whose delivery the log has heard of.
    told_records: Cell<u64>,
    /// Where a progress thread parks and several threads call: what all of this is reached with.
    pub turn: OnceCell<Turn>,
}

impl<'h> Job<'h> {
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
        &self.inner.endpoint.topology
    }

    /// Who started the job.
    pub fn launcher(&self) -> Launcher {
        self.inner.launcher
    }

    /// Provider that carries traffic between nodes, where this rank represents any.
    pub fn provider(&self) -> Option<String> {
        self.inner
            .endpoint
            .link
            .borrow()
            .as_ref()
            .map(|l| l.name().to_owned())
    }

    /// A shuffle of byte records. Opening is collective; the same names in the same order on every rank.
    pub fn shuffle(&self, name: &str) -> ShuffleBuilder<'h> {
        ShuffleBuilder::new(Rc::clone(&self.inner), name)
    }

    /// A stream of items of one type. Opening is collective; the same names in the same order on every rank.
    pub fn stream<T: Item>(&self, name: &str) -> StreamBuilder<'h, T> {
        StreamBuilder::new(Rc::clone(&self.inner), name)
    }

    /// Waits until every rank has called this as often as this rank.
    ///
    /// # Errors
    /// The transport's, and [`Error::Nested`] inside a handler.
    pub fn barrier(&self) -> Result<()> {
        self.inner.barrier()
    }

    /// Replaces each value by its reduction over all ranks; every rank gives as many values.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let result = self.inner.collective(Operation::Reduce(reduce), &bytes)?;
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
        let result = self.inner.collective(Operation::Gather, contribution)?;
        Ok(self.inner.endpoint.collectives.borrow().contributions(&result))
    }

    /// One round of progress of everything in the job; true when anything moved.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn progress(&self) -> Result<bool> {
        self.inner.progress()
    }

    /// Rounds of progress that were made so far, by whichever call.
    pub fn rounds(&self) -> u64 {
        self.inner.rounds.get()
    }

    /// Ends the whole job through the launcher, where it can; the caller still has to exit. Whether the launcher could be
    /// asked: not while the job is being shut down.
    pub fn abort(&self, status: i32, why: &str) -> bool {
        let Ok(mut bootstrap) = self.inner.bootstrap.try_borrow_mut() else {
            return false;
        };
        bootstrap.as_mut().map(|b| b.abort(status, why)).is_some()
    }

    /// Writes the queues of every stream with their use and their bounds.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        self.inner.dump(writer)
    }

    /// Dumps whenever the process gets `signal` (`libc::SIGUSR1`, say): the handler sets a flag,
    /// and the next call that makes progress writes, at most once in a tenth of a second. Whatever
    /// handled the signal before is called too.
    ///
    /// # Errors
    /// A signal that cannot be handled.
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.inner.dump_on_signal.install(signal, output)
    }

    /// Fences every stream that is still open, waits for everyone, and leaves the job. Collective.
    ///
    /// Records that wait for [`crate::Shuffle::take`] are given up here; the log says how many.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn shutdown(self) -> Result<()> {
        self.inner.shutdown()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // Handlers may own handles of this job's streams: end the circle.
        for core in self.inner.endpoint.streams.borrow_mut().drain(..) {
            if let Ok(mut sink) = core.sink.try_borrow_mut() {
                *sink = Sink::Closed;
            }
            if let Ok(mut out) = core.out.try_borrow_mut() {
                out.closed = true;
            }
        }
    }
}

impl<'h> Inner<'h> {
    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    pub fn progress(&self) -> Result<bool> {
        self.check_failure()?;
        self.progress_once().map_err(|error| self.keep_failure(error))
    }

    fn progress_once(&self) -> Result<bool> {
        let now_ns = self.now_ns();
        self.rounds.set(self.rounds.get() + 1);
        let mut outcome = self.endpoint.progress(now_ns);
        if outcome.is_ok() && now_ns.saturating_sub(self.checked_ns.get()) >= PARK.as_nanos() as u64 {
            outcome = self.look_after_peers(now_ns).and(outcome);
            self.dump_if_asked();
        }
        if tracing::enabled!(target: DELIVER, tracing::Level::TRACE) {
            self.tell_deliveries();
        }
        outcome.inspect_err(|error| self.pass_on_death(error, now_ns))
    }

    /// What was delivered since the last round that said so.
    #[cold]
    fn tell_deliveries(&self) {
        let streams = self.endpoint.streams.borrow();
        let records = streams.iter().skip(1).map(|core| core.delivered()).sum();
        let before = self.told_records.replace(records);
        if records > before {
            tracing::trace!(target: DELIVER, records = records - before, "delivered");
        }
    }

    /// See [`Job::dump_on`]. Where the dump cannot be written, work goes on.
    fn dump_if_asked(&self) {
        let Some(output) = self.dump_on_signal.take_asked() else {
            return;
        };
        let written = output.open(self.endpoint.topology.rank()).and_then(|mut writer| {
            let mut text = Vec::new();
            self.dump(&mut text)?;
            writer.write_all(&text)?;
            writer.flush()
        });
        if let Err(error) = written {
            tracing::error!(%error, ?output, "the dump that a signal asked for could not be written");
        }
    }

    fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        for core in self.endpoint.streams.borrow().iter() {
            dump::write(core, writer)?;
        }
        Ok(())
    }

    /// See [`Job::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.collective(Operation::Reduce(Reduce::Sum), &[]).map(|_| ())
    }

    fn collective(&self, operation: Operation, contribution: &[u8]) -> Result<Vec<u8>> {
        if self.endpoint.is_busy() {
            return Err(Error::Nested("a collective"));
        }
        let ticket: Ticket = self.endpoint.begin_collective(operation, contribution);
        let result = self.wait(|| Ok(self.endpoint.collective_result(ticket)))?;
        self.pass_on_results()?;
        Ok(result)
    }

    /// Sends what a collective that is complete here still has to tell others: the caller may not come back for long.
    pub fn pass_on_results(&self) -> Result<()> {
        self.wait(|| Ok(self.endpoint.has_passed_on_results().then_some(())))
    }
}
