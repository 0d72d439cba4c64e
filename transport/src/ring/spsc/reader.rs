//! The consumer's side of a byte ring.

use std::marker::PhantomData;

use super::{Corrupt, PAD, Span, UNIT_BYTES, check_start, grown_position};
use crate::ring::storage::{Area, LaneStorage, Orderings};
use crate::sync::{Ordering, Word, fence};

/// Where a consumer stands: all that it keeps of a lane between two looks.
#[derive(Debug)]
pub struct ReaderState {
    /// Start of the next frame that is not popped.
    position: u64,
    /// Position at the area's offset 0.
    begin: u64,
    /// Boxed: hardly any lane ever has one.
    corrupt: Option<Box<Corrupt>>,
    /// From `position` to where the last tail that we loaded lets us read.
    available_bytes: u32,
    /// From the last head that we stored to `position`.
    unreleased_bytes: u32,
    /// Length of the frame at `position`, once it was read and checked; 0 before.
    front_bytes: u32,
    /// Where `position` lies.
    area: Area,
}

impl ReaderState {
    /// Goes on where the lane's last consumer released; that is 0 in a fresh lane. The reader then
    /// reports positions found there that cannot be true.
    pub fn resume<S: LaneStorage>(storage: &S) -> Self {
        // The claim of the inbox ordered us after its last owner, hence after the growth that this
        // one has seen.
        let head = storage.head().load(Ordering::Relaxed);
        let grown = grown_position(storage.grown_at().load(Ordering::Relaxed));
        let (area, begin) = match grown {
            Ok(Some(position)) if position <= head => (Area::Ring, position),
            _ => (Area::Nursery, 0),
        };
        let corrupt = check_start("lane head", head).and(grown).err();
        Self {
            position: head,
            begin,
            corrupt: corrupt.map(Box::new),
            available_bytes: 0,
            unreleased_bytes: 0,
            front_bytes: 0,
            area,
        }
    }

    /// Position after the last popped frame.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.position
    }

    /// Where the next frame lies, or will: a pad may stand there instead, and the lane may grow.
    #[inline]
    pub fn place<S: LaneStorage>(&self, storage: &S) -> (Area, usize) {
        let capacity = storage.capacity_bytes(self.area);
        let offset = (self.position - self.begin) as usize & (capacity - 1);
        (self.area, offset)
    }

    /// Bytes that were published when the tail was last loaded, and are not released.
    pub fn in_use_bytes(&self) -> usize {
        self.available_bytes as usize + self.unreleased_bytes as usize
    }
}

/// Consumer's side: where frames are read in place. A short-lived view: what lasts is in its
/// [`ReaderState`].
#[derive(Debug)]
pub struct Reader<'a, S, O> {
    state: &'a mut ReaderState,
    storage: S,
    orderings: PhantomData<O>,
}

impl<'a, S: LaneStorage, O: Orderings> Reader<'a, S, O> {
    /// The reader of the lane in `storage`, whose state is `state`.
    #[inline]
    pub fn new(state: &'a mut ReaderState, storage: S) -> Self {
        Self {
            state,
            storage,
            orderings: PhantomData,
        }
    }

    /// Where this ring lives.
    #[inline]
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Finds the next published frame; the same one until [`pop`](Self::pop).
    ///
    /// # Errors
    /// When a position or length cannot be true; the same error from then on.
    #[inline]
    pub fn front(&mut self) -> Result<Option<Span>, Corrupt> {
        if self.state.front_bytes == 0 && !self.find_front()? {
            return Ok(None);
        }
        Ok(Some(Span {
            area: self.state.area,
            offset: self.offset(),
            bytes: self.state.front_bytes as usize,
        }))
    }

    /// Moves past the frame that [`front`](Self::front) returned; does nothing where it returned
    /// none. Returns true when an eighth of the ring (half of the nursery, whose eighth is the
    /// smallest frame) waits to be released.
    #[inline]
    pub fn pop(&mut self) -> bool {
        self.skip(self.state.front_bytes);
        self.state.front_bytes = 0;
        let step = match self.state.area {
            Area::Nursery => self.capacity() / 2,
            Area::Ring => self.capacity() / 8,
        };
        self.state.unreleased_bytes as usize >= step
    }

    /// Gives the space of all popped frames back. Returns whether the producer asked to be woken
    /// for it.
    #[inline]
    pub fn release(&mut self) -> bool {
        if self.state.unreleased_bytes == 0 {
            return false;
        }
        // Pairs with the load in `Writer::refresh_head`.
        self.storage
            .head()
            .store(self.state.position, O::HEAD_STORE);
        self.state.unreleased_bytes = 0;
        // Pairs with `WANT_FENCE` and `SLEEP_FENCE` of the producer.
        fence(O::RELEASE_FENCE);
        self.storage.space_wanted().load(Ordering::Relaxed) != 0
    }

