//! Ports: what sends to a channel, gets from it and polls it.

pub(super) mod sending;

use std::task::Waker;

use trihop_transport::sync::{Arc, OnceLock};

use super::Channels;
use super::bytes::Bytes;
use super::client::{Answered, Expects};
use super::descriptor::Descriptor;
use super::event::Event;
use super::poll::{ChannelKind, Poll};
use super::terms::{ChannelLimits, Timeout};
use super::wait::{Limit, outcome};
use super::wire::Request;
use crate::error::{Error, Result};
use crate::job::Awaited;
use crate::seat::Seat;

pub(super) const SEND: &str = "a send to a channel, which may be full";
pub(super) const GET: &str = "a get from a channel";
pub(super) const POLL: &str = "a poll of a channel";
pub(super) const ATTACH: &str = "attaching to a channel";

/// A port of a channel: what one thread, or several, of a rank send, get and poll by. Clones are
/// the same port; [`Channels::attach`] gives further ones.
///
/// What one thread sends by a port comes into the channel in that order, and its gets and polls are
/// answered in their order; there is no order between ports. Once its last handle is dropped the
/// port is closed; what it has sent still comes into the channel as there is room.
///
/// Calls inside a handler of an inline job are [`Error::Nested`], and what is dropped there is told
/// to owners by the next call; in a handler of a job with threads only sends that return
/// [immediately](super::Return::Immediately) may be made.
pub struct Channel<S: Seat>(Arc<Port<S>>);

impl<S: Seat> Clone for Channel<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// What the handles of a port share.
pub(super) struct Port<S: Seat> {
    channels: Channels<S>,
    descriptor: Descriptor,
    /// This rank's number of the port, and the owner's.
    number: u32,
    at_owner: u32,
    limits: ChannelLimits,
    kind: ChannelKind,
    pub event: OnceLock<Event>,
}

