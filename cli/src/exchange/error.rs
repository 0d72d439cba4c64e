//! What ends an exchange early.

/// Result of every fallible step of `trihop exchange`.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the exchange failed on this rank.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that contradict each other or the job.
    #[error("{0}")]
    Usage(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was attempted, on which object.
        what: &'static str,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
    /// What `--topo` asks for cannot be written.
    #[error(transparent)]
    Maps(#[from] crate::topo::TopoError),
    /// The engine, or a peer that is gone.
    #[error(transparent)]
    Engine(#[from] trihop::Error),
}

impl Error {
    /// Exit status of a process that ends by this error: 2 for options, 1 for everything else.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Usage(_)
            | Self::Engine(
                trihop::Error::Config { .. }
                | trihop::Error::Environment { .. }
                | trihop::Error::Mismatch { .. },
            ) => 2,
            Self::Maps(error) => error.exit_status(),
            Self::System { .. } | Self::Engine(_) => 1,
        }
    }
}
