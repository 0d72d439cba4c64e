//! A lease: one thread uses something without a lock, until another one recalls it.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_transport::park::Lease;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{Arc, UnsafeCell};

const HOLDER: usize = 8 << 12;
const OTHER: usize = 9 << 12;

/// What the lease is for: not atomic, so that loom sees two who use it at once.
struct Leased {
    lease: Lease,
    value: UnsafeCell<u32>,
}

// SAFETY: who uses the value has the lease, or has recalled it: that is what the model is about.
unsafe impl Sync for Leased {}

impl Leased {
    fn add(&self) -> u32 {
        self.value.with_mut(|value| {
            // SAFETY: loom checks that nobody else is here.
            unsafe {
                *value += 1;
                *value
            }
        })
    }
}

fn is_used_by_one_at_a_time<O: Orderings + 'static>() {
    loom::model(|| {
        let leased = Arc::new(Leased {
            lease: Lease::of_nobody(),
            value: UnsafeCell::new(0),
        });
        assert!(leased.lease.grant(HOLDER));
        let holder = {
            let leased = leased.clone();
            thread::spawn(move || {
                let mut used = 0;
                for _ in 0..2 {
                    if let Some(_entered) = leased.lease.enter::<O>(HOLDER) {
                        leased.add();
                        used += 1;
                    }
                }
                used
            })
        };
        assert!(leased.lease.recall::<O>(OTHER));
        leased.add();
        // The first holder may be in front of its use still.
        assert!(leased.lease.grant(OTHER));
        if let Some(_entered) = leased.lease.enter::<O>(OTHER) {
            leased.add();
        }
        leased.lease.recall::<O>(OTHER);
        let own = leased.add();
        let used = holder.join().unwrap();
        assert_eq!(own, used + 3, "nobody enters behind a recall");
    });
}

/// The holder uses it, and gives it up beside one who recalls it.
fn is_given_up_behind_a_use<O: Orderings + 'static>() {
    loom::model(|| {
        let leased = Arc::new(Leased {
            lease: Lease::of_nobody(),
            value: UnsafeCell::new(0),
        });
        assert!(leased.lease.grant(HOLDER));
        let holder = {
            let leased = leased.clone();
            thread::spawn(move || {
                let Some(entered) = leased.lease.enter::<O>(HOLDER) else {
                    return 0;
                };
                leased.add();
                drop(entered);
                leased.lease.give_up::<O>(HOLDER);
                assert!(leased.lease.enter::<O>(HOLDER).is_none());
                1
            })
        };
        // Else loom does not try the order in which the holder is through before.
        thread::yield_now();
        leased.lease.recall::<O>(OTHER);
        leased.add();
        // The first holder may be in front of giving it up still.
        assert!(leased.lease.grant(OTHER));
        let entered = leased.lease.enter::<O>(OTHER);
        let mut own = 1;
        if entered.is_some() {
            leased.add();
            own += 1;
        }
        drop(entered);
        leased.lease.recall::<O>(OTHER);
        let all = leased.add();
        let used = holder.join().unwrap();
        assert_eq!(all, used + own + 1, "nobody enters behind a recall");
    });
}

#[test]
fn what_is_leased_is_used_by_one_at_a_time() {
    is_used_by_one_at_a_time::<Shipped>();
}

#[test]
fn what_is_given_up_was_used_before() {
    is_given_up_behind_a_use::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident, $weaker:ident, $symptom:literal) => {
        twin!(
            $test,
            $constant,
            $weaker,
            $symptom,
            is_used_by_one_at_a_time
        );
    };
    ($test:ident, $constant:ident, $weaker:ident, $symptom:literal, $model:ident) => {
        #[test]
        #[should_panic(expected = $symptom)]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: trihop_transport::sync::Ordering =
                    trihop_transport::sync::Ordering::$weaker;
            }
            $model::<Weak>();
        }
    };
}

twin!(
    twin_weak_enter_fence,
    LEASE_ENTER_FENCE,
    AcqRel,
    "Causality violation"
);
twin!(
    twin_weak_recall_fence,
    LEASE_RECALL_FENCE,
    AcqRel,
    "Causality violation"
);
twin!(
    twin_relaxed_leave,
    LEASE_LEAVE,
    Relaxed,
    "Causality violation"
);
twin!(
    twin_relaxed_look,
    LEASE_LOOK,
    Relaxed,
    "Causality violation"
);

twin!(
    twin_relaxed_give_up,
    LEASE_GIVE_UP,
    Relaxed,
    "Causality violation",
    is_given_up_behind_a_use
);
twin!(
    twin_relaxed_look_whether_it_was_given_up,
    LEASE_GIVEN_UP,
    Relaxed,
    "Causality violation",
    is_given_up_behind_a_use
);
