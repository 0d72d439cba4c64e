//! Memory that links send, receive and read in place, and who may read it.

use std::ptr::NonNull;
use std::sync::Arc;

use trihop_transport::link::{Access, Completion, RemoteMemory, Tag, Token};
use trihop_transport::memory::lent::{Lend, Lender, SegmentPart};
use trihop_transport::memory::pool::Buffer;
use trihop_transport::memory::segment::Segment;

use super::pair::{Pair, assert_filled, byte, fill, for_each_provider};

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
