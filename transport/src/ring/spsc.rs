//! The byte ring with one producer and one consumer: positions, lengths, pads, and who may touch what when.
//!
//! A frame is contiguous, a multiple of 8 bytes, at most a quarter of the ring, and begins with its own length as a
//! little-endian u32. [`PAD`] in place of a length means: go on at the start of the ring.

use crate::ring::bitmap;
use crate::ring::doorbell::{self, Sleeper};
use crate::ring::storage::{LaneStorage, Orderings};
use crate::sync::{Ordering, Word, fence};

/// Stands for a length where no frame fits before the end of the ring.
pub const PAD: u32 = u32::MAX;

/// Smallest frame in bytes, and the unit of all lengths and positions.
pub const UNIT_BYTES: usize = 8;

/// The other side of a lane wrote a position or length that cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {found} at position {position}, possible is at most {limit} in steps of 8")]
pub struct Corrupt {
    /// What was wrong: `lane head`, `lane tail` or `frame length`.
    pub what: &'static str,
    /// Value found.
    pub found: u64,
    /// Position in the lane where our own side stood.
    pub position: u64,
    /// Largest value that could have been true.
    pub limit: u64,
}

/// Largest position to go on from; from there on, positions do not overflow before the machine is worn out.
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

/// Place of a frame inside the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Offset of its first byte; a multiple of 8.
    pub offset: usize,
    /// Length in bytes; `offset + bytes` is at most the capacity.
    pub bytes: usize,
}

/// Producer's side: where frames are written.
#[derive(Debug)]
pub struct Writer<S, O> {
    storage: S,
    capacity: u64,
    /// End of the last committed frame.
    committed: u64,
    /// Last tail that we stored.
    published: u64,
    /// Last head that we loaded.
    known_head: u64,
    /// Where the reserved frame begins (behind a pad, if there is one) and how long it may be; 0 where none is reserved.
    reserved_at: u64,
    reserved_bytes: u64,
    /// Whether our `space_wanted` is set.
    wants_space: bool,
    corrupt: Option<Corrupt>,
    orderings: std::marker::PhantomData<O>,
}

impl<S: LaneStorage, O: Orderings> Writer<S, O> {
    /// Goes on where the lane's last producer stopped publishing; that is 0 in a fresh lane.
    ///
    /// # Errors
    /// When the positions found there cannot be true.
    pub fn resume(storage: S) -> Result<Self, Corrupt> {
        let capacity = storage.capacity_bytes() as u64;
        // The claim of the lane ordered us after its last producer.
        let tail = storage.tail().load(Ordering::Relaxed);
        check_start("lane tail", tail)?;
        let mut writer = Self {
            storage,
            capacity,
            committed: tail,
            published: tail,
            known_head: tail.saturating_sub(capacity),
            reserved_at: 0,
            reserved_bytes: 0,
            wants_space: false,
            corrupt: None,
            orderings: std::marker::PhantomData,
        };
        writer.consumed().map(|_| writer)
    }

    /// Where this ring lives.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Largest frame in bytes.
    #[inline]
    pub fn max_frame_bytes(&self) -> usize {
        self.capacity as usize / 4
    }

