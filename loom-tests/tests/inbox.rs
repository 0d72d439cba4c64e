//! Ring, bitmap and doorbell together, with two lanes: no lane is lost, no wake-up is lost.
#![cfg(trihop_loom)]

use std::sync::Arc;

use loom::thread;
use trihop_loom_tests::{ModelLane, ModelReader, ModelSleeper, put};
use trihop_transport::ring::bitmap::Watch;
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{AtomicU64, Ordering};

/// What an inbox's owner has: two lanes and one word of bitmap.
struct Inbox<O> {
    lanes: [ModelLane; 2],
    watch: Watch,
    readers: [ModelReader<O>; 2],
    active: Arc<[AtomicU64; 1]>,
    received: [u32; 2],
}

impl<O: Orderings> Inbox<O> {
    /// Drains every lane whose bit is set.
    fn drain(&mut self) {
        let mut found = Vec::new();
        let storage = |lane| self.lanes[lane as usize].clone();
        self.watch
            .take::<_, O>(&self.active[..], 2, storage, |lane| {
                found.push(lane as usize)
            });
        for lane in found {
            while let Some(value) = self.readers[lane].get() {
                self.received[lane] += 1;
                assert_eq!(value, self.received[lane], "out of order");
            }
            self.readers[lane].release();
        }
    }

    /// Whether there is something to drain.
    fn any(&self) -> bool {
        self.watch
            .any(&self.active[..], |lane| self.lanes[lane as usize].clone())
    }
}

/// Lane 0 gets two frames, lane 1 one, each published alone. The owner looks around once and then
/// sleeps if nothing new is there. With `watched`, lane 0 got two frames before, so that the owner
/// watches its tail and its bit stays set.
///
/// `main` says who runs in loom's first thread, which it lets run first: loom remembers the last
/// access to a word only, so that each side's own look at the bitmap would otherwise hide
/// schedules.
fn gathers<O: Orderings + Send + 'static>(main: Main, watched: bool) {
    loom::model(move || {
        let active = Arc::new([AtomicU64::new(0)]);
        let lanes = [0, 1].map(|lane| ModelLane::new(4, 0).in_inbox(active.clone(), lane));
        let sleeper = ModelSleeper::default();
        let mut inbox = Inbox {
            readers: lanes.clone().map(|lane| ModelReader::<O>::resume(lane)),
            lanes: lanes.clone(),
            watch: Watch::default(),
            active: active.clone(),
            received: [0; 2],
        };
        let [first, second] = [0, 1].map(|lane: usize| {
            let sleeper = sleeper.clone();
            let mut writer = Writer::<_, O>::resume(lanes[lane].clone()).unwrap();
            let mut send = move |value| {
                assert!(put(&mut writer, 8, value));
                writer.publish(&sleeper);
            };
            if watched && lane == 0 {
                for value in 1..=2 {
                    send(value);
                    inbox.drain();
                }
                assert_eq!(inbox.watch.hot(), Some(0));
                assert!(active[0].load(Ordering::Relaxed) == 1 && !inbox.any());
            }
            let before = inbox.received[lane];
            move || {
                for value in 1..=COUNTS[lane] {
                    send(before + value);
                }
            }
        });
        let word = sleeper.clone();
        let owner = move || {
            inbox.drain();
            doorbell::announce::<_, O>(word.word());
            let asleep = !inbox.any();
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
        if asleep && inbox.any() {
            assert!(
                sleeper.was_woken(),
                "lost wake-up: the owner sleeps with {:?} received",
                inbox.received
            );
        }
        inbox.drain();
        let before = if watched { 2 } else { 0 };
        assert_eq!(inbox.received, [COUNTS[0] + before, COUNTS[1]], "lost lane");
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
    gathers::<Shipped>(Main::Owner, false);
    gathers::<Shipped>(Main::Producer, false);
}

#[test]
fn no_wake_up_is_lost_of_a_lane_that_is_watched() {
    gathers::<Shipped>(Main::Owner, true);
    gathers::<Shipped>(Main::Producer, true);
}

macro_rules! twin {
    ($test:ident, $constant:ident, $watched:literal, $cause:literal) => {
        #[test]
        #[should_panic(expected = $cause)]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::AcqRel;
            }
            gathers::<Weak>(Main::Owner, $watched);
            gathers::<Weak>(Main::Producer, $watched);
        }
    };
}

twin!(twin_weak_publish_fence, PUBLISH_FENCE, false, "lost lane");
twin!(twin_weak_take_fence, TAKE_FENCE, false, "lost lane");
twin!(twin_weak_mark_fence, MARK_FENCE, false, "lost wake-up");
twin!(twin_weak_sleep_fence, SLEEP_FENCE, false, "lost wake-up");
twin!(
    twin_weak_publish_fence_of_a_watched_lane,
    PUBLISH_FENCE,
    true,
    "lost wake-up"
);
twin!(
    twin_weak_sleep_fence_before_a_watched_lane,
    SLEEP_FENCE,
    true,
    "lost wake-up"
);
