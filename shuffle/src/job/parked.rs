//! Fences and barriers of a stream that gave way to deliveries: the others count on what has begun,
//! so the next call goes on with it.

use std::collections::HashMap;

use crate::terminate::collective::Ticket;
use crate::terminate::flush::Fence;

/// What was left under way, by stream.
#[derive(Default)]
pub(crate) struct Parked {
    fences: HashMap<usize, Fence>,
    barriers: HashMap<usize, Ticket>,
}

impl Parked {
    /// The fence that the stream has under way, or a new one.
    pub fn fence(&mut self, stream: usize) -> Fence {
        self.fences.remove(&stream).unwrap_or_default()
    }

    /// The stream's fence gives way.
    pub fn park_fence(&mut self, stream: usize, fence: Fence) {
        self.fences.insert(stream, fence);
    }

    /// The barrier that the stream has under way, if it has one.
    pub fn barrier(&mut self, stream: usize) -> Option<Ticket> {
        self.barriers.remove(&stream)
    }

    /// The stream is closed: another may get its place.
    pub fn forget(&mut self, stream: usize) {
        self.fences.remove(&stream);
        self.barriers.remove(&stream);
    }

    /// The stream's barrier gives way.
    pub fn park_barrier(&mut self, stream: usize, barrier: Ticket) {
        self.barriers.insert(stream, barrier);
    }
}
