//! Sans-I/O state machines of the wire: headers, credits, eager and rendezvous passage, link
//! sequence.
//!
//! Nothing here knows a socket, a thread, a clock or memory that a network adapter touches: events
//! go in, decisions come out, so that the same code runs in production, in the simulation and under
//! property tests.

pub mod control;
pub mod credit;
pub mod eager;
pub mod rendezvous;
pub mod sequence;
pub mod tags;
pub mod wire;
