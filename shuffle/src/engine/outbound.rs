//! What a rank sends: open runs, long records, and the spill of handlers, before the queues.

mod ageing;
mod gathered;
mod handlers;
mod lent;
mod reserve;
mod spilling;
mod steps;
mod windows;

pub(crate) use gathered::Gathered;
pub(crate) use steps::Urgency;
pub(crate) use windows::Pushes;

use std::sync::Arc;

use trihop_transport::park::Gauge;
use trihop_transport::protocol::wire::{
    BATCH_HEADER_BYTES, RECORD_HEADER_BYTES, RUN_HEADER_BYTES, RecordHeader, RunHeader, align8,
    run_flags,
};
use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use super::broadcasts::Broadcasts;
use super::contribution::Contribution;
use super::long::{LongRecords, Targets};
use super::queues::Queues;
use crate::config::StreamOptions;
use crate::deliver::LONGEST_ITEM;
use crate::error::{Error, Result};
use crate::member::Loss;
use crate::queue::Input;
use crate::queue::audience::BroadcastTo;
use crate::queue::pressure::Pressure;
use crate::queue::remote::Identity;
use crate::queue::runs::{RunTable, Stop};
use crate::queue::spill::Spill;
use crate::route::Stage;

/// Calls that send between two rounds of progress while nothing is refused.
pub(crate) const CALLS_PER_ROUND: u32 = 512;

/// Everything that a rank has to send on one stream.
pub(crate) struct Outbound {
    pub queues: Queues,
    pub runs: RunTable,
    /// Longest record that is gathered in runs: of which two at least fit one.
    gathered_bytes: usize,
    pub spill: Spill,
    pressure: Pressure,
    /// Says whether the spill is pressed, to those who hand deliveries to handlers.
    gauge: Arc<Gauge>,
    /// Cookie of the job.
    job: u64,
    /// Name of the stream.
    name: Arc<str>,
    /// A send found or left the spill above its mark, since somebody last asked.
    overfilled: bool,
    /// How many streams have been opened in this place.
    pub opened: u32,
    /// What a send that nobody hears of has failed with, as a handler's for want of spill: the job
    /// ends.
    failed: Option<Box<Error>>,
    long: LongRecords,
    broadcasting: Broadcasts,
    rank: u32,
    size: u32,
    /// Bytes of an item, 0 on a byte shuffle.
    item_bytes: usize,
    /// The same when it was opened.
    first_item_bytes: usize,
    frame_bytes: usize,
    max_message_bytes: usize,
    linger_ns: u64,
    runs_since_ns: u64,
    /// When it was last looked which runs rest.
    runs_looked_at_ns: u64,
    pushed: bool,
    /// Something was sent between the last two rounds of progress.
    fresh: bool,
    /// `sent` at the last round of progress.
    sent_before: u64,
    /// Records that the application or a handler sent.
    pub sent: u64,
    /// Calls that sent since progress was made.
    calls: u32,
    /// `sent` when the long record or broadcast that waits was taken.
    waits_since: u64,
    /// Payload bytes of them.
    pub sent_bytes: u64,
    /// Refusals for want of room.
    pub would_block: u64,
    /// Broadcasts of the application or a handler.
    pub broadcasts: u64,
    /// Shut down: nothing more is taken.
    pub closed: bool,
    /// Who is lost, the first before.
    lost: Arc<[Loss]>,
    /// It is shut down, or somebody is lost: each send of a handler looks at that.
    is_checked: bool,
    /// The application has started the end of a step, and nothing of its own is taken before that
    /// is over; what handlers send is.
    is_ending: bool,
    contribution: Contribution,
    /// Contributors of the next step that handlers have called done: what others send in it may
    /// come before it begins here.
    early: u64,
    /// Calls by which contributors of the step were done.
    dones: u32,
    /// One of these, or the step is ending: looked at by each send of the application.
    refuses: bool,
}

