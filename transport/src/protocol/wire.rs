//! Headers as they travel: a batch header per send, a run header per run, a record header per message of a byte run.
//!
//! All integers are little-endian, everything is aligned to 8 bytes. Parsing checks once and yields a type that
//! needs no further check.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the wire format; both ends of a link must have the same.
pub const VERSION: u8 = 3;

const MAGIC: u32 = u32::from_le_bytes(*b"3hop");

/// Bytes of a [`BatchHeader`].
pub const BATCH_HEADER_BYTES: usize = 64;
/// Bytes of a [`RunHeader`].
pub const RUN_HEADER_BYTES: usize = 16;
/// Bytes of a [`RecordHeader`].
pub const RECORD_HEADER_BYTES: usize = 8;
/// Bytes of a [`FragmentHeader`].
pub const FRAGMENT_HEADER_BYTES: usize = 16;

/// Rounds up to the alignment of everything on the wire.
pub const fn align8(bytes: usize) -> usize {
    (bytes + 7) & !7
}

/// What a batch carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BatchKind {
    /// Runs, right behind the header.
    Eager = 1,
    /// An [`Announcement`] of runs that wait in the sender's memory.
    Announce = 2,
    /// Credit counters, and clear-to-send notices behind the header; outside the link sequence.
    Control = 3,
    /// Runs that were announced, sent after a clear-to-send; outside the link sequence.
    Segment = 4,
}

/// Header of everything that crosses the fabric, 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBatchHeader {
    magic: U32,
    version: u8,
    kind: u8,
    stream: U16,
    cookie: U64,
    source: U32,
    bytes: U32,
    sequence: U64,
    accepted: U64,
    small_granted: U32,
    large_granted: U32,
    large_returned: U32,
    controls_seen: U32,
    wanted: U16,
    link: U16,
    check: U32,
}

const _: () = assert!(size_of::<RawBatchHeader>() == BATCH_HEADER_BYTES);

/// Credit counters of one direction of a link. All are absolute, so that a lost, doubled or overtaken update is harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Batches of yours that I have taken completely into my own bounded queues.
    pub accepted: u64,
    /// Small slots that I have granted to you since the start (modulo 2^32).
    pub small_granted: u32,
    /// Large slots that I have granted to you since the start (modulo 2^32).
    pub large_granted: u32,
    /// Large slots that you granted and that I give back unused (modulo 2^32).
    pub large_returned: u32,
    /// Control messages of yours that I have taken (modulo 2^32).
    pub controls_seen: u32,
    /// Batches that wait here for credit towards you, at most 65,535.
    pub wanted: u16,
}

/// A checked batch header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// What follows.
    pub kind: BatchKind,
    /// Stream that it belongs to.
    pub stream: u16,
    /// Rank of the sending endpoint.
    pub source: u32,
    /// Bytes behind the header.
    pub bytes: u32,
    /// Which of the links between the two endpoints; their engines say what the numbers mean.
    pub link: u16,
    /// Number of the batch on its link, from 0. For a segment: the sequence of its announcement.
    pub sequence: u64,
    /// Credit counters of the sender.
    pub counters: Counters,
}

/// Why bytes are not a batch header of this job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Fewer bytes than a header has.
    #[error("{0} bytes are too short for a header")]
    Short(usize),
    /// Not a header of trihop at all.
    #[error("magic {0:#010x} is not trihop's")]
    Magic(u32),
    /// Another version of the wire format.
    #[error("wire version {theirs}, this process speaks {VERSION}")]
    Version {
        /// The peer's.
        theirs: u8,
    },
    /// Another job, or another start of this one.
    #[error("job cookie {0:#018x} is not this job's")]
    Cookie(u64),
    /// A kind that does not exist.
    #[error("unknown batch kind {0}")]
    Kind(u8),
    /// The check word does not fit the header.
    #[error("header check failed: {theirs:#010x} instead of {ours:#010x}")]
    Check {
        /// What the fields add up to.
        ours: u32,
        /// What the header says.
        theirs: u32,
    },
    /// More payload announced than arrived.
    #[error("header announces {announced} bytes, {present} arrived")]
    Length {
        /// By the header.
        announced: u32,
        /// In the message.
        present: usize,
    },
}

