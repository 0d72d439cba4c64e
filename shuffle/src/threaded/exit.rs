//! What happens to the engines of a process that exits while jobs are still there.
//!
//! `exit()` ends the libraries of a process, libfabric's among them, while all other threads run
//! on. A progress thread that used its endpoint meanwhile would use what is gone. So this library,
//! which is ended before those that it needs, takes the turn of each job and keeps it: a thread
//! that wants the engine then waits for it until the process is gone. The relay of a process with
//! mini-ranks, which nobody takes turns with, is asked to stop.
//!
//! That is after everything that a program does at its exit by itself: handlers of `atexit`,
//! destructors of static objects and of the program. These may still call, and leave the job in
//! good order.

use std::sync::Weak;

use trihop_transport::sync::{PoisonError, StaticMutex};

use super::shared::SharedEngine;
use crate::job::Stop;

/// Tenths of a second to wait for a turn that somebody has. Who waits in a call gives it away all
/// the time; who does not, is stuck, and keeps everybody else from the engine already.
const TRIES: u32 = 20;

/// What a thread of ours may be using when the process exits.
pub(crate) trait AtExit: Send + Sync {
    /// Sees to it that no thread uses it any more; false where that cannot be done now.
    fn try_exit(&self) -> bool;
}

impl AtExit for SharedEngine {
    fn try_exit(&self) -> bool {
        self.keep_turn()
    }
}

impl AtExit for Stop {
    fn try_exit(&self) -> bool {
        self.ask()
    }
}

/// Jobs that may have threads, with the process that started them: a fork has none of these
/// threads.
static JOBS: StaticMutex<Vec<(u32, Weak<dyn AtExit>)>> = StaticMutex::new(Vec::new());

/// Called by the loader when the process exits.
// SAFETY: `.fini_array` holds pointers to functions without arguments, for the loader to call.
#[unsafe(link_section = ".fini_array")]
#[used]
static AT_EXIT: extern "C" fn() = keep_turns;

/// The job's engine is not used any more once the process exits.
pub(crate) fn guard(job: Weak<dyn AtExit>) {
    // Of a static library the linker takes what is referred to.
    std::hint::black_box(&AT_EXIT);
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    jobs.retain(|(_, job)| job.strong_count() > 0);
    jobs.push((std::process::id(), job));
}

extern "C" fn keep_turns() {
    if cfg!(trihop_shuttle) {
        return; // what a model that failed has left behind belongs to threads that are no more
    }
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = jobs
        .iter()
        .filter(|(process, _)| *process == std::process::id());
    for job in own.filter_map(|(_, job)| job.upgrade()) {
        let taken = (0..TRIES).any(|_| job.try_exit());
        if !taken {
            tracing::warn!("the process exits while a call of its job does not end");
        }
        // Its end needs the turn.
        std::mem::forget(job);
    }
}
