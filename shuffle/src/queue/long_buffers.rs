//! Buffers of long records that are gone, kept for the next ones: the first use of fresh memory
//! costs more than a copy into memory that was used before.

use std::collections::{TryReserveError, VecDeque};

use trihop_transport::sync::{PoisonError, StaticMutex};

/// Shorter buffers are left to the allocator.
const LEAST_BYTES: usize = 1 << 10;

/// What a process keeps at most.
const KEPT_BUFFERS: usize = 64;
const KEPT_BYTES: usize = 8 << 20;

/// New buffers have a multiple of this, and some room for what is written behind a record.
const STEP_BYTES: usize = 4 << 10;
const TAIL_BYTES: usize = 64;

/// Emptied buffers, the last one behind.
struct Kept {
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
    /// What these may have.
    limit_bytes: usize,
}

/// Nobody waits for it: who does not get it at once does without kept buffers.
static KEPT: StaticMutex<Kept> = StaticMutex::new(Kept::new());

impl Kept {
    const fn new() -> Self {
        Self {
            buffers: VecDeque::new(),
            bytes: 0,
            limit_bytes: 0,
        }
    }

    /// One with room for `bytes`, and twice as much at most.
    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let fits = |of: &Vec<u8>| (bytes..=bytes.saturating_mul(2)).contains(&of.capacity());
        let at = self.buffers.iter().rposition(fits)?;
        let buffer = self.buffers.remove(at)?;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }

    fn put(&mut self, buffer: Vec<u8>) {
        self.bytes += buffer.capacity();
        self.buffers.push_back(buffer);
    }

    /// The oldest, where there is too much.
    fn take_excess(&mut self) -> Option<Vec<u8>> {
        if self.bytes <= self.limit_bytes && self.buffers.len() <= KEPT_BUFFERS {
            return None;
        }
        let oldest = self.buffers.pop_front()?;
        self.bytes -= oldest.capacity();
        Some(oldest)
    }
}

/// Allows for buffers of `bytes` together, or of what is the most for a process: what may be kept
/// on account of one stream. All streams of the process share what one of them allows for.
pub(crate) fn allow(bytes: usize) -> usize {
    let bytes = bytes.min(KEPT_BYTES);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.limit_bytes = kept.limit_bytes.max(bytes);
    bytes
}

/// An empty buffer with room for `bytes`.
///
/// # Errors
/// There is no memory.
pub(crate) fn take(bytes: usize) -> Result<Vec<u8>, TryReserveError> {
    if bytes < LEAST_BYTES {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(bytes)?;
        return Ok(buffer);
    }
    let kept = KEPT.try_lock().ok().and_then(|mut kept| kept.take(bytes));
    if let Some(buffer) = kept {
        return Ok(buffer);
    }
    let room = bytes.saturating_add(TAIL_BYTES);
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(room.checked_next_multiple_of(STEP_BYTES).unwrap_or(room))?;
    Ok(buffer)
}

/// Takes a buffer that nobody uses any more.
pub(crate) fn keep(mut buffer: Vec<u8>) {
    if !(LEAST_BYTES..=KEPT_BYTES).contains(&buffer.capacity()) {
        return;
    }
    buffer.clear();
    if let Ok(mut kept) = KEPT.try_lock() {
        kept.put(buffer);
    }
    let excess = || KEPT.try_lock().ok()?.take_excess();
    // Given back to the allocator one by one, while nobody is kept from the others.
    std::iter::from_fn(excess).for_each(drop);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_used_again_and_the_oldest_gives_way() {
        let mut kept = Kept {
            limit_bytes: 1 << 20,
            ..Kept::new()
        };
        let long = Vec::with_capacity((1 << 20) - 3000);
        let place = long.as_ptr();
        kept.put(Vec::with_capacity(2000));
        kept.put(long);
        assert!(kept.take(2001).is_none(), "one is too short, one too long");
        assert!(kept.take_excess().is_none());
        kept.put(Vec::with_capacity(1500));
        let oldest = kept.take_excess().map(|buffer| buffer.capacity());
        assert_eq!((oldest, kept.take_excess()), (Some(2000), None));
        let again = kept.take(1 << 19).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert_eq!(kept.bytes, 1500);
        for _ in 0..KEPT_BUFFERS {
            kept.put(Vec::with_capacity(1024));
        }
        assert_eq!(
            kept.take_excess().map(|buffer| buffer.capacity()),
            Some(1500)
        );
        assert_eq!(
            (kept.bytes, kept.take_excess()),
            (KEPT_BUFFERS * 1024, None)
        );
        assert_eq!(kept.take(1000).unwrap().capacity(), 1024);
    }

    #[test]
    fn a_buffer_has_the_room_that_was_asked_for() {
        for bytes in [0, 13, LEAST_BYTES, 5000, 3 << 20] {
            let buffer = take(bytes).unwrap();
            assert!(buffer.is_empty() && buffer.capacity() >= bytes);
            keep(buffer);
        }
        assert!(take(usize::MAX / 2).is_err(), "no memory is an error");
    }
}
