//! Two links of one process over each provider that this machine has.
//!
//! `TRIHOP_TEST_PROVIDERS`, a list with commas, replaces the providers. One that is missing is
//! skipped by name. Each exchange has a watchdog and no timing assertion.

#![allow(clippy::print_stdout, reason = "a skipped provider is named")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::Error;
use trihop_transport::fabric::quirks;
use trihop_transport::fabric::{self, Choice, Verdict};
use trihop_transport::link::{
    Access, Completion, Link, Mover, Peer, PostError, RemoteMemory, Tag, Token,
};
use trihop_transport::memory::lent::{Lend, Lender, SegmentPart};
use trihop_transport::memory::pool::{Buffer, Pool};
use trihop_transport::memory::segment::Segment;

const PROVIDERS: [&str; 3] = ["tcp", "tcp;ofi_rxm", "shm"];
const WATCHDOG: Duration = Duration::from_secs(60);

/// Two connected links, with one pool each and all that ended on either side.
struct Pair {
    // Links first: they hand posted buffers back to the pools.
    links: [Box<dyn Link>; 2],
    peers: [Peer; 2],
    pools: [Pool; 2],
    ended: [Vec<Completion>; 2],
    deadline: Instant,
}

fn choice(provider: &str) -> Choice {
    Choice {
        provider: Some(provider.to_owned()),
        loopback_only: true,
        universe: Some(16),
        ..Choice::default()
    }
}

impl Pair {
    fn open(provider: &str, slot_bytes: usize, slots: usize) -> Self {
        let mut links =
            [(); 2].map(|()| fabric::open(&choice(provider)).expect("the provider opens"));
        let addresses = [links[0].address().to_vec(), links[1].address().to_vec()];
        let peers = [
            links[0]
                .connect(&addresses[1])
                .expect("the other side's address"),
            links[1]
                .connect(&addresses[0])
                .expect("the other side's address"),
        ];
        let pools = [0, 1].map(|side: usize| {
            links[side]
                .create_pool(slot_bytes, slots, Access::All)
                .expect("a pool")
        });
        Self {
            links,
            peers,
            pools,
            ended: [Vec::new(), Vec::new()],
            deadline: Instant::now() + WATCHDOG,
        }
    }

    /// Polls both sides until `done`.
    fn until(&mut self, what: &str, done: impl Fn(&[Vec<Completion>; 2]) -> bool) {
        while !done(&self.ended) {
            self.progress(what);
        }
    }

    fn progress(&mut self, what: &str) {
        for side in [0, 1] {
            self.links[side].poll(&mut self.ended[side]).expect("poll");
        }
        assert!(
            Instant::now() < self.deadline,
            "{what} did not happen within {WATCHDOG:?}"
        );
    }

    fn receive(&mut self, side: usize, tag: u64, token: u64) {
        let buffer = self.pools[side].take().expect("a free buffer");
        self.links[side]
            .post_receive(Tag(tag), buffer, Token(token))
            .expect("room for a receive");
    }

    /// Sends, with progress on both sides while the provider has no room.
    fn send(&mut self, side: usize, tag: u64, bytes: usize, seed: u8, token: u64) {
        let mut buffer = self.pools[side].take().expect("a free buffer");
        fill(&mut buffer, bytes, seed);
        loop {
            match self.links[side].post_send(
                self.peers[side],
                Tag(tag),
                buffer,
                bytes,
                Token(token),
            ) {
                Ok(()) => return,
                Err(PostError::WouldBlock(back)) => buffer = back,
                Err(PostError::Failed(_, e)) => panic!("send refused: {e}"),
            }
            self.progress("room for a send");
        }
    }

    fn read(&mut self, side: usize, remote: RemoteMemory, bytes: usize, token: u64) {
        let mut buffer = self.pools[side].take().expect("a free buffer");
        loop {
            match self.links[side].post_read(self.peers[side], remote, buffer, bytes, Token(token))
            {
                Ok(()) => return,
                Err(PostError::WouldBlock(back)) => buffer = back,
                Err(PostError::Failed(_, e)) => panic!("read refused: {e}"),
            }
            self.progress("room for a read");
        }
    }

    /// Posts a buffer on the first side, with progress on both while the provider has no room.
    fn post(
        &mut self,
        what: &str,
        mut buffer: Buffer,
        post: impl Fn(&mut dyn Link, Peer, Buffer) -> Result<(), PostError>,
    ) {
        loop {
            match post(&mut *self.links[0], self.peers[0], buffer) {
                Ok(()) => return,
                Err(PostError::WouldBlock(back)) => buffer = back,
                Err(PostError::Failed(_, error)) => panic!("{what} is refused: {error}"),
            }
            self.progress(what);
        }
    }

