//! Parts of segments that endpoints have registered, for peers to read.

use std::sync::{Arc, Weak};

use crate::memory::lent::SegmentPart;
use crate::memory::pool::Registration;

/// All of a network.
#[derive(Default)]
pub(super) struct Areas {
    registered: Vec<Area>,
    count: usize,
}

struct Area {
    owner: u32,
    key: u64,
    /// Gone with its registration.
    part: Weak<SegmentPart>,
}

/// The registration of a part of a segment.
pub(super) struct AreaRegistration {
    owner: u32,
    key: u64,
    base: u64,
    _part: Arc<SegmentPart>,
}

// SAFETY: there is no descriptor.
unsafe impl Registration for AreaRegistration {
    fn link(&self) -> usize {
        self.owner as usize
    }

    fn descriptor(&self) -> *mut libc::c_void {
        std::ptr::null_mut()
    }

    fn key(&self) -> u64 {
        self.key
    }

    fn base(&self) -> u64 {
        self.base
    }
}

impl Areas {
    /// How many there have been.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A part, which peers name by `key` and from `base` on. Those that are gone are forgotten.
    pub fn add(&mut self, owner: u32, key: u64, base: u64, part: &SegmentPart) -> AreaRegistration {
        self.registered.retain(|area| area.part.strong_count() > 0);
        let part = Arc::new(part.clone());
        self.count += 1;
        self.registered.push(Area {
            owner,
            key,
            part: Arc::downgrade(&part),
        });
        AreaRegistration {
            owner,
            key,
            base,
            _part: part,
        }
    }

    /// Copy of bytes at an offset of what `owner` has registered by this key, as the simulated
    /// adapter of a peer reads them; `None` for what is not there.
    pub fn peek(&self, owner: u32, key: u64, offset: u64, bytes: usize) -> Option<Box<[u8]>> {
        let is_it = |area: &&Area| (area.owner, area.key) == (owner, key);
        let areas = self.registered.iter().filter(is_it);
        let part = areas.filter_map(|area| area.part.upgrade()).next()?;
        let memory = part.memory();
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(bytes)? > memory.len() {
            return None;
        }
        let mut copy = vec![0_u8; bytes].into_boxed_slice();
        // SAFETY: the range was checked against the part, which is mapped. The code that drives the
        // simulation is one thread, and nobody holds a reference to what it has announced.
        unsafe {
            let from = memory.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes);
        }
        Some(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::segment::Segment;

    #[test]
    fn what_is_registered_is_read_and_nothing_else() {
        let segment = Segment::on_heap(4096);
        // SAFETY: the segment has these bytes, and nobody else accesses them.
        unsafe { segment.as_ptr().add(100).copy_from(b"read".as_ptr(), 4) };
        let mut areas = Areas::default();
        let part = |first, bytes| SegmentPart::new(Arc::clone(&segment), first, bytes).unwrap();
        let registration = areas.add(3, 7, 0, &part(90, 20));
        assert_eq!(areas.peek(3, 7, 10, 4).as_deref(), Some(&b"read"[..]));
        for (owner, key, offset, bytes) in [
            (2, 7, 10, 4),
            (3, 8, 10, 4),
            (3, 7, 17, 4),
            (3, 7, u64::MAX, 1),
        ] {
            assert_eq!(areas.peek(owner, key, offset, bytes), None);
        }
        drop(registration);
        assert_eq!(areas.peek(3, 7, 10, 4), None, "it is registered no more");
        areas.add(3, 9, 0, &part(0, 64));
        assert_eq!((areas.registered.len(), areas.count()), (1, 2));
    }
}
