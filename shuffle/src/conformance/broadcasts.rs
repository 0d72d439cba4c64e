//! Broadcasts among other sends, and such that no rank sent.

use std::cell::{Cell, RefCell};

use trihop_transport::bootstrap::Launcher;
use trihop_transport::protocol::wire::{RUN_HEADER_BYTES, RunHeader, run_flags};
use trihop_transport::topology::{EndpointId, Rank};

use super::schedule::sim_with_eager;
use super::world::{World, payload};
use crate::Job;
use crate::config::{Options, StreamOptions};
use crate::error::Error;
use crate::queue::Input;
use crate::queue::audience::BroadcastTo;
use crate::queue::counters::SendReason;
use crate::route::stage;
use crate::simulation::{Fabric, TICK_NS};

fn alone() -> Options {
    Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    }
}

#[test]
fn a_job_of_one_broadcasts_to_itself_or_to_nobody_in_the_order_of_its_sends() {
    let heard = RefCell::new(Vec::new());
    let job = Job::start(alone()).unwrap();
    let shuffle = job
        .shuffle("news")
        .handler(|message, outbox| {
            heard.borrow_mut().push((message.kind, message.bytes.len()));
            if message.kind == 3 {
                outbox
                    .broadcast(30, b"again", BroadcastTo::Everyone)
                    .unwrap();
                outbox
                    .broadcast(31, b"to nobody", BroadcastTo::Others)
                    .unwrap();
            }
        })
        .open()
        .unwrap();
    let long = vec![5; 100_000];
    shuffle.send(Rank(0), 1, b"first").unwrap();
    shuffle.broadcast(2, b"", BroadcastTo::Everyone).unwrap();
    shuffle
        .broadcast(99, b"nobody", BroadcastTo::Others)
        .unwrap();
    shuffle.send(Rank(0), 3, b"third").unwrap();
    shuffle.broadcast(4, &long, BroadcastTo::Everyone).unwrap();
    shuffle.broadcast(99, &long, BroadcastTo::Others).unwrap();
    shuffle.send(Rank(0), 5, b"last").unwrap();
    shuffle.fence().unwrap();
    let mut got = heard.take();
    let answer = got
        .iter()
        .position(|&(kind, _)| kind == 30)
        .expect("an answer");
    got.remove(answer);
    assert_eq!(got, [(1, 5), (2, 0), (3, 5), (4, 100_000), (5, 4)]);
    let stats = shuffle.stats().unwrap();
    assert_eq!((stats.broadcasts, stats.sent, stats.delivered), (6, 6, 6));
    let too_long = vec![0; shuffle_limit() + 1];
    assert!(matches!(
        shuffle.broadcast(0, &too_long, BroadcastTo::Others),
        Err(Error::TooLarge { .. })
    ));
    shuffle.clone().shutdown().unwrap();
    assert!(matches!(
        shuffle.try_broadcast(0, b"", BroadcastTo::Everyone),
        Err(Error::Closed(_))
    ));
}

fn shuffle_limit() -> usize {
    StreamOptions::default().max_message_bytes
}

#[test]
fn items_of_a_job_of_one_keep_their_order_around_a_broadcast() {
    let heard = RefCell::new(Vec::new());
    let sent_on = Cell::new(false);
    let job = Job::start(alone()).unwrap();
    let stream = job
        .stream::<u64>("numbers")
        .handler(|_, items, outbox| {
            heard.borrow_mut().extend_from_slice(items);
            if !sent_on.replace(true) {
                outbox.broadcast(7, BroadcastTo::Everyone).unwrap();
            }
        })
        .open()
        .unwrap();
    stream.push(Rank(0), 1).unwrap();
    stream.try_broadcast(2, BroadcastTo::Everyone).unwrap();
    stream.push(Rank(0), 3).unwrap();
    stream.broadcast(4, BroadcastTo::Others).unwrap();
    stream.fence().unwrap();
    let mut got = heard.take();
    got.retain(|&item| item != 7);
    assert_eq!(got, [1, 2, 3]);
    assert_eq!(stream.stats().unwrap().delivered, 4);
}

