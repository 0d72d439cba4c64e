//! A deterministic fabric in one thread: virtual time, seeded delays and reordering, the rules of a
//! real one checked.
//!
//! Messages overtake each other at random (libfabric promises no order that trihop relies on),
//! posts are refused at random as a busy provider does, and a message without a posted receive is
//! counted as a violation of credit.
//!
//! It carries hundreds of thousands of endpoints: what is under way lies in one list for the whole
//! network, by the tick at which it is due, and **pools are backed on demand**: a slot has memory
//! only while a buffer of it is in somebody's hands, out of stores that all endpoints share. A real
//! job registers its pools whole. [`Pool::bytes`](crate::memory::pool::Pool::bytes) says in both
//! cases how much that takes.

mod areas;
mod endpoint;
mod net;
mod parcels;
mod rules;

pub use endpoint::SimLink;
pub use net::{Net, SimOptions};
pub use rules::Rules;
