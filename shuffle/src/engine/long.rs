//! Records that are longer than a frame: cut into fragments that travel as runs of their own, one
//! record at a time.

use trihop_transport::protocol::wire::{
    FRAGMENT_HEADER_BYTES, FragmentHeader, RUN_HEADER_BYTES, RunHeader, align8, paint, run_flags,
};
use trihop_transport::topology::Rank;
use zerocopy::IntoBytes;

use super::queues::Queues;
use crate::error::{Error, Result};
use crate::queue::{Input, long_buffers};
use crate::route::Stage;

/// A record that has not left completely.
struct Large {
    target: Rank,
    /// Those that are to get it after this one.
    others: Targets,
    kind: u32,
    total: usize,
    rest: Rest,
}

/// What has not left of a record.
enum Rest {
    /// From byte `moved` on. Where others are to get the record too, it is all of it.
    Kept { bytes: Vec<u8>, moved: usize },
    /// The last so many bytes. Whoever has this number has them, and goes on with them.
    Lent { left: usize, number: u64 },
}

/// A record of two pieces.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    pub bytes: &'a [u8],
    pub tail: &'a [u8],
}

impl<'a> Record<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, tail: &[] }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() + self.tail.len()
    }

    /// Its last `left` bytes.
    pub fn last(&self, left: usize) -> Self {
        let from = self.len() - left;
        let in_tail = from.saturating_sub(self.bytes.len());
        Self {
            bytes: self.bytes.get(from..).unwrap_or_default(),
            tail: &self.tail[in_tail..],
        }
    }

    /// Its first bytes, as many as fit `into`, of which there are so many.
    fn read(&self, into: &mut [u8]) {
        let (first, rest) = into.split_at_mut(into.len().min(self.bytes.len()));
        first.copy_from_slice(&self.bytes[..first.len()]);
        rest.copy_from_slice(&self.tail[..rest.len()]);
    }
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

    /// The rank, where it is one.
    fn only(mut self) -> Option<Rank> {
        let only = self.next()?;
        self.next().is_none().then_some(only)
    }

    /// None.
    fn none() -> Self {
        Self {
            next: 0,
            end: 0,
            skipped: None,
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
    fn left_bytes(&self) -> usize {
        match &self.rest {
            Rest::Kept { bytes, moved } => bytes.len() - moved,
            Rest::Lent { left, .. } => *left,
        }
    }
}

/// The long record that is being sent, if one is.
pub(crate) struct LongRecords {
    pending: Option<Large>,
    /// This rank.
    source: u32,
    frame_bytes: usize,
    /// A record is an item, which is handed over as a run of its own.
    is_item: bool,
    moved_bytes: u64,
    /// Records that were lent so far.
    lent: u64,
}

impl LongRecords {
    /// None yet; `source` sends them in frames of at most `frame_bytes`, as items or byte records.
    pub fn new(source: u32, frame_bytes: usize, is_item: bool) -> Self {
        Self {
            pending: None,
            source,
            frame_bytes,
            is_item,
            moved_bytes: 0,
            lent: 0,
        }
    }

    /// Whether none is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pending.is_none()
    }

    /// Bytes that have not left towards the rank that gets the record now.
    pub fn left_bytes(&self) -> usize {
        self.pending.as_ref().map_or(0, Large::left_bytes)
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
        let bytes = payload.len();
        let only = targets.only();
        if let Some(target) = only
            && let Some(moved) = self.share(queues, (target, kind), Record::of(payload))
        {
            return Ok(moved > 0);
        }
        // Before anything leaves: a record that has begun must be able to go on.
        let mut rest = long_buffers::take(bytes).map_err(|_| Error::NoMemory { bytes })?;
        let mut begun = false;
        while let Some(target) = targets.next() {
            let (to, record) = ((target, kind), Record::of(payload));
            let done = match only {
                Some(_) => self.cut(queues, to, bytes, record),
                None => self.push(queues, to, bytes, record),
            };
            if done == 0 && !begun {
                long_buffers::keep(rest);
                return Ok(false);
            }
            begun = true;
            if done < bytes {
                let more = { targets }.next().is_some();
                let gone = if more { 0 } else { done };
                rest.extend_from_slice(&payload[gone..]);
                self.pending = Some(Large {
                    target,
                    others: targets,
                    kind,
                    total: bytes,
                    rest: Rest::Kept {
                        bytes: rest,
                        moved: done - gone,
                    },
                });
                return Ok(true);
            }
        }
        long_buffers::keep(rest);
        Ok(true)
    }

    /// As [`LongRecords::send`], to one rank, with the memory of the record, which is taken where
    /// something of it has to wait.
    pub fn send_given(
        &mut self,
        queues: &mut Queues,
        target: Rank,
        kind: u32,
        record: &mut Vec<u8>,
    ) -> bool {
        if self
            .lend(queues, target, kind, Record::of(record))
            .is_none()
        {
            return false;
        }
        let left = self.left_bytes();
        if let Some(large) = &mut self.pending {
            let bytes = std::mem::take(record);
            let moved = bytes.len() - left;
            large.rest = Rest::Kept { bytes, moved };
        }
        true
    }

    /// Takes a record for one rank, while none is left, as far as there is room; the rest stays the
    /// caller's, who [goes on](LongRecords::go_on_lent) with it by the number that this returns
    /// until none is left, or has it [kept](LongRecords::keep_lent). `None` when not even its
    /// beginning has room.
    pub fn lend(
        &mut self,
        queues: &mut Queues,
        target: Rank,
        kind: u32,
        record: Record<'_>,
    ) -> Option<u64> {
        debug_assert!(self.is_empty(), "one record at a time");
        let total = record.len();
        let done = self.push(queues, (target, kind), total, record);
        if done == 0 {
            return None;
        }
        self.lent += 1;
        let (left, number) = (total - done, self.lent);
        if left > 0 {
            self.pending = Some(Large {
                target,
                others: Targets::none(),
                kind,
                total,
                rest: Rest::Lent { left, number },
            });
        }
        Some(number)
    }

    /// Goes on with the record that was lent by this number; the bytes that are left of it.
    pub fn go_on_lent(&mut self, queues: &mut Queues, lent: u64, record: Record<'_>) -> usize {
        let is_it =
            |large: &mut Large| matches!(large.rest, Rest::Lent { number, .. } if number == lent);
        let Some(mut large) = self.pending.take_if(is_it) else {
            return 0;
        };
        let left = large.left_bytes();
        let to = (large.target, large.kind);
        let left = left - self.push(queues, to, large.total, record.last(left));
        if left > 0 {
            large.rest = Rest::Lent { left, number: lent };
            self.pending = Some(large);
        }
        left
    }

    /// Copies what is left of the record that was lent by this number; false where there is no
    /// memory for it.
    pub fn keep_lent(&mut self, lent: u64, record: Record<'_>) -> bool {
        let Some(Large { rest, .. }) = &mut self.pending else {
            return true;
        };
        if let Rest::Lent { left, number } = *rest
            && number == lent
        {
            let Ok(mut bytes) = long_buffers::take(left) else {
                return false;
            };
            let left = record.last(left);
            bytes.extend_from_slice(left.bytes);
            bytes.extend_from_slice(left.tail);
            *rest = Rest::Kept { bytes, moved: 0 };
        }
        true
    }

    /// Goes on with the record; true when none is left.
    pub fn go_on(&mut self, queues: &mut Queues) -> bool {
        let Some(mut large) = self.pending.take() else {
            return true;
        };
        loop {
            let Rest::Kept { bytes, moved } = &mut large.rest else {
                self.pending = Some(large);
                return false;
            };
            let (to, left) = ((large.target, large.kind), Record::of(&bytes[*moved..]));
            *moved += self.push(queues, to, large.total, left);
            if *moved < bytes.len() {
                self.pending = Some(large);
                return false;
            }
            *moved = 0;
            let Some(next) = large.others.next() else {
                if let Rest::Kept { bytes, .. } = large.rest {
                    long_buffers::keep(bytes);
                }
                return true;
            };
            large.target = next;
        }
    }

    /// Sends to one rank as much as there is room for of what is `left` of a record of `total`
    /// bytes. Returns the bytes that left.
    fn push(
        &mut self,
        queues: &mut Queues,
        to: (Rank, u32),
        total: usize,
        left: Record<'_>,
    ) -> usize {
        let begins = left.len() == total;
        let shared = begins.then(|| self.share(queues, to, left)).flatten();
        shared.unwrap_or_else(|| self.cut(queues, to, total, left))
    }

    /// Sends a record in memory that its target has mapped, if there is any for it: the bytes that
    /// left are all, or none where the way to the target is full.
    fn share(
        &mut self,
        queues: &mut Queues,
        (target, kind): (Rank, u32),
        record: Record<'_>,
    ) -> Option<usize> {
        let (bytes, source) = (record.len(), self.source);
        let pushed = if self.is_item {
            // Where it has to be cut on its way, its length would be that of its run.
            if !queues.is_local(target) {
                return None;
            }
            let length = RUN_HEADER_BYTES + align8(bytes);
            let header = RunHeader {
                target: target.0,
                source,
                count: 1,
                flags: 0,
            };
            queues.push_shared(target, kind, length, |space| {
                header.write(length, space);
                let (item, padding) = space[RUN_HEADER_BYTES..].split_at_mut(bytes);
                record.read(item);
                padding.fill(0);
            })
        } else {
            queues.push_shared(target, kind, bytes, |space| record.read(space))
        };
        let moved = pushed.map(|pushed| if pushed { bytes } else { 0 })?;
        self.moved_bytes += moved as u64;
        Some(moved)
    }

    /// Sends to one rank as many fragments as fit of what is `left` of a record of `total` bytes.
    /// Returns the bytes that left.
    fn cut(
        &mut self,
        queues: &mut Queues,
        (target, kind): (Rank, u32),
        total: usize,
        left: Record<'_>,
    ) -> usize {
        let cutting = Cutting {
            at: Stage::SOURCE,
            target,
            source: self.source,
            colour: 0,
            kind,
            total,
            frame_bytes: self.frame_bytes,
            input: Input::APPLICATION,
        };
        let moved = cutting.go_on(queues, left);
        self.moved_bytes += moved as u64;
        moved
    }
}

