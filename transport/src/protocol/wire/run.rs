//! Runs: records of one source for one final rank under one header, whole or a fragment of a long
//! record.

use super::shared::SHARED_RECORD_BYTES;
use crate::memory::line;
use crate::ring::census::COLOURS;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a [`RunHeader`].
pub const RUN_HEADER_BYTES: usize = 16;
/// Bytes of a [`RecordHeader`].
pub const RECORD_HEADER_BYTES: usize = 8;
/// Bytes of a [`FragmentHeader`].
pub const FRAGMENT_HEADER_BYTES: usize = 16;

/// Flags of a run.
pub mod run_flags {
    /// First fragment of a record that is longer than a frame; the payload starts with a
    /// `FragmentHeader`.
    pub const FIRST: u16 = 1;
    /// Later fragment of such a record.
    pub const MORE: u16 = 2;
    /// Last fragment of such a record.
    pub const LAST: u16 = 4;
    /// A run for all ranks, which every place that it passes copies to the next ones. Its target is
    /// its source.
    pub const BROADCAST: u16 = 8;
    /// No run but a mark: what came before it over this edge belongs to one round, and what follows
    /// to the next. It ends where the edge does; its source is the edge's one end, its target the
    /// other.
    pub const MARK: u16 = 16;
    /// In the place of a last fragment: the record ends here and is none, since its source is gone.
    /// There is nothing in it.
    pub const CUT: u16 = 32;
    /// A record that lies in memory which the ranks of this node share: there is but where,
    /// a [`SharedRecord`](crate::protocol::wire::SharedRecord).
    pub const SHARED: u16 = 64;
    /// Those of fragments.
    pub const FRAGMENT: u16 = FIRST | MORE | LAST | CUT;
    /// Beside the flags, the colour of what its source sends: see [`crate::ring::census`].
    pub const COLOUR: u16 = 3 << 14;
}

const _: () = assert!(run_flags::COLOUR >> 14 == COLOURS as u16 - 1);

/// Header of a run, 16 bytes: records of one source for one final rank. The first word is the
/// ring's frame length.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct RawRunHeader {
    length: U32,
    target: U32,
    source: U32,
    count: U16,
    flags: U16,
}

const _: () = assert!(size_of::<RawRunHeader>() == RUN_HEADER_BYTES);

/// Header of a run: records of one source for one final rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunHeader {
    /// Final rank; of a broadcast, which has many, its source.
    pub target: u32,
    /// Rank that sent the records.
    pub source: u32,
    /// Records in the run; for a fragment 0, for the last one 1.
    pub count: u16,
    /// See [`run_flags`].
    pub flags: u16,
}

impl RunHeader {
    /// Writes the header of a run of `length` bytes, header included.
    ///
    /// # Panics
    /// When `target` is shorter than 16 bytes.
    pub fn write(&self, length: usize, target: &mut [u8]) {
        let raw = RawRunHeader {
            length: U32::new(length as u32),
            target: self.target.into(),
            source: self.source.into(),
            count: self.count.into(),
            flags: self.flags.into(),
        };
        target[..RUN_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    }
}

/// Where the colour stands in a run's header: in the upper bits of the last byte of its flags.
const COLOUR_BYTE: usize = RUN_HEADER_BYTES - 1;
const COLOUR_SHIFT: u32 = 6;

/// Gives a run that was written a colour.
///
/// # Panics
/// When `frame` is shorter than a run's header.
pub fn paint(frame: &mut [u8], colour: usize) {
    debug_assert!(colour < COLOURS);
    frame[COLOUR_BYTE] |= (colour as u8) << COLOUR_SHIFT;
}

/// A run in place: its checked header, its payload, and the whole frame for relays.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The header.
    pub header: RunHeader,
    /// Everything behind the header.
    pub payload: &'a [u8],
    /// Header and payload, as a relay copies them.
    pub frame: &'a [u8],
}

