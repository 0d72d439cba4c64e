//! How bytes move: shared-memory rings inside a node, libfabric between nodes.
//!
//! No routing and no batching policy live here; those belong to `trihop-shuffle`.

pub mod at_exit;
pub mod bootstrap;
pub mod cores;
pub mod error;
pub mod fabric;
pub mod home;
pub mod link;
pub mod masked;
pub mod memory;
pub mod nics;
pub mod notice;
pub mod park;
pub mod protocol;
pub mod random;
pub mod ring;
pub mod secret;
#[cfg(test)]
mod seed;
pub mod sim;
pub mod sync;
pub mod topology;
pub mod watch;
#[cfg(test)]
mod watchdog;

pub use error::{Error, Result, SystemError};