impl Outbound {
    pub fn new(
        name: &str,
        gauge: Arc<Gauge>,
        queues: Queues,
        identity: &Identity,
        item_bytes: usize,
        frame_bytes: usize,
        options: &StreamOptions,
    ) -> Self {
        let (size, rank) = (queues.size, queues.rank().0);
        let run_bytes = options.run_bytes.min(frame_bytes) & !7;
        Self {
            queues,
            runs: RunTable::new(size, run_bytes, options.shares().run_table_bytes),
            gathered_bytes: (run_bytes - RUN_HEADER_BYTES) / 2,
            spill: Spill::new(options.spill_bytes, options.shares().spill_mark_bytes),
            pressure: Pressure::new(options.shares().spill_mark_bytes),
            gauge,
            job: identity.cookie,
            name: name.into(),
            overfilled: false,
            opened: 0,
            failed: None,
            long: LongRecords::new(rank, frame_bytes, item_bytes > 0),
            broadcasting: Broadcasts::new(Rank(rank)),
            rank,
            size,
            item_bytes,
            first_item_bytes: item_bytes,
            frame_bytes,
            max_message_bytes: options.max_message_bytes,
            linger_ns: options.linger_us * 1000,
            runs_since_ns: 0,
            runs_looked_at_ns: 0,
            pushed: false,
            fresh: false,
            sent_before: 0,
            sent: 0,
            calls: 0,
            waits_since: 0,
            sent_bytes: 0,
            would_block: 0,
            broadcasts: 0,
            closed: false,
            lost: Arc::new([]),
            is_checked: false,
            is_ending: false,
            contribution: Contribution::None,
            early: 0,
            dones: 0,
            refuses: false,
        }
    }

    /// As if it were new, but for the queues, which go on where they are. Nothing is left in it.
    pub fn begin_again(
        &mut self,
        name: &str,
        item_bytes: usize,
        gauge: Arc<Gauge>,
        options: &StreamOptions,
    ) {
        debug_assert!(!self.has_partial(), "it was fenced before it was closed");
        self.queues.begin_again();
        self.spill = Spill::new(options.spill_bytes, options.shares().spill_mark_bytes);
        self.pressure = Pressure::new(options.shares().spill_mark_bytes);
        self.gauge = gauge;
        self.overfilled = false;
        self.opened += 1;
        self.name = name.into();
        self.failed = None;
        self.runs_since_ns = 0;
        (self.item_bytes, self.first_item_bytes) = (item_bytes, item_bytes);
        self.pushed = false;
        self.waits_since = 0;
        (self.sent, self.sent_before, self.sent_bytes) = (0, 0, 0);
        (self.would_block, self.broadcasts) = (0, 0);
        (self.closed, self.is_ending) = (false, false);
        self.set_checked();
        (self.contribution, self.early) = (Contribution::None, 0);
    }

    /// A call of the application has sent; true every few hundred times, when progress is due: a
    /// rank that only sends still forwards and ages.
    #[inline]
    pub fn count_call(&mut self) -> bool {
        self.calls = self.calls.saturating_add(1);
        let due = self.calls >= CALLS_PER_ROUND;
        if due {
            self.calls = 0;
        }
        due
    }

    /// Items have another size from now on: between two steps, when nothing of the first is left.
    ///
    /// # Errors
    /// [`Error::Config`]: none, or more than `max_message_bytes`.
    pub fn resize_items(&mut self, item_bytes: usize) -> Result<()> {
        let largest = self.max_message_bytes.min(LONGEST_ITEM);
        if !(1..=largest).contains(&item_bytes) {
            let why = format!("an item of {item_bytes} bytes: it is 1 to {largest} on this stream");
            return Err(Error::config("item_bytes", why));
        }
        self.item_bytes = item_bytes;
        Ok(())
    }

    /// Items have the size again with which the stream was opened.
    pub fn restore_items(&mut self) {
        self.item_bytes = self.first_item_bytes;
    }

