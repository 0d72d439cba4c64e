//! Streams whose items have a size that is known at run time only, or none: for bindings to other
//! languages.

use std::ptr::null;
use std::rc::Rc;

use trihop_transport::protocol::wire::BadRun;
use trihop_transport::topology::Rank;

use super::broadcast::{broadcast, try_broadcast};
use super::reservation::{reserve, zeroed};
use super::shuffle::each_message;
use super::stream::{extend, push, try_push};
use super::verbs::{common_verbs, outbox_verbs};
use crate::config::StreamOptions;
use crate::deliver::{Delivery, Message, Messages, items_of};
use crate::endpoint::{Channel, StreamId};
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::queue::audience::BroadcastTo;
use crate::queue::window::PushWindow;
use crate::seat::{Handle, Inline, Seat};

/// Makes a call for an item of some size: by code of its own for each usual one, in which the copy
/// of an item is an instruction or two.
macro_rules! of_usual_size {
    ($item:ident => $call:expr) => {
        if let Ok($item) = <&[u8; 8]>::try_from($item) {
            $call
        } else if let Ok($item) = <&[u8; 4]>::try_from($item) {
            $call
        } else if let Ok($item) = <&[u8; 16]>::try_from($item) {
            $call
        } else {
            $call
        }
    };
}

pub(super) use of_usual_size;

/// Opens an [`Untyped`] stream: name, size of an item, options, handler.
pub struct UntypedBuilder<S: Seat> {
    seat: S,
    name: String,
    item_bytes: usize,
    options: Option<StreamOptions>,
    handler: Option<S::Handler>,
    /// The handler is for the records of a run.
    takes_records: bool,
}

impl<S: Seat> UntypedBuilder<S> {
    pub(crate) fn new(seat: &S, name: &str, item_bytes: usize) -> Self {
        Self {
            seat: seat.clone(),
            name: name.to_owned(),
            item_bytes,
            options: None,
            handler: None,
            takes_records: false,
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

    pub(crate) fn handle_records_by(mut self, handler: S::Handler) -> Self {
        self.takes_records = true;
        self.handle_by(handler)
    }

    /// Opens the stream; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Untyped<S>> {
        let item_bytes = self.item_bytes;
        if self.takes_records && item_bytes > 0 {
            let why = "a handler of the records of a run is for streams of records; one of items \
                       gets those of a run at once anyway";
            return Err(wrong(why.to_owned()));
        }
        let handle = self.seat.open(
            Channel::Calls,
            &self.name,
            self.options,
            item_bytes,
            self.handler,
        )?;
        Ok(Untyped::over(handle, item_bytes))
    }
}

impl<'h> UntypedBuilder<Inline<'h>> {
    /// Calls `handler` for each record, or for each run of items, that arrives. Without a handler,
    /// they wait for [`Untyped::take`].
    pub fn handler(
        self,
        mut handler: impl FnMut(Arrival<'_>, &mut UntypedOutbox<'_>) + 'h,
    ) -> Self {
        let item_bytes = self.item_bytes;
        self.handle_by(Box::new(move |delivery, done, outbox| {
            let mut outbox = UntypedOutbox::new(outbox.again(), item_bytes);
            each_arrival(delivery, item_bytes, done, |arrival, first| {
                // As for a shuffle: the rest of a run waits for the spill.
                if !first && outbox.outbox.has_overfilled() {
                    return false;
                }
                handler(arrival, &mut outbox);
                true
            })
        }))
    }
}

impl<'h> UntypedBuilder<Inline<'h>> {
    /// As [`ShuffleBuilder::run_handler`](crate::ShuffleBuilder::run_handler); of streams of
    /// records only.
    pub fn run_handler(
        self,
        mut handler: impl FnMut(Messages<'_>, &mut UntypedOutbox<'_>) + 'h,
    ) -> Self {
        let item_bytes = self.item_bytes;
        self.handle_records_by(Box::new(move |delivery, _, outbox| {
            let mut outbox = UntypedOutbox::new(outbox.again(), item_bytes);
            let messages = Messages::of(delivery)?;
            let count = messages.len();
            handler(messages, &mut outbox);
            Ok(count)
        }))
    }
}

/// A record, or items of one source that arrived one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Rank that sent it.
    pub source: Rank,
    /// The 32 bits that the sender gave with a record; 0 with items.
    pub kind: u32,
    /// How many items; 1 for a record.
    pub count: usize,
    /// The bytes of all, aligned to 8; they are gone when the handler returns.
    pub bytes: &'a [u8],
}

