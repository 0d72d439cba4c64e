//! Blocks: memory behind the lanes of an inbox's segment, in which the endpoint that has the inbox
//! puts what others of its node read in place.
//!
//! A block begins with a word that says whether anybody has it. Its owner takes one that is free;
//! whoever has one passes it on, by telling another where it lies, and that one claims it. Whoever
//! has it last frees it, which the owner finds when it looks for room. Nobody waits for anybody. A
//! process that dies leaves the blocks that it had as they are: their room is lost for as long as
//! the segment is there, and nothing that somebody still reads is written over.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::memory::segment::Segment;
use crate::ring::storage::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word};

/// Somebody was told where it lies, and has not claimed it.
const PASSED: u64 = 0;
const HELD: u64 = 1;
const FREE: u64 = 2;

/// A block begins with its word, in a line of its own, and has whole lines.
const LINE_BYTES: usize = 64;

/// Whoever has a block passes it on: what it has written is seen by who claims it.
pub fn pass<W: Word, O: Orderings>(word: &W) {
    // Pairs with the exchange in `claim`.
    word.store(PASSED, O::BLOCK_PASS);
}

/// Claims a block that was passed on; false where it was not, or another one has.
pub fn claim<W: Word, O: Orderings>(word: &W) -> bool {
    // Pairs with the store in `pass`.
    word.set_first(HELD, O::BLOCK_CLAIM)
}

/// Whoever has a block needs it no more: its accesses are over.
pub fn free<W: Word, O: Orderings>(word: &W) {
    // Pairs with the load in `is_free`.
    word.store(FREE, O::BLOCK_FREE);
}

/// Owner: whether the block may be written again.
pub fn is_free<W: Word, O: Orderings>(word: &W) -> bool {
    // Pairs with the store in `free`.
    word.load(O::BLOCK_LOOK) == FREE
}

/// Where the blocks of a segment lie: the same in those of all endpoints of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockArea {
    first: usize,
    bytes: usize,
}

impl BlockArea {
    /// So many bytes, 2 GiB at most, rounded down to whole lines, from offset `first` on, rounded
    /// up.
    pub fn new(first: usize, bytes: usize) -> Self {
        let from = first.next_multiple_of(LINE_BYTES);
        let bytes = bytes.saturating_sub(from - first).min(1 << 31) & !(LINE_BYTES - 1);
        Self { first: from, bytes }
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a segment is long enough for it.
    fn is_in(&self, segment: &Segment) -> bool {
        segment.len() >= self.first + self.bytes
    }
}

/// Where a block lies in its segment, and the bytes in it: what others are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// Of its word, from the beginning of the segment.
    pub offset: u64,
    /// Behind its word.
    pub bytes: u64,
}

/// The owner's side.
pub struct Blocks {
    segment: Arc<Segment>,
    area: BlockArea,
    /// Offset and length of those that were not free at the last look, by their offsets.
    taken: Vec<(usize, usize)>,
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocks({:?}, {} taken)", self.area, self.taken.len())
    }
}

impl Blocks {
    /// All of it is free. One segment has one owner of blocks: who owns its inbox.
    ///
    /// # Panics
    /// When the segment is shorter than that.
    pub fn new(segment: Arc<Segment>, area: BlockArea) -> Self {
        assert!(area.is_in(&segment), "{area:?} in {segment:?}");
        Self {
            segment,
            area,
            taken: Vec::new(),
        }
    }

    /// A block of so many bytes, with whatever it had before; `None` where there is no room.
    pub fn take(&mut self, bytes: usize) -> Option<Block> {
        let length = (bytes.checked_add(LINE_BYTES)?).checked_next_multiple_of(LINE_BYTES)?;
        let Self {
            segment,
            area,
            taken,
        } = self;
        taken.retain(|&(offset, _)| !is_free::<_, Shipped>(word(segment, offset)));
        // The first gap: what was used last is most likely still in a cache.
        let end = area.first + area.bytes;
        let (mut at, mut index) = (area.first, 0);
        for &(offset, length_there) in &*taken {
            if offset - at >= length {
                break;
            }
            (at, index) = (offset + length_there, index + 1);
        }
        if end - at < length {
            return None;
        }
        // Relaxed: nobody else knows of it.
        word(segment, at).store(HELD, Ordering::Relaxed);
        taken.insert(index, (at, length));
        let line = (at / LINE_BYTES) as u32;
        let bytes = bytes as u32;
        Some(Block::new(Arc::clone(segment), Place { line, bytes }))
    }

