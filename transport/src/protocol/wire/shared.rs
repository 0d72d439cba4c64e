//! Where a record lies that its ranks' node shares.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ring::BlockPlace;

/// Bytes of a [`SharedRecord`].
pub const SHARED_RECORD_BYTES: usize = size_of::<RawSharedRecord>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSharedRecord {
    end: U32,
    kind: U32,
    offset: U64,
    word: U64,
}

/// Says where a record lies, in the place of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedRecord {
    /// The endpoint whose inbox it lies behind.
    pub end: u32,
    /// The application's 32 bits.
    pub kind: u32,
    /// Where it lies there.
    pub place: BlockPlace,
}

impl SharedRecord {
    /// Writes it.
    ///
    /// # Panics
    /// When `target` is shorter than [`SHARED_RECORD_BYTES`].
    pub fn write(&self, target: &mut [u8]) {
        let raw = RawSharedRecord {
            end: self.end.into(),
            kind: self.kind.into(),
            offset: self.place.offset.into(),
            word: self.place.word.into(),
        };
        target[..SHARED_RECORD_BYTES].copy_from_slice(raw.as_bytes());
    }

    /// Back from its bytes; `None` where these are more, or fewer. Whether anything lies there is
    /// for who claims it to see.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw = RawSharedRecord::ref_from_bytes(bytes).ok()?;
        Some(Self {
            end: raw.end.get(),
            kind: raw.kind.get(),
            place: BlockPlace {
                offset: raw.offset.get(),
                word: raw.word.get(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn what_is_written_is_read(end: u32, kind: u32, offset: u64, word: u64, more in 0usize..8) {
            let record = SharedRecord { end, kind, place: BlockPlace { offset, word } };
            let mut bytes = [0xa5; SHARED_RECORD_BYTES + 8];
            record.write(&mut bytes);
            let words = [end.to_le_bytes(), kind.to_le_bytes()].concat();
            let longs = [offset.to_le_bytes(), word.to_le_bytes()].concat();
            prop_assert_eq!(&bytes[..SHARED_RECORD_BYTES], &[words, longs].concat()[..]);
            prop_assert_eq!(bytes[SHARED_RECORD_BYTES..].to_vec(), [0xa5; 8]);
            let read = SharedRecord::read(&bytes[..SHARED_RECORD_BYTES + more]);
            prop_assert_eq!(read, (more == 0).then_some(record));
        }
    }
}
