//! What moves where, and when it is done: three-hop routing, batching, credits, delivery, flushes
//! and fences.
//!
//! A [`Job`] is one rank's part of a job; a [`Shuffle`] (bytes) or [`Stream`] (typed items) of it
//! sends small messages to any rank. Records are FIFO per source, target and stream, and arrive
//! exactly once or an error names the peer. Nothing is dropped silently, no queue is without a
//! bound, `try_*` never waits, and in steady state nothing is allocated, locked or asked of the
//! kernel per message.

pub mod agent;
pub mod config;
mod deliver;
mod dump;
mod endpoint;
mod engine;
mod error;
mod face;
pub mod guest;
mod job;
mod member;
pub mod minirank;
mod node;
pub mod observe;
mod queue;
pub mod route;
mod seat;
mod signal;
pub mod simulation;
mod stats;
mod terminate;
pub mod threaded;
mod trace;

#[cfg(test)]
mod conformance;
#[cfg(test)]
#[path = "../../transport/src/seed.rs"]
mod seed;

pub use config::{MinirankCores, OptionRow, Options, StreamOptions};
#[doc(hidden)]
pub use config::{Shares, ShimOptions};
pub use deliver::{Message, Messages};
pub use engine::contribution::Contributors;
pub use engine::outbox::Outbox;
pub use error::{Error, Result};
pub use face::channel::ChannelLimits;
#[cfg(feature = "postcard")]
pub use face::codec::Postcard;
pub use face::codec::{Codec, Plain};
pub use face::coded::CodedOutbox;
pub use face::conveyor::ConveyorState;
pub use face::merging::{Merging, MergingTable};
pub use face::replies::{Replies, UntypedReplies};
pub use face::state::State;
pub use face::stream::{Item, ItemOutbox};
pub use face::untyped::{Arrival, UntypedOutbox};
#[doc(hidden)] // for the C interface
pub use queue::window::PushWindow;
pub use seat::{Inline, Seat};

/// What applications hold, over any [`Seat`].
pub mod over {
    pub use crate::face::array::{Array, ArrayBuilder, ArrayOutbox};
    pub use crate::face::channel::{Asked, Channel, Channels, ChannelsBuilder};
    pub use crate::face::coded::{Coded, CodedBuilder};
    pub use crate::face::conveyor::{Conveyor, UntypedConveyor};
    pub use crate::face::job::Job;
    pub use crate::face::reservation::Reservation;
    pub use crate::face::shuffle::{Shuffle, ShuffleBuilder};
    pub use crate::face::step::{FenceOfAll, Step, StepBuilder};
    pub use crate::face::stream::{Stream, StreamBuilder};
    pub use crate::face::untyped::{Untyped, UntypedBuilder};
    pub use crate::threaded::Threaded;
}

/// What calls of a [`Channel`] take and give.
pub mod channel {
    pub use crate::face::channel::{
        Buffer, ChannelKind, Descriptor, Filled, Kept, Poll, Received, Return, Timeout,
    };
}

/// One rank's part of a job, on the thread that started it.
///
/// What handlers change and the program reads is a [`State`]. `'h` is how long handlers may borrow:
/// what they borrow is declared before the job.
///
/// ```no_run
/// use trihop_shuffle::{Job, Options, Rank, State};
///
/// let job = Job::start(Options::from_env()?)?;
/// let heard = State::new(0);
/// let shuffle = job
///     .shuffle("greetings")
///     .handler_with(&heard, |heard, _message, _outbox| *heard += 1)
///     .open()?;
/// for rank in 0..job.size() {
///     shuffle.send(Rank(rank), 0, b"hello")?;
/// }
/// shuffle.fence()?;
/// assert_eq!(heard.with(|heard| *heard), job.size());
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub type Job<'h> = over::Job<Inline<'h>>;

/// A shuffle of byte records of a [`Job`].
pub type Shuffle<'h> = over::Shuffle<Inline<'h>>;

/// Opens a [`Shuffle`].
pub type ShuffleBuilder<'h> = over::ShuffleBuilder<Inline<'h>>;

/// A stream of items of one type of a [`Job`].
pub type Stream<'h, T> = over::Stream<T, Inline<'h>>;

/// Opens a [`Stream`].
pub type StreamBuilder<'h, T> = over::StreamBuilder<T, Inline<'h>>;

/// A stream of values of a [`Job`] that a [`Codec`] writes and reads.
pub type Coded<'h, V, C> = over::Coded<V, C, Inline<'h>>;

/// Opens a [`Coded`] stream.
pub type CodedBuilder<'h, V, C> = over::CodedBuilder<V, C, Inline<'h>>;

/// The channels of a [`Job`] on this rank.
pub type Channels<'h> = over::Channels<Inline<'h>>;

/// A port of a channel of a [`Job`].
pub type Channel<'h> = over::Channel<Inline<'h>>;

/// Elements with keys of a [`Job`], to which items are sent by key.
pub type Array<'h, E, T, C> = over::Array<E, T, C, Inline<'h>>;

/// Opens an [`Array`].
pub type ArrayBuilder<'h, E, T, C> = over::ArrayBuilder<E, T, C, Inline<'h>>;

/// What the handler of an [`Array`] gets to send with.
pub type ArrayOutbox<'a, 'h, E, T, C> = over::ArrayOutbox<'a, E, T, C, Inline<'h>>;

/// A stream of a [`Job`] by push, pull and advance.
pub type Conveyor<'h, T> = over::Conveyor<T, Inline<'h>>;

/// A stream of a [`Job`] whose items have a size that is known at run time only, or none.
pub type Untyped<'h> = over::Untyped<Inline<'h>>;

/// Opens an [`Untyped`] stream.
pub type UntypedBuilder<'h> = over::UntypedBuilder<Inline<'h>>;

/// Space for a record of a [`Shuffle`], to be filled in place.
pub type Reservation<'a, 'h> = over::Reservation<'a, Inline<'h>>;

pub use queue::audience::BroadcastTo;
pub use signal::DumpOutput;
pub use stats::{CounterRow, DetailedStats, QueueStats, StageStats, Stats};
pub use terminate::End;
pub use terminate::flush::Queues;
pub use terminate::reduce::{Number, Reduce};
pub use trihop_transport::topology::{NodeId, Rank, Topology};
