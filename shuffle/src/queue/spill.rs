//! What handlers have sent and no queue had room for: their sends never wait.

use std::collections::VecDeque;

use trihop_transport::topology::Rank;

use super::audience::Audience;

/// Memory comes and goes in chunks of so many bytes, where the bound is not small.
const CHUNK_BYTES: usize = 64 << 10;

/// Memory that one entry takes besides its bytes: twice its size, since the list of entries
/// doubles.
const ENTRY_BYTES: usize = 2 * size_of::<Entry>();

/// Runs, and records that travel in no run, in the order in which handlers sent them.
///
/// Invariants: `used_bytes + spare <= limit_bytes`. The bytes of an entry lie in one chunk. Only
/// the first chunk has bytes that are done with, `head` of them, and it has others as well unless
/// the spill is empty.
#[derive(Debug)]
pub(crate) struct Spill {
    entries: VecDeque<Entry>,
    chunks: VecDeque<Vec<u8>>,
    head: usize,
    /// A chunk that is kept for the next time.
    spare: Option<Vec<u8>>,
    chunk_bytes: usize,
    used_bytes: usize,
    limit_bytes: usize,
    /// Entries that have left.
    popped: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    what: What,
    bytes: u32,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// The frame of a run.
    Run { target: Rank },
    /// A record, its kind, and whom it is for.
    Record { audience: Audience, kind: u32 },
}

/// What waits in a spill.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spilled<'a> {
    /// The frame of a run.
    Run { target: Rank, frame: &'a [u8] },
    /// A record that travels in no run: a long one, or a broadcast.
    Record {
        audience: Audience,
        kind: u32,
        payload: &'a [u8],
    },
}

