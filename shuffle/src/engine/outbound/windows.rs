//! Views of the open runs, for pushes that need nothing else of a job.

use super::{CALLS_PER_ROUND, Outbound};
use crate::queue::window::PushWindow;

/// Who pushes through a view of the open runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushes {
    /// Calls that make progress now and then.
    Paced,
    /// Calls that leave that to others.
    Unpaced,
    /// Those of a handler, which wait for no room and make no progress: whatever is spilled, and
    /// whatever step ends.
    OfHandler,
}

impl Outbound {
    /// Opens a view of the open runs, where such items go into them and no progress is due; whether
    /// it did. Whoever uses this again closes it before.
    pub fn open_window(&mut self, window: &PushWindow, pushes: Pushes) -> bool {
        let takes_items = match pushes {
            Pushes::OfHandler => !self.is_checked,
            Pushes::Paced | Pushes::Unpaced => self.is_open(),
        };
        if !takes_items || self.item_bytes == 0 || self.item_bytes > self.gathered_bytes {
            return false;
        }
        // The last before progress is due is a call.
        let most = match (CALLS_PER_ROUND - 1).saturating_sub(self.calls) {
            _ if pushes == Pushes::OfHandler => u32::MAX,
            0 if pushes == Pushes::Unpaced => u32::MAX,
            most => most,
        };
        if most > 0 {
            self.runs.open_window(window, self.item_bytes, most);
        }
        most > 0
    }

    /// Counts what was pushed through a view.
    pub fn note_pushed(&mut self, pushed: u32, pushes: Pushes) {
        if pushes != Pushes::OfHandler {
            self.calls = self.calls.saturating_add(pushed);
        }
        self.sent += u64::from(pushed);
        self.sent_bytes += u64::from(pushed) * self.item_bytes as u64;
        self.pushed |= pushed > 0;
    }
}
