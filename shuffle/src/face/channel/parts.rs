//! Long messages between nodes that have several relays: cut into parts, which go over all of the
//! relays at once, each by the one that has room for it, and put together where they arrive.
//!
//! Each relay is led to by a stream of its own, whose [rails are turned](crate::route::Rails). What
//! a message is comes behind its parts or before them, over the stream of all requests and answers
//! and in the order of that: what follows there of the same rank waits until the message is whole.

use std::collections::{HashMap, VecDeque};

use trihop_transport::sync::AtomicU64;
use trihop_transport::sync::Ordering::Relaxed;
use trihop_transport::topology::{Rank, Topology};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::wire::{HEAD_BYTES, Payload, kinds};
use crate::endpoint::StreamId;
use crate::engine::BadRun;
use crate::error::{Error, Result};
use crate::face::coded::no_value;
use crate::queue::long_buffers;

/// Bytes of a part: enough that what each costs beside them does not count, and few enough that
/// relays end at the same time.
const PART_BYTES: usize = 256 << 10;

/// Shorter messages go by one relay.
const LEAST_BYTES: usize = 2 * PART_BYTES;

/// Longest record of a stream that carries parts alone.
pub(super) const PART_RECORD_BYTES: usize = PART_BYTES + size_of::<RawTail>();

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

    /// The record of each part of a message.
    pub fn parts(self, message: &[u8]) -> impl Iterator<Item = Part<'_>> {
        let parts = (0..).step_by(PART_BYTES).zip(message.chunks(PART_BYTES));
        parts.map(move |(begin, bytes)| Part {
            tail: Self { begin, ..self },
            bytes,
        })
    }
}

/// A part of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    tail: Tail,
    bytes: &'a [u8],
}

impl Part<'_> {
    /// Its record.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn record(&self) -> Result<Vec<u8>> {
        let bytes = PART_RECORD_BYTES;
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
    messages: AtomicU64,
}

impl Carriers {
    /// How many streams a job has, of which each goes over other relays: one where long messages
    /// are not cut.
    pub fn count(topology: &Topology) -> u32 {
        match topology.has_relays() && topology.nodes() > 1 {
            true => topology.processes().most_local().min(MOST_STREAMS),
            false => 1,
        }
    }

    pub fn new(streams: Vec<StreamId>, topology: Topology) -> Self {
        Self {
            streams,
            topology,
            messages: AtomicU64::new(0),
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

    /// Whether a message of so many bytes is cut.
    pub fn cut(&self, target: Rank, bytes: usize) -> bool {
        bytes >= LEAST_BYTES && !self.topology.is_local(target)
    }

    /// What stands behind the parts of a message that is to be cut.
    pub fn begin(&self, bytes: usize) -> Tail {
        Tail {
            message: self.messages.fetch_add(1, Relaxed),
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
        let of = self.ranks.entry(source.0).or_default();
        if kind & kinds::CUT != 0 {
            let head = bytes.to_vec();
            of.behind
                .push_back(Behind::Cut(kind & !kinds::CUT, tail, head));
            return Ok(None);
        }
        let growing = match of.growing.get_mut(&tail.message) {
            Some(growing) => growing,
            None => {
                // What the message is stands behind it.
                let no_memory = |_| BadRun::NoMemory(total);
                let mut bytes = long_buffers::take(total + HEAD_BYTES).map_err(no_memory)?;
                bytes.resize(total, 0);
                let new = Growing { bytes, come: 0 };
                of.growing.entry(tail.message).or_insert(new)
            }
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
        if let Some(Behind::Cut(_, tail, _)) = of.behind.front() {
            match of.growing.get(&tail.message) {
                Some(growing) if growing.bytes.len() as u64 != tail.bytes => {
                    return Err(no_value(
                        source,
                        "a message of another length than its parts",
                    ));
                }
                Some(growing) if growing.come == growing.bytes.len() => {}
                _ => return Ok(None),
            }
        }
        let next = match of.behind.pop_front() {
            Some(Behind::Record(kind, record)) => Some((kind, record)),
            Some(Behind::Cut(kind, tail, head)) => {
                of.growing.remove(&tail.message).map(|growing| {
                    let mut record = growing.bytes;
                    record.extend_from_slice(&head);
                    (kind, record)
                })
            }
            None => None,
        };
        if of.behind.is_empty() && of.growing.is_empty() {
            self.ranks.remove(&source.0);
        }
        Ok(next)
    }
}

/// A record in memory of its own.
fn owned(record: Payload<'_>) -> Result<Vec<u8>, BadRun> {
    match record {
        Payload::Owned(record) => Ok(record),
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
