//! The view of a stream's open runs that is open between two calls of a job.

use std::cell::{Cell, RefCell};
use std::ptr::null;
use std::rc::Rc;

use crate::endpoint::StreamId;
use crate::engine::outbound::Pushes;
use crate::job::JobState;
use crate::queue::window::PushWindow;

/// One at most is open. Programs that push to several streams in turn have none: to open and close
/// them would cost more than the calls.
#[derive(Default)]
pub(super) struct Windows {
    is_open: Cell<bool>,
    open: RefCell<Option<Opened>>,
    /// The one that was wanted last.
    wanted: Cell<Wanted>,
}

struct Opened {
    window: Rc<PushWindow>,
    id: StreamId,
}

/// Only compared.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wanted(*const PushWindow);

impl Default for Wanted {
    fn default() -> Self {
        Self(null())
    }
}

impl Windows {
    /// Whether it is wanted the second time in a row.
    pub fn want(&self, window: &Rc<PushWindow>) -> bool {
        let wanted = Wanted(Rc::as_ptr(window));
        self.wanted.replace(wanted) == wanted
    }

    /// Opens a view of the runs of this stream, while none is open.
    pub fn open(
        &self,
        state: &mut JobState,
        id: StreamId,
        window: &Rc<PushWindow>,
        pushes: Pushes,
    ) {
        if let Ok(out) = state.engine.out(id) {
            out.open_window(window, pushes);
            let window = Rc::clone(window);
            *self.open.borrow_mut() = Some(Opened { window, id });
            self.is_open.set(true);
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
        match state.engine.out(opened.id) {
            Ok(out) => out.close_window(&opened.window),
            // It was shut down, which has closed the window before.
            Err(_) => debug_assert_eq!(opened.window.close(), 0),
        }
    }
}
