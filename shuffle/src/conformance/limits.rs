//! What a rank's own sends are limited by besides their queues, and what is dropped on purpose.

use super::schedule::{mixed, sim_with_eager};
use super::world::World;
use crate::config::{ShimOptions, StreamOptions};
use crate::simulation::TICK_NS;

/// Queues that show and send every frame at once, and hold many.
fn prompt() -> StreamOptions {
    StreamOptions {
        origin_buftarget_bytes: 1000,
        relay_buftarget_bytes: 1,
        remote_buftarget_bytes: 1,
        // Records of 900 bytes are runs of their own.
        run_bytes: 1024,
        ..StreamOptions::default()
    }
}

#[test]
fn a_lane_holds_no_more_than_maxrpc_batches_that_are_not_consumed() {
    let options = StreamOptions {
        origin_maxrpc: 2,
        relay_maxrpc: 2,
        ..prompt()
    };
    let mut world = World::new(&[2], &options, 1, sim_with_eager(1, 4096), false, true);
    assert!(world.send(0, 1, 0, 900) && world.send(0, 1, 1, 900));
    assert!(!world.send(0, 1, 2, 900), "2,000 bytes may be in the lane");
    assert_eq!(world.stats(0).queue_waits, 1);
    world.round(1, TICK_NS).unwrap();
    assert!(world.send(0, 1, 2, 900), "and have been consumed");
    world.fence();
    assert_eq!(world.heard(1, 0), [0, 1, 2]);
}

#[test]
fn own_sends_of_all_origin_lanes_together_meet_their_limit() {
    let options = StreamOptions {
        shim: ShimOptions {
            origin_sender_limit: 2,
            ..ShimOptions::default()
        },
        ..prompt()
    };
    let mut world = World::new(&[4], &options, 1, sim_with_eager(1, 4096), false, true);
    // Of some 900 bytes each: two fit 2,000, for any targets.
    assert!(world.send(0, 1, 0, 900) && world.send(0, 2, 0, 900));
    assert!(!world.send(0, 3, 0, 900) && !world.send(0, 1, 1, 900));
    let stats = world.stats(0);
    assert_eq!(
        (stats.limit_hits, stats.queue_waits),
        (1, 0),
        "no lane was full"
    );
    // The consumer of another lane makes room, and it has to wake the rank that waits.
    world.job.members[0].engine.prepare_to_sleep();
    for tick in 1..5 {
        world.round(1, tick * TICK_NS).unwrap();
    }
    assert!(
        world.job.members[0].engine.must_stay_awake(),
        "a release goes unnoticed"
    );
    assert!(world.send(0, 3, 0, 900));
    world.fence();
    assert_eq!(world.heard(3, 0), [0]);
}

#[test]
fn own_sends_of_all_remote_queues_together_meet_their_limit_and_relayed_ones_do_not() {
    let options = StreamOptions {
        shim: ShimOptions {
            remote_sender_limit: 2,
            ..ShimOptions::default()
        },
        ..prompt()
    };
    // Rank 0 represents nodes 2 (rank 3) and 4 (rank 5) for rank 1.
    let mut world = World::new(
        &[2, 1, 1, 1, 1],
        &options,
        1,
        sim_with_eager(1, 4096),
        false,
        true,
    );
    assert!(world.send(0, 3, 0, 900) && world.send(0, 5, 0, 900));
    assert!(!world.send(0, 3, 1, 900) && !world.send(0, 5, 1, 900));
    assert_eq!(world.stats(0).limit_hits, 1);
    assert!(world.send(1, 3, 0, 900) && world.send(1, 5, 0, 900));
    for rank in [1, 0] {
        world.round(rank, TICK_NS).unwrap();
    }
    let stats = world.stats(0);
    assert_eq!(
        (stats.remote_frames, stats.queue_waits),
        (4, 0),
        "two of them relayed"
    );
    assert!(!world.send(0, 3, 1, 900), "nothing is acknowledged yet");
    world.fence();
    assert!(world.send(0, 3, 1, 900) && world.send(0, 3, 2, 900));
    world.fence();
    assert_eq!(
        (world.heard(3, 0), world.heard(5, 1)),
        (vec![0, 1, 2], vec![0])
    );
}

#[test]
fn what_is_discarded_is_counted_and_ends_the_fence() {
    for handler in [true, false] {
        let options = StreamOptions {
            shim: ShimOptions {
                deliverq_discard: true,
                ..ShimOptions::default()
            },
            deliverq_max: 2,
            ..StreamOptions::default()
        };
        let mut world = World::new(&[2, 1], &options, 3, sim_with_eager(3, 4096), true, handler);
        let sent = world.exchange(300, mixed);
        world.fence();
        let (mut discarded, mut sum) = (0, 0);
        for rank in 0..world.size() {
            let stats = world.stats(rank);
            assert_eq!((stats.delivered, stats.blocked_deliveries), (0, 0));
            discarded += stats.discarded;
            sum += stats.sent;
        }
        assert_eq!((discarded, sum), (900, sent.values().sum()));
        assert!(world.heard(1, 0).is_empty());
    }
}
