//! The book of a node: who finds a value finds all of it, and room is given away once.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_transport::memory::book;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{Arc, AtomicU64};

const PLACES: usize = 1;

fn value(of: u8) -> [u8; 9] {
    [of; 9]
}

fn writes<O: Orderings + 'static>() {
    loom::model(|| {
        let words: Arc<Vec<AtomicU64>> = Arc::new(
            (0..book::words(PLACES, 4))
                .map(|_| AtomicU64::new(0))
                .collect(),
        );
        let writers = [1, 2].map(|of: u8| {
            let words = Arc::clone(&words);
            thread::spawn(move || assert!(book::write::<_, O>(&words, PLACES, 0, &value(of))))
        });
        let seen = book::read::<_, O>(&words, PLACES, 0);
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        let after = book::read::<_, O>(&words, PLACES, 0).expect("written twice");
        assert!(
            [value(1), value(2)].iter().any(|one| after == one),
            "torn value: {after:?}"
        );
        assert!(
            seen.is_none_or(|seen| seen == after),
            "torn value, or another one"
        );
    });
}

#[test]
fn values_are_whole_and_the_first_stays() {
    writes::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident) => {
        #[test]
        #[should_panic(expected = "torn value")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: trihop_transport::sync::Ordering =
                    trihop_transport::sync::Ordering::Relaxed;
            }
            writes::<Weak>();
        }
    };
}

twin!(twin_weak_book_store, BOOK_STORE);
twin!(twin_weak_book_load, BOOK_LOAD);
