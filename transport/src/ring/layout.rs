//! Where everything lies in an inbox's segment.
//!
//! Header (256 bytes: 128 of its rank, with its part in a census, and 128 in which others tell it
//! that one is over), bitmap of active lanes, 256 bytes per lane for its words and its nursery,
//! then the lanes' rings, page aligned. Of the 256 bytes the first 64 are the producer's words
//! (tail, whether it wants space, whether the lane has a producer, where it grew), then come the
//! 128 of the nursery, then the consumer's head: words with different writers lie at least 128
//! bytes apart, because adjacent cache lines are fetched in pairs. So a lane that carries a small
//! frame now and then touches no page of its ring.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::line;
use crate::memory::segment::Segment;
use crate::ring::census::COLOURS;
use crate::ring::claim;
use crate::ring::doorbell::BELL_SHAPE;
use crate::ring::storage::{Area, LaneStorage, Orderings};
use crate::sync::{MappedU64, Ordering, Word};

/// First word of an inbox's segment: `trihop`, and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"trihop\x03\x00");

/// Distance of words with different writers.
const LINE_BYTES: usize = 128;

const CACHE_LINE_BYTES: usize = line::BYTES;

/// The header: words of the owner, then one of others.
const HEADER_BYTES: usize = 2 * LINE_BYTES;

/// What a lane has before its ring: the producer's words, the nursery, the consumer's word.
const LANE_WORDS_BYTES: usize = 2 * LINE_BYTES;

/// Capacity of a lane's nursery.
pub const NURSERY_BYTES: usize = LINE_BYTES;

const PAGE_BYTES: usize = 4096;

/// Most lanes of an inbox.
pub const MAX_LANES: u32 = 1 << 16;

/// Smallest lane.
pub const MIN_LANE_BYTES: u32 = 4 << 10;

/// Largest lane.
pub const MAX_LANE_BYTES: u32 = 1 << 20;

/// Shape of an inbox: worst-case memory is [`segment_bytes`](Self::segment_bytes), of which on
/// ordinary pages only the part before the rings costs something until a lane grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxLayout {
    lanes: u32,
    lane_bytes: u32,
}

impl InboxLayout {
    /// `lanes` lanes of `lane_bytes` each.
    ///
    /// # Errors
    /// When `lanes` is not between 1 and 65,536, or `lane_bytes` is not a power of two between 4
    /// KiB and 1 MiB.
    pub fn new(lanes: u32, lane_bytes: u32) -> Result<Self> {
        if !(1..=MAX_LANES).contains(&lanes) {
            return Err(Error::config(
                "lanes",
                format!("{lanes} lanes in one inbox; possible are 1 to {MAX_LANES}"),
            ));
        }
        if !lane_bytes.is_power_of_two() || !(MIN_LANE_BYTES..=MAX_LANE_BYTES).contains(&lane_bytes)
        {
            return Err(Error::config(
                "lane_bytes",
                format!(
                    "{lane_bytes} bytes; possible are powers of two from {MIN_LANE_BYTES} to {MAX_LANE_BYTES}"
                ),
            ));
        }
        let layout = Self { lanes, lane_bytes };
        // Matters where addresses have 32 bits: what comes before the rings is some megabytes at
        // most.
        let rings = u64::from(lanes) * u64::from(lane_bytes);
        if rings + layout.data_offset(0) as u64 > isize::MAX as u64 {
            return Err(Error::config(
                "lanes",
                format!(
                    "{layout:?} needs more than {} bytes of addresses",
                    isize::MAX
                ),
            ));
        }
        Ok(layout)
    }

    /// Lanes of the inbox.
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Capacity of each lane's ring.
    pub fn lane_bytes(&self) -> u32 {
        self.lane_bytes
    }

    /// Largest frame that a lane takes.
    pub fn max_frame_bytes(&self) -> usize {
        self.lane_bytes as usize / 4
    }

    /// Most bytes between what a consumer has released and what its producer has published: the
    /// ring, and what the nursery still holds from before the lane grew.
    pub fn max_in_use_bytes(&self) -> usize {
        self.lane_bytes as usize + NURSERY_BYTES
    }

