//! The C interface, `include/trihop.h`: opaque handles, a status per call, a sentence per failure.
//!
//! It adds no behaviour of its own. Every function checks its pointers, hands over to a job of
//! either seat behind a boundary that no panic crosses, and turns an [`crate::Error`] into a
//! [`status::trihop_status_t`] and the text that [`status::trihop_last_error`] gives. Comments of
//! public items are the header's.

#![allow(
    non_camel_case_types,
    reason = "types and functions have the names that C programs use"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the comments are those of the header: they say what each pointer must be and which threads may call"
)]

pub mod array;
pub mod channel;
pub mod collective;
pub mod conveyor;
pub mod custom;
pub mod deltafs;
pub mod details;
pub mod guest;
pub mod job;
pub mod log;
pub mod merging;
pub mod minirank;
pub mod options;
pub mod replies;
pub mod seat;
pub mod stats;
pub mod status;
pub mod stream;
pub mod survivors;
pub mod threads;
pub mod topology;

pub(crate) mod argument;
mod callback;
mod dump;
mod sized;
#[cfg(test)]
mod tests;
