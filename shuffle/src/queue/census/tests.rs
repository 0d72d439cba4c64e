use trihop_transport::ring::{Doorbell, Inbox};

use super::*;

/// Ranks of a node, of each its inbox, its doorbell, and its part in a census.
struct Node {
    _inboxes: Vec<Inbox>,
    segments: Vec<Option<Arc<Segment>>>,
    doorbells: Vec<Doorbell>,
    ranks: Vec<Census>,
}

fn has((sent, delivered): (u64, u64)) -> Counts {
    Counts {
        sent,
        delivered,
        ..Counts::default()
    }
}

impl Node {
    fn new(ranks: u32) -> Self {
        Self::spoken_for(ranks, None)
    }

    fn spoken_for(ranks: u32, speaker: Option<u32>) -> Self {
        let layout = InboxLayout::new(ranks, 4096).unwrap();
        let segment = |_| Segment::create(layout.segment_bytes()).unwrap();
        let segments: Vec<_> = (0..ranks).map(segment).collect();
        let inbox = |segment: &Arc<Segment>| Inbox::new(Arc::clone(segment), layout).unwrap();
        Self {
            _inboxes: segments.iter().map(inbox).collect(),
            segments: segments.into_iter().map(Some).collect(),
            doorbells: (0..ranks).map(|_| Doorbell::create().unwrap()).collect(),
            ranks: (0..ranks)
                .map(|me| Census::new(ranks, me, layout, speaker))
                .collect(),
        }
    }

    fn call(&mut self, rank: usize, calls: u64) {
        self.ranks[rank].set_calls(calls, &self.segments);
    }

    fn begin(&mut self, rank: usize) {
        self.ranks[rank].begin(false, &self.segments);
    }

    fn is_over(&mut self, rank: usize, counts: (u64, u64)) -> bool {
        let counts = has(counts);
        let bells: Vec<_> = self.doorbells.iter().map(|of| Some(of.bell())).collect();
        let census = &mut self.ranks[rank];
        let found = census.look(Some(counts), &self.segments, &bells, 0);
        let is_over = census.is_over(found);
        if is_over {
            census.end(found, &bells);
        }
        is_over
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
        assert!(!node.ranks[0].has_news());
        assert!(node.is_over(2, (sent, sent + 1)));
        assert!(!node.doorbells[0].is_asleep(), "it was woken");
        for rank in [0, 1] {
            assert!(node.ranks[rank].has_news());
            // Whatever it has by then: it hears of the end.
            assert!(node.is_over(rank, (99, 0)));
            assert!(!node.ranks[rank].has_news(), "it is said once");
        }
    }
}

#[test]
fn who_speaks_for_a_node_adds_what_all_have_together() {
    let mut node = Node::spoken_for(3, Some(1));
    let bells: Vec<_> = node.doorbells.iter().map(|of| Some(of.bell())).collect();
    let look = |node: &mut Node, rank: usize, counts: Option<(u64, u64)>| {
        node.ranks[rank].look(counts.map(has), &node.segments, &bells, 0)
    };
    let share = |sent, delivered| Share {
        sent,
        delivered,
        ahead: 0,
    };
    for rank in 0..3 {
        node.ranks[rank].begin(rank != 0, &node.segments);
    }
    assert_eq!(look(&mut node, 1, Some((5, 1))), Found::Nothing);
    assert_eq!(look(&mut node, 0, Some((0, 2))), Found::Nothing);
    // The last one passes on what other nodes have, and adds nothing.
    node.doorbells[1].announce_sleep();
    assert!(!node.ranks[1].has_news());
    let found = look(&mut node, 2, Some((1, 0)));
    assert_eq!(found, Found::All(has((6, 3))));
    assert!(!node.ranks[2].is_over(found));
    assert_eq!(node.ranks[2].owed(found), Some(share(0, 0)));
    assert_eq!(node.ranks[2].owed(found), None, "once");
    assert!(!node.doorbells[1].is_asleep(), "it was woken");
    assert!(node.ranks[1].has_news());
    let found = look(&mut node, 1, Some((5, 1)));
    assert_eq!(node.ranks[1].owed(found), Some(share(6, 3)));
    assert!(!node.ranks[1].has_news(), "it was said");
    // It is counted again while a rank has something to handle.
    assert_eq!(look(&mut node, 0, None), Found::Nothing);
    node.ranks[1].count_again(0);
    assert!(!node.ranks[1].has_news());
    let found = look(&mut node, 1, Some((5, 1)));
    assert_eq!(node.ranks[1].owed(found), None);
    assert_eq!(look(&mut node, 0, Some((0, 4))), Found::All(has((6, 5))));
    assert!(node.ranks[1].has_news());
    let found = look(&mut node, 1, Some((5, 1)));
    assert_eq!(node.ranks[1].owed(found), Some(share(6, 5)));
    // It is over: the speaker says so to who is in no count.
    assert!(!node.ranks[0].has_news());
    node.ranks[1].end(found, &bells);
    assert!(node.ranks[0].has_news() && !node.ranks[2].has_news());
    assert_eq!(look(&mut node, 0, Some((0, 4))), Found::Heard);
    node.ranks[2].end(Found::Nothing, &bells);
    assert!(node.stands(2).is_empty() && node.stands(1).is_empty());
    assert!(
        node.ranks.iter().all(|rank| rank.colour() == 2),
        "of two counts"
    );
}

