//! A monitor: several threads use what only one may use at a time, by turns, and wait for what
//! another one moves.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{FairCondvar, FairMutex, FairMutexGuard};

/// How long [`Monitor::try_take`] waits.
const SOON: Duration = Duration::from_millis(100);

/// What is used by turns. Who has the turn may wait for others to move something, and lets them
/// have the turn meanwhile.
#[derive(Debug, Default)]
pub struct Monitor<T> {
    lock: FairMutex<T>,
    moved: FairCondvar,
    relief: FairCondvar,
}

/// The turn, until it is dropped.
#[derive(Debug)]
pub struct MonitorGuard<'a, T> {
    guard: FairMutexGuard<'a, T>,
    moved: &'a FairCondvar,
    relief: &'a FairCondvar,
}

impl<T> Monitor<T> {
    /// Nobody has the turn.
    pub fn new(value: T) -> Self {
        Self {
            lock: FairMutex::new(value),
            moved: FairCondvar::default(),
            relief: FairCondvar::default(),
        }
    }

    /// Waits for the turn.
    #[inline]
    pub fn take(&self) -> MonitorGuard<'_, T> {
        MonitorGuard {
            guard: self.lock.lock(),
            moved: &self.moved,
            relief: &self.relief,
        }
    }

    /// Takes the turn if it comes within a tenth of a second: for looking at what is stuck.
    pub fn try_take(&self) -> Option<MonitorGuard<'_, T>> {
        let guard = self.lock.try_lock_for(SOON)?;
        Some(MonitorGuard {
            guard,
            moved: &self.moved,
            relief: &self.relief,
        })
    }
}

impl<T> MonitorGuard<'_, T> {
    /// Lets somebody else have the turn who has gone to sleep for it, and takes it again. Cheap
    /// while nobody has.
    #[inline]
    pub fn give_way(&mut self) {
        FairMutexGuard::bump(&mut self.guard);
    }

    /// Lets others have the turn while `call` runs.
    pub fn unlocked<R>(&mut self, call: impl FnOnce() -> R) -> R {
        FairMutexGuard::unlocked(&mut self.guard, call)
    }

    /// Sleeps until [`wake_all`](Self::wake_all), or for `limit`, and lets others have the turn
    /// meanwhile. It may end without a reason.
    pub fn sit_out(&mut self, limit: Duration) {
        self.moved.wait_for(&mut self.guard, limit);
    }

    /// Sleeps until [`relieve`](Self::relieve), or for `limit`, and lets others have the turn
    /// meanwhile: who does something where nobody else does. It may end without a reason.
    pub fn stand_by(&mut self, limit: Duration) {
        self.relief.wait_for(&mut self.guard, limit);
    }

    /// Wakes who stands by. By who has the turn.
    pub fn relieve(&self) {
        self.relief.notify_all();
    }

    /// Wakes all who sit out, because something that they may wait for has changed. By who has the
    /// turn: else the change could fall between a look and a sleep.
    #[inline]
    pub fn wake_all(&self) {
        self.moved.notify_all();
    }
}

impl<T> Deref for MonitorGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MonitorGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
