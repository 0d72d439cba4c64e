//! The DeltaFS interface, `include/trihop/deltafs/`: the shuffle and nexus by their own names, and
//! the little of mercury and mercury-progressor that their clients touch, by names of ours.
//!
//! A nexus is a [`crate::threaded::Job`], a shuffle is a [`crate::threaded::Shuffle`] of it. What
//! the interface promises and how it differs from the original is said once, in its headers; they
//! are written by hand.

#![allow(
    clippy::disallowed_types,
    reason = "atomics come from `transport::sync`, as they should"
)]

mod hg_return;
mod iter;
mod local_barrier;
mod log_config;
mod lull;
pub mod mercury;
mod mpi_nodes;
pub mod nexus;
mod openings;
mod options;
pub mod progressor;
pub mod shuffle;
mod state_dump;
mod tables;
mod thread_usage;
