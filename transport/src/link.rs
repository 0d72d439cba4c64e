//! What a fabric must offer: address, connect, registered pools, tagged sends and receives, RMA
//! reads, completions.
//!
//! Two implementations exist: [`crate::fabric`] over libfabric and [`crate::sim`], deterministic
//! and in process. Buffers change hands: a posted buffer belongs to the link until its completion
//! gives it back, so that no safe code can touch memory that a network adapter is still reading or
//! writing.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::lent::{Registered, SegmentPart};
use crate::memory::pool::{Buffer, Pool};

/// A connected remote endpoint, as an index that its link gave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub u32);

/// Message tag; the low [`Limits::tag_bits`] bits may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// Caller's mark on an operation, handed back by its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Where a peer's registered buffer can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address as the target's registration wants it (virtual address or offset).
    pub address: u64,
    /// Remote key.
    pub key: u64,
}

/// How a batch above the eager limit reaches the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mover {
    /// The receiver reads it out of the sender's registered buffer.
    Read,
    /// The receiver says clear-to-send, and the sender sends tagged segments into posted buffers.
    Segments,
}

/// What the buffers of a pool are for. The provider lets nobody do more with them, here or at a
/// peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Messages that come, and what this side reads.
    Arrivals,
    /// Messages that leave.
    Departures,
    /// Messages that leave, and what peers read: the only memory that they can reach by themselves.
    Readable,
    /// Messages that come and that leave, and what this side reads.
    Messages,
    /// All of it.
    All,
}

impl Access {
    /// Whether peers can read it.
    pub fn is_readable(self) -> bool {
        matches!(self, Self::Readable | Self::All)
    }
}

/// What a link can do, as numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest message that is worth sending as one tagged send, in bytes.
    pub eager_bytes: usize,
    /// Largest single operation, in bytes.
    pub max_message_bytes: usize,
    /// Receives that may be posted at once.
    pub posted_receives: usize,
    /// Sends and reads that may be outstanding at once.
    pub posted_sends: usize,
    /// Mover that is faster with this provider.
    pub mover: Mover,
    /// Bits of a tag, at least 48 (what the narrowest provider, cxi, carries).
    pub tag_bits: u32,
}

/// End of one operation.
#[derive(Debug)]
pub enum Completion {
    /// A send left its buffer; nothing is said about the receiver.
    Sent {
        /// Mark given at the post.
        token: Token,
        /// The buffer, ours again.
        buffer: Buffer,
    },
    /// A message arrived in a posted buffer.
    Received {
        /// Mark given at the post.
        token: Token,
        /// The buffer, ours again.
        buffer: Buffer,
        /// Bytes of the message, at most the buffer's capacity.
        bytes: usize,
    },
    /// A read from a peer's memory ended.
    Read {
        /// Mark given at the post.
        token: Token,
        /// The buffer with the data.
        buffer: Buffer,
    },
    /// A message that came for a posted buffer is no good: it was too long, or its connection was
    /// cut before its end. The endpoint is as sound as before, and the sender may be a stranger.
    Broken {
        /// Mark given at the post.
        token: Token,
        /// The buffer, ours again. It holds the beginning of the message where that was cut, or
        /// nothing of it.
        buffer: Buffer,
        /// Its connection ended before it did; otherwise it was too long.
        cut: bool,
        /// Reason.
        error: Error,
    },
    /// An operation failed for good.
    Failed {
        /// Mark given at the post, where the provider still knows it.
        token: Option<Token>,
        /// The buffer, where the provider still knows it.
        buffer: Option<Buffer>,
        /// Peer of the operation, where it had one.
        peer: Option<Peer>,
        /// Reason.
        error: Error,
    },
}

/// Why a post was not taken; the buffer comes back in both cases.
#[derive(Debug)]
pub enum PostError {
    /// The provider has no room towards this peer now; poll, serve others, try again.
    WouldBlock(Buffer),
    /// The provider refused for good.
    Failed(Buffer, Error),
}

/// One fabric endpoint: the posts never wait, `poll` makes bounded progress.
pub trait Link: Send {
    /// Provider and protocol, e.g. `tcp;ofi_rxm`.
    fn name(&self) -> &str;

    /// Our address, as opaque bytes for a peer's [`Link::connect`].
    fn address(&self) -> &[u8];

    /// What this link can do.
    fn limits(&self) -> &Limits;

    /// Memory that this process keeps for operations in flight, in bytes: all of it from the start
    /// on, whatever is posted. What the provider allocates for itself is not counted.
    fn operations_bytes(&self) -> usize {
        0
    }

    /// Makes a peer reachable. Sends no byte; the first post to it may.
    ///
    /// # Errors
    /// When the address is not one of this link's kind.
    fn connect(&mut self, address: &[u8]) -> Result<Peer>;

    /// Makes a peer unreachable: posts to it fail from now on, and its number may be given to the
    /// next one that is connected. False, and nothing done, while an operation towards it is under
    /// way: poll, and try again. What it sends arrives as before.
    ///
    /// # Errors
    /// When this link has no such peer, or the provider refuses.
    fn disconnect(&mut self, peer: Peer) -> Result<bool>;

    /// Allocates `slots` buffers of `slot_bytes` (a multiple of 64) and registers them for
    /// `access`, once and as a whole.
    ///
    /// # Errors
    /// When memory or registrations run out; the text names the limit to raise.
    fn create_pool(&mut self, slot_bytes: usize, slots: usize, access: Access) -> Result<Pool>;

    /// Registers a part of a segment for `access`, so that it can be lent for buffers.
    ///
    /// # Errors
    /// When registrations run out, or memory that may be pinned: half of that is left for pools.
    fn register(&mut self, part: &SegmentPart, access: Access) -> Result<Arc<Registered>>;

    /// Starts sending the first `bytes` of `buffer`.
    ///
    /// # Errors
    /// [`PostError`], with the buffer.
    fn post_send(
        &mut self,
        peer: Peer,
        tag: Tag,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> Result<(), PostError>;

    /// Offers a buffer for the next message with exactly this tag, from any peer.
    ///
    /// # Errors
    /// [`PostError`], with the buffer.
    fn post_receive(&mut self, tag: Tag, buffer: Buffer, token: Token) -> Result<(), PostError>;

    /// Offers `count` free buffers of `pool` for the next messages with exactly this tag, under one
    /// mark; returns how many were taken before the provider, or the pool, had no more room. Which
    /// of them takes which message is not said.
    ///
    /// # Errors
    /// When the provider refuses for good.
    fn post_receives(
        &mut self,
        tag: Tag,
        pool: &Pool,
        count: usize,
        token: Token,
    ) -> Result<usize> {
        for posted in 0..count {
            let Some(buffer) = pool.take() else {
                return Ok(posted);
            };
            match self.post_receive(tag, buffer, token) {
                Ok(()) => {}
                Err(PostError::WouldBlock(_)) => return Ok(posted),
                Err(PostError::Failed(_, error)) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Starts reading `bytes` of a peer's memory into `buffer`.
    ///
    /// # Errors
    /// [`PostError`], with the buffer.
    fn post_read(
        &mut self,
        peer: Peer,
        remote: RemoteMemory,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> Result<(), PostError>;

    /// Drives the provider and appends what ended, a bounded number of completions per call;
    /// returns how many.
    ///
    /// # Errors
    /// When the endpoint as a whole is unusable.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<usize>;

    /// Descriptor that becomes readable when `poll` has work, where the provider has one.
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Whether sleeping on [`Link::wait_descriptor`] is safe now; false means: poll again first.
    fn try_wait(&mut self) -> bool;
}
