//! Long messages between nodes that have several relays: cut into parts, which go over all of the
//! relays at once, each by the one that has room for it, and put together where they arrive.
//!
//! Each relay is led to by a stream of its own, whose [rails are turned](crate::route::Rails). What
//! a message is goes last, over the stream of all requests and answers and in the order of that:
//! what follows there of the same rank waits until the message is whole. Where a send ends by an
//! error before, what goes last says how much has left: nobody waits for more, or keeps that.
//!
//! A sender that waits has small parts go by whichever relay has room. One that does not has a part
//! for each stream, where each can take one, so that nothing is spilled, and else sends it whole.
//! So it does where fewer streams could be opened than there are relays, and a part would be longer
//! than they carry.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use trihop_transport::sync::Count;
use trihop_transport::topology::{Rank, Topology};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bytes::Bytes;
use super::wire::{HEAD_BYTES, Payload, kinds};
use crate::endpoint::StreamId;
use crate::engine::BadRun;
use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
use crate::face::codec::with_scratch;
use crate::face::coded::no_value;
use crate::queue::long_buffers;

/// Bytes of a part: enough that what each costs beside them does not count, and few enough that
/// relays end at the same time.
const PART_BYTES: usize = 256 << 10;

/// Shorter messages go by one relay.
const LEAST_BYTES: usize = 2 * PART_BYTES;

/// Messages of a rank of which some parts have come and others not: more than the queues of all its
/// streams can hold apart.
const MOST_GROWING: usize = 1024;

/// Streams of one opening, whatever relays a node has: each has queues of its own.
const MOST_STREAMS: u32 = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTail {
    message: U64,
    begin: U64,
    bytes: U64,
}

/// What stands behind a part, and behind what a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    /// Number of the message, of all that its sender has cut.
    pub message: u64,
    /// Where in the message a part begins.
    pub begin: u64,
    /// Bytes of the message.
    pub bytes: u64,
}

impl Tail {
    /// Goes behind what is in `record`.
    pub fn write(self, record: &mut Vec<u8>) {
        let raw = RawTail {
            message: self.message.into(),
            begin: self.begin.into(),
            bytes: self.bytes.into(),
        };
        record.extend_from_slice(raw.as_bytes());
    }

    fn parse(record: &[u8]) -> Option<(Self, &[u8])> {
        let (rest, raw) = RawTail::ref_from_suffix(record).ok()?;
        let tail = Self {
            message: raw.message.get(),
            begin: raw.begin.get(),
            bytes: raw.bytes.get(),
        };
        Some((tail, rest))
    }

    /// The parts of a message, of so many bytes each.
    fn cut(self, message: &[u8], bytes: usize) -> impl Iterator<Item = Part<'_>> {
        let parts = (0..).step_by(bytes).zip(message.chunks(bytes));
        parts.map(move |(begin, bytes)| Part {
            tail: Self { begin, ..self },
            bytes,
        })
    }

    /// The message is not sent to its end, of which so many bytes have left: its target is told.
    pub fn give_up(self, left: u64, send: impl FnOnce(u32, &[u8]) -> Result<()>) {
        if left == 0 {
            return;
        }
        let told = with_scratch(|record| {
            let tail = Self {
                begin: left,
                ..self
            };
            tail.write(record);
            send(kinds::CUT, record)
        });
        if let Err(error) = told {
            // Of a job that has failed, or a stream that was shut down, nobody keeps anything.
            tracing::info!(%error, bytes = left, "a message that was cut off stays at its target");
        }
    }

    /// Small ones, for whichever relay has room.
    pub fn parts(self, message: &[u8]) -> impl Iterator<Item = Part<'_>> {
        self.cut(message, PART_BYTES)
    }
}

/// A part of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    tail: Tail,
    bytes: &'a [u8],
}

impl Part<'_> {
    /// How many bytes of the message it has.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Its record.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn record(&self) -> Result<Vec<u8>> {
        let bytes = self.bytes.len() + size_of::<RawTail>();
        let mut record = long_buffers::take(bytes).map_err(|_| Error::NoMemory { bytes })?;
        record.extend_from_slice(self.bytes);
        self.tail.write(&mut record);
        Ok(record)
    }
}

/// The streams that parts go by.
#[derive(Debug)]
pub(super) struct Carriers {
    /// The first is that of requests and answers.
    streams: Vec<StreamId>,
    topology: Topology,
    /// Bytes of the longest part that all of them carry.
    part_bytes: usize,
    messages: Count,
}

impl Carriers {
    /// How many streams a job has, of which each goes over other relays, for messages of so many
    /// bytes at most: one where none is cut.
    pub fn count(topology: &Topology, message_bytes: usize) -> u32 {
        let are_cut = message_bytes >= LEAST_BYTES;
        match are_cut && topology.has_relays() && topology.nodes() > 1 {
            true => topology.processes().most_local().min(MOST_STREAMS),
            false => 1,
        }
    }

    /// The longest record of so many streams that carry parts alone.
    pub fn longest_part(streams: u32, message_bytes: usize) -> usize {
        let part = message_bytes.div_ceil(streams as usize).max(PART_BYTES);
        part + size_of::<RawTail>()
    }

