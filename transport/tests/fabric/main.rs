//! Two links of one process over each provider that this machine has.
//!
//! `TRIHOP_TEST_PROVIDERS`, a list with commas, replaces the providers. One that is missing is
//! skipped by name. Each exchange has a watchdog and no timing assertion.

#![allow(clippy::print_stdout, reason = "a skipped provider is named")]

mod memory;
mod pair;

use std::time::Instant;

use trihop_transport::Error;
use trihop_transport::fabric::quirks;
use trihop_transport::fabric::{self, Choice, Verdict};
use trihop_transport::link::{Access, Completion, Mover, Peer, PostError, Tag, Token};

use pair::{Pair, assert_filled, choice, for_each_provider};

#[test]
fn sizes_from_nothing_to_large_arrive_intact() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 1 << 20, 4);
        let inject_edges = [
            0, 1, 8, 63, 64, 65, 127, 128, 129, 192, 193, 4095, 4096, 4097,
        ];
        for (n, bytes) in inject_edges
            .into_iter()
            .chain([16384, 16385, 65536, 131_073, 1 << 20])
            .enumerate()
        {
            for side in [0, 1] {
                let seed = n as u8 + 100 * side as u8;
                pair.receive(1 - side, 7, 1000 + n as u64);
                pair.send(side, 7, bytes, seed, n as u64);
                pair.until("a message", |ended| {
                    !ended[side].is_empty() && !ended[1 - side].is_empty()
                });
                match pair.ended[side].pop() {
                    Some(Completion::Sent { token, buffer }) => {
                        assert_eq!(token, Token(n as u64));
                        assert_filled(&buffer, bytes, seed);
                    }
                    other => panic!("{provider}, {bytes} bytes: {other:?} instead of a send"),
                }
                match pair.ended[1 - side].pop() {
                    Some(Completion::Received {
                        token,
                        buffer,
                        bytes: received,
                    }) => {
                        assert_eq!(
                            (token, received),
                            (Token(1000 + n as u64), bytes),
                            "{provider}"
                        );
                        assert_filled(&buffer, bytes, seed);
                    }
                    other => panic!("{provider}, {bytes} bytes: {other:?} instead of a receive"),
                }
            }
        }
        pair.assert_all_home();
    });
}

#[test]
fn many_in_flight_arrive_once_each() {
    const MESSAGES: usize = 2000;
    const WINDOW: usize = 64;
    for_each_provider(|provider| {
        for bytes in [8usize, 1024, 20_000] {
            let mut pair = Pair::open(provider, 32 << 10, 2 * WINDOW);
            let mut seen = vec![false; MESSAGES];
            for _ in 0..WINDOW {
                pair.receive(1, 3, 0);
            }
            let (mut sent, mut received, mut left) = (0, 0, 0);
            while received < MESSAGES || left < MESSAGES {
                if sent < MESSAGES && sent - received < WINDOW && pair.pools[0].free_slots() > 0 {
                    let mut buffer = pair.pools[0].take().expect("a free buffer");
                    buffer[..8].copy_from_slice(&(sent as u64).to_le_bytes());
                    match pair.links[0].post_send(
                        pair.peers[0],
                        Tag(3),
                        buffer,
                        bytes,
                        Token(sent as u64),
                    ) {
                        Ok(()) => sent += 1,
                        Err(PostError::WouldBlock(_)) => {}
                        Err(PostError::Failed(_, e)) => panic!("{e}"),
                    }
                }
                pair.progress("the stream");
                left += pair.ended[0]
                    .drain(..)
                    .map(|c| assert!(matches!(c, Completion::Sent { .. }), "{c:?}"))
                    .count();
                let arrived: Vec<Completion> = pair.ended[1].drain(..).collect();
                for completion in arrived {
                    let Completion::Received {
                        buffer,
                        bytes: length,
                        ..
                    } = completion
                    else {
                        panic!("{completion:?}")
                    };
                    assert_eq!(length, bytes);
                    let number =
                        u64::from_le_bytes(buffer[..8].try_into().expect("eight bytes")) as usize;
                    assert!(
                        !std::mem::replace(&mut seen[number], true),
                        "message {number} came twice"
                    );
                    received += 1;
                    pair.links[1]
                        .post_receive(Tag(3), buffer, Token(0))
                        .expect("room for a receive");
                }
            }
            assert!(seen.iter().all(|s| *s), "{provider}: a message is missing");
        }
    });
}

