//! Whole jobs of real engines in one thread: what is simulated is the fabric between nodes, the
//! processes and the clock.
//!
//! A [`Simulation`] holds one engine per rank: the same code, wire format, credits, lanes and
//! collectives as in a real job. Ranks take turns; one that has nothing to do sleeps as a real one
//! parks, and wakes when a lane rings its bell or the fabric has something for it, so that a lost
//! wake-up shows as a job that stands still. Time is virtual, every decision comes from the seed,
//! and a run replays exactly.
//!
//! Jobs of hundreds of thousands of ranks fit one machine. What differs from a real job there:
//! receive and send pools have memory only while they are used (see [`trihop_transport::sim`]); a
//! real job registers them whole. [`Simulation::bound`] says what that is.
//!
//! ```
//! use trihop_shuffle::simulation::{Simulation, SimulationOptions};
//! use trihop_shuffle::{Rank, Topology};
//! use std::cell::Cell;
//!
//! let topology = Topology::from_node_sizes(&[2; 8], Rank(0)).unwrap();
//! let sum = Cell::new(0u64);
//! let mut job = Simulation::new(&topology, SimulationOptions::default(), |_, message, _| {
//!     sum.set(sum.get() + u64::from(message.kind));
//! })?;
//! for source in 0..16 {
//!     job.try_send(Rank(source), Rank(15 - source), source, b"hello")?;
//! }
//! job.fence()?;
//! assert_eq!(sum.get(), (0..16).sum());
//! # Ok::<(), trihop_shuffle::simulation::SimulationError>(())
//! ```

mod awake;
mod error;
mod fabric;
mod job;
mod member;
mod membership;
mod message;
mod options;
mod scheduler;

pub use awake::Schedule;
pub use error::SimulationError;
#[cfg(test)]
pub(crate) use fabric::{Fabric, TICK_NS};
pub use job::Simulation;
#[cfg(test)]
pub(crate) use member::Member;
#[cfg(test)]
pub(crate) use member::SECRET;
pub use message::SimulationOutbox;
pub use options::SimulationOptions;
