//! Fences and barriers of a stream that gave way to deliveries: the others count on what has begun, so the next call
//! goes on with it.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::terminate::collective::Ticket;
use crate::terminate::flush::Fence;

/// What was left under way, by stream.
#[derive(Default)]
pub(crate) struct Parked {
    fences: RefCell<HashMap<u16, Fence>>,
    barriers: RefCell<HashMap<u16, Ticket>>,
}

impl Parked {
    /// The fence that the stream has under way, or a new one.
    pub fn fence(&self, stream: u16) -> Fence {
        self.fences.borrow_mut().remove(&stream).unwrap_or_default()
    }

    /// The stream's fence gives way.
    pub fn park_fence(&self, stream: u16, fence: Fence) {
        self.fences.borrow_mut().insert(stream, fence);
    }

    /// The barrier that the stream has under way, if it has one.
    pub fn barrier(&self, stream: u16) -> Option<Ticket> {
        self.barriers.borrow_mut().remove(&stream)
    }

    /// The stream's barrier gives way.
    pub fn park_barrier(&self, stream: u16, barrier: Ticket) {
        self.barriers.borrow_mut().insert(stream, barrier);
    }
}
