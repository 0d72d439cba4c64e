//! Bounded overflow for what handlers send: their sends never wait.

use std::collections::VecDeque;

use super::audience::Audience;

/// Records in the order in which handlers sent them.
#[derive(Debug)]
pub(crate) struct Spill {
    records: VecDeque<(Audience, u32, u32)>,
    bytes: VecDeque<u8>,
    limit_bytes: usize,
    /// Records that have left.
    popped: u64,
}

/// Memory that one spilled record takes besides its payload.
const RECORD_BYTES: usize = size_of::<(Audience, u32, u32)>();

impl Spill {
    /// At most `limit_bytes`, payload and bookkeeping together. Allocated on first use.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            records: VecDeque::new(),
            bytes: VecDeque::new(),
            limit_bytes,
            popped: 0,
        }
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.bytes.len() + self.records.len() * RECORD_BYTES
    }

    /// Bytes that may still come.
    pub fn free_bytes(&self) -> usize {
        self.limit_bytes.saturating_sub(self.used_bytes())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Records that wait.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Records that have left since the start.
    pub fn popped(&self) -> u64 {
        self.popped
    }

    /// Adds a record; false when the bound does not allow it.
    pub fn push(&mut self, audience: Audience, kind: u32, payload: &[u8]) -> bool {
        if payload.len() + RECORD_BYTES > self.free_bytes() {
            return false;
        }
        self.records.push_back((audience, kind, payload.len() as u32));
        self.bytes.extend(payload);
        true
    }

    /// Audience, kind and payload of the oldest record.
    pub fn front(&mut self) -> Option<(Audience, u32, &[u8])> {
        let &(audience, kind, length) = self.records.front()?;
        let length = length as usize;
        if self.bytes.as_slices().0.len() < length {
            self.bytes.make_contiguous();
        }
        Some((audience, kind, &self.bytes.as_slices().0[..length]))
    }

    /// Removes the oldest record.
    pub fn pop(&mut self) {
        if let Some((_, _, length)) = self.records.pop_front() {
            self.bytes.drain(..length as usize);
            self.popped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use trihop_transport::topology::Rank;

    use super::*;
    use crate::queue::audience::BroadcastTo;

    fn one(rank: u32) -> Audience {
        Audience::One(Rank(rank))
    }

    #[test]
    fn a_spill_is_a_bounded_queue() {
        let mut spill = Spill::new(3 * RECORD_BYTES + 10);
        assert!(spill.push(one(1), 10, b"abcde"));
        assert!(spill.push(one(2), 20, b""));
        assert!(spill.push(one(3), 30, b"fghij"));
        assert!(!spill.push(one(4), 40, b""), "full");
        assert_eq!(spill.front(), Some((one(1), 10, &b"abcde"[..])));
        spill.pop();
        assert!(
            spill.push(Audience::Many(BroadcastTo::Others), 50, b"klmno"),
            "space is used again, across the buffer's end"
        );
        assert_eq!(spill.front(), Some((one(2), 20, &b""[..])));
        spill.pop();
        assert_eq!(spill.front(), Some((one(3), 30, &b"fghij"[..])));
        spill.pop();
        assert_eq!(
            spill.front(),
            Some((Audience::Many(BroadcastTo::Others), 50, &b"klmno"[..]))
        );
        spill.pop();
        assert!(spill.is_empty() && spill.used_bytes() == 0);
    }
}
