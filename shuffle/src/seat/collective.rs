//! Calls in which all ranks take part.

use super::Seating;
use crate::endpoint::Channel;
use crate::error::{Error, Result};
use crate::terminate::collective::{Operation, Reduce};

/// A collective on a channel of the job's.
pub(super) fn collective(
    seat: &impl Seating,
    channel: Channel,
    operation: Operation,
    contribution: &[u8],
) -> Result<Vec<u8>> {
    let what = "a collective";
    seat.may_wait(what)?;
    let ticket = seat.with(what, |job| {
        Ok(job
            .engine
            .begin_collective(channel, operation, contribution))
    })?;
    let result = seat.wait(what, |job| Ok(job.engine.collectives.result(ticket)))?;
    pass_on_results(seat);
    Ok(result)
}

/// Sends what a collective that is complete here still has to tell others: the caller may not come
/// back for long. What ends the job meanwhile is no failure of the call that is complete: the next
/// one says so.
pub(super) fn pass_on_results(seat: &impl Seating) {
    let _ = seat.wait("results of a collective to leave", |job| {
        Ok(job.engine.has_passed_on_results().then_some(()))
    });
}

/// See [`crate::Job::barrier`].
pub(crate) fn barrier(seat: &impl Seating) -> Result<()> {
    collective(seat, Channel::Calls, Operation::Reduce(Reduce::Sum), &[]).map(|_| ())
}

/// See [`crate::Job::allreduce`].
pub(crate) fn allreduce(
    seat: &impl Seating,
    channel: Channel,
    values: &mut [u64],
    reduce: Reduce,
) -> Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let result = collective(seat, channel, Operation::Reduce(reduce), &bytes)?;
    if result.len() != bytes.len() {
        let why = format!(
            "{} values here, {} elsewhere",
            values.len(),
            result.len() / 8
        );
        return Err(Error::Mismatch {
            name: "allreduce".into(),
            why,
        });
    }
    for (value, bytes) in values.iter_mut().zip(result.chunks_exact(8)) {
        *value = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
    }
    Ok(())
}

/// See [`crate::Job::allgather`].
pub(crate) fn allgather(seat: &impl Seating, contribution: &[u8]) -> Result<Vec<Vec<u8>>> {
    let what = "a gathering";
    let size = seat.with(what, |job| Ok(job.engine.topology.size()))?;
    let most = (u32::MAX / size).saturating_sub(16) as usize;
    if contribution.len() > most {
        let bytes = contribution.len();
        let why =
            format!("{bytes} bytes are more than the {most} that each of {size} ranks may gather");
        return Err(Error::config("contribution", why));
    }
    let result = collective(seat, Channel::Calls, Operation::Gather, contribution)?;
    seat.with(what, |job| {
        Ok(job.engine.collectives.contributions(&result))
    })
}

/// Smallest of all ranks' values.
pub(super) fn agree<const N: usize>(
    seat: &impl Seating,
    channel: Channel,
    mut values: [u64; N],
) -> Result<[u64; N]> {
    allreduce(seat, channel, &mut values, Reduce::Min)?;
    Ok(values)
}
