//! What rank 0 shows: a bar on a terminal, and the report.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use trihop_partition::{Front, Summary};

use crate::output;

/// Standard output for the report, standard error for how far the job is.
pub struct Terminal {
    json: bool,
    bar: Option<ProgressBar>,
}

impl Terminal {
    /// A report as one JSON object, or as a table.
    pub fn new(json: bool) -> Self {
        Self { json, bar: None }
    }
}

impl Front for Terminal {
    fn is_watched(&self) -> bool {
        std::io::stderr().is_terminal()
    }

    fn progress(&mut self, read_bytes: u64, total_bytes: u64) {
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "{bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
            );
            ProgressBar::new(total_bytes)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_position(read_bytes);
    }

    fn read(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
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
