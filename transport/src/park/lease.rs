//! What one thread uses without the turn, until that is recalled.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::time::Duration;

use crate::ring::{Orderings, Shipped};
use crate::sync::{AtomicU32, AtomicUsize, Ordering, fence_everywhere, fence_here, sleep, thread};

/// Holder of a lease that nobody has: no thread's number.
const NOBODY: usize = 1;

/// How often a recall looks before it sleeps in between.
const LOOKS: u32 = 64;

/// How long it sleeps then: a use takes nanoseconds unless its thread was stopped.
const NAP: Duration = Duration::from_micros(50);

/// The right of one thread to use something of which another one may take the turn at any time.
///
/// The holder pays no atomic operation that others would wait for, only plain loads and stores: who
/// recalls pays instead, by a fence on all processors ([`fence_everywhere`]). So a lease is for what
/// one thread uses thousands of times while nobody else wants it.
///
/// `trihop.h` has the code of a use, and so this layout.
#[repr(C)]
#[derive(Debug)]
pub struct Lease {
    /// The thread that has it.
    holder: AtomicUsize,
    /// That thread is using it.
    in_use: AtomicU32,
    /// It is wanted back.
    is_recalled: AtomicU32,
}

/// What `trihop.h` says.
#[cfg(not(any(trihop_loom, trihop_shuttle)))] // whose words are larger
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Lease, holder) == 0 && offset_of!(Lease, in_use) == size_of::<usize>());
    assert!(offset_of!(Lease, is_recalled) == size_of::<usize>() + 4);
};

/// A use of a lease, until it is dropped.
#[derive(Debug)]
pub struct LeaseUse<'a, O: Orderings = Shipped> {
    lease: &'a Lease,
    orderings: std::marker::PhantomData<O>,
}

impl Lease {
    /// One that nobody has.
    pub fn of_nobody() -> Self {
        Self::held_by(NOBODY)
    }

    /// What no lease is needed for: all is used on one thread. Uses in C ask no further then.
    pub fn not_needed() -> Self {
        Self::held_by(0)
    }

    fn held_by(holder: usize) -> Self {
        Self {
            holder: AtomicUsize::new(holder),
            in_use: AtomicU32::new(0),
            is_recalled: AtomicU32::new(0),
        }
    }

    /// `thread` has it from now on. By who has the turn, while nobody has the lease.
    pub fn grant(&self, thread: usize) {
        self.is_recalled.store(0, Ordering::Relaxed);
        self.holder.store(thread, Ordering::Relaxed);
    }

    /// Begins a use, if `thread`, which is the caller's, has the lease. One at a time.
    #[inline(always)] // part of every push
    pub fn enter<O: Orderings>(&self, thread: usize) -> Option<LeaseUse<'_, O>> {
        if self.holder.load(Ordering::Relaxed) != thread {
            return None;
        }
        self.in_use.store(1, Ordering::Relaxed);
        // Pairs with the fence of `recall`: either that sees the use, or this sees the recall.
        fence_here(O::LEASE_ENTER_FENCE);
        let entered = LeaseUse {
            lease: self,
            orderings: std::marker::PhantomData,
        };
        (self.is_recalled.load(Ordering::Relaxed) == 0).then_some(entered)
    }

    /// Takes it back, and waits for the end of a use that is under way. By who has the turn;
    /// `thread` is the caller's. Whether another thread had it.
    pub fn recall<O: Orderings>(&self, thread: usize) -> bool {
        let holder = self.holder.load(Ordering::Relaxed);
        let is_others = holder != thread && holder != NOBODY;
        if is_others {
            self.is_recalled.store(1, Ordering::Relaxed);
            // Pairs with the fence of `enter`.
            fence_everywhere(O::LEASE_RECALL_FENCE);
            let mut looks = 0;
            // Pairs with the end of a use: what that has changed is seen.
            while self.in_use.load(O::LEASE_LOOK) != 0 {
                looks += 1;
                if looks < LOOKS {
                    thread::yield_now();
                } else {
                    sleep(NAP);
                }
            }
        }
        self.holder.store(NOBODY, Ordering::Relaxed);
        is_others
    }
}

