//! The end of a job: streams are fenced, everyone is waited for, and the launcher is told. Its
//! fence ends the start too.

use std::time::Instant;

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::masked;

use super::Seating;
use super::collective::{barrier, collective};
use super::park::NAP;
use super::relay;
use crate::endpoint::Channel;
use crate::endpoint::StreamId;
use crate::engine::StreamState;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::job::{JobState, Way};
use crate::node::{Answer, Request};
use crate::terminate::End;
use crate::terminate::collective::Operation;

/// See [`crate::Job::shutdown`].
pub(crate) fn shut_down(seat: &impl Seating) -> Result<()> {
    let what = "shutting down";
    seat.may_wait(what)?;
    seat.with(what, |job| {
        job.check_not_fencing(&what)?;
        let mut streams = job.engine.open_streams();
        streams.try_for_each(|(_, out)| out.check_contributed())
    })?;
    let ids = seat.with(what, |job| Ok(job.engine.open_ids()))?;
    let mut streams: Vec<_> = ids.into_iter().map(|id| (id, None)).collect();
    for at in 0..streams.len() {
        let (ended, later) = streams.split_at_mut(at + 1);
        let (id, untaken) = ended[at];
        end_stream(seat, id, untaken, later)?;
    }
    let alone = any_is_out_of_reach(seat)?;
    let bootstrap = seat.with(what, |job| Ok(job.bootstrap.take()))?;
    let Some(mut bootstrap) = bootstrap else {
        return Ok(());
    };
    if alone {
        end_alone(seat)?;
    } else if bootstrap.fences_on_callers_thread() {
        // Every record of every stream has been delivered, and a barrier's last messages go to
        // ranks one hop away that still wait for them: once they have left, nobody needs this
        // rank's progress. The first barrier has used each of these links both ways, so that none
        // of the second one's waits for a connection.
        barrier(seat)?;
        seat.wait("the end of the job", |job| {
            Ok(job.engine.has_left_results().then_some(()))
        })?;
    }
    set_closing(seat)?;
    // Nobody's memory and addresses go before the launcher says that all have arrived here.
    bootstrap = arrive(seat, bootstrap, alone)?;
    // A rank that leaves from now on does so properly, and the watch says so.
    seat.with(what, |job| {
        job.end_lives();
        Ok(())
    })?;
    if !bootstrap.is_out_of_reach() {
        bootstrap.finalize()?;
    }
    Ok(())
}

/// Waits until all ranks have arrived here: at the launcher, where there is a relay by way of that,
/// unless the launcher cannot be asked (`alone`) and all have, or an agent dies meanwhile that the
/// job can do without.
pub(super) fn arrive(
    seat: &impl Seating,
    bootstrap: Box<dyn Bootstrap>,
    alone: bool,
) -> Result<Box<dyn Bootstrap>> {
    match relay::ask(
        seat,
        "all ranks, at the launcher",
        Request::Arrive { alone },
    )? {
        Some(Answer::Arrived(outcome)) => outcome.map(|()| bootstrap),
        _ if alone => Ok(bootstrap),
        _ if goes_without_agents(seat)? => {
            // The agent was there when all had agreed that it is, and none of them has its answer.
            end_alone(seat)?;
            Ok(bootstrap)
        }
        _ => launchers_fence(seat, bootstrap),
    }
}

fn goes_without_agents(seat: &impl Seating) -> Result<bool> {
    seat.with("shutting down", |job| Ok(job.goes_without_agents()))
}

pub(super) fn set_closing(seat: &impl Seating) -> Result<()> {
    seat.with("shutting down", |job| {
        job.closing = true;
        Ok(())
    })
}

/// Records of a stream that nobody takes any more.
#[derive(Clone, Copy)]
struct Untaken {
    waiting: u64,
    /// As many had been delivered.
    before: u64,
}