#[test]
fn what_is_sent_behind_a_count_has_its_colour_and_what_comes_of_that_is_told() {
    let mut node = Node::spoken_for(2, Some(0));
    let bells = [None, None];
    for rank in 0..2 {
        node.ranks[rank].begin(rank == 0, &node.segments);
    }
    let mut all = [Counts::default(); 2];
    let count = |node: &mut Node, all: [Counts; 2]| {
        for rank in [1, 0] {
            let found = node.ranks[rank].look(Some(all[rank]), &node.segments, &bells, 0);
            if rank == 0 {
                return node.ranks[0].owed(found).map(|share| share.ahead);
            }
        }
        None
    };
    assert_eq!(count(&mut node, all), Some(0));
    // The other rank has shown its counts, and sends.
    assert_eq!([0, 1].map(|rank| node.ranks[rank].colour()), [1, 0]);
    node.ranks[1].hide();
    assert_eq!(node.ranks[1].colour(), 1);
    // What another node sends behind a count that is to come here.
    node.ranks[0].count_again(0);
    all[1].delivered += 1;
    all[1].heard[2] += 1;
    assert_eq!(count(&mut node, all), Some(1));
    node.ranks[0].count_again(0);
    assert_eq!(
        count(&mut node, all),
        Some(0),
        "it was sent before the next"
    );
    // Who joins again goes on from there, in an inbox that says nothing yet.
    let part = node.ranks[0].part().clone();
    let layout = InboxLayout::new(2, 4096).unwrap();
    let segment = Segment::create(layout.segment_bytes()).unwrap();
    let _inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
    node.segments[0] = Some(segment);
    node.ranks[0] = Census::new(2, 0, layout, Some(0));
    node.ranks[0].join_again(part, &node.segments);
    node.ranks[1].forget(0);
    node.ranks[1].look(None, &node.segments, &bells, 0);
    assert_eq!([0, 1].map(|rank| node.ranks[rank].colour()), [3, 3]);
}

#[test]
fn a_node_that_has_nothing_new_counts_slowly() {
    let mut node = Node::spoken_for(2, Some(0));
    let bells = [None, None];
    for rank in 0..2 {
        node.ranks[rank].begin(rank == 0, &node.segments);
    }
    node.ranks[1].look(Some(has((0, 0))), &node.segments, &bells, 0);
    let count = |node: &mut Node, now_ns| {
        let (ranks, segments) = (&mut node.ranks, &node.segments);
        let found = ranks[0].look(Some(has((1, 0))), segments, &bells, now_ns);
        let share = ranks[0].owed(found);
        if share.is_some() {
            ranks[0].count_again(now_ns);
        }
        share.map(|share| share.delivered)
    };
    for _ in 0..=SAME_COUNTS {
        assert_eq!(count(&mut node, 0), Some(0));
    }
    assert_eq!(count(&mut node, PAUSE_NS - 1), None);
    assert!(node.ranks[0].is_paused() && !node.ranks[0].has_news());
    assert_eq!(count(&mut node, PAUSE_NS), Some(0));
    assert_eq!(count(&mut node, PAUSE_NS), None);
    // Something new is told at once.
    node.ranks[1].look(Some(has((0, 1))), &node.segments, &bells, PAUSE_NS);
    assert!(node.ranks[0].has_news());
    assert_eq!(count(&mut node, PAUSE_NS), Some(1));
    assert_eq!(count(&mut node, PAUSE_NS), Some(1));
}

#[test]
fn who_shows_something_has_seen_which_count_its_speaker_has_begun() {
    let mut node = Node::spoken_for(2, Some(0));
    let bells = [None, None];
    for rank in 0..2 {
        node.ranks[rank].begin(rank == 0, &node.segments);
    }
    node.ranks[1].look(Some(has((0, 0))), &node.segments, &bells, 0);
    assert!(node.ranks[1].is_shown());
    let found = node.ranks[0].look(Some(has((0, 0))), &node.segments, &bells, 0);
    assert!(node.ranks[0].owed(found).is_some());
    // The speaker leaves, and joins again.
    node.ranks[1].forget(0);
    assert!(!node.ranks[1].is_shown() && node.ranks[1].colour() == 1);
    let away = node.segments[0].take();
    node.ranks[1].look(Some(has((0, 0))), &node.segments, &bells, 0);
    assert!(!node.ranks[1].is_shown(), "the speaker is away");
    node.segments[0] = away;
    node.ranks[1].look(Some(has((0, 0))), &node.segments, &bells, 0);
    assert!(node.ranks[1].is_shown());
}

#[test]
fn who_has_called_something_else_before_a_fence_is_found() {
    for speaker in [None, Some(0)] {
        let mut node = Node::spoken_for(2, speaker);
        node.call(1, 1);
        (0..2).for_each(|rank| node.begin(rank));
        assert!(!node.is_over(1, (0, 0)));
        assert!(!node.is_over(0, (0, 0)), "both have come");
        assert_eq!(node.ranks[0].odd(), Some(1));
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
    assert!(!node.ranks[0].has_news());
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
    assert!(!node.ranks[0].has_news());
}

#[test]
fn who_has_something_to_handle_is_seen() {
    let mut node = Node::new(2);
    (0..2).for_each(|rank| node.begin(rank));
    assert!(!node.is_over(1, (0, 0)));
    let bells = [None, None];
    let found = node.ranks[1].look(None, &node.segments, &bells, 0);
    assert_eq!(found, Found::Nothing);
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
    node.ranks[0] = Census::new(2, 0, layout, None);
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
