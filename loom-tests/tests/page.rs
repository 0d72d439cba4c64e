//! A page that is shown: who reads a snapshot reads all of one, whichever it is.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_transport::memory::page;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{Arc, AtomicU64};

/// Words of each snapshot, all of one value.
const WORDS: usize = 2;
/// The third is written over the first.
const SNAPSHOTS: u64 = 3;

fn shows<O: Orderings + 'static>() {
    loom::model(|| {
        let area: Arc<Vec<AtomicU64>> =
            Arc::new((0..page::words(WORDS)).map(|_| AtomicU64::new(0)).collect());
        let writer = {
            let area = Arc::clone(&area);
            thread::spawn(move || {
                for value in 1..=SNAPSHOTS {
                    page::show::<_, O>(&area, |snapshot| {
                        (0..WORDS).for_each(|_| snapshot.put(value));
                    });
                }
            })
        };
        let reader = {
            let area = Arc::clone(&area);
            thread::spawn(move || page::read::<_, O>(&area))
        };
        writer.join().unwrap();
        if let Some(seen) = reader.join().unwrap() {
            assert!(
                seen.len() == WORDS && seen.iter().all(|word| *word == seen[0]),
                "torn snapshot: {seen:?}"
            );
        }
        assert_eq!(page::read::<_, O>(&area), Some(vec![SNAPSHOTS; WORDS]));
    });
}

#[test]
fn snapshots_are_whole() {
    shows::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident, $weaker:ident) => {
        #[test]
        #[should_panic(expected = "torn snapshot")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: trihop_transport::sync::Ordering =
                    trihop_transport::sync::Ordering::$weaker;
            }
            shows::<Weak>();
        }
    };
}

// A fence of the other side orders nothing here.
twin!(twin_weak_renew_fence, PAGE_RENEW_FENCE, Acquire);
twin!(twin_weak_store, PAGE_STORE, Relaxed);
twin!(twin_weak_look_fence, PAGE_LOOK_FENCE, Release);
twin!(twin_weak_check_fence, PAGE_CHECK_FENCE, Release);
