//! Connections that have something to do, and what wakes the server for them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use trihop_transport::sync::{Mutex, MutexGuard, PoisonError};
use trihop_transport::watch::{eventfd, is_woken, wake};

use crate::error::Result;

/// What others tell the server's thread.
#[derive(Debug)]
pub struct Ready {
    state: Mutex<State>,
    woken: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<usize>,
    ends: bool,
    /// The thread sleeps, or is about to: whoever tells it something wakes it.
    sleeps: bool,
}

impl Ready {
    pub fn new() -> Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            woken: eventfd()?,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let wakes = std::mem::take(&mut state.sleeps);
        drop(state);
        if wakes {
            wake(&self.woken);
        }
    }

    /// Something may have come for the connection at this place.
    pub fn add(&self, place: usize) {
        self.tell(|state| state.places.push(place));
    }

    /// The server is to end.
    pub fn end(&self) {
        self.tell(|state| state.ends = true);
    }

    pub fn ends(&self) -> bool {
        self.state().ends
    }

    /// Moves the places that were told to `into`.
    pub fn take(&self, into: &mut Vec<usize>) {
        into.append(&mut self.state().places);
    }

    /// Whether the thread may sleep until [`descriptor`](Self::descriptor) is readable: nothing was
    /// told that it has not heard.
    pub fn may_sleep(&self) -> bool {
        let mut state = self.state();
        state.sleeps = state.places.is_empty() && !state.ends;
        state.sleeps
    }

    /// The thread is awake.
    pub fn wakes(&self) {
        self.state().sleeps = false;
        is_woken(&self.woken);
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

/// Tells that something may have come for one connection.
struct Alarm {
    place: usize,
    ready: Arc<Ready>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.add(self.place);
    }
}

/// The waker of the connection at this place.
pub fn alarm(place: usize, ready: &Arc<Ready>) -> Waker {
    let ready = Arc::clone(ready);
    Waker::from(Arc::new(Alarm { place, ready }))
}
