//! Bytes that no working peer sends.

use trihop_transport::link::{Access, Completion, Limits, Link, Mover, Token};
use trihop_transport::memory::pool::Buffer;
use trihop_transport::protocol::tags::{TagClass, Tags};
use trihop_transport::protocol::wire::{BatchHeader, BatchKind, Counters};
use trihop_transport::secret::Secret;
use trihop_transport::sim::{Net, SimOptions};

use super::schedule::sim_with_eager;
use super::world::World;
use crate::config::{Shares, StreamOptions};
use crate::endpoint::WIRE_LABEL;
use crate::simulation::{Fabric, SECRET, TICK_NS};

/// A job of two ranks on two nodes, whose batches take all ways: small and large slots, and
/// segments.
fn attacked(net: &Net) -> World {
    let options = StreamOptions {
        remote_buftarget_bytes: 4000,
        given_shares: Some(Shares {
            small_slot_bytes: 512,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    };
    World::new(&[1, 1], &options, 3, Fabric::Simulated(net.clone()), false, true)
}

/// Batches above this many bytes are announced.
const EAGER_BYTES: usize = 2000;

fn network() -> Net {
    Net::new(SimOptions {
        limits: Limits {
            eager_bytes: EAGER_BYTES,
            mover: Mover::Segments,
            ..SimOptions::default().limits
        },
        ..SimOptions::default()
    })
}

/// What a stranger sends to rank 1 with these tags while the job exchanges; returns how many
/// messages.
fn attack(net: &Net, world: &mut World, tags: Tags) -> u64 {
    const CLASSES: [TagClass; 4] = [
        TagClass::Control,
        TagClass::Small,
        TagClass::Large,
        TagClass::Segment,
    ];
    let mut stranger = net.stranger();
    // Endpoint 1 is rank 1's; stream 1 is the user's.
    let victim = stranger.connect(&1u64.to_le_bytes()).unwrap();
    let pool = stranger.create_pool(8192, 64, Access::Departures).unwrap();
    let mut sent = 0;
    for round in 0..400u64 {
        for class in CLASSES {
            let Some(mut buffer) = pool.take() else { continue };
            for word in buffer.chunks_exact_mut(8) {
                word.copy_from_slice(&world.random().to_le_bytes());
            }
            if round.is_multiple_of(2) {
                buffer[..4].copy_from_slice(b"3hop");
                buffer[4] = 1;
            }
            // Nothing, less than a header, what fits, and what is longer than any slot.
            let bytes = [0, world.random() as usize % 64, 100, 8192][round as usize % 4];
            let tag = tags.tag(1, class, 0);
            if stranger.post_send(victim, tag, buffer, bytes, Token(0)).is_ok() {
                sent += 1;
            }
        }
        let number = round as u32;
        for (source, target) in [(0, 1), (1, 0)] {
            while !world.send(source, target, number, 3000) {
                world.step();
            }
        }
        for _ in 0..50 {
            world.step();
        }
        stranger.poll(&mut Vec::new()).unwrap();
    }
    world.fence();
    for (source, target) in [(0, 1), (1, 0)] {
        assert_eq!(world.heard(target, source), (0..400).collect::<Vec<_>>());
    }
    sent
}

#[test]
fn broken_messages_with_a_jobs_own_tags_are_counted_and_harm_nobody() {
    let net = network();
    let mut world = attacked(&net);
    let tags = Tags::new(&Secret::from_bytes(SECRET), SimOptions::default().limits.tag_bits);
    let sent = attack(&net, &mut world, tags);
    assert!(world.stats(0).announced > 0, "no batch came as a segment");
    let counted = world.stats(1).bad_headers;
    // Of a fetch there is not always one: then nothing waits for a segment.
    assert!(
        counted >= sent * 3 / 4 && counted <= sent,
        "{counted} of {sent} messages are counted"
    );
    assert_eq!(net.violations(), Vec::<String>::new());
}

#[test]
fn messages_of_who_does_not_know_the_secret_meet_no_slot() {
    let net = network();
    let mut world = attacked(&net);
    let tags = Tags::new(&Secret::random().unwrap(), SimOptions::default().limits.tag_bits);
    assert!(attack(&net, &mut world, tags) > 0);
    assert_eq!(world.stats(1).bad_headers, 0);
}

#[test]
fn a_members_message_that_is_cut_is_an_error_that_names_the_member() {
    let net = network();
    let mut world = attacked(&net);
    let pool = net.stranger().create_pool(512, 2, Access::Arrivals).unwrap();
    let mut cut = |write: &dyn Fn(&mut Buffer)| {
        let mut buffer = pool.take().unwrap();
        write(&mut buffer);
        let error = trihop_transport::Error::Fabric {
            call: "fi_trecv",
            code: 104,
            detail: "reset".to_owned(),
        };
        let completion = Completion::Broken {
            token: Token(0),
            buffer,
            cut: true,
            error,
        };
        world.complete(1, TagClass::Small, 0, completion)
    };
    let header = BatchHeader {
        kind: BatchKind::Eager,
        stream: 1,
        source: 0,
        bytes: 100,
        stage: 2,
        sequence: 0,
        counters: Counters::default(),
    };
    let cookie = Secret::from_bytes(SECRET).derive(WIRE_LABEL);
    let error = cut(&|buffer| header.write(cookie, buffer)).unwrap_err();
    assert!(error.to_string().contains("rank 0"), "{error}");
    cut(&|buffer| header.write(!cookie, buffer)).unwrap();
    assert_eq!(world.stats(1).bad_headers, 1);
}

/// What rank 1 says of a run of `bytes` with `count` records that rank 0 sends to rank 2, which rank 1 represents.
fn refusal(bytes: usize, count: u16) -> String {
    let mut world = World::new(
        &[1, 2],
        &StreamOptions::default(),
        1,
        sim_with_eager(1, 65536),
        false,
        true,
    );
    {
        let out = world.out(0);
        let queues = &mut out.queues;
        let header = trihop_transport::protocol::wire::RunHeader {
            target: 2,
            source: 0,
            count,
            flags: 0,
        };
        let index = queues.open_to(1, 2).unwrap();
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
        world.round(0, tick * TICK_NS).unwrap();
        world.round(1, tick * TICK_NS).err()
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