    fn assert_all_home(&self) {
        for pool in &self.pools {
            assert_eq!(
                pool.free_slots(),
                pool.slots(),
                "buffers that did not come back: {pool:?}"
            );
        }
    }
}

fn byte(at: usize, seed: u8) -> u8 {
    (at as u8)
        .wrapping_mul(31)
        .wrapping_add((at >> 8) as u8)
        .wrapping_add(seed)
}

fn fill(buffer: &mut Buffer, bytes: usize, seed: u8) {
    for (at, b) in buffer[..bytes].iter_mut().enumerate() {
        *b = byte(at, seed);
    }
}

fn assert_filled(buffer: &Buffer, bytes: usize, seed: u8) {
    let wrong = buffer[..bytes]
        .iter()
        .enumerate()
        .find(|(at, b)| **b != byte(*at, seed));
    assert_eq!(wrong, None, "first wrong byte of {bytes} (seed {seed})");
}

/// Runs `check` for each provider, unless the machine does not have it.
fn for_each_provider(check: impl Fn(&str)) {
    let replaced = std::env::var("TRIHOP_TEST_PROVIDERS").ok();
    let providers = replaced
        .as_deref()
        .map_or(PROVIDERS.to_vec(), |list| list.split(',').collect());
    for provider in providers {
        match fabric::open(&choice(provider)) {
            Ok(link) => {
                drop(link);
                check(provider);
            }
            Err(Error::NoProvider { why }) => println!("skipped {provider}: {why}"),
            Err(e) => panic!("{provider}: {e}"),
        }
    }
}

/// What is posted by `post` with a buffer of another link's pool.
fn post_anothers(provider: &str, post: fn(&mut Pair, Buffer)) {
    let mut pair = Pair::open(provider, 4096, 2);
    let anothers = pair.pools[1].take().expect("a free buffer");
    let refused =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| post(&mut pair, anothers)));
    let why = refused.expect_err("a buffer of another link was posted");
    let text = why.downcast_ref::<String>().expect("an assertion's text");
    assert!(text.contains("another link's pool"), "{text}");
}

/// Providers take descriptors of regions as they are: one of another domain is a pointer into that
/// one.
#[test]
fn a_buffer_of_another_link_never_reaches_the_provider() {
    for_each_provider(|provider| {
        post_anothers(provider, |pair, buffer| {
            let _ = pair.links[0].post_send(pair.peers[0], Tag(1), buffer, 4096, Token(1));
        });
        post_anothers(provider, |pair, buffer| {
            let _ = pair.links[0].post_receive(Tag(1), buffer, Token(1));
        });
        post_anothers(provider, |pair, buffer| {
            let remote = RemoteMemory { address: 0, key: 0 };
            let _ = pair.links[0].post_read(pair.peers[0], remote, buffer, 64, Token(1));
        });
    });
}

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
fn peers_memory_is_read() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 256 << 10, 4);
        for (n, bytes) in [1usize, 8, 4096, 65_536, 256 << 10].into_iter().enumerate() {
            // The second slot of the target's pool, so that an offset is added to the base.
            let first = pair.pools[1].take().expect("a buffer");
            let mut source = pair.pools[1].take().expect("a buffer");
            fill(&mut source, bytes, n as u8);
            pair.read(0, source.remote(), bytes, n as u64);
            pair.until("a read", |ended| !ended[0].is_empty());
            match pair.ended[0].pop() {
                Some(Completion::Read { token, buffer }) => {
                    assert_eq!(token, Token(n as u64));
                    assert_filled(&buffer, bytes, n as u8);
                }
                other => panic!("{provider}, {bytes} bytes: {other:?} instead of a read"),
            }
            drop((first, source));
        }
        pair.assert_all_home();
    });
}

/// A part of a segment, lent for buffers.
struct Part(Arc<Segment>, usize, usize);

// SAFETY: the segment stays mapped while the value lives, and this test has one for each range.
unsafe impl Lend for Part {
    fn first(&self) -> NonNull<u8> {
        // SAFETY: the test names bytes of the segment.
        NonNull::new(unsafe { self.0.as_ptr().add(self.1) }).expect("a mapping")
    }

    fn bytes(&self) -> usize {
        self.2
    }
}