    /// By these streams, which carry records of so many bytes at most.
    pub fn new(streams: Vec<StreamId>, topology: Topology, longest_part: usize) -> Self {
        Self {
            streams,
            topology,
            part_bytes: longest_part - size_of::<RawTail>(),
            messages: Count::default(),
        }
    }

    /// The stream of requests and answers.
    pub fn main(&self) -> StreamId {
        self.streams[0]
    }

    /// The stream of all parts that goes by this relay, of which there are so many.
    pub fn stream(&self, number: usize) -> StreamId {
        self.streams[number % self.streams.len()]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether a message of so many bytes is cut; where it goes `at_once`, into a part for each
    /// stream.
    pub fn cut(&self, target: Rank, bytes: usize, at_once: bool) -> bool {
        let is_long = bytes >= LEAST_BYTES && !self.topology.is_local(target);
        is_long && (!at_once || bytes.div_ceil(self.len()) <= self.part_bytes)
    }

    /// Sends a message that is to be cut without waiting: a part by each stream, and what it is, of
    /// that kind, behind them; false where one of the streams has no room for it, and nothing was
    /// sent.
    pub fn send_at_once(
        &self,
        (target, kind): (Rank, u32),
        (message, head): (&[u8], &[u8]),
        mut by: impl FnMut(StreamId, &mut dyn FnMut(&mut Outbound) -> Result<()>) -> Result<()>,
    ) -> Result<bool> {
        let mut are_free = true;
        for &stream in &self.streams {
            by(stream, &mut |out| {
                are_free &= out.may_begin_long();
                Ok(())
            })?;
        }
        let tail = self.begin(message.len());
        let parts = tail.cut(message, message.len().div_ceil(self.streams.len()));
        let records: Result<Vec<Vec<u8>>> = parts.map(|part| part.record()).collect();
        let Ok(records) = records else {
            return Ok(false);
        };
        if !are_free {
            records.into_iter().for_each(long_buffers::keep);
            return Ok(false);
        }
        let mut left = 0;
        let mut parts = self.streams.iter().zip(records);
        let parts = parts.try_for_each(|(&stream, mut record)| {
            let bytes = record.len() - size_of::<RawTail>();
            by(stream, &mut |out| {
                out.send_or_spill_given(target, kinds::PART, &mut record)
            })?;
            long_buffers::keep(record);
            left += bytes as u64;
            Ok(())
        });
        let sent = parts.and_then(|()| {
            with_scratch(|record| {
                record.extend_from_slice(head);
                tail.write(record);
                by(self.main(), &mut |out| {
                    out.send_or_spill(target, kind | kinds::CUT, record)
                })
            })
        });
        if sent.is_err() {
            tail.give_up(left, |kind, record| {
                by(self.main(), &mut |out| {
                    out.send_or_spill(target, kind, record)
                })
            });
        }
        sent.map(|()| true)
    }

    /// What stands behind the parts of a message that is to be cut.
    pub fn begin(&self, bytes: usize) -> Tail {
        Tail {
            message: self.messages.add_one(),
            begin: 0,
            bytes: bytes as u64,
        }
    }
}

/// What of a message has come.
#[derive(Debug)]
struct Growing {
    bytes: Vec<u8>,
    come: usize,
}

/// What waits behind a message that is not whole.
#[derive(Debug)]
enum Behind {
    /// A record.
    Record(u32, Vec<u8>),
    /// What a message is that comes in parts.
    Cut(u32, Tail, Vec<u8>),
    /// One of which no more comes than what the tail says has left.
    GivenUp(Tail),
}

/// What has come of one rank and waits.
#[derive(Debug, Default)]
struct FromRank {
    growing: HashMap<u64, Growing>,
    behind: VecDeque<Behind>,
}

/// Messages that come in parts, and the order of the records among which they come.
#[derive(Debug)]
pub(super) struct Parts {
    most_bytes: usize,
    /// Of which anything waits.
    ranks: HashMap<u32, FromRank>,
}

impl Parts {
    /// None yet; messages have at most so many bytes.
    pub fn new(most_bytes: usize) -> Self {
        Self {
            most_bytes,
            ranks: HashMap::new(),
        }
    }

    /// Drops what waits of ranks that are lost.
    pub fn forget(&mut self, has: impl Fn(Rank) -> bool) {
        self.ranks.retain(|&rank, _| !has(Rank(rank)));
    }

