//! The typed face of the engine: items of one fixed size, delivered as slices of runs.

use std::marker::PhantomData;

use trihop_transport::protocol::wire::BadRun;
use trihop_transport::topology::Rank;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::verbs::{common_verbs, outbox_verbs};
use crate::config::StreamOptions;
use crate::deliver::{Delivery, items_of};
use crate::endpoint::Channel;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::queue::runs::Stop;
use crate::seat::{Handle, Inline, Seat, Seating};

/// What can be an item: plain bytes of a fixed size, at most 8-byte aligned. Implemented for
/// everything that qualifies. An item of more than a frame (16,320 bytes with few ranks of a node)
/// travels in fragments, or inside of a node through memory that it shares; none has more than
/// `max_message_bytes`.
pub trait Item: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static> Item for T {}

/// What a handler of items gets to send with: its sends never wait.
pub struct ItemOutbox<'a, T> {
    pub(crate) outbox: Outbox<'a>,
    item: PhantomData<T>,
}

outbox_verbs!([T: Item] ItemOutbox<'_, T>);

impl<T: Item> ItemOutbox<'_, T> {
    /// What sends on another stream of the same job, from inside a handler: by the same rules.
    ///
    /// # Errors
    /// [`Error::Closed`] where that stream was shut down and another has its place.
    pub fn on<U: Item, S: Seat>(&mut self, stream: &Stream<U, S>) -> Result<ItemOutbox<'_, U>> {
        Ok(ItemOutbox {
            outbox: self.outbox.for_handle(&stream.handle)?,
            item: PhantomData,
        })
    }

    /// Sends an item, or spills it.
    ///
    /// # Errors
    /// [`Error::SpillFull`] when the spill is full too, and the error of a bad rank.
    #[inline(always)] // an item that goes through memory on its way is stored and loaded at different widths
    pub fn push(&mut self, target: Rank, item: T) -> Result<()> {
        self.outbox.push_item(target, item.as_bytes())
    }

    /// Sends many items, or spills them.
    ///
    /// # Errors
    /// As [`ItemOutbox::push`]; items before it are sent.
    pub fn extend(&mut self, items: impl IntoIterator<Item = (Rank, T)>) -> Result<()> {
        self.outbox.extend_items(&mut items.into_iter())
    }
}

/// Opens a [`Stream`]: name, options, handler.
pub struct StreamBuilder<T, S: Seat> {
    seat: S,
    name: String,
    options: Option<StreamOptions>,
    handler: Option<S::Handler>,
    item: PhantomData<T>,
}

/// The items of a run.
pub(crate) fn slice_of<'a, T: Item>(delivery: &Delivery<'a>) -> Result<(Rank, &'a [T]), BadRun> {
    let Delivery::Run(run) = delivery else {
        return Err(BadRun::Fragment("a fragmented record on a stream of items"));
    };
    let bytes = items_of(run, size_of::<T>())?;
    let items = <[T]>::ref_from_bytes(bytes).map_err(|_| BadRun::Records {
        count: run.header.count,
        bytes: bytes.len(),
    })?;
    Ok((Rank(run.header.source), items))
}

/// What a type of items must be, when it is compiled.
pub(crate) const fn check_item<T: Item>() {
    assert!(size_of::<T>() > 0, "items of no bytes cannot be counted");
    assert!(align_of::<T>() <= 8, "items are at most 8-byte aligned");
}

impl<T: Item, S: Seat> StreamBuilder<T, S> {
    pub(crate) fn new(seat: &S, name: &str) -> Self {
        const { check_item::<T>() }
        Self {
            seat: seat.clone(),
            name: name.to_owned(),
            options: None,
            handler: None,
            item: PhantomData,
        }
    }

    /// Options of this stream instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.options = Some(options);
        self
    }

    pub(crate) fn handle_by(mut self, handler: S::Handler) -> Self {
        self.handler = Some(handler);
        self
    }

    /// Opens the stream; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Stream<T, S>> {
        let bytes = size_of::<T>();
        let handle = self.seat.open(
            Channel::Calls,
            &self.name,
            self.options,
            bytes,
            self.handler,
        )?;
        Ok(Stream::over(handle))
    }
}

impl<'h, T: Item> StreamBuilder<T, Inline<'h>> {
    /// Calls `handler` for every run that arrives: one source, at least one item, in place. Without
    /// a handler, items wait for [`Stream::take`].
    pub fn handler(self, mut handler: impl FnMut(Rank, &[T], &mut ItemOutbox<'_, T>) + 'h) -> Self {
        self.handle_by(Box::new(move |delivery, _, outbox| {
            let (source, items) = slice_of::<T>(&delivery)?;
            let mut outbox = ItemOutbox {
                outbox: outbox.again(),
                item: PhantomData,
            };
            handler(source, items, &mut outbox);
            Ok(items.len())
        }))
    }
}

/// A stream of items between all ranks of a job. Clones are handles of the same stream.
pub struct Stream<T, S: Seat> {
    pub(crate) handle: Handle<S>,
    item: PhantomData<fn() -> T>,
}

impl<T, S: Seat> Clone for Stream<T, S> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            item: PhantomData,
        }
    }
}

/// Items after which [`Stream::extend`] makes progress.
const POLL_EVERY: usize = 1024;