impl<O: Orderings> Drop for LeaseUse<'_, O> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the look of `recall`.
        self.lease.in_use.store(0, O::LEASE_LEAVE);
    }
}

pub use number::this_thread;

#[cfg(all(
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(trihop_loom, trihop_shuttle))
))]
mod number {
    /// Whether threads have numbers that programs in C find out as fast.
    pub(super) const ARE_KNOWN: bool = true;

    /// A number that no other living thread of the process has: where its control block lies.
    #[inline(always)] // part of every push
    pub fn this_thread() -> usize {
        let number: usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the ABI has the address of the control block in the block's first word, to which
        // the segment register points; nothing is written.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) number, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: reads the thread's register.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) number, options(nomem, nostack, preserves_flags));
        }
        number
    }
}

#[cfg(all(
    not(all(
        target_pointer_width = "64",
        any(target_arch = "x86_64", target_arch = "aarch64")
    )),
    not(any(trihop_loom, trihop_shuttle))
))]
mod number {
    pub(super) const ARE_KNOWN: bool = false;

    /// Threads have no numbers here, and no leases.
    pub fn this_thread() -> usize {
        usize::MAX
    }
}

#[cfg(any(trihop_loom, trihop_shuttle))]
mod number {
    use crate::sync::thread_local;

    pub(super) const ARE_KNOWN: bool = true;

    thread_local! {
        static HERE: Box<u8> = Box::new(0);
    }

    /// All threads of a model are one of the kernel's.
    pub fn this_thread() -> usize {
        HERE.with(|here| (&raw const **here) as usize)
    }
}

/// Whether there can be leases here: threads have numbers, and the kernel has the fence. The first
/// call of a process is cheapest before it starts threads.
pub fn can_lease() -> bool {
    number::ARE_KNOWN && crate::sync::can_fence_everywhere()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicBool, AtomicU64};

    #[test]
    fn the_holder_alone_enters() {
        if !can_lease() {
            eprintln!("skipped: no leases on this machine");
            return;
        }
        let lease = Lease::of_nobody();
        assert!(lease.enter::<Shipped>(8).is_none());
        lease.grant(8);
        assert!(lease.enter::<Shipped>(16).is_none());
        assert!(lease.enter::<Shipped>(8).is_some());
        assert!(!lease.recall::<Shipped>(8), "the holder's own recall");
        assert!(lease.enter::<Shipped>(8).is_none());
        lease.grant(8);
        assert!(lease.recall::<Shipped>(16));
        assert!(lease.enter::<Shipped>(8).is_none());
        assert!(!lease.recall::<Shipped>(16), "nobody has it");
        lease.grant(8);
        assert!(lease.enter::<Shipped>(8).is_some(), "a recall is over");
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        if can_lease() {
            let here = this_thread();
            assert_eq!(here, this_thread());
            let there = thread::spawn(this_thread).join().expect("it returns");
            assert_ne!(here, there);
        }
    }

    /// Two counts that only the holder, or who has recalled the lease, changes together.
    #[test]
    fn nobody_enters_behind_a_recall() {
        if !can_lease() {
            eprintln!("skipped: no leases on this machine");
            return;
        }
        const RECALLS: u64 = 2_000;
        let lease = Lease::of_nobody();
        let (a, b, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let holder = AtomicUsize::new(NOBODY);
        let add = || {
            let before = a.load(Ordering::Relaxed);
            a.store(before + 1, Ordering::Relaxed);
            b.store(b.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            assert_eq!(before + 1, b.load(Ordering::Relaxed));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                holder.store(this_thread(), Ordering::Release);
                while !over.load(Ordering::Acquire) {
                    if let Some(_entered) = lease.enter::<Shipped>(this_thread()) {
                        add();
                    }
                }
            });
            while holder.load(Ordering::Acquire) == NOBODY {
                thread::yield_now();
            }
            for _ in 0..RECALLS {
                lease.grant(holder.load(Ordering::Relaxed));
                thread::yield_now();
                lease.recall::<Shipped>(this_thread());
                add();
            }
            over.store(true, Ordering::Release);
        });
        assert!(a.into_inner() >= RECALLS);
    }
}
