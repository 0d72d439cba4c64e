//! Limits and rules of providers, as links of a simulated network have them.

use super::super::{Rules, SimOptions};
use super::*;

/// Two links over a network with these limits and rules, which refuses nothing.
fn two_links(limits: Limits, rules: Rules) -> (Net, SimLink, SimLink) {
    let net = Net::new(SimOptions {
        refuse_one_in: 0,
        limits,
        rules,
        ..SimOptions::default()
    });
    let (a, b) = (net.link(), net.link());
    (net, a, b)
}

fn limits() -> Limits {
    SimOptions::default().limits
}

#[test]
fn short_messages_are_over_before_they_have_left() {
    let rules = Rules {
        inject_bytes: 8,
        ..Rules::default()
    };
    let (net, mut a, mut b) = two_links(limits(), rules);
    let pa = a.create_pool(64, 2, Access::All).unwrap();
    let pb = b.create_pool(64, 2, Access::All).unwrap();
    assert_eq!(b.post_receives(Tag(1), &pb, 2, Token(1)).unwrap(), 2);
    for (bytes, token) in [(8, Token(8)), (9, Token(9))] {
        let buffer = pa.take().unwrap();
        a.post_send(SimLink::peer(1), Tag(1), buffer, bytes, token)
            .unwrap();
    }
    assert!(!a.try_wait(), "there is news");
    let mut got = Vec::new();
    for _ in 0..2 {
        a.poll(&mut got).unwrap();
    }
    let sent = |c: &Completion| {
        matches!(
            c,
            Completion::Sent {
                token: Token(8),
                ..
            }
        )
    };
    assert!(got.iter().any(sent));
    (0..20).for_each(|_| net.tick());
    a.poll(&mut got).unwrap();
    b.poll(&mut got).unwrap();
    assert_eq!(got.len(), 4, "each once: {got:?}");
}

#[test]
fn a_full_provider_takes_no_sends_until_one_has_ended() {
    let limits = Limits {
        posted_sends: 2,
        max_message_bytes: 32,
        ..limits()
    };
    let (net, mut a, mut b) = two_links(limits, Rules::default());
    let pa = a.create_pool(64, 4, Access::All).unwrap();
    let pb = b.create_pool(64, 4, Access::All).unwrap();
    assert_eq!(b.post_receives(Tag(1), &pb, 4, Token(1)).unwrap(), 4);
    let held = pb.take();
    assert!(held.is_none());
    let send = |a: &mut SimLink, bytes| {
        a.post_send(
            SimLink::peer(1),
            Tag(1),
            pa.take().unwrap(),
            bytes,
            Token(2),
        )
    };
    assert!(
        matches!(send(&mut a, 33), Err(PostError::Failed(..))),
        "too long"
    );
    send(&mut a, 32).unwrap();
    send(&mut a, 32).unwrap();
    assert!(matches!(send(&mut a, 1), Err(PostError::WouldBlock(_))));
    assert!(!a.try_wait(), "it may be taken after the next poll");
    (0..20).for_each(|_| net.tick());
    let mut got = Vec::new();
    a.poll(&mut got).unwrap();
    send(&mut a, 1).unwrap();
    assert!(net.violations().is_empty());
}

#[test]
fn a_tag_that_is_too_wide_breaks_the_rules() {
    let limits = Limits {
        tag_bits: 48,
        ..limits()
    };
    let (net, mut a, mut b) = two_links(limits, Rules::default());
    let pa = a.create_pool(64, 2, Access::All).unwrap();
    let pb = b.create_pool(64, 2, Access::All).unwrap();
    for (tag, broken) in [((1 << 48) - 1, 0), (1 << 48, 1)] {
        b.post_receive(Tag(tag), pb.take().unwrap(), Token(1))
            .unwrap();
        a.post_send(SimLink::peer(1), Tag(tag), pa.take().unwrap(), 1, Token(2))
            .unwrap();
        assert_eq!(net.violations().len(), broken);
    }
}

#[test]
fn addresses_and_keys_are_those_of_the_registration() {
    for virtual_addresses in [false, true] {
        let rules = Rules {
            virtual_addresses,
            provider_keys: virtual_addresses,
            ..Rules::default()
        };
        let (net, mut a, mut b) = two_links(limits(), rules);
        let pa = a.create_pool(64, 2, Access::All).unwrap();
        let pb = b.create_pool(64, 2, Access::All).unwrap();
        let mut shown = pa.take().unwrap();
        shown[..4].copy_from_slice(b"read");
        let remote = shown.remote();
        assert_eq!(remote.address > 1 << 32, virtual_addresses, "{remote:?}");
        assert_eq!(remote.key > 1 << 32, virtual_addresses, "{remote:?}");
        b.post_read(SimLink::peer(0), remote, pb.take().unwrap(), 4, Token(3))
            .unwrap();
        (0..20).for_each(|_| net.tick());
        let mut got = Vec::new();
        b.poll(&mut got).unwrap();
        assert!(matches!(&got[..], [Completion::Read { buffer, .. }] if &buffer[..4] == b"read"));
        let below = RemoteMemory {
            address: remote.address.wrapping_sub(1 << 20),
            ..remote
        };
        let refused = b.post_read(SimLink::peer(0), below, pb.take().unwrap(), 4, Token(3));
        assert!(matches!(refused, Err(PostError::Failed(..))));
    }
}

#[test]
fn the_descriptor_is_readable_while_there_is_news() {
    let rules = Rules {
        wait_descriptor: true,
        ..Rules::default()
    };
    let (net, mut a, mut b) = two_links(limits(), rules);
    let pa = a.create_pool(64, 1, Access::All).unwrap();
    let pb = b.create_pool(64, 1, Access::All).unwrap();
    let is_readable = |link: &SimLink| {
        use rustix::event::{PollFd, PollFlags, poll};
        let descriptor = link.wait_descriptor().expect("it has one");
        let mut asked = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut asked, Some(&rustix::event::Timespec::default())).unwrap() == 1
    };
    b.post_receive(Tag(1), pb.take().unwrap(), Token(1))
        .unwrap();
    assert!(!is_readable(&b) && b.try_wait());
    a.post_send(SimLink::peer(1), Tag(1), pa.take().unwrap(), 1, Token(2))
        .unwrap();
    (0..20).for_each(|_| net.tick());
    assert!(is_readable(&b) && !b.try_wait());
    let mut got = Vec::new();
    b.poll(&mut got).unwrap();
    assert_eq!(got.len(), 1);
    assert!(!is_readable(&b) && b.try_wait());
    let (_, bare, _) = two_links(limits(), Rules::default());
    assert!(bare.wait_descriptor().is_none());
}
