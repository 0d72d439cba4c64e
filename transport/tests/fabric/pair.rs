//! Two connected links, and what tests do with them.

use std::time::{Duration, Instant};

use trihop_transport::Error;
use trihop_transport::fabric::{self, Choice};
use trihop_transport::link::{Access, Completion, Link, Peer, PostError, RemoteMemory, Tag, Token};
use trihop_transport::memory::pool::{Buffer, Pool};

const PROVIDERS: [&str; 3] = ["tcp", "tcp;ofi_rxm", "shm"];
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// Two connected links, with one pool each and all that ended on either side.
pub struct Pair {
    // Links first: they hand posted buffers back to the pools.
    pub links: [Box<dyn Link>; 2],
    pub peers: [Peer; 2],
    pub pools: [Pool; 2],
    pub ended: [Vec<Completion>; 2],
    pub deadline: Instant,
}

pub fn choice(provider: &str) -> Choice {
    Choice {
        provider: Some(provider.to_owned()),
        loopback_only: true,
        universe: Some(16),
        ..Choice::default()
    }
}

impl Pair {
    pub fn open(provider: &str, slot_bytes: usize, slots: usize) -> Self {
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
    pub fn until(&mut self, what: &str, done: impl Fn(&[Vec<Completion>; 2]) -> bool) {
        while !done(&self.ended) {
            self.progress(what);
        }
    }

    pub fn progress(&mut self, what: &str) {
        for side in [0, 1] {
            self.links[side].poll(&mut self.ended[side]).expect("poll");
        }
        assert!(
            Instant::now() < self.deadline,
            "{what} did not happen within {WATCHDOG:?}"
        );
    }

    pub fn receive(&mut self, side: usize, tag: u64, token: u64) {
        let buffer = self.pools[side].take().expect("a free buffer");
        self.links[side]
            .post_receive(Tag(tag), buffer, Token(token))
            .expect("room for a receive");
    }

    /// Sends, with progress on both sides while the provider has no room.
    pub fn send(&mut self, side: usize, tag: u64, bytes: usize, seed: u8, token: u64) {
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

    pub fn read(&mut self, side: usize, remote: RemoteMemory, bytes: usize, token: u64) {
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
    pub fn post(
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

    pub fn assert_all_home(&self) {
        for pool in &self.pools {
            assert_eq!(
                pool.free_slots(),
                pool.slots(),
                "buffers that did not come back: {pool:?}"
            );
        }
    }
}

pub fn byte(at: usize, seed: u8) -> u8 {
    (at as u8)
        .wrapping_mul(31)
        .wrapping_add((at >> 8) as u8)
        .wrapping_add(seed)
}

pub fn fill(buffer: &mut Buffer, bytes: usize, seed: u8) {
    for (at, b) in buffer[..bytes].iter_mut().enumerate() {
        *b = byte(at, seed);
    }
}

pub fn assert_filled(buffer: &Buffer, bytes: usize, seed: u8) {
    let wrong = buffer[..bytes]
        .iter()
        .enumerate()
        .find(|(at, b)| **b != byte(*at, seed));
    assert_eq!(wrong, None, "first wrong byte of {bytes} (seed {seed})");
}

/// Runs `check` for each provider, unless the machine does not have it.
pub fn for_each_provider(check: impl Fn(&str)) {
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