/// As [`each_message`], for streams of either kind; the items of a run are one arrival.
pub(crate) fn each_arrival(
    delivery: Delivery<'_>,
    item_bytes: usize,
    done: usize,
    mut take: impl FnMut(Arrival<'_>, bool) -> bool,
) -> Result<usize, BadRun> {
    if item_bytes == 0 {
        return each_message(delivery, done, |message, first| {
            let Message {
                source,
                kind,
                bytes,
            } = message;
            let arrival = Arrival {
                source,
                kind,
                count: 1,
                bytes,
            };
            Ok(take(arrival, first))
        });
    }
    let Delivery::Run(run) = delivery else {
        return Err(BadRun::Fragment("a fragmented record on a stream of items"));
    };
    let count = usize::from(run.header.count);
    let arrival = Arrival {
        source: Rank(run.header.source),
        kind: 0,
        count,
        bytes: items_of(&run, item_bytes)?,
    };
    Ok(if take(arrival, true) { count } else { 0 })
}

/// How often in a row a handler opens windows in vain.
const MOST_IN_VAIN: u32 = 4;

/// What a handler of an [`Untyped`] stream gets to send with: its sends never wait.
pub struct UntypedOutbox<'a> {
    outbox: Outbox<'a>,
    item_bytes: usize,
    /// The window of the stream that was pushed to last, where nothing else was called since; only
    /// to be compared.
    last: *const PushWindow,
    /// The one that is open, and its stream.
    open: Option<(Rc<PushWindow>, StreamId)>,
    /// How often in a row nothing was pushed through one.
    in_vain: u32,
}

outbox_verbs!([] UntypedOutbox<'_>);

impl Drop for UntypedOutbox<'_> {
    #[inline]
    fn drop(&mut self) {
        self.close_window();
    }
}

/// That of a handler of byte records.
impl<'a> From<Outbox<'a>> for UntypedOutbox<'a> {
    fn from(outbox: Outbox<'a>) -> Self {
        Self::new(outbox, 0)
    }
}

impl<'a> UntypedOutbox<'a> {
    fn new(outbox: Outbox<'a>, item_bytes: usize) -> Self {
        Self {
            outbox,
            item_bytes,
            last: null(),
            open: None,
            in_vain: 0,
        }
    }

