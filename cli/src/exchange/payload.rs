//! What is inside a message: enough for its receiver to tell that it is the right one, whole and
//! unchanged.

use xxhash_rust::xxh3::xxh3_64;

/// A checksum of what follows (8 bytes), then the upper bits of the message's number (4 bytes). A
/// shorter message has the beginning of it.
pub const HEADER_BYTES: usize = 12;

/// Bits of a message's number that travel as its kind.
pub const NUMBER_BITS: u32 = 31;
/// Those bits.
pub const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

/// Target of a broadcast: the same message for all ranks that get it.
pub const EVERYONE: u32 = u32::MAX;

/// Random bytes that payloads are cut from; a power of two.
const FILLER_BYTES: usize = 64 << 10;

/// Spreads a word over 64 bits (the finaliser of splitmix64).
pub fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A message, as its two ends know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Rank that sends it.
    pub source: u32,
    /// Rank that receives it, or [`EVERYONE`].
    pub target: u32,
    /// How many this source has sent to this target before.
    pub number: u64,
}

/// Contents of all messages of a job.
#[derive(Debug)]
pub struct Contents {
    seed: u64,
    filler: Box<[u8]>,
}

impl Contents {
    /// Contents that follow from a seed.
    pub fn new(seed: u64) -> Self {
        let words = (0..FILLER_BYTES as u64 / 8).map(|at| mixed(seed ^ mixed(at + 1)));
        Self {
            seed,
            filler: words.flat_map(u64::to_le_bytes).collect(),
        }
    }

    /// A random word for each message, the same at both ends.
    pub fn key(&self, message: Identity) -> u64 {
        let pair = u64::from(message.source) << 32 | u64::from(message.target);
        mixed(
            mixed(pair ^ self.seed)
                .wrapping_add(message.number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        )
    }

    /// Fills `space`, which has the message's length.
    pub fn write(&self, message: Identity, space: &mut [u8]) {
        if space.len() > HEADER_BYTES {
            let mut rest = &mut space[HEADER_BYTES..];
            let mut from = self.key(message) as usize % FILLER_BYTES;
            while !rest.is_empty() {
                let piece = rest.len().min(FILLER_BYTES - from);
                let (now, later) = rest.split_at_mut(piece);
                now.copy_from_slice(&self.filler[from..from + piece]);
                (rest, from) = (later, 0);
            }
        }
        let header = self.header(message, space.get(HEADER_BYTES..).unwrap_or(&[]));
        let head = space.len().min(HEADER_BYTES);
        space[..head].copy_from_slice(&header[..head]);
    }

    /// Whether `bytes` are this message's, as far as so many bytes can tell.
    pub fn is_right(&self, message: Identity, bytes: &[u8]) -> bool {
        let header = self.header(message, bytes.get(HEADER_BYTES..).unwrap_or(&[]));
        let head = bytes.len().min(HEADER_BYTES);
        bytes[..head] == header[..head]
    }

    fn header(&self, message: Identity, rest: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let checksum = xxh3_64(rest) ^ mixed(self.key(message));
        header[..8].copy_from_slice(&checksum.to_le_bytes());
        header[8..].copy_from_slice(&((message.number >> NUMBER_BITS) as u32).to_le_bytes());
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTHS: [usize; 9] = [0, 1, 7, 8, 11, 12, 13, 4096, 3 * FILLER_BYTES + 5];

    fn written(contents: &Contents, message: Identity, bytes: usize) -> Vec<u8> {
        let mut space = vec![0xEE; bytes];
        contents.write(message, &mut space);
        space
    }

    #[test]
    fn what_is_written_is_right_at_every_length() {
        let contents = Contents::new(7);
        for bytes in LENGTHS {
            let message = Identity {
                source: 3,
                target: 4,
                number: 5 << 33,
            };
            assert!(
                contents.is_right(message, &written(&contents, message, bytes)),
                "{bytes} bytes"
            );
        }
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_seen_at_every_length(length in 0..LENGTHS.len(), at: usize, change in 1u8..) {
            let contents = Contents::new(1);
            let message = Identity { source: 0, target: 1, number: 2 };
            let mut bytes = written(&contents, message, LENGTHS[length]);
            if !bytes.is_empty() {
                let at = at % bytes.len();
                bytes[at] ^= change;
                prop_assert!(!contents.is_right(message, &bytes));
            }
        }

        #[test]
        fn another_message_is_told_apart(seed: u64, source in 0u32..9, target in 0u32..9, number in 0u64..1 << 40) {
            let contents = Contents::new(seed);
            let message = Identity { source, target, number };
            let bytes = written(&contents, message, 40);
            for other in [
                Identity { source: source + 1, ..message },
                Identity { target: target + 1, ..message },
                Identity { number: number + 1, ..message },
                Identity { number: number + (1 << NUMBER_BITS), ..message },
            ] {
                prop_assert!(!contents.is_right(other, &bytes));
            }
            prop_assert!(!Contents::new(seed ^ 1).is_right(message, &bytes));
        }
    }
}