    /// Bytes of a segment with this layout.
    pub fn segment_bytes(&self) -> usize {
        self.data_offset(self.lanes)
    }

    fn bitmap_words(&self) -> usize {
        self.lanes.div_ceil(64) as usize
    }

    /// Offset of what lane `lane` has before its ring.
    fn words_offset(&self, lane: u32) -> usize {
        HEADER_BYTES
            + (self.bitmap_words() * 8).next_multiple_of(LINE_BYTES)
            + lane as usize * LANE_WORDS_BYTES
    }

    fn data_offset(&self, lane: u32) -> usize {
        self.words_offset(self.lanes).next_multiple_of(PAGE_BYTES)
            + lane as usize * self.lane_bytes as usize
    }

    /// The layout as one word, never 0.
    fn packed(&self) -> u64 {
        u64::from(self.lanes) | u64::from(self.lane_bytes) << 32
    }

    /// Refuses a segment that is laid out as `shape` already.
    fn refuse(&self, shape: u64) -> Error {
        let (lanes, bytes) = (shape as u32, shape >> 32);
        let why = if shape == BELL_SHAPE {
            format!("a doorbell's segment cannot be {self:?}; create one segment per inbox")
        } else {
            format!("the owner laid out {lanes} lanes of {bytes} bytes, expected are {self:?}")
        };
        Error::config("inbox", why)
    }
}

/// First words of the segment.
#[derive(Debug)]
pub struct Header<'a, W> {
    /// Says what this is, once the rest is there.
    pub magic: &'a W,
    /// The packed layout.
    pub shape: &'a W,
    /// 1 while somebody owns the inbox.
    pub owned: &'a W,
}

impl<W: Word> Header<'_, W> {
    /// Owner: takes the inbox and writes its header.
    ///
    /// # Errors
    /// When it has an owner already, or had one with another layout: producers of that time may
    /// still be there.
    pub fn claim<O: Orderings>(&self, layout: InboxLayout) -> Result<()> {
        if !claim::claim::<_, O>(self.owned) {
            return Err(Error::config(
                "inbox",
                "the segment has an owner already; create one segment per inbox",
            ));
        }
        // Relaxed: taking the place ordered us after the last owner. Fresh memory is zeroed, and no
        // layout is 0. (Not a load: loom takes only the last access of a word for the one that a
        // store may come before, and would not see ours come before an attacher's load.)
        let shape = self.shape.fetch_or(0, Ordering::Relaxed);
        if shape != 0 && shape != layout.packed() {
            claim::give_up::<_, O>(self.owned);
            return Err(layout.refuse(shape));
        }
        self.shape.store(layout.packed(), Ordering::Relaxed);
        // Pairs with the load in `check`.
        self.magic.store(MAGIC, O::HEADER_STORE);
        Ok(())
    }

    /// Attacher: checks the header against what the owner told us.
    ///
    /// # Errors
    /// When it differs, or is not written yet.
    pub fn check<O: Orderings>(&self, layout: InboxLayout) -> Result<()> {
        // Pairs with the store in `claim`.
        let magic = self.magic.load(O::HEADER_LOAD);
        if magic != MAGIC {
            let why =
                format!("the inbox's segment begins with {magic:#018x}, needed is {MAGIC:#018x}");
            return Err(Error::config("inbox", why));
        }
        let shape = self.shape.load(Ordering::Relaxed);
        if shape != layout.packed() {
            return Err(layout.refuse(shape));
        }
        Ok(())
    }
}

/// An inbox's segment, seen through our own copy of its layout.
#[derive(Debug, Clone)]
pub(crate) struct MappedInbox {
    segment: Arc<Segment>,
    layout: InboxLayout,
    /// Offsets of what the first lane has before its ring, and of its ring.
    words_offset: usize,
    data_offset: usize,
}