#[test]
fn tags_match_exactly() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 4096, 8);
        let high = 1 << (pair.links[0].limits().tag_bits - 1) | 5;
        pair.receive(1, high, 1);
        pair.receive(1, 5, 2);
        pair.receive(1, 4, 3);
        pair.send(0, 4, 300, 4, 0);
        pair.send(0, high, 500, 1, 0);
        pair.send(0, 5, 400, 5, 0);
        pair.until("three messages", |ended| {
            ended[1].len() == 3 && ended[0].len() == 3
        });
        let mut lengths: Vec<(u64, usize)> = pair.ended[1]
            .drain(..)
            .map(|c| match c {
                Completion::Received { token, bytes, .. } => (token.0, bytes),
                other => panic!("{other:?}"),
            })
            .collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [(1, 500), (2, 400), (3, 300)], "{provider}");
    });
}

#[test]
fn full_provider_says_would_block_and_loses_nothing() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 64, 1);
        let depth = pair.links[0].limits().posted_sends;
        pair.pools[0] = pair.links[0]
            .create_pool(64, depth + 16, Access::All)
            .expect("a pool");
        let receives = pair.links[1].limits().posted_receives;
        pair.pools[1] = pair.links[1]
            .create_pool(64, receives + 1, Access::All)
            .expect("a pool");
        // Nobody polls: injected sends must not pile up without a bound.
        let mut posted = 0;
        let blocked = loop {
            let buffer = pair.pools[0]
                .take()
                .expect("more buffers than the provider may take");
            match pair.links[0].post_send(pair.peers[0], Tag(1), buffer, 8, Token(posted)) {
                Ok(()) => posted += 1,
                Err(PostError::WouldBlock(buffer)) => break buffer,
                Err(PostError::Failed(_, e)) => panic!("{e}"),
            }
        };
        assert!(
            posted as usize <= depth,
            "{provider}: {posted} posted of {depth}"
        );
        drop(blocked);
        // As do receives.
        for n in 0..receives {
            pair.receive(1, 1, n as u64);
        }
        let buffer = pair.pools[1].take().expect("one more buffer");
        assert!(matches!(
            pair.links[1].post_receive(Tag(1), buffer, Token(0)),
            Err(PostError::WouldBlock(_))
        ));
        let messages = (posted as usize).min(receives);
        pair.until("all that was posted", |ended| {
            ended[0].len() == posted as usize && ended[1].len() >= messages
        });
        assert!(
            pair.ended[1]
                .iter()
                .all(|c| matches!(c, Completion::Received { bytes: 8, .. })),
            "{provider}"
        );
    });
}

#[test]
fn message_longer_than_its_receive_is_an_error_with_the_buffer() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 4096, 2);
        let small = pair.links[1]
            .create_pool(64, 1, Access::All)
            .expect("a pool");
        let buffer = small.take().expect("a buffer");
        pair.links[1]
            .post_receive(Tag(9), buffer, Token(77))
            .expect("room for a receive");
        pair.send(0, 9, 2000, 1, 0);
        pair.until("a truncated message", |ended| !ended[1].is_empty());
        match pair.ended[1].pop() {
            Some(Completion::Broken { token, error, .. }) => {
                assert_eq!(token, Token(77), "{provider}: {error}");
            }
            other => panic!("{provider}: {other:?} instead of a broken message"),
        }
        pair.ended = [Vec::new(), Vec::new()];
        assert_eq!(small.free_slots(), 1, "{provider}");
    });
}

#[test]
fn posted_buffers_come_home_when_the_link_closes() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 4096, 32);
        for n in 0..20 {
            pair.receive(0, 2, n);
            pair.receive(1, 2, n);
        }
        let Pair { links, pools, .. } = pair;
        assert_eq!(pools[0].free_slots(), 12);
        drop(links);
        // A provider that cannot be closed keeps what is posted, and keeps it mapped.
        let home = if quirks::lookup(provider, "RXM").closes {
            32
        } else {
            12
        };
        for pool in &pools {
            assert_eq!(pool.free_slots(), home, "{provider}");
        }
    });
}

#[test]
fn descriptor_wakes_a_sleeper() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 4096, 4);
        if pair.links[1].wait_descriptor().is_none() {
            println!("skipped {provider}: it has no descriptor to wait on");
            return;
        }
        pair.receive(1, 1, 0);
        pair.send(0, 1, 1000, 1, 0);
        // The receiver polls only after its descriptor became readable; the sender keeps its own
        // progress up.
        while pair.ended[1].is_empty() {
            pair.links[0].poll(&mut pair.ended[0]).expect("poll");
            let readable = !pair.links[1].try_wait() || {
                let descriptor = pair.links[1].wait_descriptor().expect("checked above");
                let mut fds = [rustix::event::PollFd::new(
                    &descriptor,
                    rustix::event::PollFlags::IN,
                )];
                let timeout = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 1_000_000,
                };
                rustix::event::poll(&mut fds, Some(&timeout)).expect("poll(2)") > 0
            };
            if readable {
                pair.links[1].poll(&mut pair.ended[1]).expect("poll");
            }
            assert!(
                Instant::now() < pair.deadline,
                "{provider}: the descriptor never became readable"
            );
        }
        assert!(
            matches!(
                pair.ended[1].pop(),
                Some(Completion::Received { bytes: 1000, .. })
            ),
            "{provider}"
        );
    });
}

