//! File descriptors that are readable while something may be had from a channel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Wake, Waker};

use rustix::event::EventfdFlags;
use trihop_transport::Error as TransportError;
use trihop_transport::sync::{Arc, Mutex, PoisonError};

use super::Channel;
use super::port::{GET, Port};
use super::terms::Timeout;
use super::wait::Limit;
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::seat::Seat;

/// An eventfd that is readable once it was woken, until it is cleared.
pub(super) struct Signal(OwnedFd);

impl Signal {
    pub fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let made = rustix::event::eventfd(0, flags);
        let made = made.map_err(|error| {
            let what = "creating an eventfd of a channel";
            TransportError::system(what, error)
        });
        Ok(Self(made?))
    }

    pub fn set(&self) {
        // EAGAIN: the counter is full, so it is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn clear(&self) {
        // EAGAIN: it was not set.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.set();
    }
}

/// Whether the owner was asked to say that there is something.
#[derive(Clone, Copy)]
enum Armed {
    /// No: the descriptor is readable, or it was never armed.
    No,
    /// Some thread is about to.
    Soon,
    /// Yes, by the request of this number, which may be answered by now.
    By(u64),
}

/// The descriptor of a port, and the poll that sets it.
pub(super) struct Event {
    signal: Arc<Signal>,
    waker: Waker,
    armed: Mutex<Armed>,
}

/// What the job knows an event by, where requests have their numbers.
const EVENT: u64 = u64::MAX;

impl Event {
    fn new() -> Result<Self> {
        let signal = Arc::new(Signal::new()?);
        Ok(Self {
            waker: Waker::from(Arc::clone(&signal)),
            signal,
            armed: Mutex::new(Armed::No),
        })
    }

    /// Has it set where the job fails.
    fn hear_of_failure<S: Seat>(&self, port: &Port<S>) -> Result<()> {
        if S::MOVES_ALONE {
            let hear = |job: &mut JobState| {
                Ok((job.parked).hear_of_failure(port.awaited(EVENT), &self.waker))
            };
            drop(port.channels().handle.seat.with(GET, hear)?);
        }
        Ok(())
    }

    fn armed(&self) -> trihop_transport::sync::MutexGuard<'_, Armed> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears it, and has it set again once there is something to be had: at once where there is
    /// now, or the error that the job has ended. Nothing to do where that is so already.
    fn arm<S: Seat>(&self, port: &Port<S>) -> Result<()> {
        let armed = self.arm_by_poll(port);
        // Whoever has ended it sets what hears of that before or after this.
        if armed.is_err() || port.channels().handle.seat.may_have_ended() {
            self.signal.set();
        }
        armed
    }

    fn arm_by_poll<S: Seat>(&self, port: &Port<S>) -> Result<()> {
        let client = || port.channels().office.client();
        {
            let mut armed = self.armed();
            match *armed {
                Armed::Soon => return Ok(()),
                Armed::By(id) => {
                    // Who answered the request before may be late to set it. What answers this one
                    // is there before it is set.
                    self.signal.clear();
                    if client().take_answer(port.number(), id).is_none() {
                        return Ok(());
                    }
                }
                Armed::No => {}
            }
            *armed = Armed::Soon;
        }
        self.signal.clear();
        // With no lock held: it may wake others.
        let asked = port.start_poll(port.kind().ready(), &Limit::new(Timeout::Never));
        let mut armed = self.armed();
        *armed = Armed::No;
        let id = asked?;
        let mut client = client();
        if client.take_answer(port.number(), id).is_some() {
            self.signal.set();
        } else {
            *armed = Armed::By(id);
            drop(client.wake(port.number(), id, &self.waker));
        }
        Ok(())
    }
}

impl<S: Seat> Port<S> {
    /// A get, or a poll that takes, has ended so. Where that has found nothing, the event becomes
    /// readable once there is something.
    pub(super) fn got(&self, error: &Error) {
        if let (Error::WouldBlock | Error::TimedOut(_), Some(event)) = (error, self.event.get()) {
            // Where that fails it is readable, and whoever gets then hears why.
            let _ = event.arm(self);
        }
    }

