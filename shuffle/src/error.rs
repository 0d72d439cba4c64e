//! What can go wrong in a shuffle, one variant per thing that a caller does differently about it.

use std::any::Any;
use std::fmt;

use trihop_transport::Error as TransportError;
use trihop_transport::protocol::wire::BadRun;

/// What a misuse is about, by the name that it has.
fn whose(name: &str) -> String {
    match name {
        "" => "the job".to_owned(),
        name => format!("stream `{name}`"),
    }
}

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! declare {
    ($(
        $(#[$about:meta])+
        $name:ident { $($(#[$what:meta])+ $field:ident: $type:ty,)+ },
    )+) => {
        /// Why a call on a job, shuffle or stream did not do what it says.
        ///
        /// What has ended a job is told by every later call on it.
        #[derive(Clone, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        pub enum Error {
            /// No room now, or nothing to take; nothing was taken. Poll (and, without a handler,
            /// take deliveries), then try again.
            #[error(
                "there is no room to send now, or nothing to take; poll, take what has come where no \
                 handler does, and try again"
            )]
            WouldBlock,
            /// A destination outside the job.
            #[error("rank {rank} does not exist in a job of {size} ranks")]
            Rank {
                /// As given.
                rank: u32,
                /// Ranks of the job.
                size: u32,
            },
            /// A record above `max_message_bytes`, or above what its channel holds.
            #[error(
                "a record of {bytes} bytes is above the limit of {limit} bytes; raise `max_message_bytes`, or the \
                 `bytes` of its channel"
            )]
            TooLarge {
                /// Length of the record.
                bytes: usize,
                /// The limit in force.
                limit: usize,
            },
            /// What handlers have sent fills the stream's queues and its spill: a send of a handler
            /// failed, and the job ends.
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
            /// Broadcasts to the elements of an array are kept for a step and the one behind it,
            /// and a step has had more than fit: the job ends.
            #[error(
                "broadcasts to the elements of an array need {bytes} bytes in a step, and memory_bytes allows for \
                 {limit_bytes}: end a step, or fence, before there are so many, or raise `memory_bytes`"
            )]
            BroadcastsFull {
                /// What they need, with the one that was not kept.
                bytes: usize,
                /// What they may take.
                limit_bytes: usize,
            },
            /// An item has come for an element of an array that no rank has: the job ends.
            #[error(
                "rank {rank} has sent an item for element {key} of an array, and no rank has that: the key is wrong, \
                 or the element is gone"
            )]
            NoElement {
                /// Who has sent it, or has sent it on.
                rank: u32,
                /// The key of the element.
                key: u64,
            },
            /// There is no memory for a record. From a send: nothing was taken. From any other
            /// call: one that arrived could not be put together or kept, and the job cannot go on.
            #[error("no memory for a record of {bytes} bytes")]
            NoMemory {
                /// Length of the record.
                bytes: usize,
            },
            /// A call that waits or polls, from inside a handler, or one that waits from what is called
            /// at the end of a step.
            #[error(
                "{0} cannot be called inside a handler, a `take` or a call at the end of a step, nor with an open \
                 reservation"
            )]
            Nested(&'static str),
            /// The stream, or the whole job, was shut down.
            #[error("stream `{0}` is shut down")]
            Closed(String),
            /// A call that makes no sense after those before it: two ends of a step at once, or the
            /// end of none. Nothing was done.
            #[error("{}: {why}", whose(.name))]
            Misuse {
                /// Name of the stream; none where it is about all of the job.
                name: String,
                /// What does not go together, and the remedy.
                why: String,
            },
            /// A call on a channel has taken as long as it may. A send has sent nothing, a get has
            /// taken nothing.
            #[error("{0} has taken as long as it may; give it more time, or see who is to answer it")]
            TimedOut(&'static str),
            /// The first message of a channel is longer than the buffer that it was to be copied
            /// into. Nothing was taken: it is still the first.
            #[error(
                "the first message of the channel has {bytes} bytes, and the buffer has room for {room}; \
                 it stays there: give the call a longer buffer, or get it without one"
            )]
            BufferTooSmall {
                /// Bytes of the message.
                bytes: usize,
                /// Bytes of the buffer.
                room: usize,
            },
            /// A channel was closed, by its owner or as that shuts its channels down.
            #[error("channel {number} of rank {owner} is closed")]
            ChannelClosed {
                /// Its number there.
                number: u32,
                /// The rank that had it.
                owner: u32,
            },
            /// A barrier was aborted, or was reset while this call waited in it.
            #[error("the barrier, channel {number} of rank {owner}, is broken; a reset makes it whole")]
            BarrierBroken {
                /// Its number there.
                number: u32,
                /// The rank that has it.
                owner: u32,
            },
            /// A descriptor that names no channel: not one, of another job, or of one that is gone.
            #[error("{descriptor} names no channel: {why}")]
            NoChannel {
                /// As it was given.
                descriptor: String,
                /// What is wrong with it.
                why: String,
            },
            /// What served a guest has ended, or its job, or a call there has failed for a reason of
            /// its own, such as want of memory. Where it has ended the port is of no use any more, and
            /// what was sent by it and not waited for may be lost: attach at the next server.
            #[error("the server of guests `{server}`: {why}")]
            ServerFailed {
                /// Its name.
                server: String,
                /// What has become of it, or of its job.
                why: String,
            },
            /// A mini-rank that this process does not have, or that was taken before.
            #[error("mini-rank {index}: {why}")]
            MiniRank {
                /// As it was asked for.
                index: u32,
                /// Why it is not to be had.
                why: String,
            },
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
            /// What a launcher, or the process's environment, says is impossible or contradicts
            /// itself.
            #[error("{key}: {why}")]
            Environment {
                /// Variable or setting as it is spelled there.
                key: String,
                /// What is wrong with it, and the remedy.
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
            $($(#[$about])+ $name { $($(#[$what])+ $field: $type,)+ },)+
        }

        /// The sentence that [`Display`](fmt::Display) gives: it is what a `main` shows that returns
        /// an error, and `unwrap`.
        impl fmt::Debug for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl From<TransportError> for Error {
            fn from(error: TransportError) -> Self {
                match error {
                    TransportError::Config { key, why } => Self::Environment { key, why },
                    $(TransportError::$name { $($field,)+ } => Self::$name { $($field,)+ },)+
                }
            }
        }
    };
}