    /// Takes a record of a rank, by its kind; gives it back where it is not to wait. Otherwise
    /// [`Parts::next`] says what is not to wait any more.
    ///
    /// # Errors
    /// It cannot be one, or there is no memory for it.
    pub fn take<'a>(
        &mut self,
        source: Rank,
        kind: u32,
        record: Payload<'a>,
    ) -> Result<Option<(u32, Payload<'a>)>, BadRun> {
        if kind != kinds::PART && kind & kinds::CUT == 0 {
            let of = self.ranks.get_mut(&source.0);
            let of = of.filter(|of| !of.behind.is_empty());
            return match of {
                None => Ok(Some((kind, record))),
                Some(of) => {
                    let record = owned(record)?;
                    of.behind.push_back(Behind::Record(kind, record));
                    Ok(None)
                }
            };
        }
        let bad = |why: &str| Err(no_value(source, why));
        let Some((tail, bytes)) = Tail::parse(record.as_slice()) else {
            return bad("no part of a message");
        };
        let total = match usize::try_from(tail.bytes) {
            Ok(total) if (LEAST_BYTES..=self.most_bytes).contains(&total) => total,
            _ => return bad("a part of a message that is too long, or not cut"),
        };
        let is_given_up = kind == kinds::CUT;
        if is_given_up && !(1..=tail.bytes).contains(&tail.begin) {
            return bad("a message that was given up with more, or less, than it had");
        }
        let of = self.ranks.entry(source.0).or_default();
        if kind & kinds::CUT != 0 {
            of.behind.push_back(match is_given_up {
                true => Behind::GivenUp(tail),
                false => Behind::Cut(kind & !kinds::CUT, tail, bytes.to_vec()),
            });
            return Ok(None);
        }
        let many = of.growing.len();
        let growing = match of.growing.entry(tail.message) {
            Entry::Occupied(growing) => growing.into_mut(),
            Entry::Vacant(_) if many == MOST_GROWING => {
                return bad("parts of more messages than can be under way");
            }
            Entry::Vacant(place) => place.insert(Growing {
                bytes: zeroed(total)?,
                come: 0,
            }),
        };
        let begin = usize::try_from(tail.begin).unwrap_or(usize::MAX);
        let is_part = growing.bytes.len() == total
            && growing.come + bytes.len() <= total
            && !bytes.is_empty();
        let place = growing.bytes.get_mut(begin..);
        let place = place.and_then(|place| place.get_mut(..bytes.len()));
        let Some(place) = place.filter(|_| is_part) else {
            return bad("a part that its message does not have");
        };
        place.copy_from_slice(bytes);
        growing.come += bytes.len();
        if let Payload::Owned(Bytes::Own(record)) = record {
            long_buffers::keep(record);
        }
        Ok(None)
    }

    /// The next record of a rank that does not have to wait any more.
    ///
    /// # Errors
    /// A message is not as long as its parts said.
    pub fn next(&mut self, source: Rank) -> Result<Option<(u32, Vec<u8>)>, BadRun> {
        let Some(of) = self.ranks.get_mut(&source.0) else {
            return Ok(None);
        };
        let next = of.next(source)?;
        if of.behind.is_empty() && of.growing.is_empty() {
            self.ranks.remove(&source.0);
        }
        Ok(next)
    }
}

impl FromRank {
    /// See [`Parts::next`].
    fn next(&mut self, source: Rank) -> Result<Option<(u32, Vec<u8>)>, BadRun> {
        while let Some(first) = self.behind.front() {
            let waits_for = match first {
                Behind::Record(..) => None,
                Behind::Cut(_, tail, _) => Some((tail, tail.bytes)),
                Behind::GivenUp(tail) => Some((tail, tail.begin)),
            };
            if let Some((tail, bytes)) = waits_for {
                match self.growing.get(&tail.message) {
                    Some(growing) if growing.bytes.len() as u64 != tail.bytes => {
                        let why = "a message of another length than its parts";
                        return Err(no_value(source, why));
                    }
                    Some(growing) if growing.come as u64 >= bytes => {}
                    _ => return Ok(None),
                }
            }
            match self.behind.pop_front() {
                Some(Behind::Record(kind, record)) => return Ok(Some((kind, record))),
                Some(Behind::Cut(kind, tail, head)) => {
                    return Ok(self.growing.remove(&tail.message).map(|growing| {
                        let mut record = growing.bytes;
                        record.extend_from_slice(&head);
                        (kind, record)
                    }));
                }
                Some(Behind::GivenUp(tail)) => drop(self.growing.remove(&tail.message)),
                None => {}
            }
        }
        Ok(None)
    }
}

/// Room for a message of so many bytes, and for what it is, which stands behind it. Its pages are
/// touched as its parts come.
fn zeroed(bytes: usize) -> Result<Vec<u8>, BadRun> {
    // Only this says that there is no memory.
    let room = Vec::<u8>::new().try_reserve_exact(bytes + HEAD_BYTES);
    room.map_err(|_| BadRun::NoMemory(bytes))?;
    let mut zeroed = vec![0; bytes + HEAD_BYTES];
    zeroed.truncate(bytes);
    Ok(zeroed)
}

/// A record in memory of its own.
fn owned(record: Payload<'_>) -> Result<Vec<u8>, BadRun> {
    match record {
        Payload::Owned(Bytes::Own(record)) => Ok(record),
        Payload::Owned(Bytes::Shared(record)) => Ok(record.to_vec()),
        Payload::Borrowed(record) => {
            let no_memory = |_| BadRun::NoMemory(record.len());
            let mut copy = long_buffers::take(record.len()).map_err(no_memory)?;
            copy.extend_from_slice(record);
            Ok(copy)
        }
    }
}

#[cfg(test)]
mod tests;
