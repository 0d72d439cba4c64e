//! What can go wrong in a shuffle, one variant per thing that a caller does differently about it.

use std::any::Any;

use trihop_transport::Error as TransportError;
use trihop_transport::SystemError;
use trihop_transport::protocol::wire::BadRun;

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call on a job, shuffle or stream did not do what it says.
///
/// What has ended a job is told by every later call on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No room now; nothing was taken. Poll (and, without a handler, take deliveries), then try
    /// again.
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
    /// What handlers have sent fills the stream's queues and its spill: a send of a handler failed,
    /// and the job ends.
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
    /// There is no memory for a record. From a send: nothing was taken. From any other call: one
    /// that arrived could not be put together or kept, and the job cannot go on.
    #[error("no memory for a record of {bytes} bytes")]
    NoMemory {
        /// Length of the record.
        bytes: usize,
    },
    /// A call that waits or polls, from inside a handler.
    #[error("{0} cannot be called inside a handler or a `take`, nor with an open reservation")]
    Nested(&'static str),
    /// The stream, or the whole job, was shut down.
    #[error("stream `{0}` is shut down")]
    Closed(String),
    /// The ranks do not agree about a stream, or about a collective call.
    #[error(
        "stream `{name}` differs between ranks: {why}; open the same streams and make the same \
         collective calls in the same order on every rank"
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
    /// A handler panicked; the job cannot go on.
    #[error("the handler of `{stream}` panicked: {why}")]
    Handler {
        /// Name of the stream.
        stream: String,
        /// What it said.
        why: String,
    },
    /// What a launcher, or the process's environment, says is impossible or contradicts itself.
    #[error("{key}: {why}")]
    Environment {
        /// Variable or setting as it is spelled there.
        key: String,
        /// What is wrong with it, and the remedy.
        why: String,
    },
    /// A libfabric call failed for good.
    #[error("libfabric {call} failed: {detail} (code {code})")]
    Fabric {
        /// Name of the libfabric call.
        call: &'static str,
        /// Positive libfabric error number.
        code: i32,
        /// libfabric's text for it, and the object concerned.
        detail: String,
    },
    /// No provider of libfabric meets the needs.
    #[error("no usable libfabric provider: {why}")]
    NoProvider {
        /// Each candidate with the reason of its rejection.
        why: String,
    },
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted, on which object, and the remedy where one is known.
        what: String,
        /// The operating system's answer.
        #[source]
        source: SystemError,
    },
    /// The launcher could not tell who we are, or a rank did not arrive.
    #[error("bootstrap ({launcher}): {why}")]
    Bootstrap {
        /// Launcher protocol in use: `pmix`, `pmi1`, `local`, `single` or `custom`.
        launcher: &'static str,
        /// What is missing and from whom.
        why: String,
    },
    /// Another rank runs a library that speaks another version of the wire format.
    #[error(
        "rank {rank} speaks trihop wire version {theirs}, this process speaks {ours}; start one version everywhere"
    )]
    Version {
        /// The other rank.
        rank: u32,
        /// Our wire version.
        ours: u32,
        /// Its wire version.
        theirs: u32,
    },
    /// A rank sent bytes, or wrote shared positions, that cannot be true.
    #[error("rank {rank} sent bytes that are not valid: {why}")]
    BadPeer {
        /// The rank.
        rank: u32,
        /// Which check failed, with the values.
        why: String,
    },
    /// A rank is gone.
    #[error("rank {rank} is gone: {how}")]
    PeerDead {
        /// The rank.
        rank: u32,
        /// How it was noticed.
        how: String,
    },
    /// A link to a rank failed, though nobody says that the rank is gone.
    #[error("the link to rank {rank} failed: {why}")]
    LinkFailed {
        /// The rank.
        rank: u32,
        /// The provider's reason.
        why: String,
    },
    /// A rank lives, but its part of the job has failed: the job cannot go on without it.
    #[error("rank {rank} has failed: {why}")]
    PeerFailed {
        /// The rank.
        rank: u32,
        /// Its error.
        why: String,
    },
    /// Something that this version has no word for.
    #[error("{0}")]
    Other(String),
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Config { key, why } => Self::Environment { key, why },
            TransportError::Fabric { call, code, detail } => Self::Fabric { call, code, detail },
            TransportError::NoProvider { why } => Self::NoProvider { why },
            TransportError::System { what, source } => Self::System { what, source },
            TransportError::Bootstrap { launcher, why } => Self::Bootstrap { launcher, why },
            TransportError::Version { rank, ours, theirs } => Self::Version { rank, ours, theirs },
            TransportError::BadPeer { rank, why } => Self::BadPeer { rank, why },
            TransportError::PeerDead { rank, how } => Self::PeerDead { rank, how },
            TransportError::LinkFailed { rank, why } => Self::LinkFailed { rank, why },
            TransportError::PeerFailed { rank, why } => Self::PeerFailed { rank, why },
            error => Self::Other(error.to_string()),
        }
    }
}

impl Error {
    /// Whether it says what became of a rank.
    pub(crate) fn is_about_peer(&self) -> bool {
        matches!(self, Self::PeerDead { .. } | Self::PeerFailed { .. })
    }

    pub(crate) fn mismatch(name: &str, why: impl Into<String>) -> Self {
        Self::Mismatch {
            name: name.to_owned(),
            why: why.into(),
        }
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
        Self::BadPeer {
            rank,
            why: why.to_string(),
        }
    }

    /// A handler of `stream` panicked with this.
    pub(crate) fn handler(stream: &str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Handler {
            stream: stream.to_owned(),
            why: text.unwrap_or_else(|| "(with something that is no text)".to_owned()),
        }
    }
}