    /// Finds room for a frame of `bytes`; forgets an earlier reservation. `None` where there is no room now.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of 8 between 8 and a quarter of the ring.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Option<Span> {
        assert!(
            bytes.is_multiple_of(UNIT_BYTES) && bytes >= UNIT_BYTES && bytes <= self.max_frame_bytes(),
            "a frame of {bytes} bytes in a ring whose frames are multiples of 8 from 8 to {}",
            self.max_frame_bytes()
        );
        self.reserved_bytes = 0;
        let needed = self.needed(bytes as u64);
        if !self.fits(needed) {
            self.refresh_head();
            if !self.fits(needed) {
                return None;
            }
        }
        self.reserved_at = self.committed + needed - bytes as u64;
        self.reserved_bytes = bytes as u64;
        Some(Span {
            offset: self.offset(self.reserved_at),
            bytes,
        })
    }

    /// Makes the first `bytes` of the reservation a frame: pending, and not yet seen by the consumer.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of 8 between 8 and what was reserved.
    #[inline]
    pub fn commit(&mut self, bytes: usize) {
        assert!(
            bytes.is_multiple_of(UNIT_BYTES) && bytes >= UNIT_BYTES && bytes as u64 <= self.reserved_bytes,
            "committing {bytes} bytes of a reservation of {}",
            self.reserved_bytes
        );
        if self.reserved_at != self.committed {
            let offset = self.offset(self.committed);
            // SAFETY: `reserve` found the space from `committed` to `reserved_at` free: the consumer is past it, and does
            // not look behind `published`.
            unsafe { self.storage.write_length(offset, PAD) };
        }
        let offset = self.offset(self.reserved_at);
        // SAFETY: the same for the reserved space itself.
        unsafe { self.storage.write_length(offset, bytes as u32) };
        self.committed = self.reserved_at + bytes as u64;
        self.reserved_bytes = 0;
        if self.wants_space {
            self.wants_space = false;
            // Relaxed: a consumer that still sees 1 rings once for nothing.
            self.storage.space_wanted().store(0, Ordering::Relaxed);
        }
    }

    /// Bytes committed and not yet published.
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        (self.committed - self.published) as usize
    }

    /// Shows all committed frames to the consumer: marks the lane in `active` and rings `sleeper` if it sleeps.
    #[inline]
    pub fn publish(&mut self, active: &S::Word, bit: u64, sleeper: &impl Sleeper<Word = S::Word>) {
        if self.committed == self.published {
            return;
        }
        // Pairs with the load in `Reader::refresh_tail`.
        self.storage.tail().store(self.committed, O::TAIL_STORE);
        self.published = self.committed;
        // Pairs with `TAKE_FENCE` and `SLEEP_FENCE` of the consumer.
        fence(O::PUBLISH_FENCE);
        bitmap::mark::<_, O>(active, bit);
        doorbell::ring(sleeper);
    }

    /// Position after the last committed frame.
    #[inline]
    pub fn produced(&self) -> u64 {
        self.committed
    }

    /// Position after the last published frame.
    #[inline]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Position up to which the consumer has released.
    ///
    /// # Errors
    /// When that position cannot be true; the same error from then on.
    #[inline]
    pub fn consumed(&mut self) -> Result<u64, Corrupt> {
        self.refresh_head();
        self.corrupt.map_or(Ok(self.known_head), Err)
    }

    /// Bytes between the last head that we saw and the last committed frame.
    #[inline]
    pub fn in_use_bytes(&self) -> usize {
        (self.committed - self.known_head) as usize
    }

    /// Asks to be woken when space is released; stays in force until the next commit.
    ///
    /// To sleep: call this, announce the sleep, ask [`has_room`](Self::has_room) again, and only then sleep.
    pub fn want_space(&mut self) {
        self.wants_space = true;
        self.storage.space_wanted().store(1, Ordering::Relaxed);
        // Pairs with `RELEASE_FENCE`: either the consumer sees the flag, or we see its head.
        fence(O::WANT_FENCE);
    }

    /// Whether a frame of `bytes` has room now.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let needed = self.needed(bytes as u64);
        if !self.fits(needed) {
            self.refresh_head();
        }
        self.fits(needed)
    }

    /// Bytes that a frame of `bytes` takes here, with its pad.
    #[inline]
    fn needed(&self, bytes: u64) -> u64 {
        let to_end = self.capacity - (self.committed & (self.capacity - 1));
        if bytes <= to_end { bytes } else { to_end + bytes }
    }

    #[inline]
    fn fits(&self, needed: u64) -> bool {
        needed <= self.capacity - (self.committed - self.known_head)
    }

    #[inline]
    fn offset(&self, position: u64) -> usize {
        (position & (self.capacity - 1)) as usize
    }

    #[cold]
    fn refresh_head(&mut self) {
        if self.corrupt.is_some() {
            return;
        }
        // Pairs with the store in `Reader::release`.
        let head = self.storage.head().load(O::HEAD_LOAD);
        if head < self.known_head || head > self.published || !head.is_multiple_of(UNIT_BYTES as u64) {
            let limit = self.published;
            self.corrupt = Some(Corrupt {
                what: "lane head",
                found: head,
                position: self.known_head,
                limit,
            });
        } else {
            self.known_head = head;
        }
    }
}

/// Consumer's side: where frames are read in place.
#[derive(Debug)]
pub struct Reader<S, O> {
    storage: S,
    capacity: u64,
    /// Start of the next frame that is not popped.
    position: u64,
    /// Last head that we stored.
    released: u64,
    /// Last tail that we loaded.
    known_tail: u64,
    /// Length of the frame at `position`, once it was read and checked; 0 before.
    front_bytes: u64,
    corrupt: Option<Corrupt>,
    orderings: std::marker::PhantomData<O>,
}

