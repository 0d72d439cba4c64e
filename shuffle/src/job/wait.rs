//! How a job waits: it makes progress, backs off while nothing moves, and sleeps until somebody rings, the fabric has news or
//! a local peer ends. Among threads those that call sit out, and the progress thread alone sleeps here.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use trihop_transport::link::Link;
use trihop_transport::park::{Backoff, Parker, Step, spin_budget};
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::sync::Flag;

use super::JobState;
use crate::error::{Error, Result};
use crate::node::NodeExchange;

/// Longest sleep while nothing waits for time: how often peers' lives are looked at.
pub(super) const PARK: Duration = Duration::from_millis(100);
/// Longest sleep while something waits that no descriptor announces.
const NAP: Duration = Duration::from_millis(1);
/// Mark of the link's descriptor in the parker; local peers have their rank.
const LINK_MARK: u64 = 1 << 32;
/// Mark of the socket over which the node's ranks hand descriptors to each other.
const HANDOVER_MARK: u64 = LINK_MARK + 1;

/// What a job sleeps on, and what its threads know of each other's sleep.
pub(super) struct Waiting {
    doorbell: Doorbell,
    parker: RefCell<Parker>,
    /// How long a wait spins.
    spin: Duration,
    woken: RefCell<Vec<u64>>,
    /// How the progress thread sleeps.
    sleep: Cell<Sleep>,
    /// A caller went to sit out while the progress thread was awake: what it waits for may have come before that thread
    /// wants to hear of it.
    newcomer: Cell<bool>,
    /// A caller has made progress since the progress thread did: it makes more soon, or the nap ends.
    relieved: Cell<bool>,
    /// See [`PATIENCE_NS`].
    patience_ns: Cell<u64>,
    /// What has ended progress, whoever met it: among threads, all others hear of it.
    failure: RefCell<Option<Arc<Error>>>,
    /// There is a failure, for those without the turn. Pairs with itself: nothing is read by it.
    failed: Flag,
}

impl Waiting {
    /// Sleeps on the doorbell, the link's news, the node's parcels and the lives of its ranks; spins as is due among
    /// `neighbours` ranks that share the cores.
    pub fn new(
        doorbell: Doorbell,
        link: Option<&dyn Link>,
        node: &NodeExchange,
        neighbours: u32,
    ) -> Result<Self> {
        let mut parker = Parker::new(&doorbell)?;
        if let Some(descriptor) = link.and_then(|l| l.wait_descriptor()) {
            parker.watch_news(descriptor, LINK_MARK)?;
        }
        parker.watch(node.handover.descriptor(), HANDOVER_MARK)?;
        for (rank, watch) in &node.watches {
            parker.watch(watch.descriptor(), u64::from(*rank))?;
        }
        Ok(Self {
            doorbell,
            parker: RefCell::new(parker),
            spin: spin_budget(neighbours as usize),
            woken: RefCell::default(),
            sleep: Cell::new(Sleep::Awake),
            newcomer: Cell::new(false),
            relieved: Cell::new(false),
            patience_ns: Cell::new(PATIENCE_NS),
            failure: RefCell::default(),
            failed: Flag::default(),
        })
    }
}

/// How the progress thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// It looks around again very soon.
    Nap,
    /// Until somebody rings.
    Deep,
}

/// Reasons that one line in the log names at most.
const MOST_REASONS: usize = 8;
/// A wait that lasts longer than this is logged.
const PATIENCE_NS: u64 = 10_000_000_000;

/// How long a call has waited.
#[derive(Debug, Default)]
struct Patience {
    since_ns: Option<u64>,
    ended: bool,
}

impl Patience {
    /// Whether the wait has just become a long one; asked while it lasts, and true once at most.
    fn ends(&mut self, now_ns: u64, limit_ns: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let is_long = !self.ended && now_ns.saturating_sub(since_ns) >= limit_ns;
        self.ended |= is_long;
        is_long
    }
}

