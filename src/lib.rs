//! Many-to-many messaging for HPC jobs: any rank sends small messages to any rank, over
//! shared-memory rings inside a node and libfabric between nodes.
//!
//! ```text
//!      node A                                            node B
//!   SRC --ring--> SRCREP ========= libfabric ========> DSTREP --ring--> DST
//!   ranks of A    represents A towards B    represents B towards A    ranks of B
//! ```
//!
//! A [`Job`] is one rank's part of a job. A [`Shuffle`] of it sends byte records, a [`Stream`]
//! typed items, which arrive as slices:
//!
//! ```
//! use trihop::{Job, Options, Rank, State};
//!
//! let job = Job::start(Options::from_env()?)?;
//! let sum = State::new(0);
//! let numbers = job
//!     .stream::<u64>("numbers")
//!     .handler_with(&sum, |sum, _source, items, _outbox| *sum += items.iter().sum::<u64>())
//!     .open()?;
//! numbers.extend((0..job.size()).map(|rank| (Rank(rank), 1 + u64::from(rank))))?;
//! numbers.fence()?; // all that any rank sent has been handled
//! let expected = u64::from(job.size()) * (1 + u64::from(job.rank().0));
//! assert_eq!(sum.with(|sum| *sum), expected);
//! job.shutdown()?;
//! # Ok::<(), trihop::Error>(())
//! ```
//!
//! Without a launcher, that is a job of one rank; `trihop run -n 4 --nodes 2 -- PROGRAM` makes it
//! one of four. A [`Job`] stays on its thread and makes progress inside its calls; a
//! [`threaded::Job`] is for all threads of a process, and has a thread that forwards while they
//! compute.
//!
//! # Promises
//!
//! - Per source, target and stream, messages arrive in order and exactly once, or an error names
//!   the peer. None is dropped silently.
//! - Every queue has a bound, and the memory of a rank follows local ranks + nodes / local ranks.
//! - `try_*` calls never wait, and neither do sends of handlers. Other calls wait with progress.
//! - In steady state a message costs no allocation and no system call. A lock is taken per
//!   call in jobs with threads, per batch and round in all.
//! - A rank that dies or fails is known to all: their calls end with an error that names it.
//!
//! # Limits
//!
//! - A death ends the job; nothing is sent again.
//! - Handlers may send until `spill_bytes` are used up; then the job ends with
//!   [`Error::SpillFull`].
//! - A record has at most `max_message_bytes`, and so has an item; no item is aligned to more than
//!   8.
//! - Linux, 64 bits. After `fork` the child uses nothing of a job. Nothing is encrypted.
//!
//! [`Options`] has all that can be set; the defaults are meant to be left alone.

#[cfg(feature = "capi")]
pub mod capi;

pub use trihop_shuffle::{
    Array, ArrayBuilder, ArrayOutbox, Arrival, BroadcastTo, Channel, ChannelLimits, Channels,
    Codec, Coded, CodedBuilder, CodedOutbox, Contributors, Conveyor, ConveyorState, CounterRow,
    DetailedStats, DumpOutput, End, Error, Inline, Item, ItemOutbox, Job, Merging, MergingTable,
    Message, Messages, MinirankCores, NodeId, Number, OptionRow, Options, Outbox, Plain,
    QueueStats, Queues, Rank, Reduce, Replies, Reservation, Result, Seat, Shuffle, ShuffleBuilder,
    StageStats, State, Stats, Stream, StreamBuilder, StreamOptions, Topology, Untyped,
    UntypedBuilder, UntypedOutbox, UntypedReplies, agent, channel, guest, minirank, observe, over,
    route, simulation, threaded,
};

#[cfg(feature = "capi")]
use trihop_shuffle::PushWindow;

#[cfg(feature = "postcard")]
pub use trihop_shuffle::Postcard;

/// Sizes of a stream's parts, for streams that are unlike any other, and for tests.
#[doc(hidden)]
pub use trihop_shuffle::{Shares, ShimOptions};

#[cfg(feature = "log")]
pub mod log;

/// The traits by which a type of the program's is an [`Item`], and their derives, which are told
/// where to find it:
///
/// ```
/// use trihop::zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
/// #[zerocopy(crate = "trihop::zerocopy")]
/// #[repr(C)]
/// struct Update {
///     place: u64,
///     value: f64,
/// }
///
/// fn is_item<T: trihop::Item>() {}
/// is_item::<Update>();
/// ```
pub use zerocopy;

/// The layer below: links, rings, memory, bootstrap. [`Options`] name a
/// [`transport::bootstrap::Launcher`] and a [`transport::link::Mover`], and [`Job::start_with`]
/// takes a [`transport::bootstrap::Custom`].
pub use trihop_transport as transport;

/// Version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Cargo profile that built this library.
pub const BUILD_PROFILE: &str = env!("BUILD_PROFILE_OF_TRIHOP");

/// The README's snippet compiles and runs as a job of one.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// As the README's.
#[cfg(doctest)]
#[doc = include_str!("../docs/CHANNELS.md")]
struct ChannelsOfDocs;

/// As the README's.
#[cfg(doctest)]
#[doc = include_str!("../docs/GUESTS.md")]
struct GuestsOfDocs;

/// As the README's.
#[cfg(doctest)]
#[doc = include_str!("../docs/PORTING.md")]
struct PortingOfDocs;