/// Why bytes are not a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRun {
    /// Length not a multiple of 8, below a header, or beyond what is there.
    #[error("run length {length} with {present} bytes present")]
    Length {
        /// By the header.
        length: u32,
        /// Bytes that are there.
        present: usize,
    },
    /// A flag that does not exist or contradicts another.
    #[error("run flags {0:#06x}")]
    Flags(u16),
    /// A rank outside the job.
    #[error("rank {rank} in a job of {size}")]
    Rank {
        /// By the header.
        rank: u32,
        /// Ranks of the job.
        size: u32,
    },
    /// Records do not fill the run as the count says.
    #[error("run of {count} records does not fit {bytes} bytes of payload")]
    Records {
        /// By the header.
        count: u16,
        /// Payload bytes.
        bytes: usize,
    },
    /// A record for which this process has no memory.
    #[error("no memory for a record of {0} bytes")]
    NoMemory(usize),
    /// A broadcast to elements that is not kept for those that may still come.
    #[error("broadcasts of a step need {bytes} bytes, of {limit} that they may take")]
    Unkept {
        /// What they need with this one.
        bytes: usize,
        /// What they may take.
        limit: usize,
    },
    /// A record that lies where none can, or not where its header says.
    #[error("record in shared memory: {0}")]
    Shared(&'static str),
    /// A fragment without a beginning, or a beginning inside another record.
    #[error("fragment out of place: {0}")]
    Fragment(&'static str),
    /// A record whose bytes are no value, as its stream has them.
    #[error("{0}")]
    Value(&'static str),
    /// An item for an element of an array that no rank has.
    #[error("item for element {0}, which no rank has")]
    Element(u64),
    /// A run that this endpoint has no business with.
    #[error("run for rank {0} arrived where no route leads it")]
    Route(u32),
    /// The mark of a round that this edge cannot have.
    #[error(
        "mark of a round from rank {source_rank} to rank {target}, over an edge that it is not for"
    )]
    Mark {
        /// By the header.
        source_rank: u32,
        /// By the header.
        target: u32,
    },
    /// A broadcast that no copy can bring here.
    #[error("broadcast of rank {source_rank}: {why}")]
    Broadcast {
        /// By the header.
        source_rank: u32,
        /// What cannot be.
        why: &'static str,
    },
}

impl<'a> Run<'a> {
    /// Takes the first run of `bytes`, checked against the job's size, and what is behind it.
    ///
    /// # Errors
    /// [`BadRun`], with the value that is wrong.
    pub fn split(bytes: &'a [u8], job_size: u32) -> Result<(Self, &'a [u8]), BadRun> {
        let (raw, _) = RawRunHeader::ref_from_prefix(bytes).map_err(|_| BadRun::Length {
            length: 0,
            present: bytes.len(),
        })?;
        let length = raw.length.get();
        let bad_length = BadRun::Length {
            length,
            present: bytes.len(),
        };
        if !length.is_multiple_of(8) || (length as usize) < RUN_HEADER_BYTES {
            return Err(bad_length);
        }
        let (frame, rest) = bytes.split_at_checked(length as usize).ok_or(bad_length)?;
        let header = RunHeader {
            target: raw.target.get(),
            source: raw.source.get(),
            count: raw.count.get(),
            flags: raw.flags.get() & !run_flags::COLOUR,
        };
        if !matches!(
            header.flags,
            0 | run_flags::FIRST
                | run_flags::MORE
                | run_flags::LAST
                | run_flags::CUT
                | run_flags::BROADCAST
                | run_flags::MARK
                | run_flags::SHARED
        ) {
            return Err(BadRun::Flags(header.flags));
        }
        let is_mark = header.flags == run_flags::MARK;
        let is_empty = header.count == 0 && frame.len() == RUN_HEADER_BYTES;
        let is_one = header.count == 1 && frame.len() == RUN_HEADER_BYTES + SHARED_RECORD_BYTES;
        if header.flags & run_flags::FRAGMENT == 0 && (header.count == 0) != is_mark
            || (is_mark || header.flags == run_flags::CUT) && !is_empty
            || header.flags == run_flags::SHARED && !is_one
        {
            return Err(BadRun::Records {
                count: header.count,
                bytes: frame.len() - RUN_HEADER_BYTES,
            });
        }
        // The ends of a mark are endpoints, which whoever hears it compares with those of its edge.
        for rank in [header.target, header.source] {
            if rank >= job_size && !is_mark {
                return Err(BadRun::Rank {
                    rank,
                    size: job_size,
                });
            }
        }
        if header.flags == run_flags::BROADCAST && header.target != header.source {
            return Err(BadRun::Broadcast {
                source_rank: header.source,
                why: "a target that is not its source",
            });
        }
        Ok((
            Self {
                header,
                payload: &frame[RUN_HEADER_BYTES..],
                frame,
            },
            rest,
        ))
    }