/// Who waits, and so how he passes the time.
#[derive(Debug, Clone, Copy)]
enum Waiter<'a> {
    /// A call, for this.
    Caller(&'a str),
    /// The progress thread, until the flag is raised and the doorbell rung. Raised before it is rung, whose fence pairs
    /// with that of the sleep which looks here once more.
    ProgressThread(&'a Flag),
}

impl JobState<'_> {
    /// Progress by a caller who will be back soon: while the progress thread naps, nobody needs to wake it.
    pub fn progress_in_passing(&self) -> Result<bool> {
        if self.waiting.sleep.get() == Sleep::Nap {
            self.waiting.relieved.set(true);
            self.waiting.doorbell.awake();
        }
        let worked = self.progress()?;
        if let Some(turn) = self.turn.get().filter(|_| worked) {
            // It may be what others wait for, and nobody else finds it any more.
            turn.tell_moved();
        }
        Ok(worked)
    }

    /// Makes progress until `done` gives a value; sleeps while nothing moves. Among threads, others have their turns
    /// meanwhile: the caller keeps no borrow of anything that they reach. `what` is waited for: it is logged once, at level
    /// warn, if it takes long.
    pub fn wait<T>(&self, what: &str, done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        self.wait_as(Waiter::Caller(what), done)
    }

    fn wait_as<T>(&self, waiter: Waiter<'_>, mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let mut backoff = Backoff::new(self.waiting.spin);
        let mut patience = Patience::default();
        // Whether the progress thread may sleep without knowing what is waited for here.
        let mut unknown = true;
        loop {
            if let Some(value) = done()? {
                return Ok(value);
            }
            if self.progress()? {
                backoff.reset();
                unknown = true;
                if let Some(turn) = self.turn.get() {
                    turn.tell_moved();
                    // SAFETY: who calls has the turn, since there is one; nothing is borrowed here.
                    unsafe { turn.give_way() };
                }
                continue;
            }
            if let Waiter::Caller(what) = waiter
                && patience.ends(self.now_ns(), self.waiting.patience_ns.get())
            {
                self.warn_of_long_wait(what);
            }
            let step = match waiter {
                Waiter::ProgressThread(_) if self.waiting.relieved.take() => Step::Park,
                _ => backoff.next(),
            };
            match (step, self.turn.get(), waiter) {
                (Step::Spin, ..) => std::hint::spin_loop(),
                (Step::Yield, None, _) => std::thread::yield_now(),
                (Step::Yield, Some(turn), _) => {
                    // SAFETY: as above.
                    unsafe { turn.leave() };
                    std::thread::yield_now();
                    turn.take();
                }
                (Step::Park, Some(turn), Waiter::Caller(_)) => {
                    if self.waiting.sleep.get() == Sleep::Awake {
                        self.waiting.newcomer.set(true);
                    } else if std::mem::take(&mut unknown) || self.has_unasked_wish() {
                        self.wake_from(Sleep::Nap);
                    }
                    // SAFETY: as above.
                    unsafe { turn.sit_out(PARK) };
                }
                (Step::Park, turn, waiter) => {
                    self.park(waiter)?;
                    if let Some(turn) = turn {
                        turn.tell_moved();
                    }
                }
            }
        }
    }

    /// A shorter wait is a long one already.
    #[cfg(test)]
    pub fn lose_patience_after(&self, limit: Duration) {
        self.waiting.patience_ns.set(limit.as_nanos() as u64);
    }

    /// Whether the progress thread sleeps until somebody rings.
    #[cfg(test)]
    pub fn sleeps_deeply(&self) -> bool {
        self.waiting.sleep.get() == Sleep::Deep
    }

    /// Says once that a call waits for long: for which ranks, and at which stage messages are kept.
    #[cold]
    fn warn_of_long_wait(&self, what: &str) {
        let seconds = self.waiting.patience_ns.get() / 1_000_000_000;
        let rank = self.endpoint.topology.rank().0;
        let mut reasons = Vec::new();
        if let Ok(streams) = self.endpoint.streams.try_borrow() {
            for core in streams.iter() {
                let of_stream = core.reasons().into_iter();
                reasons.extend(of_stream.map(|reason| format!("`{}`: {reason}", core.name)));
            }
        }
        if let Ok(collectives) = self.endpoint.collectives.try_borrow() {
            let awaited = collectives.awaited();
            if !awaited.is_empty() {
                let ranks: Vec<u32> = awaited.iter().map(|rank| rank.0).collect();
                reasons.push(format!(
                    "collectives: ranks {ranks:?}, or ranks behind them, have not joined (a fence, a barrier, the opening \
                     of a stream or the end of the job)"
                ));
            }
        }
        if reasons.is_empty() {
            reasons.push("nothing is kept on this rank: others have not come so far".to_owned());
        }
        let more = reasons.len().saturating_sub(MOST_REASONS);
        reasons.truncate(MOST_REASONS);
        if more > 0 {
            reasons.push(format!("and {more} more"));
        }
        let why = reasons.join("; ");
        tracing::warn!(rank, seconds, why, "waiting for {what}; a dump says more");
    }

    /// What the progress thread does until `stopping`, with a `look` before each round. Its caller has the turn, which
    /// `look` may give away meanwhile. Ends at an error, which is kept for all callers.
    pub fn progress_until(&self, stopping: &Flag, look: impl Fn()) {
        let outcome = self.wait_as(Waiter::ProgressThread(stopping), || {
            look();
            Ok(stopping.is_raised().then_some(()))
        });
        if let Err(error) = outcome {
            self.keep_failure(error);
        }
        if let Some(turn) = self.turn.get() {
            turn.tell_moved();
        }
    }

    /// Keeps, among threads, what has ended progress, and wakes everybody for it: the engine says it once, to whoever
    /// asks first. Returns what the caller is told.
    pub(super) fn keep_failure(&self, error: Error) -> Error {
        // At the very end peers go when they like: nobody needs them any more.
        let Some(turn) = self.turn.get().filter(|_| !self.closing.get()) else {
            return error;
        };
        let error = match error {
            Error::Nested(_) => return error,
            Error::Stopped(error) => error,
            error => Arc::new(error),
        };
        let first = Arc::clone(self.waiting.failure.borrow_mut().get_or_insert(error));
        if !self.waiting.failed.is_raised() {
            self.waiting.failed.raise();
            // Nobody would relieve a spill any more.
            if let Ok(streams) = self.endpoint.streams.try_borrow() {
                streams.iter().for_each(|core| core.gauge.end());
            }
            turn.tell_moved();
            self.ring();
        }
        Error::Stopped(first)
    }

    /// Whether there is a failure; needs no turn.
    pub fn has_failed(&self) -> bool {
        self.waiting.failed.is_raised()
    }

    /// What has ended progress, if anything has.
    pub fn check_failure(&self) -> Result<()> {
        match &*self.waiting.failure.borrow() {
            Some(error) => Err(Error::Stopped(Arc::clone(error))),
            None => Ok(()),
        }
    }

    /// What wakes whoever makes progress.
    pub fn bell(&self) -> Arc<Bell> {
        self.waiting.doorbell.bell()
    }

    /// Wakes whoever makes progress; needs no turn.
    pub fn ring(&self) {
        self.waiting.doorbell.ring();
    }

    /// After a call that may have left something to be sent on by age: a progress thread in deep sleep must know.
    #[inline]
    pub fn wake_progress_thread(&self) {
        self.wake_from(Sleep::Deep);
    }

    #[inline]
    fn wake_from(&self, sleep: Sleep) {
        if self.waiting.sleep.get() == sleep || self.waiting.sleep.get() == Sleep::Deep {
            self.waiting.sleep.set(Sleep::Awake);
            self.waiting.doorbell.wake();
        }
    }

    /// Whether a caller waits for room that the progress thread, which sleeps, has not asked for: since it did, somebody
    /// else has taken the room that came.
    fn has_unasked_wish(&self) -> bool {
        self.endpoint
            .streams
            .borrow()
            .iter()
            .any(|core| core.has_unasked_wish())
    }

    /// Lets others have the turn, and sleeps for a moment, where no progress is to be made any more.
    pub(super) fn rest(&self) {
        match self.turn.get() {
            // SAFETY: who calls has the turn, since there is one; nothing is borrowed here.
            Some(turn) => unsafe { turn.sit_out(NAP) },
            None => std::thread::sleep(NAP),
        }
    }

    /// Processes that have ended properly wake nobody again.
    fn forget_ended(&self) -> Result<()> {
        let mut parker = self.waiting.parker.borrow_mut();
        for (_, watch) in self
            .node
            .borrow_mut()
            .watches
            .extract_if(.., |(_, watch)| watch.has_ended())
        {
            parker.unwatch(watch.descriptor())?;
        }
        Ok(())
    }

    fn park(&self, waiter: Waiter<'_>) -> Result<()> {
        let now_ns = self.now_ns();
        let timed = {
            let (streams, link) = (self.endpoint.streams.borrow(), self.endpoint.link.borrow());
            for core in streams.iter() {
                core.want_space(core.urgent.get() > 0);
            }
            let blind = link.as_ref().is_some_and(|l| l.wait_descriptor().is_none());
            blind
                || self.fencing.get()
                || self.has_pending_news()
                || streams.iter().any(|s| s.waits_for_time())
        };
        if let Some(turn) = self.turn.get().filter(|_| self.waiting.newcomer.take()) {
            turn.tell_moved();
        }
        let left = Cell::new(false);
        let stay_awake = || {
            let (streams, mut link) = (self.endpoint.streams.borrow(), self.endpoint.link.borrow_mut());
            let stopping = matches!(waiter, Waiter::ProgressThread(stopping) if stopping.is_raised());
            let awake = stopping
                || self.lives.has_news()
                || streams.iter().any(|s| s.must_stay_awake())
                || link.as_deref_mut().is_some_and(|l| !l.try_wait());
            drop((streams, link));
            if let Some(turn) = self.turn.get().filter(|_| !awake) {
                self.waiting
                    .sleep
                    .set(if timed { Sleep::Nap } else { Sleep::Deep });
                left.set(true);
                // SAFETY: the caller has the turn. What stays borrowed, the parker and its list, only the one thread
                // reaches that parks.
                unsafe { turn.leave() };
            }
            awake
        };
        let mut woken = self.waiting.woken.borrow_mut();
        woken.clear();
        let timeout = if timed { NAP } else { PARK };
        let parked =
            self.waiting
                .parker
                .borrow_mut()
                .park(&self.waiting.doorbell, timeout, stay_awake, &mut woken);
        if let Some(turn) = self.turn.get().filter(|_| left.get()) {
            turn.take();
            self.waiting.sleep.set(Sleep::Awake);
        }
        parked?;
        let (ended, arrived) = (
            woken.iter().any(|&m| m < LINK_MARK),
            woken.contains(&HANDOVER_MARK),
        );
        drop(woken);
        if ended {
            self.look_after_peers(now_ns)?;
            self.forget_ended()?;
        }
        if arrived {
            self.node
                .borrow_mut()
                .keep_arrived(&self.endpoint.topology, self.endpoint.cookie)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_once() {
        let mut patience = Patience::default();
        assert!(!patience.ends(100, 50) && !patience.ends(149, 50));
        assert!(patience.ends(150, 50));
        assert!(
            !patience.ends(151, 50) && !patience.ends(1000, 50),
            "a wait is long once"
        );
    }
}
