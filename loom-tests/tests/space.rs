//! A producer that waits for space, next to another lane, while the owner of the inbox may sleep
//! too.
#![cfg(trihop_loom)]

use std::sync::Arc;

use loom::thread;
use trihop_loom_tests::{ModelLane, ModelReader, ModelSleeper, put};
use trihop_transport::ring::bitmap::Watch;
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{AtomicU64, Ordering};

/// When the producer asks to be woken for space.
#[derive(Clone, Copy)]
enum Ask {
    BeforeAnnouncing,
    AfterAnnouncing,
}

/// A full lane of five frames. The producer needs room for one that is twice as long as the first;
/// the consumer releases one frame at a time, so that the first release is not enough.
fn waits<O: Orderings + 'static>(ask: Ask) {
    loom::model(move || {
        let lane = ModelLane::new(8, 0);
        let (owner, producer) = (ModelSleeper::default(), ModelSleeper::default());
        let mut writer = Writer::<_, O>::resume(lane.clone()).unwrap();
        for (index, bytes) in [8, 8, 16, 16, 16].into_iter().enumerate() {
            assert!(put(&mut writer, bytes, index as u32 + 1));
        }
        writer.publish(&owner);
        let mut reader = ModelReader::<O>::resume(lane);

        let waiter = {
            let (owner, producer) = (owner.clone(), producer.clone());
            thread::spawn(move || {
                if !put(&mut writer, 16, 6) {
                    if let Ask::BeforeAnnouncing = ask {
                        writer.want_space();
                    }
                    doorbell::announce::<_, O>(producer.word());
                    if let Ask::AfterAnnouncing = ask {
                        writer.want_space();
                    }
                    if !writer.has_room(16) {
                        return (writer, true);
                    }
                    doorbell::awake(producer.word());
                    assert!(put(&mut writer, 16, 6));
                }
                writer.publish(&owner);
                (writer, false)
            })
        };
        for value in 1..=2 {
            assert_eq!(reader.get(), Some(value));
            if reader.release() {
                doorbell::ring(&producer);
            }
        }
        let (mut writer, asleep) = waiter.join().unwrap();
        assert!(writer.has_room(16) || !asleep);
        assert!(
            !asleep || producer.was_woken(),
            "lost wake-up: the producer sleeps before a lane with room"
        );
    });
}

#[test]
fn no_wake_up_for_space_is_lost() {
    waits::<Shipped>(Ask::BeforeAnnouncing);
}

#[test]
fn asking_after_announcing_is_as_good() {
    waits::<Shipped>(Ask::AfterAnnouncing);
}

/// Both at once: lane 0 is full and its producer needs room, lane 1 gets a frame, and the owner
/// drains both once and then sleeps if nothing is there.
fn waits_both<O: Orderings + 'static>() {
    loom::model(|| {
        let active = Arc::new([AtomicU64::new(0)]);
        let lanes = [0, 1].map(|lane| ModelLane::new(4, 0).in_inbox(active.clone(), lane));
        let (owner, producer) = (ModelSleeper::default(), ModelSleeper::default());
        let mut full = Writer::<_, O>::resume(lanes[0].clone()).unwrap();
        for value in 1..=4 {
            assert!(put(&mut full, 8, value));
        }
        full.publish(&owner);

        let waiter = {
            let (owner, producer) = (owner.clone(), producer.clone());
            thread::spawn(move || {
                full.want_space();
                doorbell::announce::<_, O>(producer.word());
                if !full.has_room(8) {
                    return (full, true);
                }
                doorbell::awake(producer.word());
                assert!(put(&mut full, 8, 5));
                full.publish(&owner);
                (full, false)
            })
        };
        let other = {
            let (lane, owner) = (lanes[1].clone(), owner.clone());
            let mut writer = Writer::<_, O>::resume(lane).unwrap();
            thread::spawn(move || {
                assert!(put(&mut writer, 8, 1));
                writer.publish(&owner);
            })
        };
        let (mut watch, owned) = (Watch::default(), lanes.clone());
        let storage = |lane: u32| owned[lane as usize].clone();
        let mut readers = lanes.map(|lane| ModelReader::<O>::resume(lane));
        let mut received = [0; 2];
        let mut drain = |received: &mut [u32; 2], watch: &mut Watch| {
            let mut found = Vec::new();
            watch.take::<_, O>(&active[..], 2, storage, |lane| found.push(lane as usize));
            for lane in found {
                while let Some(value) = readers[lane].get() {
                    received[lane] += 1;
                    assert_eq!(value, received[lane], "out of order");
                }
                if readers[lane].release() && lane == 0 {
                    doorbell::ring(&producer);
                }
            }
        };
        drain(&mut received, &mut watch);
        doorbell::announce::<_, O>(owner.word());
        let owner_asleep = !watch.any(&active[..], storage);

        let (mut full, producer_asleep) = waiter.join().unwrap();
        other.join().unwrap();
        assert!(full.has_room(8));
        assert!(
            !producer_asleep || producer.was_woken(),
            "lost wake-up: the producer sleeps before a lane with room"
        );
        let expected = [if producer_asleep { 4 } else { 5 }, 1];
        assert!(
            !owner_asleep || received == expected || owner.was_woken(),
            "lost wake-up: the owner sleeps with {received:?} received"
        );
        drain(&mut received, &mut watch);
        assert_eq!(received, expected, "lost lane");
    });
}

#[test]
fn two_sleepers_wake_each_other() {
    waits_both::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident, $model:ident $(, $ask:ident)?) => {
        #[test]
        #[should_panic(expected = "lost wake-up: the producer sleeps")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::AcqRel;
            }
            $model::<Weak>($(Ask::$ask)?);
        }
    };
}

twin!(
    twin_weak_release_fence,
    RELEASE_FENCE,
    waits,
    BeforeAnnouncing
);
twin!(twin_weak_sleep_fence, SLEEP_FENCE, waits, BeforeAnnouncing);
twin!(twin_weak_want_fence, WANT_FENCE, waits, AfterAnnouncing);
twin!(
    twin_weak_release_fence_with_two_sleepers,
    RELEASE_FENCE,
    waits_both
);
