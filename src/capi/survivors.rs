//! Jobs that go on without ranks that are gone.

use super::argument;
use super::job::trihop_job_t;
use super::seat::either;
use super::status::{guard, trihop_status_t};

/// From now on the job goes on without ranks, or nodes, that are gone: else the first of them ends
/// it for all. Collective over all ranks, as a barrier; for ranks that have an agent, which relay
/// for nobody else.
///
/// From then on what a call wants of a rank that is gone fails with the error that names it, as
/// `TRIHOP_ERR_PEER_DEAD`: a send to it, and a call on a channel of its. So does what all ranks take
/// part in: a fence, a round, a collective, the opening of a stream, `trihop_finalize`. All else
/// goes on, as if that rank were silent; `trihop_lost` says who is gone. What had left the rank
/// arrives, and what is on its way to it is dropped (`dropped_runs`). Where an agent is gone, or a
/// node, so are for other nodes its ranks, and for these those of all other nodes
/// (`TRIHOP_ERR_AGENT_DEAD`, or `TRIHOP_ERR_PEER_DEAD`). The 65th loss ends the job.
///
/// Fails with `TRIHOP_ERR_MISUSE` for ranks without an agent.
/// Threads: as `trihop_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_survive(job: *const trihop_job_t) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended.
        let job = unsafe { argument::handle(job, "job")? };
        Ok(either!(&job.job, job => job.survive())?)
    })
}

/// Ranks that this one cannot reach any more, ascending: those that are gone since
/// `trihop_survive`, and those behind an agent that is. `count` becomes their number, and `ranks`
/// has the first `most` of them; it may be null where `most` is 0.
///
/// Fails as every call where the job has failed.
/// Threads: as the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_lost(
    job: *const trihop_job_t,
    ranks: *mut u32,
    most: usize,
    count: *mut usize,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or a job that has not ended, for `most` numbers that
        // nobody else uses, and for a place for one.
        let (job, ranks, count) = unsafe {
            (
                argument::handle(job, "job")?,
                argument::slice_mut(ranks, most, "ranks")?,
                argument::place(count, "count")?,
            )
        };
        let lost = either!(&job.job, job => job.lost())?;
        for (place, rank) in ranks.iter_mut().zip(&lost) {
            *place = rank.0;
        }
        *count = lost.len();
        Ok(())
    })
}
