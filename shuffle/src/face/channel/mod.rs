//! Channels: bounded queues of messages, each in the memory of the rank that has made it, which any
//! rank sends to, gets from and polls.
//!
//! All of them are messages of one stream: requests to owners, and their answers. What a rank owns
//! is a state machine ([`owner`]); what it has asked of others is another one ([`client`]).

mod asked;
mod builder;
mod bytes;
mod client;
mod descriptor;
mod event;
mod kept;
mod office;
mod owner;
mod parts;
mod poll;
mod port;
mod received;
mod taking;
mod terms;
#[cfg(test)]
pub(crate) mod tests;
mod wait;
mod wire;

use trihop_transport::sync::Arc;
use trihop_transport::topology::Rank;

use crate::engine::untaken;
use crate::error::{Error, Result};
use crate::face::shuffle::Shuffle;
use crate::job::JobState;
use crate::seat::{Handle, Seat};
use crate::stats::Stats;
pub use asked::Asked;
pub use builder::ChannelsBuilder;
pub use descriptor::Descriptor;
pub use kept::Kept;
pub(crate) use office::Office;
use office::with_request;
use owner::{Gate, Owner};
pub use poll::{ChannelKind, Poll};
pub use port::Channel;
pub(crate) use port::Opening;
pub use received::{Buffer, Filled, Received};
pub(crate) use taking::Taken;
pub(crate) use terms::Take;
pub use terms::{ChannelLimits, Return, Timeout};
use wire::{HEAD_BYTES, Payload, Request};

/// The channels of a job on one rank: makes channels, and attaches to those of others. Clones are
/// handles of the same.
///
/// A [`Channel`] is a bounded queue of messages on the rank that has made it, its owner. Any rank
/// attaches to it by its [`Descriptor`], which goes to others by whatever way: messages, a file,
/// arguments. Sends, gets and polls of any rank are done by the owner in the order in which they
/// come there, and what cannot be done at once waits there, until it can, until its timeout, or
/// until the channel is closed. [Semaphores](Channels::semaphore) and
/// [barriers](Channels::barrier) are channels too, which are polled only.
///
/// On the inline seat the owner answers inside its calls that make progress, of whichever stream;
/// [`Channels::progress`] is one. Jobs with threads answer at any time.
///
/// ```
/// use trihop_shuffle::channel::{Return, Timeout};
/// use trihop_shuffle::{ChannelLimits, Job, Options};
///
/// let job = Job::start(Options::from_env()?)?;
/// let channels = job.channels("work").open()?;
/// // Rank 0 has a queue of tasks, and all ranks learn of it.
/// let mine = match job.rank().0 {
///     0 => Some(channels.create(ChannelLimits::default())?),
///     _ => None,
/// };
/// let named = mine.as_ref().map(|tasks| tasks.descriptor().to_string());
/// let named = job.broadcast(trihop_shuffle::Rank(0), named.unwrap_or_default().as_bytes())?;
/// let tasks = channels.attach(&String::from_utf8_lossy(&named).parse()?)?;
/// tasks.send(7, b"a task", Return::WhenDeposited, Timeout::Never)?;
/// let task = tasks.get(Timeout::Never)?;
/// assert_eq!((task.kind, &task.bytes[..]), (7, &b"a task"[..]));
/// drop((tasks, mine));
/// channels.shutdown()?;
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
#[derive(Clone)]
pub struct Channels<S: Seat> {
    handle: Handle<S>,
    /// Streams by which parts of long messages go over other relays.
    others: Arc<[Handle<S>]>,
    office: Arc<Office>,
    /// What the channels of this opening have in common.
    job: u64,
    /// Longest message that the stream carries.
    message_bytes: usize,
}