trihop_transport::shared_errors!(declare);

impl Error {
    /// Whether it says what became of a rank.
    pub(crate) fn is_about_peer(&self) -> bool {
        matches!(
            self,
            Self::PeerDead { .. } | Self::PeerFailed { .. } | Self::AgentDead { .. }
        )
    }

    /// The same, where what is said of an endpoint, by its number, is to be said of the rank that
    /// `rank_of` gives for it.
    #[cold]
    pub(crate) fn said_of_rank(mut self, rank_of: impl FnOnce(u32) -> u32) -> Self {
        if let Self::BadPeer { rank, .. } | Self::LinkFailed { rank, .. } = &mut self {
            *rank = rank_of(*rank);
        }
        self
    }

    pub(crate) fn mismatch(name: &str, why: impl Into<String>) -> Self {
        Self::Mismatch {
            name: name.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn no_channel(descriptor: impl Into<String>, why: impl Into<String>) -> Self {
        Self::NoChannel {
            descriptor: descriptor.into(),
            why: why.into(),
        }
    }

    pub(crate) fn server_failed(server: &str, why: impl Into<String>) -> Self {
        Self::ServerFailed {
            server: server.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn misuse(name: &str, why: impl Into<String>) -> Self {
        Self::Misuse {
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
            BadRun::Unkept { bytes, limit } => Self::BroadcastsFull {
                bytes,
                limit_bytes: limit,
            },
            BadRun::Element(key) => Self::NoElement { rank, key },
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