/// Mixes the header's words (the check word excepted): finds truncation and stray writes, authenticates nobody.
fn check_word(bytes: &[u8; BATCH_HEADER_BYTES]) -> u32 {
    let mut mixed = 0x9e37_79b9_7f4a_7c15_u64;
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let mut value = u64::from_le_bytes(word.try_into().expect("chunks of 8"));
        if index == BATCH_HEADER_BYTES / 8 - 1 {
            value &= 0xffff_ffff; // the upper half is the check word itself
        }
        mixed = (mixed ^ value)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_left(29);
    }
    (mixed ^ (mixed >> 32)) as u32
}

impl BatchHeader {
    /// Writes the header into the first 64 bytes of `target`.
    ///
    /// # Panics
    /// When `target` is shorter than 64 bytes.
    pub fn write(&self, cookie: u64, target: &mut [u8]) {
        let c = &self.counters;
        let mut raw = RawBatchHeader {
            magic: MAGIC.into(),
            version: VERSION,
            kind: self.kind as u8,
            stream: self.stream.into(),
            cookie: cookie.into(),
            source: self.source.into(),
            bytes: self.bytes.into(),
            sequence: self.sequence.into(),
            accepted: c.accepted.into(),
            small_granted: c.small_granted.into(),
            large_granted: c.large_granted.into(),
            large_returned: c.large_returned.into(),
            controls_seen: c.controls_seen.into(),
            wanted: c.wanted.into(),
            link: self.link.into(),
            check: U32::ZERO,
        };
        let bytes: [u8; BATCH_HEADER_BYTES] = zerocopy::transmute!(raw);
        raw.check = check_word(&bytes).into();
        target[..BATCH_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    }

    /// Checks a whole message and returns its header and the payload that the header announces.
    ///
    /// # Errors
    /// [`BadHeader`], with the value that is wrong.
    pub fn parse(message: &[u8], cookie: u64) -> Result<(Self, &[u8]), BadHeader> {
        let (raw, rest) =
            RawBatchHeader::ref_from_prefix(message).map_err(|_| BadHeader::Short(message.len()))?;
        if raw.magic.get() != MAGIC {
            return Err(BadHeader::Magic(raw.magic.get()));
        }
        if raw.version != VERSION {
            return Err(BadHeader::Version { theirs: raw.version });
        }
        let head: &[u8; BATCH_HEADER_BYTES] =
            message.first_chunk().expect("ref_from_prefix proved the length");
        let ours = check_word(head);
        if raw.check.get() != ours {
            return Err(BadHeader::Check {
                ours,
                theirs: raw.check.get(),
            });
        }
        if raw.cookie.get() != cookie {
            return Err(BadHeader::Cookie(raw.cookie.get()));
        }
        let kind = match raw.kind {
            1 => BatchKind::Eager,
            2 => BatchKind::Announce,
            3 => BatchKind::Control,
            4 => BatchKind::Segment,
            other => return Err(BadHeader::Kind(other)),
        };
        let bytes = raw.bytes.get();
        let payload = rest.get(..bytes as usize).ok_or(BadHeader::Length {
            announced: bytes,
            present: rest.len(),
        })?;
        let counters = Counters {
            accepted: raw.accepted.get(),
            small_granted: raw.small_granted.get(),
            large_granted: raw.large_granted.get(),
            large_returned: raw.large_returned.get(),
            controls_seen: raw.controls_seen.get(),
            wanted: raw.wanted.get(),
        };
        let header = Self {
            kind,
            stream: raw.stream.get(),
            source: raw.source.get(),
            bytes,
            link: raw.link.get(),
            sequence: raw.sequence.get(),
            counters,
        };
        Ok((header, payload))
    }
}

/// Payload of a [`BatchKind::Announce`] batch: where the announced message (header included) can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Announcement {
    /// Address in the sender's registered memory.
    pub address: U64,
    /// Remote key of that memory.
    pub key: U64,
    /// Length of the message, its header included.
    pub bytes: U32,
    /// 1 when the receiver shall read, 2 when it shall give a clear-to-send.
    pub mover: U32,
}

/// Entry of a [`BatchKind::Control`] message: the announced batch may be sent with this segment tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ClearToSend {
    /// Sequence of the announcement.
    pub sequence: U64,
    /// Number of the receive that waits for it.
    pub slot: U32,
    /// Zero.
    pub reserved: U32,
}

