//! The ring alone: wrap-around, pad, batched publish, release; and succession of producers.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_loom_tests::{ModelLane, ModelReader, ModelSleeper, put};
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Orderings, Shipped, claim};
use trihop_transport::sync::{Arc, AtomicU64, Ordering};

/// Frames through 8 units that begin at the seventh: the second needs a pad, the last finds room
/// only after a release, and they are published in pairs.
fn wraps<O: Orderings + 'static>() {
    loom::model(|| {
        let lane = ModelLane::new(8, 48);
        let mut reader = ModelReader::<O>::resume(lane.clone());
        // Outside of the thread: loom remembers one last access per word, and its own load there
        // would hide ours here.
        let mut writer = Writer::<_, O>::resume(lane).unwrap();
        let producer = thread::spawn(move || {
            let sleeper = ModelSleeper::default();
            let mut sent = 0;
            for (index, bytes) in [8, 16, 16, 16, 16].into_iter().enumerate() {
                if !put(&mut writer, bytes, sent + 1) {
                    break;
                }
                sent += 1;
                if index % 2 == 1 {
                    writer.publish(&sleeper);
                }
            }
            writer.publish(&sleeper);
            sent
        });
        let mut received = 0;
        for _ in 0..3 {
            if let Some(value) = reader.get() {
                received += 1;
                assert_eq!(value, received, "out of order");
                reader.release();
            }
        }
        let sent = producer.join().unwrap();
        while let Some(value) = reader.get() {
            received += 1;
            assert_eq!(value, received, "out of order");
        }
        assert_eq!(received, sent, "lost frames");
        assert!(sent >= 4);
    });
}

#[test]
fn frames_arrive_in_order_over_the_wrap() {
    wraps::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident = $ordering:ident, $cause:literal, $model:ident) => {
        #[test]
        #[should_panic(expected = $cause)]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::$ordering;
            }
            $model::<Weak>();
        }
    };
}

twin!(
    twin_relaxed_tail_store,
    TAIL_STORE = Relaxed,
    "Causality violation",
    wraps
);
twin!(
    twin_relaxed_tail_load,
    TAIL_LOAD = Relaxed,
    "Causality violation",
    wraps
);
twin!(
    twin_relaxed_head_store,
    HEAD_STORE = Relaxed,
    "Causality violation",
    wraps
);
twin!(
    twin_relaxed_head_load,
    HEAD_LOAD = Relaxed,
    "Causality violation",
    wraps
);

/// Two threads want to produce into one lane, one after the other or one of them not at all.
fn succession<O: Orderings + 'static>() {
    fn produce<O: Orderings>(lane: ModelLane, claimed: &AtomicU64, value: u32) -> Option<u32> {
        if !claim::claim::<_, O>(claimed) {
            return None;
        }
        let mut writer = Writer::<_, O>::resume(lane).unwrap();
        assert!(put(&mut writer, 8, value));
        writer.publish(&ModelSleeper::default());
        // Committed and never published: the next producer writes over it.
        assert!(put(&mut writer, 8, 9));
        claim::give_up::<_, O>(claimed);
        Some(value)
    }
    loom::model(|| {
        let lane = ModelLane::new(4, 0);
        let claimed = Arc::new(AtomicU64::new(0));
        let other = {
            let (lane, claimed) = (lane.clone(), claimed.clone());
            thread::spawn(move || produce::<O>(lane, &claimed, 2))
        };
        let ours = produce::<O>(lane.clone(), &claimed, 1);
        let theirs = other.join().unwrap();
        let mut reader = ModelReader::<O>::resume(lane);
        let mut received: Vec<_> = std::iter::from_fn(|| reader.get()).collect();
        received.sort_unstable();
        let sent: Vec<_> = [ours, theirs].into_iter().flatten().collect();
        assert_eq!(received, sent, "lost frames");
        assert!(!sent.is_empty());
    });
}

#[test]
fn a_producer_goes_on_where_the_last_one_stopped() {
    succession::<Shipped>();
}

twin!(
    twin_relaxed_claim,
    CLAIM = Relaxed,
    "Causality violation",
    succession
);
twin!(
    twin_relaxed_unclaim,
    UNCLAIM = Relaxed,
    "Causality violation",
    succession
);
