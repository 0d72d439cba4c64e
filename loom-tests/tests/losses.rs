//! The losses of a board: each is there once, and who sees how many there are sees them.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_transport::ring::Shipped;
use trihop_transport::sync::{Arc, AtomicU64};
use trihop_transport::topology::Rank;
use trihop_transport::watch::{Cause, News, board};

fn loss(rank: u32) -> News {
    News {
        rank: Rank(rank),
        cause: Cause::Ended,
    }
}

#[test]
fn losses_are_there_once_and_none_is_missed() {
    loom::model(|| {
        let words: Arc<Vec<AtomicU64>> =
            Arc::new((0..board::words(1)).map(|_| AtomicU64::new(0)).collect());
        // Two find out the same, and one something else.
        let posters = [[1, 2], [2, 1]].map(|ranks: [u32; 2]| {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                ranks.map(|rank| board::post_loss::<_, Shipped>(&words, &loss(rank)).unwrap())
            })
        });
        // Whatever somebody sees stays what it is.
        let seen = board::read_loss::<_, Shipped>(&words, 0);
        let posted = posters.map(|poster| poster.join().unwrap());
        assert_eq!(posted.as_flattened().iter().filter(|new| **new).count(), 2);
        let all = [0, 1].map(|number| board::read_loss::<_, Shipped>(&words, number).unwrap());
        let mut ranks = all.each_ref().map(|loss| loss.rank.0);
        ranks.sort_unstable();
        assert_eq!(ranks, [1, 2]);
        assert_eq!(board::read_loss::<_, Shipped>(&words, 2), None);
        assert!(seen.is_none_or(|seen| seen == all[0]));
        assert!(board::has_lost(&words, 1) && !board::has_lost(&words, 2));
    });
}