    /// Bytes of the blocks that were not free at the last look.
    pub fn taken_bytes(&self) -> usize {
        self.taken.iter().map(|(_, length)| length).sum()
    }
}

fn word(segment: &Segment, offset: usize) -> &MappedU64 {
    debug_assert!(offset.is_multiple_of(LINE_BYTES) && offset + LINE_BYTES <= segment.len());
    // SAFETY: offsets are those of blocks, multiples of a line inside of the segment, which stays
    // mapped while it is borrowed; that word is accessed through atomics only.
    unsafe { &*segment.as_ptr().add(offset).cast::<MappedU64>() }
}

/// A block that is ours: its bytes. Dropped, it is free again.
///
/// It is memory that this process shares with others, which a forked child does not have.
pub struct Block {
    /// Until it is dropped.
    segment: ManuallyDrop<Arc<Segment>>,
    at: Place,
}

/// Where a block lies in its segment, in few bytes: values with a block in them are moved often.
#[derive(Clone, Copy)]
struct Place {
    line: u32,
    bytes: u32,
}

impl Place {
    fn offset(self) -> usize {
        self.line as usize * LINE_BYTES
    }
}

impl Block {
    /// Claims what was passed on to us; `None` where no block lies there, or it is not ours: who
    /// said so is broken.
    pub fn claim(segment: &Arc<Segment>, area: BlockArea, place: BlockPlace) -> Option<Self> {
        let offset = usize::try_from(place.offset).ok()?;
        let bytes = u32::try_from(place.bytes).ok()?;
        let end = offset.checked_add(LINE_BYTES + bytes as usize)?;
        let is_inside = offset >= area.first
            && offset.is_multiple_of(LINE_BYTES)
            && end <= area.first + area.bytes
            && area.is_in(segment);
        let line = u32::try_from(offset / LINE_BYTES).ok()?;
        let is_ours = is_inside && claim::<_, Shipped>(word(segment, offset));
        is_ours.then(|| Self::new(Arc::clone(segment), Place { line, bytes }))
    }

    fn new(segment: Arc<Segment>, at: Place) -> Self {
        let segment = ManuallyDrop::new(segment);
        Self { segment, at }
    }

    /// The segment in which it lies.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Passes it on to whoever is told where it lies: nothing is ours any more.
    pub fn pass(self) -> PassedBlock {
        pass::<_, Shipped>(self.word());
        let mut ours = ManuallyDrop::new(self);
        // SAFETY: `ours` is not dropped, so that nothing uses the field afterwards.
        let segment = unsafe { ManuallyDrop::take(&mut ours.segment) };
        let at = ours.at;
        PassedBlock { segment, at }
    }

    fn word(&self) -> &MappedU64 {
        word(&self.segment, self.at.offset())
    }

    fn first(&self) -> *mut u8 {
        // SAFETY: the block's bytes lie behind its word, inside of its segment.
        unsafe { self.segment.as_ptr().add(self.at.offset() + LINE_BYTES) }
    }
}

/// A block that was passed on.
pub struct PassedBlock {
    segment: Arc<Segment>,
    at: Place,
}

impl PassedBlock {
    /// Where it lies.
    pub fn place(&self) -> BlockPlace {
        BlockPlace {
            offset: self.at.offset() as u64,
            bytes: self.at.bytes.into(),
        }
    }

    /// Takes it back, where nobody was told of it; `None` where somebody has claimed it all the
    /// same, who is broken.
    pub fn take_back(self) -> Option<Block> {
        let is_ours = claim::<_, Shipped>(word(&self.segment, self.at.offset()));
        let Self { segment, at } = self;
        is_ours.then(|| Block::new(segment, at))
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie inside of the mapped segment, and are ours alone while we hold the
        // block: others access them only once it is passed on or free.
        unsafe { std::slice::from_raw_parts(self.first(), self.at.bytes as usize) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and this borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.at.bytes as usize) }
    }
}

