//! What a lane is made of, apart from the place where it lives, and the orderings of every shared
//! access.

use crate::sync::{Ordering, Word};

/// The two places where a lane's frames lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// A few bytes beside the lane's words, where every lane begins.
    Nursery,
    /// The lane's full ring, once it has grown.
    Ring,
}

impl Area {
    /// Longest frame of an area of `capacity` bytes: half of the nursery, since a lone small frame
    /// should always find room there; a quarter of the ring, so that pads take little.
    #[inline]
    pub fn longest_frame(self, capacity: usize) -> usize {
        match self {
            Self::Nursery => capacity / 2,
            Self::Ring => capacity / 4,
        }
    }
}

/// Shared state of one lane: four words and two areas, each a power of two of bytes, used in units
/// of 8.
///
/// Positions count bytes since the lane began and never wrap in practice (2^64 bytes).
///
/// # Safety
/// [`Writer`](super::spsc::Writer) and [`Reader`](super::spsc::Reader) write and read where these
/// methods say. Words and areas are the same at each call and lie apart from those of other lanes.
/// Capacities are powers of two, at least 32, and never change. The code that hands out values sees
/// to it that no two writers, and no two readers, use one lane at a time. Safe code cannot promise
/// that:
/// ```compile_fail,E0200
/// use trihop_transport::ring::{Area, LaneStorage};
/// use trihop_transport::sync::MappedU64;
///
/// struct Short(MappedU64, [u8; 8]);
/// impl LaneStorage for Short {
///     type Word = MappedU64;
///     fn tail(&self) -> &MappedU64 {
///         &self.0
///     }
///     fn space_wanted(&self) -> &MappedU64 {
///         &self.0
///     }
///     fn grown_at(&self) -> &MappedU64 {
///         &self.0
///     }
///     fn head(&self) -> &MappedU64 {
///         &self.0
///     }
///     fn active_bit(&self) -> (&MappedU64, u64) {
///         (&self.0, 1)
///     }
///     fn capacity_bytes(&self, _: Area) -> usize {
///         1 << 30
///     }
///     unsafe fn write_length(&self, _: Area, offset: usize, length: u32) {
///         unsafe { self.1.as_ptr().add(offset).cast::<u32>().cast_mut().write(length) }
///     }
///     unsafe fn read_length(&self, _: Area, offset: usize) -> u32 {
///         unsafe { self.1.as_ptr().add(offset).cast::<u32>().read() }
///     }
/// }
/// ```
pub unsafe trait LaneStorage {
    /// Kind of the shared words.
    type Word: Word;

    /// Position up to which frames are published. Written by the producer only.
    fn tail(&self) -> &Self::Word;

    /// 1 while the producer waits for space. Written by the producer only.
    fn space_wanted(&self) -> &Self::Word;

    /// 0 until the lane grows, then that position with bit 0 set. Written by the producer only.
    fn grown_at(&self) -> &Self::Word;

    /// Position up to which space is free again. Written by the consumer only.
    fn head(&self) -> &Self::Word;

    /// The lane's bit in its inbox's bitmap of active lanes: the word, and the bit in that.
    fn active_bit(&self) -> (&Self::Word, u64);

    /// Capacity of an area in bytes: a power of two, at least 32, that never changes.
    fn capacity_bytes(&self, area: Area) -> usize;

    /// Writes the first four bytes of the frame at `offset` of `area`.
    ///
    /// # Safety
    /// `offset` is a multiple of 8 below the area's capacity, and nobody else accesses that unit
    /// meanwhile.
    unsafe fn write_length(&self, area: Area, offset: usize, length: u32);

    /// Reads the first four bytes of the frame at `offset` of `area`, once.
    ///
    /// # Safety
    /// `offset` is a multiple of 8 below the area's capacity, and a well-behaved producer does not
    /// write that unit meanwhile.
    unsafe fn read_length(&self, area: Area, offset: usize) -> u32;
}

