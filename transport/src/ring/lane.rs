//! The two ends of a lane in a segment: bytes in place.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::segment::Segment;
use crate::ring::claim;
use crate::ring::doorbell::{self, Bell};
use crate::ring::layout::{InboxLayout, MappedInbox, MappedLane};
use crate::ring::spsc::{Corrupt, Reader, Writer};
use crate::ring::storage::Shipped;

/// The sending end: one per lane. Frames are reserved, written in place, committed, and published together.
///
/// What is committed and not published when this is dropped is lost.
pub struct Producer {
    writer: Writer<MappedLane, Shipped>,
    inbox: MappedInbox,
    bitmap_word: usize,
    bit: u64,
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
    /// Takes the sending end of `lane` in the inbox that lies in `segment`; `bell` wakes the inbox's owner.
    ///
    /// # Errors
    /// When the segment holds no inbox of this layout, or the lane does not exist, has a producer, or is damaged.
    pub fn new(segment: Arc<Segment>, layout: InboxLayout, lane: u32, bell: Arc<Bell>) -> Result<Self> {
        let inbox = MappedInbox::new(segment, layout)?;
        inbox.header().check::<Shipped>(layout)?;
        if lane >= layout.lanes() {
            return Err(Error::config(
                "lane",
                format!("lane {lane} of an inbox with {} lanes", layout.lanes()),
            ));
        }
        let storage = inbox.lane(lane);
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
        Ok(Self {
            writer,
            inbox,
            bitmap_word: lane as usize / 64,
            bit: 1 << (lane % 64),
            bell,
        })
    }

    /// Space for a frame of `bytes`, in place; its first four bytes are overwritten at commit. `None` where there is no
    /// room now. Reserving again forgets the earlier reservation.
    ///
    /// # Panics
    /// When `bytes` is not a multiple of 8 between 8 and a quarter of the lane.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let span = self.writer.reserve(bytes)?;
        // SAFETY: the span lies inside the lane; the writer found it free, so the consumer does not read it before a
        // publish, and `&mut self` keeps us from publishing while the slice lives.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.writer.storage().data().add(span.offset), span.bytes)
        })
    }

    /// Makes the first `bytes` of the reservation a frame: pending, and not yet seen by the consumer.
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

    /// Shows all pending frames to the consumer, and wakes it if it sleeps. Nothing where nothing is pending.
    #[inline]
    pub fn publish(&mut self) {
        self.writer
            .publish(&self.inbox.bitmap()[self.bitmap_word], self.bit, &*self.bell);
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

    /// Size of the lane.
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.inbox.layout().lane_bytes() as usize
    }

    /// Bytes between the last release that we saw and the last committed frame.
    #[inline]
    pub fn in_use_bytes(&self) -> usize {
        self.writer.in_use_bytes()
    }

    /// Asks the consumer to ring *our* bell when it releases space; in force until the next commit. The consumer must have
    /// been given that bell.
    ///
    /// To sleep without losing a wake-up: `want_space`, announce the sleep, [`has_room`](Self::has_room), sleep if not.
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
        if self.inbox.segment().is_mapped_here() {
            claim::give_up::<_, Shipped>(self.writer.storage().claimed());
        }
    }
}

/// The receiving end of a lane: frames in place.
pub struct Consumer {
    reader: Reader<MappedLane, Shipped>,
    bell: Option<Arc<Bell>>,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Consumer(consumed {})", self.consumed())
    }
}

impl Consumer {
    pub(crate) fn new(storage: MappedLane) -> Result<Self, Corrupt> {
        Ok(Self {
            reader: Reader::resume(storage)?,
            bell: None,
        })
    }

    /// Sets whom to wake when it waits for space.
    pub fn set_bell(&mut self, bell: Arc<Bell>) {
        self.bell = Some(bell);
    }

    /// The next published frame, in place; the same one until [`pop`](Self::pop). Its first four bytes are the length that
    /// was checked, but may since have been changed by a hostile producer: use the slice's own length.
    ///
    /// # Errors
    /// When the producer wrote a position or length that cannot be true; the same error from then on.
    #[inline]
    pub fn front(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        let Some(span) = self.reader.front()? else {
            return Ok(None);
        };
        // SAFETY: the reader checked that the span lies inside the lane; it is published, and not released while the slice
        // borrows `self`. That a producer leaves published bytes alone is trusted among processes of one user and job.
        Ok(Some(unsafe {
            std::slice::from_raw_parts(self.reader.storage().data().add(span.offset), span.bytes)
        }))
    }

    /// Moves past the frame that [`front`](Self::front) returned; nothing where it returned none. Releases space by itself
    /// every eighth of the lane.
    #[inline]
    pub fn pop(&mut self) {
        if self.reader.pop() {
            self.release();
        }
    }

    /// Gives the space of all popped frames back to the producer, and wakes it if it waits for that.
    #[inline]
    pub fn release(&mut self) {
        if self.reader.release()
            && let Some(bell) = &self.bell
        {
            doorbell::ring(&**bell);
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
