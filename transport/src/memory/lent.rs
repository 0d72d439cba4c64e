//! Memory of somebody's that a link's operations use in place: it is lent for buffers, and given
//! back when none of these is left.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pool::{Buffer, Pool, Registration};
use super::segment::Segment;
use crate::error::{Error, Result};
use crate::link::RemoteMemory;

/// Buffers begin and end at multiples of this.
const LINE_BYTES: usize = 64;

/// Memory that can be lent.
///
/// # Safety
/// From [`first`](Self::first) on, [`bytes`](Self::bytes) bytes lie in one place for as long as the
/// value lives, wherever it is moved, and nobody accesses them but by it, or by leave of its
/// holder.
pub unsafe trait Lend: Send + Sync + 'static {
    /// The first byte, at a multiple of 64.
    fn first(&self) -> NonNull<u8>;
    /// How many there are, a multiple of 64.
    fn bytes(&self) -> usize;
}

/// A part of a segment, which stays mapped as long as this is there.
#[derive(Debug, Clone)]
pub struct SegmentPart {
    segment: Arc<Segment>,
    first: usize,
    bytes: usize,
}

impl SegmentPart {
    /// `bytes` bytes from `first` on.
    ///
    /// # Errors
    /// When the segment is shorter.
    pub fn new(segment: Arc<Segment>, first: usize, bytes: usize) -> Result<Self> {
        let end = first.checked_add(bytes);
        if end.is_none_or(|end| end > segment.len()) {
            let why = format!("{bytes} bytes from {first} on, of {}", segment.len());
            return Err(Error::config("part of a segment", why));
        }
        Ok(Self {
            segment,
            first,
            bytes,
        })
    }

    /// Its bytes, to which others may write.
    pub fn memory(&self) -> NonNull<[u8]> {
        // SAFETY: the segment has the byte.
        let first = unsafe { self.segment.as_ptr().add(self.first) };
        let first = NonNull::new(first).expect("a segment does not begin at address 0");
        NonNull::slice_from_raw_parts(first, self.bytes)
    }

    /// Where these bytes lie in it; `None` where they do not.
    fn offset_of(&self, first: NonNull<u8>, bytes: usize) -> Option<usize> {
        let own = self.memory().as_ptr().cast::<u8>() as usize;
        let offset = (first.as_ptr() as usize).checked_sub(own)?;
        (offset.checked_add(bytes)? <= self.bytes).then_some(offset)
    }
}

/// A part of a segment that a link has registered.
pub struct Registered {
    // Declared first: the registration ends before the memory goes.
    registration: Box<dyn Registration>,
    part: SegmentPart,
}

impl Registered {
    /// `registration` is that of this part.
    pub fn new(registration: Box<dyn Registration>, part: SegmentPart) -> Self {
        Self { registration, part }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:?})", self.part)
    }
}

/// What a buffer of lent memory knows of it.
pub(super) struct Lent {
    registered: Arc<Registered>,
    first: NonNull<u8>,
    _memory: Arc<dyn Lend>,
}

// SAFETY: `first` is a byte of memory that `_memory` keeps, which belongs to no thread.
unsafe impl Send for Lent {}
// SAFETY: as above; nothing is accessed by a shared reference.
unsafe impl Sync for Lent {}

impl Lent {
    pub fn first(&self) -> NonNull<u8> {
        self.first
    }

    pub fn registration(&self) -> &dyn Registration {
        &*self.registered.registration
    }

    /// Where a peer can read it.
    pub fn remote(&self) -> RemoteMemory {
        let offset = self.registered.part.offset_of(self.first, 0);
        RemoteMemory {
            address: self.registration().base() + offset.unwrap_or(0) as u64,
            key: self.registration().key(),
        }
    }
}

/// Whoever has memory lends it, each byte once.
pub struct Lender<M> {
    memory: Arc<M>,
    registered: Arc<Registered>,
    /// What was lent, in order, with gaps between the ranges.
    lent: Vec<Range<usize>>,
}

impl<M> fmt::Debug for Lender<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lender({:?} lent, {:?})", self.lent, self.registered)
    }
}

impl<M: Lend> Lender<M> {
    /// Nothing is lent yet.
    ///
    /// # Errors
    /// The memory, where it is not what was registered.
    pub fn new(memory: M, registered: &Arc<Registered>) -> std::result::Result<Self, M> {
        let place = registered.part.offset_of(memory.first(), memory.bytes());
        if place.is_none() {
            return Err(memory);
        }
        Ok(Self {
            memory: Arc::new(memory),
            registered: Arc::clone(registered),
            lent: Vec::new(),
        })
    }

    /// Whether none of its buffers is left.
    pub fn is_home(&self) -> bool {
        Arc::strong_count(&self.memory) == 1
    }

    /// Where a peer can read all of it.
    pub fn remote(&self) -> RemoteMemory {
        self.range(0).remote()
    }

    fn range(&self, from: usize) -> Lent {
        debug_assert!(from <= self.memory.bytes());
        // SAFETY: the memory has so many bytes.
        let first = unsafe { self.memory.first().add(from) };
        Lent {
            registered: Arc::clone(&self.registered),
            first,
            _memory: Arc::clone(&self.memory) as Arc<dyn Lend>,
        }
    }

