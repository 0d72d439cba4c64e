//! A census of two ranks: nobody finds that all is done while something is under way, and somebody
//! finds it once it is.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_transport::ring::census::{
    Come, Counts, Shown, begin_count, counted, end, ended, together,
};
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{Arc, AtomicU64, Ordering};

const CENSUS: u64 = 7;

#[derive(Default)]
struct Line {
    number: AtomicU64,
    census: AtomicU64,
    sent: AtomicU64,
    delivered: AtomicU64,
}

impl Line {
    fn shown(&self) -> Shown<'_, AtomicU64> {
        Shown {
            number: &self.number,
            census: &self.census,
            sent: &self.sent,
            delivered: &self.delivered,
            heard: None,
        }
    }
}

fn has((sent, delivered): (u64, u64)) -> Counts {
    Counts {
        sent,
        delivered,
        ..Counts::default()
    }
}

/// Ranks, and how many messages each of them has in its inbox.
#[derive(Default)]
struct Node {
    lines: Vec<Line>,
    inboxes: [AtomicU64; 3],
    /// The first rank is told here that it is over.
    over: AtomicU64,
}

impl Node {
    fn of(ranks: usize) -> Arc<Self> {
        Arc::new(Self {
            lines: (0..ranks).map(|_| Line::default()).collect(),
            ..Self::default()
        })
    }

    /// Sends to these ranks, after which they have so many messages.
    fn send<O: Orderings>(&self, rank: usize, to: [(usize, u64); 2], hides: bool) {
        if hides {
            self.lines[rank].shown().hide::<O>();
        }
        for (rank, messages) in to {
            self.inboxes[rank].store(messages, Ordering::Relaxed);
        }
    }

    fn show<O: Orderings>(&self, rank: usize, number: u64, counts: (u64, u64)) -> bool {
        let line = self.lines[rank].shown();
        line.show::<O>(number, CENSUS, has(counts));
        let all = together::<_, O>(self.lines.iter().map(Line::shown), CENSUS);
        all.is_some_and(|all| all.sent == all.delivered)
    }
}

/// Rank 0 has sent a message, and rank 1 has shown that it had sent and heard nothing. That message
/// has rank 1 send two. Where rank 0 shows that it has heard one of them, the counts agree with what
/// rank 1 had shown before.
fn chain<O: Orderings + 'static>(hides: bool) {
    loom::model(move || {
        let node = Node::of(2);
        node.lines[1].shown().show::<O>(1, CENSUS, has((0, 0)));
        let other = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                node.send::<O>(1, [(0, 1), (0, 2)], hides);
                node.show::<O>(1, 2, (2, 1))
            })
        };
        let mut heard = 0;
        let mut is_over = false;
        for number in 0..2 {
            // A consumer's look at a lane acquires what its producer did before.
            let came = node.inboxes[0].load(Ordering::Acquire);
            if came > heard {
                heard = came;
                is_over = node.show::<O>(0, 1 + number, (1, heard));
                assert!(!is_over || heard == 2, "over with a message under way");
            }
        }
        let found = other.join().unwrap();
        if heard < 2 {
            assert!(!is_over && !found, "over with a message under way");
            is_over = node.show::<O>(0, 3, (1, 2));
        }
        assert!(is_over || found, "all is done, and nobody has found that");
    });
}

/// As [`chain`] of three ranks: one of the two messages that rank 1 sends goes to rank 2, and it is
/// rank 0 that looks.
fn chain_of_three<O: Orderings + 'static>(hides: bool) {
    loom::model(move || {
        let node = Node::of(3);
        node.lines[1].shown().show::<O>(1, CENSUS, has((0, 0)));
        let sender = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.send::<O>(1, [(2, 1), (0, 1)], hides))
        };
        let receiver = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                let heard = node.inboxes[2].load(Ordering::Acquire);
                node.lines[2].shown().show::<O>(1, CENSUS, has((0, heard)));
            })
        };
        // It has not heard what rank 1 sends, or that is not there yet.
        let is_over = node.show::<O>(0, 1, (1, 0));
        assert!(!is_over, "over with a message under way");
        sender.join().unwrap();
        receiver.join().unwrap();
    });
}

/// Rank 0 hears of rank 1 that all is done, and sees what rank 2 did before it showed that.
fn hears<O: Orderings + 'static>() {
    loom::model(|| {
        let node = Node::of(3);
        node.lines[0].shown().show::<O>(1, CENSUS, has((0, 0)));
        let doer = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                node.inboxes[2].store(1, Ordering::Relaxed);
                node.lines[2].shown().show::<O>(1, CENSUS, has((0, 0)));
            })
        };
        let finder = {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                if node.show::<O>(1, 1, (0, 0)) {
                    end::<_, O>(&node.over, CENSUS);
                }
            })
        };
        if ended::<_, O>(&node.over) == CENSUS {
            let done = node.inboxes[2].load(Ordering::Relaxed);
            assert_eq!(done, 1, "over, and what was done is not seen");
        }
        doer.join().unwrap();
        finder.join().unwrap();
    });
}