impl<S: Seat> Port<S> {
    pub fn channels(&self) -> &Channels<S> {
        &self.channels
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    pub fn kind(&self) -> ChannelKind {
        self.kind
    }

    pub fn at_owner(&self) -> u32 {
        self.at_owner
    }

    /// What the job knows a request by.
    pub fn awaited(&self, id: u64) -> Awaited {
        (self.channels.handle.id, self.number, id)
    }

    pub fn is_here(&self) -> bool {
        self.descriptor.owner == self.channels.handle.rank.0
    }

    /// Makes a request of the owner, for which no room is waited.
    pub fn ask(&self, request: Request, bytes: &[u8]) -> Result<()> {
        self.channels.ask(self.descriptor.owner(), request, bytes)
    }

    /// Refuses what channels of other kinds know.
    fn knows(&self, does: bool, what: &str) -> Result<()> {
        let why = || self.kind.knows_no(self.descriptor, what);
        match does {
            true => Ok(()),
            false => Err(Error::misuse(self.channels.name(), why())),
        }
    }

    /// The longest message that may be sent.
    fn longest(&self) -> usize {
        let most = usize::try_from(self.limits.bytes).unwrap_or(usize::MAX);
        most.min(self.channels.message_bytes())
    }

    pub fn has_messages(&self, what: &str) -> Result<()> {
        self.knows(self.kind == ChannelKind::Messages, what)
    }

    /// What has found no room may find some later: on the inline seat only calls make it, and
    /// others may need the core for it that a caller keeps who tries again and again.
    fn move_on(&self, error: &Error) -> Result<()> {
        if *error != Error::WouldBlock {
            return Ok(());
        }
        let seat = &self.channels.handle.seat;
        if !S::MOVES_ALONE {
            seat.progress_in_passing()?;
        }
        if !seat.is_in_handler() {
            seat.give_way(false);
        }
        Ok(())
    }

    /// Makes a request that is answered; its number. `make` makes it of that number and what is
    /// left of the time.
    pub fn start(
        &self,
        (what, expects): (&'static str, Expects),
        limit: &Limit,
        make: impl FnOnce(u64, u64) -> Request,
    ) -> Result<u64> {
        self.channels.enter(what)?;
        let id = {
            let mut client = self.channels.office.client();
            if !client.may_begin(self.number, expects) {
                return Err(Error::WouldBlock);
            }
            client.begin(self.number, expects)
        };
        let asked = self.ask(make(id, limit.left_ns()), &[]);
        if asked.is_err() {
            self.channels.office.client().undo(self.number, id);
        }
        asked.map(|()| id)
    }

    pub fn start_poll(&self, poll: Poll, limit: &Limit) -> Result<u64> {
        self.knows(poll.is_of(self.kind), &format!("poll `{poll:?}`"))?;
        let expects = match poll {
            Poll::Acquire => Expects::Permit,
            _ if poll.may_wait() => Expects::Number,
            _ => Expects::NumberAtOnce,
        };
        self.start((POLL, expects), limit, |id, timeout_ns| Request::Poll {
            port: self.at_owner,
            id,
            poll,
            timeout_ns,
        })
    }

    /// Makes a request and waits for its answer.
    pub fn call(
        &self,
        what: &'static str,
        timeout: Timeout,
        start: impl Fn(&Limit) -> Result<u64>,
    ) -> Result<Answered> {
        self.channels.handle.seat.may_wait(what)?;
        let limit = Limit::new(timeout);
        let ask = || {
            let id = start(&limit)?;
            let answered = self.answer(id, what, limit);
            // What it would have been answered by stays in its channel.
            let answered = answered.inspect_err(|_| self.abandon(id))?;
            outcome(answered.status, what, &self.descriptor)?;
            Ok(answered)
        };
        match ask() {
            // Others may need the core for what is to come.
            Err(Error::WouldBlock) if S::MOVES_ALONE && self.is_here() => {
                self.channels.handle.seat.give_way(false);
                Err(Error::WouldBlock)
            }
            // What is to come may be on its way: on the inline seat only calls have it come.
            Err(Error::WouldBlock) if !S::MOVES_ALONE && self.is_here() => {
                self.channels.handle.seat.progress(what)?;
                ask()
            }
            outcome => outcome,
        }
    }

    /// Nobody waits for this request any more: its owner hears of that, and has back what came.
    pub fn abandon(&self, id: u64) {
        let (requests, waker) = self.channels.office.client().abandon(self.number, id);
        drop(waker); // with no lock held: it may own anything
        for (request, bytes) in requests {
            self.ask_later(request, bytes);
        }
    }

    /// Makes a request that no room is waited for: with the next call where that is not possible,
    /// inside a handler of an inline job.
    pub fn ask_later(&self, request: Request, bytes: Bytes) {
        let channels = &self.channels;
        if S::MOVES_ALONE {
            // Where that fails the job has, or the stream was shut down.
            let _ = self.ask(request, &bytes);
            return;
        }
        let later = (self.descriptor.owner, request, bytes);
        channels.office.client().unasked.push_back(later);
        channels.office.has_unasked.raise();
        if channels.handle.seat.with("a request", |_| Ok(())).is_ok() {
            // What is left goes with the next call.
            let _ = channels.ask_unasked();
        }
    }
}

impl<S: Seat> Drop for Port<S> {
    fn drop(&mut self) {
        self.end_event();
        let mut client = self.channels.office.client();
        let Some(close) = client.close(self.number) else {
            return; // with the last answer that is under way
        };
        drop(client);
        self.ask_later(close, Bytes::default());
    }
}

/// A port whose owner was asked to open it. Dropped before the end, it is closed once it was opened.
pub(crate) struct Opening<S: Seat> {
    /// Until its end.
    port: Option<Port<S>>,
    /// The job wakes who awaits it where that fails.
    is_heard: bool,
}

impl<S: Seat> Opening<S> {
    pub(super) fn start(channels: &Channels<S>, descriptor: Descriptor) -> Result<Self> {
        let number = channels.office.client().add(descriptor);
        let number = number.ok_or_else(|| {
            Error::config("ports", "this rank has as many ports as it may, 65,536")
        })?;
        let port = Port {
            channels: channels.clone(),
            descriptor,
            number,
            at_owner: 0,
            limits: ChannelLimits::default(),
            kind: ChannelKind::Messages,
            event: OnceLock::new(),
        };
        let open = Request::Open {
            channel: descriptor.number,
            epoch: descriptor.epoch,
            port: number,
        };
        let asked = port.ask(open, &[]);
        asked.inspect_err(|_| channels.office.client().give_up(number))?;
        Ok(Self {
            port: Some(port),
            is_heard: false,
        })
    }

    fn port(&self) -> &Port<S> {
        let port = self.port.as_ref();
        port.expect("an opening has its port until its end")
    }

    /// The port, where the owner has opened it; else `waker` is woken by who hears of that.
    ///
    /// # Errors
    /// As [`Channels::attach`].
    pub fn look(&mut self, waker: &Waker) -> Result<Option<Channel<S>>> {
        let mut is_heard = self.is_heard;
        let port = self.port();
        let found = port.look_for(0, ATTACH, Some(waker), &mut is_heard);
        self.is_heard = is_heard;
        let answered = found.transpose();
        answered.map(|answered| self.end(answered)).transpose()
    }

    /// It has ended so.
    fn finish(mut self, answered: Result<Answered>) -> Result<Channel<S>> {
        self.end(answered)
    }

    fn end(&mut self, answered: Result<Answered>) -> Result<Channel<S>> {
        self.hears_no_longer();
        let port = self.port.take();
        let mut port = port.expect("an opening ends once");
        let outcome =
            answered.and_then(|answered| outcome(answered.status, ATTACH, &port.descriptor));
        let mut client = port.channels.office.client();
        let opened = outcome.map(|()| client.opened(port.number));
        let opened = opened.inspect_err(|_| client.give_up(port.number));
        drop(client);
        match opened? {
            Some((at_owner, limits, kind)) => {
                (port.at_owner, port.limits, port.kind) = (at_owner, limits, kind);
                Ok(Channel(Arc::new(port)))
            }
            None => unreachable!("an opening that is done has limits"),
        }
    }

    fn hears_no_longer(&mut self) {
        if std::mem::take(&mut self.is_heard) {
            self.port().hears_no_longer(0);
        }
    }
}

impl<S: Seat> Drop for Opening<S> {
    fn drop(&mut self) {
        if self.port.is_some() {
            self.hears_no_longer();
            let port = self.port();
            let (requests, waker) = port.channels.office.client().abandon(port.number, 0);
            drop(waker); // with no lock held: it may own anything
            debug_assert!(requests.is_empty(), "an opening that is given up");
        }
    }
}

impl<S: Seat> Channel<S> {
    pub(super) fn open(channels: &Channels<S>, descriptor: Descriptor) -> Result<Self> {
        channels.enter(ATTACH)?;
        channels.handle.seat.may_wait(ATTACH)?;
        let opening = Opening::start(channels, descriptor)?;
        let answered = opening.port().answer(0, ATTACH, Limit::new(Timeout::Never));
        opening.finish(answered)
    }

    /// The longest message that may be sent.
    pub(crate) fn longest(&self) -> usize {
        self.0.longest()
    }

    /// Whether the channel is this rank's.
    #[doc(hidden)]
    pub fn is_here(&self) -> bool {
        self.port().is_here()
    }

    pub(super) fn port(&self) -> &Arc<Port<S>> {
        &self.0
    }

    /// What names the channel on all ranks.
    pub fn descriptor(&self) -> Descriptor {
        self.0.descriptor
    }

    /// What the channel is.
    pub fn kind(&self) -> ChannelKind {
        self.0.kind
    }

    /// What the channel may hold, as its owner has made it, on whichever rank. Of a semaphore or a
    /// barrier `ports` and `window_messages` count.
    pub fn limits(&self) -> ChannelLimits {
        self.0.limits
    }

    /// Waits until what is polled holds, asks for a number, or uses a semaphore or a barrier: see
    /// [`Poll`].
    ///
    /// # Errors
    /// [`Error::Misuse`] for what this [kind](Channel::kind) of channel does not know, and for a
    /// release beyond the most that a semaphore may be; [`Error::BarrierBroken`];
    /// [`Error::WouldBlock`] and [`Error::TimedOut`] where it does not hold;
    /// [`Error::ChannelClosed`] where it never will; else as [`Channel::get`].
    pub fn poll(&self, poll: Poll, timeout: Timeout) -> Result<u64> {
        let port = &*self.0;
        let answered = port.call(POLL, timeout, |limit| port.start_poll(poll, limit));
        let answered = answered.inspect_err(|error| {
            if poll.takes() {
                port.got(error);
            }
        });
        Ok(answered?.value)
    }

    /// Sends of this port that have failed after they had returned, and why the last of them has.
    /// Those that are under way may still fail: a send [when
    /// deposited](super::Return::WhenDeposited) comes behind them.
    pub fn failures(&self) -> (u64, Option<Error>) {
        let (count, last) = self.0.channels.office.client().failures(self.0.number);
        let error = last.and_then(|status| outcome(status, SEND, &self.0.descriptor).err());
        (count, error)
    }

    /// Closes the channel: what is sent from now on, or waits to be, fails with
    /// [`Error::ChannelClosed`], and so do gets once it is empty. By its owner only.
    ///
    /// # Errors
    /// [`Error::Misuse`] on another rank; [`Error::Nested`] in a handler of an inline job.
    pub fn close(&self) -> Result<()> {
        let Port {
            channels,
            descriptor,
            ..
        } = &*self.0;
        if !self.0.is_here() {
            let (owner, number) = (descriptor.owner, descriptor.number);
            let why = format!("channel {number} of rank {owner} is closed by that rank only");
            return Err(Error::misuse(channels.name(), why));
        }
        channels.enter("the closing of a channel")?;
        channels.close(descriptor.number, descriptor.epoch);
        Ok(())
    }
}
