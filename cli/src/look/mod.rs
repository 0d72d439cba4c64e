//! `trihop top` and `trihop dump`: jobs as they show themselves to others on their machine.
//!
//! Nothing is asked of the jobs: their endpoints write pages of shared memory by themselves, also
//! while they hang (`trihop::observe`). `choice` says which are meant, `rates` compares two looks,
//! `table` prints for people, `prometheus` for its scraper, `top` does it again and again.

mod choice;
mod dump;
mod prometheus;
mod rates;
mod table;
mod top;

use std::io;

use crate::output;

pub use dump::{DumpArgs, run as dump};
pub use table::short;
pub use top::{TopArgs, run as top};

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// A process that shows nothing, or that may not be looked into.
    #[error("process {process}: {source}")]
    Process {
        /// Which one.
        process: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No job has a number that begins so.
    #[error(
        "no job on this machine has a number that begins with `{0}`; `trihop top --once` lists them"
    )]
    NoJob(String),
    /// The processes of this machine cannot be listed.
    #[error("/proc cannot be read: {0}")]
    Processes(#[source] io::Error),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] output::Unwritten),
    /// The address to answer at.
    #[error("listening at {address}: {source}")]
    Listen {
        /// Which one.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The address to answer at is not this machine's own.
    #[error(
        "{0} is not a loopback address: whoever reaches the port reads the counters, so that is only \
         answered to this machine; name a port of 127.0.0.1"
    )]
    NotLoopback(std::net::SocketAddr),
}

impl LookError {
    /// Exit status of a process that ends by this error.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::NotLoopback(_) => 2,
            _ => 1,
        }
    }
}
