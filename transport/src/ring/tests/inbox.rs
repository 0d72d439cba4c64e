//! Who may hold what, what the bitmap says, and what memory it costs.

use std::sync::Arc;

use super::{fill, is_filled, on_heap};
use crate::memory::segment::Segment;
use crate::ring::doorbell::{SLEEPING, Sleeper};
use crate::ring::spsc::ReaderState;
use crate::ring::{Bell, Doorbell, Inbox, InboxLayout, Producer};
use crate::sync::{Ordering, Word};

#[test]
fn layouts_are_checked() {
    for (lanes, lane_bytes) in [
        (0, 4096),
        (70_000, 4096),
        (1, 2048),
        (1, 5000),
        (1, 2 << 20),
    ] {
        assert!(
            InboxLayout::new(lanes, lane_bytes).is_err(),
            "{lanes} x {lane_bytes}"
        );
    }
    let layout = InboxLayout::new(130, 64 << 10).unwrap();
    assert!(layout.segment_bytes() >= 130 * (64 << 10));
    assert!(layout.segment_bytes() < 131 * (64 << 10));
}

#[test]
fn places_are_held_by_one_and_given_back() {
    let (segment, inbox, mut producers) = on_heap(2, 4096);
    let layout = inbox.layout();
    assert!(Inbox::new(Arc::clone(&segment), layout).is_err());
    assert!(Producer::new(Arc::clone(&segment), layout, 2, Doorbell::private().bell()).is_err());
    assert!(Producer::new(Arc::clone(&segment), layout, 1, Doorbell::private().bell()).is_err());
    producers[1].reserve(8).unwrap();
    producers[1].commit(8);
    producers[1].publish();
    producers.pop();
    let successor =
        Producer::new(Arc::clone(&segment), layout, 1, Doorbell::private().bell()).unwrap();
    assert_eq!(successor.produced(), 8);
    drop(inbox);
    let mut inbox = Inbox::new(segment, layout).unwrap();
    assert_eq!(inbox.lane(1).front().unwrap().map(<[u8]>::len), Some(8));
}

#[test]
fn a_segment_without_an_inbox_is_refused() {
    let layout = InboxLayout::new(1, 4096).unwrap();
    let segment = Segment::on_heap(layout.segment_bytes());
    assert!(Producer::new(Arc::clone(&segment), layout, 0, Doorbell::private().bell()).is_err());
    let larger = InboxLayout::new(9, 4096).unwrap();
    assert!(Inbox::new(segment, larger).is_err());
}

#[test]
fn active_lanes_are_reported_once_per_news() {
    let (_, mut inbox, mut producers) = on_heap(130, 4096);
    let mut active = Vec::new();
    for lane in [3, 63, 64, 129] {
        for number in 0..2 {
            fill(producers[lane].reserve(16).unwrap(), number);
            producers[lane].commit(16);
            producers[lane].publish();
        }
    }
    assert!(inbox.any_active());
    inbox.take_active(&mut active);
    assert_eq!(active, [3, 63, 64, 129]);
    assert!(!inbox.any_active());
    active.clear();
    inbox.take_active(&mut active);
    assert!(active.is_empty());
    for lane in [3, 63, 64, 129] {
        for number in 0..2 {
            assert!(is_filled(
                inbox.lane(lane).front().unwrap().unwrap(),
                number
            ));
            inbox.lane(lane).pop();
        }
        assert!(inbox.lane(lane).is_empty());
    }
    // The last one's bit stays set while it is watched by its tail.
    producers[129].reserve(8).unwrap();
    producers[129].commit(8);
    producers[129].publish();
    assert!(inbox.any_active(), "a lane that is watched has news");
    active.clear();
    inbox.take_active(&mut active);
    assert_eq!(active, [129]);
    // What is pending is not seen.
    producers[5].reserve(8).unwrap();
    producers[5].commit(8);
    assert!(!inbox.any_active());
    assert!(inbox.lane(5).is_empty());
    producers[5].publish();
    assert!(inbox.any_active());
}

