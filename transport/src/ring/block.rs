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
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::lent::{Lend, SegmentPart};
use crate::memory::segment::Segment;
use crate::ring::layout::{InboxLayout, MappedInbox};
use crate::ring::storage::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word};

/// A block begins with its word, in a line of its own, and has whole lines.
const LINE_BYTES: usize = 64;

/// What its word says of a block: how often such blocks were made, in 30 bits, its bytes, in 32,
/// and who has it, in 2. So a word says of one message alone that it was passed on.
const STATE: u64 = 3;
/// Somebody was told where it lies, and has not claimed it.
const PASSED: u64 = 1;
const HELD: u64 = 2;
const FREE: u64 = 3;

/// The word of a block that is held by who has made it, of so many bytes.
pub fn made(turn: u32, bytes: u32) -> u64 {
    u64::from(turn) << 34 | u64::from(bytes) << 2 | HELD
}

/// Whoever has a block passes it on: what it has written is seen by who claims it. The word by
/// which that is done.
pub fn pass<W: Word, O: Orderings>(word: &W) -> u64 {
    // Relaxed: whoever holds it was the last to write there.
    let passed = word.load(Ordering::Relaxed) & !STATE | PASSED;
    // Pairs with the exchange in `claim`.
    word.store(passed, O::BLOCK_PASS);
    passed
}

/// Claims a block that was passed on, by this word; false where it was not, or another one has.
pub fn claim<W: Word, O: Orderings>(word: &W, passed: u64) -> bool {
    // Pairs with the store in `pass`.
    passed & STATE == PASSED && word.replace(passed, passed & !STATE | HELD, O::BLOCK_CLAIM)
}

/// Whoever has a block needs it no more: its accesses are over.
pub fn free<W: Word, O: Orderings>(word: &W) {
    // Pairs with the load in `is_free`.
    word.store(FREE, O::BLOCK_FREE);
}

/// Owner: whether the block may be written again.
pub fn is_free<W: Word, O: Orderings>(word: &W) -> bool {
    // Pairs with the store in `free`.
    word.load(O::BLOCK_LOOK) & STATE == FREE
}

/// Where the blocks of a segment lie: behind the lanes of its inbox.
#[derive(Debug, Clone)]
pub struct BlockArea {
    inbox: MappedInbox,
    first: usize,
    bytes: usize,
}

impl BlockArea {
    /// So many bytes, 2 GiB at most, behind the lanes of this layout.
    ///
    /// # Errors
    /// When the segment is shorter than that, or is laid out as something else: lanes would lie in
    /// the same bytes.
    pub fn new(segment: Arc<Segment>, layout: InboxLayout, bytes: usize) -> Result<Self> {
        let first = layout.segment_bytes();
        let bytes = bytes.min(1 << 31) & !(LINE_BYTES - 1);
        let inbox = MappedInbox::new(segment, layout)?;
        let length = inbox.segment().len();
        if length - first < bytes {
            let why = format!("{bytes} of blocks behind {first} in a segment of {length}");
            return Err(Error::config("blocks", why));
        }
        inbox.settle()?;
        Ok(Self {
            inbox,
            first,
            bytes,
        })
    }

    /// All that is behind the lanes of this layout, as whoever has made the segment has left room
    /// for.
    ///
    /// # Errors
    /// As [`BlockArea::new`].
    pub fn behind(segment: Arc<Segment>, layout: InboxLayout) -> Result<Self> {
        let bytes = segment.len().saturating_sub(layout.segment_bytes());
        Self::new(segment, layout, bytes)
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lies.
    ///
    /// # Errors
    /// None: it was looked at when this was made.
    pub fn part(&self) -> Result<SegmentPart> {
        SegmentPart::new(Arc::clone(self.segment()), self.first, self.bytes)
    }

    fn segment(&self) -> &Arc<Segment> {
        self.inbox.segment_arc()
    }
}

/// Where a block lies in its segment, and its word: what others are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// Of its word, from the beginning of the segment.
    pub offset: u64,
    /// What that is until it is claimed.
    pub word: u64,
}

impl BlockPlace {
    /// Bytes of the block, as its word says.
    pub fn bytes(self) -> usize {
        (self.word >> 2) as u32 as usize
    }
}

/// The owner's side.
pub struct Blocks {
    area: BlockArea,
    /// Offset and length of those that were not free at the last look, by their offsets.
    taken: Vec<(usize, usize)>,
    turn: u32,
    /// How often nobody looks for room any more, since there was none.
    rests: usize,
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocks({:?}, {} taken)", self.area, self.taken.len())
    }
}

