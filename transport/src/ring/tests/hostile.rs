//! Another process that writes anything anywhere into the segment: never a panic, never a byte
//! outside of the lane.

use std::sync::Arc;

use super::{Random, on_heap};
use crate::ring::layout::NURSERY_BYTES;
use crate::ring::{Doorbell, InboxLayout, Producer};

const LANE_BYTES: u32 = 4096;
const LANES: u32 = 3;

/// Offsets of tail, `space_wanted`, `grown_at` and head among a lane's words.
const WORDS: [usize; 4] = [0, 8, 24, 192];

/// Where the words of a lane begin.
fn words(lane: usize) -> usize {
    384 + lane * 256
}

#[test]
fn a_peer_that_writes_positions_and_lengths_can_do_no_harm() {
    let mut random = Random::seeded();
    let mutations = if cfg!(miri) { 300 } else { 100_000 };
    let (mut found, mut ends, mut growths) = (0, 0, 0);
    let mut done = 0;
    while done < mutations {
        let (segment, mut inbox, mut producers) = on_heap(LANES, LANE_BYTES);
        let mut poisoned = [None; LANES as usize];
        let first = segment.as_ptr();
        let bytes = inbox.layout().segment_bytes();
        let data = bytes - (LANES * LANE_BYTES) as usize;
        for _ in 0..random.below(40) + 1 {
            // A few honest steps,
            for _ in 0..random.below(12) {
                let lane = random.below(LANES.into()) as usize;
                let size = (random.below(16) as usize + 1) * 8;
                if let Some(frame) = producers[lane].reserve(size) {
                    check_inside(frame, first, data, lane);
                    frame.fill(0xff);
                    producers[lane].commit(size);
                }
                if random.below(2) == 0 {
                    producers[lane].publish();
                }
            }
            // one that is not,
            let offset = match random.below(3) {
                0 => random.below(data as u64 / 8) as usize * 8,
                1 => words(random.below(LANES.into()) as usize) + WORDS[random.below(4) as usize],
                _ => data + random.below((bytes - data) as u64 / 8) as usize * 8,
            };
            // SAFETY: `offset` is a multiple of 8 inside the segment, and this is the only thread.
            let word = unsafe { &mut *first.add(offset).cast::<u64>() };
            *word = match random.below(7) {
                0 => word.wrapping_add(8),
                1 => word.wrapping_sub(8),
                2 => word.wrapping_add(u64::from(LANE_BYTES)),
                3 => u64::from(u32::MAX),
                4 => random.below(2048),
                // What a lane that grew nearby would say.
                5 => (random.below(64) * 8) | 1,
                _ => random.next(),
            };
            done += 1;
            // and a look at everything.
            let mut active = Vec::new();
            inbox.take_active(&mut active);
            assert!(active.iter().all(|lane| *lane < LANES));
            for lane in 0..LANES {
                let mut consumer = inbox.lane(lane);
                let place = lane as usize;
                for _ in 0..random.below(8) {
                    match consumer.front() {
                        Ok(Some(frame)) => {
                            check_inside(frame, first, data, place);
                            assert!(
                                poisoned[place].is_none(),
                                "a lane that was given up came back"
                            );
                            found += 1;
                            consumer.pop();
                        }
                        Ok(None) => break,
                        Err(corrupt) => {
                            assert_eq!(*poisoned[place].get_or_insert(corrupt), corrupt);
                            assert!(consumer.is_empty());
                            consumer.pop();
                        }
                    }
                }
                consumer.release();
                let _ = producers[place].consumed();
                assert!(producers[place].in_use_bytes() <= LANE_BYTES as usize + NURSERY_BYTES);
            }
        }
        ends += poisoned.iter().flatten().count();
        growths += poisoned
            .iter()
            .flatten()
            .filter(|c| c.what == "lane growth")
            .count();
        // A successor takes what it finds, or refuses it.
        let layout = inbox.layout();
        drop(producers);
        for lane in 0..LANES {
            let _ = Producer::new(
                Arc::clone(&segment),
                layout,
                lane,
                Doorbell::private().bell(),
            );
        }
        drop(inbox);
        if let Ok(mut inbox) = crate::ring::Inbox::new(Arc::clone(&segment), layout) {
            for lane in 0..LANES {
                if let Ok(Some(frame)) = inbox.lane(lane).front() {
                    check_inside(frame, first, data, lane as usize);
                }
            }
        }
    }
    assert!(
        cfg!(miri) || (found > 10_000 && ends > 1000 && growths > 100),
        "{found} frames, {ends} lanes given up, {growths} for where they grew: the test is too tame"
    );
}

#[test]
fn a_frame_does_not_reach_beyond_the_end_of_its_ring() {
    let (segment, mut inbox, mut producers) = on_heap(1, LANE_BYTES);
    let bytes = inbox.layout().segment_bytes();
    let end = segment.as_ptr() as usize + bytes;
    // More than the nursery holds: the lane goes on in its ring.
    for _ in 0..16 {
        producers[0].reserve(64).unwrap();
        producers[0].commit(64);
    }
    producers[0].publish();
    let mut consumer = inbox.lane(0);
    while consumer.front().unwrap().is_some() {
        consumer.pop();
    }
    consumer.release();
    for _ in 0..1000 {
        let frame = producers[0].reserve(64).unwrap();
        let (first, is_last) = (frame.as_mut_ptr(), frame.as_ptr() as usize + 64 == end);
        producers[0].commit(64);
        producers[0].reserve(64).unwrap();
        producers[0].commit(64);
        producers[0].publish();
        let mut consumer = inbox.lane(0);
        if is_last {
            // SAFETY: the frame is 64 bytes of the segment, and this is the only thread.
            unsafe { first.cast::<u32>().write(128) };
            assert_eq!(consumer.front().unwrap_err().what, "frame length");
            return;
        }
        for _ in 0..2 {
            assert_eq!(consumer.front().unwrap().unwrap().len(), 64);
            consumer.pop();
        }
        consumer.release();
        // Frames begin at every multiple of 64 in turn.
        let mut one = || {
            producers[0].reserve(64).unwrap();
            producers[0].commit(64);
            producers[0].publish();
        };
        one();
        assert!(consumer.front().unwrap().is_some());
        consumer.pop();
        consumer.release();
    }
    panic!("no frame was the last in its ring");
}

/// The slice lies inside of one area of its lane and is no longer than a frame may be there.
fn check_inside(frame: &[u8], first: *const u8, data: usize, lane: usize) {
    let begin = frame.as_ptr() as usize - first as usize;
    let nursery = words(lane) + 64;
    let (area, bytes, longest) = if begin < data {
        (nursery, NURSERY_BYTES, NURSERY_BYTES / 2)
    } else {
        let bytes = LANE_BYTES as usize;
        (data + lane * bytes, bytes, bytes / 4)
    };
    assert!(begin >= area && begin + frame.len() <= area + bytes);
    assert!(frame.len() <= longest && frame.len() >= 8);
}

#[test]
fn a_layout_that_differs_from_the_owners_is_refused() {
    let (segment, inbox, producers) = on_heap(4, 4096);
    drop(producers);
    for (lanes, lane_bytes) in [(3, 4096), (2, 8192), (64, 1 << 20)] {
        let other = InboxLayout::new(lanes, lane_bytes).unwrap();
        assert!(Producer::new(Arc::clone(&segment), other, 0, Doorbell::private().bell()).is_err());
    }
    assert!(
        Producer::new(
            Arc::clone(&segment),
            inbox.layout(),
            0,
            Doorbell::private().bell()
        )
        .is_ok()
    );
}
