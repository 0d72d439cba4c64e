//! What several threads hand each other, of which each sleeps on a doorbell of its own.

use crate::ring::Shipped;
use crate::ring::doorbell::{self, Sleeper};
use crate::sync::{Count, Mutex, MutexGuard, PoisonError};

/// A value that several threads look at and change. Who finds nothing there for itself may sleep
/// on its doorbell: no change is missed, if it asks [`has_changed`](Self::has_changed) once its
/// sleep is announced.
#[derive(Debug, Default)]
pub struct Desk<T> {
    kept: Mutex<T>,
    changes: Count,
}

/// How much of the changes of a [`Desk`] a thread has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen(u64);

impl<T> Desk<T> {
    /// Nobody has changed it.
    pub fn new(value: T) -> Self {
        Self {
            kept: Mutex::new(value),
            changes: Count::default(),
        }
    }

    /// Looks at the value; what is changed later is news for `seen`.
    pub fn look<R>(&self, seen: &mut Seen, look: impl FnOnce(&mut T) -> R) -> R {
        let mut kept = self.lock();
        // With the lock held: no change lies between this and the look.
        seen.0 = self.changes.get();
        look(&mut kept)
    }

    /// Changes the value and wakes those of `sleepers` that sleep.
    pub fn change<'a, S: Sleeper + 'a, R>(
        &self,
        sleepers: impl IntoIterator<Item = &'a S>,
        change: impl FnOnce(&mut T) -> R,
    ) -> R {
        let mut kept = self.lock();
        let result = change(&mut kept);
        self.changes.add_one();
        drop(kept);
        // Each call has a fence between the count and its look whether the other one sleeps. It
        // pairs with that of the announcement: either we see it sleep, or it sees the count.
        for sleeper in sleepers {
            doorbell::call::<S, Shipped>(sleeper);
        }
        result
    }

    /// Whether it was changed since `seen`, as far as this thread knows: without the lock.
    #[inline]
    pub fn is_changed(&self, seen: Seen) -> bool {
        self.changes.get() != seen.0
    }

    /// Whether it was changed since `seen`, which knows of it then: to be asked once a sleep is
    /// announced. Who waits for something looks again before the next sleep, and who waits for
    /// nothing here wakes up once for each change.
    #[inline]
    pub fn has_changed(&self, seen: &mut Seen) -> bool {
        let changes = self.changes.get();
        std::mem::replace(&mut seen.0, changes) != changes
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
