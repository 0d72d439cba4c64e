//! The byte ring with one producer and one consumer: positions, lengths, pads, and who may touch
//! what when.
//!
//! A frame is contiguous, a multiple of 8 bytes, at most a quarter of the ring (or half of the
//! nursery) that it lies in, and begins with its own length as a little-endian u32. [`PAD`] in
//! place of a length means: go on at the start of the area.
//!
//! A lane begins in its small *nursery*, where position `p` lies at offset `p` modulo the nursery's
//! size. When a frame is too long for it or finds it full, the producer *grows* the lane, once and
//! for ever: it stores the position `q` up to which frames are committed, and from there on
//! position `p` lies at offset `p - q` modulo the capacity of the lane's full ring. The consumer
//! reads up to `q` from the nursery and goes on in the ring. So a lane that never carries more than
//! a small frame now and then costs no memory beyond its words.

mod reader;
mod writer;

pub use reader::{Reader, ReaderState};
pub use writer::Writer;

use crate::ring::storage::Area;

/// Stands for a length where no frame fits before the end of the area.
pub const PAD: u32 = u32::MAX;

/// Smallest frame in bytes, and the unit of all lengths and positions.
pub const UNIT_BYTES: usize = 8;

/// The other side of a lane wrote a position or length that cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {found} at position {position}, possible is at most {limit} in steps of 8")]
pub struct Corrupt {
    /// What was wrong: `lane head`, `lane tail`, `lane growth` or `frame length`.
    pub what: &'static str,
    /// Value found.
    pub found: u64,
    /// Position in the lane where our own side stood.
    pub position: u64,
    /// Largest value that could have been true.
    pub limit: u64,
}

/// Largest position to go on from; from there on, positions do not overflow before the machine is
/// worn out.
const MAX_START: u64 = 1 << 62;

fn check_start(what: &'static str, found: u64) -> Result<(), Corrupt> {
    if found > MAX_START || !found.is_multiple_of(UNIT_BYTES as u64) {
        return Err(Corrupt {
            what,
            found,
            position: 0,
            limit: MAX_START,
        });
    }
    Ok(())
}

/// Set in the word that says where a lane grew; so that the word is 0 before, and position 0 can be
/// told from that.
const GROWN: u64 = 1;

/// The word that says that the lane grew at `position`.
const fn grown_word(position: u64) -> u64 {
    position | GROWN
}

/// Position at which the lane grew, if it has.
fn grown_position(word: u64) -> Result<Option<u64>, Corrupt> {
    if word == 0 {
        return Ok(None);
    }
    // A word without the flag is refused as well: the difference is then odd.
    let position = word ^ GROWN;
    check_start("lane growth", position).map(|()| Some(position))
}

/// Place of a frame inside the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where it lies.
    pub area: Area,
    /// Offset of its first byte in that area; a multiple of 8.
    pub offset: usize,
    /// Length in bytes; `offset + bytes` is at most the area's capacity.
    pub bytes: usize,
}
