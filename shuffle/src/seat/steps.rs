//! How streams end their steps: in one call, in two phases, by contributors; and barriers.

use std::task::Waker;

use super::Seating;
use super::calls::{Handle, check_open, check_undelivered};
use super::collective::pass_on_results;
use crate::engine::outbound::Urgency;
use crate::error::{Error, Result};
use crate::job::{JobState, Way};
use crate::terminate::End;
use crate::terminate::collective::Operation;

impl<S: Seating> Handle<S> {
    /// Ends a step, and waits until that is over. What gives way with [`Error::WouldBlock`] stays
    /// under way: the others count on it.
    pub(crate) fn end(&self, end: End) -> Result<()> {
        self.seat
            .one_at_a_time(Some(&self.of), end_call(end), || self.end_alone(end))
    }

    pub(super) fn end_alone(&self, end: End) -> Result<()> {
        let number = self.begin_by(end, |job| job.begin_end(self.id, end, Way::Waited))?;
        self.wait_alone(end, number)
    }

    /// Begins the end of a step; its number.
    fn begin_by(&self, end: End, begin: impl FnOnce(&mut JobState) -> Result<u64>) -> Result<u64> {
        self.seat.with(start_call(end), |job| {
            let (state, out) = job.engine.stream(self.id)?;
            check_open(state, out)?;
            tracing::trace!(stream = state.name, "{end}");
            begin(job)
        })
    }

    /// Waits for the end with this number. Where another one is under way, that is over: what is
    /// called at the end of a step has begun the next.
    pub(super) fn wait_alone(&self, end: End, number: u64) -> Result<()> {
        self.seat
            .wait_for_handlers(Some(&self.of), end_call(end), |job| {
                let is_other = |now| now != number;
                let now = job.parked.number_of(self.id.stream);
                if now.is_some_and(is_other) || job.is_over(self.id)? {
                    return Ok(Some(()));
                }
                let (state, _) = job.engine.stream(self.id)?;
                check_undelivered(state)?;
                Ok(None)
            })?;
        if end != End::Round {
            pass_on_results(&self.seat);
        }
        Ok(())
    }

    /// Ends a step, without waiting; the number of that end.
    pub(crate) fn start(&self, end: End) -> Result<u64> {
        self.start_with(end, None, None, None::<fn()>)
    }

    /// As [`Handle::start`], with a priority of the stream until it is over, with what is called
    /// before it starts, once it may, and with what is called when it is over.
    pub(crate) fn start_with(
        &self,
        end: End,
        priority: Option<u8>,
        at_end: Option<S::AtEnd>,
        before: Option<impl FnOnce()>,
    ) -> Result<u64> {
        let keep = at_end.map(|call| self.seat.keep_at_end(&self.of, &self.name, call));
        // Where nothing is started it goes with this call, and not with the state in use: it may
        // own anything.
        let mut keep = keep.transpose()?;
        if let Some(before) = before {
            let may_start = || {
                self.seat.with(start_call(end), |job| {
                    let (state, out) = job.engine.stream(self.id)?;
                    check_open(state, out)?;
                    job.check_may_end(self.id, end, Way::Started)?;
                    job.let_go(self.id)
                })
            };
            self.in_turn(end, may_start)?;
            before();
        }
        let start = || {
            self.begin_by(end, |job| {
                let number = job.start_end(self.id, end, priority, keep.is_some())?;
                keep.take().into_iter().for_each(|keep| keep(number));
                Ok(number)
            })
        };
        self.in_turn(end, start)
    }

    /// Makes a call that starts an end while nobody else ends a step of the stream.
    fn in_turn<R>(&self, end: End, call: impl FnOnce() -> Result<R>) -> Result<R> {
        match self.seat.is_at_end() {
            // Nothing is waited for, and who waits for the step that is over may be in the way.
            true => call(),
            false => (self.seat).one_at_a_time(Some(&self.of), start_call(end), call),
        }
    }

    /// One round of progress, and whether the end that was started is over.
    pub(crate) fn test(&self) -> Result<bool> {
        let what = "a test";
        self.seat.one_at_a_time(Some(&self.of), what, || {
            let before = self.under_way(what)?;
            self.test_alone(what, before)
        })
    }

    /// The same of the end with this number, where one was under way: it is over, too, where that is
    /// not so any more, since the call at its end has begun another, or somebody else was told.
    fn test_alone(&self, what: &'static str, before: Option<(End, u64)>) -> Result<bool> {
        let has_moved = self.seat.progress(what)?;
        let (end, is_over) = self.seat.with(what, |job| {
            job.engine.stream(self.id)?;
            let now = job.parked.end_of(self.id.stream);
            let is_other = |number| now.is_none_or(|(_, now)| now != number);
            Ok(match before {
                Some((end, number)) if is_other(number) => (Some(end), true),
                _ => (now.map(|(end, _)| end), job.is_over(self.id)?),
            })
        })?;
        self.seat.give_way(is_over || has_moved);
        if is_over && end != Some(End::Round) {
            // What others wait for leaves now: the caller may not come back for long. Of a round
            // all has left, and the next one does not begin in this call.
            self.seat.progress(what)?;
        }
        Ok(is_over)
    }