    /// Bytes of the longest record.
    pub fn most_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// Cookie of the job.
    pub fn job(&self) -> u64 {
        self.job
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Bytes of an item; 0 on a byte shuffle.
    pub fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    /// Refuses what can never be sent.
    pub fn check(&self, target: Rank, bytes: usize) -> Result<()> {
        if target.0 >= self.size {
            return Err(Error::Rank {
                rank: target.0,
                size: self.size,
            });
        }
        if bytes > self.max_message_bytes {
            return Err(Error::TooLarge {
                bytes,
                limit: self.max_message_bytes,
            });
        }
        self.check_open()?;
        self.check_within_reach(target)
    }

    /// Refuses what is for a rank that is lost.
    pub fn check_within_reach(&self, target: Rank) -> Result<()> {
        match self.lost.iter().find(|loss| loss.has(target)) {
            Some(loss) => Err(loss.error().clone()),
            None => Ok(()),
        }
    }

    /// Refuses what is for all ranks, where any is lost.
    fn check_whole(&self) -> Result<()> {
        match self.lost.first() {
            Some(loss) => Err(loss.error().clone()),
            None => Ok(()),
        }
    }

    /// These are lost, the first before.
    pub fn lose(&mut self, lost: &Arc<[Loss]>) {
        self.lost = Arc::clone(lost);
        self.set_checked();
    }

    /// What each send looks at.
    fn set_checked(&mut self) {
        self.is_checked = self.closed || !self.lost.is_empty();
        self.refuses = self.is_checked || self.is_ending;
    }

    /// Refuses all once the stream is closed.
    pub fn check_open(&self) -> Result<()> {
        match self.closed {
            true => Err(Error::Closed((*self.name).to_owned())),
            false => Ok(()),
        }
    }

    /// Whether the application's records go straight into open runs: what was spilled leaves
    /// before.
    #[inline(always)] // part of every send
    fn is_open(&self) -> bool {
        self.spill.is_empty() && !self.refuses
    }

    /// Whether the application may send so many bytes, and nothing that was sent before waits here
    /// which this rank gets, or which all sends wait for.
    pub fn has_nothing_before(&mut self, bytes: usize) -> bool {
        self.is_open()
            && self.check(Rank(self.rank), bytes).is_ok()
            && self.long.is_empty()
            && self.broadcasting.is_empty()
            && self.runs.open_run_of(self.rank).is_none()
            && self.queues.has_taken_own()
    }

    /// Nothing more is taken.
    pub fn close(&mut self) {
        self.closed = true;
        self.set_checked();
    }

    /// A send of a handler that asks for room instead of the spill: it may send while a step ends.
    pub fn in_handler<R>(&mut self, send: impl FnOnce(&mut Self) -> R) -> R {
        let is_ending = std::mem::take(&mut self.is_ending);
        self.refuses = self.is_checked;
        let sent = send(self);
        self.set_ending(is_ending);
        sent
    }

    /// A record for which the open run of its target has room, of the application where the stream
    /// `is_open` to it; false for any other.
    #[inline(always)] // as its callers' fast path
    fn append(&mut self, is_open: bool, target: Rank, kind: u32, payload: &[u8]) -> bool {
        let bytes = RECORD_HEADER_BYTES + align8(payload.len());
        if is_open
            && target.0 < self.size
            && bytes <= self.gathered_bytes
            && payload.len() <= self.max_message_bytes
            && let Ok(space) = self.runs.push(target.0, bytes)
        {
            write_record(space, kind, payload);
            self.note_sent(payload.len());
            return true;
        }
        false
    }

    /// As `append`, for an item.
    #[inline(always)] // so that an item's size is a constant of the copy
    fn append_item(&mut self, is_open: bool, target: Rank, item: &[u8]) -> bool {
        if is_open
            && target.0 < self.size
            && item.len() <= self.gathered_bytes
            && let Ok(space) = self.runs.push(target.0, item.len())
        {
            space.copy_from_slice(item);
            self.note_sent(item.len());
            return true;
        }
        false
    }

    /// A record was sent: a caller of [`Outbound::reserve`] says so once it has filled the space.
    #[inline(always)] // part of every send
    pub fn note_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
        self.pushed = true;
    }

    /// A send of the application: it waits behind whatever handlers spilled.
    #[inline]
    pub fn try_send(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        if self.append(self.is_open(), target, kind, payload) {
            return Ok(());
        }
        self.try_send_slow(target, kind, payload)
    }

    #[cold]
    fn try_send_slow(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        self.check(target, payload.len())?;
        self.check_not_ending("a send")?;
        if !self.spill.is_empty() {
            return self.refused();
        }
        self.accept(target, kind, payload)
    }

    /// A broadcast of the application (or of an item, whose kind is nothing).
    pub fn try_broadcast(&mut self, to: BroadcastTo, kind: u32, payload: &[u8]) -> Result<()> {
        self.check(Rank(self.rank), payload.len())?;
        self.check_whole()?;
        self.check_not_ending("a broadcast")?;
        if !self.spill.is_empty() {
            return self.refused();
        }
        self.accept_broadcast(to, kind, payload)
    }

