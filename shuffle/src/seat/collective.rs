//! Calls in which all ranks take part.

use std::task::Waker;

use super::Seating;
use super::calls::check_undelivered;
use crate::endpoint::Channel;
use crate::error::{Error, Result};
use crate::job::{JobState, Way};
use crate::terminate::collective::Operation;
use crate::terminate::reduce::{Number, Reduce, bytes_of};
use trihop_transport::topology::Rank;

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
        job.check_whole()?;
        Ok(job
            .engine
            .begin_collective(channel, operation, contribution))
    })?;
    let result = seat.wait(what, |job| {
        let result = job.engine.collectives.result(ticket);
        if result.is_none() {
            job.check_whole()?;
        }
        Ok(result)
    })?;
    pass_on_results(seat);
    Ok(result)
}

/// See [`crate::Job::fence`].
pub(crate) fn fence(seat: &impl Seating) -> Result<()> {
    let what = "a fence of all streams";
    seat.may_wait(what)?;
    seat.with(what, |job| job.begin_fence(Way::Waited))?;
    wait_for_fence(seat)
}

/// See [`crate::Job::start_fence`]; its number.
pub(crate) fn start_fence(seat: &impl Seating) -> Result<u64> {
    seat.with("a fence of all streams", |job| {
        job.begin_fence(Way::Started)
    })
}

/// See [`crate::Job::test_fence`].
pub(crate) fn test_fence(seat: &impl Seating) -> Result<bool> {
    let what = "a test of the fence of all streams";
    let has_moved = seat.progress(what)?;
    let is_over = seat.with(what, JobState::is_fence_over)?;
    seat.give_way(is_over || has_moved);
    if is_over {
        // What others wait for leaves now: the caller may not come back for long.
        seat.progress(what)?;
    }
    Ok(is_over)
}

/// As [`test_fence`], of the fence with this number, which is over too where somebody else has
/// heard so; where it is not over, `waker` is woken when it may be.
pub(crate) fn test_fence_or_wake<S: Seating>(seat: &S, number: u64, waker: &Waker) -> Result<bool> {
    let what = "a fence that is awaited";
    let is_under_way = |job: &mut JobState| {
        job.check_comes(number)?;
        Ok(job.is_fencing(number))
    };
    if !seat.with(what, is_under_way)? {
        return Ok(true);
    }
    if !S::MOVES_ALONE {
        let is_over = seat.one_at_a_time(None, what, || test_fence(seat))?;
        if !is_over {
            // Nothing moves here but in calls: so be asked again.
            waker.wake_by_ref();
        }
        return Ok(is_over);
    }
    // Nobody waits here for who is in another collective call. It may have ended in between.
    let (before, is_over) = seat.with(what, |job| match job.is_fencing(number) {
        true => Ok((job.wake_at_fence(waker), job.is_fence_over()?)),
        false => job.check_comes(number).map(|()| (None, true)),
    })?;
    // The old one goes without the state in use: it may own anything.
    drop(before);
    Ok(is_over)
}

/// See [`crate::Job::wait_fence`].
pub(crate) fn wait_for_fence(seat: &impl Seating) -> Result<()> {
    seat.wait_for_handlers(None, "a fence of all streams", |job| {
        if job.is_fence_over()? {
            return Ok(Some(()));
        }
        let mut streams = job.engine.open_streams();
        streams.try_for_each(|(state, _)| check_undelivered(state))?;
        Ok(None)
    })?;
    pass_on_results(seat);
    Ok(())
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
    collective(seat, Channel::Calls, Operation::SUM, &[]).map(|_| ())
}

/// See [`crate::Job::survive`].
pub(crate) fn survive(seat: &impl Seating) -> Result<()> {
    seat.with("survival", JobState::go_on)?;
    // Who leaves this knows that each node has heard of it.
    barrier(seat)
}

