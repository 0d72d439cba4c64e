//! The only importer of atomics, cells and thread primitives; under `cfg(trihop_loom)` they are loom's, under
//! `cfg(trihop_shuttle)` shuttle's.
//!
//! Words in mapped memory are plain machine words whoever compiles us: [`MappedU64`]. The algorithms see either kind
//! through [`Word`], so that loom and shuttle run the code that ships.
#![allow(clippy::disallowed_types)]

use std::time::Duration;

#[cfg(not(any(trihop_loom, trihop_shuttle)))]
pub use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread,
    thread::sleep,
    thread_local,
};

#[cfg(trihop_loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread, thread_local,
};

#[cfg(trihop_shuttle)]
pub use shuttle::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread,
    thread::sleep,
    thread_local,
};
#[cfg(trihop_loom)]
pub use std::thread::sleep;
// Shuttle has no cell: what happens between two of its operations is one step.
#[cfg(trihop_shuttle)]
pub use std::cell::UnsafeCell;

pub use std::sync::{Once, OnceLock, PoisonError};

/// A lock for statics, which outlive every model.
pub use std::sync::Mutex as StaticMutex;

/// A lock whose holder lets go and takes it again in the midst of other people's calls, hence without a guard.
#[cfg(not(any(trihop_loom, trihop_shuttle)))]
pub struct RawLock(parking_lot::RawMutex);

#[cfg(not(any(trihop_loom, trihop_shuttle)))]
impl std::fmt::Debug for RawLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RawLock")
    }
}

#[cfg(not(any(trihop_loom, trihop_shuttle)))]
mod raw_lock {
    use parking_lot::lock_api::{RawMutex, RawMutexFair, RawMutexTimed};

    use super::{Duration, RawLock};

    impl Default for RawLock {
        fn default() -> Self {
            Self(parking_lot::RawMutex::INIT)
        }
    }

    impl RawLock {
        /// Waits until nobody else holds it, and holds it.
        #[inline]
        pub fn lock(&self) {
            self.0.lock();
        }

        /// Waits at most for `limit`; whether it is held now.
        pub fn lock_within(&self, limit: Duration) -> bool {
            self.0.try_lock_for(limit)
        }

        /// Lets go.
        ///
        /// # Safety
        /// The caller holds it.
        #[inline]
        pub unsafe fn unlock(&self) {
            // SAFETY: the caller holds it.
            unsafe { self.0.unlock() }
        }

        /// Hands it over to somebody who sleeps on it, if anybody does, and waits to hold it again.
        ///
        /// # Safety
        /// The caller holds it.
        #[inline]
        pub unsafe fn bump(&self) {
            // SAFETY: the caller holds it.
            unsafe { self.0.bump() }
        }
    }
}

/// A lock whose holder lets go and takes it again in the midst of other people's calls, hence without a guard.
#[cfg(any(trihop_loom, trihop_shuttle))]
#[derive(Debug, Default)]
pub struct RawLock {
    held: Mutex<bool>,
    freed: Condvar,
}

#[cfg(any(trihop_loom, trihop_shuttle))]
impl RawLock {
    /// Waits until nobody else holds it, and holds it.
    pub fn lock(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        while *held {
            held = self.freed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        *held = true;
    }

    /// Holds it if nobody else does; whether it is held now.
    pub fn lock_within(&self, _limit: Duration) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut *held, true)
    }

    /// Lets go.
    ///
    /// # Safety
    /// The caller holds it.
    pub unsafe fn unlock(&self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.freed.notify_one();
    }

    /// Lets go and takes it again.
    ///
    /// # Safety
    /// The caller holds it.
    pub unsafe fn bump(&self) {
        // SAFETY: the caller holds it.
        unsafe { self.unlock() };
        self.lock();
    }
}
pub use std::thread::available_parallelism;

/// A fence. The words beside it may lie in mapped memory, where shuttle sees no access: so others may run here.
#[cfg(trihop_shuttle)]
pub fn fence(order: Ordering) {
    shuttle::sync::atomic::fence(order);
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Sleeps in the kernel by `wait`, whose argument is the longest time that it may take.
#[cfg(not(trihop_shuttle))]
pub fn sleep_in_kernel<R>(
    limit: Duration,
    mut wait: impl FnMut(Duration) -> R,
    _is_ready: impl Fn(&R) -> bool,
) -> R {
    wait(limit)
}

/// Asks by `wait` whether the kernel would end a sleep, and lets others run until it says so: all threads of a model are
/// one of the kernel's, which may not sleep. A sleep of [`MODEL_NAP`] at most ends by itself; a longer one never does, so
/// that the model goes on for ever where its wake-up is lost.
#[cfg(trihop_shuttle)]
pub fn sleep_in_kernel<R>(
    limit: Duration,
    mut wait: impl FnMut(Duration) -> R,
    is_ready: impl Fn(&R) -> bool,
) -> R {
    loop {
        thread::yield_now();
        let found = wait(Duration::ZERO);
        if is_ready(&found) || limit <= MODEL_NAP {
            return found;
        }
    }
}

/// See [`sleep_in_kernel`].
#[cfg(trihop_shuttle)]
const MODEL_NAP: Duration = Duration::from_millis(10);

/// A word in mapped memory, shared with threads and processes.
pub type MappedU64 = std::sync::atomic::AtomicU64;

const _: () = assert!(size_of::<MappedU64>() == 8 && align_of::<MappedU64>() == 8);

/// A shared 64-bit word. The fence that goes with it is [`fence`].
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Writes it and returns what was there.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Sets bits and returns what was there.
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64;
    /// Writes it if it is 0, and says whether it was.
    fn set_first(&self, value: u64, order: Ordering) -> bool;
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                <$atomic>::load(self, order)
            }
            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                <$atomic>::store(self, value, order);
            }
            #[inline]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                <$atomic>::swap(self, value, order)
            }
            #[inline]
            fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
                <$atomic>::fetch_or(self, bits, order)
            }
            #[inline]
            fn set_first(&self, value: u64, order: Ordering) -> bool {
                <$atomic>::compare_exchange(self, 0, value, order, Ordering::Relaxed).is_ok()
            }
        }
    };
}

word!(MappedU64);
#[cfg(any(trihop_loom, trihop_shuttle))]
word!(AtomicU64);

/// Whether something has happened. What was written before it is [raised](Self::raise) is seen by who finds it so.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// It has happened. Pairs with [`is_raised`](Self::is_raised).
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Waits for the next time.
    pub fn lower(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it has happened. Pairs with [`raise`](Self::raise).
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a signal handler sets, which no model has.
pub type Signalled = std::sync::atomic::AtomicBool;

/// Whether it was set, and takes that back.
pub fn take_signalled(signalled: &Signalled) -> bool {
    signalled.swap(false, std::sync::atomic::Ordering::Relaxed)
}
