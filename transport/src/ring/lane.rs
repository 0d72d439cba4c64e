//! The two ends of a lane in a segment: bytes in place.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::segment::Segment;
use crate::ring::claim;
use crate::ring::doorbell::{self, Bell};
use crate::ring::layout::{InboxLayout, MappedInbox, MappedLane};
use crate::ring::spsc::{Corrupt, Reader, ReaderState, Span, Writer};
use crate::ring::storage::{Area, LaneStorage, Shipped};

/// The sending end: one per lane. Frames are reserved, written in place, committed, and published
/// together.
///
/// What is committed and not published when this is dropped is lost.
pub struct Producer {
    writer: Writer<MappedLane<Arc<Segment>>, Shipped>,
    bell: Arc<Bell>,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Producer(produced {}, published {})",
            self.produced(),
            self.published()
        )
    }
}

impl Producer {
    /// Takes the sending end of `lane` in the inbox that lies in `segment`; `bell` wakes the
    /// inbox's owner.
    ///
    /// # Errors
    /// When the segment holds no inbox of this layout, or the lane does not exist, has a producer,
    /// or is damaged.
    pub fn new(
        segment: Arc<Segment>,
        layout: InboxLayout,
        lane: u32,
        bell: Arc<Bell>,
    ) -> Result<Self> {
        let inbox = MappedInbox::new(segment, layout)?;
        inbox.header().check::<Shipped>(layout)?;
        inbox.settle()?;
        if lane >= layout.lanes() {
            return Err(Error::config(
                "lane",
                format!("lane {lane} of an inbox with {} lanes", layout.lanes()),
            ));
        }
        let storage = inbox.owned_lane(lane);
        // Two producers would write into each other's frames.
        if !claim::claim::<_, Shipped>(storage.claimed()) {
            return Err(Error::config(
                "lane",
                format!("lane {lane} has a producer already; drop that one first"),
            ));
        }
        let writer = Writer::resume(storage).map_err(|corrupt| {
            claim::give_up::<_, Shipped>(inbox.lane(lane).claimed());
            Error::config("lane", format!("lane {lane}: {corrupt}"))
        })?;
        Ok(Self { writer, bell })
    }

    /// Space for a frame of `bytes`, in place; its first four bytes are overwritten at commit.
    /// `None` where there is no room now. Reserving again forgets the earlier reservation.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of 8 between 8 and a quarter of the lane's ring.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let span = self.writer.reserve(bytes)?;
        let area = self.writer.storage().area(span.area);
        // SAFETY: the span lies inside the area; the writer found it free, so the consumer does not
        // read it before a publish, and `&mut self` keeps us from publishing while the slice lives.
        Some(unsafe { std::slice::from_raw_parts_mut(area.add(span.offset), span.bytes) })
    }

    /// Makes the first `bytes` of the reservation a frame: pending, and not yet seen by the
    /// consumer.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of 8 between 8 and what was reserved.
    #[inline]
    pub fn commit(&mut self, bytes: usize) {
        self.writer.commit(bytes);
    }

    /// Bytes committed and not yet published.
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        self.writer.pending_bytes()
    }

    /// Shows all pending frames to the consumer, and wakes it if it sleeps: whether it did. Nothing
    /// where nothing is pending.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.writer.publish(&*self.bell)
    }

    /// Position after the last committed frame, in bytes since the lane began, pads included.
    #[inline]
    pub fn produced(&self) -> u64 {
        self.writer.produced()
    }

    /// Position after the last published frame.
    #[inline]
    pub fn published(&self) -> u64 {
        self.writer.published()
    }

    /// Position up to which the consumer has released.
    ///
    /// # Errors
    /// When that position cannot be true; the same error from then on.
    #[inline]
    pub fn consumed(&mut self) -> Result<u64, Corrupt> {
        self.writer.consumed()
    }

    /// Size of the lane's ring.
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.writer.storage().capacity_bytes(Area::Ring)
    }

    /// Bytes between the last release that we saw and the last committed frame.
    #[inline]
    pub fn in_use_bytes(&self) -> usize {
        self.writer.in_use_bytes()
    }

    /// Asks the consumer to ring *our* bell when it releases space; in force until the next commit.
    /// The consumer must have been given that bell.
    ///
    /// To sleep without losing a wake-up: `want_space`, announce the sleep,
    /// [`has_room`](Self::has_room), sleep if not.
    pub fn want_space(&mut self) {
        self.writer.want_space();
    }

    /// Whether a frame of `bytes` has room now; looks at the consumer's position if need be.
    #[inline]
    pub fn has_room(&mut self, bytes: usize) -> bool {
        self.writer.has_room(bytes)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let storage = self.writer.storage();
        if storage.segment().is_mapped_here() {
            claim::give_up::<_, Shipped>(storage.claimed());
        }
    }
}

