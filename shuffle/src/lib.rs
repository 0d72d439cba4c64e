//! What moves where, and when it is done: three-hop routing, batching, credits, delivery, flushes and fences.
//!
//! A [`Job`] is one rank's part of a job; a [`Shuffle`] (bytes) or [`Stream`] (typed items) of it sends small messages
//! to any rank. Records are FIFO per source, target and stream, and arrive exactly once or an error names the peer.
//! Nothing is dropped silently, no queue is without a bound, `try_*` never waits, and in steady state nothing is
//! allocated, locked or asked of the kernel per message.

pub mod config;
mod deliver;
mod dump;
mod endpoint;
mod engine;
mod error;
mod face;
mod job;
mod node;
mod queue;
pub mod route;
mod signal;
pub mod simulation;
mod stats;
mod terminate;
pub mod threaded;

#[cfg(test)]
mod conformance;
#[cfg(test)]
#[path = "../../transport/src/seed.rs"]
mod seed;

pub use config::{OptionRow, Options, StreamOptions};
#[doc(hidden)]
pub use config::{Shares, ShimOptions};
pub use deliver::Message;
pub use engine::outbox::Outbox;
pub use error::{Error, Result};
pub use face::job::Job;
pub use face::reservation::Reservation;
pub use face::shuffle::{Shuffle, ShuffleBuilder};
pub use face::stream::{Item, ItemOutbox, Stream, StreamBuilder};
pub use queue::audience::BroadcastTo;
pub use signal::DumpOutput;
pub use stats::{ClassStats, CounterRow, DetailedStats, QueueStats, Stats};
pub use terminate::collective::Reduce;
pub use terminate::flush::Queues;
pub use trihop_transport::topology::{NodeId, Rank, Topology};