impl MappedInbox {
    pub(crate) fn new(segment: Arc<Segment>, layout: InboxLayout) -> Result<Self> {
        if segment.len() < layout.segment_bytes() {
            let why = format!(
                "a segment of {} bytes for {layout:?}, which needs {}",
                segment.len(),
                layout.segment_bytes()
            );
            return Err(Error::config("inbox", why));
        }
        Ok(Self {
            segment,
            layout,
            words_offset: layout.words_offset(0),
            data_offset: layout.data_offset(0),
        })
    }

    pub(crate) fn layout(&self) -> InboxLayout {
        self.layout
    }

    /// Makes this the only layout that the segment has in this process, whatever its header says
    /// later.
    ///
    /// # Errors
    /// When it has another one.
    pub(crate) fn settle(&self) -> Result<()> {
        self.segment
            .settle(self.layout.packed())
            .map_err(|shape| self.layout.refuse(shape))
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn segment_arc(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn word(&self, offset: usize) -> &MappedU64 {
        debug_assert!(offset.is_multiple_of(8) && offset < self.layout.data_offset(0));
        // SAFETY: the callers' offsets are multiples of 8 in the part before the lanes' data,
        // inside the segment as `new` checked; it stays mapped while `self` lives, and is accessed
        // through atomics only.
        unsafe { &*self.segment.as_ptr().add(offset).cast::<MappedU64>() }
    }

    pub(crate) fn header(&self) -> Header<'_, MappedU64> {
        Header {
            magic: self.word(0),
            shape: self.word(8),
            owned: self.word(16),
        }
    }

    /// What the owner shows in a census, and how far it has come, behind the header's words.
    pub(crate) fn census(&self) -> [&MappedU64; 6] {
        [24, 32, 40, 48, 56, 64].map(|offset| self.word(offset))
    }

    /// What has come to the owner of each colour, as it shows that in a census.
    pub(crate) fn census_heard(&self) -> [&MappedU64; COLOURS] {
        [72, 80, 88, 96].map(|offset| self.word(offset))
    }

    /// The last count of all nodes that the owner has begun.
    pub(crate) fn census_counted(&self) -> &MappedU64 {
        self.word(104)
    }

    /// 1 once somebody owns the blocks behind the lanes, for good.
    pub(crate) fn blocks_owned(&self) -> &MappedU64 {
        self.word(112)
    }

    /// The last census of which the owner was told that it is over.
    #[inline]
    pub(crate) fn census_over(&self) -> &MappedU64 {
        self.word(LINE_BYTES)
    }

    pub(crate) fn bitmap(&self) -> &[MappedU64] {
        // SAFETY: the bitmap's words lie behind the header and before the lanes' words, as in
        // `word`; the pointer is the segment's own, so that it may be used for all of them.
        unsafe {
            let first = self.segment.as_ptr().add(HEADER_BYTES).cast::<MappedU64>();
            std::slice::from_raw_parts(first, self.layout.bitmap_words())
        }
    }

    /// # Panics
    /// When there is no such lane.
    #[inline]
    pub(crate) fn lane(&self, lane: u32) -> MappedLane<&Segment> {
        MappedLane::new(&*self.segment, self, lane)
    }

    /// As [`lane`](Self::lane), and keeps the mapping.
    pub(crate) fn owned_lane(&self, lane: u32) -> MappedLane<Arc<Segment>> {
        MappedLane::new(Arc::clone(&self.segment), self, lane)
    }
}

/// One lane in a segment that `K` keeps mapped.
#[derive(Debug)]
pub struct MappedLane<K> {
    /// The lane's words and its nursery.
    words: *mut u8,
    ring: *mut u8,
    ring_bytes: u32,
    lane: u32,
    segment: K,
}

// SAFETY: the pointers stay valid in every thread while the segment lives; what they point to is
// accessed by atomics, or by the one producer and one consumer in turns that the positions decide.
unsafe impl<K: Send> Send for MappedLane<K> {}

impl<K: Deref<Target = Segment>> MappedLane<K> {
    /// # Panics
    /// When there is no such lane.
    #[inline]
    fn new(segment: K, inbox: &MappedInbox, lane: u32) -> Self {
        let InboxLayout { lanes, lane_bytes } = inbox.layout;
        assert!(lane < lanes, "lane {lane} of an inbox with {lanes} lanes");
        let (first, index) = (segment.as_ptr(), lane as usize);
        // SAFETY: `MappedInbox::new` checked that the lanes of this layout lie inside its segment,
        // which is `segment`.
        let (words, ring) = unsafe {
            (
                first.add(inbox.words_offset + index * LANE_WORDS_BYTES),
                first.add(inbox.data_offset + index * lane_bytes as usize),
            )
        };
        Self {
            words,
            ring,
            ring_bytes: lane_bytes,
            lane,
            segment,
        }
    }