impl Drop for Block {
    #[inline(never)] // else it is everywhere where a message, most of which have none, is dropped
    fn drop(&mut self) {
        // A forked child neither has it nor may give it away.
        if self.segment.is_mapped_here() {
            free::<_, Shipped>(self.word());
        }
        // SAFETY: this is the only drop of the field, and nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.segment) };
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} B at {})", self.at.bytes, self.at.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: usize = 4096;

    fn blocks() -> (Arc<Segment>, BlockArea, Blocks) {
        let segment = Segment::on_heap(2 * AREA);
        let area = BlockArea::new(AREA - 8, AREA + 8);
        (Arc::clone(&segment), area, Blocks::new(segment, area))
    }

    #[test]
    fn a_block_is_passed_on_and_claimed_once() {
        let (segment, area, mut blocks) = blocks();
        let mut block = blocks.take(100).unwrap();
        block.copy_from_slice(&[7; 100]);
        let passed = block.pass();
        let place = passed.place();
        assert_eq!((place.offset, place.bytes), (AREA as u64, 100));
        let claimed = Block::claim(&segment, area, place).unwrap();
        assert!(Block::claim(&segment, area, place).is_none(), "it is taken");
        assert_eq!(&claimed[..], &[7; 100]);
        drop(claimed);
        assert!(Block::claim(&segment, area, place).is_none(), "it is free");
        // A send that came to nothing.
        let back = blocks.take(10).unwrap().pass().take_back().unwrap();
        assert_eq!((back.len(), back.at.offset()), (10, AREA));
        let passed = back.pass();
        let claimed = Block::claim(&segment, area, passed.place());
        assert!(claimed.is_some() && passed.take_back().is_none());
    }

    #[test]
    fn room_is_used_again_and_what_is_held_stays() {
        let (_, _, mut blocks) = blocks();
        let half = AREA / 2 - LINE_BYTES;
        let [mut first, mut second] = [blocks.take(half), blocks.take(half)].map(Option::unwrap);
        first.fill(1);
        second.fill(2);
        assert!(blocks.take(0).is_none());
        assert_eq!(blocks.taken_bytes(), AREA);
        drop(first);
        assert!(blocks.take(half + 1).is_none());
        let mut again: Vec<_> = (0..).map_while(|_| blocks.take(0)).collect();
        assert_eq!(again.len(), AREA / 2 / LINE_BYTES);
        // A gap in the middle.
        let last = again.pop().unwrap().at.offset();
        drop(again.remove(3));
        assert!(blocks.take(1 + LINE_BYTES).is_none());
        let middle = blocks.take(0).unwrap();
        assert_eq!(middle.at.offset(), AREA + 3 * LINE_BYTES);
        assert_eq!(blocks.take(LINE_BYTES).map(|of| of.at.offset()), None);
        assert_eq!(blocks.take(0).map(|of| of.at.offset()), Some(last));
        assert!(second.iter().all(|&byte| byte == 2));
        assert!(blocks.take(usize::MAX).is_none());
    }

    #[test]
    fn places_that_cannot_be_are_no_blocks() {
        let (segment, area, mut blocks) = blocks();
        let place = blocks.take(64).unwrap().pass().place();
        for (offset, bytes) in [
            (0, 64),
            (AREA as u64 - 64, 64),
            (place.offset + 8, 8),
            (place.offset, AREA as u64),
            (place.offset, u64::MAX),
            (u64::MAX - 63, 64),
            (2 * AREA as u64, 0),
        ] {
            let claimed = Block::claim(&segment, area, BlockPlace { offset, bytes });
            assert!(claimed.is_none(), "{offset} {bytes}");
        }
        assert!(Block::claim(&segment, area, place).is_some());
        let beyond = BlockArea::new(AREA, 2 * AREA);
        assert!(Block::claim(&segment, beyond, place).is_none());
    }
}
