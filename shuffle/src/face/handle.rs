//! What both faces of a stream, bytes and items, share: how it is opened, and every call that waits.

use std::cell::{Cell, RefMut};
use std::rc::Rc;

use trihop_transport::topology::Rank;

use crate::config::StreamOptions;
use crate::deliver::{Delivery, DeliveryQueue};
use crate::engine::outbound::Outbound;
use crate::engine::outbox::{Outbox, borrow};
use crate::engine::sink::Sink;
use crate::engine::{BadRun, Core};
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::terminate::collective::{Operation, Reduce};
use crate::terminate::flush::{Flush, Queues};

/// A stream that is to be opened: its name, its options and where its deliveries go.
pub(crate) struct Opening<'h> {
    job: Rc<JobState<'h>>,
    name: String,
    options: StreamOptions,
    sink: Sink<'h>,
}

impl<'h> Opening<'h> {
    /// With the job's options and without a handler.
    pub fn new(job: Rc<JobState<'h>>, name: &str) -> Self {
        let options = job.options.stream.clone();
        let sink = Sink::Queue(DeliveryQueue::new(&options));
        Self {
            job,
            name: name.to_owned(),
            options,
            sink,
        }
    }

    pub fn take_options(&mut self, options: StreamOptions) {
        if let Sink::Queue(queue) = &mut self.sink {
            *queue = DeliveryQueue::new(&options);
        }
        self.options = options;
    }

    pub fn take_handler(
        &mut self,
        handler: impl FnMut(Delivery<'_>, usize, &mut Outbox<'_>) -> Result<usize, BadRun> + 'h,
    ) {
        self.sink = Sink::Handler(Box::new(handler));
    }

    /// Opens a stream of items of so many bytes, or of byte records where they are 0; collective.
    pub fn open(self, item_bytes: usize) -> Result<Handle<'h>> {
        let core = self.job.open(&self.name, &self.options, item_bytes, self.sink)?;
        Ok(Handle::new(core, self.job))
    }
}

/// Sends between two rounds of progress while nothing is refused: a rank that only sends still forwards and ages.
pub(crate) const SENDS_PER_ROUND: u32 = 512;

/// An open stream: its engine and its job.
pub(crate) struct Handle<'h> {
    pub core: Rc<Core<'h>>,
    pub job: Rc<JobState<'h>>,
    sends: Cell<u32>,
}

impl Clone for Handle<'_> {
    fn clone(&self) -> Self {
        Self::new(Rc::clone(&self.core), Rc::clone(&self.job))
    }
}

impl<'h> Handle<'h> {
    pub fn new(core: Rc<Core<'h>>, job: Rc<JobState<'h>>) -> Self {
        Self {
            core,
            job,
            sends: Cell::new(0),
        }
    }