    #[inline]
    fn word(&self, offset: usize) -> &MappedU64 {
        debug_assert!(offset.is_multiple_of(8) && offset < LANE_WORDS_BYTES);
        // SAFETY: `words` points to the lane's bytes before its ring, inside the segment that
        // `self` keeps; the offsets are constants outside of the nursery, which are accessed
        // through atomics only.
        unsafe { &*self.words.add(offset).cast::<MappedU64>() }
    }

    /// 1 while somebody produces into this lane.
    pub(crate) fn claimed(&self) -> &MappedU64 {
        self.word(16)
    }

    /// Number of this lane in its inbox.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.lane
    }

    /// Where the lane lives.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Begins to fetch the cache line at `offset` of an area, below its capacity; nothing is read.
    #[inline]
    pub(crate) fn fetch(&self, area: Area, offset: usize) {
        // SAFETY: the offset is inside of the area.
        line::fetch(unsafe { self.area(area).add(offset) });
    }

    /// First byte of one of the lane's areas.
    #[inline]
    pub(crate) fn area(&self, area: Area) -> *mut u8 {
        match area {
            // SAFETY: the nursery lies inside the lane's bytes before its ring.
            Area::Nursery => unsafe { self.words.add(CACHE_LINE_BYTES) },
            Area::Ring => self.ring,
        }
    }
}

// SAFETY: words and areas lie inside the segment that `segment` keeps mapped, in places that only
// this lane has, because a segment has one layout; capacities are our own copies. Lanes are handed
// out to the holder of the claim of the lane, as its producer, or of the inbox.
unsafe impl<K: Deref<Target = Segment>> LaneStorage for MappedLane<K> {
    type Word = MappedU64;

    #[inline]
    fn tail(&self) -> &MappedU64 {
        self.word(0)
    }

    #[inline]
    fn space_wanted(&self) -> &MappedU64 {
        self.word(8)
    }

    #[inline]
    fn grown_at(&self) -> &MappedU64 {
        self.word(24)
    }

    #[inline]
    fn head(&self) -> &MappedU64 {
        self.word(CACHE_LINE_BYTES + NURSERY_BYTES)
    }

    #[inline]
    fn active_bit(&self) -> (&MappedU64, u64) {
        // SAFETY: the bitmap lies before the lanes' words, one bit for each lane, inside the
        // segment that `self` keeps; it is accessed through atomics only.
        let word = unsafe {
            let first = self.segment.as_ptr().add(HEADER_BYTES).cast::<MappedU64>();
            &*first.add(self.lane as usize / 64)
        };
        (word, 1 << (self.lane % 64))
    }

    #[inline]
    fn capacity_bytes(&self, area: Area) -> usize {
        match area {
            Area::Nursery => NURSERY_BYTES,
            Area::Ring => self.ring_bytes as usize,
        }
    }

    #[inline]
    unsafe fn write_length(&self, area: Area, offset: usize, length: u32) {
        // SAFETY: the caller keeps `offset` inside the area, aligned, and free of other accesses.
        unsafe {
            self.area(area)
                .add(offset)
                .cast::<u32>()
                .write(length.to_le())
        };
    }

    #[inline]
    unsafe fn read_length(&self, area: Area, offset: usize) -> u32 {
        // SAFETY: the caller keeps `offset` inside the area and aligned. Volatile: exactly one
        // read, so that what we check is what we use, even if a hostile producer writes meanwhile.
        unsafe { u32::from_le(self.area(area).add(offset).cast::<u32>().read_volatile()) }
    }
}