    /// Waits until the end that was started is over.
    pub(crate) fn wait(&self) -> Result<()> {
        let what = "a wait for the end of a step";
        self.seat.one_at_a_time(Some(&self.of), what, || {
            let end = self.under_way(what)?;
            let none = || {
                let why = "no end of a step is under way: start one first";
                Error::misuse(&self.name, why)
            };
            let (end, number) = end.ok_or_else(none)?;
            self.wait_alone(end, number)
        })
    }

    /// Has contributors of the step that has begun be done.
    pub(crate) fn done(&self, count: u64) -> Result<()> {
        let is_due = self.seat.with("the end of a contribution", |job| {
            let out = job.engine.out(self.id)?;
            let urgency = match self.seat.is_in_handler() && !self.seat.is_at_end() {
                true => out.done_in_handler(count)?,
                false => out.done(count)?,
            };
            let is_due = urgency == Urgency::Now || out.count_call();
            if urgency != Urgency::None {
                // Others may wait for it while this rank computes.
                job.bell.ring();
            }
            Ok(is_due)
        })?;
        match is_due {
            true => self.seat.progress_in_passing(),
            false => Ok(()),
        }
    }

    /// As [`Handle::test`], of the end with this number, which is over too where somebody else has
    /// heard so; where it is not over, `waker` is woken when it may be.
    pub(crate) fn test_or_wake(&self, number: u64, waker: &Waker) -> Result<bool> {
        let what = "a step that is awaited";
        let is_under_way = |job: &JobState| job.parked.number_of(self.id.stream) == Some(number);
        self.seat.one_at_a_time(Some(&self.of), what, || {
            let of_it = |job: &mut JobState| {
                job.check_comes(number)?;
                let now = job.parked.end_of(self.id.stream);
                Ok(now.filter(|(_, now)| *now == number))
            };
            let under_way = self.seat.with(what, of_it)?;
            if under_way.is_none() || self.test_alone(what, under_way)? {
                return Ok(true);
            }
            if S::MOVES_ALONE {
                // It may have ended in between, and the next have begun: nobody was woken.
                let (before, is_over) = self.seat.with(what, |job| match is_under_way(job) {
                    true => {
                        let before = job.parked.wake(self.id.stream, waker);
                        Ok((before, job.is_over(self.id)?))
                    }
                    false => job.check_comes(number).map(|()| (None, true)),
                })?;
                // The old one goes without the state in use: it may own anything.
                drop(before);
                return Ok(is_over);
            }
            // Nothing moves here but in calls: so be asked again.
            waker.wake_by_ref();
            Ok(false)
        })
    }

    /// The end that is under way, or that a call has been told of; and its number.
    pub(super) fn under_way(&self, what: &'static str) -> Result<Option<(End, u64)>> {
        self.seat.with(what, |job| {
            job.engine.stream(self.id)?;
            Ok(job.parked.end_of(self.id.stream))
        })
    }

    /// A barrier that gives way as a fence does.
    pub(crate) fn barrier(&self) -> Result<()> {
        self.seat
            .one_at_a_time(Some(&self.of), "a barrier", || self.barrier_alone())
    }

    fn barrier_alone(&self) -> Result<()> {
        let what = "a barrier";
        let ticket = self.seat.with(what, |job| {
            if let Some(ticket) = job.parked.barrier(self.id.stream) {
                return Ok(ticket);
            }
            let (state, out, collectives) = job.engine.stream_mut(self.id)?;
            check_open(state, out)?;
            out.check_no_step("a barrier")?;
            let ticket = collectives.begin(state.id, Operation::SUM, &[]);
            out.queues.has_called(collectives.begun(state.id));
            Ok(ticket)
        })?;
        let outcome = self.seat.wait(what, |job| {
            let (state, _, collectives) = job.engine.stream_mut(self.id)?;
            if collectives.result(ticket).is_some() {
                return Ok(Some(()));
            }
            check_undelivered(state)?;
            job.check_whole()?;
            Ok(None)
        });
        if outcome.is_err() {
            let _ = self.seat.with(what, |job| {
                job.parked.park_barrier(self.id.stream, ticket);
                Ok(())
            });
            return outcome;
        }
        pass_on_results(&self.seat);
        Ok(())
    }
}

/// The call that ends a step, for errors and logs.
fn end_call(end: End) -> &'static str {
    match end {
        End::Round => "a round",
        End::Fence => "a fence",
        End::Completion(_) => "the end of a step",
    }
}

/// The call by which that starts.
fn start_call(end: End) -> &'static str {
    match end {
        End::Completion(_) => "the beginning of a step",
        End::Round | End::Fence => end_call(end),
    }
}