/// Whom to wake when lanes of an inbox have space again.
#[derive(Debug)]
pub(crate) struct Bells {
    bells: Arc<[Option<Arc<Bell>>]>,
    lanes_per_producer: u32,
}

impl Bells {
    /// Lanes `n * lanes_per_producer` and on are those of the producer that `bells[n]` wakes.
    ///
    /// # Panics
    /// When `lanes_per_producer` is 0.
    pub(crate) fn new(bells: Arc<[Option<Arc<Bell>>]>, lanes_per_producer: u32) -> Self {
        assert!(lanes_per_producer > 0, "bells for 0 lanes each");
        Self {
            bells,
            lanes_per_producer,
        }
    }

    #[cold]
    fn ring(&self, lane: u32) {
        if let Some(Some(bell)) = self.bells.get((lane / self.lanes_per_producer) as usize) {
            doorbell::ring(&**bell);
        }
    }
}

/// The receiving end of a lane, borrowed from its inbox: frames in place.
pub struct Consumer<'a> {
    reader: Reader<'a, MappedLane<&'a Segment>, Shipped>,
    bells: &'a Bells,
}

impl fmt::Debug for Consumer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Consumer(consumed {})", self.consumed())
    }
}

impl<'a> Consumer<'a> {
    /// The end of the lane in `storage`, at which its consumer stands as `state` says.
    #[inline]
    pub(crate) fn new(
        state: &'a mut Option<Box<ReaderState>>,
        storage: MappedLane<&'a Segment>,
        bells: &'a Bells,
    ) -> Self {
        let state = state.get_or_insert_with(|| Box::new(ReaderState::resume(&storage)));
        Self {
            reader: Reader::new(state, storage),
            bells,
        }
    }

    /// The next published frame, in place; the same one until [`pop`](Self::pop). Its first four
    /// bytes are the length that was checked, but may since have been changed by a hostile
    /// producer: use the slice's own length.
    ///
    /// # Errors
    /// When the lane holds a position or length that cannot be true; the same error from then on.
    #[inline]
    pub fn front(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        let Some(Span {
            area,
            offset,
            bytes,
        }) = self.reader.front()?
        else {
            return Ok(None);
        };
        let area = self.reader.storage().area(area);
        // SAFETY: the reader checked that the span lies inside the area; it is published, and not
        // released while the slice borrows `self`. That a producer leaves published bytes alone is
        // trusted among processes of one user and job.
        Ok(Some(unsafe {
            std::slice::from_raw_parts(area.add(offset), bytes)
        }))
    }

    /// Moves past the frame that [`front`](Self::front) returned; nothing where it returned none.
    /// Releases space by itself every eighth of the ring, or half of the nursery.
    #[inline]
    pub fn pop(&mut self) {
        if self.reader.pop() {
            self.release();
        }
    }

    /// Gives the space of all popped frames back to the producer, and wakes it if it waits for
    /// that.
    #[inline]
    pub fn release(&mut self) {
        if self.reader.release() {
            self.bells.ring(self.reader.storage().number());
        }
    }

    /// Whether nothing more is published (or the lane is given up, see [`front`](Self::front)).
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.reader.is_empty()
    }

    /// Position after the last popped frame, in bytes since the lane began, pads included.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.reader.consumed()
    }
}
