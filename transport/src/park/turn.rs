//! Taking turns: several threads use what only one may use at a time, and wait for what another one moves.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError, RawLock};

/// Whose turn it is. Who has it may wait for others to move something, and lets them have the turn meanwhile.
///
/// Whatever is guarded is reached with the turn only; it is no guard's to hand out, because a call that waits gives the
/// turn away in its midst.
#[derive(Debug, Default)]
pub struct Turn {
    lock: RawLock,
    bench: Mutex<Bench>,
    news: Condvar,
}

/// Who sits out.
#[derive(Debug, Default)]
struct Bench {
    sitting: u32,
    /// How often something was moved while somebody sat out. Changed by those who have the turn.
    moved: u64,
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
        let mut bench = self.bench();
        bench.sitting += 1;
        let seen = bench.moved;
        // SAFETY: the caller has the turn. Whoever takes it now finds us on the bench.
        unsafe { self.leave() };
        while bench.moved == seen {
            let (again, slept) = self
                .news
                .wait_timeout(bench, limit)
                .unwrap_or_else(PoisonError::into_inner);
            bench = again;
            if slept.timed_out() {
                break;
            }
        }
        bench.sitting -= 1;
        drop(bench);
        self.take();
    }

    /// Wakes all who sit out, because something that they may wait for has changed. The caller has the turn: else the
    /// change could fall between a look and a sleep.
    pub fn tell_moved(&self) {
        let mut bench = self.bench();
        if bench.sitting > 0 {
            bench.moved += 1;
            self.news.notify_all();
        }
    }

    fn bench(&self) -> MutexGuard<'_, Bench> {
        self.bench.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
