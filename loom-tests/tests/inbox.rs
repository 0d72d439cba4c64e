//! Ring, bitmap and doorbell together, with two lanes: no lane is lost, no wake-up is lost.
#![cfg(trihop_loom)]

use std::sync::Arc;

use loom::thread;
use trihop_loom_tests::{LoomLane, LoomSleeper, get, put};
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::ring::spsc::{Reader, Writer};
use trihop_transport::ring::{Orderings, Shipped, bitmap};
use trihop_transport::sync::{AtomicU64, Ordering};

/// What an inbox's owner has: two lanes and one word of bitmap.
struct Inbox<O> {
    readers: [Reader<LoomLane, O>; 2],
    active: Arc<[AtomicU64; 1]>,
    received: [u32; 2],
}

impl<O: Orderings> Inbox<O> {
    /// Drains every lane whose bit is set.
    fn drain(&mut self) {
        let mut lanes = Vec::new();
        bitmap::take::<_, O>(&self.active[..], |lane| lanes.push(lane as usize));
        for lane in lanes {
            while let Some(value) = get(&mut self.readers[lane]) {
                self.received[lane] += 1;
                assert_eq!(value, self.received[lane], "out of order");
            }
            self.readers[lane].release();
        }
    }
}

/// Lane 0 gets `counts[0]` frames, lane 1 `counts[1]`, each published alone. The owner looks around once and then sleeps if
/// nothing new is there.
fn gathers<O: Orderings + 'static>(counts: [u32; 2]) {
    loom::model(move || {
        let lanes = [LoomLane::new(4, 0), LoomLane::new(4, 0)];
        let active = Arc::new([AtomicU64::new(0)]);
        let sleeper = LoomSleeper::default();
        let producers: Vec<_> = (0..2)
            .map(|lane| {
                let (storage, active, sleeper) = (lanes[lane].clone(), active.clone(), sleeper.clone());
                thread::spawn(move || {
                    let mut writer = Writer::<_, O>::resume(storage).unwrap();
                    for value in 1..=counts[lane] {
                        assert!(put(&mut writer, 8, value));
                        writer.publish(&active[0], 1 << lane, &sleeper);
                    }
                })
            })
            .collect();
        let readers = lanes.map(|lane| Reader::<_, O>::resume(lane).unwrap());
        let mut inbox = Inbox { readers, active, received: [0; 2] };

        inbox.drain();
        doorbell::announce::<_, O>(sleeper.word());
        let asleep = !bitmap::any(&inbox.active[..]);
        if !asleep {
            doorbell::awake(sleeper.word());
            inbox.drain();
        }
        for producer in producers {
            producer.join().unwrap();
        }
        // A lost lane alone also leaves a sleeper asleep: its bit is what tells the two apart.
        if asleep && bitmap::any(&inbox.active[..]) {
            assert!(sleeper.was_woken(), "lost wake-up: the owner sleeps with {:?} received", inbox.received);
        }
        inbox.drain();
        assert_eq!(inbox.received, counts, "lost lane");
    });
}

#[test]
fn no_lane_and_no_wake_up_is_lost() {
    gathers::<Shipped>([2, 1]);
}

macro_rules! twin {
    ($test:ident, $constant:ident, $cause:literal) => {
        #[test]
        #[should_panic(expected = $cause)]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::AcqRel;
            }
            gathers::<Weak>([2, 1]);
        }
    };
}

twin!(twin_weak_publish_fence, PUBLISH_FENCE, "lost lane");
twin!(twin_weak_take_fence, TAKE_FENCE, "lost lane");
twin!(twin_weak_mark_fence, MARK_FENCE, "lost wake-up");
twin!(twin_weak_sleep_fence, SLEEP_FENCE, "lost wake-up");
