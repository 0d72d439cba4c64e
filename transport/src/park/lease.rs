//! What one thread uses without the turn, until that is recalled.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::marker::PhantomData;
use std::time::Duration;

use crate::ring::{Orderings, Shipped};
use crate::sync::{AtomicU32, AtomicUsize, Ordering, fence_everywhere, fence_here, sleep, thread};

/// Holder of a lease that nobody has: no thread's, whose number is not 0.
const NOBODY: usize = 1;

/// How often a recall looks before it sleeps in between.
const LOOKS: u32 = 64;

/// How long it sleeps then: a use takes nanoseconds unless its thread was stopped.
const NAP: Duration = Duration::from_micros(50);

/// Threads that can have a lease, one after the other, as long as it is there.
const USERS: usize = 64;

/// Of a holder, the lowest bits say which of them it is, the others the number of the thread.
const PLACE_BITS: u32 = 8;
const PLACE: usize = (1 << PLACE_BITS) - 1;

/// The right of one thread to use something of which another one may take the turn at any time.
///
/// The holder pays no atomic operation that others would wait for, only plain loads and stores: who
/// recalls pays instead, by a fence on all processors ([`fence_everywhere`]). So a lease is for what
/// one thread uses thousands of times while nobody else wants it.
///
/// A thread may be stopped in front of the store by which it says that it uses the lease, and go on
/// when others have it. So each has a word of its own for that, which no other thread ever writes.
/// There are words for 64 threads; those that come later get no lease.
///
/// `trihop.h` has the code of a use, and so this layout.
#[repr(C)]
#[derive(Debug)]
pub struct Lease {
    /// The thread that has it, and in the lowest bits which word is that thread's.
    holder: AtomicUsize,
    /// A thread is using it, by the thread's place.
    in_use: [AtomicU32; USERS],
    /// Whose word that is.
    users: [AtomicUsize; USERS],
}

/// What `trihop.h` says.
#[cfg(not(any(trihop_loom, trihop_shuttle)))] // whose words are larger
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Lease, holder) == 0 && offset_of!(Lease, in_use) == size_of::<usize>());
    assert!(offset_of!(Lease, users) == size_of::<usize>() + 4 * USERS && USERS == 64);
    assert!(size_of::<Lease>() == 65 * size_of::<usize>() + 4 * USERS && PLACE_BITS == 8);
};

/// A use of a lease, until it is dropped.
#[derive(Debug)]
pub struct LeaseUse<'a, O: Orderings = Shipped> {
    word: &'a AtomicU32,
    orderings: PhantomData<O>,
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
            in_use: [(); USERS].map(|()| AtomicU32::new(0)),
            users: [(); USERS].map(|()| AtomicUsize::new(NOBODY)),
        }
    }

    /// `thread`, which is the caller's, has it from now on, if it can. With the turn, while nobody
    /// has the lease.
    pub fn grant(&self, thread: usize) -> bool {
        if thread.leading_zeros() < PLACE_BITS {
            return false; // no address of a program is so high, where threads have numbers
        }
        let is_of = |whose: usize| {
            let users = &mut self.users.iter();
            users.position(|user| user.load(Ordering::Relaxed) == whose)
        };
        let Some(place) = is_of(thread).or_else(|| is_of(NOBODY)) else {
            return false;
        };
        self.users[place].store(thread, Ordering::Relaxed);
        (self.holder).store(thread << PLACE_BITS | place, Ordering::Relaxed);
        true
    }

    /// Begins a use, if `thread`, which is the caller's, has the lease. One at a time.
    #[inline(always)] // part of every push
    pub fn enter<O: Orderings>(&self, thread: usize) -> Option<LeaseUse<'_, O>> {
        let holder = self.holder.load(Ordering::Relaxed);
        if holder >> PLACE_BITS != thread {
            return None;
        }
        let word = &self.in_use[holder & PLACE];
        word.store(1, Ordering::Relaxed);
        // Pairs with the fence of `recall`: either that sees the use, or this sees the recall.
        fence_here(O::LEASE_ENTER_FENCE);
        let entered = LeaseUse {
            word,
            orderings: PhantomData,
        };
        (self.holder.load(Ordering::Relaxed) == holder).then_some(entered)
    }

    /// `thread`, which is the caller's and in no use, needs it no more: who recalls it has nothing
    /// to wait for then.
    #[inline]
    pub fn give_up<O: Orderings>(&self, thread: usize) {
        let holder = self.holder.load(Ordering::Relaxed);
        if holder >> PLACE_BITS == thread {
            // It may be recalled in between, and another's by then.
            let (gives, fails) = (O::LEASE_GIVE_UP, Ordering::Relaxed);
            let _ = (self.holder).compare_exchange(holder, NOBODY, gives, fails);
        }
    }

    /// Whether a thread has it, or it is not needed.
    pub fn is_held(&self) -> bool {
        self.holder.load(Ordering::Relaxed) != NOBODY
    }

    /// Whether this thread has it.
    pub fn is_with(&self, thread: usize) -> bool {
        self.holder.load(Ordering::Relaxed) >> PLACE_BITS == thread
    }

    /// Whether a thread has it that is not this one.
    #[inline]
    pub fn is_with_another(&self, thread: usize) -> bool {
        let holder = self.holder.load(Ordering::Relaxed);
        holder != NOBODY && holder >> PLACE_BITS != thread
    }

    /// Takes it back, and waits for the end of a use that is under way. With the turn; `thread` is
    /// the caller's. Whether another thread had it.
    pub fn recall<O: Orderings>(&self, thread: usize) -> bool {
        let holder = self.holder.load(O::LEASE_GIVEN_UP);
        self.holder.store(NOBODY, Ordering::Relaxed);
        if holder >> PLACE_BITS == thread || holder == NOBODY {
            return false;
        }
        // Pairs with the fence of `enter`.
        fence_everywhere(O::LEASE_RECALL_FENCE);
        let mut looks = 0;
        // Pairs with the end of a use: what that has changed is seen.
        while self.in_use[holder & PLACE].load(O::LEASE_LOOK) != 0 {
            looks += 1;
            if looks < LOOKS {
                thread::yield_now();
            } else {
                sleep(NAP);
            }
        }
        true
    }
}