    /// What it sends with, whatever was open before.
    #[inline]
    fn closed(&mut self) -> &mut Outbox<'a> {
        self.last = null();
        self.close_window();
        &mut self.outbox
    }

    /// What sends on streams that are not untyped, and to arrays.
    pub fn outbox(&mut self) -> Outbox<'_> {
        self.closed().again()
    }

    /// Whether it can send [on](Self::on) this stream.
    #[inline]
    pub fn has<S: Seat>(&mut self, stream: &Untyped<S>) -> bool {
        self.outbox.for_stream(stream.handle.id).is_some()
    }

    /// What sends on another stream of the same job: by the same rules.
    ///
    /// # Errors
    /// [`Error::Closed`] where that stream was shut down and another has its place.
    #[inline]
    pub fn on<S: Seat>(&mut self, stream: &Untyped<S>) -> Result<UntypedOutbox<'_>> {
        let outbox = self.closed().for_handle(&stream.handle)?;
        Ok(UntypedOutbox::new(outbox, stream.item_bytes))
    }

    /// Pushes an item [on](Self::on) a stream. Behind the second push or send in a row, the
    /// stream's [window](Untyped::window) is open for more of them, until something else is called
    /// of this, unless that has been open in vain some times in a row.
    ///
    /// # Errors
    /// As [`UntypedOutbox::on`] and [`UntypedOutbox::push`].
    ///
    /// # Safety
    /// This is dropped, and not forgotten, before the handler has returned for the last record of a
    /// run.
    #[inline]
    pub unsafe fn push_on(
        &mut self,
        stream: &Untyped<Inline<'_>>,
        target: Rank,
        item: &[u8],
    ) -> Result<()> {
        self.send_by_window(stream, true, |on| on.push(target, item))
    }

    /// As [`UntypedOutbox::push_on`], for a record.
    ///
    /// # Errors
    /// As [`UntypedOutbox::on`] and [`UntypedOutbox::send`].
    ///
    /// # Safety
    /// As [`UntypedOutbox::push_on`].
    #[inline]
    pub unsafe fn send_on(
        &mut self,
        stream: &Untyped<Inline<'_>>,
        target: Rank,
        kind: u32,
        bytes: &[u8],
    ) -> Result<()> {
        let opens = bytes.len() <= stream.handle.short_bytes;
        self.send_by_window(stream, opens, |on| on.send(target, kind, bytes))
    }

    /// Sends on a stream, and opens its window for what follows, if that may go through it.
    #[inline]
    fn send_by_window(
        &mut self,
        stream: &Untyped<Inline<'_>>,
        may_follow: bool,
        send: impl FnOnce(&mut UntypedOutbox<'_>) -> Result<()>,
    ) -> Result<()> {
        let (window, last) = (&stream.handle.of, self.last);
        self.close_window();
        let pays = self.in_vain < MOST_IN_VAIN;
        let mut on = self.on(stream)?;
        send(&mut on)?;
        let wants = Rc::as_ptr(window) == last;
        let opens = may_follow && wants && pays && on.outbox.open_window(window);
        drop(on);
        self.last = Rc::as_ptr(window);
        self.open = opens.then(|| (Rc::clone(window), stream.handle.id));
        Ok(())
    }

    /// Closes the window that [`UntypedOutbox::push_on`] or `send_on` has opened.
    #[inline]
    fn close_window(&mut self) {
        if let Some((window, id)) = self.open.take() {
            let pushed = window.close();
            let is_used = pushed.count > 0;
            self.in_vain = if is_used { 0 } else { self.in_vain + 1 };
            if let Some(mut of) = self.outbox.for_stream(id) {
                of.note_pushed(pushed);
            }
        }
    }

    /// Sends a record, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; a stream of items.
    #[inline]
    pub fn send(&mut self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        check_record(self.item_bytes)?;
        self.closed().send(target, kind, bytes)
    }

    /// Sends an item, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; an item of another size.
    #[inline]
    pub fn push(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        check_items(1, self.item_bytes, item)?;
        let outbox = self.closed();
        of_usual_size!(item => outbox.push_item(target, item))
    }

    /// Sends a record of `bytes` zeroed bytes that `fill` fills, or spills it.
    ///
    /// # Errors
    /// As [`UntypedOutbox::send`].
    pub fn send_filled(
        &mut self,
        target: Rank,
        kind: u32,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        check_record(self.item_bytes)?;
        self.closed().check(target, bytes)?;
        let mut record = zeroed(bytes)?;
        fill(&mut record);
        self.closed().send(target, kind, &record)
    }

    /// Sends many items, or spills them, `items` being one after the other for the ranks of
    /// `targets`. How many were taken, and as [`UntypedOutbox::push`] why no more.
    pub fn push_many(&mut self, targets: &[u32], items: &[u8]) -> (usize, Result<()>) {
        if let Err(error) = check_items(targets.len(), self.item_bytes, items) {
            return (0, Err(error));
        }
        let mut pairs = targets.iter().zip(items.chunks_exact(self.item_bytes));
        let outbox = self.closed();
        let outcome = pairs.try_for_each(|(&target, item)| outbox.push_item(Rank(target), item));
        taken(targets.len() - pairs.len(), outcome)
    }

    /// Sends a record or an item to many ranks, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; an item of another size, or with a kind.
    pub fn broadcast(&mut self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        check_either(self.item_bytes, kind, bytes)?;
        self.closed().broadcast(kind, bytes, to)
    }
}

