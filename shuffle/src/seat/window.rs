//! The view of a stream's open runs that is open between two calls of a job.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::ptr::null;
use std::rc::Rc;

use crate::endpoint::StreamId;
use crate::engine::outbound::Pushes;
use crate::job::JobState;
use crate::queue::window::PushWindow;

/// How often in a row a window has to be wanted: twice, and twice as often each time that nothing
/// was pushed through one.
const PATIENCE: RangeInclusive<u32> = 2..=256;

/// One at most is open. Programs that push to several streams in turn, or call something else
/// behind each push, have next to none: to open and close them would cost more than the calls.
pub(super) struct Windows {
    is_open: Cell<bool>,
    open: RefCell<Option<Opened>>,
    /// The one that was wanted last, only to be compared.
    wanted: Cell<*const PushWindow>,
    /// How often it was, in a row and since one was opened in vain.
    times: Cell<u32>,
    patience: Cell<u32>,
    /// The one whose push is under way, with the state looked at.
    pushing: Cell<*const PushWindow>,
}

struct Opened {
    window: Rc<PushWindow>,
    id: StreamId,
    pushes: Pushes,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            is_open: Cell::new(false),
            open: RefCell::default(),
            wanted: Cell::new(null()),
            times: Cell::new(0),
            patience: Cell::new(*PATIENCE.start()),
            pushing: Cell::new(null()),
        }
    }
}

impl Windows {
    /// A push through this window, if it is open, looks at the state: its run is full, or new. That
    /// says nothing against the window.
    #[inline]
    pub fn begin_push(&self, window: &Rc<PushWindow>) {
        self.pushing.set(Rc::as_ptr(window));
    }

    /// That push is done; whether its window is wanted often enough in a row.
    #[inline]
    pub fn want(&self, window: &Rc<PushWindow>) -> bool {
        let now = Rc::as_ptr(window);
        self.pushing.set(null());
        let times = match self.wanted.replace(now) == now {
            true => self.times.get().saturating_add(1),
            false => 1,
        };
        self.times.set(times);
        times >= self.patience.get()
    }

    /// Opens a view of the runs of this stream, while none is open.
    pub fn open(
        &self,
        state: &mut JobState,
        id: StreamId,
        window: &Rc<PushWindow>,
        pushes: Pushes,
    ) {
        let out = state.engine.out(id);
        if out.is_ok_and(|out| out.open_window(window, pushes)) {
            let window = Rc::clone(window);
            *self.open.borrow_mut() = Some(Opened { window, id, pushes });
            self.is_open.set(true);
        } else {
            self.note(0);
        }
    }

    #[inline(always)] // part of every send
    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Closes what is open: before anything else uses the state.
    #[cold]
    pub fn close(&self, state: &mut JobState) {
        self.is_open.set(false);
        let Some(opened) = self.open.borrow_mut().take() else {
            return;
        };
        let pushed = opened.window.close();
        // What shuts a stream down has closed its window before: it is there.
        if let Ok(out) = state.engine.out(opened.id) {
            out.note_pushed(pushed, opened.pushes);
        }
        if pushed.count > 0 || self.pushing.get() != Rc::as_ptr(&opened.window) {
            self.note(pushed.count);
        }
    }

    /// So many items were pushed through the last window.
    fn note(&self, pushed: u32) {
        if pushed > 0 {
            self.patience.set(*PATIENCE.start());
        } else {
            let twice = 2 * self.patience.get();
            self.patience.set(twice.min(*PATIENCE.end()));
            self.times.set(0);
        }
    }
}
