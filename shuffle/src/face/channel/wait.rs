//! How calls of channels wait: for answers, with the seat's progress; and what these say.

use std::time::Instant;

use super::client::{Answered, Client};
use super::descriptor::Descriptor;
use super::port::Port;
use super::terms::Timeout;
use super::wire::{Request, Status};
use crate::error::{Error, Result};
use crate::seat::{Seat, Seating};

/// Until when a call waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    timeout: Timeout,
    /// Where it waits for some time.
    at: Option<Instant>,
}

impl Limit {
    /// From now on.
    pub fn new(timeout: Timeout) -> Self {
        let at = match timeout {
            Timeout::After(time) => Instant::now().checked_add(time),
            Timeout::Never | Timeout::Once => None,
        };
        Self { timeout, at }
    }

    pub fn is_once(&self) -> bool {
        self.timeout == Timeout::Once
    }

    /// What is left, as it stands in a request.
    pub fn left_ns(&self) -> u64 {
        match self.at {
            // What is over is tried, and ends as one that has waited.
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                Timeout::After(left).nanoseconds().max(1)
            }
            None => match self.timeout {
                Timeout::After(_) => u64::MAX,
                timeout => timeout.nanoseconds(),
            },
        }
    }

    pub fn is_over(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at)
    }
}

/// While it lives, sleeps of the job are short: somebody looks at a clock.
struct TimedWait<'a, S: Seating>(Option<&'a S>);

impl<'a, S: Seating> TimedWait<'a, S> {
    fn begin(seat: &'a S, what: &'static str, limit: &Limit) -> Result<Self> {
        if limit.at.is_none() {
            return Ok(Self(None));
        }
        seat.with(what, |job| {
            job.timed_waits += 1;
            Ok(())
        })?;
        Ok(Self(Some(seat)))
    }
}

impl<S: Seating> Drop for TimedWait<'_, S> {
    fn drop(&mut self) {
        if let Some(seat) = self.0 {
            // A job that has failed waits for nothing.
            let _ = seat.with("a wait", |job| {
                job.timed_waits -= 1;
                Ok(())
            });
        }
    }
}

impl<S: Seat> Port<S> {
    /// Waits until `done` gives a value; `None` where the limit passes before.
    pub fn wait_until<T>(
        &self,
        what: &'static str,
        limit: &Limit,
        mut done: impl FnMut(&mut Client) -> Option<T>,
    ) -> Result<Option<T>> {
        let channels = self.channels();
        if let Some(value) = done(&mut channels.office.client()) {
            return Ok(Some(value));
        }
        channels.handle.seat.may_wait(what)?;
        let _timed = TimedWait::begin(&channels.handle.seat, what, limit)?;
        channels.handle.seat.wait(what, |job| {
            let mut client = channels.office.client();
            if let Some(value) = done(&mut client) {
                return Ok(Some(Some(value)));
            }
            drop(client);
            // A request that has left behind the last of all others is answered by nobody, and so
            // is one of an owner that is lost.
            let out = job.engine.out(channels.handle.id)?;
            out.check_open()?;
            out.check_within_reach(self.descriptor().owner())?;
            Ok(limit.is_over().then_some(None))
        })
    }

    /// Waits for the answer to a request. Once its time is over the owner is told so: it may have
    /// no clock of its own that runs, and it alone knows what has become of the request.
    pub fn answer(&self, id: u64, what: &'static str, limit: Limit) -> Result<Answered> {
        let take = |client: &mut Client| client.take_answer(self.number(), id);
        if let Some(answered) = self.wait_until(what, &limit, take)? {
            return Ok(answered);
        }
        let port = self.at_owner();
        let given_up = false;
        self.ask(Request::Cancel { port, id, given_up }, &[])?;
        let limit = Limit::new(Timeout::Never);
        let answered = self.wait_until(what, &limit, take)?;
        Ok(answered.expect("a wait without a limit ends with a value"))
    }
}

/// What a call says of a request that ended so.
pub(super) fn outcome(status: Status, what: &'static str, of: &Descriptor) -> Result<()> {
    match status {
        // Who has said how long a message may be looks at that.
        Status::Done | Status::Credit | Status::TooLong => Ok(()),
        Status::WouldBlock => Err(Error::WouldBlock),
        Status::TimedOut => Err(Error::TimedOut(what)),
        Status::Closed => Err(Error::ChannelClosed {
            number: of.number,
            owner: of.owner,
        }),
        Status::Broken => Err(Error::BarrierBroken {
            number: of.number,
            owner: of.owner,
        }),
        Status::Most => {
            let why = format!(
                "the semaphore, channel {} of rank {}, is at the most that it may be: release what was acquired",
                of.number, of.owner
            );
            Err(Error::misuse("channels", why))
        }
        Status::Gone => {
            let why = format!(
                "rank {} has no such channel any more, or it leaves",
                of.owner
            );
            Err(Error::no_channel(of.to_string(), why))
        }
        Status::NoPort => {
            let why = format!(
                "channel {} of rank {} has as many ports open as it may; close some, or make it with more",
                of.number, of.owner
            );
            Err(Error::config("ports", why))
        }
    }
}
