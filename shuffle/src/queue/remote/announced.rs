//! What is announced to the other end of a link, which fetches it.

use trihop_transport::memory::pool::Buffer;
use trihop_transport::protocol::wire::{Announcement, BATCH_HEADER_BYTES, BatchHeader, BatchKind};
use zerocopy::IntoBytes;

use super::Identity;
use crate::queue::offer::{Offer, mover_number};

/// What waits in our memory until the receiver has fetched it.
pub(super) struct Exposed {
    pub sequence: u64,
    pub what: Announced,
}

pub(super) enum Announced {
    /// A batch, until it was sent.
    Batch {
        buffer: Option<Buffer>,
        bytes: usize,
        /// Receive slot named by the receiver's clear-to-send, once it came.
        segment: Option<u32>,
    },
    Record(Box<Offer>),
}

impl Exposed {
    /// Whether it holds a buffer of the pool.
    pub fn holds_buffer(&self) -> bool {
        matches!(&self.what, Announced::Batch { buffer, .. } if buffer.is_some())
    }

    /// Whether it needs more of this rank: it was not sent whole.
    pub fn is_needed(&self) -> bool {
        match &self.what {
            Announced::Batch { buffer, .. } => buffer.is_some(),
            Announced::Record(offer) => !offer.is_posted(),
        }
    }

    /// Whether something of it waits for the provider alone.
    pub fn may_post(&self) -> bool {
        match &self.what {
            Announced::Batch {
                buffer, segment, ..
            } => segment.is_some() && buffer.is_some(),
            Announced::Record(offer) => offer.may_post(),
        }
    }
}

/// What is sealed, and waits for credit.
pub(super) enum Ready {
    Batch(Buffer, u32),
    Record(Box<Offer>),
}

impl Ready {
    /// Bytes of it with its header; a record never fits a slot.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Batch(_, bytes) => *bytes as usize,
            Self::Record(_) => usize::MAX,
        }
    }
}

impl Announced {
    /// It was not announced after all.
    pub fn into_ready(self) -> Ready {
        match self {
            Self::Batch {
                buffer: Some(buffer),
                bytes,
                ..
            } => Ready::Batch(buffer, bytes as u32),
            Self::Batch { buffer: None, .. } => unreachable!("it was about to be announced"),
            Self::Record(offer) => Ready::Record(offer),
        }
    }
}

/// Writes the announcement of what is too long for a slot; with it, and its bytes.
pub(super) fn announce(
    ready: Ready,
    mut header: BatchHeader,
    identity: &Identity,
    mut notice: Buffer,
) -> (Announced, Buffer, usize) {
    let mut write = |header: &mut BatchHeader, kind, payload: &[u8]| {
        (header.kind, header.bytes) = (kind, payload.len() as u32);
        header.write(identity.cookie, &mut notice);
        let end = BATCH_HEADER_BYTES + payload.len();
        notice[BATCH_HEADER_BYTES..end].copy_from_slice(payload);
        end
    };
    let (what, end) = match ready {
        Ready::Batch(mut buffer, bytes) => {
            header.kind = BatchKind::Segment;
            header.bytes = bytes - BATCH_HEADER_BYTES as u32;
            header.write(identity.cookie, &mut buffer);
            let remote = buffer.remote();
            let announcement = Announcement {
                address: remote.address.into(),
                key: remote.key.into(),
                bytes: bytes.into(),
                mover: mover_number(identity.mover).into(),
            };
            let end = write(&mut header, BatchKind::Announce, announcement.as_bytes());
            let what = Announced::Batch {
                buffer: Some(buffer),
                bytes: bytes as usize,
                segment: None,
            };
            (what, end)
        }
        Ready::Record(offer) => {
            let announcement = offer.announcement(identity.mover);
            let end = write(&mut header, BatchKind::Record, announcement.as_bytes());
            (Announced::Record(offer), end)
        }
    };
    (what, notice, end)
}
