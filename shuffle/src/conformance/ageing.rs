//! What is partial leaves by age although its rank has better things to do, and what has a right to
//! room has it.

use super::schedule::sim_with_eager;
use super::world::World;
use crate::config::{Shares, StreamOptions};
use crate::queue::Input;
use crate::queue::counters::SendReason;

const LINGER_NS: u64 = 50_000;

fn lingering() -> StreamOptions {
    StreamOptions {
        linger_us: LINGER_NS / 1000,
        ..StreamOptions::default()
    }
}

/// An application that sends without a pause has each of its runs closed in time, not when it is
/// full: soon where nothing is added to it any more. Only what it begins with leaves at once, as a
/// request would.
#[test]
fn a_partial_run_leaves_by_age_while_its_rank_sends() {
    let mut world = World::new(&[2], &lingering(), 1, sim_with_eager(1, 4096), false, true);
    let mut number = 0;
    let mut send_until = |world: &mut World, end_ns: u64| {
        while u64::from(number) * 5000 < end_ns {
            number += 1;
            assert!(world.send(0, 1, number, 8));
            for rank in [0, 1] {
                world.round(rank, u64::from(number) * 5000).unwrap();
            }
        }
    };
    send_until(&mut world, 9 * LINGER_NS);
    let first = world.heard(1, 0).len();
    assert_eq!(first, 1, "the run of the others is still open");
    send_until(&mut world, 11 * LINGER_NS);
    assert!(world.heard(1, 0).len() > 1, "and leaves in time");
}

#[test]
fn a_run_that_rests_leaves_soon_while_others_grow() {
    let mut world = World::new(&[3], &lingering(), 1, sim_with_eager(1, 4096), false, true);
    assert!(world.send(0, 1, 0, 8));
    for rank in 0..3 {
        world.round(rank, 1).unwrap();
    }
    assert!(world.send(0, 2, 0, 8));
    let mut heard_at = None;
    for number in 1..=60 {
        assert!(world.send(0, 1, number, 8));
        let now_ns = u64::from(number) * 5000;
        for rank in 0..3 {
            world.round(rank, now_ns).unwrap();
        }
        if heard_at.is_none() && !world.heard(2, 0).is_empty() {
            heard_at = Some(now_ns);
        }
    }
    assert_eq!(world.heard(1, 0).len(), 1, "it grows all the while");
    let waited_ns = heard_at.expect("it does not wait for the others");
    assert!(
        (LINGER_NS..=2 * LINGER_NS + 10_000).contains(&waited_ns),
        "{waited_ns}"
    );
}

/// A link whose batch grows while other things move has it sealed in time.
#[test]
fn a_partial_batch_leaves_by_age_while_its_rank_is_busy() {
    let mut world = World::new(
        &[1, 1],
        &lingering(),
        1,
        sim_with_eager(1, 4096),
        false,
        true,
    );
    let out = world.out(0);
    let index = out
        .queues
        .open_to(trihop_transport::topology::EndpointId(1), 2)
        .unwrap();
    let remotes = &mut out.queues.remotes;
    let pool = remotes.pool_for(index).cloned();
    let remote = &mut remotes[index];
    let frame = |space: &mut [u8]| space.fill(0);
    assert!(remote.push_with(64, 0, Input::APPLICATION, pool.as_ref(), frame));
    for (now_ns, is_open) in [(1000, true), (LINGER_NS, true), (1000 + LINGER_NS, false)] {
        remote.age(now_ns, false, LINGER_NS, SendReason::Age);
        assert_eq!(remote.has_open(), is_open, "{now_ns}");
    }
}

/// A rank writes the next batch of a link while the last one is not acknowledged, however small the
/// memory is.
#[test]
fn each_link_has_a_batch_to_write_beside_the_one_under_way() {
    let options = StreamOptions {
        remote_buftarget_bytes: 1,
        given_shares: Some(Shares {
            send_pool_bytes: 1,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    };
    let mut world = World::new(
        &[1, 1, 1],
        &options,
        1,
        sim_with_eager(1, 4096),
        false,
        true,
    );
    for target in [1, 2] {
        for number in 0..2 {
            assert!(
                world.send(0, target, number, 900),
                "no room for message {number} to {target}"
            );
            world.round(0, 1).unwrap();
        }
    }
    world.fence();
    assert_eq!(
        (world.heard(1, 0), world.heard(2, 0)),
        (vec![0, 1], vec![0, 1])
    );
}
