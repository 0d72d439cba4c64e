//! Logs: what this process records, in how much detail, and where it goes.
//!
//! The library's own messages are `tracing` events; [`install`] takes them, once per process, and
//! writes each as one line to standard error, to a file, to a ring in memory that a core dump
//! shows, and to a callback. Programs that have a `tracing` subscriber of their own leave this
//! module alone. Nothing is logged on the path of a message.
//!
//! ```
//! use trihop::log::{self, Filter, Level};
//!
//! let mut options = log::Options::default();
//! options.all.record = "info,fabric=debug".parse()?;
//! options.all.stderr = Filter::uniform(Level::Error);
//! log::install(options)?;
//! assert!(log::install(log::Options::default()).is_err(), "once per process");
//! # Ok::<(), trihop::Error>(())
//! ```

mod escape;
mod filter;
mod ring;
mod sinks;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tracing_subscriber::layer::SubscriberExt;
use trihop_transport::bootstrap;

pub use escape::{Escaped, printable};
pub use filter::{Facility, Filter, Level};
pub use ring::recent_in;

use self::sinks::{Layer, Sinks};
use crate::{Error, Result};

/// Takes level, facility and text of each message. It may be called by several threads at once;
/// what it logs itself goes everywhere but to it. It makes no call of a job: this thread may be
/// inside of one.
pub type Callback = Box<dyn Fn(Level, Facility, &str) + Send + Sync>;

/// What is recorded and where it goes.
///
/// Ranks below `detailed_ranks` use `detailed`, the others, and every process that does not know
/// its rank yet, use `all`.
pub struct Options {
    /// Detail on every rank.
    pub all: Detail,
    /// Number of first ranks that use `detailed` instead. Default 0.
    pub detailed_ranks: u32,
    /// Detail on ranks below `detailed_ranks`.
    pub detailed: Detail,
    /// File that lines are appended to, as soon as the rank is known; up to 64 KiB of what came
    /// before are kept for it. Default none.
    pub file: Option<PathBuf>,
    /// Each rank has a file of its own: `.` and the rank are added to the name. Default true;
    /// otherwise all ranks append to one file, a line at a time.
    pub file_per_rank: bool,
    /// Memory in bytes for the lines that [`recent`] gives back. Default 65,536, at most 1 GiB, 0
    /// for none.
    pub ring_bytes: usize,
    /// This process's rank, where it is known already; else, and with more right, [`set_rank`]
    /// tells it.
    pub rank: Option<u32>,
    /// Takes everything that is recorded. Default none.
    pub callback: Option<Callback>,
}

/// How much a rank logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// What is recorded at all: kept in memory, written to the file, given to the callback. Default
    /// `warn`.
    pub record: Filter,
    /// What of it goes to standard error. Default everything.
    pub stderr: Filter,
    /// Whether it goes to the file, where there is one. Default true.
    pub file: bool,
}

impl Default for Detail {
    fn default() -> Self {
        Self {
            record: Filter::default(),
            stderr: Filter::uniform(Level::Trace),
            file: true,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            all: Detail::default(),
            detailed_ranks: 0,
            detailed: Detail::default(),
            file: None,
            file_per_rank: true,
            ring_bytes: 64 << 10,
            rank: None,
            callback: None,
        }
    }
}

impl Options {
    /// Largest `ring_bytes`.
    pub const RING_BYTES_MAX: usize = 1 << 30;

    /// Defaults, with `TRIHOP_LOG` as what all ranks record, `TRIHOP_LOG_FILE` as the file, and the
    /// rank from what the launcher left in the environment.
    ///
    /// # Errors
    /// [`Error::Config`] when `TRIHOP_LOG` is no [`Filter`]; it says where and what is possible.
    pub fn from_env() -> Result<Self> {
        let mut options = Self::default();
        if let Some(text) = std::env::var_os("TRIHOP_LOG").filter(|t| !t.is_empty()) {
            let parsed = text
                .to_str()
                .ok_or_else(|| "the value is not UTF-8".to_owned())
                .and_then(|text| options.all.record.parse_over(text));
            options.all.record = parsed.map_err(|why| config("TRIHOP_LOG", why))?;
        }
        options.file = std::env::var_os("TRIHOP_LOG_FILE")
            .filter(|t| !t.is_empty())
            .map(PathBuf::from);
        options.rank = bootstrap::environment_rank();
        Ok(options)
    }