/// A record that is cut into fragments at a stage.
pub(super) struct Cutting {
    pub at: Stage,
    pub target: Rank,
    pub source: u32,
    /// See [`paint`]; that of what this rank sends is for the queues to say.
    pub colour: usize,
    pub kind: u32,
    pub total: usize,
    pub frame_bytes: usize,
    pub input: Input,
}

impl Cutting {
    /// Adds as many fragments as fit of what is `left` of the record. Returns the bytes that left.
    pub fn go_on(&self, queues: &mut Queues, left: Record<'_>) -> usize {
        let before = left.len();
        let mut left = left;
        while left.len() > 0 {
            let first = left.len() == self.total;
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
                target: self.target.0,
                source: self.source,
                count: u16::from(last && !first),
                flags,
            };
            let write = |space: &mut [u8]| {
                header.write(frame_bytes, space);
                paint(space, self.colour);
                let mut at = RUN_HEADER_BYTES;
                if first {
                    let fragment = FragmentHeader {
                        total: (self.total as u64).into(),
                        kind: self.kind.into(),
                        reserved: 0.into(),
                    };
                    space[at..at + head].copy_from_slice(fragment.as_bytes());
                    at += head;
                }
                left.read(&mut space[at..at + piece]);
                space[at + piece..].fill(0);
            };
            let (at, target, input) = (self.at, self.target, self.input);
            if queues.push_with(at, target, frame_bytes, flags, input, write) != Some(true) {
                break;
            }
            left = left.last(left.len() - piece);
        }
        before - left.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_two_pieces_reads_as_one_wherever_it_is_cut() {
        let whole = *b"0123456789";
        for cut in 0..=whole.len() {
            let (bytes, tail) = whole.split_at(cut);
            let record = Record { bytes, tail };
            for left in 0..=record.len() {
                let last = record.last(left);
                assert_eq!(last.len(), left);
                for count in 0..=left {
                    let mut read = vec![0; count];
                    last.read(&mut read);
                    assert_eq!(read, whole[whole.len() - left..][..count]);
                }
            }
        }
    }
}
