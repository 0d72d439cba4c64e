//! Two and three threads at full speed, small lanes, everybody sleeps when there is nothing to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Random, fill, is_filled};
use crate::memory::segment::Segment;
use crate::park::Parker;
use crate::ring::{Doorbell, Inbox, InboxLayout, Producer};
use crate::sync::thread;

/// Longer than any machine is busy with something else: a sleep that lasts so long is a lost
/// wake-up.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Sleeps, and fails the test if nobody ever rings.
pub(super) fn sleep(parker: &mut Parker, doorbell: &Doorbell, stay_awake: impl FnOnce() -> bool) {
    let began = Instant::now();
    parker
        .park(doorbell, WATCHDOG, stay_awake, &mut Vec::new())
        .expect("parking");
    assert!(began.elapsed() < WATCHDOG, "lost wake-up");
}

/// Sends `count` frames of random sizes, published in random batches; sleeps when the lane is full.
pub(super) fn send(mut producer: Producer, doorbell: &Doorbell, count: u64, random: &mut Random) {
    let mut parker = Parker::new(doorbell).expect("an epoll instance");
    for number in 0..count {
        let bytes = match random.below(8) {
            0 => (random.below(128) as usize + 1) * 8,
            _ => (random.below(8) as usize + 1) * 8,
        };
        while producer.reserve(bytes).is_none() {
            producer.publish();
            producer.want_space();
            sleep(&mut parker, doorbell, || producer.has_room(bytes));
        }
        fill(producer.reserve(bytes).expect("there is room"), number);
        producer.commit(bytes);
        if random.below(4) == 0 {
            producer.publish();
        }
    }
    producer.publish();
}

/// Receives `count` frames from each lane in order.
pub(super) fn receive(mut inbox: Inbox, doorbell: &Doorbell, count: u64) {
    let mut parker = Parker::new(doorbell).expect("an epoll instance");
    let mut received = vec![0; inbox.layout().lanes() as usize];
    let mut active = Vec::new();
    while received.iter().any(|number| *number < count) {
        active.clear();
        inbox.take_active(&mut active);
        for &lane in &active {
            while let Some(frame) = inbox
                .lane(lane)
                .front()
                .expect("nobody writes what cannot be true")
            {
                assert!(
                    is_filled(frame, received[lane as usize]),
                    "frame {} of lane {lane}",
                    received[lane as usize]
                );
                received[lane as usize] += 1;
                inbox.lane(lane).pop();
            }
            inbox.lane(lane).release();
        }
        if active.is_empty() {
            sleep(&mut parker, doorbell, || inbox.any_active());
        }
    }
    assert!((0..inbox.layout().lanes()).all(|lane| inbox.lane(lane).is_empty()));
}

fn stress(lanes: u32, count: u64) {
    let layout = InboxLayout::new(lanes, 4096).unwrap();
    let segment = Segment::create(layout.segment_bytes()).unwrap();
    let doorbell = Doorbell::create().unwrap();
    let mut inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
    let seed = Random::seeded().0;
    let bells: Vec<_> = (0..lanes).map(|_| Doorbell::create().unwrap()).collect();
    inbox.set_bells(bells.iter().map(|bell| Some(bell.bell())).collect(), 1);
    let senders: Vec<_> = (0..lanes)
        .zip(bells)
        .map(|(lane, bell)| {
            let producer =
                Producer::new(Arc::clone(&segment), layout, lane, doorbell.bell()).unwrap();
            let mut random = Random(seed ^ u64::from(lane + 1) << 32);
            thread::spawn(move || send(producer, &bell, count, &mut random))
        })
        .collect();
    receive(inbox, &doorbell, count);
    for sender in senders {
        sender.join().expect("the sender succeeds");
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps files and sleeps on descriptors")]
fn one_producer_at_full_speed() {
    stress(1, 300_000);
}

#[test]
#[cfg_attr(miri, ignore = "maps files and sleeps on descriptors")]
fn three_producers_at_full_speed() {
    stress(3, 60_000);
}