    /// The port is closed.
    pub(super) fn end_event(&mut self) {
        let Some(event) = self.event.take() else {
            return;
        };
        let channels = self.channels();
        if S::MOVES_ALONE {
            let awaited = self.awaited(EVENT);
            let no_longer = |job: &mut JobState| Ok(job.parked.no_longer_hears(awaited));
            // A job that has failed has woken all.
            drop(channels.handle.seat.with(GET, no_longer));
        }
        let Armed::By(id) = *event.armed() else {
            return;
        };
        let (requests, _) = channels.office.client().abandon(self.number(), id);
        for (request, bytes) in requests {
            self.ask_later(request, bytes);
        }
    }
}

impl<S: Seat> Channel<S> {
    /// A file descriptor for `poll`, `epoll` and their like, which is readable while something may
    /// be had from the channel without waiting: a message; one of a semaphore
    /// ([`Poll::Acquire`](super::Poll::Acquire)); of a barrier, the place of the last one to come
    /// ([`Poll::Arrive`](super::Poll::Arrive)), or the error that it is broken; or the error that
    /// the channel is closed or the job has failed. It is the port's: the same at each call, closed
    /// with the port, and neither to be read nor written. Who comes to a barrier before the last
    /// one starts that, and sleeps on [`Asked::event`](super::Asked::event).
    ///
    /// It is armed by the first call of this, and again by each get, peek, pop, acquisition and
    /// arrival of this port that finds nothing ([`Error::WouldBlock`], [`Error::TimedOut`]), or
    /// whose future ends so. So whoever is woken takes until nothing is found, and then sleeps.
    /// Until then it stays readable, also where another port, or a call that waited, has taken what
    /// there was. While it is armed it counts as one request of the port's that waits; each arming
    /// costs a request to the owner, and no message beyond that.
    ///
    /// On a job with threads it becomes readable by itself. On an inline job it does so only inside
    /// calls that make progress, of whichever stream: whoever sleeps on it there calls
    /// [`Channels::progress`](super::Channels::progress) now and then, or sleeps for ever.
    ///
    /// ```
    /// use trihop_shuffle::channel::{Return, Timeout};
    /// use trihop_shuffle::{ChannelLimits, Error, Options, threaded};
    ///
    /// let job = threaded::Job::start(Options::from_env()?)?;
    /// let channels = job.channels("inbox").open()?;
    /// let inbox = channels.create(ChannelLimits::default())?;
    /// let event = inbox.event()?; // for epoll, with others
    /// # let _ = event;
    /// inbox.send(0, b"news", Return::WhenDeposited, Timeout::Never)?;
    /// // It is readable now, until a get finds nothing.
    /// let mut count = 0;
    /// let outcome = loop {
    ///     match inbox.get(Timeout::Once) {
    ///         Ok(_) => count += 1,
    ///         Err(error) => break error,
    ///     }
    /// };
    /// assert_eq!((count, outcome), (1, Error::WouldBlock));
    /// drop(inbox);
    /// channels.shutdown()?;
    /// job.shutdown()?;
    /// # Ok::<(), trihop_shuffle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::System`] where descriptors run out; [`Error::WouldBlock`] where as many requests of
    /// the port wait as may; [`Error::Nested`] inside a handler of an inline job.
    pub fn event(&self) -> Result<BorrowedFd<'_>> {
        let port = &**self.port();
        let event = match port.event.get() {
            Some(event) => event,
            None => {
                // Of several threads that come first, one's is kept.
                let event = Event::new()?;
                let event = port.event.get_or_init(|| event);
                let hears = event.hear_of_failure(port);
                hears.inspect_err(|_| event.signal.set())?;
                event.arm(port)?;
                event
            }
        };
        Ok(event.signal.fd())
    }
}
