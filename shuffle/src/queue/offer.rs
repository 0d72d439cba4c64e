//! A long record that a link offers to its other end, which takes it out of the memory that it lies
//! in.

use std::collections::VecDeque;

use trihop_transport::link::{Link, Mover, Peer, PostError};
use trihop_transport::memory::lent::Lender;
use trihop_transport::protocol::tags::{TagClass, token};
use trihop_transport::protocol::wire::{
    Announcement, ClearToSend, PART_UNIT_BYTES, RUN_HEADER_BYTES, RecordAnnouncement,
};
use trihop_transport::ring::Block;

use super::remote::Identity;
use crate::error::Result;

/// The record, in memory that stays as it is until the other end has it.
#[derive(Debug)]
pub(crate) struct Offer {
    memory: Lender<Block>,
    bytes: usize,
    run: [u8; RUN_HEADER_BYTES],
    kind: u32,
    /// Parts that are asked for and have not been posted.
    asked: VecDeque<Part>,
    posted_bytes: usize,
}

/// A part that the other end waits for in a slot.
#[derive(Debug, Clone, Copy)]
struct Part {
    slot: u32,
    from: usize,
    bytes: usize,
}

/// How far what was asked for was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The provider had no room for more.
    Partly,
    /// Some of it had been asked for before: a peer's fault.
    Twice,
}

impl Offer {
    /// A record of so many bytes, with the header of the run that said where it lies.
    pub fn new(
        memory: Lender<Block>,
        bytes: usize,
        run: [u8; RUN_HEADER_BYTES],
        kind: u32,
    ) -> Self {
        Self {
            memory,
            bytes,
            run,
            kind,
            asked: VecDeque::new(),
            posted_bytes: 0,
        }
    }

    /// Bytes of the record.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the other end is told.
    pub fn announcement(&self, mover: Mover) -> RecordAnnouncement {
        let remote = self.memory.remote();
        RecordAnnouncement {
            memory: Announcement {
                address: remote.address.into(),
                key: remote.key.into(),
                bytes: (self.bytes as u32).into(),
                mover: mover_number(mover).into(),
            },
            run: self.run,
            kind: self.kind.into(),
            reserved: 0.into(),
        }
    }

    /// The other end is ready for a part; false where that is none: a peer's fault.
    pub fn ask(&mut self, notice: &ClearToSend) -> bool {
        let bytes = notice.bytes.get() as usize;
        let from = notice.first.get() as usize * PART_UNIT_BYTES;
        let is_part = bytes > 0 && from.saturating_add(bytes) <= self.bytes;
        if is_part {
            let slot = notice.slot.get();
            self.asked.push_back(Part { slot, from, bytes });
        }
        is_part
    }

    /// Whether parts wait for the provider.
    pub fn may_post(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether the other end reads it, as far as is known here: it has not asked for any of it.
    pub fn is_read(&self) -> bool {
        self.posted_bytes == 0 && self.asked.is_empty()
    }

    /// Whether all of it was posted: nobody needs more of this rank for it. What is read by the
    /// other end never is.
    pub fn is_posted(&self) -> bool {
        self.posted_bytes == self.bytes
    }

    /// Whether the system, or the adapter, has all of it.
    pub fn has_left(&self) -> bool {
        self.is_posted() && self.memory.is_home()
    }

    /// Sends what was asked for: how many parts, and how far that is.
    pub fn post(
        &mut self,
        link: &mut dyn Link,
        peer: Peer,
        us: &Identity,
    ) -> Result<(usize, Sent)> {
        let mut posted = 0;
        while let Some(&Part { slot, from, bytes }) = self.asked.front() {
            let Some(buffer) = self.memory.take(from, bytes) else {
                return Ok((posted, Sent::Twice));
            };
            let (tag, mark) = (
                us.tag(TagClass::Segment, slot),
                token(us.stream, TagClass::Sent, 0),
            );
            match link.post_send(peer, tag, buffer, bytes, mark) {
                Ok(()) => {
                    self.asked.pop_front();
                    self.posted_bytes += bytes;
                    posted += 1;
                }
                Err(PostError::WouldBlock(buffer)) => {
                    self.memory.put_back(from, buffer);
                    return Ok((posted, Sent::Partly));
                }
                Err(PostError::Failed(buffer, error)) => {
                    // The job may go on, where that is because somebody is lost.
                    self.memory.put_back(from, buffer);
                    return Err(error.into());
                }
            }
        }
        Ok((posted, Sent::All))
    }
}

/// A mover as announcements name it.
pub(crate) fn mover_number(mover: Mover) -> u32 {
    match mover {
        Mover::Read => 1,
        Mover::Segments => 2,
    }
}