#[test]
fn a_bell_is_rung_only_for_a_sleeper_and_only_when_it_matters() {
    let layout = InboxLayout::new(1, 4096).unwrap();
    let segment = Segment::on_heap(layout.segment_bytes());
    let mut inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
    let (ours, theirs) = (Doorbell::private().bell(), Doorbell::private().bell());
    let mut producer = Producer::new(segment, layout, 0, Arc::clone(&theirs)).unwrap();
    inbox.set_bells(Arc::new([Some(Arc::clone(&ours))]), 1);
    let sleeps = |bell: &Bell| bell.word().store(SLEEPING, Ordering::Relaxed);
    let is_asleep = |bell: &Bell| Word::load(bell.word(), Ordering::Relaxed) == SLEEPING;
    sleeps(&ours);
    sleeps(&theirs);

    producer.publish();
    assert!(is_asleep(&theirs), "nothing was pending");
    while producer.reserve(512).is_some() {
        producer.commit(512);
    }
    producer.publish();
    assert!(!is_asleep(&theirs));

    inbox.lane(0).front().unwrap().unwrap();
    inbox.lane(0).pop();
    inbox.lane(0).release();
    assert!(is_asleep(&ours), "nobody asked for space");
    assert!(producer.has_room(512));
    producer.reserve(512).unwrap();
    producer.commit(512);
    producer.publish();
    producer.want_space();
    inbox.lane(0).front().unwrap().unwrap();
    inbox.lane(0).pop();
    assert!(!is_asleep(&ours), "an eighth of the lane is free again");
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn untouched_lanes_cost_no_memory_on_ordinary_pages() {
    let shared = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .unwrap_or_default();
    if !shared.is_empty() && !shared.contains("[never]") && !shared.contains("[deny]") {
        eprintln!("skipped: shared memory has transparent hugepages here: {shared}");
        return;
    }
    let layout = InboxLayout::new(64, 64 << 10).unwrap();
    let segment = Segment::create(layout.segment_bytes()).unwrap();
    if segment.page_kind() != crate::memory::hugepage::PageKind::Ordinary {
        eprintln!("skipped: the segment is on {}", segment.page_kind());
        return;
    }
    let _inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
    let doorbell = Doorbell::create().unwrap();
    let mut producers: Vec<_> = (0..layout.lanes())
        .map(|lane| Producer::new(Arc::clone(&segment), layout, lane, doorbell.bell()).unwrap())
        .collect();
    let touched = || {
        rustix::fs::fstat(segment.descriptor().unwrap())
            .unwrap()
            .st_blocks as usize
            * 512
    };
    for producer in &mut producers {
        producer.reserve(32).unwrap().fill(1);
        producer.commit(32);
        producer.publish();
    }
    let rings = layout.lanes() as usize * layout.lane_bytes() as usize;
    assert!(
        touched() <= layout.segment_bytes() - rings,
        "{} bytes are present for 64 small frames",
        touched()
    );
    let producer = &mut producers[40];
    producer.reserve(4096).unwrap().fill(1);
    producer.commit(4096);
    producer.publish();
    assert!(
        touched() <= layout.segment_bytes() - rings + 8192,
        "{} bytes of {} are present",
        touched(),
        layout.segment_bytes()
    );
}

#[test]
fn the_ends_of_a_lane_are_small() {
    // With 64 lanes in each of two streams of each of 320,000 ranks, 10 bytes of a lane are 410 MB.
    // Those that were never looked at have a pointer in the inbox.
    assert_eq!(size_of::<Option<Box<ReaderState>>>(), 8);
    let (state, producer) = (size_of::<ReaderState>(), size_of::<Producer>());
    eprintln!("bytes per lane: {state} in its inbox, {producer} in its producer");
    assert!(state <= 40 && producer <= 88, "{state}, {producer}");
}
