//! What one thread of a job pushes and sends through without the turn, and whether that pays.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::ptr;
use std::time::{Duration, Instant};

use trihop_transport::park::can_lease;
use trihop_transport::sync::{AtomicU32, Ordering::Relaxed, thread_local};

use crate::engine::outbound::{Outbound, Pushes};
use crate::queue::window::{PushWindow, Pushed};

/// How often in a row a thread has to want a window: twice, and twice as often each time that it
/// did not pay.
const PATIENCE: RangeInclusive<u32> = 2..=1 << 12;

/// Pushes that pay for a window which another thread has recalled, by a fence on all processors:
/// some microseconds, where a push saves some ten nanoseconds.
const PAYS: u32 = 256;

/// More than this pays for no more windows: what has been is forgotten behind a few in vain.
const MOST_PAID: u32 = 16 * PAYS;

/// How long a thread that takes the turn waits at most for one that goes on pushing.
const LONGEST_BURST: Duration = Duration::from_micros(20);

/// How often it looks: each look takes the window's line from who pushes.
const LOOK_EVERY: Duration = Duration::from_nanos(500);

/// Times of a thread that can have no window of this stream.
const NEVER: u32 = u32::MAX;

thread_local! {
    /// The window that this thread wanted last, only to be compared, and how often in a row.
    static WANTED: Cell<(*const ThreadWindow, u32)> = const { Cell::new((ptr::null(), 0)) };
}

/// A stream's view of its open runs, for one thread at a time.
pub(super) struct ThreadWindow {
    window: PushWindow,
    patience: AtomicU32,
    /// Pushes since another thread has recalled it, half of them after each window in vain.
    paid: AtomicU32,
}

impl ThreadWindow {
    /// One that is closed.
    pub fn new() -> Self {
        let patience = match can_lease() {
            true => *PATIENCE.start(),
            false => u32::MAX,
        };
        Self {
            window: PushWindow::of_threads(),
            patience: AtomicU32::new(patience),
            paid: AtomicU32::new(0),
        }
    }

    /// For programs in C.
    pub fn window(&self) -> &PushWindow {
        &self.window
    }

    /// Whether it took an item of the calling thread.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub fn push(&self, target: u32, item: &[u8]) -> bool {
        self.window.push_by_lease(target, item)
    }

    /// Whether it took a record of the calling thread.
    #[inline(always)] // part of every send
    pub fn send(&self, target: u32, kind: u32, bytes: &[u8]) -> bool {
        self.window.send_by_lease(target, kind, bytes)
    }

    /// A push of this thread needed the turn: whether it has wanted the window often enough.
    #[inline]
    pub fn want(&self) -> bool {
        let patience = self.patience.load(Relaxed);
        WANTED.with(|wanted| {
            let here = ptr::from_ref(self);
            let times = match wanted.get() {
                (last, NEVER) if last == here => return false,
                (last, times) if last == here => (times + 1).min(NEVER - 1),
                _ => 1,
            };
            let is_enough = times >= patience && patience != u32::MAX;
            // Where windows pay, each push that needs the turn opens one from then on.
            let begins_anew = is_enough && patience > *PATIENCE.start();
            wanted.set((here, if begins_anew { 0 } else { times }));
            is_enough
        })
    }

    /// Opens it for this thread, which has the turn; whether it did.
    pub fn open(&self, out: &mut Outbound, pushes: Pushes) -> bool {
        if !self.window.grant() {
            WANTED.with(|wanted| wanted.set((ptr::from_ref(self), NEVER)));
            return false;
        }
        let is_open = out.open_window(&self.window, pushes);
        if !is_open {
            self.window.recall();
            if pushes != Pushes::Paced || !out.is_almost_due() {
                self.note(0, false);
            }
        }
        is_open
    }

    /// Waits for a thread that goes on pushing, until it needs the turn itself: it gives the window
    /// up then, and nothing has to be recalled. By who has the turn, and a core beside that thread.
    pub fn wait_for_holder(&self) {
        let Some(mut left) = self.window.left_to_another() else {
            return;
        };
        let begun = Instant::now();
        let mut look = begun + LOOK_EVERY;
        loop {
            std::hint::spin_loop();
            let now = Instant::now();
            if now < look {
                continue;
            }
            look = now + LOOK_EVERY;
            match self.window.left_to_another() {
                Some(now_left) if now_left != left && now - begun < LONGEST_BURST => {
                    left = now_left;
                }
                _ => return,
            }
        }
    }

    /// A handler has returned, whose thread pushes through it no more.
    pub fn end_handler(&self) {
        if self.window.is_unused_here() {
            self.note(0, false); // it has pushed less than it seemed
        }
        self.window.give_up();
    }

    /// Closes it, by who has the turn; what has gone through it.
    pub fn close(&self) -> Pushed {
        // By a push that needs the turn, since its run is full, or new: that says nothing against
        // the window. What a handler has given up was noted then.
        let is_given_up = self.window.is_given_up();
        let is_others = self.window.recall();
        let pushed = self.window.close();
        if pushed.count > 0 || !is_given_up {
            self.note(pushed.count, is_others);
        }
        pushed
    }

    /// So many were pushed through it, and whether another thread has recalled it. By who has the
    /// turn, or had the lease: where two note at once, one is forgotten.
    fn note(&self, pushed: u32, is_recalled: bool) {
        let paid = match (self.paid.load(Relaxed), pushed) {
            (paid, 0) => paid / 2,
            (paid, pushed) => paid.saturating_add(pushed).min(MOST_PAID),
        };
        self.paid.store(if is_recalled { 0 } else { paid }, Relaxed);
        if paid >= PAYS {
            self.patience.store(*PATIENCE.start(), Relaxed);
        } else if is_recalled || pushed == 0 {
            let twice = self.patience.load(Relaxed).saturating_mul(2);
            self.patience.store(twice.min(*PATIENCE.end()), Relaxed);
        }
    }
}
