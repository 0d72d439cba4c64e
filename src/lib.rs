//! Many-to-many messaging for HPC jobs: any rank sends small messages to any rank, over shared-memory rings inside a
//! node and libfabric between nodes, with memory per rank that follows local ranks + nodes / local ranks.
//!
//! It never drops a message silently, never lets a queue grow without bound, never waits in a `try_*` call, and in
//! steady state neither allocates, nor locks, nor enters the kernel per message.
//!
//! Start with [`Job`]; send byte records with [`Shuffle`] and typed items with [`Stream`].

#[cfg(feature = "capi")]
pub mod capi;

pub use trihop_shuffle::{
    BroadcastTo, BytesOutbox, CounterRow, DetailedStats, DumpOutput, Error, Inline, Item, ItemOutbox, Items,
    ItemsBuilder, Job, Message, NodeId, OptionRow, Options, Outbox, QueueStats, Queues, Rank, Reduce,
    Reservation, Result, Seat, Shuffle, ShuffleBuilder, StageStats, Stats, Stream, StreamBuilder,
    StreamOptions, Topology, over, route, simulation, threaded,
};

/// Sizes of a stream's parts, for streams that are unlike any other, and for tests.
#[doc(hidden)]
pub use trihop_shuffle::{Shares, ShimOptions};

#[cfg(feature = "log")]
pub mod log;

/// The layer below: links, rings, memory, bootstrap. [`Options`] name a [`transport::bootstrap::Launcher`] and a
/// [`transport::link::Mover`], and [`Job::start_with`] takes a [`transport::bootstrap::Custom`].
pub use trihop_transport as transport;

/// Version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Cargo profile that built this library.
pub const BUILD_PROFILE: &str = env!("BUILD_PROFILE_OF_TRIHOP");

/// The README's snippet compiles and runs as a job of one.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
