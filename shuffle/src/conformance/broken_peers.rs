//! Bytes that no working peer sends.

use trihop_transport::link::{Link, Tag, Token};
use trihop_transport::sim::{Net, SimOptions};

use crate::config::StreamOptions;

use super::schedule::{mixed, sim_with_eager};
use super::world::World;
use crate::simulation::{Fabric, TICK_NS};

#[test]
fn bytes_of_strangers_are_counted_and_harm_nobody() {
    let net = Net::new(SimOptions::default());
    let mut world = World::new(
        &[1, 1],
        &StreamOptions::default(),
        3,
        Fabric::Simulated(net.clone()),
        false,
        true,
    );
    let mut stranger = net.link();
    // Endpoint 1 is rank 1's; stream 1 is the user's.
    let victim = stranger.connect(&1u64.to_le_bytes()).unwrap();
    let pool = stranger.create_pool(4096, 64).unwrap();
    let mut sent = 0;
    for round in 0..200u64 {
        // Tags of control and large slots; a stranger may use up a slot, never more than are posted.
        for class in [1u64, 3] {
            let Some(mut buffer) = pool.take() else { continue };
            for word in buffer.chunks_exact_mut(8) {
                word.copy_from_slice(&world.random().to_le_bytes());
            }
            if round.is_multiple_of(2) {
                buffer[..4].copy_from_slice(b"3hop");
                buffer[4] = 1;
            }
            let bytes = (world.random() % 120) as usize;
            if stranger
                .post_send(victim, Tag(1 << 32 | class << 28), buffer, bytes, Token(0))
                .is_ok()
            {
                sent += 1;
            }
        }
        for _ in 0..50 {
            world.step();
        }
        stranger.poll(&mut Vec::new()).unwrap();
    }
    let counted = world.core(1).snapshot().bad_headers;
    assert_eq!(counted, sent, "every message of the stranger is counted");
    let traffic = world.exchange(200, mixed);
    world.fence();
    world.check(&traffic, false);
}

/// What rank 1 says of a run of `bytes` with `count` records that rank 0 sends to rank 2, which rank 1 represents.
fn refusal(bytes: usize, count: u16) -> String {
    let world = World::new(
        &[1, 2],
        &StreamOptions::default(),
        1,
        sim_with_eager(1, 65536),
        false,
        true,
    );
    {
        let mut out = world.core(0).out.borrow_mut();
        let queues = &mut out.queues;
        let header = trihop_transport::protocol::wire::RunHeader {
            target: 2,
            source: 0,
            count,
            flags: 0,
        };
        let index = queues.open_to(1, 0).unwrap();
        queues.remotes.wake(index);
        let pool = queues.remotes.pool_for(index).cloned();
        let remote = &mut queues.remotes[index];
        let feeder = crate::queue::Feeder::APPLICATION;
        assert!(remote.push_with(bytes, 0, feeder, pool.as_ref(), |space| {
            space.fill(0);
            header.write(bytes, space);
        }));
        remote.seal(crate::queue::tally::Why::Full);
    }
    let refused = (1..20_000).find_map(|tick| {
        if let Fabric::Simulated(net) = &world.job.fabric {
            net.tick();
        }
        world.job.members[0].endpoint.progress(tick * TICK_NS).unwrap();
        world.job.members[1].endpoint.progress(tick * TICK_NS).err()
    });
    refused.expect("the run is refused").to_string()
}

#[test]
fn a_run_longer_than_a_frame_is_an_error_that_names_its_sender() {
    let text = refusal(20_000, 1);
    assert!(text.contains("rank 0") && text.contains("20000"), "{text}");
}

/// Nothing would be delivered for it, and fences count what is delivered.
#[test]
fn a_run_without_records_is_an_error_that_names_its_sender() {
    for bytes in [16, 24] {
        let text = refusal(bytes, 0);
        assert!(text.contains("rank 0") && text.contains("0 records"), "{text}");
    }
}
