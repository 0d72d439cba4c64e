use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::sync::thread;

const WATCHDOG: Duration = Duration::from_secs(60);

fn new() -> (Doorbell, Parker) {
    let doorbell = Doorbell::create().unwrap();
    let parker = Parker::new(&doorbell).unwrap();
    (doorbell, parker)
}

/// Parks, and fails where nothing but the time limit ends it.
fn park(parker: &mut Parker, doorbell: &Doorbell) -> Vec<u64> {
    let (mut woken, began) = (Vec::new(), Instant::now());
    parker
        .park(doorbell, WATCHDOG, || false, &mut woken)
        .unwrap();
    assert!(began.elapsed() < WATCHDOG, "nobody woke us");
    woken
}

#[test]
fn whoever_stays_awake_does_not_sleep() {
    let (doorbell, mut parker) = new();
    let mut woken = Vec::new();
    parker
        .park(&doorbell, WATCHDOG, || true, &mut woken)
        .unwrap();
    assert!(woken.is_empty());
}

#[test]
fn a_ring_after_the_announcement_is_not_lost() {
    let (doorbell, mut parker) = new();
    let (bell, mut woken) = (doorbell.bell(), Vec::new());
    let ring = || {
        bell.ring();
        false
    };
    parker.park(&doorbell, WATCHDOG, ring, &mut woken).unwrap();
    assert!(woken.is_empty());
}

#[test]
fn a_ring_while_awake_leaves_no_trace() {
    let (doorbell, mut parker) = new();
    doorbell.bell().ring();
    let mut woken = Vec::new();
    let began = Instant::now();
    parker
        .park(&doorbell, Duration::from_millis(20), || false, &mut woken)
        .unwrap();
    assert!(began.elapsed() >= Duration::from_millis(20));
}

#[test]
fn another_thread_wakes_a_sleeper() {
    let (doorbell, mut parker) = new();
    let (bell, turns) = (doorbell.bell(), 200);
    let (ping, pong) = std::sync::mpsc::channel();
    let ringer = thread::spawn(move || {
        for () in pong {
            bell.ring();
        }
    });
    for _ in 0..turns {
        // The ring comes before, while or after we fall asleep; it is about this sleep in each
        // case.
        let (ping, mut woken, began) = (ping.clone(), Vec::new(), Instant::now());
        let announce = move || {
            ping.send(()).expect("the ringer listens");
            false
        };
        parker
            .park(&doorbell, WATCHDOG, announce, &mut woken)
            .unwrap();
        assert!(began.elapsed() < WATCHDOG, "lost wake-up");
    }
    drop(ping);
    ringer.join().unwrap();
}

#[test]
fn watched_descriptors_report_their_marks() {
    let (doorbell, mut parker) = new();
    let (first, second) = (Doorbell::create().unwrap(), Doorbell::create().unwrap());
    parker.watch(first.descriptor().unwrap(), 1).unwrap();
    parker.watch(second.descriptor().unwrap(), 2).unwrap();
    assert!(parker.watch(second.descriptor().unwrap(), 3).is_err());
    assert!(
        parker
            .watch(second.descriptor().unwrap(), u64::MAX)
            .is_err()
    );
    second.announce_sleep();
    second.bell().ring();
    assert_eq!(park(&mut parker, &doorbell), [2]);
    assert_eq!(park(&mut parker, &doorbell), [2], "it is still readable");
    second.drain();
    parker.unwatch(second.descriptor().unwrap()).unwrap();
    assert!(parker.unwatch(second.descriptor().unwrap()).is_err());
    first.announce_sleep();
    first.bell().ring();
    assert_eq!(park(&mut parker, &doorbell), [1]);
}

#[test]
fn a_bell_from_descriptors_wakes_as_well() {
    let (doorbell, mut parker) = new();
    let segment = doorbell.segment().unwrap();
    let again = segment.descriptor().unwrap().try_clone_to_owned().unwrap();
    let attached = crate::memory::segment::Segment::attach(again, 8).unwrap();
    let eventfd = doorbell
        .descriptor()
        .unwrap()
        .as_fd()
        .try_clone_to_owned()
        .unwrap();
    let bell = crate::ring::Bell::attach(attached, eventfd).unwrap();
    let ringer = Arc::clone(&bell);
    let ring = || {
        ringer.ring();
        ringer.ring();
        false
    };
    parker
        .park(&doorbell, WATCHDOG, ring, &mut Vec::new())
        .unwrap();
    let mut count = [0; 8];
    assert_eq!(
        rustix::io::read(doorbell.descriptor().unwrap(), &mut count),
        Err(Errno::AGAIN),
        "the eventfd was drained"
    );
}

#[test]
fn nobody_sleeps_on_a_private_doorbell() {
    let (_, mut parker) = new();
    let private = Doorbell::private();
    let text = Parker::new(&private).unwrap_err().to_string();
    assert!(text.contains("Doorbell::create"), "{text}");
    assert!(private.segment().is_err());
    let asked = std::cell::Cell::new(false);
    let refused = parker.park(&private, WATCHDOG, || !asked.replace(true), &mut Vec::new());
    assert!(refused.is_err() && !asked.get());
    // A thread that rings it finds nobody asleep, or wakes nobody.
    private.announce_sleep();
    private.bell().ring();
    private.drain();
}