/// See [`crate::minirank::barrier`].
pub(crate) fn barrier_of_process(seat: &impl Seating) -> Result<()> {
    let what = "the ranks of this process, at a barrier";
    seat.may_wait(what)?;
    let all = seat.with(what, |job| {
        let ranks = job.engine.topology.ranks_in_process();
        Ok(job.node.come_to_barrier(ranks))
    })?;
    seat.wait(what, |job| Ok(job.node.have_come(all).then_some(())))
}

/// See [`crate::Job::allreduce`].
pub(crate) fn allreduce<N: Number>(
    seat: &impl Seating,
    channel: Channel,
    values: &mut [N],
    reduce: Reduce,
) -> Result<()> {
    check_suits::<N>(reduce)?;
    let bytes = bytes_of(values.iter().map(|value| value.word()));
    let operation = Operation::Reduce(reduce, N::KIND);
    let result = collective(seat, channel, operation, &bytes)?;
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
        *value = N::of(u64::from_le_bytes(bytes.try_into().expect("chunks of 8")));
    }
    Ok(())
}

fn check_suits<N: Number>(reduce: Reduce) -> Result<()> {
    match reduce.suits(N::KIND) {
        true => Ok(()),
        false => {
            let why = format!(
                "{reduce:?} joins bits, and {} has none to be joined",
                N::KIND
            );
            Err(Error::config("reduce", why))
        }
    }
}

/// See [`crate::Job::exscan`].
pub(crate) fn exscan<N: Number>(
    seat: &impl Seating,
    values: &mut [N],
    reduce: Reduce,
) -> Result<()> {
    check_suits::<N>(reduce)?;
    let rank = seat.with("a scan", |job| Ok(job.engine.topology.rank()))?;
    // What is asked for stands before the values.
    let mut mine = vec![b's', reduce as u8, N::KIND as u8, 0, 0, 0, 0, 0];
    mine.extend(bytes_of(values.iter().map(|value| value.word())));
    let mut all = allgather(seat, &mine)?;
    for (other, theirs) in all.iter_mut().enumerate() {
        if theirs.len() != mine.len() || theirs[..8] != mine[..8] {
            let (here, bytes) = (mine.len(), theirs.len());
            let why = format!(
                "{reduce:?} of {} here ({here} bytes), another call or number of values on rank {other} ({bytes} bytes)",
                N::KIND
            );
            return Err(Error::mismatch("exscan", why));
        }
        theirs.drain(..8);
    }
    for (at, value) in values.iter_mut().enumerate() {
        let words = all[..rank.0 as usize].iter();
        let words = words.map(|theirs| theirs.as_chunks().0[at]);
        let first = reduce.neutral(N::KIND);
        *value = N::of(words.fold(first, |sum, word| {
            reduce.combine(N::KIND, sum, u64::from_le_bytes(word))
        }));
    }
    Ok(())
}

/// Bytes of a broadcast that go at once: a rank keeps a copy for each that it passes them on to.
const PIECE_BYTES: usize = 4 << 20;

/// See [`crate::Job::broadcast`].
pub(crate) fn broadcast(seat: &impl Seating, root: Rank, bytes: &[u8]) -> Result<Vec<u8>> {
    let (rank, size) = seat.with("a broadcast", |job| {
        Ok((job.engine.topology.rank(), job.engine.topology.size()))
    })?;
    let mut result = Vec::new();
    loop {
        let mut contribution = u64::from(root.0).to_le_bytes().to_vec();
        if rank == root {
            let left = &bytes[result.len()..];
            contribution.extend((bytes.len() as u64).to_le_bytes());
            contribution.extend(&left[..left.len().min(PIECE_BYTES)]);
        }
        // A rank that names none takes part all the same: others would wait for it.
        let told = collective(seat, Channel::Calls, Operation::Broadcast, &contribution)?;
        let of_root = told.get(8..).and_then(<[u8]>::split_first_chunk::<8>);
        let Some((all, piece)) = of_root else {
            let rank = root.0;
            return Err(Error::Rank { rank, size });
        };
        result.extend_from_slice(piece);
        if piece.is_empty() || result.len() as u64 >= u64::from_le_bytes(*all) {
            return Ok(result);
        }
    }
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
