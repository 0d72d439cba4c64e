//! A rank's part in the censuses of its node: how the fences of a stream end where all ranks of the
//! job are on one node.
//!
//! Each fence is a census. What it needs is in the inboxes, so that nobody sends anything for it,
//! and nobody is woken but by its end.

use std::sync::Arc;

use trihop_transport::memory::segment::Segment;
use trihop_transport::ring::census::agree;
use trihop_transport::ring::{Bell, CensusLine, InboxLayout, Shipped};
use trihop_transport::sync::MappedU64;

/// The number of the first thing shown in a census is its own times this.
const SHOWN: u64 = 1 << 32;

/// How far a rank has come with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Come {
    /// Fences that it has begun.
    fences: u32,
    /// Other collective calls of the stream that it has begun.
    calls: u32,
}

impl Come {
    fn word(self) -> u64 {
        u64::from(self.fences) << 32 | u64::from(self.calls)
    }

    fn of(word: u64) -> Self {
        Self {
            fences: (word >> 32) as u32,
            calls: word as u32,
        }
    }
}

/// Where a rank of the node stands with a fence that another one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It has not come to it.
    Away,
    /// It has, and still has messages to send or to handle.
    Busy,
    /// Nothing waits there.
    Done,
}

/// The census of a stream on a node, as one of its ranks sees it.
pub(crate) struct Census {
    /// By place, those of the ranks; none where the inbox there has not come, or was not looked at.
    lines: Box<[Option<CensusLine>]>,
    layout: InboxLayout,
    me: usize,
    come: Come,
    /// What has been shown of the last fence so far: how often, and the counts; none where nothing
    /// is shown now.
    shown: u32,
    counts: Option<(u64, u64)>,
    /// All were looked at since then.
    looked: bool,
    /// The last fence is not over.
    waits: bool,
}

impl Census {
    /// Of a node of so many ranks, whose inboxes have this layout.
    pub fn new(ranks: u32, me: u32, layout: InboxLayout) -> Self {
        Self {
            lines: (0..ranks).map(|_| None).collect(),
            layout,
            me: me as usize,
            come: Come {
                fences: 0,
                calls: 0,
            },
            shown: 0,
            counts: None,
            looked: false,
            waits: false,
        }
    }

    /// Fences of the stream that this rank has begun.
    pub fn fences(&self) -> u32 {
        self.come.fences
    }

    /// It has begun as many before it joined again.
    pub fn inherit(&mut self, fences: u32) {
        self.come.fences = fences;
    }

    /// The line of the rank at a place.
    fn line(&mut self, place: usize, segments: &[Option<Arc<Segment>>]) -> Option<&CensusLine> {
        let line = &mut self.lines[place];
        if line.is_none() {
            let segment = segments[place].as_ref()?;
            // One that is damaged is found so by who sends there.
            *line = CensusLine::new(Arc::clone(segment), self.layout).ok();
        }
        line.as_ref()
    }

    /// The endpoint at a place has left.
    pub fn forget(&mut self, place: u32) {
        if let Some(line) = self.lines.get_mut(place as usize) {
            *line = None;
        }
    }

    /// So many collective calls of the stream have begun here that are no fences.
    pub fn call(&mut self, calls: u64, segments: &[Option<Arc<Segment>>]) {
        self.come.calls = calls as u32;
        self.say_how_far(segments);
    }

    fn say_how_far(&mut self, segments: &[Option<Arc<Segment>>]) {
        let come = self.come.word();
        if let Some(line) = self.line(self.me, segments) {
            line.come(come);
        }
    }

    /// The next fence begins.
    pub fn begin(&mut self, segments: &[Option<Arc<Segment>>]) {
        self.come.fences += 1;
        (self.shown, self.counts, self.looked, self.waits) = (0, None, false, true);
        self.say_how_far(segments);
    }

