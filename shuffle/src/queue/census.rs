//! A rank's part in the censuses of its node: how the fences of a stream end where all ranks of the
//! job are on one node.
//!
//! Each fence is a census. What it needs is in the inboxes, so that nobody sends anything for it,
//! and nobody is woken but by its end.

use std::sync::Arc;

use trihop_transport::memory::segment::Segment;
use trihop_transport::ring::census::{Come, Shown, agree};
use trihop_transport::ring::{Bell, CensusLine, InboxLayout, Orderings, Shipped};
use trihop_transport::sync::{MappedU64, Word};

/// Where a rank of the node stands with a fence that another one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It has not come to it.
    Away,
    /// It has, and had messages to send or to handle when it last looked.
    Busy,
    /// Nothing waited there.
    Done,
}

/// How often, at most, a rank that waits looks for others that have called something else.
const LOOK_NS: u64 = 1_000_000;

/// A rank's part, wherever that lies what all show.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    pub come: Come,
    /// Times that this rank has shown its counts.
    shown: u64,
    /// What it shows now, if it does.
    counts: Option<(u64, u64)>,
    /// All were looked at since then.
    looked: bool,
    /// The census that was begun last is not over.
    waits: bool,
}

/// What a look at a census has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is not over, as far as this rank knows.
    Nothing,
    /// It is, as another rank has said.
    Heard,
    /// It is, and this rank is to say so.
    End,
}

impl Part {
    /// The next census begins.
    pub fn begin(&mut self) {
        self.come.censuses += 1;
        (self.counts, self.looked, self.waits) = (None, false, true);
    }

    /// Shows these counts, of records sent and delivered, where nothing waits on this rank, and
    /// looks whether the census is over. This rank shows what it has as `own`, and was told of the
    /// end of census `ended`; `all` show something, unless somebody is missing.
    pub fn poll<'a, W: Word + 'a, O: Orderings>(
        &mut self,
        counts: Option<(u64, u64)>,
        own: Shown<'_, W>,
        ended: u64,
        all: Option<impl Iterator<Item = Shown<'a, W>> + Clone>,
    ) -> Found {
        if self.has_ended(ended) {
            self.rest();
            return Found::Heard;
        }
        let Some(counts) = counts else {
            if self.is_shown() {
                self.hide::<_, O>(own); // so that others see for whom they wait
            }
            return Found::Nothing;
        };
        if self.counts != Some(counts) {
            self.shown += 1;
            own.show::<O>(self.shown, self.come.censuses, counts);
            (self.counts, self.looked) = (Some(counts), false);
        }
        if self.looked {
            return Found::Nothing; // who shows more looks again
        }
        let Some(all) = all else {
            return Found::Nothing;
        };
        self.looked = true;
        if !agree::<W, O>(all, self.come.censuses) {
            return Found::Nothing;
        }
        self.rest();
        Found::End
    }

    fn rest(&mut self) {
        (self.waits, self.counts) = (false, None);
    }

    /// Whether this rank waits for the end of the census with this number.
    #[inline]
    pub fn has_ended(&self, census: u64) -> bool {
        self.waits && census == self.come.censuses
    }

    /// Whether this rank shows its counts: it hides them before it sends.
    #[inline]
    pub fn is_shown(&self) -> bool {
        self.counts.is_some()
    }

    /// It is about to send, or has something to handle.
    pub fn hide<W: Word, O: Orderings>(&mut self, own: Shown<'_, W>) {
        self.counts = None;
        own.hide::<O>();
    }
}

/// The census of a stream on a node, as one of its ranks sees it.
pub(crate) struct Census {
    part: Part,
    /// By place, those of the ranks; none where the inbox there has not come, or was not looked at.
    lines: Box<[Option<CensusLine>]>,
    layout: InboxLayout,
    me: usize,
    /// When it last looked for others that have called something else.
    looked_at_ns: u64,
    /// The place of an inbox that is damaged, and how.
    pub damage: Option<(u32, String)>,
}

impl Census {
    /// Of a node of so many ranks, whose inboxes have this layout.
    pub fn new(ranks: u32, me: u32, layout: InboxLayout) -> Self {
        Self {
            part: Part::default(),
            lines: (0..ranks).map(|_| None).collect(),
            layout,
            me: me as usize,
            looked_at_ns: 0,
            damage: None,
        }
    }

