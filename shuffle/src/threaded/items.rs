//! Items whose size is known at run time only.

use std::io::Write;
use std::sync::Arc;

use trihop_transport::protocol::wire::BadRun;
use trihop_transport::topology::Rank;

use super::shared::{Deliver, Opened, Shared};
use super::shuffle::broadcast;
use crate::config::StreamOptions;
use crate::deliver::Delivery;
use crate::error::{Error, Result};
use crate::queue::audience::BroadcastTo;
use crate::stats::{DetailedStats, Stats};
use crate::terminate::flush::Queues;

/// Opens [`Items`]: name, size, options, handler.
pub struct ItemsBuilder {
    shared: Arc<Shared>,
    name: String,
    item_bytes: usize,
    options: StreamOptions,
    deliver: Option<Deliver>,
}

impl ItemsBuilder {
    pub(super) fn new(shared: &Arc<Shared>, name: &str, item_bytes: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            name: name.to_owned(),
            item_bytes,
            options: shared.stream_options.clone(),
            deliver: None,
        }
    }

    /// Options of this stream instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.options = options;
        self
    }

    /// Calls `handler` for every run that arrives, on the stream's delivery thread: source, and the bytes of at least one
    /// item, 8-byte aligned. It may send and block; it may not flush, fence or open. It ends as [`super::ShuffleBuilder::handler`].
    pub fn handler(mut self, mut handler: impl FnMut(Rank, &[u8]) + Send + 'static) -> Self {
        let item_bytes = self.item_bytes;
        self.deliver = Some(Box::new(move |delivery, calls| {
            let Delivery::Run(run) = &delivery else {
                return Err(BadRun::Fragment("a fragmented record on a stream of items"));
            };
            let count = usize::from(run.header.count);
            let bytes = run.payload.get(..count * item_bytes).ok_or(BadRun::Records {
                count: run.header.count,
                bytes: run.payload.len(),
            })?;
            calls.make(count as u64, || handler(Rank(run.header.source), bytes));
            Ok(())
        }));
        self
    }

    /// Opens the stream; collective.
    ///
    /// # Errors
    /// No handler, items of no bytes, impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Items> {
        if self.item_bytes == 0 {
            return Err(Error::config("item_bytes", "items of no bytes cannot be counted"));
        }
        let opened = self
            .shared
            .open(&self.name, &self.options, self.item_bytes, self.deliver)?;
        Ok(Items {
            opened,
            item_bytes: self.item_bytes,
        })
    }
}

/// A stream of items of one size between all ranks of a job, for all threads. Clones are handles of the same stream.
#[derive(Clone)]
pub struct Items {
    opened: Arc<Opened>,
    item_bytes: usize,
}

impl Items {
    /// Name given at opening.
    pub fn name(&self) -> &str {
        &self.opened.name
    }

    /// Bytes of an item.
    pub fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    /// Sends an item; waits while its queue is full, but not in a handler: see [`super::Shuffle::send`].
    ///
    /// # Errors
    /// A bad rank, an item of another size, a dead peer.
    #[inline]
    pub fn push(&self, target: Rank, item: &[u8]) -> Result<()> {
        self.push_many(&[target.0], item)
    }

    /// Sends many items, `items` being one after the other for the ranks of `targets`: the engine is taken once per few
    /// hundred of them.
    ///
    /// # Errors
    /// As [`Items::push`]; items before the failing one are sent.
    pub fn push_many(&self, targets: &[u32], items: &[u8]) -> Result<()> {
        self.check(targets.len(), items)?;
        let mut pairs = targets.iter().zip(items.chunks_exact(self.item_bytes));
        self.opened.send_many(
            &mut pairs,
            |out, &(&target, item)| out.try_push(Rank(target), item),
            |out, &(&target, item)| out.push_or_spill(Rank(target), item),
        )
    }

    /// Sends an item to all other ranks, or to every rank, along the route's tree; waits as [`Items::push`] does.
    ///
    /// # Errors
    /// As [`Items::push`].
    pub fn broadcast(&self, item: &[u8], to: BroadcastTo) -> Result<()> {
        self.check(1, item)?;
        broadcast(&self.opened, 0, item, to)
    }

    /// Refuses what are not `count` items.
    fn check(&self, count: usize, items: &[u8]) -> Result<()> {
        if items.len() == count * self.item_bytes {
            return Ok(());
        }
        let (bytes, item_bytes) = (items.len(), self.item_bytes);
        let why = format!("{bytes} bytes are not {count} items of {item_bytes} bytes");
        Err(Error::config("items", why))
    }

    /// As [`super::Shuffle::flush`].
    ///
    /// # Errors
    /// As [`super::Shuffle::flush`].
    pub fn flush(&self, queues: Queues) -> Result<()> {
        self.opened.flush(queues)
    }

    /// As [`super::Shuffle::fence`].
    ///
    /// # Errors
    /// As [`super::Shuffle::fence`].
    pub fn fence(&self) -> Result<()> {
        self.opened.fence()
    }

    /// As [`super::Shuffle::barrier`].
    ///
    /// # Errors
    /// As [`super::Shuffle::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.opened.barrier()
    }

    /// As [`super::Shuffle::stats`].
    pub fn stats(&self) -> Option<Stats> {
        self.opened.stats()
    }

    /// As [`super::Shuffle::detailed_stats`].
    pub fn detailed_stats(&self) -> Option<DetailedStats> {
        self.opened.detailed_stats()
    }

    /// As [`super::Shuffle::dump`].
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        self.opened.dump(writer)
    }

    /// As [`super::Shuffle::shutdown`].
    ///
    /// # Errors
    /// As [`super::Shuffle::shutdown`].
    pub fn shutdown(self) -> Result<()> {
        self.opened.shutdown()
    }
}
