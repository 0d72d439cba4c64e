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
#[derive(Default)]
struct Kept {
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
}

static KEPT: StaticMutex<Kept> = StaticMutex::new(Kept {
    buffers: VecDeque::new(),
    bytes: 0,
});

impl Kept {
    /// One with room for `bytes`, of which it is not much longer.
    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let fits = |of: &Vec<u8>| (bytes..=bytes.saturating_mul(2)).contains(&of.capacity());
        let at = self.buffers.iter().rposition(fits)?;
        let buffer = self.buffers.remove(at)?;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }

    /// In place of the oldest, where there is no room.
    fn put(&mut self, buffer: Vec<u8>) {
        self.bytes += buffer.capacity();
        self.buffers.push_back(buffer);
        while self.bytes > KEPT_BYTES || self.buffers.len() > KEPT_BUFFERS {
            let Some(oldest) = self.buffers.pop_front() else {
                break;
            };
            self.bytes -= oldest.capacity();
        }
    }
}

/// An empty buffer with room for `bytes`.
///
/// # Errors
/// There is no memory.
pub(crate) fn take(bytes: usize) -> Result<Vec<u8>, TryReserveError> {
    let is_long = bytes >= LEAST_BYTES;
    let kept = || {
        KEPT.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(bytes)
    };
    if let Some(buffer) = is_long.then(kept).flatten() {
        return Ok(buffer);
    }
    let mut buffer = Vec::new();
    let room = match is_long {
        true => bytes
            .saturating_add(TAIL_BYTES)
            .checked_next_multiple_of(STEP_BYTES)
            .unwrap_or(bytes),
        false => bytes,
    };
    buffer.try_reserve_exact(room)?;
    Ok(buffer)
}

/// Takes a buffer that nobody uses any more.
pub(crate) fn keep(mut buffer: Vec<u8>) {
    if (LEAST_BYTES..=KEPT_BYTES).contains(&buffer.capacity()) {
        buffer.clear();
        KEPT.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .put(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_used_again_and_the_oldest_gives_way() {
        let mut kept = Kept::default();
        let long = Vec::with_capacity(KEPT_BYTES - 3000);
        let place = long.as_ptr();
        kept.put(Vec::with_capacity(2000));
        kept.put(long);
        assert!(kept.take(2001).is_none(), "one is too short, one too long");
        kept.put(Vec::with_capacity(1500));
        assert!(kept.take(2000).is_none(), "it was the oldest");
        let again = kept.take(KEPT_BYTES / 2).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert_eq!(kept.bytes, 1500);
        for _ in 0..KEPT_BUFFERS {
            kept.put(Vec::with_capacity(1024));
        }
        assert_eq!(kept.bytes, KEPT_BUFFERS * 1024);
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