    /// How far this rank has come.
    pub fn come(&self) -> Come {
        self.part.come
    }

    /// It has come so far, as it says from now on.
    pub fn set_come(&mut self, come: Come, segments: &[Option<Arc<Segment>>]) {
        self.part.come = come;
        if let Some(line) = self.line(self.me, segments) {
            line.say(come);
        }
    }

    /// The line of the rank at a place.
    fn line(&mut self, place: usize, segments: &[Option<Arc<Segment>>]) -> Option<&CensusLine> {
        let line = &mut self.lines[place];
        if line.is_none() {
            let segment = segments[place].as_ref()?;
            match CensusLine::new(Arc::clone(segment), self.layout) {
                Ok(new) => *line = Some(new),
                Err(error) => self.damage = Some((place as u32, error.to_string())),
            }
        }
        line.as_ref()
    }

    /// The endpoint at a place has left; it may join again, with another inbox.
    pub fn forget(&mut self, place: u32) {
        if let Some(line) = self.lines.get_mut(place as usize) {
            *line = None;
            self.part.looked = false;
            self.damage.take_if(|(at, _)| *at == place);
        }
    }

    /// The next fence begins.
    pub fn begin(&mut self, segments: &[Option<Arc<Segment>>]) {
        self.part.begin();
        self.set_come(self.part.come, segments);
    }

    /// Whether the fence that was begun last is over. `counts` are of records that this rank has
    /// sent and delivered, where nothing waits on it. `bells`, by place, wake those who sleep.
    pub fn is_over(
        &mut self,
        counts: Option<(u64, u64)>,
        segments: &[Option<Arc<Segment>>],
        bells: &[Option<Arc<Bell>>],
    ) -> bool {
        let has_all = (0..self.lines.len()).all(|place| self.line(place, segments).is_some());
        let Some(own) = &self.lines[self.me] else {
            return false;
        };
        let lines = || self.lines.iter().flatten();
        let all = has_all.then(|| lines().map(CensusLine::shown));
        let part = &mut self.part;
        let found = part.poll::<MappedU64, Shipped>(counts, own.shown(), own.ended(), all);
        if found == Found::End {
            lines().for_each(|line| line.end(part.come.censuses));
            let others = bells.iter().take(self.lines.len()).enumerate();
            let others = others.filter(|(place, _)| *place != self.me);
            others.for_each(|(_, bell)| bell.iter().for_each(|bell| bell.ring()));
        }
        found != Found::Nothing
    }

    /// Whether somebody has found that the fence which this rank waits for is over.
    #[inline]
    pub fn has_ended(&self) -> bool {
        let line = self.lines[self.me].as_ref().filter(|_| self.part.waits);
        line.is_some_and(|line| self.part.has_ended(line.ended()))
    }

    /// This rank waits no more for the fence that it has begun, which may never be over.
    pub fn give_up(&mut self) {
        if self.is_shown() {
            self.hide();
        }
        self.part.rest();
    }

    /// See [`Part::is_shown`].
    #[inline]
    pub fn is_shown(&self) -> bool {
        self.part.is_shown()
    }

    /// It is about to send.
    #[cold]
    pub fn hide(&mut self) {
        if let Some(own) = &self.lines[self.me] {
            self.part.hide::<_, Shipped>(own.shown());
        }
    }

    /// Where the ranks stand with the fence that this one waits for, by place; nowhere where it
    /// waits for none.
    pub fn stands(&self) -> impl Iterator<Item = Stand> {
        let censuses = self.part.come.censuses;
        let lines = self.lines.iter().filter(|_| self.part.waits);
        lines.map(move |line| match line {
            Some(line) if line.shown().is_of(censuses) => Stand::Done,
            Some(line) if line.come().censuses >= censuses => Stand::Busy,
            _ => Stand::Away,
        })
    }

