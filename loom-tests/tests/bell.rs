//! The doorbell alone: somebody rings for something that is in no lane.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_loom_tests::ModelSleeper;
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{Arc, AtomicU64, Ordering};

fn rings<O: Orderings + 'static>() {
    loom::model(|| {
        let (news, sleeper) = (Arc::new(AtomicU64::new(0)), ModelSleeper::default());
        let ringer = {
            let (news, sleeper) = (news.clone(), sleeper.clone());
            thread::spawn(move || {
                news.store(1, Ordering::Relaxed);
                doorbell::call::<_, O>(&sleeper);
            })
        };
        doorbell::announce::<_, O>(sleeper.word());
        let asleep = news.load(Ordering::Relaxed) == 0;
        ringer.join().unwrap();
        assert!(!asleep || sleeper.was_woken(), "lost wake-up");
    });
}

#[test]
fn a_ring_for_anything_is_not_lost() {
    rings::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident) => {
        #[test]
        #[should_panic(expected = "lost wake-up")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::AcqRel;
            }
            rings::<Weak>();
        }
    };
}

twin!(twin_weak_ring_fence, RING_FENCE);
twin!(twin_weak_sleep_fence, SLEEP_FENCE);