impl<O: Orderings> Drop for LeaseUse<'_, O> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the look of `recall`.
        self.word.store(0, O::LEASE_LEAVE);
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
    use std::ptr;

    use super::*;
    use crate::sync::{AtomicU64, Mutex};

    #[test]
    fn the_holder_alone_enters() {
        if !can_lease() {
            eprintln!("skipped: no leases on this machine");
            return;
        }
        let (one, other) = (8 << 12, 9 << 12);
        let lease = Lease::of_nobody();
        assert!(lease.enter::<Shipped>(one).is_none());
        assert!(lease.grant(one));
        assert!(lease.enter::<Shipped>(other).is_none());
        assert!(lease.enter::<Shipped>(one).is_some());
        assert!(!lease.recall::<Shipped>(one), "the holder's own recall");
        assert!(lease.enter::<Shipped>(one).is_none());
        assert!(lease.grant(one));
        assert!(lease.recall::<Shipped>(other));
        assert!(lease.enter::<Shipped>(one).is_none());
        assert!(!lease.recall::<Shipped>(other), "nobody has it");
        assert!(lease.grant(other) && lease.enter::<Shipped>(other).is_some());
        assert!(lease.recall::<Shipped>(one) && lease.grant(one));
        assert!(lease.enter::<Shipped>(one).is_some(), "a recall is over");
    }

    #[test]
    fn each_of_some_threads_has_a_word_of_its_own() {
        if !can_lease() {
            eprintln!("skipped: no leases on this machine");
            return;
        }
        let lease = Lease::of_nobody();
        let number = |thread: usize| thread << 6;
        assert!(!lease.grant(usize::MAX), "no control block lies there");
        for thread in 1..=USERS {
            assert!(lease.grant(number(thread)));
            let entered = lease.enter::<Shipped>(number(thread)).unwrap();
            let word = entered.word;
            let at = lease.in_use.iter().position(|of| ptr::eq(of, word));
            assert_eq!(at, Some(thread - 1));
            drop(entered);
            assert!(lease.recall::<Shipped>(number(thread + 1)));
        }
        assert!(!lease.grant(number(USERS + 1)), "there are no more");
        assert!(lease.grant(number(2)) && lease.enter::<Shipped>(number(2)).is_some());
    }

    #[test]
    fn what_is_given_up_need_not_be_recalled() {
        if !can_lease() {
            eprintln!("skipped: no leases on this machine");
            return;
        }
        let (one, other) = (8 << 12, 9 << 12);
        let lease = Lease::of_nobody();
        assert!(lease.grant(one) && lease.is_with_another(other) && !lease.is_with_another(one));
        lease.give_up::<Shipped>(other);
        assert!(lease.is_held() && lease.enter::<Shipped>(one).is_some());
        lease.give_up::<Shipped>(one);
        assert!(!lease.is_held() && !lease.is_with_another(other));
        assert!(lease.enter::<Shipped>(one).is_none());
        assert!(!lease.recall::<Shipped>(other));
        assert!(lease.grant(other));
        lease.give_up::<Shipped>(one);
        assert!(lease.enter::<Shipped>(other).is_some());
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

    /// Two counts that are changed together, by who has the lease or the turn.
    #[test]
    fn nobody_enters_behind_a_recall() {
        if !can_lease() {
            eprintln!("skipped: no leases on this machine");
            return;
        }
        const TURNS: u64 = 3_000;
        let (lease, turn) = (Lease::of_nobody(), Mutex::new(()));
        let (a, b) = (AtomicU64::new(0), AtomicU64::new(0));
        let add = || {
            let before = a.load(Ordering::Relaxed);
            a.store(before + 1, Ordering::Relaxed);
            b.store(b.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            assert_eq!(before + 1, b.load(Ordering::Relaxed));
        };
        let added = AtomicU64::new(0);
        let work = || {
            let (me, mut mine) = (this_thread(), 0);
            for turns in 0..TURNS {
                let held = turn.lock().expect("nobody panics");
                lease.recall::<Shipped>(me);
                add();
                lease.grant(me);
                drop(held);
                mine += 1;
                for _ in 0..50 {
                    if let Some(_entered) = lease.enter::<Shipped>(me) {
                        add();
                        mine += 1;
                    }
                }
                if turns % 3 > 0 {
                    lease.give_up::<Shipped>(me);
                }
            }
            added.fetch_add(mine, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(work);
            }
        });
        lease.recall::<Shipped>(this_thread());
        assert_eq!(a.into_inner(), added.into_inner());
    }
}
