//! How far all ranks are, shown by rank 0 on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use trihop::{Rank, Shuffle};

use super::exchange::{Desk, kind};

/// Reports of a rank to rank 0, at most.
const REPORTS: u64 = 64;
/// Bytes between two reports, at least.
const REPORT_BYTES: u64 = 1 << 20;

/// Counts what this rank has read.
pub struct Progress<'a, 'h> {
    rank: Rank,
    shuffle: &'a Shuffle<'h>,
    desk: &'a Desk,
    /// Bytes after which rank 0 hears of them.
    step: u64,
    unreported: u64,
    own: u64,
    /// Of rank 0.
    bar: Option<ProgressBar>,
}

impl<'a, 'h> Progress<'a, 'h> {
    /// For a rank that reads `share` of `total` bytes; without `shown` nobody is told.
    pub fn new(
        shuffle: &'a Shuffle<'h>,
        desk: &'a Desk,
        rank: Rank,
        shown: bool,
        share: u64,
        total: u64,
    ) -> Self {
        let bar = (shown && rank == Rank(0)).then(|| {
            let style = ProgressStyle::with_template(
                "{bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
            );
            ProgressBar::new(total)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        let step = if shown {
            (share / REPORTS).max(REPORT_BYTES)
        } else {
            u64::MAX
        };
        Self {
            rank,
            shuffle,
            desk,
            step,
            unreported: 0,
            own: 0,
            bar,
        }
    }

    /// Counts bytes in.
    ///
    /// # Errors
    /// The engine's failure.
    pub fn add(&mut self, bytes: u64) -> Result<(), trihop::Error> {
        if let Some(bar) = &self.bar {
            self.own += bytes;
            bar.set_position(self.own + self.desk.progress.get());
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

    /// The rank that counts.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}

impl Drop for Progress<'_, '_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