    /// Takes a broadcast as soon as it has left for one place; what is sent later waits until it
    /// has for all.
    fn accept_broadcast(&mut self, to: BroadcastTo, kind: u32, payload: &[u8]) -> Result<()> {
        // What was sent before leaves first, for every target.
        if !self.close_runs() {
            return self.refused();
        }
        if !self.start_broadcast(to, kind, payload)? {
            return self.refused();
        }
        self.note_broadcast(to, payload.len());
        Ok(())
    }

    /// Copies a broadcast before which nothing has to leave; false while it has no room. Longer
    /// ones go to one rank after the other.
    fn start_broadcast(&mut self, to: BroadcastTo, kind: u32, payload: &[u8]) -> Result<bool> {
        self.waits_since = self.sent;
        let to_self = to == BroadcastTo::Everyone;
        let bytes = match self.item_bytes {
            0 => RECORD_HEADER_BYTES + align8(payload.len()),
            item_bytes => align8(item_bytes),
        };
        let frame_bytes = RUN_HEADER_BYTES + bytes;
        if frame_bytes <= self.frame_bytes {
            let (source, item_bytes) = (self.rank, self.item_bytes);
            let taken = self
                .broadcasting
                .send(&mut self.queues, to_self, frame_bytes, |space| {
                    let header = RunHeader {
                        target: source,
                        source,
                        count: 1,
                        flags: run_flags::BROADCAST,
                    };
                    header.write(frame_bytes, space);
                    match item_bytes {
                        0 => write_record(&mut space[RUN_HEADER_BYTES..], kind, payload),
                        _ => space[RUN_HEADER_BYTES..][..item_bytes].copy_from_slice(payload),
                    }
                });
            return Ok(taken);
        }
        let targets = Targets::all(self.size, to.skipped(self.rank));
        self.long.send(&mut self.queues, targets, kind, payload)
    }

    /// A broadcast was sent, as far as its rank counts.
    fn note_broadcast(&mut self, to: BroadcastTo, bytes: usize) {
        let copies = u64::from(to.ranks(self.size));
        self.broadcasts += 1;
        self.sent += copies;
        self.sent_bytes += copies * bytes as u64;
        self.pushed = true;
    }

