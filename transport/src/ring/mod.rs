//! The lock-free queues inside a node: byte rings with one producer and one consumer, gathered in
//! inboxes.
//!
//! An *inbox* is a shared segment that holds one *lane* per producer. A producer reserves space in
//! its lane, writes a frame in place, commits it, and publishes many frames at once; the consumer
//! looks at frames in place and releases their space in steps. A bitmap says which lanes have news,
//! a doorbell wakes a sleeping side. A lane begins in a nursery of 128 bytes beside its words and
//! takes its ring when it needs more, so that a lane that is hardly used costs hardly anything.
//! Nothing here waits, allocates after creation, takes a lock, or makes a system call unless the
//! other side sleeps.
//!
//! Whatever another process writes into the segment, this process reads no byte outside of it and
//! does not panic: positions and lengths are checked against our own copies, and a violation is
//! [`Corrupt`].
//!
//! The algorithms ([`spsc`], [`bitmap`], [`census`], [`doorbell`], [`layout`]) are generic over
//! where their words live and over their [`Orderings`], so that `loom-tests` checks exactly this
//! code and can weaken one ordering at a time.

pub mod bitmap;
pub mod block;
pub mod census;
pub mod claim;
pub mod doorbell;
pub mod inbox;
pub mod lane;
pub mod layout;
pub mod spsc;
pub mod storage;

pub use block::{Block, BlockArea, BlockPlace, Blocks, PassedBlock};
pub use census::CensusLine;
pub use doorbell::{Bell, Doorbell};
pub use inbox::Inbox;
pub use lane::{Consumer, Producer};
pub use layout::InboxLayout;
pub use spsc::Corrupt;
pub use storage::{Area, LaneStorage, Orderings, Shipped};

#[cfg(test)]
mod tests;
