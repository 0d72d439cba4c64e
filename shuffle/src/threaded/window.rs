//! What one thread of a job pushes and sends through without the turn, and whether that pays.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::ops::RangeInclusive;

use trihop_transport::park::{can_lease, this_thread};
use trihop_transport::sync::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::engine::outbound::{Outbound, Pushes};
use crate::queue::window::{PushWindow, Pushed};

/// How often in a row a thread has to want a window: twice, and twice as often each time that it
/// did not pay.
const PATIENCE: RangeInclusive<u32> = 2..=1 << 16;

/// Pushes that pay for a window which another thread has recalled, by a fence on all processors:
/// some microseconds, where a push saves some ten nanoseconds.
const PAYS: u32 = 256;

/// A stream's view of its open runs, for one thread at a time.
pub(super) struct ThreadWindow {
    window: PushWindow,
    /// The thread that wanted it last, and how often in a row. Threads that want it at once may
    /// spoil these, and then it is opened somewhat earlier or later.
    wanted_by: AtomicUsize,
    times: AtomicU32,
    patience: AtomicU32,
    /// Pushes since another thread has recalled it.
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
            wanted_by: AtomicUsize::new(0),
            times: AtomicU32::new(0),
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
        let thread = this_thread();
        let times = match self.wanted_by.load(Relaxed) == thread {
            true => self.times.load(Relaxed).saturating_add(1),
            false => {
                self.wanted_by.store(thread, Relaxed);
                1
            }
        };
        self.times.store(times, Relaxed);
        let patience = self.patience.load(Relaxed);
        times >= patience && patience != u32::MAX
    }

    /// Opens it for this thread, which has the turn; whether it did.
    pub fn open(&self, out: &mut Outbound, pushes: Pushes) -> bool {
        let is_open = self.window.grant() && out.open_window(&self.window, pushes);
        if !is_open {
            self.window.recall();
            self.note(0, false);
        }
        is_open
    }

    /// Closes it, by who has the turn; what has gone through it.
    pub fn close(&self) -> Pushed {
        let is_others = self.window.recall();
        let pushed = self.window.close();
        self.note(pushed.count, is_others);
        pushed
    }

    /// So many were pushed through it, and whether another thread has recalled it. By who has the
    /// turn.
    fn note(&self, pushed: u32, is_recalled: bool) {
        let paid = self.paid.load(Relaxed).saturating_add(pushed);
        self.paid.store(if is_recalled { 0 } else { paid }, Relaxed);
        if paid >= PAYS {
            self.patience.store(*PATIENCE.start(), Relaxed);
        } else if is_recalled || pushed == 0 {
            let twice = self.patience.load(Relaxed).saturating_mul(2);
            self.patience.store(twice.min(*PATIENCE.end()), Relaxed);
            self.times.store(0, Relaxed);
        }
    }
}