    /// The colour of the run.
    pub fn colour(&self) -> usize {
        usize::from(self.frame[COLOUR_BYTE] >> COLOUR_SHIFT)
    }

    /// Whether the run is a piece of a record that is longer than a frame.
    pub fn is_fragment(&self) -> bool {
        self.header.flags & run_flags::FRAGMENT != 0
    }

    /// Whether it is the last piece of such a record, or takes its place.
    pub fn is_last(&self) -> bool {
        self.header.flags & (run_flags::LAST | run_flags::CUT) != 0
    }

    /// Whether its record lies in memory that the ranks of a node share.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.header.flags & run_flags::SHARED != 0
    }

    /// Whether it is a mark, or for all ranks: what few runs are.
    #[inline]
    pub fn is_special(&self) -> bool {
        self.header.flags & (run_flags::BROADCAST | run_flags::MARK) != 0
    }

    /// Whether it is a mark.
    pub fn is_mark(&self) -> bool {
        self.header.flags & run_flags::MARK != 0
    }

    /// Whether the run is for all ranks.
    pub fn is_broadcast(&self) -> bool {
        self.header.flags & run_flags::BROADCAST != 0
    }

    /// Records of a byte run.
    pub fn records(&self) -> Records<'a> {
        Records {
            left: self.header.count,
            bytes: self.payload,
            fetched: 0,
        }
    }
}

/// Header of one record in a byte run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RecordHeader {
    /// The application's 32 bits.
    pub kind: U32,
    /// Payload bytes; the record is padded to 8.
    pub length: U32,
}

/// Records whose lines are on their way while one is handled. Where a record begins is known only
/// from the length of the one before, and that mostly lies in another core's cache.
const FETCHED_AHEAD: usize = 8;

/// Walks the records of a byte run; ends with an error where they do not fit the run.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    left: u16,
    bytes: &'a [u8],
    /// Lines are being fetched of those that begin before so many bytes from here on.
    fetched: usize,
}

impl Records<'_> {
    /// Fetches where the next ones begin, if they are as long as this one, which has so many bytes.
    #[inline]
    fn fetch_ahead(&mut self, length: usize) {
        let step = length.max(line::BYTES);
        let until = (FETCHED_AHEAD * step).min(self.bytes.len());
        // Longer ones before have fetched few of these lines.
        self.fetched = self.fetched.min(FETCHED_AHEAD * step);
        while self.fetched < until {
            line::fetch(self.bytes.as_ptr().wrapping_add(self.fetched));
            self.fetched += step;
        }
        self.fetched = self.fetched.saturating_sub(length);
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(u32, &'a [u8]), BadRun>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let bad = BadRun::Records {
            count: self.left,
            bytes: self.bytes.len(),
        };
        let record = RecordHeader::ref_from_prefix(self.bytes)
            .ok()
            .and_then(|(header, rest)| {
                let length = header.length.get() as usize;
                let payload = rest.get(..length)?;
                let padded = length.checked_add(7)? & !7;
                Some((header.kind.get(), payload, rest.get(padded..)?))
            });
        match record {
            Some((kind, payload, rest)) => {
                self.fetch_ahead(self.bytes.len() - rest.len());
                self.left -= 1;
                self.bytes = rest;
                Some(Ok((kind, payload)))
            }
            None => {
                self.left = 0;
                Some(Err(bad))
            }
        }
    }
}

/// Beginning of a fragmented record's first fragment.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FragmentHeader {
    /// Length of the whole record in bytes.
    pub total: U64,
    /// The application's 32 bits.
    pub kind: U32,
    /// Zero.
    pub reserved: U32,
}

