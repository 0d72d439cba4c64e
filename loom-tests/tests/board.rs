//! The board of a node: a thread that sees news sees their text, and the first news are the only
//! ones.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{Arc, AtomicU64};
use trihop_transport::topology::Rank;
use trihop_transport::watch::{News, board};

fn news(rank: u32) -> News {
    News::failed(Rank(rank), &format!("{rank}"))
}

fn posts<O: Orderings + 'static>() {
    loom::model(|| {
        let words: Arc<Vec<AtomicU64>> =
            Arc::new((0..board::words(2)).map(|_| AtomicU64::new(0)).collect());
        let posters = [1, 2].map(|rank: u32| {
            let words = Arc::clone(&words);
            thread::spawn(move || board::post::<_, O>(&words, rank as usize - 1, &news(rank)))
        });
        let seen = board::read::<_, O>(&words);
        let first = posters.map(|poster| poster.join().unwrap());
        assert!(first[0] != first[1], "there is one first");
        let after = board::read::<_, O>(&words);
        assert_eq!(after, Some(news(if first[0] { 1 } else { 2 })));
        assert!(seen.is_none() || seen == after, "torn news: {seen:?}");
    });
}

#[test]
fn news_are_whole_and_the_first_count() {
    posts::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident) => {
        #[test]
        #[should_panic(expected = "torn news")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: trihop_transport::sync::Ordering =
                    trihop_transport::sync::Ordering::Relaxed;
            }
            posts::<Weak>();
        }
    };
}

twin!(twin_weak_news_store, NEWS_STORE);
twin!(twin_weak_news_load, NEWS_LOAD);
