//! What moves where, and when it is done: three-hop routing, batching, credits, delivery, flushes and fences.
//!
//! A [`Job`] is one rank's part of a job; a [`Shuffle`] (bytes) or [`Stream`] (typed items) of it sends small messages
//! to any rank. Records are FIFO per source, target and stream, and arrive exactly once or an error names the peer.
//! Nothing is dropped silently, no queue is without a bound, `try_*` never waits, and in steady state nothing is
//! allocated, locked or asked of the kernel per message.

mod broadcast;
mod collective;
pub mod config;
mod deliver;
mod dump;
mod endpoint;
mod engine;
mod error;
mod flush;
mod handle;
mod job;
mod node;
mod queue;
mod reservation;
pub mod route;
mod shuffle;
mod signal;
pub mod simulation;
mod stats;
mod stream;
pub mod threaded;

#[cfg(test)]
mod conformance;
#[cfg(test)]
#[path = "../../transport/src/seed.rs"]
mod seed;

pub use broadcast::BroadcastTo;
pub use collective::Reduce;
pub use config::{Options, StreamOptions};
pub use deliver::{Message, Outbox};
pub use error::{Error, Result};
pub use flush::Queues;
pub use job::Job;
pub use reservation::Reservation;
pub use shuffle::{Shuffle, ShuffleBuilder};
pub use signal::DumpOutput;
pub use stats::{ClassStats, DetailedStats, QueueStats, Stats};
pub use stream::{Item, ItemOutbox, NotSent, Stream, StreamBuilder};
pub use trihop_transport::topology::{NodeId, Rank, Topology};
