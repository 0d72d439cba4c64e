//! What only the interface of DeltaFS asks of a stream.

use crate::error::{Error, Result};

/// What only clients of DeltaFS have: its `struct shuffle_opts` sets them, and nothing else does.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShimOptions {
    /// Bytes of this rank's own sends that may be unconsumed in all its origin lanes together, in
    /// units of `origin_buftarget_bytes`; 0 for no limit but those of the single lanes. One frame
    /// always may. A long record in shared memory counts as what says where.
    pub origin_sender_limit: u32,
    /// Batches with own sends of this rank that may be open or unacknowledged in all its remote
    /// queues together; 0 for no limit but those of the single queues. What this rank relays is
    /// never kept by it.
    pub remote_sender_limit: u32,
    /// Records for which a delivery thread is woken; fewer are delivered after a millisecond, or by
    /// a flush. 0 for any; below `deliverq_max`.
    pub deliverq_threshold: usize,
    /// What arrives at this rank is counted (`Stats::discarded`) and dropped on purpose, without a
    /// call of the handler. Flushes and fences end as ever.
    pub deliverq_discard: bool,
}

impl ShimOptions {
    /// Most that a sender limit may be.
    pub const SENDER_LIMIT: u32 = 1_000_000;

    pub(super) fn check(&self, deliverq_max: usize) -> Result<()> {
        for (key, limit) in [
            ("origin_sender_limit", self.origin_sender_limit),
            ("remote_sender_limit", self.remote_sender_limit),
        ] {
            if limit > Self::SENDER_LIMIT {
                let why = format!("{limit} is not between 0 and {}", Self::SENDER_LIMIT);
                return Err(Error::config(key, why));
            }
        }
        if self.deliverq_threshold >= deliverq_max {
            let why = format!(
                "{} is not between 0 and {}, one less than deliverq_max",
                self.deliverq_threshold,
                deliverq_max - 1
            );
            return Err(Error::config("deliverq_threshold", why));
        }
        Ok(())
    }
}
