//! Taking turns: several threads use what only one may use at a time, and wait for what another one moves.

use std::time::Duration;

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, PoisonError, RawLock};

/// Whose turn it is. Who has it may wait for others to move something, and lets them have the turn meanwhile.
///
/// Whatever is guarded is reached with the turn only; it is no guard's to hand out, because a call that waits gives the
/// turn away in its midst.
#[derive(Debug, Default)]
pub struct Turn {
    lock: RawLock,
    /// How often something was moved while somebody sat out. Written with the turn only.
    moved: Mutex<u64>,
    news: Condvar,
    /// Threads that sit out. Read and written with the turn only: the lock orders it.
    sitting: AtomicU32,
}

impl Turn {
    /// Waits for the turn.
    #[inline]
    pub fn take(&self) {
        self.lock.lock();
    }

    /// Takes the turn if it comes within a tenth of a second: for looking at what is stuck. Whether it was taken.
    pub fn try_take(&self) -> bool {
        self.lock.lock_within(Duration::from_millis(100))
    }

    /// Ends the turn.
    ///
    /// # Safety
    /// The caller has the turn, and keeps no borrow of what it guards.
    #[inline]
    pub unsafe fn leave(&self) {
        // SAFETY: the caller has the turn, which is the lock.
        unsafe { self.lock.unlock() }
    }

    /// Lets somebody else have the turn who has gone to sleep for it, and takes it again. Cheap while nobody has.
    ///
    /// # Safety
    /// As [`leave`](Self::leave).
    #[inline]
    pub unsafe fn give_way(&self) {
        // SAFETY: the caller has the turn, which is the lock.
        unsafe { self.lock.bump() }
    }

    /// Sleeps until [`tell_moved`](Self::tell_moved), or for `limit`, and lets others have the turn meanwhile.
    ///
    /// # Safety
    /// As [`leave`](Self::leave).
    pub unsafe fn sit_out(&self, limit: Duration) {
        let seen = *self.count();
        self.sitting.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller has the turn.
        unsafe { self.leave() };
        let mut count = self.count();
        while *count == seen {
            let (again, slept) = self
                .news
                .wait_timeout(count, limit)
                .unwrap_or_else(PoisonError::into_inner);
            count = again;
            if slept.timed_out() {
                break;
            }
        }
        drop(count);
        self.take();
        self.sitting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes all who sit out, because something that they may wait for has changed. The caller has the turn: else the
    /// change could fall between a look and a sleep.
    #[inline]
    pub fn tell_moved(&self) {
        if self.sitting.load(Ordering::Relaxed) > 0 {
            *self.count() += 1;
            self.news.notify_all();
        }
    }

    fn count(&self) -> crate::sync::MutexGuard<'_, u64> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