impl Untaken {
    /// Gives them up; none where the stream has somebody who hears, or nobody any more.
    fn give_up(state: &mut StreamState) -> Option<Self> {
        let before = state.delivered();
        let waiting = state.give_up_untaken();
        waiting.map(|waiting| Self { waiting, before })
    }

    /// Gives up those of streams that are full: who waits for room there comes to the end of
    /// another only then. Handlers may take from the others.
    fn give_up_full(job: &mut JobState, streams: &mut [(StreamId, Option<Self>)]) -> Result<()> {
        for (id, untaken) in streams {
            let (state, _, _) = job.engine.stream_mut(*id)?;
            if matches!(&state.sink, Sink::Queue(queue) if queue.is_blocked()) {
                *untaken = Self::give_up(state);
                job.bell.ring(); // what waits for room there moves on
            }
        }
        Ok(())
    }
}

/// The last fence of a stream that its handles have not shut down; others end behind it.
fn end_stream(
    seat: &impl Seating,
    id: StreamId,
    untaken: Option<Untaken>,
    later: &mut [(StreamId, Option<Untaken>)],
) -> Result<()> {
    let what = "the last fence of a stream";
    let begun = seat.with(what, |job| {
        let (state, out, _) = job.engine.stream_mut(id)?;
        Ok((!out.closed).then(|| untaken.or_else(|| Untaken::give_up(state))))
    })?;
    let Some(untaken) = begun else {
        return Ok(());
    };
    // What was started is over before, and so is what is called at its end.
    seat.wait(what, |job| {
        Untaken::give_up_full(job, later)?;
        let has_ended = job.has_ended(id)?;
        if !has_ended {
            job.check_whole()?;
        }
        Ok(has_ended.then_some(()))
    })?;
    seat.with(what, |job| job.begin_end(id, End::Fence, Way::Waited))?;
    seat.wait(what, |job| {
        Untaken::give_up_full(job, later)?;
        Ok(job.is_over(id)?.then_some(()))
    })?;
    seat.with(what, |job| {
        let (state, out, _) = job.engine.stream_mut(id)?;
        if let Some(Untaken { waiting, before }) = untaken {
            state.warn_of_lost(waiting + state.delivered() - before);
        }
        out.close();
        job.parked.forget(id.stream);
        let (state, ..) = job.engine.stream_mut(id)?;
        tracing::debug!(
            target: "trihop_shuffle::deliver",
            stream = state.name,
            delivered = state.delivered(),
            "last delivery of a stream"
        );
        Ok(())
    })
}

/// The end of a job whose launcher cannot be asked. Everything has been delivered and all ranks
/// have arrived; a last barrier keeps each here until the results of the first are through. Its
/// own results are relayed by nobody who could be gone: without relays they are one hop long, and a
/// relay stays until all ranks of its node have them ([`relay`]). From now on ranks may be
/// gone at any time, which is no failure of the job any more; what they left behind is still read.
fn end_alone(seat: &impl Seating) -> Result<()> {
    let what = "the last barrier";
    set_closing(seat)?;
    let (deadline, ticket) = seat.with(what, |job| {
        let deadline = Instant::now() + job.options.bootstrap_timeout();
        let sum = Operation::SUM;
        Ok((
            deadline,
            job.engine.begin_collective(Channel::Calls, sum, &[]),
        ))
    })?;
    let waited = seat.wait(what, |job| {
        // Others may have been told by another agent that all have arrived, and have gone.
        let through =
            job.engine.collectives.result(ticket).is_some() || job.is_over_without_agents();
        Ok((through || Instant::now() >= deadline).then_some(()))
    });
    let waited = waited.and_then(|()| {
        seat.wait("the end of the job", |job| {
            let left = job.engine.has_left_results();
            Ok((left || Instant::now() >= deadline).then_some(()))
        })
    });
    if let Err(error) = waited {
        tracing::debug!(%error, "somebody was gone before the last barrier was through");
    }
    Ok(())
}

