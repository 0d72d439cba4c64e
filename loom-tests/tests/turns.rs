//! Many who want to produce into one lane, in turns.
#![cfg(trihop_shuttle)]

use trihop_loom_tests::shuttled::explore;
use trihop_loom_tests::{ModelLane, ModelReader, ModelSleeper, put};
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Shipped, claim};
use trihop_transport::sync::{Arc, AtomicU64, thread};

const PRODUCERS: u32 = 4;
const TURNS: u32 = 3;

/// Each producer takes its place three times and leaves a frame behind each time, and one that is
/// never published.
fn turns(claims: bool) {
    explore(move || {
        let lane = ModelLane::in_nursery(32, 0);
        let claimed = Arc::new(AtomicU64::new(0));
        let produce = |producer: u32| {
            let (lane, claimed) = (lane.clone(), claimed.clone());
            move || {
                for turn in 0..TURNS {
                    while claims && !claim::claim::<_, Shipped>(&*claimed) {
                        thread::yield_now();
                    }
                    let mut writer = Writer::<_, Shipped>::resume(lane.clone()).unwrap();
                    assert!(put(&mut writer, 8, producer * TURNS + turn));
                    writer.publish(&ModelSleeper::default());
                    assert!(put(&mut writer, 8, u32::MAX));
                    claim::give_up::<_, Shipped>(&*claimed);
                }
            }
        };
        let threads: Vec<_> = (0..PRODUCERS).map(|p| thread::spawn(produce(p))).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut reader = ModelReader::<Shipped>::resume(lane.clone());
        let mut received: Vec<_> = (0..PRODUCERS * TURNS)
            .filter_map(|_| reader.get())
            .collect();
        let order = |producer: u32| {
            received
                .iter()
                .copied()
                .filter(move |v| v / TURNS == producer)
        };
        let in_order = (0..PRODUCERS).all(|p| order(p).is_sorted());
        assert!(in_order, "out of order: {received:?}");
        received.sort_unstable();
        assert_eq!(
            received,
            (0..PRODUCERS * TURNS).collect::<Vec<_>>(),
            "lost frames"
        );
    });
}

#[test]
fn producers_take_turns_and_lose_nothing() {
    turns(true);
}

#[test]
#[should_panic(expected = "lost frames")]
fn twin_producers_do_not_claim_the_lane() {
    turns(false);
}
