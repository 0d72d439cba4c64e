//! All lanes into one endpoint, owned by their consumer.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::segment::Segment;
use crate::ring::bitmap;
use crate::ring::claim;
use crate::ring::lane::Consumer;
use crate::ring::layout::{InboxLayout, MappedInbox};
use crate::ring::storage::Shipped;

/// The receiving side of a segment full of lanes.
pub struct Inbox {
    consumers: Vec<Consumer>,
    inbox: MappedInbox,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({:?})", self.layout())
    }
}

impl Inbox {
    /// Lays an inbox out in a fresh segment and owns it.
    ///
    /// # Errors
    /// When the segment is too small, has an owner, or holds positions that cannot be true.
    pub fn new(segment: Arc<Segment>, layout: InboxLayout) -> Result<Self> {
        let inbox = MappedInbox::new(segment, layout)?;
        inbox.header().claim::<Shipped>(layout)?;
        let consumers = (0..layout.lanes())
            .map(|lane| {
                Consumer::new(inbox.lane(lane))
                    .map_err(|corrupt| Error::config("inbox", format!("lane {lane}: {corrupt}")))
            })
            .collect::<Result<_>>()?;
        Ok(Self { consumers, inbox })
    }

    /// Appends the lanes that were published since they were last taken. A lane may come up again with nothing in it;
    /// one that is left non-empty does not come up by itself: remember it.
    #[inline]
    pub fn take_active(&mut self, out: &mut Vec<u32>) {
        let lanes = self.layout().lanes();
        bitmap::take::<_, Shipped>(self.inbox.bitmap(), |lane| {
            // Bits beyond the last lane are somebody's invention.
            if lane < lanes {
                out.push(lane);
            }
        });
    }

    /// Receiving end of lane `i`.
    ///
    /// # Panics
    /// When there is no such lane.
    #[inline]
    pub fn lane(&mut self, i: u32) -> &mut Consumer {
        &mut self.consumers[i as usize]
    }

    /// Whether [`take_active`](Self::take_active) would find something; asked once more after announcing a sleep.
    #[inline]
    pub fn any_active(&self) -> bool {
        bitmap::any(self.inbox.bitmap())
    }

    /// Shape of this inbox.
    pub fn layout(&self) -> InboxLayout {
        self.inbox.layout()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if self.inbox.segment().is_mapped_here() {
            claim::give_up::<_, Shipped>(self.inbox.header().owned);
        }
    }
}
