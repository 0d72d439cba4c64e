//! Safe libfabric: one reliable-datagram endpoint with tagged messages and remote reads, as a
//! [`Link`].
//!
//! Never allocates while messages flow, never waits inside a call (a full provider is
//! [`PostError::WouldBlock`](crate::link::PostError::WouldBlock)), never lets a buffer go while the
//! provider may still touch it. Progress is manual whatever a provider claims: only [`Link::poll`]
//! moves bytes.
//!
//! `info` finds and ranks the candidates, `adapters` takes the closest of those that are as good,
//! `quirks` is the one table of what is special about a
//! provider, `endpoint` is the link itself.

mod adapters;
mod address;
mod av;
mod choice;
mod cq;
mod domain;
mod endpoint;
mod error;
mod handle;
mod info;
mod listener;
mod mr;
mod opened;
mod operations;
pub mod quirks;
pub mod settings;
mod signals;
mod survey;

pub use adapters::Adapters;
pub use choice::Choice;
pub use signals::restore_signals;
pub use survey::{Candidate, CandidateLimits, Survey, Verdict};

use crate::error::Result;
use crate::link::Link;

/// Opens one endpoint over the best provider that `choice` allows.
///
/// The first call of a process asks libfabric what there is, which takes up to two seconds on some
/// systems; the answer is kept.
///
/// # Errors
/// [`Error::NoProvider`](crate::Error::NoProvider) with each candidate's reason, or what libfabric
/// refused.
pub fn open(choice: &Choice) -> Result<Box<dyn Link>> {
    let selected = info::select(choice)?;
    Ok(Box::new(endpoint::Endpoint::open(selected, choice)?))
}

/// Lists every candidate in libfabric's order, with what [`open`] would take and why not the
/// others.
///
/// # Errors
/// When libfabric cannot be asked at all.
pub fn survey(choice: &Choice) -> Result<Survey> {
    survey::survey(choice)
}