/// Rank 0 speaks for its node, and looks at what rank 1 shows, which sends meanwhile.
fn colours<O: Orderings + 'static>() {
    loom::model(|| {
        let node = Node::of(2);
        let begun = Arc::new(AtomicU64::new(0));
        for line in &node.lines {
            line.shown().show::<O>(1, CENSUS, has((0, 0)));
        }
        let sender = {
            let (node, begun) = (Arc::clone(&node), Arc::clone(&begun));
            thread::spawn(move || {
                node.lines[1].shown().hide::<O>();
                counted::<_, O>(&*begun)
            })
        };
        begin_count::<_, O>(&*begun, 1);
        let is_seen = together::<_, O>(node.lines.iter().map(Line::shown), CENSUS).is_some();
        let colour = sender.join().unwrap();
        assert!(
            !is_seen || colour == 1,
            "sent behind a count, of an old colour"
        );
    });
}

/// A rank begins a census and then a call, and is not seen to have begun the call alone.
fn comes<O: Orderings + 'static>() {
    loom::model(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                for (censuses, calls) in [(1, 0), (1, 1)] {
                    Come { censuses, calls }.say::<_, O>(&words[0], &words[1]);
                }
            })
        };
        let come = Come::read::<_, O>(&words[0], &words[1]);
        assert!(come.calls <= come.censuses, "a call before its census");
        other.join().unwrap();
    });
}

/// Both show what they have sent and delivered at the same time, once each.
fn both<O: Orderings + 'static>() {
    loom::model(|| {
        let node = Node::of(2);
        let other = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.show::<O>(1, 1, (3, 5)))
        };
        let here = node.show::<O>(0, 1, (5, 3));
        assert!(
            other.join().unwrap() || here,
            "all is done, and nobody has found that"
        );
    });
}

/// Rank 1 shows other counts while rank 0 looks: it sees those before or those after, which do not
/// agree with its own, and nothing in between, which would.
fn torn<O: Orderings + 'static>() {
    loom::model(|| {
        let node = Node::of(2);
        node.lines[1].shown().show::<O>(1, CENSUS, has((1, 1)));
        let other = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.show::<O>(1, 2, (4, 3)))
        };
        // With 1 and 3, or with 4 and 1, this would agree.
        let counts = (2, 0);
        let is_over = node.show::<O>(0, 1, counts);
        assert!(!is_over, "torn counts");
        let found = other.join().unwrap();
        assert!(!found, "torn counts");
    });
}

#[test]
fn nothing_is_under_way_when_a_census_is_over_and_somebody_finds_that() {
    chain::<Shipped>(true);
}

#[test]
#[should_panic(expected = "under way")]
fn twin_that_sends_without_hiding() {
    chain::<Shipped>(false);
}

#[test]
fn of_three_ranks_none_finds_an_end_too_early() {
    chain_of_three::<Shipped>(true);
}

#[test]
#[should_panic(expected = "under way")]
fn twin_of_three_that_sends_without_hiding() {
    chain_of_three::<Shipped>(false);
}

#[test]
fn what_is_sent_behind_a_count_of_all_nodes_has_its_colour() {
    colours::<Shipped>();
}

#[test]
fn who_hears_of_the_end_sees_what_was_done() {
    hears::<Shipped>();
}

#[test]
fn who_has_made_a_call_has_begun_the_census_before_it() {
    comes::<Shipped>();
}

#[test]
fn of_two_who_show_one_finds_the_end() {
    both::<Shipped>();
}

#[test]
fn counts_are_whole() {
    torn::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident = $order:ident, $model:ident, $expected:literal) => {
        #[test]
        #[should_panic(expected = $expected)]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::$order;
            }
            $model::<Weak>();
        }
    };
}

twin!(
    twin_weak_fence,
    CENSUS_FENCE = AcqRel,
    both,
    "nobody has found"
);
twin!(twin_weak_store, CENSUS_STORE = Relaxed, torn, "torn counts");
twin!(twin_weak_load, CENSUS_LOAD = Relaxed, torn, "torn counts");
twin!(
    twin_weak_hide,
    CENSUS_HIDE_FENCE = Acquire,
    torn,
    "torn counts"
);
twin!(
    twin_weak_check,
    CENSUS_CHECK_FENCE = Release,
    torn,
    "torn counts"
);
twin!(
    twin_weak_over_store,
    CENSUS_OVER_STORE = Relaxed,
    hears,
    "is not seen"
);
twin!(
    twin_weak_over_load,
    CENSUS_OVER_LOAD = Relaxed,
    hears,
    "is not seen"
);
twin!(
    twin_weak_come_store,
    CENSUS_COME_STORE = Relaxed,
    comes,
    "a call before"
);
twin!(
    twin_weak_come_load,
    CENSUS_COME_LOAD = Relaxed,
    comes,
    "a call before"
);
twin!(
    twin_weak_count_fence,
    CENSUS_COUNT_FENCE = AcqRel,
    colours,
    "of an old colour"
);
