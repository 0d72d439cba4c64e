//! Buffers that were used and will be again, so that a steady flow allocates nothing.

use std::collections::TryReserveError;

/// Emptied vectors, of at most so many bytes together.
#[derive(Debug)]
pub(crate) struct Spare<T> {
    buffers: Vec<Vec<T>>,
    bytes: usize,
    limit_bytes: usize,
}

/// Memory of a vector in bytes, used or not.
pub(crate) fn bytes_of<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}

impl<T> Spare<T> {
    /// Nothing yet; what would pass `limit_bytes` is not kept.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            buffers: Vec::new(),
            bytes: 0,
            limit_bytes,
        }
    }

    /// An empty vector with room for `count`. The last one that came back is taken, and made larger
    /// where it is too small: so all of them soon have the size that is needed.
    ///
    /// # Errors
    /// There is no memory.
    pub fn take(&mut self, count: usize) -> Result<Vec<T>, TryReserveError> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= bytes_of(&buffer);
        buffer.try_reserve_exact(count)?;
        Ok(buffer)
    }

    /// Keeps a vector for reuse, if the limit allows.
    pub fn give_back(&mut self, mut buffer: Vec<T>) {
        buffer.clear();
        if self.bytes + bytes_of(&buffer) <= self.limit_bytes {
            self.bytes += bytes_of(&buffer);
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_is_used_again_up_to_the_limit() {
        let mut spare = Spare::<u64>::new(100 * 8);
        let first = spare.take(60).unwrap();
        let second = spare.take(60).unwrap();
        let place = first.as_ptr();
        spare.give_back(first);
        spare.give_back(second); // beyond the limit
        let again = spare.take(50).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(
            spare.take(50).unwrap().capacity() < 60,
            "the second was kept although it passes the limit"
        );
        spare.give_back(again);
        let larger = spare.take(200).unwrap();
        assert!(larger.capacity() >= 200);
        spare.give_back(larger);
        assert!(spare.buffers.is_empty() && spare.bytes == 0);
        assert!(spare.take(usize::MAX / 8).is_err(), "no memory is an error");
    }
}