    #[inline]
    pub fn outbound(&self) -> Result<RefMut<'_, Outbound>> {
        borrow(&self.core.out)
    }

    /// Tries `send` until it is taken, with progress in between.
    #[inline(always)] // part of every send
    pub fn send_with(&self, mut send: impl FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        // Outside of the `match`, whose scrutinee would keep the queues borrowed while progress needs them.
        let sent = send(&mut *self.outbound()?);
        match sent {
            Ok(()) => self.count_send(),
            Err(Error::WouldBlock) => self.send_waiting(&mut send),
            Err(error) => Err(error),
        }
    }

    /// Space in the open run of `target`. The borrow that finds it is the one that keeps it: any progress in between
    /// could send the run on.
    pub fn reserve(&self, target: Rank, kind: u32, bytes: usize) -> Result<RefMut<'_, Outbound>> {
        self.count_send()?;
        loop {
            let mut out = self.outbound()?;
            match out.reserve(target, kind, bytes) {
                Ok(()) => return Ok(out),
                Err(Error::WouldBlock) => {}
                Err(error) => return Err(error),
            }
            drop(out);
            // Waits until the same reservation would succeed, and gives that one up again.
            self.send_waiting(&mut |out| {
                out.reserve(target, kind, bytes)?;
                out.retract(target, bytes);
                Ok(())
            })?;
        }
    }

    /// Makes a round of progress every few hundred sends.
    #[inline]
    fn count_send(&self) -> Result<()> {
        let sends = self.sends.get() + 1;
        self.sends.set(sends);
        if sends >= SENDS_PER_ROUND {
            self.sends.set(0);
            if !self.job.endpoint.is_busy() {
                self.job.progress_in_passing()?;
            }
        }
        Ok(())
    }

    #[cold]
    fn send_waiting(&self, send: &mut dyn FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a send that waits"));
        }
        self.job
            .wait("room to send", || match send(&mut *self.outbound()?) {
                Ok(()) => Ok(Some(())),
                Err(Error::WouldBlock) => {
                    self.check_undelivered()?;
                    Ok(None)
                }
                Err(error) => Err(error),
            })
    }

    /// Without a handler nobody but the application can make room in the delivery queue: waiting would be for ever.
    fn check_undelivered(&self) -> Result<()> {
        match &*self.core.sink.borrow() {
            Sink::Queue(queue) if queue.is_blocked() => Err(Error::WouldBlock),
            _ => Ok(()),
        }
    }

    pub fn poll(&self) -> Result<u64> {
        let before = self.core.delivered();
        self.job.progress()?;
        Ok(self.core.delivered() - before)
    }

    pub fn flush(&self, queues: Queues) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a flush"));
        }
        self.check_open()?;
        tracing::trace!(stream = self.core.name, ?queues, "flush");
        let mut flush = Flush::begin(queues, &self.core);
        self.core.hurry();
        let outcome = self.job.wait("a flush", || {
            if flush.poll(&self.core)? {
                return Ok(Some(()));
            }
            self.check_undelivered()?;
            Ok(None)
        });
        self.core.calm();
        outcome
    }

    /// A fence that gives way with [`Error::WouldBlock`] stays under way: the others count on its open round.
    pub fn fence(&self) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a fence"));
        }
        self.check_open()?;
        tracing::trace!(stream = self.core.name, "fence");
        let mut fence = self.job.parked.fence(self.core.id);
        let outcome = self.job.wait("a fence", || {
            if fence.poll(&self.core, &mut self.job.endpoint.collectives.borrow_mut()) {
                return Ok(Some(()));
            }
            self.check_undelivered()?;
            Ok(None)
        });
        if outcome.is_err() {
            self.job.parked.park_fence(self.core.id, fence);
            return outcome;
        }
        self.job.pass_on_results()
    }

    /// A barrier that gives way as a fence does.
    pub fn barrier(&self) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a barrier"));
        }
        self.check_open()?;
        let begin = || {
            let sum = Operation::Reduce(Reduce::Sum);
            self.job
                .endpoint
                .collectives
                .borrow_mut()
                .begin(self.core.id, sum, &[])
        };
        let ticket = self.job.parked.barrier(self.core.id).unwrap_or_else(begin);
        let outcome = self.job.wait("a barrier", || {
            if self.job.endpoint.collective_result(ticket).is_some() {
                return Ok(Some(()));
            }
            self.check_undelivered()?;
            Ok(None)
        });
        if outcome.is_err() {
            self.job.parked.park_barrier(self.core.id, ticket);
            return outcome;
        }
        self.job.pass_on_results()
    }

    /// An error once nobody would make this stream complete any more.
    fn check_open(&self) -> Result<()> {
        if self.outbound()?.closed {
            return Err(Error::Closed(self.core.name.clone()));
        }
        Ok(())
    }

    pub fn shut_down(&self) -> Result<()> {
        self.fence()?;
        self.outbound()?.closed = true;
        *self.core.sink.borrow_mut() = Sink::Closed;
        self.job.endpoint.retire(&self.core);
        Ok(())
    }

    /// Hands what waits to `take`, after a round of progress.
    pub fn take(&self, mut take: impl FnMut(Delivery<'_>) -> Result<(), BadRun>) -> Result<u64> {
        self.job.progress()?;
        let _busy = self.job.endpoint.enter("take")?;
        let mut sink = self.core.sink.borrow_mut();
        let Sink::Queue(queue) = &mut *sink else {
            return Err(Error::config(
                "handler",
                "this stream has a handler; `take` is for streams without one",
            ));
        };
        let waiting = queue.records() as u64;
        let size = self.core.topology.size();
        while queue
            .pop(size, &mut take)
            .map_err(|why| Error::bad_peer(self.core.identity.rank, why))?
        {}
        Ok(waiting)
    }
}