    /// An item of the application.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub fn try_push(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        if self.append_item(self.is_open(), target, item) {
            return Ok(());
        }
        self.try_push_slow(target, item)
    }

    /// Items of the application, `most` at a time; stops at the first that has no room in an open
    /// run.
    pub fn gather<T: IntoBytes + Immutable>(
        &mut self,
        most: usize,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> Stop<T> {
        self.gather_where(self.is_open(), most, items)
    }

    fn gather_where<T: IntoBytes + Immutable>(
        &mut self,
        is_open: bool,
        most: usize,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> Stop<T> {
        if !is_open || size_of::<T>() > self.gathered_bytes {
            return match items.next() {
                Some((target, item)) => Stop::At(target, item),
                None => Stop::End,
            };
        }
        let (taken, stop) = self.runs.gather(most, items);
        self.sent += taken;
        self.sent_bytes += taken * size_of::<T>() as u64;
        self.pushed |= taken > 0;
        stop
    }

    #[cold]
    fn try_push_slow(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        self.check(target, item.len())?;
        self.check_not_ending("a push")?;
        if !self.spill.is_empty() {
            return self.refused();
        }
        self.accept_item(target, item)
    }

    fn accept_item(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        if item.len() <= self.gathered_bytes {
            self.space_in_run(target, item.len())?.copy_from_slice(item);
        } else {
            self.make_way(target)?;
            if RUN_HEADER_BYTES + align8(item.len()) <= self.frame_bytes {
                self.push_alone(target, item.len(), |space| space.copy_from_slice(item))?;
            } else {
                self.accept_long(target, 0, item)?;
            }
        }
        self.note_sent(item.len());
        Ok(())
    }

    /// What fits no frame.
    fn accept_long(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        self.waits_since = self.sent;
        let targets = Targets::one(target);
        match self.long.send(&mut self.queues, targets, kind, payload)? {
            true => Ok(()),
            false => self.refused(),
        }
    }

    fn accept(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        let bytes = RECORD_HEADER_BYTES + align8(payload.len());
        if bytes <= self.gathered_bytes {
            write_record(self.space_in_run(target, bytes)?, kind, payload);
        } else {
            self.make_way(target)?;
            if RUN_HEADER_BYTES + bytes <= self.frame_bytes {
                self.push_alone(target, bytes, |space| write_record(space, kind, payload))?;
            } else {
                self.accept_long(target, kind, payload)?;
            }
        }
        self.note_sent(payload.len());
        Ok(())
    }

    /// Goes on with what was taken and has not left completely; true when nothing of that is left.
    fn go_on(&mut self) -> bool {
        self.long.go_on(&mut self.queues) && self.broadcasting.go_on(&mut self.queues)
    }

    /// Space in the open run of `target`; a run that is in the way leaves first.
    fn space_in_run(&mut self, target: Rank, bytes: usize) -> Result<&mut [u8]> {
        if !self.go_on() {
            return self.refused();
        }
        // `last_pushed`, since the borrow checker does not see that a refused push holds nothing.
        while let Err(slot) = self.runs.push(target.0, bytes).map(|_| ()) {
            if !self.emit(slot) {
                return self.refused();
            }
        }
        Ok(self.runs.last_pushed(target.0, bytes))
    }

    fn refused<T>(&mut self) -> Result<T> {
        self.would_block += 1;
        Err(Error::WouldBlock)
    }

    /// Lets leave what must leave before a record for `target` that is not gathered.
    fn make_way(&mut self, target: Rank) -> Result<()> {
        if !self.go_on() {
            return self.refused();
        }
        match self.runs.open_run_of(target.0) {
            Some(slot) if !self.emit(slot) => self.refused(),
            _ => Ok(()),
        }
    }

    /// A run of one record of `bytes`, which `write` fills in place: gathering it would only copy
    /// it once more.
    fn push_alone(
        &mut self,
        target: Rank,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let frame_bytes = RUN_HEADER_BYTES + align8(bytes);
        let write = alone(target, self.rank, bytes, write);
        let input = Input::APPLICATION;
        match self
            .queues
            .push_with(Stage::SOURCE, target, frame_bytes, 0, input, write)
        {
            Some(true) => Ok(()),
            _ => self.refused(),
        }
    }

    /// Moves an open run into the queue of its next hop; false when that has no room, or something
    /// has to leave before.
    fn emit(&mut self, slot: usize) -> bool {
        if !self.spill.is_empty() || !self.go_on() {
            return false;
        }
        let (target, frame) = self.runs.frame(slot, self.rank);
        let pushed = self
            .queues
            .push(Stage::SOURCE, Rank(target), frame, 0, Input::APPLICATION);
        if pushed == Some(true) {
            self.runs.close(slot);
            true
        } else {
            false
        }
    }

    /// Hops that have their copy of the broadcast that waits, if one does.
    pub fn copied(&self) -> Option<u32> {
        (!self.broadcasting.is_empty()).then(|| self.broadcasting.copied())
    }

    /// Bytes of the long record that waits, if one does.
    pub fn large_bytes(&self) -> usize {
        self.long.left_bytes()
    }
}

/// Writes the frame of a run of one record of `bytes`, which `write` fills in.
pub(super) fn alone(
    target: Rank,
    source: u32,
    bytes: usize,
    write: impl FnOnce(&mut [u8]),
) -> impl FnOnce(&mut [u8]) {
    move |space: &mut [u8]| {
        let header = RunHeader {
            target: target.0,
            source,
            count: 1,
            flags: 0,
        };
        header.write(space.len(), space);
        let (record, padding) = space[RUN_HEADER_BYTES..].split_at_mut(bytes);
        write(record);
        padding.fill(0);
    }
}

pub(super) fn write_record(space: &mut [u8], kind: u32, payload: &[u8]) {
    let header = RecordHeader {
        kind: kind.into(),
        length: (payload.len() as u32).into(),
    };
    space[..RECORD_HEADER_BYTES].copy_from_slice(header.as_bytes());
    let end = RECORD_HEADER_BYTES + payload.len();
    space[RECORD_HEADER_BYTES..end].copy_from_slice(payload);
    space[end..].fill(0);
}

/// Size of a batch buffer for batches of `target_bytes` and frames of at most `frame_bytes`.
pub(crate) fn batch_buffer_bytes(target_bytes: usize, frame_bytes: usize) -> usize {
    target_bytes
        .max(frame_bytes + BATCH_HEADER_BYTES)
        .next_multiple_of(64)
}