/// A barrier, which tells whether any rank's launcher is out of reach: then all end without it.
fn any_is_out_of_reach(seat: &impl Seating) -> Result<bool> {
    let here = seat.with("shutting down", |job| {
        let bootstrap = job.bootstrap.as_ref();
        let is_out_of_reach = bootstrap.is_some_and(|launcher| launcher.is_out_of_reach());
        Ok(is_out_of_reach || job.goes_without_agents())
    })?;
    let here = u64::from(here).to_le_bytes();
    let sum = collective(seat, Channel::Calls, Operation::SUM, &here)?;
    Ok(sum.iter().any(|&byte| byte != 0))
}

/// The launcher's fence: with progress where the launcher allows it, else on this thread, where it
/// must not be needed.
pub(super) fn launchers_fence(
    seat: &impl Seating,
    mut bootstrap: Box<dyn Bootstrap>,
) -> Result<Box<dyn Bootstrap>> {
    // One that knows this process alone has nobody to wait for.
    let may_wait = bootstrap.topology().size() > 1;
    if may_wait && !bootstrap.fences_on_callers_thread() {
        return fence_while_progressing(seat, bootstrap);
    }
    let fenced = bootstrap.fence().map_err(Error::from);
    explained(seat, fenced)?;
    Ok(bootstrap)
}

/// See [`JobState::explained`].
fn explained<T>(seat: &impl Seating, outcome: Result<T>) -> Result<T> {
    match outcome {
        Ok(value) => Ok(value),
        failed => seat.with("asking the launcher", |job| job.explained(failed)),
    }
}

/// Runs a launcher's call, which waits, on a thread of its own while this one keeps forwarding.
fn fence_while_progressing(
    seat: &impl Seating,
    mut bootstrap: Box<dyn Bootstrap>,
) -> Result<Box<dyn Bootstrap>> {
    let what = "all ranks, at the launcher";
    let bell = seat.with(what, |job| {
        // The thread rings before it has quite ended, hence naps.
        job.fencing = true;
        Ok(job.bell.clone())
    })?;
    let thread = masked::spawn("trihop-fence", move || {
        let outcome = bootstrap.fence();
        bell.ring();
        (bootstrap, outcome)
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => {
            seat.with(what, |job| {
                job.fencing = false;
                Ok(())
            })?;
            return Err(error.into());
        }
    };
    let waited = seat.wait(what, |_| Ok(thread.is_finished().then_some(())));
    let closing = seat.with(what, |job| {
        job.fencing = false;
        Ok(job.closing)
    });
    // An error here must come out although the launcher may wait for a dead rank for ever: the
    // thread stays behind. Once all ranks have arrived at the end, though, the first may be gone
    // before we hear of it: nobody needs our progress, and only a rank that died before it arrived
    // is an error.
    match waited {
        Err(error) if !closing.unwrap_or(false) || error.is_about_peer() => return Err(error),
        _ => {}
    }
    while !thread.is_finished() {
        // Others of the node may need a relay until they are through, whatever links have failed.
        let has_moved = seat.progress(what).unwrap_or(false);
        seat.with(what, look_after_peers)?;
        if !has_moved {
            std::thread::sleep(NAP);
        }
    }
    let launcher = seat.with(what, |job| Ok(job.launcher))?;
    let (bootstrap, outcome) = thread.join().map_err(|_| {
        let why = "the thread that spoke with the launcher panicked".into();
        Error::from(TransportError::Bootstrap {
            launcher: launcher.name(),
            why,
        })
    })?;
    // The launcher may be the first to notice that a rank has ended.
    explained(seat, outcome.map_err(Error::from))?;
    Ok(bootstrap)
}

fn look_after_peers(job: &mut JobState) -> Result<()> {
    let now_ns = job.now_ns();
    job.look_after_peers(now_ns)
        .map_err(|error| job.fail(error))
}
