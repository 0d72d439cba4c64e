//! All lanes into one endpoint, owned by their consumer.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::memory::segment::Segment;
use crate::ring::bitmap::Watch;
use crate::ring::claim;
use crate::ring::doorbell::Bell;
use crate::ring::lane::{Bells, Consumer};
use crate::ring::layout::{InboxLayout, MappedInbox};
use crate::ring::spsc::ReaderState;
use crate::ring::storage::Shipped;

/// The receiving side of a segment full of lanes. Costs 8 bytes per lane, and 40 more once it is
/// asked for.
pub struct Inbox {
    /// By lane; none where the lane was not looked at yet, as most never are in a large job.
    states: Box<[Option<Box<ReaderState>>]>,
    inbox: MappedInbox,
    bells: Bells,
    watch: Watch,
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
    /// When the segment is too small, has an owner, or is laid out as something else. A segment
    /// keeps its first layout, since producers over that may still be there.
    pub fn new(segment: Arc<Segment>, layout: InboxLayout) -> Result<Self> {
        let inbox = MappedInbox::new(segment, layout)?;
        inbox.header().claim::<Shipped>(layout)?;
        if let Err(error) = inbox.settle() {
            claim::give_up::<_, Shipped>(inbox.header().owned);
            return Err(error);
        }
        Ok(Self {
            states: (0..layout.lanes()).map(|_| None).collect(),
            inbox,
            bells: Bells::new(Arc::new([]), 1),
            watch: Watch::default(),
        })
    }

    /// Says whom to wake when a producer waits for space: `bells[n]`, if there is one, wakes the
    /// producer of lanes `n * lanes_per_producer` up to the next multiple. A lane without a bell
    /// wakes nobody.
    ///
    /// # Panics
    /// When `lanes_per_producer` is 0.
    pub fn set_bells(&mut self, bells: Arc<[Option<Arc<Bell>>]>, lanes_per_producer: u32) {
        self.bells = Bells::new(bells, lanes_per_producer);
    }

    /// Appends the lanes that were published since they were last taken. A lane may come up again
    /// with nothing in it; one that is left non-empty does not come up by itself: remember it.
    #[inline]
    pub fn take_active(&mut self, out: &mut Vec<u32>) {
        self.fetch_ahead();
        let inbox = &self.inbox;
        self.watch.take::<_, Shipped>(
            inbox.bitmap(),
            inbox.layout().lanes(),
            |lane| inbox.lane(lane),
            |lane| out.push(lane),
        );
    }

    /// Receiving end of lane `i`: a view, to be kept while several frames are read. A lane whose
    /// positions cannot be true says so at its first [`front`](Consumer::front).
    ///
    /// # Panics
    /// When there is no such lane.
    #[inline]
    pub fn lane(&mut self, i: u32) -> Consumer<'_> {
        let storage = self.inbox.lane(i);
        Consumer::new(&mut self.states[i as usize], storage, &self.bells)
    }

    /// Whether [`take_active`](Self::take_active) would find something; asked once more after
    /// announcing a sleep.
    #[inline]
    pub fn any_active(&self) -> bool {
        self.fetch_ahead();
        self.watch
            .any(self.inbox.bitmap(), |lane| self.inbox.lane(lane))
    }

    /// Begins to fetch where the watched lane's next frame will lie, whether it is there or not: it
    /// then comes from the producer's cache together with the tail that shows it, and not after
    /// that.
    #[inline]
    fn fetch_ahead(&self) {
        if let Some(lane) = self.watch.hot()
            && let Some(state) = &self.states[lane as usize]
        {
            let lane = self.inbox.lane(lane);
            let (area, offset) = state.place(&lane);
            lane.fetch(area, offset);
        }
    }

    /// Bytes of all lanes that were published when each was last looked at, and are not released.
    /// Touches no memory of the segment.
    pub fn in_use_bytes(&self) -> usize {
        self.states
            .iter()
            .flatten()
            .map(|state| state.in_use_bytes())
            .sum()
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
