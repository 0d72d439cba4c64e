//! Two processes that share nothing but descriptors handed over a socket.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Random, is_filled, threads};
use crate::memory::descriptors::DescriptorListener;
use crate::memory::segment::Segment;
use crate::park::ProcessWatch;
use crate::ring::{Bell, Doorbell, Inbox, InboxLayout, Producer};
use crate::watchdog;

/// Set in the process that plays the producer: the parent's socket name, and how many frames to
/// send.
const PRODUCER: &str = "TRIHOP_TEST_RING_PRODUCER";

const LANE_BYTES: u32 = 16 << 10;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn two<T>(fds: Vec<OwnedFd>, make: impl FnOnce(OwnedFd, OwnedFd) -> T) -> T {
    let [first, second] = <[OwnedFd; 2]>::try_from(fds).expect("two descriptors");
    make(first, second)
}

/// Not a test by itself: what the child process runs.
#[test]
#[cfg_attr(miri, ignore = "maps files and talks over sockets")]
fn producer_process() {
    let Ok(what) = std::env::var(PRODUCER) else {
        return;
    };
    let (name, count) = what.split_once(' ').expect("a name and a count");
    let count = count.parse().expect("a number of frames");
    let doorbell = Doorbell::create().unwrap();
    let ours = format!("{name}-child");
    let listener = DescriptorListener::listen(&ours, 4).unwrap();
    let bell_segment = doorbell.segment().unwrap();
    DescriptorListener::send(
        name,
        ours.as_bytes(),
        &[
            bell_segment.descriptor().unwrap(),
            doorbell.descriptor().unwrap(),
        ],
    )
    .unwrap();
    let (message, mut fds, _) = listener.accept(deadline()).unwrap();
    assert_eq!(message, b"inbox");
    let layout = InboxLayout::new(1, LANE_BYTES).unwrap();
    let segment = Segment::attach(fds.remove(0), layout.segment_bytes()).unwrap();
    let bell = two(fds, |segment, eventfd| {
        Bell::attach(Segment::attach(segment, 8).unwrap(), eventfd).unwrap()
    });
    let producer = Producer::new(segment, layout, 0, bell).unwrap();
    threads::send(producer, &doorbell, count, &mut Random::seeded());
}

/// Starts the child and exchanges descriptors with it.
fn start(test: &str, count: u64) -> (Child, Inbox, Doorbell, ProcessWatch) {
    let name = format!("trihop-test-{test}-{}", std::process::id());
    let listener = DescriptorListener::listen(&name, 4).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ring::tests::processes::producer_process"])
        .env(PRODUCER, format!("{name} {count}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (theirs, fds, pid) = listener.accept(deadline()).unwrap();
    assert_eq!(pid, child.id());
    let watch = ProcessWatch::open(pid).unwrap();
    let child_bell = two(fds, |segment, eventfd| {
        Bell::attach(Segment::attach(segment, 8).unwrap(), eventfd).unwrap()
    });

    let layout = InboxLayout::new(1, LANE_BYTES).unwrap();
    let segment = Segment::create(layout.segment_bytes()).unwrap();
    let mut inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
    inbox.set_bells(Arc::new([Some(child_bell)]), 1);
    let doorbell = Doorbell::create().unwrap();
    let bell_segment = doorbell.segment().unwrap();
    DescriptorListener::send(
        std::str::from_utf8(&theirs).unwrap(),
        b"inbox",
        &[
            segment.descriptor().unwrap(),
            bell_segment.descriptor().unwrap(),
            doorbell.descriptor().unwrap(),
        ],
    )
    .unwrap();
    (child, inbox, doorbell, watch)
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn frames_cross_from_process_to_process() {
    let count = 200_000;
    let (mut child, inbox, doorbell, _) = start("cross", count);
    threads::receive(inbox, &doorbell, count);
    assert!(watchdog::end_of(&mut child).success());
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn a_killed_producer_leaves_a_clean_prefix_and_is_noticed() {
    let (mut child, mut inbox, doorbell, watch) = start("killed", u64::MAX);
    let mut parker = crate::park::Parker::new(&doorbell).unwrap();
    parker.watch(watch.descriptor(), 7).unwrap();
    let (mut received, mut killed, mut seen) = (0, false, false);
    let mut woken = Vec::new();
    let give_up = deadline();
    loop {
        inbox.take_active(&mut Vec::new());
        while let Some(frame) = inbox
            .lane(0)
            .front()
            .expect("nobody writes what cannot be true")
        {
            assert!(is_filled(frame, received));
            received += 1;
            inbox.lane(0).pop();
        }
        inbox.lane(0).release();
        if seen {
            break;
        }
        if received > 1000 && !killed {
            child.kill().unwrap();
            killed = true;
        }
        woken.clear();
        parker
            .park(
                &doorbell,
                Duration::from_secs(60),
                || inbox.any_active(),
                &mut woken,
            )
            .unwrap();
        // One more round after the end is seen: what was published before is still there.
        seen = woken.contains(&7);
        assert!(
            Instant::now() < give_up,
            "the end of the child was not noticed"
        );
    }
    assert!(watch.has_ended());
    assert!(inbox.lane(0).is_empty());
    watchdog::end_of(&mut child);
}