#[test]
fn a_refused_broadcast_has_taken_nothing_and_a_taken_one_goes_out_whole() {
    let options = StreamOptions {
        origin_maxrpc: 1,
        origin_buftarget_bytes: 64,
        // A record of 900 bytes is a run of its own.
        run_bytes: 1024,
        ..StreamOptions::default()
    };
    let mut world = World::new(&[3, 2], &options, 7, sim_with_eager(7, 4096), false, true);
    // A lane of rank 0 holds one frame, and nobody takes any before the first step.
    assert!(world.send(0, 2, 0, 900) && !world.send(0, 2, 1, 900));
    let broadcast = |world: &mut World, number: u64| {
        let data = payload(0, number, 48);
        let taken = world
            .job
            .try_broadcast(Rank(0), number as u32, &data, BroadcastTo::Others);
        let stats = world.stats(0);
        (
            taken.is_ok(),
            stats.broadcasts,
            stats.sent,
            stats.broadcast_copies,
        )
    };
    assert_eq!(
        broadcast(&mut world, 1),
        (true, 1, 5, 1),
        "rank 1 has its copy, rank 2 has not"
    );
    assert_eq!(world.out(0).copied(), Some(1));
    assert_eq!(
        broadcast(&mut world, 2),
        (false, 1, 5, 1),
        "one broadcast at a time waits"
    );
    assert!(
        !world.send(0, 1, 2, 900),
        "a later send waits for the copies"
    );
    world.fence();
    assert_eq!(world.out(0).copied(), None);
    assert!(broadcast(&mut world, 2).0);
    world.fence();
    for (target, expected) in [
        (0, &[][..]),
        (1, &[1, 2]),
        (2, &[0, 1, 2]),
        (3, &[1, 2]),
        (4, &[1, 2]),
    ] {
        assert_eq!(world.heard(target, 0), expected, "at rank {target}");
    }
}

/// A broadcast frame as if of `source`.
fn frame(source: u32) -> Vec<u8> {
    let mut frame = vec![0; RUN_HEADER_BYTES + 8];
    let length = frame.len();
    let header = RunHeader {
        target: source,
        source,
        count: 1,
        flags: run_flags::BROADCAST,
    };
    header.write(length, &mut frame);
    frame
}

#[test]
fn a_broadcast_where_none_can_be_is_an_error_that_names_its_sender() {
    // Ranks 0 and 1 on node 0, 2 and 3 on node 1. Rank 1 speaks with node 1, and rank 2 hears it.
    let refusal = |source: u32, over: &str| {
        let mut world = World::new(
            &[2, 2],
            &StreamOptions::default(),
            1,
            sim_with_eager(1, 65536),
            false,
            true,
        );
        {
            let out = world.out(1);
            let (frame, input) = (frame(source), Input::APPLICATION);
            let queues = &mut out.queues;
            let stage = queues.route.stage_named(over).unwrap();
            let end = if over == stage::REMOTE {
                EndpointId(2)
            } else {
                EndpointId(0)
            };
            let write = |space: &mut [u8]| space.copy_from_slice(&frame);
            assert!(queues.push_to(end, stage, frame.len(), run_flags::BROADCAST, input, write));
            queues.mark(stage, SendReason::Full);
        }
        (1..2000).find_map(|tick| {
            if let Fabric::Simulated(net) = &world.job.fabric {
                net.tick();
            }
            world.round(1, tick * TICK_NS).unwrap();
            [0, 2].into_iter().find_map(|rank: u32| {
                let refused = world.round(rank, tick * TICK_NS).err();
                refused.map(|error| error.to_string())
            })
        })
    };
    // From another node over an origin lane, from this node over a relay lane, from the receiver's
    // own over a link.
    let (origin, remote, relay) = (stage::ORIGIN, stage::REMOTE, stage::RELAY);
    for (source, over) in [(2, origin), (1, relay), (2, remote), (3, remote)] {
        let text = refusal(source, over).unwrap_or_else(|| panic!("{source} over {over} is taken"));
        assert!(
            text.contains("rank 1") && text.contains(&format!("broadcast of rank {source}")),
            "{text}"
        );
    }
    for (source, over) in [(1, origin), (2, relay), (0, remote), (1, remote)] {
        assert_eq!(
            refusal(source, over),
            None,
            "{source} over {over} belongs there"
        );
    }
}
