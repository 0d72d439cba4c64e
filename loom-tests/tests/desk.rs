//! What the threads of a process hand each other: one puts something on a desk, another one sleeps
//! on its doorbell until it is there. All interleavings.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_loom_tests::ModelSleeper;
use trihop_transport::park::{Desk, Seen};
use trihop_transport::ring::Shipped;
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::sync::Arc;

/// What a model leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The look at the changes once the sleep is announced.
    LastLook,
    /// The ring.
    Ring,
}

/// Two threads hand over one thing each; a third one needs both, and sleeps where they are not here.
fn hands_over(without: Without) {
    loom::model(move || {
        let (desk, sleeper) = (Arc::new(Desk::new(0u32)), ModelSleeper::default());
        let givers: Vec<_> = (0..2)
            .map(|_| {
                let (desk, sleeper) = (desk.clone(), sleeper.clone());
                thread::spawn(move || {
                    let rings = without != Without::Ring;
                    desk.change(rings.then_some(&sleeper), |things| *things += 1);
                })
            })
            .collect();
        // One sleep: loom has no order between stores of two threads, so that a later announcement
        // may hide behind the wake of an earlier one there.
        let mut seen = Seen::default();
        let is_here = desk.look(&mut seen, |things| *things) == 2;
        let mut asleep = false;
        if !is_here {
            doorbell::announce::<_, Shipped>(sleeper.word());
            asleep = without == Without::LastLook || !desk.has_changed(&mut seen);
        }
        for giver in givers {
            giver.join().unwrap();
        }
        assert!(!asleep || sleeper.was_woken(), "lost wake-up");
        assert_eq!(desk.look(&mut seen, |things| *things), 2);
    });
}

#[test]
fn nothing_that_is_handed_over_is_slept_through() {
    hands_over(Without::Nothing);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn twin_sleeps_without_a_last_look() {
    hands_over(Without::LastLook);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn twin_hands_over_without_a_ring() {
    hands_over(Without::Ring);
}

/// Somebody who waits for nothing here sleeps all the same, once for each change.
#[test]
fn a_change_keeps_nobody_awake_for_good() {
    loom::model(|| {
        let desk = Arc::new(Desk::new(0u32));
        let giver = {
            let desk = desk.clone();
            thread::spawn(move || desk.change(None::<&ModelSleeper>, |things| *things += 1))
        };
        let mut seen = Seen::default();
        let early = desk.has_changed(&mut seen);
        giver.join().unwrap();
        assert_ne!(early, desk.has_changed(&mut seen), "told once, now or then");
        assert!(!desk.has_changed(&mut seen));
    });
}
