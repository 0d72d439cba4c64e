//! The producer's side of a byte ring.

use std::marker::PhantomData;

use super::{Corrupt, PAD, Span, UNIT_BYTES, check_start, grown_position, grown_word};
use crate::ring::bitmap;
use crate::ring::doorbell::{self, Sleeper};
use crate::ring::storage::{Area, LaneStorage, Orderings};
use crate::sync::{Ordering, Word, fence};

/// Producer's side: where frames are written.
#[derive(Debug)]
pub struct Writer<S, O> {
    storage: S,
    /// End of the last committed frame.
    committed: u64,
    /// Position at the area's offset 0.
    begin: u64,
    /// Boxed: hardly any lane ever has one.
    corrupt: Option<Box<Corrupt>>,
    /// From the last tail that we stored to `committed`.
    pending_bytes: u32,
    /// From the last head that we loaded to `committed`.
    in_use_bytes: u32,
    /// Pad in front of the reserved frame.
    pad_bytes: u32,
    /// How long the reserved frame may be; 0 where none is reserved.
    reserved_bytes: u32,
    /// Where frames are written now.
    area: Area,
    /// Whether our `space_wanted` is set.
    wants_space: bool,
    orderings: PhantomData<O>,
}

impl<S: LaneStorage, O: Orderings> Writer<S, O> {
    /// Goes on where the lane's last producer stopped publishing; that is 0 in a fresh lane.
    ///
    /// # Errors
    /// When the positions found there cannot be true.
    pub fn resume(storage: S) -> Result<Self, Corrupt> {
        // The claim of the lane ordered us after its last producer.
        let tail = storage.tail().load(Ordering::Relaxed);
        check_start("lane tail", tail)?;
        let (area, begin) = match grown_position(storage.grown_at().load(Ordering::Relaxed))? {
            None => (Area::Nursery, 0),
            Some(position) => {
                // What lies between was committed and never published: the consumer has not looked
                // at that position.
                if position > tail {
                    storage
                        .grown_at()
                        .store(grown_word(tail), Ordering::Relaxed);
                }
                (Area::Ring, position.min(tail))
            }
        };
        let (ring, nursery) = (
            storage.capacity_bytes(Area::Ring) as u64,
            storage.capacity_bytes(Area::Nursery) as u64,
        );
        let oldest = match area {
            // The ring may be full while the nursery has frames that were not read.
            Area::Ring if tail - begin > ring => tail - ring,
            Area::Ring => begin.saturating_sub(nursery),
            Area::Nursery => tail.saturating_sub(nursery),
        };
        let mut writer = Self {
            storage,
            committed: tail,
            begin,
            corrupt: None,
            pending_bytes: 0,
            in_use_bytes: (tail - oldest) as u32,
            pad_bytes: 0,
            reserved_bytes: 0,
            area,
            wants_space: false,
            orderings: PhantomData,
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
        self.storage.capacity_bytes(Area::Ring) / 4
    }

    /// Finds room for a frame of `bytes`; forgets an earlier reservation. `None` where there is no
    /// room now.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of 8 between 8 and a quarter of the ring.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Option<Span> {
        assert!(
            bytes.is_multiple_of(UNIT_BYTES)
                && bytes >= UNIT_BYTES
                && bytes <= self.max_frame_bytes(),
            "a frame of {bytes} bytes in a ring whose frames are multiples of 8 from 8 to {}",
            self.max_frame_bytes()
        );
        self.reserved_bytes = 0;
        let pad = match self.fit(bytes) {
            Some(pad) => pad,
            None => self.make_room(bytes)?,
        };
        (self.pad_bytes, self.reserved_bytes) = (pad as u32, bytes as u32);
        Some(Span {
            area: self.area,
            offset: self.offset(self.pad_bytes),
            bytes,
        })
    }

    /// Makes the first `bytes` of the reservation a frame: pending, and not yet seen by the
    /// consumer.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of 8 between 8 and what was reserved.
    #[inline]
    pub fn commit(&mut self, bytes: usize) {
        assert!(
            bytes.is_multiple_of(UNIT_BYTES)
                && bytes >= UNIT_BYTES
                && bytes <= self.reserved_bytes as usize,
            "committing {bytes} bytes of a reservation of {}",
            self.reserved_bytes
        );
        if self.pad_bytes != 0 {
            // SAFETY: `reserve` found the pad's space free: the consumer is past it, and does not
            // look behind what is published.
            unsafe { self.storage.write_length(self.area, self.offset(0), PAD) };
        }
        let offset = self.offset(self.pad_bytes);
        // SAFETY: the same for the reserved space itself.
        unsafe { self.storage.write_length(self.area, offset, bytes as u32) };
        let added = self.pad_bytes + bytes as u32;
        self.committed += u64::from(added);
        self.pending_bytes += added;
        self.in_use_bytes += added;
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
        self.pending_bytes as usize
    }

