//! Hugepages that the private mappings of a process share, so that small ones are on them too.
//!
//! Pages are asked for when no range is free that is long enough, and given back once none of
//! theirs is in use. Ranges are whole ordinary pages, so that two of them are registered apart.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use super::hugepage::{Pages, page_bytes};
use crate::sync::{PoisonError, StaticMutex};

/// The arena of this process, by the process whose it is.
static ARENA: StaticMutex<(u32, Arena<Pages>)> = StaticMutex::new((0, Arena::new()));

/// What ranges are cut from.
pub(super) trait Chunk: Sized {
    /// First byte.
    fn first(&self) -> NonNull<u8>;

    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// Size of one of its pages.
    fn page_bytes(&self) -> usize;
}

/// Zeroed memory of the arena; it goes back there when it is dropped.
pub(super) struct Range {
    first: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
}

impl Range {
    /// A zeroed range of at least `bytes`, whole ordinary pages long. `allocate` maps hugepages for
    /// so many bytes, where there is no room; `None` where it has none.
    pub fn new(bytes: usize, allocate: impl FnOnce(usize) -> Option<Pages>) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(page_bytes())?;
        let taken = with_arena(|arena| arena.take(bytes, allocate))?;
        Some(Self {
            first: taken.zeroed(),
            bytes,
            page_bytes: taken.page_bytes,
        })
    }

    /// First byte.
    pub fn first(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Size of one of its pages.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // What that returns is dropped behind the lock.
        let _unused = with_arena(|arena| arena.give(self.first, self.bytes));
    }
}

/// A range that nobody else has.
struct Taken {
    first: NonNull<u8>,
    /// Bytes from its first on that may have been in use before.
    used_before: usize,
    page_bytes: usize,
}

impl Taken {
    /// Its first byte. A long range takes a while: nobody waits for that.
    fn zeroed(&self) -> NonNull<u8> {
        // SAFETY: so many bytes of it were in use before, and nobody uses them now.
        unsafe { self.first.write_bytes(0, self.used_before) };
        self.first
    }
}

fn with_arena<R>(call: impl FnOnce(&mut Arena<Pages>) -> R) -> R {
    let mut arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if arena.0 != process {
        // A forked child has none of its parent's pages.
        let parents = std::mem::replace(&mut *arena, (process, Arena::new()));
        std::mem::forget(parents);
    }
    call(&mut arena.1)
}

/// Chunks, by the addresses of their first bytes.
struct Arena<C>(BTreeMap<usize, Cut<C>>);

/// A chunk and what is free of it.
struct Cut<C> {
    chunk: C,
    /// Lengths of free ranges, by where they begin; no two of them touch.
    free: BTreeMap<usize, usize>,
    /// Bytes from here on were never in use: they are zero.
    fresh: usize,
}

impl<C: Chunk> Arena<C> {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// So many bytes, of a new chunk where no other has them.
    fn take(&mut self, bytes: usize, allocate: impl FnOnce(usize) -> Option<C>) -> Option<Taken> {
        if let Some(taken) = self.0.values_mut().find_map(|cut| cut.take(bytes)) {
            return Some(taken);
        }
        let chunk = allocate(bytes)?;
        let mut cut = Cut {
            free: BTreeMap::from([(0, chunk.bytes())]),
            chunk,
            fresh: 0,
        };
        let taken = cut.take(bytes);
        self.0.insert(cut.chunk.first().addr().get(), cut);
        taken
    }

    /// A range is not in use any more; a chunk that now is not in use either.
    fn give(&mut self, first: NonNull<u8>, bytes: usize) -> Option<C> {
        let at = first.addr().get();
        let (&begin, cut) = self.0.range_mut(..=at).next_back()?;
        cut.give(at - begin, bytes);
        let is_unused = cut.free.get(&0) == Some(&cut.chunk.bytes());
        is_unused
            .then(|| self.0.remove(&begin))
            .flatten()
            .map(|cut| cut.chunk)
    }
}

impl<C: Chunk> Cut<C> {
    /// The first free range that is long enough.
    fn take(&mut self, bytes: usize) -> Option<Taken> {
        let (&at, &free) = self.free.iter().find(|&(_, &free)| free >= bytes)?;
        self.free.remove(&at);
        if free > bytes {
            self.free.insert(at + bytes, free - bytes);
        }
        // SAFETY: a free range lies in the chunk.
        let first = unsafe { self.chunk.first().add(at) };
        let used_before = self.fresh.saturating_sub(at).min(bytes);
        self.fresh = self.fresh.max(at + bytes);
        Some(Taken {
            first,
            used_before,
            page_bytes: self.chunk.page_bytes(),
        })
    }

