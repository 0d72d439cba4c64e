//! The only importer of atomics, cells and thread primitives; under `cfg(trihop_loom)` they are
//! loom's, under `cfg(trihop_shuttle)` shuttle's.
//!
//! Words in mapped memory are plain machine words in every build: [`MappedU64`]. The algorithms see
//! either kind through [`Word`], so that loom and shuttle run the code that ships.
#![allow(clippy::disallowed_types)]

use std::time::Duration;

#[cfg(not(any(trihop_loom, trihop_shuttle)))]
pub use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread,
    thread::sleep,
    thread_local,
};

#[cfg(trihop_loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread, thread_local,
};

#[cfg(trihop_shuttle)]
pub use shuttle::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
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

pub use std::sync::{Once, OnceLock, PoisonError, TryLockError};

/// Starts a thread of a scope; those of a model always start.
///
/// # Errors
/// The system has no more threads to give.
#[cfg(not(trihop_loom))]
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<thread::ScopedJoinHandle<'scope, T>> {
    #[cfg(trihop_shuttle)]
    return Ok(scope.spawn(run));
    #[cfg(not(trihop_shuttle))]
    thread::Builder::new().spawn_scoped(scope, run)
}

/// A lock for statics, which outlive every model.
pub use std::sync::Mutex as StaticMutex;

/// A lock whose holder may give way, and what is waited for while it is let go.
#[cfg(not(any(trihop_loom, trihop_shuttle)))]
pub use parking_lot::{Condvar as FairCondvar, Mutex as FairMutex, MutexGuard as FairMutexGuard};

#[cfg(any(trihop_loom, trihop_shuttle))]
pub use fair::{FairCondvar, FairMutex, FairMutexGuard};

/// The calls of parking_lot that are used, over the locks of a model.
#[cfg(any(trihop_loom, trihop_shuttle))]
mod fair {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use super::{Condvar, Mutex, MutexGuard, PoisonError};

    /// A lock.
    #[derive(Debug, Default)]
    pub struct FairMutex<T>(Mutex<T>);

    impl<T> FairMutex<T> {
        /// Nobody holds it.
        pub fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        fn hold(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits until nobody else holds it.
        pub fn lock(&self) -> FairMutexGuard<'_, T> {
            FairMutexGuard {
                lock: self,
                held: Some(self.hold()),
            }
        }