    fn check(&self) -> Result<()> {
        if self.ring_bytes > Self::RING_BYTES_MAX {
            let why = format!("{} bytes are above the 1 GiB possible", self.ring_bytes);
            return Err(config("ring_bytes", why));
        }
        Ok(())
    }

    fn detail(&self, rank: Option<u32>) -> &Detail {
        match rank {
            Some(rank) if rank < self.detailed_ranks => &self.detailed,
            _ => &self.all,
        }
    }
}

static INSTALLED: OnceLock<Arc<Sinks>> = OnceLock::new();

/// What [`set_rank`] said last. Held while logs are installed, so that they hear of a rank that is
/// told meanwhile.
static RANK: Mutex<Option<u32>> = Mutex::new(None);

/// Takes the logs of this process from now on. Once per process; what a job says before goes
/// nowhere.
///
/// # Errors
/// [`Error::Config`] when it was called before, when the program has another `tracing` subscriber,
/// or for an impossible option; [`Error::System`] when the file cannot be opened.
pub fn install(mut options: Options) -> Result<()> {
    options.check()?;
    let rank = RANK.lock().unwrap_or_else(PoisonError::into_inner);
    if INSTALLED.get().is_some() {
        let why = "logs are installed already; call `log::install` once per process";
        return Err(config("log", why));
    }
    options.rank = rank.or(options.rank);
    let sinks = Arc::new(Sinks::open(options)?);
    let subscriber = tracing_subscriber::registry().with(Layer::new(Arc::clone(&sinks)));
    tracing::subscriber::set_global_default(subscriber).map_err(|_| {
        let why =
            "this process has a `tracing` subscriber already, which takes the logs; install only one of them";
        config("log", why)
    })?;
    // Only one call gets past the two checks above, so this one is the first to set it.
    let _ = INSTALLED.set(sinks);
    Ok(())
}

/// Tells the logs this process's rank: chooses the detail, opens the rank's file. Logs that are
/// installed later hear of it then.
///
/// # Errors
/// [`Error::System`] when the file cannot be opened; everything else is logged as before.
pub fn set_rank(rank: u32) -> Result<()> {
    let mut known = RANK.lock().unwrap_or_else(PoisonError::into_inner);
    *known = Some(rank);
    match INSTALLED.get() {
        Some(sinks) => sinks.set_rank(rank),
        None => Ok(()),
    }
}

/// [`set_rank`], where logs that fail are no reason for the job to end: they are told of it.
#[cfg(feature = "capi")]
pub(crate) fn set_rank_or_warn(rank: u32) {
    if let Err(error) = set_rank(rank) {
        tracing::warn!(%error, "the logs of this rank");
    }
}

/// Ends the logs of this process: nothing is recorded any more, and nothing goes anywhere.
#[cfg(feature = "capi")]
pub(crate) fn turn_off() {
    if let Some(sinks) = INSTALLED.get() {
        sinks.turn_off();
    }
}

/// Whether the logs were ended.
#[cfg(feature = "capi")]
pub(crate) fn is_off() -> bool {
    INSTALLED.get().is_some_and(|sinks| sinks.is_off())
}

/// Puts lines that somebody asked for into the log, whatever the filters let through: into the
/// file, or where there is none into memory, and to the callback. Never to standard error. Nothing
/// where no logs are installed.
#[cfg(feature = "capi")]
pub(crate) fn keep(lines: &str) {
    if let Some(sinks) = INSTALLED.get() {
        lines.lines().for_each(|line| sinks.keep(line));
    }
}

/// The last lines that were recorded, oldest first, as far as `ring_bytes` holds them; empty where
/// no logs are installed.
pub fn recent() -> String {
    INSTALLED
        .get()
        .map(|sinks| sinks.recent())
        .unwrap_or_default()
}

fn config(key: &str, why: impl Into<String>) -> Error {
    Error::Config {
        key: key.to_owned(),
        why: why.into(),
    }
}

#[cfg(test)]
mod tests;