#[test]
fn memory_that_is_lent_is_sent_received_and_read_in_place() {
    const FIRST: usize = 8192;
    const BYTES: usize = 512 << 10;
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, BYTES, 2);
        let segments = [(); 2].map(|()| Segment::create(FIRST + 2 * BYTES).expect("a segment"));
        let lender = |pair: &mut Pair, side: usize, access| {
            let link = &mut pair.links[side];
            let segment = &segments[side];
            let all = SegmentPart::new(Arc::clone(segment), FIRST, 2 * BYTES).expect("it is there");
            let registered = link.register(&all, access);
            let part = Part(Arc::clone(segment), FIRST + BYTES, BYTES);
            Lender::new(part, &registered.expect("it registers"))
                .unwrap_or_else(|_| panic!("it was registered"))
        };
        // Sent out of one and received into the other, from different places.
        let mut source = lender(&mut pair, 0, Access::Departures);
        let mut target = lender(&mut pair, 1, Access::Messages);
        let bytes = 100_000;
        let place = target.take(128 << 10, bytes).expect("memory");
        pair.links[1]
            .post_receive(Tag(1), place, Token(1))
            .expect("room");
        let mut buffer = source.take(64, bytes).expect("memory");
        fill(&mut buffer, bytes, 7);
        pair.post("a send", buffer, |link, peer, buffer| {
            link.post_send(peer, Tag(1), buffer, bytes, Token(2))
        });
        pair.until("a message", |ended| ended.iter().all(|of| !of.is_empty()));
        match pair.ended[1].pop() {
            Some(Completion::Received {
                buffer,
                bytes: came,
                ..
            }) => {
                assert_eq!(came, bytes, "{provider}");
                assert_filled(&buffer, bytes, 7);
            }
            other => panic!("{provider}: {other:?} instead of a message"),
        }
        pair.ended[0].clear();
        assert!(source.is_home() && target.is_home(), "{provider}");
        // Read out of one into the other.
        let mut source = lender(&mut pair, 1, Access::Readable);
        let mut target = lender(&mut pair, 0, Access::All);
        let mut whole = source.take(0, BYTES).expect("memory");
        fill(&mut whole, BYTES, 9);
        drop(whole);
        let remote = source.remote();
        let from = 256 << 10;
        let part = RemoteMemory {
            address: remote.address + from as u64,
            ..remote
        };
        let place = target.take(64, bytes).expect("memory");
        pair.post("a read", place, |link, peer, buffer| {
            link.post_read(peer, part, buffer, bytes, Token(3))
        });
        pair.until("a read", |ended| !ended[0].is_empty());
        match pair.ended[0].pop() {
            Some(Completion::Read { buffer, .. }) => {
                let right = (0..bytes).all(|at| buffer[at] == byte(from + at, 9));
                assert!(right, "{provider}");
            }
            other => panic!("{provider}: {other:?} instead of a read"),
        }
        assert!(source.end().is_ok() && target.end().is_ok(), "{provider}");
    });
}

/// Only over native datagrams: ofi_rxm makes all memory readable for its own large messages, and
/// shm asks the kernel alone.
#[test]
fn a_pool_for_arrivals_is_not_readable_by_peers() {
    for_each_provider(|provider| {
        let mut pair = Pair::open(provider, 4096, 2);
        if !["net", "tcp"].contains(&pair.links[0].name()) {
            println!("skipped {provider}: it does not keep access apart");
            return;
        }
        for access in [Access::Arrivals, Access::Departures] {
            let mut pair = Pair::open(provider, 4096, 2);
            let pool = pair.links[1].create_pool(4096, 1, access).expect("a pool");
            let mut target = pool.take().expect("a buffer");
            fill(&mut target, 4096, 1);
            pair.read(0, target.remote(), 4096, 7);
            pair.until("the end of a read", |ended| !ended[0].is_empty());
            match pair.ended[0].pop() {
                Some(Completion::Failed { token, .. }) => assert_eq!(token, Some(Token(7))),
                other => panic!("{provider}, {access:?}: {other:?} instead of a refusal"),
            }
        }
        // What is readable still is.
        let pool = pair.links[1]
            .create_pool(4096, 1, Access::Readable)
            .expect("a pool");
        let mut source = pool.take().expect("a buffer");
        fill(&mut source, 4096, 2);
        pair.read(0, source.remote(), 4096, 8);
        pair.until("a read", |ended| !ended[0].is_empty());
        match pair.ended[0].pop() {
            Some(Completion::Read { buffer, .. }) => assert_filled(&buffer, 4096, 2),
            other => panic!("{provider}: {other:?} instead of a read"),
        }
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