    /// Shows all committed frames to the consumer: marks the lane as active and rings `sleeper` if
    /// it sleeps; whether it did.
    #[inline]
    pub fn publish(&mut self, sleeper: &impl Sleeper<Word = S::Word>) -> bool {
        if self.pending_bytes == 0 {
            return false;
        }
        // Pairs with the load in `Reader::refresh_tail`.
        self.storage.tail().store(self.committed, O::TAIL_STORE);
        self.pending_bytes = 0;
        // Pairs with `TAKE_FENCE` and `SLEEP_FENCE` of the consumer.
        fence(O::PUBLISH_FENCE);
        let (active, bit) = self.storage.active_bit();
        bitmap::mark::<_, O>(active, bit);
        doorbell::ring(sleeper)
    }

    /// Position after the last committed frame.
    #[inline]
    pub fn produced(&self) -> u64 {
        self.committed
    }

    /// Position after the last published frame.
    #[inline]
    pub fn published(&self) -> u64 {
        self.committed - u64::from(self.pending_bytes)
    }

    /// Position up to which the consumer has released.
    ///
    /// # Errors
    /// When that position cannot be true; the same error from then on.
    #[inline]
    pub fn consumed(&mut self) -> Result<u64, Corrupt> {
        self.refresh_head();
        match &self.corrupt {
            None => Ok(self.known_head()),
            Some(corrupt) => Err(**corrupt),
        }
    }

    /// Bytes between the last head that we saw and the last committed frame.
    #[inline]
    pub fn in_use_bytes(&self) -> usize {
        self.in_use_bytes as usize
    }

    /// Asks to be woken when space is released; stays in force until the next commit.
    ///
    /// To sleep: call this, announce the sleep, ask [`has_room`](Self::has_room) again, and only
    /// then sleep.
    pub fn want_space(&mut self) {
        self.wants_space = true;
        self.storage.space_wanted().store(1, Ordering::Relaxed);
        // Pairs with `RELEASE_FENCE`: either the consumer sees the flag, or we see its head.
        fence(O::WANT_FENCE);
    }

    /// Whether a frame of `bytes` has room now. A lane in its nursery has, because it can grow.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        if self.area == Area::Nursery || self.fit(bytes).is_some() {
            return true;
        }
        self.refresh_head();
        self.fit(bytes).is_some()
    }

    /// As [`fit`](Self::fit), for a frame that does not fit as things were when we last looked.
    #[cold]
    fn make_room(&mut self, bytes: usize) -> Option<usize> {
        self.refresh_head();
        if self.fit(bytes).is_none() && self.area == Area::Nursery {
            self.grow();
        }
        self.fit(bytes)
    }

    /// Goes on in the lane's ring, which nothing lies in yet.
    fn grow(&mut self) {
        // Relaxed: the store of the next tail orders it. A consumer that sees a tail behind this
        // position sees this too.
        self.storage
            .grown_at()
            .store(grown_word(self.committed), Ordering::Relaxed);
        self.area = Area::Ring;
        self.begin = self.committed;
    }

    /// Pad that a frame of `bytes` needs in front of it, if the two have room.
    #[inline]
    fn fit(&self, bytes: usize) -> Option<usize> {
        let capacity = self.storage.capacity_bytes(self.area);
        let to_end = capacity - self.offset(0);
        let pad = if bytes <= to_end { 0 } else { to_end };
        // What is in use from before the lane grew does not lie in its ring.
        let used = u64::from(self.in_use_bytes).min(self.committed - self.begin) as usize;
        (bytes <= self.area.longest_frame(capacity) && pad + bytes <= capacity - used)
            .then_some(pad)
    }

    /// Where the byte lies that comes `ahead` behind the last committed frame.
    #[inline]
    fn offset(&self, ahead: u32) -> usize {
        let position = self.committed - self.begin + u64::from(ahead);
        position as usize & (self.storage.capacity_bytes(self.area) - 1)
    }

    #[inline]
    fn known_head(&self) -> u64 {
        self.committed - u64::from(self.in_use_bytes)
    }

    #[cold]
    fn refresh_head(&mut self) {
        if self.corrupt.is_some() {
            return;
        }
        // Pairs with the store in `Reader::release`.
        let head = self.storage.head().load(O::HEAD_LOAD);
        let (known, limit) = (self.known_head(), self.published());
        if head < known || head > limit || !head.is_multiple_of(UNIT_BYTES as u64) {
            self.corrupt = Some(Box::new(Corrupt {
                what: "lane head",
                found: head,
                position: known,
                limit,
            }));
        } else {
            self.in_use_bytes = (self.committed - head) as u32;
        }
    }
}
