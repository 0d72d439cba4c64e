//! Batches: the header of everything that crosses the fabric, with the credit counters of its link,
//! and what batches carry that are no runs.

use std::fmt;
use std::num::NonZeroU16;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::VERSION;
use super::run::RUN_HEADER_BYTES;
use crate::topology::EndpointId;

const MAGIC: u16 = u16::from_le_bytes(*b"3h");

/// Which time it is that an endpoint has joined its job: 1 at first, modulo 2^16 without 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch(NonZeroU16);

impl Epoch {
    /// That of an endpoint that has joined once.
    pub const FIRST: Self = Self(NonZeroU16::MIN);

    /// The epoch after this one.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).unwrap_or(NonZeroU16::MIN))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bytes of a [`BatchHeader`].
pub const BATCH_HEADER_BYTES: usize = 64;

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
    /// As [`BatchKind::Control`], and a request: shared slots that the peer holds unused are wanted
    /// by others.
    Recall = 5,
    /// A [`RecordAnnouncement`]: one long record that waits in the sender's memory.
    Record = 6,
}

/// Header of everything that crosses the fabric, 64 bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct RawBatchHeader {
    magic: U16,
    epoch: U16,
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
    stage: u8,
    reserved: u8,
    check: U32,
}

const _: () = assert!(size_of::<RawBatchHeader>() == BATCH_HEADER_BYTES);

/// Credit counters of one direction of a link. All are absolute, so that a lost, doubled or
/// overtaken update is harmless.
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
    /// Epoch of the sending endpoint.
    pub epoch: Epoch,
    /// The sending endpoint.
    pub source: EndpointId,
    /// Bytes behind the header.
    pub bytes: u32,
    /// Stage of the link between the two endpoints: their engines say what the numbers mean.
    pub stage: u8,
    /// Number of the batch on its link, from 0. For a segment: the sequence of its announcement. For
    /// a control message: the number of the next batch.
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
    #[error("magic {0:#06x} is not trihop's")]
    Magic(u16),
    /// Another version of the wire format.
    #[error("wire version {theirs}, this process speaks {VERSION}")]
    Version {
        /// The peer's.
        theirs: u8,
    },
    /// Another job, or another start of this one.
    #[error("job cookie {0:#018x} is not this job's")]
    Cookie(u64),
    /// Something where nothing belongs.
    #[error("{0:#04x} in a reserved byte")]
    Reserved(u8),
    /// The epoch that nobody has.
    #[error("epoch 0")]
    Epoch,
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

/// Mixes the header's words (the check word excepted): finds truncation and stray writes,
/// authenticates nobody.
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
            epoch: self.epoch.0.get().into(),
            version: VERSION,
            kind: self.kind as u8,
            stream: self.stream.into(),
            cookie: cookie.into(),
            source: self.source.0.into(),
            bytes: self.bytes.into(),
            sequence: self.sequence.into(),
            accepted: c.accepted.into(),
            small_granted: c.small_granted.into(),
            large_granted: c.large_granted.into(),
            large_returned: c.large_returned.into(),
            controls_seen: c.controls_seen.into(),
            wanted: c.wanted.into(),
            stage: self.stage,
            reserved: 0,
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
        let (raw, rest) = RawBatchHeader::ref_from_prefix(message)
            .map_err(|_| BadHeader::Short(message.len()))?;
        if raw.magic.get() != MAGIC {
            return Err(BadHeader::Magic(raw.magic.get()));
        }
        if raw.version != VERSION {
            return Err(BadHeader::Version {
                theirs: raw.version,
            });
        }
        let head: &[u8; BATCH_HEADER_BYTES] = message
            .first_chunk()
            .expect("ref_from_prefix proved the length");
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
        if raw.reserved != 0 {
            return Err(BadHeader::Reserved(raw.reserved));
        }
        let epoch = NonZeroU16::new(raw.epoch.get()).map(Epoch);
        let epoch = epoch.ok_or(BadHeader::Epoch)?;
        let kind = match raw.kind {
            1 => BatchKind::Eager,
            2 => BatchKind::Announce,
            3 => BatchKind::Control,
            4 => BatchKind::Segment,
            5 => BatchKind::Recall,
            6 => BatchKind::Record,
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
            epoch,
            source: EndpointId(raw.source.get()),
            bytes,
            stage: raw.stage,
            sequence: raw.sequence.get(),
            counters,
        };
        Ok((header, payload))
    }
}

/// Payload of a [`BatchKind::Announce`] batch: where the announced message (header included) can be
/// read.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
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

