//! Ring, bitmap and doorbell together, with two lanes: no lane is lost, no wake-up is lost.
#![cfg(trihop_loom)]

use std::sync::Arc;

use loom::thread;
use trihop_loom_tests::{ModelLane, ModelReader, ModelSleeper, put};
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Orderings, Shipped, bitmap};
use trihop_transport::sync::{AtomicU64, Ordering};

/// What an inbox's owner has: two lanes and one word of bitmap.
struct Inbox<O> {
    readers: [ModelReader<O>; 2],
    active: Arc<[AtomicU64; 1]>,
    received: [u32; 2],
}

impl<O: Orderings> Inbox<O> {
    /// Drains every lane whose bit is set.
    fn drain(&mut self) {
        let mut lanes = Vec::new();
        bitmap::take::<_, O>(&self.active[..], |lane| lanes.push(lane as usize));
        for lane in lanes {
            while let Some(value) = self.readers[lane].get() {
                self.received[lane] += 1;
                assert_eq!(value, self.received[lane], "out of order");
            }
            self.readers[lane].release();
        }
    }
}

/// Lane 0 gets two frames, lane 1 one, each published alone. The owner looks around once and then sleeps if nothing new
/// is there.
///
/// `main` says who runs in loom's first thread, which it lets run first: loom remembers the last access to a word only,
/// so that each side's own look at the bitmap would otherwise hide schedules.
fn gathers<O: Orderings + Send + 'static>(main: Main) {
    loom::model(move || {
        let active = Arc::new([AtomicU64::new(0)]);
        let lanes = [0, 1].map(|lane| ModelLane::new(4, 0).in_inbox(active.clone(), lane));
        let sleeper = ModelSleeper::default();
        let [first, second] = [0, 1].map(|lane: usize| {
            let sleeper = sleeper.clone();
            let mut writer = Writer::<_, O>::resume(lanes[lane].clone()).unwrap();
            move || {
                for value in 1..=COUNTS[lane] {
                    assert!(put(&mut writer, 8, value));
                    writer.publish(&sleeper);
                }
            }
        });
        let readers = lanes.map(|lane| ModelReader::<O>::resume(lane));
        let mut inbox = Inbox {
            readers,
            active,
            received: [0; 2],
        };
        let word = sleeper.clone();
        let owner = move || {
            inbox.drain();
            doorbell::announce::<_, O>(word.word());
            let asleep = !bitmap::any(&inbox.active[..]);
            if !asleep {
                doorbell::awake(word.word());
                inbox.drain();
            }
            (inbox, asleep)
        };

        let second = thread::spawn(second);
        let (mut inbox, asleep) = match main {
            Main::Owner => {
                let first = thread::spawn(first);
                let end = owner();
                first.join().unwrap();
                end
            }
            Main::Producer => {
                let owner = thread::spawn(owner);
                let mut first = first;
                first();
                owner.join().unwrap()
            }
        };
        second.join().unwrap();
        // A lost lane also leaves the owner asleep: its bit tells the two apart.
        if asleep && bitmap::any(&inbox.active[..]) {
            assert!(
                sleeper.was_woken(),
                "lost wake-up: the owner sleeps with {:?} received",
                inbox.received
            );
        }
        inbox.drain();
        assert_eq!(inbox.received, COUNTS, "lost lane");
    });
}

/// Who runs in loom's first thread.
#[derive(Clone, Copy)]
enum Main {
    Owner,
    Producer,
}

/// Frames of each lane.
const COUNTS: [u32; 2] = [2, 1];

#[test]
fn no_lane_and_no_wake_up_is_lost() {
    gathers::<Shipped>(Main::Owner);
    gathers::<Shipped>(Main::Producer);
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
            gathers::<Weak>(Main::Owner);
            gathers::<Weak>(Main::Producer);
        }
    };
}

twin!(twin_weak_publish_fence, PUBLISH_FENCE, "lost lane");
twin!(twin_weak_take_fence, TAKE_FENCE, "lost lane");
twin!(twin_weak_mark_fence, MARK_FENCE, "lost wake-up");
twin!(twin_weak_sleep_fence, SLEEP_FENCE, "lost wake-up");
