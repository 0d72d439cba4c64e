//! How a thread of the library's is stopped while the process exits.

use std::sync::Arc;
use std::time::Duration;

use trihop_transport::at_exit::AtExit;
use trihop_transport::ring::Bell;
use trihop_transport::sync::{Flag, thread};

use super::JobState;

/// How long a round of progress may take, and how often it is looked whether it is over.
const PATIENCE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);

/// Asks the thread that makes a relay's rounds to make no more.
pub(crate) struct Stop {
    asked: Flag,
    is_obeyed: Flag,
    bell: Arc<Bell>,
}

impl Stop {
    /// Nobody has asked; the bell is that of the thread's sleep.
    pub fn new(bell: Arc<Bell>) -> Self {
        Self {
            asked: Flag::default(),
            is_obeyed: Flag::default(),
            bell,
        }
    }

    /// Asks; whether the thread has stopped by now.
    pub fn ask(&self) -> bool {
        self.asked.raise();
        self.bell.ring();
        (0..PATIENCE.as_millis() / LOOK.as_millis()).any(|_| {
            thread::sleep(LOOK);
            self.is_obeyed.is_raised()
        })
    }
}

impl AtExit for Stop {
    fn try_exit(&self) -> bool {
        self.ask()
    }
}

impl JobState {
    /// Between two rounds of progress: where the process exits, this thread uses nothing of the job
    /// any more.
    #[inline]
    pub(super) fn stop_if_asked(&mut self) {
        let stop = self.stop.as_ref().filter(|stop| stop.asked.is_raised());
        if let Some(stop) = stop.map(Arc::clone) {
            self.engine.trace.finish();
            stop.is_obeyed.raise();
            loop {
                thread::park();
            }
        }
    }
}