/// Payload of a [`BatchKind::Record`] batch: where the record lies, and whose it is. The receiver
/// takes it in parts, each of as many bytes as it has room for, each byte once.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RecordAnnouncement {
    /// Where its bytes are, which are the record's alone.
    pub memory: Announcement,
    /// Header of the run that says, inside of a node, where it lies.
    pub run: [u8; RUN_HEADER_BYTES],
    /// The application's 32 bits.
    pub kind: U32,
    /// Zero.
    pub reserved: U32,
}

// With its header it fits the shortest slot, and a notice.
const _: () = assert!(BATCH_HEADER_BYTES + size_of::<RecordAnnouncement>() <= 128);

/// Entry of a [`BatchKind::Control`] message: of what was announced, these bytes may be sent with
/// this segment tag.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ClearToSend {
    /// Sequence of the announcement, modulo 2^32.
    pub sequence: U32,
    /// Number of the receive that waits for it.
    pub slot: U32,
    /// Those from here on, in units of [`PART_UNIT_BYTES`].
    pub first: U32,
    /// So many.
    pub bytes: U32,
}

/// Parts of a record begin at multiples of this.
pub const PART_UNIT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = BatchHeader> {
        let kind = prop_oneof![
            Just(BatchKind::Eager),
            Just(BatchKind::Announce),
            Just(BatchKind::Control),
            Just(BatchKind::Segment),
            Just(BatchKind::Recall),
            Just(BatchKind::Record)
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
                |(
                    accepted,
                    small_granted,
                    large_granted,
                    large_returned,
                    controls_seen,
                    wanted,
                )| Counters {
                    accepted,
                    small_granted,
                    large_granted,
                    large_returned,
                    controls_seen,
                    wanted,
                },
            );
        let epoch = any::<NonZeroU16>().prop_map(Epoch);
        let ends = (any::<u16>(), epoch, any::<u32>(), any::<u8>());
        (kind, ends, 0u32..64, any::<u64>(), counters).prop_map(
            |(kind, (stream, epoch, source, stage), bytes, sequence, counters)| BatchHeader {
                kind,
                stream,
                epoch,
                source: EndpointId(source),
                bytes,
                stage,
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
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = BatchHeader::parse(&bytes, 0);
        }
    }

    /// A header without payload, of the job with cookie 11.
    fn lone_header() -> [u8; BATCH_HEADER_BYTES] {
        let header = BatchHeader {
            kind: BatchKind::Eager,
            stream: 1,
            epoch: Epoch::FIRST,
            source: EndpointId(2),
            bytes: 0,
            stage: 0,
            sequence: 0,
            counters: Counters::default(),
        };
        let mut message = [0; BATCH_HEADER_BYTES];
        header.write(11, &mut message);
        message
    }

    #[test]
    fn a_kind_that_does_not_exist_is_named() {
        for kind in (0..=u8::MAX).filter(|kind| !(1..=6).contains(kind)) {
            let mut message = lone_header();
            message[5] = kind;
            let check = check_word(&message).to_le_bytes();
            message[BATCH_HEADER_BYTES - 4..].copy_from_slice(&check);
            assert_eq!(BatchHeader::parse(&message, 11), Err(BadHeader::Kind(kind)));
        }
    }

    #[test]
    fn what_stands_in_a_reserved_byte_is_named() {
        for byte in 1..=u8::MAX {
            let mut message = lone_header();
            let at = BATCH_HEADER_BYTES - 5;
            assert_eq!(message[at], 0);
            message[at] = byte;
            let check = check_word(&message).to_le_bytes();
            message[BATCH_HEADER_BYTES - 4..].copy_from_slice(&check);
            let refused = Err(BadHeader::Reserved(byte));
            assert_eq!(BatchHeader::parse(&message, 11), refused);
        }
    }

    #[test]
    fn epoch_0_is_nobodys_and_is_not_counted_to() {
        let mut message = lone_header();
        message[2..4].fill(0);
        let check = check_word(&message).to_le_bytes();
        message[BATCH_HEADER_BYTES - 4..].copy_from_slice(&check);
        assert_eq!(BatchHeader::parse(&message, 11), Err(BadHeader::Epoch));
        assert_eq!(Epoch::FIRST.next(), Epoch(NonZeroU16::new(2).unwrap()));
        assert_eq!(Epoch(NonZeroU16::MAX).next(), Epoch::FIRST);
    }

    #[test]
    fn another_job_and_another_version_are_named() {
        let mut message = lone_header();
        assert_eq!(BatchHeader::parse(&message, 12), Err(BadHeader::Cookie(11)));
        message[4] = VERSION + 1;
        assert_eq!(
            BatchHeader::parse(&message, 11),
            Err(BadHeader::Version {
                theirs: VERSION + 1
            })
        );
    }
}
