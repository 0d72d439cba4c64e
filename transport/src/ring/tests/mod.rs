//! Tests of the rings as they ship; the orderings are modelled in `loom-tests`.

mod claims;
mod hostile;
mod inbox;
mod killed;
mod oracle;
mod processes;
mod threads;

use std::sync::Arc;

use crate::memory::segment::Segment;
use crate::ring::{Doorbell, Inbox, InboxLayout, Producer};

/// One inbox with a producer per lane, all on the heap.
fn on_heap(lanes: u32, lane_bytes: u32) -> (Arc<Segment>, Inbox, Vec<Producer>) {
    let layout = InboxLayout::new(lanes, lane_bytes).expect("a valid layout");
    let segment = Segment::on_heap(layout.segment_bytes());
    let inbox = Inbox::new(Arc::clone(&segment), layout).expect("a fresh segment");
    let bell = Doorbell::private().bell();
    let producers = (0..lanes)
        .map(|lane| {
            Producer::new(Arc::clone(&segment), layout, lane, Arc::clone(&bell))
                .expect("a lane without a producer")
        })
        .collect();
    (segment, inbox, producers)
}

/// Fills a frame (behind its first four bytes) so that every byte depends on `number` and place.
fn fill(frame: &mut [u8], number: u64) {
    for (place, byte) in frame.iter_mut().enumerate().skip(4) {
        *byte = (number as u8).wrapping_mul(31).wrapping_add(place as u8);
    }
}

/// Whether `frame` is what `fill` made of it.
fn is_filled(frame: &[u8], number: u64) -> bool {
    let mut expected = frame.to_vec();
    fill(&mut expected, number);
    frame == expected && frame[..4] == (frame.len() as u32).to_le_bytes()
}

/// A small generator (xorshift64*), so that a seed replays a test.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        Self(crate::seed::seed() | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
