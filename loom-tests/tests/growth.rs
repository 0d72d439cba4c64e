//! A lane that grows out of its nursery while the consumer reads, and succession of producers
//! around it.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_loom_tests::{ModelLane, ModelReader, ModelSleeper, put};
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::Ordering;

/// Five frames of one unit, each published alone, through a nursery of four units that begins at
/// its third: where the consumer is slow the last ones find it full, and lie in the ring. With
/// `wide` the third has three units, too many for the nursery, and is published with its
/// predecessor.
fn grows<O: Orderings + 'static>(wide: bool, late: bool) {
    loom::model(move || {
        let lane = ModelLane::in_nursery(16, 16);
        let mut reader = ModelReader::<O>::resume(lane.clone());
        let shown = if late {
            lane.clone().with_late_growth()
        } else {
            lane.clone()
        };
        // Outside of the thread: loom remembers one last access per word, and its own load there
        // would hide ours here.
        let mut writer = Writer::<_, O>::resume(shown).unwrap();
        let count = if wide { 3 } else { 5 };
        let producer = thread::spawn(move || {
            let sleeper = ModelSleeper::default();
            for value in 1..=count {
                let bytes = if wide && value == 3 { 24 } else { 8 };
                assert!(
                    put(&mut writer, bytes, value),
                    "a lane that can grow has room"
                );
                if !wide || value != 2 {
                    writer.publish(&sleeper);
                    if late {
                        writer.storage().show_growth();
                    }
                }
            }
        });
        let mut received = 0;
        for _ in 0..2 {
            if let Some(value) = reader.get() {
                received += 1;
                assert_eq!(value, received, "out of order");
                reader.release();
            }
        }
        producer.join().unwrap();
        assert!(!wide || lane.has_grown());
        while let Some(value) = reader.get() {
            received += 1;
            assert_eq!(value, received, "out of order");
        }
        assert_eq!(received, count, "lost frames");
    });
}

#[test]
fn a_full_nursery_grows_under_the_consumers_eyes() {
    grows::<Shipped>(false, false);
}

#[test]
fn a_long_frame_grows_the_lane_under_the_consumers_eyes() {
    grows::<Shipped>(true, false);
}

#[test]
#[should_panic(expected = "no side writes what cannot be true")]
fn twin_growth_shown_after_the_tail() {
    grows::<Shipped>(true, true);
}

macro_rules! twin {
    ($test:ident, $constant:ident) => {
        #[test]
        #[should_panic(expected = "Causality violation")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::Relaxed;
            }
            grows::<Weak>(true, false);
        }
    };
}

twin!(twin_relaxed_tail_store, TAIL_STORE);
twin!(twin_relaxed_tail_load, TAIL_LOAD);

/// A producer grows the lane and gives up before it publishes anything that lies in the ring; its
/// successor goes on where the consumer may already have looked at the word.
#[test]
fn a_growth_that_was_never_published_moves_back() {
    loom::model(|| {
        let lane = ModelLane::in_nursery(16, 0);
        let mut reader = ModelReader::<Shipped>::resume(lane.clone());
        let producer = thread::spawn(move || {
            let sleeper = ModelSleeper::default();
            let mut first = Writer::<_, Shipped>::resume(lane.clone()).unwrap();
            assert!(put(&mut first, 8, 1));
            first.publish(&sleeper);
            assert!(put(&mut first, 8, 8));
            assert!(put(&mut first, 24, 9));
            drop(first);
            let mut second = Writer::<_, Shipped>::resume(lane).unwrap();
            assert!(put(&mut second, 8, 2));
            second.publish(&sleeper);
        });
        let mut received: Vec<_> = (0..2).filter_map(|_| reader.get()).collect();
        producer.join().unwrap();
        received.extend(std::iter::from_fn(|| reader.get()));
        assert_eq!(received, [1, 2]);
    });
}