    /// Whether the fence that was begun last is over. `counts` are of records that this rank has
    /// sent and delivered, where nothing waits on it. `bells`, by place, wake those who sleep.
    pub fn is_over(
        &mut self,
        counts: Option<(u64, u64)>,
        segments: &[Option<Arc<Segment>>],
        bells: &[Option<Arc<Bell>>],
    ) -> bool {
        if self.has_ended() {
            return self.end();
        }
        let Some(counts) = counts else {
            return false;
        };
        if self.counts != Some(counts) {
            let number = self.number() + u64::from(self.shown);
            let Some(line) = self.line(self.me, segments) else {
                return false;
            };
            line.shown().show::<Shipped>(number, counts);
            self.shown += 1;
            (self.counts, self.looked) = (Some(counts), false);
        }
        if self.looked {
            return false; // who shows more looks again
        }
        self.looked = (0..self.lines.len()).all(|place| self.line(place, segments).is_some());
        if !self.looked {
            return false;
        }
        let all = self.lines.iter().flatten().map(CensusLine::shown);
        if !agree::<MappedU64, Shipped>(all, self.number()) {
            return false;
        }
        if let Some(first) = &self.lines[0] {
            first.set_over(u64::from(self.come.fences));
        }
        let others = bells.iter().enumerate();
        let others = others.filter(|(place, _)| *place != self.me);
        others.for_each(|(_, bell)| bell.iter().for_each(|bell| bell.ring()));
        self.end()
    }

    /// The number of the first thing that is shown in the census that was begun last.
    fn number(&self) -> u64 {
        u64::from(self.come.fences) * SHOWN
    }

    fn end(&mut self) -> bool {
        (self.waits, self.counts) = (false, None);
        true
    }

    /// Whether somebody has found that the fence which this rank waits for is over.
    #[inline]
    pub fn has_ended(&self) -> bool {
        let over = |first: &CensusLine| first.over() >= u64::from(self.come.fences);
        self.waits && self.lines[0].as_ref().is_some_and(over)
    }

    /// Whether this rank shows its counts: it hides them before it sends.
    #[inline]
    pub fn is_shown(&self) -> bool {
        self.counts.is_some()
    }

    /// It is about to send.
    #[cold]
    pub fn hide(&mut self) {
        self.counts = None;
        if let Some(line) = &self.lines[self.me] {
            line.shown().hide::<Shipped>();
        }
    }

    /// Where the ranks stand with the fence that this one waits for, by place; nowhere where it
    /// waits for none.
    pub fn stands(&self) -> impl Iterator<Item = Stand> {
        let (number, come) = (self.number(), self.come);
        let lines = self.lines.iter().filter(|_| self.waits);
        lines.map(move |line| match line {
            Some(line) if line.shown().is_of(number) => Stand::Done,
            Some(line) if Come::of(line.has_come()).fences >= come.fences => Stand::Busy,
            _ => Stand::Away,
        })
    }

    /// Places of the ranks that have come to a fence to which this one has not.
    pub fn ahead(&self, segments: &[Option<Arc<Segment>>]) -> impl Iterator<Item = u32> {
        let (come, layout) = (self.come, self.layout);
        let segments = (0..).zip(segments).take(self.lines.len());
        segments.filter_map(move |(place, segment)| {
            let line = CensusLine::new(Arc::clone(segment.as_ref()?), layout).ok()?;
            let is_ahead = Come::of(line.has_come()).fences > come.fences;
            is_ahead.then_some(place)
        })
    }

