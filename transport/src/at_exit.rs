//! What is done when the process exits while jobs are still there.
//!
//! `exit()` ends the libraries of a process, libfabric's among them, while all other threads run
//! on. A thread of this library that used them meanwhile would use what is gone, and a launcher may
//! take the end of a process that has not taken leave for a crash. So this library, which is ended
//! before those that it needs, sees to both.
//!
//! That is after everything that a program does at its exit by itself: handlers of `atexit`,
//! destructors of static objects and of the program. These may still call, and leave the job in
//! good order.

use std::sync::Weak;

use crate::home::Home;
use crate::sync::{PoisonError, StaticMutex};

/// How often each is asked.
const TRIES: u32 = 20;

/// What the end of the process concerns.
pub trait AtExit: Send + Sync {
    /// Sees to what has to be done, soon, or as soon as a launcher answers; false where that cannot
    /// be done now.
    fn try_exit(&self) -> bool;
}

/// Those that are there.
static GUARDED: StaticMutex<Vec<(Home, Weak<dyn AtExit>)>> = StaticMutex::new(Vec::new());

/// Called by the loader when the process exits.
// SAFETY: `.fini_array` holds pointers to functions without arguments, for the loader to call.
#[unsafe(link_section = ".fini_array")]
#[used]
static AT_EXIT: extern "C" fn() = exit_all;

/// It is seen to once the process exits, if it is there then.
pub fn guard(guarded: Weak<dyn AtExit>) {
    // Of a static library the linker takes what is referred to.
    std::hint::black_box(&AT_EXIT);
    let mut all = GUARDED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, guarded)| guarded.strong_count() > 0);
    all.push((Home::here(), guarded));
}

extern "C" fn exit_all() {
    if cfg!(trihop_shuttle) {
        return; // what a model that failed has left behind belongs to threads that are no more
    }
    let all = GUARDED.lock().unwrap_or_else(PoisonError::into_inner);
    let own = all.iter().filter(|(home, _)| home.is_here());
    // The launcher is guarded first, and left last.
    for guarded in own.rev().filter_map(|(_, guarded)| guarded.upgrade()) {
        if !(0..TRIES).any(|_| guarded.try_exit()) {
            tracing::warn!("the process exits while a call of its job does not end");
        }
        // Its end may need what was just taken for good.
        std::mem::forget(guarded);
    }
}
