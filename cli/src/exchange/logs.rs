//! What is logged, and where to: options above those of the environment.

use std::path::PathBuf;

use crate::number::whole;
use clap::Args;
use trihop::log::{self, Filter};

/// Logs of a rank.
///
/// Without any of these, TRIHOP_LOG says what goes to standard error, and TRIHOP_LOG_FILE in which
/// files it is too.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogOptions {
    /// What is logged, as in TRIHOP_LOG: a level, or levels by facility (warn,fabric=debug)
    #[arg(short = 'D', long, value_name = "FILTER")]
    log: Option<Filter>,

    /// What ranks up to --log-extra-max log instead
    #[arg(short = 'E', long, value_name = "FILTER")]
    log_extra: Option<Filter>,

    /// Highest rank that logs what --log-extra says; by default the last
    #[arg(short = 'X', long, value_name = "RANK", requires = "log_extra")]
    #[arg(value_parser = whole::<u32>(..))]
    log_extra_max: Option<u32>,

    /// Logs are appended to FILE.RANK too
    #[arg(short = 'F', long, value_name = "FILE")]
    log_file: Option<PathBuf>,

    /// What of it goes to standard error; by default everything
    #[arg(short = 'S', long, value_name = "FILTER")]
    log_stderr: Option<Filter>,

    /// Keeps the last N bytes of logs in memory (65,536); --dump and a rank that gives up show them
    #[arg(short = 'I', long, value_name = "N", value_parser = whole::<usize>(..))]
    log_ring_bytes: Option<usize>,
}

impl LogOptions {
    /// These options over others.
    pub fn over(&self, mut others: log::Options) -> log::Options {
        let own = self.clone();
        others.all.record = own.log.unwrap_or(others.all.record);
        others.all.stderr = own.log_stderr.unwrap_or(others.all.stderr);
        others.file = own.log_file.or(others.file);
        others.ring_bytes = own.log_ring_bytes.unwrap_or(others.ring_bytes);
        if let Some(extra) = own.log_extra {
            others.detailed.record = extra;
            others.detailed.stderr = others.all.stderr;
            others.detailed_ranks = own
                .log_extra_max
                .map_or(u32::MAX, |max| max.saturating_add(1));
        }
        others
    }
}
