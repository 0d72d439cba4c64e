//! Items whose size is known at run time only.

use std::io::Write;

use trihop_transport::protocol::wire::BadRun;
use trihop_transport::topology::Rank;

use crate::config::StreamOptions;
use crate::deliver::Delivery;
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::queue::audience::BroadcastTo;
use crate::seat::{Handle, Inline, Seat};
use crate::stats::{DetailedStats, Stats};
use crate::terminate::flush::Queues;

/// Opens [`Items`]: name, size, options, handler.
pub struct ItemsBuilder<S: Seat> {
    seat: S,
    name: String,
    item_bytes: usize,
    options: Option<StreamOptions>,
    handler: Option<S::Handler>,
}

impl<S: Seat> ItemsBuilder<S> {
    pub(crate) fn new(seat: &S, name: &str, item_bytes: usize) -> Self {
        Self {
            seat: seat.clone(),
            name: name.to_owned(),
            item_bytes,
            options: None,
            handler: None,
        }
    }

    /// Options of this stream instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.options = Some(options);
        self
    }

    pub(crate) fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    pub(crate) fn handle_by(mut self, handler: S::Handler) -> Self {
        self.handler = Some(handler);
        self
    }

    /// Opens the stream; collective.
    ///
    /// # Errors
    /// Items of no bytes, impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Items<S>> {
        let item_bytes = self.item_bytes;
        if item_bytes == 0 {
            return Err(Error::config("item_bytes", "items of no bytes cannot be counted"));
        }
        let handle = self
            .seat
            .open(&self.name, self.options, item_bytes, self.handler)?;
        Ok(Items { handle, item_bytes })
    }
}

impl<'h> ItemsBuilder<Inline<'h>> {
    /// Calls `handler` for every run that arrives: source, and the bytes of at least one item, 8-byte aligned. Without a
    /// handler, items wait for [`Items::take`].
    pub fn handler(self, mut handler: impl FnMut(Rank, &[u8], &mut BytesOutbox<'_>) + 'h) -> Self {
        let item_bytes = self.item_bytes;
        self.handle_by(Box::new(move |delivery, _, outbox| {
            let (source, bytes) = bytes_of(&delivery, item_bytes)?;
            let mut outbox = BytesOutbox {
                outbox: outbox.again(),
                item_bytes,
            };
            handler(source, bytes, &mut outbox);
            Ok(bytes.len() / item_bytes)
        }))
    }
}

/// What a handler of items gets to send with: its sends never wait.
pub struct BytesOutbox<'a> {
    outbox: Outbox<'a>,
    item_bytes: usize,
}

impl BytesOutbox<'_> {
    /// Sends an item, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; an item of another size.
    pub fn push(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        check_items(1, self.item_bytes, item)?;
        self.outbox.push_item(target, item)
    }

    /// The same for records, and for other streams.
    pub fn outbox(&mut self) -> Outbox<'_> {
        self.outbox.again()
    }
}

impl Outbox<'_> {
    /// Sends an item on a stream of items, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; an item of another size; [`Error::Closed`] where that stream was shut down and another has its
    /// place.
    pub fn push_on<S: Seat>(&mut self, items: &Items<S>, target: Rank, item: &[u8]) -> Result<()> {
        check_items(1, items.item_bytes, item)?;
        self.for_handle(&items.handle)?.push_item(target, item)
    }
}

impl Outbox<'_> {
    /// Sends an item on a stream of items to many ranks, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::push_on`].
    pub fn broadcast_on<S: Seat>(&mut self, items: &Items<S>, item: &[u8], to: BroadcastTo) -> Result<()> {
        check_items(1, items.item_bytes, item)?;
        self.for_handle(&items.handle)?.broadcast(0, item, to)
    }
}

/// The items of a run, as bytes.
pub(crate) fn bytes_of<'a>(delivery: &Delivery<'a>, item_bytes: usize) -> Result<(Rank, &'a [u8]), BadRun> {
    let Delivery::Run(run) = delivery else {
        return Err(BadRun::Fragment("a fragmented record on a stream of items"));
    };
    let count = run.header.count;
    let bytes = run.payload.get(..usize::from(count) * item_bytes);
    let bytes = bytes.ok_or(BadRun::Records {
        count,
        bytes: run.payload.len(),
    })?;
    Ok((Rank(run.header.source), bytes))
}

