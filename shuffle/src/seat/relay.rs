//! The relay of a process: the one thread that owns fabric, launcher and watch, and makes progress
//! for its ranks. It has no application; what it is to do, its ranks ask of it.
//!
//! It sits on the inline seat, as the ranks do: its engine has links and delivers nothing, theirs
//! have none.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::sync::{Flag, thread};

use super::end::{launchers_fence, set_closing};
use super::open::{forget_inboxes, number_for, open_by};
use super::start::{has_joined, prepare_to_join, take_bootstrap};
use super::{Inline, Seating};
use crate::config::StreamOptions;
use crate::endpoint::{Engine, StreamId};
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::job::Begun;
use crate::node::{Answer, Request};

/// Makes a request of the relay of this process and waits for its answer; `None` where this rank
/// has no relay, or has none any more and goes on.
pub(super) fn ask(
    seat: &impl Seating,
    what: &'static str,
    request: Request,
) -> Result<Option<Answer>> {
    let asked = seat.with(what, |job| job.ask_relay(request))?;
    answer(seat, what, asked)
}

/// Waits for the answer to a request, if one was made.
pub(super) fn answer(
    seat: &impl Seating,
    what: &'static str,
    asked: Option<u64>,
) -> Result<Option<Answer>> {
    let Some(number) = asked else {
        return Ok(None);
    };
    seat.wait(what, |job| match job.relays_answer(number)? {
        None if job.goes_without_agents() => Ok(Some(None)),
        None => {
            // It waits for all of its ranks.
            job.check_whole()?;
            Ok(None)
        }
        answer => Ok(Some(answer)),
    })
}

/// Relays until all ranks have arrived at the end of the job.
///
/// # Errors
/// What has ended the job, which the ranks of this process hear of too.
pub(crate) fn relay(seat: Inline<'static>) -> Result<()> {
    let (seat, outcome) = serve(seat);
    if let Err(error) = &outcome
        && !goes_without(&seat)
    {
        // The ranks hear of it by the board, or, where they only wait for an answer, by that.
        seat.look(|job| job.give_up(error.clone()));
    }
    seat.ended(outcome.is_err());
    outcome
}

fn serve(seat: Inline<'static>) -> (Inline<'static>, Result<()>) {
    let bootstrap = match start(&seat) {
        Ok(bootstrap) => bootstrap,
        Err(error) => return (seat, Err(error)),
    };
    let (seat, fenced) = fence(seat, bootstrap);
    let followed = told(&seat, fenced).and_then(|bootstrap| {
        has_joined(&seat, bootstrap)?;
        let alone = follow(&seat)?;
        Ok((prepare_to_end(&seat)?, alone))
    });
    let (seat, fenced) = match followed {
        Ok((bootstrap, false)) => fence(seat, bootstrap),
        Ok((bootstrap, true)) => {
            let outlasted = outlast_node(&seat);
            if let Err(error) = outlasted {
                tracing::debug!(%error, "somebody was gone before the last barrier was through");
            }
            (seat, Ok(bootstrap))
        }
        Err(error) => return (seat, Err(error)),
    };
    let ended = fenced.and_then(|bootstrap| end(&seat, bootstrap));
    if ended.is_err() && goes_without(&seat) {
        return (seat, ended);
    }
    let ended = told(&seat, ended);
    (seat, ended)
}

/// Whether its ranks end without it, since another agent of their node is gone: what it ends with
/// is nothing to them.
fn goes_without(seat: &Inline<'_>) -> bool {
    seat.look(|job| job.goes_without_agents())
        .unwrap_or_default()
}

/// Until all ranks of this process are ready to join.
fn start(seat: &Inline<'_>) -> Result<Box<dyn Bootstrap>> {
    prepare_to_join(seat)?;
    match next_request(seat)? {
        Request::Arrive { .. } => take_bootstrap(seat),
        other => {
            let why = format!("a rank begins by {other:?}");
            Err(Error::mismatch("(start)", why))
        }
    }
}

/// Does what the ranks ask, until all of them have arrived at the end; whether they end without
/// the launcher.
fn follow(seat: &Inline<'_>) -> Result<bool> {
    let (mut begun, mut opened, mut number) = (None, None, Ok(None));
    loop {
        match next_request(seat)? {
            Request::Begin {
                name,
                options,
                item_bytes,
                again,
            } => begun = begin(seat, &name, &options, item_bytes, again)?,
            Request::Open(way) => {
                number = number_for(seat, way);
                let outcome = match (begun.take(), number.clone()) {
                    (Some(begun), Ok(number)) => open_by(seat, begun, number, Sink::Closed),
                    (_, Err(error)) => Err(error),
                    (None, _) => Err(Error::mismatch("(unknown)", "no stream was begun")),
                };
                opened = outcome.as_ref().ok().copied();
                if let Some(id) = opened {
                    seat.look(|job| job.log_bound(id));
                }
                reply(seat, Answer::Opened(outcome.map(drop)))?;
            }
            Request::Forget => begun = None,
            Request::GiveUp => {
                give_up(seat, opened.take())?;
                forget_inboxes(seat, number.clone())?;
            }
            Request::Retire(number) => retire(seat, number)?,
            Request::Count(number) => {
                let bytes = seat.with("counters", |job| Ok(job.engine.wire_bytes_of(number)))?;
                reply(seat, Answer::Counted(bytes))?;
            }
            Request::Arrive { alone } => return Ok(alone),
        }
    }
}

fn next_request(seat: &Inline<'_>) -> Result<Request> {
    seat.wait("what the ranks of this relay ask", |job| job.next_request())
}

