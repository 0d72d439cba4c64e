//! What ends a partition job early.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use trihop::log::Escaped;

/// A file name, on one line, whatever is in it.
pub(crate) fn shown(path: &Path) -> Escaped<'_> {
    Escaped(path.as_os_str().as_encoded_bytes())
}

/// A line behind the name of its file.
struct Line(u64);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            line => write!(f, ":{line}"),
        }
    }
}

/// Result of every fallible step.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the job failed, with the place that the user must look at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that contradict each other or the output directory.
    #[error("{0}")]
    Usage(String),
    /// A record or file that cannot be taken.
    #[error("{}{}: {why}", shown(file), Line(*line))]
    Input {
        /// File as given on the command line.
        file: PathBuf,
        /// Line where the record starts, counted from 1 as an editor does; 0 in files that have no
        /// lines.
        line: u64,
        /// What is wrong there.
        why: String,
        /// Place in the whole input, which decides whose error is reported: number of the file,
        /// then offset.
        at: (u64, u64),
    },
    /// A partition that cannot be written.
    #[error("{}{}: {why}", shown(file), Line(*line))]
    Output {
        /// Final name of the partition.
        file: PathBuf,
        /// Its line that could not be written; 0 in files that have no lines.
        line: u64,
        /// The operating system's answer.
        why: String,
    },
    /// The operating system refused something that is no input.
    #[error("{what}: {source}")]
    System {
        /// What was attempted, on which object.
        what: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The engine, or a peer that is gone.
    #[error(transparent)]
    Engine(#[from] trihop::Error),
    /// The report cannot be written.
    #[error("the partitions are whole, but {0}")]
    Unwritten(String),
    /// Records in and out differ.
    #[error("{0}")]
    Lost(String),
}

impl Error {
    /// An operating-system error with what was attempted.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// Exit status of a process that ends by this error: 2 for options, 1 for everything else.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Usage(_) | Self::Engine(trihop::Error::Config { .. }) => 2,
            _ => 1,
        }
    }
}
