//! What handlers have sent and no queue had room for: their sends never wait.

use std::collections::VecDeque;

use trihop_transport::topology::Rank;

use super::audience::Audience;

/// Memory comes and goes in chunks of so many bytes, where the bound is not small.
const CHUNK_BYTES: usize = 64 << 10;

/// Memory that one entry takes besides its bytes: twice its size, since the list of entries
/// doubles.
const ENTRY_BYTES: usize = 2 * size_of::<Entry>();

/// After this long without use, chunks that are kept for the next time are given back but one.
const IDLE_NS: u64 = 20_000_000;

/// Runs, and records that travel in no run, in the order in which handlers sent them.
///
/// Invariants: `used_bytes` and the spare chunks are within `limit_bytes`. The bytes of an entry
/// lie in one chunk. Only the first chunk has bytes that are done with, `head` of them, and it has
/// others as well unless the spill is empty.
#[derive(Debug)]
pub(crate) struct Spill {
    entries: VecDeque<Entry>,
    chunks: VecDeque<Vec<u8>>,
    head: usize,
    /// Chunks that are kept for the next time, of `chunk_bytes` each: the kernel would clear every
    /// page of new ones.
    spares: Vec<Vec<u8>>,
    most_spares: usize,
    chunk_bytes: usize,
    used_bytes: usize,
    limit_bytes: usize,
    /// Entries that have left.
    popped: u64,
    /// Since when nothing was spilled, and what had left then; 0 where something was.
    rests_since_ns: u64,
    rests_since: u64,
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
    /// At most `limit_bytes`, bookkeeping included. Allocated as it is needed, and given back, but
    /// for `kept_bytes` only once nothing was spilled for a while.
    pub fn new(limit_bytes: usize, kept_bytes: usize) -> Self {
        let chunk_bytes = CHUNK_BYTES.min(limit_bytes / 16);
        Self {
            entries: VecDeque::new(),
            chunks: VecDeque::new(),
            head: 0,
            spares: Vec::new(),
            most_spares: (kept_bytes / chunk_bytes.max(1)).max(1),
            chunk_bytes,
            used_bytes: 0,
            limit_bytes,
            popped: 0,
            rests_since_ns: 0,
            rests_since: 0,
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

    /// Adds the frame of a run.
    ///
    /// # Errors
    /// No room or no memory, with nothing added.
    pub fn push_run(&mut self, target: Rank, frame: &[u8]) -> Result<(), Full> {
        self.push(What::Run { target }, frame.len(), |chunk| {
            chunk.extend_from_slice(frame);
        })
    }

    /// As [`Spill::push_run`], of `bytes` that `write` fills in.
    ///
    /// # Errors
    /// As that.
    pub fn push_run_with(
        &mut self,
        target: Rank,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Full> {
        self.push(What::Run { target }, bytes, |chunk| {
            let start = chunk.len();
            chunk.resize(start + bytes, 0);
            write(&mut chunk[start..]);
        })
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
        self.push(What::Record { audience, kind }, payload.len(), |chunk| {
            chunk.extend_from_slice(payload);
        })
    }

    /// Adds an entry whose `bytes` `append` adds to a chunk with room for them.
    fn push(
        &mut self,
        what: What,
        bytes: usize,
        append: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Full> {
        let length = u32::try_from(bytes).map_err(|_| Full)?;
        let fits = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() >= bytes;
        let more = match self.chunks.back() {
            Some(chunk) if fits(chunk) => 0,
            _ => bytes.max(self.chunk_bytes),
        };
        if self.used_bytes + more + ENTRY_BYTES > self.limit_bytes {
            return Err(Full);
        }
        self.entries.try_reserve(1).map_err(|_| Full)?;
        if more > 0 {
            let chunk = self.new_chunk(more)?;
            self.used_bytes += chunk.capacity();
            self.chunks.push_back(chunk);
        }
        // What this entry takes may be that of a spare chunk.
        self.drop_spares(ENTRY_BYTES);
        let chunk = self.chunks.back_mut().ok_or(Full)?;
        append(chunk);
        self.entries.push_back(Entry {
            what,
            bytes: length,
        });
        self.used_bytes += ENTRY_BYTES;
        Ok(())
    }

    /// An empty chunk of `bytes` at least.
    fn new_chunk(&mut self, bytes: usize) -> Result<Vec<u8>, Full> {
        if bytes <= self.chunk_bytes
            && let Some(spare) = self.spares.pop()
        {
            return Ok(spare);
        }
        self.drop_spares(bytes + ENTRY_BYTES);
        let mut chunk = Vec::new();
        chunk.try_reserve_exact(bytes).map_err(|_| Full)?;
        Ok(chunk)
    }

    /// Gives spare chunks back until there is room for so many bytes more.
    #[inline]
    fn drop_spares(&mut self, bytes: usize) {
        while self.used_bytes + self.spare_bytes() + bytes > self.limit_bytes
            && self.spares.pop().is_some()
        {}
    }

    fn spare_bytes(&self) -> usize {
        self.spares.len() * self.chunk_bytes
    }

    /// Whether nothing waits, and no chunk is kept that would go back.
    #[inline]
    pub fn rests(&self) -> bool {
        self.is_empty() && self.spares.len() <= 1
    }

    /// Looks once a round whether the spill rests: then chunks that are kept go back, all but one.
    pub fn rest(&mut self, now_ns: u64) {
        if self.spares.len() <= 1 {
            return;
        }
        if !self.is_empty() || self.rests_since != self.popped {
            (self.rests_since_ns, self.rests_since) = (0, self.popped);
        } else if self.rests_since_ns == 0 {
            self.rests_since_ns = now_ns.max(1);
        } else if now_ns.saturating_sub(self.rests_since_ns) >= IDLE_NS {
            self.rests_since_ns = 0;
            self.spares.truncate(1);
        }
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
        let is_kept = self.spares.len() < self.most_spares;
        if is_kept && chunk.capacity() == self.chunk_bytes {
            chunk.clear();
            self.spares.push(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::audience::BroadcastTo;

    fn push(spill: &mut Spill, target: u32, bytes: usize) -> Result<(), Full> {
        spill.push_run_with(Rank(target), bytes, |space| space.fill(target as u8))
    }

    #[test]
    fn a_spill_is_a_queue_that_gives_its_memory_back() {
        let mut spill = Spill::new(1 << 20, 0);
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

    /// Fills a spill with chunks and empties it again.
    fn come_and_go(spill: &mut Spill, chunks: usize) {
        let entries = chunks * CHUNK_BYTES / 8192;
        (0..entries).for_each(|_| push(spill, 1, 8192).unwrap());
        (0..entries).for_each(|_| spill.pop());
        assert!(spill.is_empty());
    }

    #[test]
    fn chunks_are_kept_while_a_spill_is_used_and_given_back_when_it_rests() {
        let mut spill = Spill::new(16 << 20, 4 * CHUNK_BYTES);
        come_and_go(&mut spill, 9);
        assert_eq!((spill.spares.len(), spill.used_bytes()), (4, 0));
        // It is empty whenever somebody looks, and used all the time.
        for look in 1..10 {
            spill.rest(look * IDLE_NS);
            come_and_go(&mut spill, 3);
            assert_eq!(spill.spares.len(), 4);
        }
        spill.rest(10 * IDLE_NS);
        spill.rest(11 * IDLE_NS);
        spill.rest(12 * IDLE_NS - 1);
        assert_eq!(spill.spares.len(), 4, "it has not rested for long");
        spill.rest(12 * IDLE_NS);
        assert_eq!(spill.spares.len(), 1);
    }

    #[test]
    fn spare_chunks_make_room_for_what_needs_it() {
        let limit = 64 * CHUNK_BYTES;
        let mut spill = Spill::new(limit, limit);
        come_and_go(&mut spill, 40);
        assert_eq!(spill.spares.len(), 40);
        let within = |spill: &Spill| spill.used_bytes() + spill.spare_bytes() <= limit;
        let long = vec![7; 50 * CHUNK_BYTES];
        let audience = Audience::Many(BroadcastTo::Others);
        spill.push_record(audience, 7, &long).unwrap();
        assert!(within(&spill) && (1..40).contains(&spill.spares.len()));
        while push(&mut spill, 1, 100).is_ok() {
            assert!(within(&spill));
        }
        assert!(spill.used_bytes() > limit - 2 * CHUNK_BYTES);
    }

    #[test]
    fn what_is_above_the_bound_is_refused_and_changes_nothing() {
        for limit in [1024, 5000, 64 << 10, 1 << 20] {
            let mut spill = Spill::new(limit, limit);
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
