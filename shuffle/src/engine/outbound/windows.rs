//! Views of the open runs, for pushes that need nothing else of a job.

use trihop_transport::protocol::wire::RECORD_HEADER_BYTES;

use super::{CALLS_PER_ROUND, Outbound};
use crate::queue::window::{PushWindow, Pushed, Takes};

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
    /// Length of the longest record that goes through a view of the open runs.
    pub fn longest_gathered(&self) -> usize {
        let longest = (self.gathered_bytes & !7).saturating_sub(RECORD_HEADER_BYTES);
        longest.min(self.max_message_bytes)
    }

    /// Opens a view of the open runs, where what is sent goes into them and no progress is due;
    /// whether it did. Whoever uses this again closes it before.
    pub fn open_window(&mut self, window: &PushWindow, pushes: Pushes) -> bool {
        let is_open = match pushes {
            Pushes::OfHandler => !self.is_checked,
            Pushes::Paced | Pushes::Unpaced => self.is_open(),
        };
        let takes = match self.item_bytes {
            0 => Takes::Records(self.longest_gathered()),
            item_bytes => Takes::Items(item_bytes),
        };
        if !is_open || self.item_bytes > self.gathered_bytes {
            return false;
        }
        // The last before progress is due is a call.
        let most = match (CALLS_PER_ROUND - 1).saturating_sub(self.calls) {
            _ if pushes == Pushes::OfHandler => u32::MAX,
            0 if pushes == Pushes::Unpaced => u32::MAX,
            most => most,
        };
        if most > 0 {
            self.runs.open_window(window, takes, most);
        }
        most > 0
    }

    /// Counts what has gone through a view.
    pub fn note_pushed(&mut self, pushed: Pushed, pushes: Pushes) {
        if pushes != Pushes::OfHandler {
            self.calls = self.calls.saturating_add(pushed.count);
        }
        self.sent += u64::from(pushed.count);
        self.sent_bytes += pushed.bytes;
        self.pushed |= pushed.count > 0;
    }
}