/// Refuses what are not `count` items.
fn check_items(count: usize, item_bytes: usize, items: &[u8]) -> Result<()> {
    if items.len() == count * item_bytes {
        return Ok(());
    }
    let bytes = items.len();
    let why = format!("{bytes} bytes are not {count} items of {item_bytes} bytes");
    Err(Error::config("items", why))
}

/// A stream of items of one size between all ranks of a job. Clones are handles of the same stream.
#[derive(Clone)]
pub struct Items<S: Seat> {
    pub(crate) handle: Handle<S>,
    item_bytes: usize,
}

impl<S: Seat> Items<S> {
    /// Name given at opening.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Bytes of an item.
    pub fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    /// Refuses what are not `count` items.
    pub(crate) fn check(&self, count: usize, items: &[u8]) -> Result<()> {
        check_items(count, self.item_bytes, items)
    }

    /// Sends an item; waits as [`crate::Shuffle::send`] does.
    ///
    /// # Errors
    /// As [`crate::Shuffle::send`]; an item of another size.
    #[inline]
    pub fn push(&self, target: Rank, item: &[u8]) -> Result<()> {
        self.check(1, item)?;
        self.handle.send(
            |out| out.try_push(target, item),
            |out| out.push_or_spill(target, item),
        )
    }

    /// Sends an item if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken; a bad rank, an item of another size.
    #[inline]
    pub fn try_push(&self, target: Rank, item: &[u8]) -> Result<()> {
        self.check(1, item)?;
        self.handle.with_out("a send", |out| out.try_push(target, item))
    }

    /// Sends many items, `items` being one after the other for the ranks of `targets`: the engine is taken once per few
    /// hundred of them.
    ///
    /// # Errors
    /// As [`Items::push`]; items before the failing one are sent.
    pub fn push_many(&self, targets: &[u32], items: &[u8]) -> Result<()> {
        self.check(targets.len(), items)?;
        let mut pairs = targets.iter().zip(items.chunks_exact(self.item_bytes));
        self.handle.send_all(
            &mut pairs,
            |out, &(&target, item)| out.try_push(Rank(target), item),
            |out, &(&target, item)| out.push_or_spill(Rank(target), item),
        )
    }

    /// One round of progress; returns the items that were delivered to this stream meanwhile.
    ///
    /// # Errors
    /// As [`crate::Shuffle::poll`].
    pub fn poll(&self) -> Result<u64> {
        self.handle.poll()
    }

    /// One round of progress, then every run that waits is handed to `take`; returns how many items.
    ///
    /// # Errors
    /// As [`crate::Shuffle::take`].
    pub fn take(&self, mut take: impl FnMut(Rank, &[u8])) -> Result<u64> {
        self.handle.take(|delivery| {
            let (source, bytes) = bytes_of(&delivery, self.item_bytes)?;
            take(source, bytes);
            Ok(())
        })
    }

    /// As [`crate::Shuffle::flush`].
    ///
    /// # Errors
    /// As [`crate::Shuffle::flush`].
    pub fn flush(&self, queues: Queues) -> Result<()> {
        self.handle.flush(queues)
    }

    /// As [`crate::Shuffle::fence`].
    ///
    /// # Errors
    /// As [`crate::Shuffle::fence`].
    pub fn fence(&self) -> Result<()> {
        self.handle.fence()
    }

    /// As [`crate::Shuffle::barrier`].
    ///
    /// # Errors
    /// As [`crate::Shuffle::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.handle.barrier()
    }

    /// As [`crate::Shuffle::stats`].
    pub fn stats(&self) -> Option<Stats> {
        self.handle.stats()
    }

    /// As [`crate::Shuffle::detailed_stats`].
    pub fn detailed_stats(&self) -> Option<DetailedStats> {
        self.handle.detailed_stats()
    }

    /// As [`crate::Shuffle::dump`].
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        self.handle.dump(writer)
    }

    /// As [`crate::Shuffle::shutdown`].
    ///
    /// # Errors
    /// As [`crate::Shuffle::shutdown`].
    pub fn shutdown(self) -> Result<()> {
        self.handle.shut_down()
    }
}
