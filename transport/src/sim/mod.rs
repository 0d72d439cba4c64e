//! A deterministic fabric in one thread: virtual time, seeded delays and reordering, the rules of a real one checked.
//!
//! Messages overtake each other at random (libfabric promises no order that trihop relies on), posts are refused at
//! random as a busy provider does, and a message without a posted receive is counted as a violation of credit.

mod net;

pub use net::{Net, SimLink, SimOptions};