/// Sends an item; waits, but not in a handler.
#[inline(always)] // so that an item's size is a constant of the copy
pub(crate) fn push<T, S>(handle: &Handle<S>, target: Rank, item: &T) -> Result<()>
where
    T: IntoBytes + Immutable + ?Sized,
    S: Seating,
{
    match handle.push_here(target, item.as_bytes()) {
        true => Ok(()),
        false => push_on(handle, target, item),
    }
}

/// As [`push`], where more than its run is needed.
#[inline(always)] // so that an item's size is a constant of the copy
fn push_on<T, S>(handle: &Handle<S>, target: Rank, item: &T) -> Result<()>
where
    T: IntoBytes + Immutable + ?Sized,
    S: Seating,
{
    let item = item.as_bytes();
    handle.push_on(target, item, Pushes::Paced, || {
        handle.send(
            |out| out.try_push(target, item),
            |out| out.push_or_spill(target, item),
        )
    })
}

/// Sends an item if there is room now, without progress.
#[inline(always)] // so that an item's size is a constant of the copy
pub(crate) fn try_push<T, S>(handle: &Handle<S>, target: Rank, item: &T) -> Result<()>
where
    T: IntoBytes + Immutable + ?Sized,
    S: Seating,
{
    match handle.push_here(target, item.as_bytes()) {
        true => Ok(()),
        false => try_push_on(handle, target, item),
    }
}

/// As [`try_push`], where more than its run is needed.
#[inline(always)] // so that an item's size is a constant of the copy
fn try_push_on<T, S>(handle: &Handle<S>, target: Rank, item: &T) -> Result<()>
where
    T: IntoBytes + Immutable + ?Sized,
    S: Seating,
{
    let item = item.as_bytes();
    handle.push_on(target, item, Pushes::Unpaced, || {
        handle.try_send(|out| out.try_push(target, item))
    })
}

/// See [`Stream::extend`].
pub(crate) fn extend<T: IntoBytes + Immutable, S: Seating>(
    handle: &Handle<S>,
    items: &mut impl Iterator<Item = (Rank, T)>,
) -> Result<()> {
    if handle.seat.is_in_handler() {
        let push = |out: &mut Outbound, (target, item): &(Rank, T)| {
            out.push_or_spill(*target, item.as_bytes())
        };
        return handle.spill_all(items, push);
    }
    loop {
        let mut refused = None;
        let ended = handle.with_out("a send", |out| {
            let mut left = POLL_EVERY;
            while left > 0 && refused.is_none() {
                let before = out.sent;
                match out.gather(left, items) {
                    Stop::End => return Ok(true),
                    Stop::Enough => break,
                    Stop::At(target, item) if handle.is_at_once(target) => {
                        refused = Some((target, item));
                    }
                    Stop::At(target, item) => match out.try_push(target, item.as_bytes()) {
                        Ok(()) => {}
                        Err(Error::WouldBlock) => refused = Some((target, item)),
                        Err(error) => return Err(error),
                    },
                }
                left = left.saturating_sub((out.sent - before) as usize);
            }
            Ok(false)
        })?;
        match refused {
            _ if ended => return Ok(()),
            Some((target, item)) => push(handle, target, &item)?,
            None => handle.seat.progress_in_passing()?,
        }
    }
}

impl<T: Item, S: Seat> Stream<T, S> {
    pub(crate) fn over(handle: Handle<S>) -> Self {
        Self {
            handle,
            item: PhantomData,
        }
    }

    /// Sends an item; waits as [`crate::Shuffle::send`] does.
    ///
    /// # Errors
    /// As [`crate::Shuffle::send`].
    #[inline]
    pub fn push(&self, target: Rank, item: T) -> Result<()> {
        match self.handle.push_here(target, item.as_bytes()) {
            true => Ok(()),
            false => self.push_on(target, item),
        }
    }

    /// Takes the item itself: one whose address is known elsewhere would leave no register of a
    /// program's loop.
    #[inline(never)]
    fn push_on(&self, target: Rank, item: T) -> Result<()> {
        push_on(&self.handle, target, &item)
    }

    /// Sends an item if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken; a bad rank.
    #[inline]
    pub fn try_push(&self, target: Rank, item: T) -> Result<()> {
        match self.handle.push_here(target, item.as_bytes()) {
            true => Ok(()),
            false => self.try_push_on(target, item),
        }
    }

    /// As [`Stream::push_on`].
    #[inline(never)]
    fn try_push_on(&self, target: Rank, item: T) -> Result<()> {
        try_push_on(&self.handle, target, &item)
    }

    /// Sends many items, with the engine's state looked up once per few hundred of them: where
    /// several threads push to a stream at once, each extends it by that many. The engine is in use
    /// while `items` are asked for: they come from a collection or a computation, and may neither
    /// call the job nor wait nor panic.
    ///
    /// # Errors
    /// As [`Stream::push`]; items before the failing one are sent.
    pub fn extend(&self, items: impl IntoIterator<Item = (Rank, T)>) -> Result<()> {
        extend(&self.handle, &mut items.into_iter())
    }

    /// One round of progress, then every run that waits is handed to `take`; returns how many
    /// items.
    ///
    /// # Errors
    /// As [`crate::Shuffle::take`].
    pub fn take(&self, mut take: impl FnMut(Rank, &[T])) -> Result<u64> {
        self.handle.take(|delivery| {
            let (source, items) = slice_of::<T>(&delivery)?;
            take(source, items);
            Ok(())
        })
    }
}

common_verbs!([T: Item, S: Seat] Stream<T, S>);