impl<S: LaneStorage, O: Orderings> Reader<S, O> {
    /// Goes on where the lane's last consumer released; that is 0 in a fresh lane.
    ///
    /// # Errors
    /// When the position found there cannot be true.
    pub fn resume(storage: S) -> Result<Self, Corrupt> {
        let capacity = storage.capacity_bytes() as u64;
        // The claim of the inbox ordered us after its last owner.
        let head = storage.head().load(Ordering::Relaxed);
        check_start("lane head", head)?;
        Ok(Self {
            storage,
            capacity,
            position: head,
            released: head,
            known_tail: head,
            front_bytes: 0,
            corrupt: None,
            orderings: std::marker::PhantomData,
        })
    }

    /// Where this ring lives.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Finds the next published frame; the same one until [`pop`](Self::pop).
    ///
    /// # Errors
    /// When a position or length cannot be true; the same error from then on.
    #[inline]
    pub fn front(&mut self) -> Result<Option<Span>, Corrupt> {
        if self.front_bytes == 0 && !self.find_front()? {
            return Ok(None);
        }
        Ok(Some(Span {
            offset: self.offset(),
            bytes: self.front_bytes as usize,
        }))
    }

    /// Moves past the frame that [`front`](Self::front) returned; does nothing where it returned none. Returns true when
    /// an eighth of the ring waits to be released.
    #[inline]
    pub fn pop(&mut self) -> bool {
        self.position += self.front_bytes;
        self.front_bytes = 0;
        self.position - self.released >= self.capacity / 8
    }

    /// Gives the space of all popped frames back. Returns whether the producer asked to be woken for it.
    #[inline]
    pub fn release(&mut self) -> bool {
        if self.position == self.released {
            return false;
        }
        // Pairs with the load in `Writer::refresh_head`.
        self.storage.head().store(self.position, O::HEAD_STORE);
        self.released = self.position;
        // Pairs with `WANT_FENCE` and `SLEEP_FENCE` of the producer.
        fence(O::RELEASE_FENCE);
        self.storage.space_wanted().load(Ordering::Relaxed) != 0
    }

    /// Whether nothing more is published.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.front_bytes == 0 && self.position == self.known_tail && !matches!(self.refresh_tail(), Ok(true))
    }

    /// Position after the last popped frame.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.position
    }

    #[inline]
    fn offset(&self) -> usize {
        (self.position & (self.capacity - 1)) as usize
    }

    /// Reads and checks the next length, behind a pad if there is one. False where nothing is published.
    #[inline]
    fn find_front(&mut self) -> Result<bool, Corrupt> {
        if self.position == self.known_tail && !self.refresh_tail()? {
            return Ok(false);
        }
        let mut length = self.length_here();
        if length == PAD {
            // A pad alone is never published, hence at least one unit must follow; and no frame begins with a pad that
            // a frame of a quarter of the ring would not have needed.
            let pad = self.capacity - self.offset() as u64;
            let published = self.known_tail - self.position;
            if pad >= self.capacity / 4 || pad >= published {
                return Err(self.poison("frame length", PAD.into(), published.min(self.capacity / 4)));
            }
            self.position += pad;
            length = self.length_here();
        }
        let bytes = u64::from(length);
        let to_end = self.capacity - self.offset() as u64;
        let limit = (self.capacity / 4)
            .min(self.known_tail - self.position)
            .min(to_end);
        if bytes == 0 || bytes > limit || !bytes.is_multiple_of(UNIT_BYTES as u64) {
            return Err(self.poison("frame length", bytes, limit));
        }
        self.front_bytes = bytes;
        Ok(true)
    }

    #[inline]
    fn length_here(&self) -> u32 {
        // SAFETY: `offset` is masked to the capacity, and `position` is a multiple of 8 below `known_tail`; what lies
        // there is published, and its producer does not write it before we release it.
        unsafe { self.storage.read_length(self.offset()) }
    }

    /// Loads the tail; whether something new is there.
    #[inline]
    fn refresh_tail(&mut self) -> Result<bool, Corrupt> {
        if let Some(corrupt) = self.corrupt {
            return Err(corrupt);
        }
        // Pairs with the store in `Writer::publish`.
        let tail = self.storage.tail().load(O::TAIL_LOAD);
        let limit = self.released + self.capacity;
        if tail < self.known_tail || tail > limit || !tail.is_multiple_of(UNIT_BYTES as u64) {
            return Err(self.poison("lane tail", tail, limit));
        }
        self.known_tail = tail;
        Ok(tail != self.position)
    }

    /// Gives the lane up: it reports the same error for ever, and reads nothing more.
    #[cold]
    fn poison(&mut self, what: &'static str, found: u64, limit: u64) -> Corrupt {
        let corrupt = Corrupt {
            what,
            found,
            position: self.position,
            limit,
        };
        self.known_tail = self.position;
        self.corrupt = Some(corrupt);
        corrupt
    }
}
