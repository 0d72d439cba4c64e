//! The start of a job: from a launcher's store to ranks that may send to each other.

use trihop_transport::bootstrap::Bootstrap;

use super::end::arrive;
use super::open::open_system_stream;
use super::{Inline, Seating};
use crate::config::Options;
use crate::error::Result;
use crate::job::JobState;

/// Starts a job on this thread; it may move to another seat afterwards.
pub(crate) fn start<'h>(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Inline<'h>> {
    let seat = Inline::new(JobState::start(options, bootstrap)?)?;
    join(&seat)?;
    Ok(seat)
}

/// Joins the others: from an engine without streams to a job in which all may send.
pub(crate) fn join(seat: &impl Seating) -> Result<()> {
    prepare_to_join(seat)?;
    // The receives of the system stream are posted: only now may anybody send to anybody. Until
    // then nobody needs anybody's progress; a fence on another thread is there to notice a dead
    // neighbour.
    let bootstrap = arrive(seat, take_bootstrap(seat)?, false)?;
    has_joined(seat, bootstrap)
}

/// What an endpoint does by itself before it waits for all.
pub(super) fn prepare_to_join(seat: &impl Seating) -> Result<()> {
    open_system_stream(seat)?;
    // Who dies once this start has ended is to be heard of by all.
    seat.wait("the watches of other nodes", |job| {
        Ok(job.watch_is_settled().then_some(()))
    })
}

pub(super) fn take_bootstrap(seat: &impl Seating) -> Result<Box<dyn Bootstrap>> {
    seat.with("the start", |job| {
        Ok(job
            .bootstrap
            .take()
            .expect("put there by `JobState::start`"))
    })
}

/// All have joined.
pub(super) fn has_joined(seat: &impl Seating, bootstrap: Box<dyn Bootstrap>) -> Result<()> {
    seat.with("the start", |job| {
        job.bootstrap = Some(bootstrap);
        job.begin_lives();
        job.log_started();
        Ok(())
    })
}