const _: () = assert!(size_of::<FragmentHeader>() == FRAGMENT_HEADER_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::align8;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512), size in 1u32..100) {
            let mut rest = &bytes[..];
            while let Ok((run, behind)) = Run::split(rest, size) {
                prop_assert!(run.records().filter(Result::is_err).count() <= 1);
                rest = behind;
            }
        }

        #[test]
        fn hostile_runs_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 16..256), length in 0u32..64, count: u16) {
            bytes[..4].copy_from_slice(&(length * 8).to_le_bytes());
            bytes[4..12].fill(0);
            bytes[12..14].copy_from_slice(&count.to_le_bytes());
            bytes[14..16].fill(0);
            if let Ok((run, _)) = Run::split(&bytes, 1) {
                let read: usize = run.records().filter_map(Result::ok).map(|(_, p)| p.len()).sum();
                prop_assert!(read <= run.payload.len());
            }
        }

        /// Of all flags, ranks and counts only those that can be together are taken.
        #[test]
        fn a_broadcast_is_a_whole_run_that_names_its_source_twice(flags in 0u16..32, target in 0u32..4, source in 0u32..4, count in 0u16..2) {
            let mut frame = [0u8; RUN_HEADER_BYTES + 8];
            RunHeader { target, source, count, flags }.write(frame.len(), &mut frame);
            let whole = flags == 0 && count > 0;
            let fragment = matches!(flags, run_flags::FIRST | run_flags::MORE | run_flags::LAST);
            let broadcast = flags == run_flags::BROADCAST && count > 0 && target == source;
            match Run::split(&frame, 3) {
                Ok((run, _)) => {
                    prop_assert!(target < 3 && source < 3 && (whole || fragment || broadcast));
                    prop_assert_eq!((run.is_fragment(), run.is_broadcast()), (fragment, broadcast));
                }
                Err(_) => prop_assert!(target >= 3 || source >= 3 || !(whole || fragment || broadcast)),
            }
        }

        #[test]
        fn a_run_of_any_colour_is_the_same_run(
            colour in 0..COLOURS, target in 0u32..4, count in 1u16..4,
        ) {
            let mut frame = [0u8; RUN_HEADER_BYTES + 24];
            let header = RunHeader { target, source: 3, count, flags: 0 };
            header.write(frame.len(), &mut frame);
            paint(&mut frame, colour);
            let (run, rest) = Run::split(&frame, 4).unwrap();
            prop_assert_eq!((run.header, run.colour(), rest.len()), (header, colour, 0));
        }

        #[test]
        fn some_runs_have_one_length(
            bit in 0u32..8, more in 0u16..4, count in 0u16..3, payload in 0usize..5,
        ) {
            let flags = 1 << bit | more >> 1;
            let bytes = RUN_HEADER_BYTES + 8 * payload;
            let mut frame = [0u8; RUN_HEADER_BYTES + 8 * 4];
            RunHeader { target: 1, source: 2, count, flags }.write(bytes, &mut frame);
            let run = Run::split(&frame[..bytes], 4);
            if flags == run_flags::CUT {
                let is_one = |run: &Run<'_>| run.is_fragment() && run.is_last() && !run.is_special();
                prop_assert_eq!(run.is_ok_and(|(run, _)| is_one(&run)), count == 0 && payload == 0);
            } else if flags == run_flags::MARK {
                prop_assert_eq!(run.is_ok_and(|(run, _)| run.is_mark() && run.is_special()), count == 0 && payload == 0);
            } else if flags == run_flags::SHARED {
                let is_else = |run: &Run<'_>| run.is_fragment() || run.is_special();
                let is_one = |run: &Run<'_>| run.is_shared() && !is_else(run);
                prop_assert_eq!(run.is_ok_and(|(run, _)| is_one(&run)), count == 1 && payload == 3);
            } else {
                prop_assert!(!run.is_ok_and(|(run, _)| run.is_mark() || run.is_shared()));
            }
        }

        #[test]
        fn byte_run_round_trip(records in proptest::collection::vec((any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40)), 1..20)) {
            let mut frame = vec![0u8; RUN_HEADER_BYTES];
            for (kind, payload) in &records {
                let header = RecordHeader { kind: (*kind).into(), length: U32::new(payload.len() as u32) };
                frame.extend_from_slice(header.as_bytes());
                frame.extend_from_slice(payload);
                frame.resize(align8(frame.len()), 0);
            }
            let length = frame.len();
            RunHeader { target: 3, source: 4, count: records.len() as u16, flags: 0 }.write(length, &mut frame);
            let (run, rest) = Run::split(&frame, 5).unwrap();
            prop_assert!(rest.is_empty());
            let read: Vec<_> = run.records().map(|r| r.map(|(k, p)| (k, p.to_vec()))).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(read, records);
        }
    }
}