/// Ordering of every shared access, as constants, so that a model can weaken exactly one of them.
///
/// The defaults are what ships ([`Shipped`]). Each constant names its partner.
pub trait Orderings {
    /// Producer's store of `tail`; makes the frames visible, and where the lane grew. Partner:
    /// [`TAIL_LOAD`](Self::TAIL_LOAD).
    const TAIL_STORE: Ordering = Ordering::Release;
    /// Consumer's load of `tail`. Partner: [`TAIL_STORE`](Self::TAIL_STORE).
    const TAIL_LOAD: Ordering = Ordering::Acquire;
    /// Consumer's store of `head`; its reads of the frames are over. Partner:
    /// [`HEAD_LOAD`](Self::HEAD_LOAD).
    const HEAD_STORE: Ordering = Ordering::Release;
    /// Producer's load of `head`, before it writes there again. Partner:
    /// [`HEAD_STORE`](Self::HEAD_STORE).
    const HEAD_LOAD: Ordering = Ordering::Acquire;
    /// Producer, between its store of `tail` and its looks at bitmap and doorbell. Partners:
    /// [`TAKE_FENCE`](Self::TAKE_FENCE) (bitmap), [`SLEEP_FENCE`](Self::SLEEP_FENCE) (doorbell).
    const PUBLISH_FENCE: Ordering = Ordering::SeqCst;
    /// Producer, between setting its bit and its look at the doorbell. Partner:
    /// [`SLEEP_FENCE`](Self::SLEEP_FENCE).
    const MARK_FENCE: Ordering = Ordering::SeqCst;
    /// Consumer, between clearing bits and reading tails. Partner:
    /// [`PUBLISH_FENCE`](Self::PUBLISH_FENCE).
    const TAKE_FENCE: Ordering = Ordering::SeqCst;
    /// Sleeper, between announcing and the last look around. Partners:
    /// [`MARK_FENCE`](Self::MARK_FENCE) (work), [`RELEASE_FENCE`](Self::RELEASE_FENCE) (space),
    /// [`RING_FENCE`](Self::RING_FENCE) (anything else).
    const SLEEP_FENCE: Ordering = Ordering::SeqCst;
    /// A thread that rings without a lane, between what the sleeper shall see and the look at its
    /// doorbell. Partner: [`SLEEP_FENCE`](Self::SLEEP_FENCE).
    const RING_FENCE: Ordering = Ordering::SeqCst;
    /// Consumer, between its store of `head` and its looks at `space_wanted` and the producer's
    /// doorbell. Partners: [`WANT_FENCE`](Self::WANT_FENCE), [`SLEEP_FENCE`](Self::SLEEP_FENCE).
    const RELEASE_FENCE: Ordering = Ordering::SeqCst;
    /// Producer, between setting `space_wanted` and its last look at `head`.
    /// Partner: [`RELEASE_FENCE`](Self::RELEASE_FENCE).
    const WANT_FENCE: Ordering = Ordering::SeqCst;
    /// Owner's store of the header's magic, after the layout. Partner:
    /// [`HEADER_LOAD`](Self::HEADER_LOAD).
    const HEADER_STORE: Ordering = Ordering::Release;
    /// Attacher's load of the header's magic, before the layout. Partner:
    /// [`HEADER_STORE`](Self::HEADER_STORE).
    const HEADER_LOAD: Ordering = Ordering::Acquire;
    /// Giving up one's place (producer of a lane, owner of an inbox). Partner:
    /// [`CLAIM`](Self::CLAIM).
    const UNCLAIM: Ordering = Ordering::Release;
    /// Taking a place; the predecessor's accesses are over. Partner: [`UNCLAIM`](Self::UNCLAIM).
    const CLAIM: Ordering = Ordering::Acquire;
    /// Posting news on a node's board, after their text. Partner: [`NEWS_LOAD`](Self::NEWS_LOAD).
    const NEWS_STORE: Ordering = Ordering::Release;
    /// Reading a board's news, before their text. Partner: [`NEWS_STORE`](Self::NEWS_STORE).
    const NEWS_LOAD: Ordering = Ordering::Acquire;
    /// Holder of a lease, between saying that it uses it and its look for a recall; a fence of the
    /// compiler alone where its partner is one of all processors. Partner:
    /// [`LEASE_RECALL_FENCE`](Self::LEASE_RECALL_FENCE).
    const LEASE_ENTER_FENCE: Ordering = Ordering::SeqCst;
    /// Who recalls a lease, between saying so and the look for a use. Partner:
    /// [`LEASE_ENTER_FENCE`](Self::LEASE_ENTER_FENCE).
    const LEASE_RECALL_FENCE: Ordering = Ordering::SeqCst;
    /// End of a use of a lease. Partner: [`LEASE_LOOK`](Self::LEASE_LOOK).
    const LEASE_LEAVE: Ordering = Ordering::Release;
    /// A lease that its holder gives up. Partner: [`LEASE_GIVEN_UP`](Self::LEASE_GIVEN_UP).
    const LEASE_GIVE_UP: Ordering = Ordering::Release;
    /// Who recalls looks whether it was given up. Partner:
    /// [`LEASE_GIVE_UP`](Self::LEASE_GIVE_UP).
    const LEASE_GIVEN_UP: Ordering = Ordering::Acquire;
    /// Look for a use of a lease that is recalled. Partner: [`LEASE_LEAVE`](Self::LEASE_LEAVE).
    const LEASE_LOOK: Ordering = Ordering::Acquire;
    /// Showing where a value of a node's book lies, after the value. Partner:
    /// [`BOOK_LOAD`](Self::BOOK_LOAD).
    const BOOK_STORE: Ordering = Ordering::Release;
    /// Looking where a value of a node's book lies, before the value. Partner:
    /// [`BOOK_STORE`](Self::BOOK_STORE).
    const BOOK_LOAD: Ordering = Ordering::Acquire;
    /// Who shows a snapshot on a page, before the one that is no more shown is written over.
    /// Partner: [`PAGE_CHECK_FENCE`](Self::PAGE_CHECK_FENCE).
    const PAGE_RENEW_FENCE: Ordering = Ordering::Release;
    /// Showing a snapshot on a page, once it is written. Partner:
    /// [`PAGE_LOOK_FENCE`](Self::PAGE_LOOK_FENCE).
    const PAGE_STORE: Ordering = Ordering::Release;
    /// Reader of a page, between its look which snapshot is shown and its reading of that. A fence
    /// rather than an ordering of the look: a page may be mapped for reading alone, of which only
    /// relaxed loads are promised. Partner: [`PAGE_STORE`](Self::PAGE_STORE).
    const PAGE_LOOK_FENCE: Ordering = Ordering::Acquire;
    /// Reader of a page, between its reading and the look whether that was shown all the while.
    /// Partner: [`PAGE_RENEW_FENCE`](Self::PAGE_RENEW_FENCE).
    const PAGE_CHECK_FENCE: Ordering = Ordering::Acquire;
    /// Showing counts of a census, after these. Partner: [`CENSUS_LOAD`](Self::CENSUS_LOAD).
    const CENSUS_STORE: Ordering = Ordering::Release;
    /// First look at what a rank shows in a census, before its counts. Partner:
    /// [`CENSUS_STORE`](Self::CENSUS_STORE).
    const CENSUS_LOAD: Ordering = Ordering::Acquire;
    /// Between showing counts of a census and the look at what others show. Its partner is itself,
    /// on another rank.
    const CENSUS_FENCE: Ordering = Ordering::SeqCst;
    /// Between hiding what is shown in a census and whatever follows: other counts, or a record that
    /// is sent. Partner: [`CENSUS_CHECK_FENCE`](Self::CENSUS_CHECK_FENCE).
    const CENSUS_HIDE_FENCE: Ordering = Ordering::Release;
    /// Between the two looks at what all show in a census. Partner:
    /// [`CENSUS_HIDE_FENCE`](Self::CENSUS_HIDE_FENCE).
    const CENSUS_CHECK_FENCE: Ordering = Ordering::Acquire;
    /// For who speaks for a node, between saying which count of all nodes it begins and the look
    /// at what all show; for the others, between hiding that and reading which count it is. Its
    /// partner is itself, on another rank.
    const CENSUS_COUNT_FENCE: Ordering = Ordering::SeqCst;
    /// Saying how many calls a rank has begun, after how many censuses. Partner:
    /// [`CENSUS_COME_LOAD`](Self::CENSUS_COME_LOAD).
    const CENSUS_COME_STORE: Ordering = Ordering::Release;
    /// Looking how many calls a rank has begun, before how many censuses. Partner:
    /// [`CENSUS_COME_STORE`](Self::CENSUS_COME_STORE).
    const CENSUS_COME_LOAD: Ordering = Ordering::Acquire;
    /// Saying that a census is over. Partner: [`CENSUS_OVER_LOAD`](Self::CENSUS_OVER_LOAD).
    const CENSUS_OVER_STORE: Ordering = Ordering::Release;
    /// Hearing that a census is over. Partner: [`CENSUS_OVER_STORE`](Self::CENSUS_OVER_STORE).
    const CENSUS_OVER_LOAD: Ordering = Ordering::Acquire;
    /// Passing a block on, once it is written. Partner: [`BLOCK_CLAIM`](Self::BLOCK_CLAIM).
    const BLOCK_PASS: Ordering = Ordering::Release;
    /// Claiming a block that was passed on, before it is read. Partner:
    /// [`BLOCK_PASS`](Self::BLOCK_PASS).
    const BLOCK_CLAIM: Ordering = Ordering::Acquire;
    /// Freeing a block; the accesses of who had it are over. Partner:
    /// [`BLOCK_LOOK`](Self::BLOCK_LOOK).
    const BLOCK_FREE: Ordering = Ordering::Release;
    /// Owner's look whether a block is free, before it writes there again. Partner:
    /// [`BLOCK_FREE`](Self::BLOCK_FREE).
    const BLOCK_LOOK: Ordering = Ordering::Acquire;
}

/// The orderings that ship.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shipped;

impl Orderings for Shipped {}