/// Refuses records on a stream of items.
#[inline]
fn check_record(item_bytes: usize) -> Result<()> {
    match item_bytes {
        0 => Ok(()),
        _ => Err(wrong(format!(
            "the stream has items of {item_bytes} bytes, which are pushed, and no records"
        ))),
    }
}

/// Refuses what are not `count` items.
#[inline]
fn check_items(count: usize, item_bytes: usize, items: &[u8]) -> Result<()> {
    if item_bytes > 0 && items.len() == count * item_bytes {
        return Ok(());
    }
    Err(not_items(count, item_bytes, items.len()))
}

#[cold]
fn not_items(count: usize, item_bytes: usize, bytes: usize) -> Error {
    wrong(match item_bytes {
        0 => "the stream has records, which are sent, and no items".to_owned(),
        _ => format!("{bytes} bytes are not {count} items of {item_bytes} bytes"),
    })
}

/// Refuses what is neither a record of a stream of records nor an item of a stream of items.
fn check_either(item_bytes: usize, kind: u32, bytes: &[u8]) -> Result<()> {
    match (item_bytes, kind) {
        (0, _) => Ok(()),
        (_, 0) => check_items(1, item_bytes, bytes),
        _ => Err(wrong(format!("an item has no kind, and {kind} was given"))),
    }
}

/// Of so many items that were tried, those that were taken: the last one was not where it has
/// failed.
fn taken(tried: usize, outcome: Result<()>) -> (usize, Result<()>) {
    let refused = usize::from(outcome.is_err());
    (tried.saturating_sub(refused), outcome)
}

fn wrong(why: String) -> Error {
    Error::config("item_bytes", why)
}

/// A stream between all ranks of a job of items of one size that is known at run time only, or of
/// byte records, where that size is 0. Clones are handles of the same stream.
///
/// Programs in Rust have [`Shuffle`](crate::Shuffle) and [`Stream`](crate::Stream), which the
/// compiler checks.
#[derive(Clone)]
pub struct Untyped<S: Seat> {
    pub(crate) handle: Handle<S>,
    item_bytes: usize,
}

impl<S: Seat> Untyped<S> {
    pub(crate) fn over(handle: Handle<S>, item_bytes: usize) -> Self {
        Self { handle, item_bytes }
    }

