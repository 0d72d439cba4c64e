//! What rank 0 shows: how far the job is, and the report.

use trihop_partition::{Front, Summary};

use crate::output;
use crate::progress::{Position, Progress};

/// Standard output for the report; progress goes where somebody may look.
pub struct Terminal {
    json: bool,
    progress: Progress,
}

impl Terminal {
    /// A report as one JSON object, or as a table.
    pub fn new(json: bool) -> Self {
        Self {
            json,
            progress: Progress::new("trihop partition"),
        }
    }
}

impl Front for Terminal {
    fn progress(&mut self, done_bytes: u64, total_bytes: u64) {
        self.progress.tell(Position {
            done_bytes,
            total_bytes,
        });
    }

    fn read(&mut self) {
        self.progress.end();
    }

    fn report(&mut self, summary: &Summary) -> Result<(), String> {
        let text = if self.json {
            output::json_for_terminals(&summary.json()) + "\n"
        } else {
            summary.table()
        };
        output::write(&text).map_err(|unwritten| unwritten.to_string())
    }
}