        /// Holds it if nobody else does.
        pub fn try_lock_for(&self, _: Duration) -> Option<FairMutexGuard<'_, T>> {
            let held = self.0.try_lock().ok()?;
            Some(FairMutexGuard {
                lock: self,
                held: Some(held),
            })
        }
    }

    /// A lock that is held.
    #[derive(Debug)]
    pub struct FairMutexGuard<'a, T> {
        lock: &'a FairMutex<T>,
        /// Always there but inside of the calls below.
        held: Option<MutexGuard<'a, T>>,
    }

    impl<T> FairMutexGuard<'_, T> {
        /// Lets go and holds it again.
        pub fn bump(guard: &mut Self) {
            Self::unlocked(guard, || ());
        }

        /// Lets go while `call` runs.
        pub fn unlocked<R>(guard: &mut Self, call: impl FnOnce() -> R) -> R {
            guard.held = None;
            let result = call();
            guard.held = Some(guard.lock.hold());
            result
        }
    }

    impl<T> Deref for FairMutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.held.as_ref().expect("it is held")
        }
    }

    impl<T> DerefMut for FairMutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.held.as_mut().expect("it is held")
        }
    }

    /// What holders wait for.
    #[derive(Debug, Default)]
    pub struct FairCondvar(Condvar);

    impl FairCondvar {
        /// Lets go until somebody notifies. As [`sleep_in_kernel`](super::sleep_in_kernel) says, a
        /// short wait of shuttle's ends by itself.
        pub fn wait_for<T>(&self, guard: &mut FairMutexGuard<'_, T>, limit: Duration) {
            #[cfg(trihop_shuttle)]
            if limit <= super::MODEL_NAP {
                FairMutexGuard::unlocked(guard, super::thread::yield_now);
                return;
            }
            let held = guard.held.take().expect("it is held");
            let (held, _) = self
                .0
                .wait_timeout(held, limit)
                .unwrap_or_else(PoisonError::into_inner);
            guard.held = Some(held);
        }

        /// Wakes all who wait.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
pub use std::thread::available_parallelism;

/// A fence. The words beside it may lie in mapped memory, where shuttle sees no access: so others
/// may run here.
#[cfg(trihop_shuttle)]
pub fn fence(order: Ordering) {
    shuttle::sync::atomic::fence(order);
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// The side of a pair of fences that is passed often: nothing but an order for the compiler where
/// the other side is [`fence_everywhere`].
#[cfg(not(any(trihop_loom, trihop_shuttle)))]
#[inline(always)] // part of every push
pub fn fence_here(order: Ordering) {
    std::sync::atomic::compiler_fence(order);
}

/// The side that is passed seldom: a full fence on each processor that runs a thread of this
/// process, by the kernel. Only where there [is one](can_fence_everywhere).
#[cfg(not(any(trihop_loom, trihop_shuttle)))]
pub fn fence_everywhere(order: Ordering) {
    fence(order);
    let fenced = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    // Nothing is to be done where it is missing but to say so: memory would be written by two.
    assert!(fenced >= 0, "membarrier was registered, and fails now");
}

/// Whether the kernel has [`fence_everywhere`]. Registers the process for it with the first call.
#[cfg(not(any(trihop_loom, trihop_shuttle)))]
pub fn can_fence_everywhere() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
}

#[cfg(not(any(trihop_loom, trihop_shuttle)))]
fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: takes numbers only, and changes no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// A model's fences are full ones on both sides.
#[cfg(any(trihop_loom, trihop_shuttle))]
pub fn fence_here(order: Ordering) {
    fence(order);
}

/// See [`fence_here`].
#[cfg(any(trihop_loom, trihop_shuttle))]
pub fn fence_everywhere(order: Ordering) {
    fence(order);
}

/// Models have it.
#[cfg(any(trihop_loom, trihop_shuttle))]
pub fn can_fence_everywhere() -> bool {
    true
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

/// Asks by `wait` whether the kernel would end a sleep, and lets others run until it says so: all
/// threads of a model are one of the kernel's, which may not sleep. A sleep of [`MODEL_NAP`] at
/// most ends by itself; a longer one never does, so that the model goes on for ever where its
/// wake-up is lost.
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
    /// Adds to it and returns what was there.
    fn fetch_add(&self, more: u64, order: Ordering) -> u64;
    /// Writes it if it is 0, and says whether it was.
    fn set_first(&self, value: u64, order: Ordering) -> bool {
        self.replace(0, value, order)
    }
    /// Writes it if it is `old`, and says whether it was.
    fn replace(&self, old: u64, new: u64, order: Ordering) -> bool;
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
            fn fetch_add(&self, more: u64, order: Ordering) -> u64 {
                <$atomic>::fetch_add(self, more, order)
            }
            #[inline]
            fn replace(&self, old: u64, new: u64, order: Ordering) -> bool {
                <$atomic>::compare_exchange(self, old, new, order, Ordering::Relaxed).is_ok()
            }
        }
    };
}

word!(MappedU64);
#[cfg(any(trihop_loom, trihop_shuttle))]
word!(AtomicU64);

/// Whether something has happened. What was written before it is [raised](Self::raise) is seen by
/// who finds it so.
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

/// How often something has happened. It orders nothing: a lock or a fence beside it does.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Once more; how often before.
    pub fn add_one(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// How often so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a signal handler sets, which no model has.
pub type Signalled = std::sync::atomic::AtomicBool;

/// Whether it was set, and takes that back.
pub fn take_signalled(signalled: &Signalled) -> bool {
    signalled.swap(false, std::sync::atomic::Ordering::Relaxed)
}