/// Flags of a run.
pub mod run_flags {
    /// First fragment of a record that is longer than a frame; the payload starts with a `FragmentHeader`.
    pub const FIRST: u16 = 1;
    /// Later fragment of such a record.
    pub const MORE: u16 = 2;
    /// Last fragment of such a record.
    pub const LAST: u16 = 4;
    /// A run for all ranks, which every place that it passes copies to the next ones. Its target is its source.
    pub const BROADCAST: u16 = 8;
    /// Those of fragments.
    pub const FRAGMENT: u16 = FIRST | MORE | LAST;
}

/// Header of a run, 16 bytes: records of one source for one final rank. The first word is the ring's frame length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
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
    /// A fragment without a beginning, or a beginning inside another record.
    #[error("fragment out of place: {0}")]
    Fragment(&'static str),
    /// A run that this endpoint has no business with.
    #[error("run for rank {0} arrived where no route leads it")]
    Route(u32),
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
            flags: raw.flags.get(),
        };
        if !matches!(
            header.flags,
            0 | run_flags::FIRST | run_flags::MORE | run_flags::LAST | run_flags::BROADCAST
        ) {
            return Err(BadRun::Flags(header.flags));
        }
        if header.flags & run_flags::FRAGMENT == 0 && header.count == 0 {
            return Err(BadRun::Records {
                count: 0,
                bytes: frame.len() - RUN_HEADER_BYTES,
            });
        }
        for rank in [header.target, header.source] {
            if rank >= job_size {
                return Err(BadRun::Rank { rank, size: job_size });
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

    /// Whether the run is a piece of a record that is longer than a frame.
    pub fn is_fragment(&self) -> bool {
        self.header.flags & run_flags::FRAGMENT != 0
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
        }
    }
}

/// Header of one record in a byte run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    /// The application's 32 bits.
    pub kind: U32,
    /// Payload bytes; the record is padded to 8.
    pub length: U32,
}

/// Walks the records of a byte run; ends with an error where they do not fit the run.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    left: u16,
    bytes: &'a [u8],
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
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
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = BatchHeader> {
        let kind = prop_oneof![
            Just(BatchKind::Eager),
            Just(BatchKind::Announce),
            Just(BatchKind::Control),
            Just(BatchKind::Segment)
        ];
        let counters = (
            any::<u64>(),
            any::<u32>(),
            any::<u32>(),
            any::<u32>(),
            any::<u32>(),
            any::<u16>(),
        )
            .prop_map(
                |(accepted, small_granted, large_granted, large_returned, controls_seen, wanted)| Counters {
                    accepted,
                    small_granted,
                    large_granted,
                    large_returned,
                    controls_seen,
                    wanted,
                },
            );
        let ends = (any::<u16>(), any::<u32>(), any::<u16>());
        (kind, ends, 0u32..64, any::<u64>(), counters).prop_map(
            |(kind, (stream, source, link), bytes, sequence, counters)| BatchHeader {
                kind,
                stream,
                source,
                bytes,
                link,
                sequence,
                counters,
            },
        )
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn batch_header_round_trip(header in header(), cookie: u64) {
            let mut message = vec![7u8; BATCH_HEADER_BYTES + 64];
            header.write(cookie, &mut message);
            let (parsed, payload) = BatchHeader::parse(&message, cookie).unwrap();
            prop_assert_eq!(parsed, header);
            prop_assert_eq!(payload.len(), header.bytes as usize);
        }

        #[test]
        fn one_flipped_bit_in_a_header_is_noticed(header in header(), cookie: u64, bit in 0usize..512) {
            let mut message = vec![0u8; BATCH_HEADER_BYTES + 64];
            header.write(cookie, &mut message);
            message[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(BatchHeader::parse(&message, cookie).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512), size in 1u32..100) {
            let _ = BatchHeader::parse(&bytes, 0);
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

    #[test]
    fn another_job_and_another_version_are_named() {
        let header = BatchHeader {
            kind: BatchKind::Eager,
            stream: 1,
            source: 2,
            bytes: 0,
            link: 0,
            sequence: 0,
            counters: Counters::default(),
        };
        let mut message = vec![0u8; BATCH_HEADER_BYTES];
        header.write(11, &mut message);
        assert_eq!(BatchHeader::parse(&message, 12), Err(BadHeader::Cookie(11)));
        message[4] = 9;
        assert_eq!(
            BatchHeader::parse(&message, 11),
            Err(BadHeader::Version { theirs: 9 })
        );
    }
}