    /// Places of the ranks that have come to a fence to which this one has not.
    pub fn ahead(&self, segments: &[Option<Arc<Segment>>]) -> impl Iterator<Item = u32> {
        let (censuses, layout) = (self.part.come.censuses, self.layout);
        let segments = (0..).zip(segments).take(self.lines.len());
        segments.filter_map(move |(place, segment)| {
            let line = CensusLine::new(Arc::clone(segment.as_ref()?), layout).ok()?;
            (line.come().censuses > censuses).then_some(place)
        })
    }

    /// The place of a rank that has begun another collective call of the stream where this one, and
    /// others perhaps, have begun the fence; looked for now and then.
    pub fn elsewhere(&mut self, now_ns: u64) -> Option<u32> {
        if now_ns.saturating_sub(self.looked_at_ns) < LOOK_NS {
            return None;
        }
        self.looked_at_ns = now_ns;
        let mine = self.part.come;
        let is_elsewhere = |line: &CensusLine| {
            let come = line.come();
            come.censuses < mine.censuses && come.calls > mine.calls
        };
        let lines = (0..).zip(self.lines.iter().map(Option::as_ref));
        let at = lines.filter(|(_, line)| line.is_some_and(is_elsewhere));
        at.map(|(place, _)| place).next()
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

        fn call(&mut self, rank: usize, calls: u64) {
            let come = self.ranks[rank].come();
            self.ranks[rank].set_come(Come { calls, ..come }, &self.segments);
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
            node.call(rank, 1);
        }
        (0..3).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(0, (0, 0)) && !node.is_over(1, (0, 0)));
        assert!(node.is_over(2, (0, 0)) && node.is_over(0, (0, 0)) && node.is_over(1, (0, 0)));
        // Rank 2 calls before its second fence what rank 0 does not.
        node.begin(0);
        assert!(!node.is_over(0, (0, 0)));
        assert_eq!(node.ranks[0].elsewhere(LOOK_NS), None, "others are late");
        node.call(2, 2);
        assert_eq!(
            node.ranks[0].elsewhere(LOOK_NS + 1),
            None,
            "not all the time"
        );
        assert_eq!(node.ranks[0].elsewhere(2 * LOOK_NS), Some(2));
    }

    #[test]
    fn who_gives_up_does_not_count() {
        let mut node = Node::new(2);
        (0..2).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(0, (0, 0)));
        node.ranks[0].give_up();
        assert!(!node.is_over(1, (0, 0)), "rank 0 shows nothing more");
        assert!(!node.ranks[0].has_ended());
    }

    #[test]
    fn who_has_something_to_handle_is_seen() {
        let mut node = Node::new(2);
        (0..2).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(1, (0, 0)));
        let bells = [None, None];
        assert!(!node.ranks[1].is_over(None, &node.segments, &bells));
        assert!(!node.is_over(0, (0, 0)));
        assert_eq!(node.stands(0), [Stand::Done, Stand::Busy]);
        assert!(node.is_over(1, (0, 0)));
    }

    #[test]
    fn who_joins_again_is_looked_at_in_its_new_inbox() {
        let mut node = Node::new(2);
        (0..2).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(1, (0, 0)));
        let layout = InboxLayout::new(2, 4096).unwrap();
        let segment = Segment::create(layout.segment_bytes()).unwrap();
        let _inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
        let come = node.ranks[0].come();
        node.ranks[1].forget(0);
        node.segments[0] = Some(segment);
        node.ranks[0] = Census::new(2, 0, layout);
        let before = Come {
            censuses: come.censuses - 1,
            ..come
        };
        node.ranks[0].set_come(before, &node.segments);
        assert!(!node.is_over(1, (0, 0)));
        node.begin(0);
        assert!(node.is_over(0, (0, 0)));
        assert!(node.is_over(1, (0, 0)));
    }

    #[test]
    fn an_inbox_that_is_damaged_is_named() {
        let mut node = Node::new(2);
        let layout = InboxLayout::new(2, 4096).unwrap();
        node.segments[1] = Some(Segment::create(layout.segment_bytes()).unwrap());
        node.begin(0);
        assert!(!node.is_over(0, (0, 0)));
        let (place, why) = node.ranks[0].damage.clone().unwrap();
        assert!(place == 1 && why.contains("segment"), "{place}: {why}");
    }
}
