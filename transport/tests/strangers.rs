//! Connections that are cut in the middle of a message, by who knows its tag: every receive that
//! such a message met comes back, broken and with its buffer, and the others take the messages that
//! come after.
//!
//! `TRIHOP_TEST_PROVIDERS`, a list with commas, replaces the providers. One that is missing is
//! skipped by name. Each wait has a watchdog and no timing is asserted.

#![allow(clippy::print_stdout, reason = "a skipped provider is named")]

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use trihop_transport::Error;
use trihop_transport::fabric::{self, Choice};
use trihop_transport::link::{Access, Completion, Link, PostError, Tag, Token};

const PROVIDERS: [&str; 2] = ["net", "tcp;ofi_rxm"];
const WATCHDOG: Duration = Duration::from_secs(60);
const TAG: Tag = Tag(7);
const SLOTS: usize = 8;

fn open(provider: &str) -> Result<Box<dyn Link>, Error> {
    fabric::open(&Choice {
        provider: Some(provider.to_owned()),
        loopback_only: true,
        universe: Some(64),
        ..Choice::default()
    })
}

/// Where the port stands in an address of a link: behind the provider's name and the family of the
/// socket.
fn port_at(address: &[u8]) -> usize {
    1 + address[0] as usize + 2
}

/// Listens for one connection, passes its first `after` bytes on to `port`, and cuts both ends:
/// with a goodbye, or as a reset.
fn cutter(port: u16, after: usize, reset: bool) -> (u16, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("an address").port();
    let (told, ended) = mpsc::channel();
    thread::spawn(move || {
        let (mut sender, _) = listener.accept().expect("a connection");
        let mut target =
            TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).expect("it listens");
        let (mut from, mut to) = (
            target.try_clone().expect("a copy"),
            sender.try_clone().expect("a copy"),
        );
        let answers = thread::spawn(move || std::io::copy(&mut from, &mut to));
        let _ = std::io::copy(
            &mut Read::by_ref(&mut sender).take(after as u64),
            &mut target,
        );
        let _ = sender.shutdown(Shutdown::Both);
        if reset {
            // Says nothing to the other side, and ends the copy: closing the last descriptor is the
            // reset.
            let _ = target.shutdown(Shutdown::Read);
            set_socket_linger(&target, Some(Duration::ZERO)).expect("a socket option");
        } else {
            let _ = target.shutdown(Shutdown::Both);
        }
        let _ = answers.join();
        drop((target, told));
    });
    (own, ended)
}

/// Sends `bytes` to `link` over a connection that is cut; what it ended of `link` goes to `ended`.
fn send_half(
    link: &mut dyn Link,
    bytes: usize,
    after: usize,
    reset: bool,
    ended: &mut Vec<Completion>,
) {
    let mut address = link.address().to_vec();
    let at = port_at(&address);
    let (own, cut) = cutter(
        u16::from_be_bytes([address[at], address[at + 1]]),
        after,
        reset,
    );
    address[at..at + 2].copy_from_slice(&own.to_be_bytes());
    let mut stranger = open(&provider_of(link)).expect("opened before");
    let peer = stranger.connect(&address).expect("an address like our own");
    let pool = stranger
        .create_pool(bytes.next_multiple_of(64), 1, Access::Departures)
        .expect("a pool");
    let mut unsent = pool.take();
    let (deadline, before) = (Instant::now() + WATCHDOG, ended.len());
    while cut.try_recv() == Err(mpsc::TryRecvError::Empty) || ended.len() == before {
        if let Some(buffer) = unsent.take()
            && let Err(PostError::WouldBlock(back)) =
                stranger.post_send(peer, TAG, buffer, bytes, Token(0))
        {
            unsent = Some(back);
        }
        stranger.poll(&mut Vec::new()).expect("poll");
        link.poll(ended).expect("poll");
        assert!(
            Instant::now() < deadline,
            "{}: the receive of a message of {bytes} bytes does not end that was cut after {after} (reset: {reset})",
            link.name()
        );
    }
}

fn provider_of(link: &dyn Link) -> String {
    link.name().to_owned()
}

#[test]
fn receives_of_messages_that_are_cut_come_back() {
    let replaced = std::env::var("TRIHOP_TEST_PROVIDERS").ok();
    let providers = replaced
        .as_deref()
        .map_or(PROVIDERS.to_vec(), |list| list.split(',').collect());
    for provider in providers {
        let mut link = match open(provider) {
            Ok(link) => link,
            Err(Error::NoProvider { why }) => {
                println!("skipped {provider}: {why}");
                continue;
            }
            Err(e) => panic!("{provider}: {e}"),
        };
        let pool = link
            .create_pool(128 << 10, SLOTS, Access::Arrivals)
            .expect("a pool");
        let mut free: Vec<_> = (0..SLOTS).map(|_| pool.take().expect("fresh")).collect();
        // Eager, in segments of the provider's, and by its own rendezvous; cut soon and late.
        for (bytes, after) in [
            (6000, 400),
            (6000, 5000),
            (40_000, 400),
            (40_000, 30_000),
            (100_000, 400),
        ] {
            for reset in [false, true] {
                for buffer in free.drain(..) {
                    link.post_receive(TAG, buffer, Token(1))
                        .expect("room for a receive");
                }
                let mut ended = Vec::new();
                for _ in 0..SLOTS {
                    send_half(&mut *link, bytes, after, reset, &mut ended);
                }
                for completion in ended {
                    match completion {
                        Completion::Broken {
                            token: Token(1),
                            buffer,
                            ..
                        } => free.push(buffer),
                        other => panic!("{provider}, {bytes} bytes, {after} of them: {other:?}"),
                    }
                }
                assert_eq!(
                    free.len(),
                    SLOTS,
                    "{provider}, {bytes} bytes, {after} of them"
                );
            }
        }
    }
}