impl<S: Seat> Channels<S> {
    /// Name given at opening.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.handle.rank
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.handle.size
    }

    /// Makes a channel of this rank's, and a port of it. It is there until it is
    /// [closed](Channel::close), or this rank shuts its channels down.
    ///
    /// # Errors
    /// [`Error::Config`] for impossible limits, and beyond 65,536 channels; [`Error::Nested`]
    /// inside a handler of an inline job.
    pub fn create(&self, limits: ChannelLimits) -> Result<Channel<S>> {
        self.make(limits, None)
    }

    /// Makes a semaphore of this rank's, and a port of it: a channel with a value, from the given
    /// one on, that [`Poll::Acquire`] takes one from and [`Poll::Release`] adds one to. It is never
    /// above `most`. Of the limits `ports` and `window_messages` count, the calls of a port that
    /// may wait at once.
    ///
    /// ```
    /// use trihop_shuffle::channel::{Descriptor, Poll, Timeout};
    /// use trihop_shuffle::{ChannelLimits, Job, Options};
    ///
    /// let job = Job::start(Options::from_env()?)?;
    /// let channels = job.channels("locks").open()?;
    /// let mine = channels.semaphore(1, 1, ChannelLimits::default())?;
    /// let all = job.allgather(&mine.descriptor().to_bytes())?;
    /// let lock = channels.attach(&Descriptor::from_bytes(&all[0])?)?; // rank 0's
    /// lock.poll(Poll::Acquire, Timeout::Never)?;
    /// // One rank at a time is here.
    /// lock.poll(Poll::Release, Timeout::Never)?;
    /// drop((lock, mine));
    /// channels.shutdown()?;
    /// job.shutdown()?;
    /// # Ok::<(), trihop_shuffle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Channels::create`]; [`Error::Config`] for a value above `most`.
    pub fn semaphore(&self, value: u64, most: u64, limits: ChannelLimits) -> Result<Channel<S>> {
        if value > most {
            let why = format!("{value} of a semaphore that is at most {most}");
            return Err(Error::config("value", why));
        }
        self.make(limits, Some(Gate::Semaphore { value, most }))
    }

    /// Makes a barrier of this rank's, and a port of it: a channel in which calls wait for each
    /// other, as many as it has `parties`, of whichever ranks and ports: see [`Poll::Arrive`]. Of
    /// the limits `ports` and `window_messages` count, as of a
    /// [semaphore](Channels::semaphore): 1024 ports by default.
    ///
    /// # Errors
    /// As [`Channels::create`]; [`Error::Config`] for parties that are none, or more than may wait
    /// by all of its ports.
    pub fn barrier(&self, parties: u32, limits: ChannelLimits) -> Result<Channel<S>> {
        let most = u64::from(limits.ports) * u64::from(limits.window_messages);
        if !(1..=most).contains(&u64::from(parties)) {
            let why = format!("{parties} of a barrier: by its ports 1 to {most} calls may wait");
            return Err(Error::config("parties", why));
        }
        let barrier = Gate::Barrier {
            parties: parties.into(),
            arrived: 0,
            broken: false,
        };
        self.make(limits, Some(barrier))
    }

    fn make(&self, limits: ChannelLimits, gate: Option<Gate>) -> Result<Channel<S>> {
        limits.check()?;
        let what = "the making of a channel";
        self.enter(what)?;
        self.handle.with_out(what, |out| out.check_open())?;
        let made = self.office.owner().create(limits, gate);
        let (number, epoch) = made.ok_or_else(|| {
            let why = "this rank has as many channels as it may, 65,536, or leaves";
            Error::config("channels", why)
        })?;
        let made = self.attach(&Descriptor {
            job: self.job,
            owner: self.handle.rank.0,
            number,
            epoch,
        });
        // Nobody could name it.
        made.inspect_err(|_| self.close(number, epoch))
    }

    /// Closes a channel of this rank's.
    fn close(&self, number: u32, epoch: u32) {
        self.at_owner(|owner| owner.close(number, epoch));
    }

    /// A port of the channel with this descriptor. Asks its owner, and waits for the answer.
    ///
    /// # Errors
    /// [`Error::NoChannel`] where the channel is of another job, was closed, or never was;
    /// [`Error::Config`] where it has as many ports as it may; [`Error::Nested`] inside a handler;
    /// as every call where a rank is gone.
    pub fn attach(&self, descriptor: &Descriptor) -> Result<Channel<S>> {
        self.check_is_ours(descriptor)?;
        Channel::open(self, *descriptor)
    }

    /// As [`Channels::attach`], which does not wait.
    pub(crate) fn start_attach(&self, descriptor: &Descriptor) -> Result<Opening<S>> {
        self.check_is_ours(descriptor)?;
        self.enter(port::ATTACH)?;
        Opening::start(self, *descriptor)
    }

    fn check_is_ours(&self, descriptor: &Descriptor) -> Result<()> {
        let none = |why: &str| Err(Error::no_channel(descriptor.to_string(), why));
        if descriptor.job != self.job {
            return none("it is of another job, or of channels that were shut down");
        }
        if descriptor.owner >= self.handle.size {
            return none("it names a rank that the job does not have");
        }
        Ok(())
    }

    /// The longest message, whichever its channel.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes - HEAD_BYTES
    }

    /// One round of progress, as any call that makes some; true when anything moved. An owner on
    /// the inline seat that has nothing else to do so answers others.
    ///
    /// # Errors
    /// The transport's; [`Error::Nested`] inside a handler.
    pub fn progress(&self) -> Result<bool> {
        let moved = self.handle.seat.progress("the progress of channels")?;
        self.handle.seat.give_way(moved);
        self.ask_unasked()?;
        self.expire();
        Ok(moved)
    }

    /// Counters of this rank, of the stream of requests and answers: see
    /// [`Shuffle::stats`](crate::Shuffle::stats). Each request to another rank and each answer is a
    /// record, with 32 or 56 bytes beside its message; calls of a rank on its own channels are
    /// none. Parts of long messages that go by other relays are not counted, and of messages that
    /// lie in memory of the node the 24 bytes that say where.
    pub fn stats(&self) -> Option<Stats> {
        self.handle.stats()
    }

    /// See [`Shuffle::relays_wire_bytes`](crate::Shuffle::relays_wire_bytes); of all streams by
    /// which messages go.
    ///
    /// # Errors
    /// As that.
    pub fn relays_wire_bytes(&self) -> Result<u64> {
        let others = self.others.iter().map(Handle::relays_wire_bytes);
        std::iter::once(self.handle.relays_wire_bytes())
            .chain(others)
            .sum()
    }

    /// Ends this rank's part and keeps its channels with the messages in them, for
    /// [an opening of another job](ChannelsBuilder::keeping): of one that takes the place of a job
    /// which has failed, because an agent or another rank is gone. Others who wait for them hear
    /// that they are closed. Where the job goes on, it then waits until all ranks have done so, or
    /// have [shut down](Channels::shutdown): collective.
    ///
    /// What the job says of a call that has failed with it stays true: a send was not taken, or not
    /// [answered](Return), whatever has come of it; and a message that was handed out for a get is
    /// gone with it, if it was under way. What was [deposited](Return::WhenDeposited) is kept, and
    /// so is what a send that did not wait for that has left here, in time. A channel that was
    /// closed is kept where messages are left in it, and stays closed.
    ///
    /// # Errors
    /// [`Error::Nested`] inside a handler, and [`Error::Misuse`] beside a fence of all streams,
    /// with nothing done; [`Error::Closed`] where they were kept, or shut down, before. What else
    /// goes wrong the job says.
    pub fn keep(self) -> Result<Kept> {
        self.check_may_end()?;
        loop {
            let next = self.office.client().unasked.pop_front();
            let Some((owner, request, bytes)) = next else {
                break;
            };
            // What comes back to this rank is kept; where others cannot be asked the job has failed.
            let _ = self.ask(Rank(owner), request, &bytes);
        }
        if !self.at_owner(|owner| owner.keep(|| self.office.now_ns())) {
            return Err(Error::Closed(self.name().to_owned()));
        }
        if let Err(error) = self.end() {
            tracing::info!(channels = self.name(), %error, "channels are kept without their job");
        }
        let places = self.office.owner().kept();
        Ok(Kept::new(
            self.job,
            (self.handle.rank.0, self.handle.size),
            places,
        ))
    }

    /// Refuses to end what may not end now, with nothing done.
    fn check_may_end(&self) -> Result<()> {
        let (what, seat) = ("shutting down", &self.handle.seat);
        seat.may_wait(what)?;
        // A job that has failed ends no fence any more.
        let fencing = seat.with(what, |job| Ok(job.check_not_fencing(&what)));
        fencing.unwrap_or(Ok(()))
    }

    /// Ends the streams, once all ranks do: those of parts first, since what they bring is answered.
    fn end(&self) -> Result<()> {
        let streams = self.others.iter().chain([&self.handle]).cloned();
        // Where one fails the job has, and each says so.
        let ended: Vec<_> = streams
            .map(|handle| Shuffle { handle }.shutdown())
            .collect();
        ended.into_iter().collect()
    }

    /// Ends this rank's part: its channels are closed and their messages dropped, which the log
    /// says; others who wait for them hear that they are closed. Then it waits until all ranks have
    /// done so. Collective.
    ///
    /// # Errors
    /// As [`Shuffle::shutdown`](crate::Shuffle::shutdown). Where that is [`Error::Nested`] or
    /// [`Error::Misuse`], nothing is dropped.
    pub fn shutdown(self) -> Result<()> {
        self.check_may_end()?;
        self.ask_unasked()?;
        let lost = self.at_owner(Owner::leave) as u64;
        untaken::warn(self.rank(), "messages", self.name(), lost);
        self.end()
    }

    /// Begins a call. On the inline seat it may be made, and progress too, now and then.
    fn enter(&self, what: &'static str) -> Result<()> {
        if S::MOVES_ALONE {
            return self.check_goes_on(what);
        }
        let is_due = self.handle.with_out(what, |out| {
            out.check_open()?;
            Ok(out.count_call())
        })?;
        self.ask_unasked()?;
        match is_due {
            true => self.handle.seat.progress_in_passing(),
            false => Ok(()),
        }
    }

    /// What is on this rank is used without the job, which may have failed or ended.
    #[inline]
    fn check_goes_on(&self, what: &'static str) -> Result<()> {
        let seat = &self.handle.seat;
        match seat.may_have_ended() {
            true => seat.with_quietly(what, |job| job.engine.out(self.handle.id)?.check_open()),
            false => Ok(()),
        }
    }

    /// Makes the requests that could not be made inside a handler, in their order.
    #[inline]
    fn ask_unasked(&self) -> Result<()> {
        match self.office.has_unasked.is_raised() {
            true => self.ask_all_unasked(),
            false => Ok(()),
        }
    }

    #[cold]
    fn ask_all_unasked(&self) -> Result<()> {
        loop {
            let next = self.office.client().unasked.pop_front();
            let Some((owner, request, bytes)) = next else {
                self.office.has_unasked.lower();
                return Ok(());
            };
            if let Err(error) = self.ask(Rank(owner), request, &bytes) {
                let is_lost = |job: &mut JobState| Ok(job.has_lost(Rank(owner)));
                if self.handle.seat.with("a request", is_lost) == Ok(true) {
                    continue; // nobody is there to be asked
                }
                let again = (owner, request, bytes);
                self.office.client().unasked.push_front(again);
                return Err(error);
            }
        }
    }

    /// Ends what should have been done by now on this rank. Not inside a handler of an inline job.
    fn expire(&self) {
        self.at_owner(|owner| owner.expire(|| self.office.now_ns()));
    }

    /// Makes a request to this rank. Not inside a handler of an inline job: others could not be
    /// told what comes of it.
    fn ask_here(&self, request: Request, payload: Payload<'_>) {
        self.at_owner(|owner| self.office.ask_here(owner, request, payload));
    }

    /// Makes a request that no room is waited for.
    fn ask(&self, target: Rank, request: Request, bytes: &[u8]) -> Result<()> {
        if target == self.handle.rank {
            self.ask_here(request, Payload::Borrowed(bytes));
            return Ok(());
        }
        with_request(request, bytes, |kind, record| {
            self.put(target, kind, record)
        })
    }

    fn put(&self, target: Rank, kind: u32, record: &[u8]) -> Result<()> {
        self.handle.with_out("a request to a channel", |out| {
            out.send_or_spill(target, kind, record)
        })
    }

    /// Uses the owner's side, and tells all askers what comes of it. Nothing is waited for, and no
    /// progress made. Where none but this rank is told, the engine is not used.
    fn at_owner<R>(&self, call: impl FnOnce(&mut Owner) -> R) -> R {
        let (office, seat) = (&self.office, &self.handle.seat);
        let mut owner = office.owner();
        let outcome = call(&mut owner);
        let mut news = office.tell_here(&mut owner);
        let are_others_told = owner.has_answers();
        drop(owner); // it is not to be had before the engine
        if are_others_told {
            let told = seat.with("an answer of a channel", |job| {
                news.add(office.tell(&mut office.owner(), |stream, send| {
                    send(job.engine.out(stream.unwrap_or(self.handle.id))?)
                }));
                Ok(())
            });
            if let Err(why) = told {
                // The job has failed, and each call says so: nobody waits to be told.
                tracing::debug!(error = %why, "askers of channels are not told");
                news.add(office.tell(&mut office.owner(), |_, _| {
                    Err(Error::Closed(self.name().to_owned()))
                }));
            }
        }
        if news.is_any {
            seat.notify_moved();
        }
        news.wake();
        outcome
    }
}