fn reply(seat: &Inline<'_>, answer: Answer) -> Result<()> {
    seat.with("an answer", |job| {
        job.reply(answer);
        Ok(())
    })
}

/// Tells the ranks whether all have arrived.
fn told<T>(seat: &Inline<'_>, fenced: Result<T>) -> Result<T> {
    let outcome = fenced.as_ref().map(drop).map_err(Clone::clone);
    seat.look(|job| job.reply(Answer::Arrived(outcome)));
    fenced
}

fn begin(
    seat: &Inline<'_>,
    name: &str,
    options: &StreamOptions,
    item_bytes: usize,
    again: Option<u16>,
) -> Result<Option<Begun>> {
    let what = "opening a stream";
    let outcome = seat.with(what, |job| {
        let reusable = |engine: &Engine, _: &_| again.filter(|&id| engine.keeps_closed(id));
        let (_, begun) = job.begin_opening(name, options, item_bytes, reusable)?;
        Ok((begun, job.engine.link_terms()))
    });
    let (begun, outcome) = match outcome {
        Ok((begun, terms)) => {
            let reusable = match &begun {
                Begun::Again(id, _) => Some(*id),
                Begun::New(_) => None,
            };
            (Some(begun), Ok((terms, reusable)))
        }
        Err(error) => (None, Err(error)),
    };
    reply(seat, Answer::Begun(outcome))?;
    Ok(begun)
}

fn give_up(seat: &Inline<'_>, opened: Option<StreamId>) -> Result<()> {
    seat.with("opening a stream", |job| {
        if let Some(id) = opened {
            job.engine.give_up(id);
        }
        Ok(())
    })
}

/// Closes a stream. All ranks have had all of it, but marks of its last round and acknowledgements
/// may be on their way to this relay.
fn retire(seat: &Inline<'_>, number: u16) -> Result<()> {
    seat.wait("the rest of a stream", |job| {
        let is_retired = job.engine.retire_at_relay(number);
        if !is_retired {
            job.check_ranks_left()?;
        }
        Ok(is_retired.then_some(()))
    })
}

/// Waits for all processes at the launcher, and relays meanwhile: ranks of other processes may be
/// able to arrive only once what goes through here has.
fn fence(
    seat: Inline<'static>,
    mut bootstrap: Box<dyn Bootstrap>,
) -> (Inline<'static>, Result<Box<dyn Bootstrap>>) {
    if !bootstrap.fences_on_callers_thread() {
        let fenced = launchers_fence(&seat, bootstrap);
        return (seat, fenced);
    }
    // This thread waits, and another one has the seat.
    seat.look(|job| job.fencing = true); // naps: nobody rings at the end
    let (started, park) = seat.into_parts().expect("its only handle is here");
    let is_through = Flag::default();
    let (fenced, moved) = thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let seat = Inline::of_parts(started, park);
            let moved = seat.wait("all ranks, at the launcher", |_| {
                Ok(is_through.is_raised().then_some(()))
            });
            let closing = seat.look(|job| {
                job.fencing = false;
                job.closing
            });
            let parts = seat.into_parts().expect("its only handle is here");
            (parts, moved, closing.unwrap_or_default())
        });
        // An allgather of the program's may panic: the other thread waits for this one.
        let fenced = catch_unwind(AssertUnwindSafe(|| bootstrap.fence()));
        is_through.raise();
        (fenced, moving.join())
    });
    let ((started, park), moved, closing) = moved.unwrap_or_else(|panic| resume_unwind(panic));
    let fenced = fenced.unwrap_or_else(|panic| resume_unwind(panic));
    let fenced = match moved {
        // At the end, a process that has heard of it first may be gone before this one hears.
        Err(error) if !closing || error.is_about_peer() => Err(error),
        _ => fenced.map(|()| bootstrap).map_err(Error::from),
    };
    (Inline::of_parts(started, park), fenced)
}

/// All ranks of this process have arrived at the end.
fn prepare_to_end(seat: &Inline<'_>) -> Result<Box<dyn Bootstrap>> {
    // Where the launcher cannot be asked, nothing else keeps this process until then.
    seat.wait("the end of the job", |job| {
        let has_left = job.engine.has_left_results();
        if !has_left {
            job.check_ranks_left()?;
        }
        Ok(has_left.then_some(()))
    })?;
    let bootstrap = take_bootstrap(seat)?;
    set_closing(seat)?;
    Ok(bootstrap)
}

/// Where the launcher cannot be asked: all ranks of this process have the last barrier behind them.
/// Those of the node's other processes may not, and what they wait for may come, or what they send
/// may go, by this relay. So each relay tells the node's others once its ranks have arrived, and
/// leaves when all have told.
fn outlast_node(seat: &Inline<'_>) -> Result<()> {
    let what = "ranks of other processes of this node, to arrive at the end";
    let deadline = seat.with(what, |job| {
        let deadline = Instant::now() + job.options.bootstrap_timeout();
        job.tell_arrived(deadline)?;
        Ok(deadline)
    })?;
    seat.wait(what, |job| {
        let is_over = job.has_node_arrived()? && job.engine.has_relayed_results();
        let is_over = is_over || job.goes_without_agents();
        Ok((is_over || Instant::now() >= deadline).then_some(()))
    })
}

/// All ranks of the job have.
fn end(seat: &Inline<'_>, mut bootstrap: Box<dyn Bootstrap>) -> Result<()> {
    seat.with("the end of the job", |job| {
        job.end_lives();
        Ok(())
    })?;
    if !bootstrap.is_out_of_reach() {
        bootstrap.finalize()?;
    }
    Ok(())
}
