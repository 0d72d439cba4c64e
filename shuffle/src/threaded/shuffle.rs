//! Byte records between threads' jobs.

use std::io::Write;
use std::sync::Arc;

use trihop_transport::topology::Rank;

use super::shared::{Deliver, Opened, Shared};
use super::thread::is_in_handler;
use crate::config::StreamOptions;
use crate::deliver::Message;
use crate::error::Result;
use crate::face::shuffle::each_message;
use crate::queue::audience::BroadcastTo;
use crate::stats::{DetailedStats, Stats};
use crate::terminate::flush::Queues;

/// Opens a [`Shuffle`]: name, options, handler.
pub struct ShuffleBuilder {
    shared: Arc<Shared>,
    name: String,
    options: StreamOptions,
    deliver: Option<Deliver>,
}

impl ShuffleBuilder {
    pub(super) fn new(shared: &Arc<Shared>, name: &str) -> Self {
        Self {
            shared: Arc::clone(shared),
            name: name.to_owned(),
            options: shared.stream_options.clone(),
            deliver: None,
        }
    }

    /// Options of this shuffle instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.options = options;
        self
    }

    /// Calls `handler` for every record that arrives, on the shuffle's delivery thread. It may send and block; it may not
    /// flush, fence or open. It is called no more once the shuffle or the job is shut down, with an error too: what waits
    /// then is dropped and counted (`undelivered`), and a call that is being made is waited for.
    pub fn handler(mut self, mut handler: impl FnMut(Message<'_>) + Send + 'static) -> Self {
        self.deliver = Some(Box::new(move |delivery, calls| {
            let call = |message: Message<'_>, _| calls.make(1, || handler(message));
            each_message(delivery, 0, call).map(|_| ())
        }));
        self
    }

    /// Opens the shuffle; collective.
    ///
    /// # Errors
    /// No handler, impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Shuffle> {
        let opened = self.shared.open(&self.name, &self.options, 0, self.deliver)?;
        Ok(Shuffle { opened })
    }
}

/// A broadcast of a record, or of an item.
pub(super) fn broadcast(opened: &Opened, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
    let spill = is_in_handler();
    opened.with(|h| {
        h.send_with(|out| match spill {
            true => out.broadcast_or_spill(to, kind, bytes),
            false => out.try_broadcast(to, kind, bytes),
        })
    })
}

/// A shuffle of byte records between all ranks of a job, for all threads. Clones are handles of the same shuffle.
#[derive(Clone)]
pub struct Shuffle {
    opened: Arc<Opened>,
}

impl Shuffle {
    /// Name given at opening.
    pub fn name(&self) -> &str {
        &self.opened.name
    }

    /// Sends a record; waits while its queue is full. The bytes are copied. Records that one thread sends, or several
    /// after one another, keep their order.
    ///
    /// From a handler it never waits: what finds no room goes to the spill, ahead of what the application sends. The
    /// handler's next call waits as long as that is above a 32nd of `memory_bytes` and drains.
    ///
    /// # Errors
    /// A bad rank or length, a dead peer; [`crate::Error::SpillFull`] where handlers send more than memory may hold.
    #[inline]
    pub fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        if is_in_handler() {
            return self
                .opened
                .with(|h| h.send_with(|out| out.send_or_spill(target, kind, bytes)));
        }
        self.opened
            .with(|h| h.send_with(|out| out.try_send(target, kind, bytes)))
    }

    /// Sends a record if there is room now; never waits for room.
    ///
    /// # Errors
    /// [`crate::Error::WouldBlock`], with nothing taken; a bad rank or length.
    #[inline]
    pub fn try_send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.opened.with(|h| h.outbound()?.try_send(target, kind, bytes))
    }

    /// Sends a record to all other ranks, or to every rank, along the route's tree; waits as [`Shuffle::send`] does.
    ///
    /// # Errors
    /// As [`Shuffle::send`].
    pub fn broadcast(&self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        broadcast(&self.opened, kind, bytes, to)
    }

    /// Waits until the queues of one class have passed on what was in them; [`Queues::Delivery`] waits for the handler.
    ///
    /// # Errors
    /// A dead peer; [`crate::Error::Nested`] inside a handler.
    pub fn flush(&self, queues: Queues) -> Result<()> {
        self.opened.wait("a flush", |h| h.flush(queues))
    }

    /// Collective: returns on every rank when every record that any rank sent before, and every record that handlers
    /// sent because of them, has been handled.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn fence(&self) -> Result<()> {
        self.opened.collective("a fence", |h| h.fence())
    }

    /// Waits until every rank has called this as often as this rank.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn barrier(&self) -> Result<()> {
        self.opened.collective("a barrier", |h| h.barrier())
    }

    /// Counters of this rank; `None` when the engine is in use and does not come free.
    pub fn stats(&self) -> Option<Stats> {
        self.opened.try_look(|h| h.core.snapshot())
    }

    /// As [`Shuffle::stats`], with each queue's.
    pub fn detailed_stats(&self) -> Option<DetailedStats> {
        self.opened.try_look(|h| h.core.detailed())
    }

    /// As [`crate::Shuffle::dump`]. Does not wait for long: where the engine cannot be had, it says so.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        self.opened.dump(writer)
    }

    /// A fence, after which the shuffle takes and delivers nothing more, and its delivery thread has ended. Collective.
    ///
    /// # Errors
    /// As [`Shuffle::fence`].
    pub fn shutdown(self) -> Result<()> {
        self.opened.shutdown()
    }
}