    /// Whether nothing more is published.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.state.front_bytes == 0
            && self.state.available_bytes == 0
            && !matches!(self.refresh_tail(), Ok(true))
    }

    /// Position after the last popped frame.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.state.consumed()
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.storage.capacity_bytes(self.state.area)
    }

    #[inline]
    fn offset(&self) -> usize {
        self.state.place(&self.storage).1
    }

    #[inline]
    fn skip(&mut self, bytes: u32) {
        self.state.position += u64::from(bytes);
        self.state.available_bytes -= bytes;
        self.state.unreleased_bytes += bytes;
    }

    /// Reads and checks the next length, behind a pad if there is one. False where nothing is
    /// published.
    #[inline]
    fn find_front(&mut self) -> Result<bool, Corrupt> {
        if self.state.available_bytes == 0 && !self.refresh_tail()? {
            return Ok(false);
        }
        let longest = self.state.area.longest_frame(self.capacity());
        let mut length = self.length_here();
        if length == PAD {
            // A pad alone is never published, hence at least one unit must follow; and no frame
            // begins with a pad that the longest frame of the area would not have needed.
            let pad = self.capacity() - self.offset();
            let available = self.state.available_bytes as usize;
            if pad >= longest || pad >= available {
                return Err(self.poison("frame length", PAD.into(), available.min(longest) as u64));
            }
            self.skip(pad as u32);
            length = self.length_here();
        }
        let bytes = length as usize;
        let to_end = self.capacity() - self.offset();
        let limit = longest.min(self.state.available_bytes as usize).min(to_end);
        if bytes == 0 || bytes > limit || !bytes.is_multiple_of(UNIT_BYTES) {
            return Err(self.poison("frame length", length.into(), limit as u64));
        }
        self.state.front_bytes = length;
        Ok(true)
    }

    #[inline]
    fn length_here(&self) -> u32 {
        // SAFETY: `offset` is masked to the area's capacity, and a multiple of 8 because `position`
        // and `begin` are; what lies there is published, and its producer does not write it before
        // we release it.
        unsafe { self.storage.read_length(self.state.area, self.offset()) }
    }

    /// Loads the tail, where everything up to the last one is read; whether something new is there.
    #[inline]
    fn refresh_tail(&mut self) -> Result<bool, Corrupt> {
        if let Some(corrupt) = &self.state.corrupt {
            return Err(**corrupt);
        }
        // Pairs with the store in `Writer::publish`.
        let tail = self.storage.tail().load(O::TAIL_LOAD);
        let mut end = tail;
        if self.state.area == Area::Nursery
            && let Some(position) = self.growth()?
        {
            if position == self.state.position {
                self.state.area = Area::Ring;
                self.state.begin = position;
            } else {
                // What comes before that position is read first, from the nursery. A position
                // behind the tail is of a growth that is not published yet.
                end = end.min(position);
            }
        }
        let released = self.state.position - u64::from(self.state.unreleased_bytes);
        let limit = released.max(self.state.begin) + self.capacity() as u64;
        if end < self.state.position || end > limit || !end.is_multiple_of(UNIT_BYTES as u64) {
            return Err(self.poison("lane tail", end, limit));
        }
        self.state.available_bytes = (end - self.state.position) as u32;
        Ok(self.state.available_bytes != 0)
    }

    /// Position at which the lane grew or is about to, if so; never one that we have passed. Comes
    /// after the load of the tail, which orders it.
    #[inline]
    fn growth(&mut self) -> Result<Option<u64>, Corrupt> {
        // Relaxed: pairs with the store in `Writer::grow`, through the tail.
        match grown_position(self.storage.grown_at().load(Ordering::Relaxed)) {
            Ok(Some(position)) if position < self.state.position => {
                Err(self.poison("lane growth", position, self.state.position))
            }
            Err(corrupt) => Err(self.poison(corrupt.what, corrupt.found, corrupt.limit)),
            fine => fine,
        }
    }

    /// Gives the lane up: it reports the same error for ever, and reads nothing more.
    #[cold]
    fn poison(&mut self, what: &'static str, found: u64, limit: u64) -> Corrupt {
        let corrupt = Corrupt {
            what,
            found,
            position: self.state.position,
            limit,
        };
        self.state.available_bytes = 0;
        self.state.corrupt = Some(Box::new(corrupt));
        corrupt
    }
}
