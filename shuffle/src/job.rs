//! The state of a rank's part of a job: who is where, progress, collectives, the lives of its peers.

mod budget;
mod card;
mod end;
mod lives;
mod open;
mod parked;
mod start;
mod wait;

use std::cell::{Cell, OnceCell, RefCell};
use std::time::Instant;

use trihop_transport::bootstrap::{Bootstrap, Launcher};
use trihop_transport::park::Turn;

use crate::config::Options;
use crate::dump;
use crate::endpoint::Endpoint;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::node::NodeExchange;
use crate::signal::DumpOnSignal;
use crate::terminate::collective::{Operation, Reduce, Ticket};
use budget::Budget;
use lives::Lives;
use parked::Parked;
pub(crate) use start::detect;
use wait::{PARK, Waiting};

/// Target of events about deliveries, by which they have their facility.
const DELIVER: &str = "trihop_shuffle::deliver";

/// One rank's part of a job: what its handles and its threads share.
pub(crate) struct JobState<'h> {
    pub endpoint: Endpoint<'h>,
    pub options: Options,
    bootstrap: RefCell<Option<Box<dyn Bootstrap>>>,
    launcher: Launcher,
    node: RefCell<NodeExchange>,
    waiting: Waiting,
    budget: Budget,
    epoch: Instant,
    closing: Cell<bool>,
    /// A thread of ours waits for the launcher's fence.
    fencing: Cell<bool>,
    checked_ns: Cell<u64>,
    lives: Lives,
    /// Rounds of progress.
    rounds: Cell<u64>,
    /// Fences and barriers that gave way.
    pub parked: Parked,
    pub dump_on_signal: DumpOnSignal,
    /// Records whose delivery the log has heard of.
    told_records: Cell<u64>,
    /// Where a progress thread parks and several threads call: what all of this is reached with.
    pub turn: OnceCell<Turn>,
}

impl<'h> JobState<'h> {
    /// Who started the job.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Provider that carries traffic between nodes, where this rank represents any.
    pub fn provider(&self) -> Option<String> {
        self.endpoint.link.borrow().as_ref().map(|l| l.name().to_owned())
    }

    /// Rounds of progress that were made so far, by whichever call.
    pub fn rounds(&self) -> u64 {
        self.rounds.get()
    }

    /// See [`crate::Job::abort`].
    pub fn abort(&self, status: i32, why: &str) -> bool {
        let Ok(mut bootstrap) = self.bootstrap.try_borrow_mut() else {
            return false;
        };
        bootstrap.as_mut().map(|b| b.abort(status, why)).is_some()
    }

    /// Takes and delivers nothing more. Handlers may own handles of this job's streams: that circle ends here.
    pub fn close_streams(&self) {
        for core in self.endpoint.streams.borrow_mut().drain(..) {
            if let Ok(mut sink) = core.sink.try_borrow_mut() {
                *sink = Sink::Closed;
            }
            if let Ok(mut out) = core.out.try_borrow_mut() {
                out.closed = true;
            }
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    pub fn progress(&self) -> Result<bool> {
        self.check_failure()?;
        self.progress_once()
            .map_err(|error| self.keep_failure(self.explain(error)))
    }

    fn progress_once(&self) -> Result<bool> {
        self.check_news()?;
        let now_ns = self.now_ns();
        self.rounds.set(self.rounds.get() + 1);
        let worked = self.endpoint.progress(now_ns)?;
        if now_ns.saturating_sub(self.checked_ns.get()) >= PARK.as_nanos() as u64 {
            self.look_after_peers(now_ns)?;
            self.dump_if_asked();
        }
        if tracing::enabled!(target: DELIVER, tracing::Level::TRACE) {
            self.tell_deliveries();
        }
        Ok(worked)
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

    /// See [`crate::Job::dump_on`]. Where the dump cannot be written, work goes on.
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

    /// Writes the queues of every stream.
    pub fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        for core in self.endpoint.streams.borrow().iter() {
            dump::write(core, writer)?;
        }
        Ok(())
    }

    /// See [`crate::Job::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.collective(Operation::Reduce(Reduce::Sum), &[]).map(|_| ())
    }

    pub fn collective(&self, operation: Operation, contribution: &[u8]) -> Result<Vec<u8>> {
        if self.endpoint.is_busy() {
            return Err(Error::Nested("a collective"));
        }
        let ticket: Ticket = self.endpoint.begin_collective(operation, contribution);
        let result = self.wait("a collective", || Ok(self.endpoint.collective_result(ticket)))?;
        self.pass_on_results()?;
        Ok(result)
    }

    /// Sends what a collective that is complete here still has to tell others: the caller may not come back for long.
    pub fn pass_on_results(&self) -> Result<()> {
        self.wait("results of a collective to leave", || {
            Ok(self.endpoint.has_passed_on_results().then_some(()))
        })
    }
}