    /// Bytes of an item; 0 where it has records.
    pub fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    /// Sends a record; waits as [`crate::Shuffle::send`] does.
    ///
    /// # Errors
    /// As [`crate::Shuffle::send`]; a stream of items.
    #[inline]
    pub fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        check_record(self.item_bytes)?;
        self.handle.send_record(target, kind, bytes)
    }

    /// Sends a record if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken; as [`Untyped::send`].
    #[inline]
    pub fn try_send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        check_record(self.item_bytes)?;
        self.handle.try_send_record(target, kind, bytes)
    }

    /// Sends a record of `bytes` zeroed bytes that `fill` fills: where it can, in place. As
    /// [`crate::Shuffle::reserve`].
    ///
    /// # Errors
    /// As [`Untyped::send`].
    pub fn send_filled(
        &self,
        target: Rank,
        kind: u32,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        check_record(self.item_bytes)?;
        let mut space = reserve(&self.handle, target, kind, bytes)?;
        fill(&mut space);
        space.commit()
    }

    /// Sends an item; waits as [`crate::Shuffle::send`] does.
    ///
    /// # Errors
    /// As [`crate::Shuffle::send`]; an item of another size.
    #[inline]
    pub fn push(&self, target: Rank, item: &[u8]) -> Result<()> {
        check_items(1, self.item_bytes, item)?;
        of_usual_size!(item => push(&self.handle, target, item))
    }

    /// Sends an item if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken; as [`Untyped::push`].
    #[inline]
    pub fn try_push(&self, target: Rank, item: &[u8]) -> Result<()> {
        check_items(1, self.item_bytes, item)?;
        of_usual_size!(item => try_push(&self.handle, target, item))
    }

    /// Sends many items, `items` being one after the other for the ranks of `targets`: the engine
    /// is taken once per few hundred of them. How many were taken, and as [`Untyped::push`] why no
    /// more.
    pub fn push_many(&self, targets: &[u32], items: &[u8]) -> (usize, Result<()>) {
        if let Err(error) = check_items(targets.len(), self.item_bytes, items) {
            return (0, Err(error));
        }
        match self.item_bytes {
            4 => self.extend::<4>(targets, items),
            8 => self.extend::<8>(targets, items),
            16 => self.extend::<16>(targets, items),
            24 => self.extend::<24>(targets, items),
            32 => self.extend::<32>(targets, items),
            64 => self.extend::<64>(targets, items),
            item_bytes => {
                let mut pairs = targets.iter().zip(items.chunks_exact(item_bytes));
                let outcome = match self.handle.is_at_once(self.handle.rank) {
                    true => {
                        pairs.try_for_each(|(&target, item)| push(&self.handle, Rank(target), item))
                    }
                    false => self.handle.send_all(
                        &mut pairs,
                        |out, &(&target, item)| out.try_push(Rank(target), item),
                        |out, &(&target, item)| out.push_or_spill(Rank(target), item),
                    ),
                };
                taken(targets.len() - pairs.len(), outcome)
            }
        }
    }

    /// [`Untyped::push_many`] of items of `N` bytes.
    fn extend<const N: usize>(&self, targets: &[u32], items: &[u8]) -> (usize, Result<()>) {
        let (items, _) = items.as_chunks::<N>();
        let ranks = targets.iter().map(|&target| Rank(target));
        let mut pairs = ranks.zip(items.iter().copied());
        let outcome = extend(&self.handle, &mut pairs);
        taken(targets.len() - pairs.len(), outcome)
    }

    /// As [`crate::Shuffle::broadcast`]; `kind` is 0 for an item.
    ///
    /// # Errors
    /// As [`crate::Shuffle::send`]; an item of another size, or with a kind.
    pub fn broadcast(&self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        check_either(self.item_bytes, kind, bytes)?;
        broadcast(&self.handle, kind, bytes, to)
    }

    /// As [`crate::Shuffle::try_broadcast`]; `kind` is 0 for an item.
    ///
    /// # Errors
    /// As that; an item of another size, or with a kind.
    pub fn try_broadcast(&self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        check_either(self.item_bytes, kind, bytes)?;
        try_broadcast(&self.handle, kind, bytes, to)
    }

    /// One round of progress, then each record, or run of items, that waits is handed to `take`;
    /// returns how many records or items.
    ///
    /// # Errors
    /// As [`crate::Shuffle::take`].
    pub fn take(&self, mut take: impl FnMut(Arrival<'_>)) -> Result<u64> {
        self.handle.take(|delivery| {
            let all = |arrival: Arrival<'_>, _| {
                take(arrival);
                true
            };
            each_arrival(delivery, self.item_bytes, 0, all).map(drop)
        })
    }
}

impl<S: Seat> Untyped<S> {
    /// Where pushes and sends go that need nothing else of the job; it lives as long as the
    /// stream's handles.
    pub fn window(&self) -> *const PushWindow {
        S::window(&self.handle.of)
    }
}

common_verbs!([S: Seat] Untyped<S>);
