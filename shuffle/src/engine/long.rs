//! Records that are longer than a frame: cut into fragments that travel as runs of their own, one
//! record at a time.

use trihop_transport::protocol::wire::{
    FRAGMENT_HEADER_BYTES, FragmentHeader, RUN_HEADER_BYTES, RunHeader, align8, run_flags,
};
use trihop_transport::topology::Rank;
use zerocopy::IntoBytes;

use super::queues::Queues;
use crate::deliver::SPARE_BYTES;
use crate::error::{Error, Result};
use crate::queue::Input;
use crate::queue::spare::Spare;
use crate::route::Stage;

/// A record that has not left completely.
struct Large {
    target: Rank,
    /// Those that are to get it after this one.
    others: Targets,
    kind: u32,
    total: usize,
    /// What had not left when the record was taken (all of it where others are to get it too); the
    /// first `moved` bytes of it have since.
    rest: Vec<u8>,
    moved: usize,
}

/// Ranks that get a record one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Targets {
    next: u32,
    end: u32,
    skipped: Option<u32>,
}

impl Targets {
    /// All ranks of a job of `size`, but for `skipped`.
    pub fn all(size: u32, skipped: Option<u32>) -> Self {
        Self {
            next: 0,
            end: size,
            skipped,
        }
    }

    /// One rank.
    pub fn one(target: Rank) -> Self {
        Self {
            next: target.0,
            end: target.0 + 1,
            skipped: None,
        }
    }
}

impl Iterator for Targets {
    type Item = Rank;

    fn next(&mut self) -> Option<Rank> {
        if self.skipped == Some(self.next) {
            self.next += 1;
        }
        let target = (self.next < self.end).then_some(Rank(self.next));
        self.next += u32::from(target.is_some());
        target
    }
}

impl Large {
    fn left(&self) -> &[u8] {
        &self.rest[self.moved..]
    }

    /// Bytes of the whole record that have left.
    fn done(&self) -> usize {
        self.total - self.left().len()
    }
}

/// The long record that is being sent, if one is.
pub(crate) struct LongRecords {
    pending: Option<Large>,
    /// For the rest of the next one.
    spare: Spare<u8>,
    /// This rank.
    source: u32,
    frame_bytes: usize,
    moved_bytes: u64,
}

impl LongRecords {
    /// None yet; `source` sends them in frames of at most `frame_bytes`.
    pub fn new(source: u32, frame_bytes: usize) -> Self {
        Self {
            pending: None,
            spare: Spare::new(SPARE_BYTES),
            source,
            frame_bytes,
            moved_bytes: 0,
        }
    }

    /// Whether none is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pending.is_none()
    }

    /// Bytes that have not left towards the rank that gets the record now.
    pub fn left_bytes(&self) -> usize {
        self.pending.as_ref().map_or(0, |large| large.left().len())
    }

    /// Bytes that have left since the start.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Takes a record for one rank after the other, while none is left; false when not even its
    /// beginning has room.
    ///
    /// # Errors
    /// No memory for what has to wait of it; nothing was taken then.
    pub fn send(
        &mut self,
        queues: &mut Queues,
        mut targets: Targets,
        kind: u32,
        payload: &[u8],
    ) -> Result<bool> {
        debug_assert!(self.is_empty(), "one record at a time");
        // Before anything leaves: a record that has begun must be able to go on.
        let mut rest = self
            .spare
            .take(payload.len())
            .map_err(|_| Error::NoMemory {
                bytes: payload.len(),
            })?;
        let mut begun = false;
        while let Some(target) = targets.next() {
            let done = self.push(queues, target, kind, payload.len(), 0, payload);
            if done == 0 && !begun {
                self.spare.give_back(rest);
                return Ok(false);
            }
            begun = true;
            if done < payload.len() {
                let more = { targets }.next().is_some();
                let gone = if more { 0 } else { done };
                rest.extend_from_slice(&payload[gone..]);
                self.pending = Some(Large {
                    target,
                    others: targets,
                    kind,
                    total: payload.len(),
                    rest,
                    moved: done - gone,
                });
                return Ok(true);
            }
        }
        self.spare.give_back(rest);
        Ok(true)
    }

    /// Goes on with the record; true when none is left.
    pub fn go_on(&mut self, queues: &mut Queues) -> bool {
        let Some(mut large) = self.pending.take() else {
            return true;
        };
        loop {
            large.moved += self.push(
                queues,
                large.target,
                large.kind,
                large.total,
                large.done(),
                large.left(),
            );
            if !large.left().is_empty() {
                self.pending = Some(large);
                return false;
            }
            let Some(next) = large.others.next() else {
                self.spare.give_back(large.rest);
                return true;
            };
            large.target = next;
            large.moved = 0;
        }
    }

    /// Sends to one rank as many fragments as fit; `data` is the record from byte `done` on.
    /// Returns the bytes that left.
    fn push(
        &mut self,
        queues: &mut Queues,
        target: Rank,
        kind: u32,
        total: usize,
        done: usize,
        data: &[u8],
    ) -> usize {
        let mut left = data;
        while !left.is_empty() {
            let first = done == 0 && left.len() == data.len();
            let head = if first { FRAGMENT_HEADER_BYTES } else { 0 };
            let piece = left.len().min(self.frame_bytes - RUN_HEADER_BYTES - head);
            // Every fragment but the last fills its frame, so that only the last one is padded.
            let last = piece == left.len();
            let flags = if first {
                run_flags::FIRST
            } else if last {
                run_flags::LAST
            } else {
                run_flags::MORE
            };
            // A record needs two fragments at least: its frame did not fit one.
            let piece = if first && last {
                (piece / 2) & !7
            } else {
                piece
            };
            let frame_bytes = RUN_HEADER_BYTES + head + align8(piece);
            let header = RunHeader {
                target: target.0,
                source: self.source,
                count: u16::from(last && !first),
                flags,
            };
            let write = |space: &mut [u8]| {
                header.write(frame_bytes, space);
                let mut at = RUN_HEADER_BYTES;
                if first {
                    let fragment = FragmentHeader {
                        total: (total as u64).into(),
                        kind: kind.into(),
                        reserved: 0.into(),
                    };
                    space[at..at + head].copy_from_slice(fragment.as_bytes());
                    at += head;
                }
                space[at..at + piece].copy_from_slice(&left[..piece]);
                space[at + piece..].fill(0);
            };
            let pushed = queues.push_with(
                Stage::SOURCE,
                target,
                frame_bytes,
                flags,
                Input::APPLICATION,
                write,
            );
            if pushed != Some(true) {
                break;
            }
            left = &left[piece..];
        }
        let moved = data.len() - left.len();
        self.moved_bytes += moved as u64;
        moved
    }
}