impl Blocks {
    /// All of it is free.
    ///
    /// # Errors
    /// When the segment's blocks have, or had, an owner: some may still be held.
    pub fn new(area: BlockArea) -> Result<Self> {
        // Relaxed: who comes first has all of it, and nobody before it.
        if !area.inbox.blocks_owned().set_first(1, Ordering::Relaxed) {
            let why = "the segment's blocks have an owner already; create one segment per inbox";
            return Err(Error::config("blocks", why));
        }
        Ok(Self {
            area,
            taken: Vec::new(),
            turn: 0,
            rests: 0,
        })
    }

    /// Where they lie.
    pub fn area(&self) -> &BlockArea {
        &self.area
    }

    /// A block of so many bytes, with whatever it had before; `None` where there is no room.
    pub fn take(&mut self, bytes: usize) -> Option<Block> {
        let length = (bytes.checked_add(LINE_BYTES)?).checked_next_multiple_of(LINE_BYTES)?;
        if length > self.area.bytes {
            return None;
        }
        if self.rests > 0 {
            self.rests -= 1;
            return None;
        }
        let Some(at) = self.find(length) else {
            // All of them were looked at: so that this is not done with each message.
            self.rests = self.taken.len() / LOOKS_PER_REST;
            return None;
        };
        let place = Place {
            line: u32::try_from(at / LINE_BYTES).ok()?,
            bytes: u32::try_from(bytes).ok()?,
        };
        self.turn = self.turn.wrapping_add(1) & TURNS;
        let index = self.taken.partition_point(|&(offset, _)| offset < at);
        self.taken.insert(index, (at, length));
        // Relaxed: nobody else knows of it.
        let segment = self.area.segment();
        word(segment, at).store(made(self.turn, place.bytes), Ordering::Relaxed);
        Some(Block::new(Arc::clone(segment), place))
    }

    /// The first gap of so many bytes: what was used last is most likely still in a cache. Those
    /// before it that are free are forgotten.
    fn find(&mut self, length: usize) -> Option<usize> {
        let Self { area, taken, .. } = self;
        let segment = area.segment();
        let (mut at, mut kept, mut looked) = (area.first, 0, 0);
        while let Some(&(offset, length_there)) = taken.get(looked) {
            if !is_free::<_, Shipped>(word(segment, offset)) {
                if offset - at >= length {
                    break;
                }
                taken[kept] = (offset, length_there);
                at = offset + length_there;
                kept += 1;
            }
            looked += 1;
        }
        let is_last = looked == taken.len();
        taken.drain(kept..looked);
        (!is_last || area.first + area.bytes - at >= length).then_some(at)
    }

    /// Bytes of the blocks that were not free at the last look.
    pub fn taken_bytes(&self) -> usize {
        self.taken.iter().map(|(_, length)| length).sum()
    }
}

/// Where there was no room, and so many were taken, the next call does not look.
const LOOKS_PER_REST: usize = 64;

/// Numbers of blocks begin again behind this one.
const TURNS: u32 = (1 << 30) - 1;

