//! Back-pressure between threads: one side says that too much waits, another one sleeps until less
//! does.

use crate::sync::{Condvar, Flag, Mutex, MutexGuard, PoisonError};

/// Whether too much waits somewhere, for those who would add to it.
///
/// One side [presses](Self::press) and [relieves](Self::relieve). The others look by
/// [`is_pressed`](Self::is_pressed), and either [sleep](Self::wait) until it is relieved or come
/// back later and [say so](Self::note_waiting). So the side that presses knows whether anything is
/// [kept waiting](Self::take_waited) for it.
#[derive(Debug, Default)]
pub struct Gauge {
    /// A hint for those who look. What is true stands in the state.
    pressed: Flag,
    state: Mutex<State>,
    relieved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pressed: bool,
    /// Who sleeps in `wait`.
    sleepers: u32,
    /// Somebody came in vain who does not sleep.
    came: bool,
    /// Nobody waits any more.
    ended: bool,
}

impl Gauge {
    /// Too much waits.
    pub fn press(&self) {
        let mut state = self.lock();
        state.pressed = !state.ended;
        if state.pressed {
            self.pressed.raise();
        }
    }

    /// Less waits: all who sleep wake up.
    pub fn relieve(&self) {
        let mut state = self.lock();
        state.pressed = false;
        state.came = false;
        self.pressed.lower();
        self.relieved.notify_all();
    }

    /// Relieves it for good: the side that would relieve it may not come back.
    pub fn end(&self) {
        self.lock().ended = true;
        self.relieve();
    }

    /// Whether too much waits, as far as this thread knows.
    #[inline]
    pub fn is_pressed(&self) -> bool {
        self.pressed.is_raised()
    }

    /// Something waits until the gauge is relieved, and will look again.
    pub fn note_waiting(&self) {
        self.lock().came = true;
    }

    /// Whether anything has been kept waiting since this was last asked, or sleeps now.
    pub fn take_waited(&self) -> bool {
        let mut state = self.lock();
        std::mem::take(&mut state.came) || state.sleepers > 0
    }

    /// Sleeps until the gauge is relieved.
    pub fn wait(&self) {
        let mut state = self.lock();
        state.sleepers += 1;
        while state.pressed {
            state = self
                .relieved
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.sleepers -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
