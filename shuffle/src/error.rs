//! What can go wrong in a shuffle, one variant per thing that a caller does differently about it.

use trihop_transport::protocol::wire::BadRun;

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call on a job, shuffle or stream did not do what it says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No room now; nothing was taken. Poll (and, without a handler, take deliveries), then try again.
    #[error("the queue towards this rank is full; poll and try again")]
    WouldBlock,
    /// A destination outside the job.
    #[error("rank {rank} does not exist in a job of {size} ranks")]
    Rank {
        /// As given.
        rank: u32,
        /// Ranks of the job.
        size: u32,
    },
    /// A record above `max_message_bytes`.
    #[error("a record of {bytes} bytes is above the limit of {limit} bytes; raise `max_message_bytes`")]
    TooLarge {
        /// Length of the record.
        bytes: usize,
        /// The limit in force.
        limit: usize,
    },
    /// What handlers have sent fills the stream's queues and its spill: a send of a handler failed, and the job ends.
    #[error(
        "handlers of `{stream}` have sent more than its queues and its spill hold: {bytes} bytes find no room, {used_bytes} \
         of {limit_bytes} bytes of spill are in use (spill_bytes). Let handlers send less for each message, let other \
         ranks handle faster, or raise `spill_bytes`"
    )]
    SpillFull {
        /// Name of the stream that they send on.
        stream: String,
        /// What found no room: a run, or a record.
        bytes: usize,
        /// In use of the spill.
        used_bytes: usize,
        /// The spill's bound, `spill_bytes`.
        limit_bytes: usize,
    },
    /// There is no memory for a record. From a send: nothing was taken. From any other call: one that arrived could not be
    /// put together or kept, and the job cannot go on.
    #[error("no memory for a record of {bytes} bytes")]
    NoMemory {
        /// Length of the record.
        bytes: usize,
    },
    /// A call that waits or polls, from inside a handler.
    #[error("{0} cannot be called inside a handler; send through its outbox instead")]
    Nested(&'static str),
    /// The shuffle was shut down.
    #[error("shuffle `{0}` is shut down")]
    Closed(String),
    /// The ranks do not agree about a stream.
    #[error(
        "stream `{name}` differs between ranks: {why}; open the same streams in the same order on every rank"
    )]
    Mismatch {
        /// Name of the stream here.
        name: String,
        /// What differs.
        why: String,
    },
    /// An option that is unknown, impossible, or contradicts another.
    #[error("option {key}: {why}")]
    Config {
        /// Option as spelled.
        key: String,
        /// What is wrong with it and what is possible.
        why: String,
    },
    /// A handler panicked on its delivery thread; the job cannot go on.
    #[error("the handler of `{stream}` panicked: {why}")]
    Handler {
        /// Name of the stream.
        stream: String,
        /// What it said.
        why: String,
    },
    /// What has ended progress, on whichever thread of a threaded job; every later call on its job says so.
    #[error(transparent)]
    Stopped(std::sync::Arc<Error>),
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] trihop_transport::Error),
}

impl Error {
    /// The error itself, also where another thread met it.
    pub fn root(&self) -> &Self {
        match self {
            Self::Stopped(error) => error.root(),
            other => other,
        }
    }

    /// Whether it says what became of a rank.
    pub(crate) fn is_about_peer(&self) -> bool {
        use trihop_transport::Error as Transport;
        matches!(
            self.root(),
            Self::Transport(Transport::PeerDead { .. } | Transport::PeerFailed { .. })
        )
    }

    pub(crate) fn config(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Config {
            key: key.into(),
            why: why.into(),
        }
    }

    /// A run of `rank` that could not be taken: its fault, unless there is no memory here.
    pub(crate) fn bad_run(rank: u32, why: BadRun) -> Self {
        match why {
            BadRun::NoMemory(bytes) => Self::NoMemory { bytes },
            why => Self::bad_peer(rank, why),
        }
    }

    pub(crate) fn bad_peer(rank: u32, why: impl ToString) -> Self {
        Self::Transport(trihop_transport::Error::BadPeer {
            rank,
            why: why.to_string(),
        })
    }
}