fn word(segment: &Segment, offset: usize) -> &MappedU64 {
    debug_assert!(offset.is_multiple_of(LINE_BYTES) && offset + LINE_BYTES <= segment.len());
    // SAFETY: offsets are those of blocks, multiples of a line inside of an area of the segment, in
    // which nothing else lies, since a segment has one layout; it stays mapped while it is
    // borrowed. A block's word is accessed through atomics only.
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
    pub fn claim(area: &BlockArea, place: BlockPlace) -> Option<Self> {
        let segment = area.segment();
        let offset = usize::try_from(place.offset).ok()?;
        let bytes = u32::try_from(place.bytes()).ok()?;
        let length = LINE_BYTES.checked_add(place.bytes())?;
        let is_inside = offset >= area.first
            && offset.is_multiple_of(LINE_BYTES)
            && offset.checked_add(length)? <= area.first + area.bytes;
        let line = u32::try_from(offset / LINE_BYTES).ok()?;
        let is_ours = is_inside && claim::<_, Shipped>(word(segment, offset), place.word);
        is_ours.then(|| Self::new(Arc::clone(segment), Place { line, bytes }))
    }

    fn new(segment: Arc<Segment>, at: Place) -> Self {
        let segment = ManuallyDrop::new(segment);
        Self { segment, at }
    }

    /// Has its first `bytes` only from now on, and whoever it is passed on to as well.
    pub fn truncate(&mut self, bytes: usize) {
        if bytes < self.at.bytes as usize {
            self.at.bytes = bytes as u32;
            // Relaxed: whoever holds it is the only one that writes there, until it is passed on.
            let turn = (self.word().load(Ordering::Relaxed) >> 34) as u32;
            self.word()
                .store(made(turn, self.at.bytes), Ordering::Relaxed);
        }
    }

    /// Whether it lies in this area.
    pub fn is_in(&self, area: &BlockArea) -> bool {
        Arc::ptr_eq(&self.segment, area.segment())
    }

    /// Passes it on to whoever is told where it lies: nothing is ours any more.
    pub fn pass(self) -> PassedBlock {
        let word = pass::<_, Shipped>(self.word());
        let mut ours = ManuallyDrop::new(self);
        // SAFETY: `ours` is not dropped, so that nothing uses the field afterwards.
        let segment = unsafe { ManuallyDrop::take(&mut ours.segment) };
        let at = ours.at;
        PassedBlock { segment, at, word }
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
    word: u64,
}

impl PassedBlock {
    /// Where it lies.
    pub fn place(&self) -> BlockPlace {
        BlockPlace {
            offset: self.at.offset() as u64,
            word: self.word,
        }
    }

    /// Takes it back, where nobody was told of it; `None` where somebody has claimed it all the
    /// same, who is broken.
    pub fn take_back(self) -> Option<Block> {
        let Self { segment, at, word } = self;
        let is_ours = claim::<_, Shipped>(self::word(&segment, at.offset()), word);
        is_ours.then(|| Block::new(segment, at))
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie inside of the mapped segment, in a block that its area's one owner
        // has made, and are ours alone while we hold it: others access them only once it is passed
        // on or free.
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

// SAFETY: the bytes lie in a mapped segment for as long as the block is held, of which its length
// is whole lines, and are those of its holder alone.
unsafe impl Lend for Block {
    fn first(&self) -> NonNull<u8> {
        NonNull::new(Self::first(self)).expect("a segment does not begin at address 0")
    }

    fn bytes(&self) -> usize {
        (self.at.bytes as usize).next_multiple_of(LINE_BYTES)
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

    /// The area behind the smallest inbox, and where it begins.
    fn area(bytes: usize) -> (BlockArea, usize) {
        let layout = InboxLayout::new(1, 4096).unwrap();
        let first = layout.segment_bytes();
        let segment = Segment::on_heap(first + bytes);
        (BlockArea::new(segment, layout, bytes).unwrap(), first)
    }

    fn blocks() -> (BlockArea, usize, Blocks) {
        let (area, first) = area(AREA);
        (area.clone(), first, Blocks::new(area).unwrap())
    }

    #[test]
    fn a_block_that_was_cut_is_as_short_for_who_gets_it_and_free_as_a_whole() {
        let (area, _, mut blocks) = blocks();
        let mut block = blocks.take(AREA - LINE_BYTES).unwrap();
        block.fill(3);
        block.truncate(9999);
        assert_eq!(block.len(), AREA - LINE_BYTES, "it is not that long");
        block.truncate(100);
        assert_eq!(&*block, [3; 100]);
        let place = block.pass().place();
        assert_eq!(place.bytes(), 100);
        let claimed = Block::claim(&area, place).unwrap();
        assert_eq!(&*claimed, [3; 100]);
        assert!(blocks.take(1).is_none(), "all of it is taken");
        drop(claimed);
        assert!((0..100).any(|_| blocks.take(AREA - LINE_BYTES).is_some()));
    }

    #[test]
    fn a_segment_has_one_layout_and_one_owner_of_its_blocks() {
        let layout = InboxLayout::new(1, 4096).unwrap();
        let bytes = layout.segment_bytes();
        let segment = Segment::on_heap(bytes + AREA);
        let of = |layout, bytes| BlockArea::new(Arc::clone(&segment), layout, bytes);
        assert!(of(layout, AREA + LINE_BYTES).is_err(), "too long");
        let area = of(layout, AREA).unwrap();
        assert_eq!(area.bytes(), AREA);
        let longer = InboxLayout::new(1, 8192).unwrap();
        assert!(of(longer, 64).is_err(), "another layout");
        let blocks = Blocks::new(area.clone()).unwrap();
        assert!(Blocks::new(area.clone()).is_err(), "an owner");
        drop(blocks);
        assert!(
            Blocks::new(area).is_err(),
            "one before, of which some may be held"
        );
    }

    #[test]
    fn a_block_is_passed_on_and_claimed_once() {
        let (area, first, mut blocks) = blocks();
        let mut block = blocks.take(100).unwrap();
        block.copy_from_slice(&[7; 100]);
        let passed = block.pass();
        let place = passed.place();
        assert_eq!(
            (place.offset, place.word >> 2 & 0xffff_ffff),
            (first as u64, 100)
        );
        let claimed = Block::claim(&area, place).unwrap();
        assert!(Block::claim(&area, place).is_none(), "it is taken");
        assert_eq!(&claimed[..], &[7; 100]);
        drop(claimed);
        assert!(Block::claim(&area, place).is_none(), "it is free");
        // A send that came to nothing.
        let back = blocks.take(10).unwrap().pass().take_back().unwrap();
        assert_eq!((back.len(), back.at.offset()), (10, first));
        let passed = back.pass();
        let claimed = Block::claim(&area, passed.place());
        assert!(claimed.is_some() && passed.take_back().is_none());
    }

    #[test]
    fn room_is_used_again_and_what_is_held_stays() {
        let (_, begin, mut blocks) = blocks();
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
        assert_eq!(middle.at.offset(), begin + 3 * LINE_BYTES);
        assert_eq!(blocks.take(LINE_BYTES).map(|of| of.at.offset()), None);
        assert_eq!(blocks.take(0).map(|of| of.at.offset()), Some(last));
        assert!(second.iter().all(|&byte| byte == 2));
        assert!(blocks.take(usize::MAX).is_none());
    }

    #[test]
    fn places_that_cannot_be_are_no_blocks() {
        let (area, first, mut blocks) = blocks();
        let mut block = blocks.take(128).unwrap();
        block.fill(0);
        let place = block.pass().place();
        let longer = |bytes: u64| place.word & !(0xffff_ffff << 2) | bytes << 2;
        for (offset, word) in [
            (0, place.word),
            (first as u64 - 64, place.word),
            (place.offset + 8, place.word),
            // Inside of a message, and where none has been.
            (place.offset + 64, place.word),
            (place.offset + 64, 0),
            (place.offset + 1024, 0),
            (place.offset + 1024, longer(0)),
            (place.offset, longer(129)),
            (place.offset, longer(127)),
            (place.offset, longer(0xffff_ffff)),
            (place.offset, place.word & !STATE | HELD),
            (place.offset, place.word + (1 << 34)),
            (place.offset, u64::MAX),
            (u64::MAX - 63, place.word),
            ((first + AREA) as u64, place.word),
        ] {
            let claimed = Block::claim(&area, BlockPlace { offset, word });
            assert!(claimed.is_none(), "{offset} {word:#x}");
        }
        drop(Block::claim(&area, place).unwrap());
        // The same block again is another one.
        let again = blocks.take(128).unwrap().pass();
        assert_eq!(again.place().offset, place.offset);
        assert!(Block::claim(&area, place).is_none());
        assert!(Block::claim(&area, again.place()).is_some());
    }

    #[test]
    #[cfg(not(miri))] // which has no processes
    fn a_forked_child_gives_nothing_away() {
        let layout = InboxLayout::new(1, 4096).unwrap();
        let segment = Segment::create(layout.segment_bytes() + AREA).unwrap();
        let area = BlockArea::new(segment, layout, AREA).unwrap();
        let mut blocks = Blocks::new(area).unwrap();
        let block = blocks.take(AREA / 2).unwrap();
        // SAFETY: the child drops what it has, which takes no lock, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(block);
            // SAFETY: ends this process alone.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child, whose number is ours until then.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert!(blocks.take(AREA / 2).is_none(), "it is held still");
        drop(block);
        assert!(blocks.take(AREA / 2).is_some());
    }

    #[test]
    fn who_finds_no_room_among_many_does_not_look_at_once_again() {
        let mut blocks = Blocks::new(area(64 * AREA).0).unwrap();
        let held: Vec<_> = (0..).map_while(|_| blocks.take(0)).collect();
        assert_eq!(held.len(), 4096);
        drop(held);
        let misses = (0..).take_while(|_| blocks.take(0).is_none()).count();
        assert_eq!(misses, 4096 / LOOKS_PER_REST);
        // Those that are free are forgotten as room is looked for.
        assert!(blocks.take(60 * AREA).is_some());
        assert_eq!(blocks.taken.len(), 1);
    }
}