    /// So many bytes from a multiple of 64 on, in whole lines; `None` where there are none, or some
    /// of them were lent before.
    pub fn take(&mut self, from: usize, bytes: usize) -> Option<Buffer> {
        let bytes = bytes.checked_next_multiple_of(LINE_BYTES)?;
        let end = from.checked_add(bytes)?;
        if bytes == 0 || !from.is_multiple_of(LINE_BYTES) || end > self.memory.bytes() {
            return None;
        }
        let at = self.lent.partition_point(|range| range.end <= from);
        if self.lent.get(at).is_some_and(|behind| behind.start < end) {
            return None;
        }
        self.lent.insert(at, from..end);
        self.join(at);
        self.join(at.wrapping_sub(1));
        Pool::over_lent(self.range(from), bytes).take()
    }

    /// Makes a range and the one behind it one, where nothing is between them.
    fn join(&mut self, at: usize) {
        if let Some([first, second]) = self.lent.get(at..).and_then(|ranges| ranges.first_chunk())
            && first.end == second.start
        {
            let whole = first.start..second.end;
            self.lent.splice(at..at + 2, [whole]);
        }
    }

    /// A buffer from here on was not used.
    pub fn put_back(&mut self, from: usize, buffer: Buffer) {
        let (start, bytes) = (buffer.as_ptr(), buffer.len());
        debug_assert_eq!(start, self.range(from).first().as_ptr().cast_const());
        drop(buffer);
        let at = self.lent.partition_point(|range| range.end <= from);
        let Some(range) = self.lent.get(at).cloned() else {
            return;
        };
        let left = [range.start..from, from + bytes..range.end];
        let left = left.into_iter().filter(|left| !left.is_empty());
        self.lent.splice(at..=at, left);
    }

    /// The memory, once none of its buffers is left.
    ///
    /// # Errors
    /// The lender, until then.
    pub fn end(self) -> std::result::Result<M, Self> {
        let Self {
            memory,
            registered,
            lent,
        } = self;
        Arc::try_unwrap(memory).map_err(|memory| Self {
            memory,
            registered,
            lent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pool::tests::Unregistered;

    /// Bytes of a segment.
    #[derive(Debug)]
    struct Part(Arc<Segment>, usize, usize);

    // SAFETY: the segment stays mapped, and tests have one value for a range.
    unsafe impl Lend for Part {
        fn first(&self) -> NonNull<u8> {
            // SAFETY: tests name offsets inside of the segment.
            NonNull::new(unsafe { self.0.as_ptr().add(self.1) }).unwrap()
        }

        fn bytes(&self) -> usize {
            self.2
        }
    }

    fn lender(first: usize, bytes: usize) -> std::result::Result<Lender<Part>, Part> {
        let segment = Segment::on_heap(4096);
        let part = Part(Arc::clone(&segment), first, bytes);
        let all = SegmentPart::new(segment, 1024, 1024).unwrap();
        let registered = Registered::new(Box::new(Unregistered(1000)), all);
        Lender::new(part, &Arc::new(registered))
    }

    #[test]
    fn the_memory_comes_back_when_none_of_its_buffers_is_left() {
        let mut lender = lender(1152, 256).unwrap();
        assert_eq!(lender.remote().address, 1000 + 128);
        let mut first = lender.take(0, 100).unwrap();
        let mut second = lender.take(128, 128).unwrap();
        assert_eq!((first.len(), second.len()), (128, 128));
        assert_eq!(second.remote().address, 1000 + 256);
        assert!(!lender.is_home());
        first.fill(1);
        second.fill(2);
        assert!(first.iter().all(|&byte| byte == 1));
        lender.put_back(128, second);
        assert_eq!(lender.take(128, 64).unwrap()[0], 2);
        let lender = lender.end().unwrap_err();
        drop(first);
        assert!(lender.is_home());
        assert_eq!(lender.end().unwrap().1, 1152);
    }

    #[test]
    fn each_byte_is_lent_once_in_whatever_order() {
        let mut lender = lender(1024, 640).unwrap();
        let mut held = Vec::new();
        for (from, bytes, is_lent) in [
            (128, 128, true),
            (0, 64, true),
            (64, 128, false),
            (192, 64, false),
            (576, 64, true),
            (576, 1, false),
            (640, 1, false),
            (0, 640, false),
            (320, 65, true),
            (256, 128, false),
            (256, 64, true),
            (64, 64, true),
            (10, 1, false),
            (448, 0, false),
            (448, usize::MAX, false),
            (448, 128, true),
        ] {
            let taken = lender.take(from, bytes);
            assert_eq!(taken.is_some(), is_lent, "{from} {bytes}");
            held.extend(taken.map(|buffer| (from, buffer)));
        }
        assert!(lender.lent.len() == 1 && lender.lent[0] == (0..640));
        held.sort_by_key(|(from, _)| *from);
        for (from, buffer) in held.drain(1..3) {
            lender.put_back(from, buffer);
        }
        assert_eq!(lender.lent, [0..64, 256..640]);
        let (from, buffer) = held.remove(0);
        lender.put_back(from, buffer);
        assert_eq!(lender.take(0, 256).unwrap().len(), 256);
    }

    #[test]
    fn what_was_not_registered_is_not_lent() {
        assert!(lender(1024, 1024).is_ok());
        for (first, bytes) in [(960, 128), (1024, 1088), (2048, 64), (0, 64)] {
            assert!(lender(first, bytes).is_err(), "{first} {bytes}");
        }
        let segment = Segment::on_heap(4096);
        for (first, bytes) in [(4096, 1), (1, 4096), (usize::MAX, 2)] {
            let segment = Arc::clone(&segment);
            assert!(SegmentPart::new(segment, first, bytes).is_err());
        }
    }
}