#[test]
fn foreign_addresses_are_refused() {
    for_each_provider(|provider| {
        let mut link = fabric::open(&choice(provider)).expect("the provider opens");
        let good = link.address().to_vec();
        let mut longer = good.clone();
        longer.push(0);
        let mut other = good.clone();
        other[1] ^= 0x20;
        let name_only = &good[..1 + good[0] as usize];
        for bad in [
            &[][..],
            &[255],
            name_only,
            &longer,
            &other,
            &good[..good.len() - 1],
        ] {
            assert!(
                matches!(link.connect(bad), Err(Error::Fabric { .. })),
                "{provider} took {bad:?}"
            );
        }
        link.connect(&good).expect("an endpoint can reach itself");
    });
}

#[test]
fn unknown_peer_is_refused_with_the_buffer() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 64, 1);
        let buffer = pair.pools[0].take().expect("a buffer");
        let refused = pair.links[0].post_send(Peer(99), Tag(1), buffer, 8, Token(0));
        assert!(matches!(refused, Err(PostError::Failed(..))), "{provider}");
    });
}

#[test]
fn a_peer_that_was_disconnected_gets_nothing_until_it_is_connected_again() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 4096, 4);
        // Short enough to be copied at once, and long enough not to be.
        for (round, bytes) in [8, 4096, 8].into_iter().enumerate() {
            pair.receive(1, 7, round as u64);
            pair.send(0, 7, bytes, 1, 10);
            pair.until("a message", |ended| {
                [&ended[0], &ended[1]]
                    .iter()
                    .all(|side| side.len() == round + 1)
            });
            let peer = pair.peers[0];
            while !pair.links[0].disconnect(peer).expect("a peer") {
                pair.progress("the end of what is under way");
            }
            let buffer = pair.pools[0].take().expect("a buffer");
            let refused = pair.links[0].post_send(peer, Tag(7), buffer, 8, Token(0));
            assert!(matches!(refused, Err(PostError::Failed(..))), "{provider}");
            assert!(pair.links[0].disconnect(peer).is_err(), "{provider}: once");
            let address = pair.links[1].address().to_vec();
            pair.peers[0] = pair.links[0].connect(&address).expect("the address");
            assert_eq!(pair.peers[0], peer, "{provider}: its number is free again");
        }
        // The other direction has not noticed anything.
        pair.receive(0, 8, 20);
        pair.send(1, 8, 100, 2, 21);
        pair.until("the way back", |ended| ended[0].len() == 4);
    });
}

#[test]
fn overrides_are_honoured() {
    for_each_provider(|provider| {
        let link = fabric::open(&Choice {
            eager_bytes: Some(1234),
            mover: Some(Mover::Read),
            ..choice(provider)
        })
        .expect("the provider opens");
        assert_eq!(
            (link.limits().eager_bytes, link.limits().mover),
            (1234, Mover::Read)
        );
    });
}

#[test]
fn survey_tells_what_is_chosen_and_why_not_the_rest() {
    let survey = fabric::survey(&choice("tcp")).expect("libfabric answers");
    let Some(chosen) = survey.chosen else {
        println!("skipped: no tcp here");
        return;
    };
    for (i, candidate) in survey.candidates.iter().enumerate() {
        match &candidate.verdict {
            Verdict::Chosen => assert_eq!(i, chosen),
            Verdict::Usable { why_not: why } | Verdict::Rejected { why } => {
                assert!(i != chosen && !why.is_empty(), "{candidate:?}");
            }
        }
    }
    assert_eq!(
        survey.candidates[chosen].source.as_deref(),
        Some("127.0.0.1")
    );
}

#[test]
fn unknown_provider_is_an_error_with_reasons() {
    match fabric::open(&choice("carrier-pigeon")).map(|_| ()) {
        Err(Error::NoProvider { why }) => assert!(why.contains("carrier-pigeon"), "{why}"),
        other => panic!("{other:?}"),
    }
}