/// There is no room, or no memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Spill {
    /// At most `limit_bytes`, bookkeeping included. Allocated as it is needed, and given back.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            chunks: VecDeque::new(),
            head: 0,
            spare: None,
            chunk_bytes: CHUNK_BYTES.min(limit_bytes / 16),
            used_bytes: 0,
            limit_bytes,
            popped: 0,
        }
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Bytes that may be in use.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Runs and records that wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Runs and records that have left since the start.
    pub fn popped(&self) -> u64 {
        self.popped
    }

    /// Adds the frame of a run, of `bytes`, which `write` fills in.
    ///
    /// # Errors
    /// No room or no memory, with nothing added.
    pub fn push_run(
        &mut self,
        target: Rank,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Full> {
        self.push(What::Run { target }, bytes, write)
    }

    /// Adds a record that travels in no run.
    ///
    /// # Errors
    /// As [`Spill::push_run`].
    pub fn push_record(
        &mut self,
        audience: Audience,
        kind: u32,
        payload: &[u8],
    ) -> Result<(), Full> {
        self.push(What::Record { audience, kind }, payload.len(), |space| {
            space.copy_from_slice(payload);
        })
    }

    fn push(
        &mut self,
        what: What,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Full> {
        let length = u32::try_from(bytes).map_err(|_| Full)?;
        let fits = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() >= bytes;
        let more = match self.chunks.back() {
            Some(chunk) if fits(chunk) => 0,
            _ => bytes.max(self.chunk_bytes),
        };
        let spare = self.spare.as_ref().map_or(0, Vec::capacity);
        let takes_spare = more > 0 && more <= spare;
        let kept = if takes_spare { 0 } else { spare };
        if self.used_bytes + kept + more + ENTRY_BYTES > self.limit_bytes {
            return Err(Full);
        }
        self.entries.try_reserve(1).map_err(|_| Full)?;
        if more > 0 {
            let mut chunk = match takes_spare {
                true => self.spare.take().unwrap_or_default(),
                false => Vec::new(),
            };
            chunk.try_reserve_exact(more).map_err(|_| Full)?;
            self.used_bytes += chunk.capacity();
            self.chunks.push_back(chunk);
        }
        let chunk = self.chunks.back_mut().ok_or(Full)?;
        let start = chunk.len();
        chunk.resize(start + bytes, 0);
        write(&mut chunk[start..]);
        self.entries.push_back(Entry {
            what,
            bytes: length,
        });
        self.used_bytes += ENTRY_BYTES;
        Ok(())
    }

    /// Whom the oldest run or record is for, where that is one rank.
    pub fn front_target(&self) -> Option<Rank> {
        match self.entries.front()?.what {
            What::Run { target } => Some(target),
            What::Record {
                audience: Audience::One(target),
                ..
            } => Some(target),
            What::Record { .. } => None,
        }
    }

    /// The oldest run or record.
    pub fn front(&self) -> Option<Spilled<'_>> {
        let entry = self.entries.front()?;
        let bytes = self
            .chunks
            .front()?
            .get(self.head..self.head + entry.bytes as usize)?;
        Some(match entry.what {
            What::Run { target } => Spilled::Run {
                target,
                frame: bytes,
            },
            What::Record { audience, kind } => Spilled::Record {
                audience,
                kind,
                payload: bytes,
            },
        })
    }

    /// Removes the oldest run or record.
    pub fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else {
            return;
        };
        self.popped += 1;
        self.used_bytes -= ENTRY_BYTES;
        self.head += entry.bytes as usize;
        // The next entry lies behind it, or in the next chunk.
        let is_done = |chunk: &Vec<u8>| self.head == chunk.len();
        if self.chunks.front().is_some_and(is_done)
            && (self.chunks.len() > 1 || self.entries.is_empty())
        {
            self.head = 0;
            if let Some(chunk) = self.chunks.pop_front() {
                self.used_bytes -= chunk.capacity();
                self.keep(chunk);
            }
        }
        if self.entries.is_empty() && self.entries.capacity() > 1024 {
            self.entries = VecDeque::new();
        }
    }

    fn keep(&mut self, mut chunk: Vec<u8>) {
        if self.spare.is_none() && chunk.capacity() == self.chunk_bytes {
            chunk.clear();
            self.spare = Some(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::audience::BroadcastTo;

    fn push(spill: &mut Spill, target: u32, bytes: usize) -> Result<(), Full> {
        spill.push_run(Rank(target), bytes, |space| space.fill(target as u8))
    }

    #[test]
    fn a_spill_is_a_queue_that_gives_its_memory_back() {
        let mut spill = Spill::new(1 << 20);
        let lengths = |round: u32| (0..400).map(move |n| ((n * 37 + round) % 1500) as usize);
        for round in 0..3 {
            for (number, bytes) in lengths(round).enumerate() {
                push(&mut spill, number as u32, bytes).unwrap();
            }
            let audience = Audience::Many(BroadcastTo::Others);
            spill.push_record(audience, 7, &[9; 200_000]).unwrap();
            assert!(spill.used_bytes() > 400_000 && spill.len() == 401);
            for (number, bytes) in lengths(round).enumerate() {
                let frame = vec![number as u8; bytes];
                let target = Rank(number as u32);
                assert_eq!(spill.front_target(), Some(target));
                assert_eq!(
                    spill.front(),
                    Some(Spilled::Run {
                        target,
                        frame: &frame
                    })
                );
                spill.pop();
            }
            let payload = &[9; 200_000][..];
            assert_eq!(spill.front_target(), None);
            assert_eq!(
                spill.front(),
                Some(Spilled::Record {
                    audience,
                    kind: 7,
                    payload
                })
            );
            spill.pop();
            assert!(spill.is_empty() && spill.used_bytes() == 0 && spill.front().is_none());
            assert_eq!(spill.popped(), 401 * u64::from(round + 1));
            assert!(spill.chunks.is_empty(), "all but one chunk is given back");
        }
    }

    #[test]
    fn what_is_above_the_bound_is_refused_and_changes_nothing() {
        for limit in [1024, 5000, 64 << 10, 1 << 20] {
            let mut spill = Spill::new(limit);
            assert_eq!(push(&mut spill, 1, limit), Err(Full), "bookkeeping counts");
            let mut taken = 0;
            while push(&mut spill, taken % 256, 100).is_ok() {
                taken += 1;
            }
            assert!(
                spill.used_bytes() <= limit && taken as usize >= limit / 400,
                "{taken} of {limit}"
            );
            for number in 0..taken {
                assert_eq!(spill.front_target(), Some(Rank(number % 256)));
                spill.pop();
            }
            assert!(spill.is_empty());
        }
    }
}