    /// The place of a rank that has begun another collective call of the stream where this one, and
    /// others perhaps, have begun the fence.
    pub fn elsewhere(&self) -> Option<u32> {
        let is_elsewhere = |line: &CensusLine| {
            let come = Come::of(line.has_come());
            come.fences < self.come.fences && come.calls > self.come.calls
        };
        let lines = self.lines.iter().map(Option::as_ref);
        let at = (0..)
            .zip(lines)
            .find(|(_, line)| line.is_some_and(is_elsewhere));
        at.map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use trihop_transport::ring::{Doorbell, Inbox};

    use super::*;

    /// Ranks of a node, of each its inbox, its doorbell, and its part in a census.
    struct Node {
        _inboxes: Vec<Inbox>,
        segments: Vec<Option<Arc<Segment>>>,
        doorbells: Vec<Doorbell>,
        ranks: Vec<Census>,
    }

    impl Node {
        fn new(ranks: u32) -> Self {
            let layout = InboxLayout::new(ranks, 4096).unwrap();
            let segment = |_| Segment::create(layout.segment_bytes()).unwrap();
            let segments: Vec<_> = (0..ranks).map(segment).collect();
            let inbox = |segment: &Arc<Segment>| Inbox::new(Arc::clone(segment), layout).unwrap();
            Self {
                _inboxes: segments.iter().map(inbox).collect(),
                segments: segments.into_iter().map(Some).collect(),
                doorbells: (0..ranks).map(|_| Doorbell::create().unwrap()).collect(),
                ranks: (0..ranks)
                    .map(|me| Census::new(ranks, me, layout))
                    .collect(),
            }
        }

        fn begin(&mut self, rank: usize) {
            self.ranks[rank].begin(&self.segments);
        }

        fn is_over(&mut self, rank: usize, counts: (u64, u64)) -> bool {
            let bells: Vec<_> = self.doorbells.iter().map(|of| Some(of.bell())).collect();
            self.ranks[rank].is_over(Some(counts), &self.segments, &bells)
        }

        fn stands(&self, rank: usize) -> Vec<Stand> {
            self.ranks[rank].stands().collect()
        }
    }

    #[test]
    fn who_shows_last_finds_the_end_and_wakes_those_who_sleep() {
        let mut node = Node::new(3);
        for fence in 0..3_u64 {
            (0..3).for_each(|rank| node.begin(rank));
            let sent = 10 * fence;
            assert!(!node.is_over(0, (sent, sent)));
            assert!(!node.is_over(1, (sent + 1, sent)), "rank 2 shows nothing");
            node.doorbells[0].announce_sleep();
            assert!(!node.ranks[0].has_ended());
            assert!(node.is_over(2, (sent, sent + 1)));
            assert!(!node.doorbells[0].is_asleep(), "it was woken");
            for rank in [0, 1] {
                assert!(node.ranks[rank].has_ended());
                // Whatever it has by then: it hears of the end.
                assert!(node.is_over(rank, (99, 0)));
                assert!(!node.ranks[rank].has_ended(), "it is said once");
            }
        }
    }

    #[test]
    fn what_is_hidden_does_not_count() {
        let mut node = Node::new(2);
        (0..2).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(0, (1, 0)));
        assert!(!node.is_over(1, (0, 0)));
        // The record of rank 0 has come to rank 1, which sends two because of it.
        assert!(node.ranks[1].is_shown());
        node.ranks[1].hide();
        // One of them is handled: with what rank 1 had shown the counts would agree.
        assert!(!node.is_over(0, (1, 1)));
        assert_eq!(node.stands(0), [Stand::Done, Stand::Busy]);
        assert!(!node.is_over(1, (2, 1)));
        assert!(node.is_over(0, (1, 2)));
    }

    #[test]
    fn what_was_shown_in_a_fence_before_does_not_count() {
        let mut node = Node::new(2);
        (0..2).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(0, (0, 0)) && node.is_over(1, (0, 0)));
        // Rank 0 has not heard that, and shows what it has shown.
        node.begin(1);
        assert!(!node.is_over(1, (0, 0)));
        assert_eq!(node.stands(1), [Stand::Away, Stand::Done]);
        assert!(node.is_over(0, (0, 0)), "the first fence");
        assert!(!node.ranks[0].has_ended());
        let ahead: Vec<u32> = node.ranks[0].ahead(&node.segments).collect();
        assert_eq!(ahead, [1]);
        node.begin(0);
        assert!(node.ranks[0].ahead(&node.segments).next().is_none());
        assert!(node.is_over(0, (0, 0)), "the second");
        assert_eq!(node.stands(0), [], "it waits for none");
    }

    #[test]
    fn a_rank_whose_inbox_comes_late_is_looked_at_then() {
        let mut node = Node::new(2);
        (0..2).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(1, (0, 0)));
        let late = node.segments[1].take();
        assert!(!node.is_over(0, (0, 0)));
        assert_eq!(node.stands(0), [Stand::Done, Stand::Away]);
        node.segments[1] = late;
        assert!(node.is_over(0, (0, 0)));
    }

    #[test]
    fn who_has_called_something_else_is_found() {
        let mut node = Node::new(3);
        // A call that all make, and a fence.
        for rank in 0..3 {
            node.ranks[rank].call(1, &node.segments);
        }
        (0..3).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(0, (0, 0)) && !node.is_over(1, (0, 0)));
        assert!(node.is_over(2, (0, 0)) && node.is_over(0, (0, 0)) && node.is_over(1, (0, 0)));
        // Rank 2 calls before its second fence what rank 0 does not.
        node.begin(0);
        assert!(!node.is_over(0, (0, 0)));
        assert_eq!(node.ranks[0].elsewhere(), None, "others are late");
        node.ranks[2].call(2, &node.segments);
        assert_eq!(node.ranks[0].elsewhere(), Some(2));
    }
}