    fn give(&mut self, mut at: usize, mut bytes: usize) {
        if let Some(next) = self.free.remove(&(at + bytes)) {
            bytes += next;
        }
        if let Some((&before, &length)) = self.free.range(..at).next_back()
            && before + length == at
        {
            (at, bytes) = (before, length + bytes);
        }
        self.free.insert(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 64;

    /// Ordinary memory, as long as asked and at least as a chunk is.
    struct Heap(NonNull<[u8]>);

    impl Heap {
        fn allocate(bytes: usize) -> Option<Self> {
            let memory = vec![0; bytes.next_multiple_of(CHUNK)].into_boxed_slice();
            NonNull::new(Box::into_raw(memory)).map(Self)
        }
    }

    impl Drop for Heap {
        fn drop(&mut self) {
            // SAFETY: it came from a box, and this is its only drop.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }

    impl Chunk for Heap {
        fn first(&self) -> NonNull<u8> {
            self.0.cast()
        }

        fn bytes(&self) -> usize {
            self.0.len()
        }

        fn page_bytes(&self) -> usize {
            CHUNK
        }
    }

    fn take(arena: &mut Arena<Heap>, bytes: usize) -> NonNull<u8> {
        let taken = arena.take(bytes, Heap::allocate).expect("memory");
        let first = taken.zeroed();
        // SAFETY: the arena gave so many bytes, which nobody else uses.
        let range = unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), bytes) };
        assert!(range.iter().all(|byte| *byte == 0), "not zeroed");
        range.fill(0xff);
        first
    }

    #[test]
    fn small_ranges_share_a_chunk_and_are_zeroed_again() {
        let mut arena = Arena::new();
        let one = take(&mut arena, 16);
        let two = take(&mut arena, 16);
        let three = take(&mut arena, 32);
        assert_eq!(arena.0.len(), 1);
        let four = take(&mut arena, 8);
        assert_eq!(arena.0.len(), 2);
        assert!(arena.give(four, 8).is_some());

        // Given back in an order in which each way of growing together is needed.
        assert!(arena.give(three, 32).is_none());
        assert!(arena.give(one, 16).is_none());
        let again = take(&mut arena, 8);
        assert_eq!(again, one);
        assert!(arena.give(two, 16).is_none());
        let long = take(&mut arena, 56);
        assert_eq!(
            arena.0.len(),
            1,
            "a range that grew together is long enough"
        );
        assert!(arena.give(again, 8).is_none());
        assert!(arena.give(long, 56).is_some());
        assert!(arena.0.is_empty());
    }

    #[test]
    fn a_range_may_be_longer_than_a_chunk_and_leaves_its_rest_to_others() {
        let mut arena = Arena::new();
        let long = take(&mut arena, 3 * CHUNK - 16);
        let rest = take(&mut arena, 16);
        assert_eq!(arena.0.len(), 1);
        assert!(arena.give(long, 3 * CHUNK - 16).is_none());
        assert!(arena.give(rest, 16).is_some());
        assert!(arena.take(8, |_| None).is_none());
    }

    #[test]
    fn ranges_in_any_order_never_overlap() {
        let mut arena = Arena::new();
        let (mut state, mut held) = (1u64, Vec::<(NonNull<u8>, usize)>::new());
        for _ in 0..5000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = (state >> 33) as usize;
            if held.len() < 12 && !number.is_multiple_of(3) {
                let bytes = 1 + number % 40;
                let first = take(&mut arena, bytes);
                let (begin, end) = (first.addr().get(), first.addr().get() + bytes);
                for (other, length) in &held {
                    let other = other.addr().get();
                    assert!(end <= other || other + length <= begin);
                }
                held.push((first, bytes));
            } else if !held.is_empty() {
                let (first, bytes) = held.swap_remove(number % held.len());
                drop(arena.give(first, bytes));
            }
        }
        for (first, bytes) in held {
            drop(arena.give(first, bytes));
        }
        assert!(arena.0.is_empty());
    }
}
