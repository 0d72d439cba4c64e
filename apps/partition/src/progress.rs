//! How far all ranks are, told to rank 0.

use trihop::{Rank, Shuffle};

use super::exchange::{Desk, kind};
use super::summary::Summary;

/// What rank 0 tells the user; no call of other ranks' fronts is made.
pub trait Front {
    /// All ranks together have read so many of so many bytes, as they are on the disk; of pipes
    /// nobody knows the total, which is exceeded then.
    fn progress(&mut self, done_bytes: u64, total_bytes: u64);

    /// Nothing is read any more.
    fn read(&mut self);

    /// The partitions are there.
    ///
    /// # Errors
    /// Why this could not be told; the job then fails on all ranks, and the partitions stay.
    fn report(&mut self, summary: &Summary) -> Result<(), String>;
}

/// Reports of a rank to rank 0, at most.
const REPORTS: u64 = 64;
/// Bytes between two reports, at least.
const REPORT_BYTES: u64 = 1 << 20;

/// Counts what this rank has read.
pub struct Progress<'a, 'h> {
    shuffle: &'a Shuffle<'h>,
    desk: &'a Desk,
    /// Bytes after which rank 0 hears of them.
    step: u64,
    unreported: u64,
    own: u64,
    total: u64,
    /// Of rank 0.
    front: Option<&'a mut dyn Front>,
}

impl<'a, 'h> Progress<'a, 'h> {
    /// For one of `ranks` ranks that read `total` bytes.
    pub fn new(
        shuffle: &'a Shuffle<'h>,
        desk: &'a Desk,
        rank: Rank,
        front: &'a mut dyn Front,
        total: u64,
        ranks: u32,
    ) -> Self {
        Self {
            shuffle,
            desk,
            step: (total / u64::from(ranks) / REPORTS).max(REPORT_BYTES),
            unreported: 0,
            own: 0,
            total,
            front: (rank == Rank(0)).then_some(front),
        }
    }

    /// Counts bytes in.
    ///
    /// # Errors
    /// The engine's failure.
    pub fn add(&mut self, bytes: u64) -> Result<(), trihop::Error> {
        if let Some(front) = &mut self.front {
            self.own += bytes;
            front.progress(self.own + self.desk.progress.get(), self.total);
            return Ok(());
        }
        self.unreported += bytes;
        if self.unreported >= self.step {
            self.shuffle
                .send(Rank(0), kind::PROGRESS, &self.unreported.to_le_bytes())?;
            self.unreported = 0;
        }
        Ok(())
    }
}

impl Drop for Progress<'_, '_> {
    fn drop(&mut self) {
        if let Some(front) = &mut self.front {
            front.read();
        }
    }
}
