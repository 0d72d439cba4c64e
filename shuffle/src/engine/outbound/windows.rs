//! Views of the open runs, for pushes and sends that need nothing else of a job.

use trihop_transport::protocol::wire::RECORD_HEADER_BYTES;

use super::{CALLS_PER_ROUND, Outbound};
use crate::queue::window::{PushWindow, Pushed, Takes};

/// Who pushes or sends through a view of the open runs.
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

    /// Whether a view takes nothing only because progress is due behind the next call.
    pub fn is_almost_due(&self) -> bool {
        self.calls >= CALLS_PER_ROUND - 1
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

#[cfg(test)]
mod tests {
    use trihop_transport::protocol::wire::align8;

    use super::*;
    use crate::engine::outbound::write_record;
    use crate::queue::runs::RunTable;

    /// Nobody who reads a run sees what lies between records.
    #[test]
    fn a_run_of_records_has_the_same_bytes_whichever_way_they_went() {
        let (window, mut sent_so) = (PushWindow::of_one_thread(), 0);
        for lengths in [0..9, 9..24, 60..78, 200..206] {
            let [mut by_calls, mut by_window] = [(); 2].map(|()| RunTable::new(1, 4096, 65_536));
            // What a run leaves that was there before.
            by_window.push(0, 3000).unwrap();
            by_window.close(by_window.open_run_of(0).unwrap());
            by_window.fill_frames(0xee);
            for length in lengths.clone() {
                let record: Vec<u8> = (1..=length as u8).collect();
                let space = RECORD_HEADER_BYTES + align8(length);
                let kind = 0x8000_0001 + length as u32;
                let send = |table: &mut RunTable| {
                    write_record(table.push(0, space).unwrap(), kind, &record);
                };
                send(&mut by_calls);
                by_window.open_window(&window, Takes::Records(1000), 1);
                let is_sent = window.send(0, kind, &record);
                let pushed = window.close();
                let bytes = if is_sent { length as u64 } else { 0 };
                let count = u32::from(is_sent);
                assert_eq!(pushed, Pushed { count, bytes });
                sent_so += count;
                assert_eq!(window.close(), Pushed::default());
                if !is_sent {
                    send(&mut by_window); // into a new frame, or a longer one
                }
            }
            let [slot, same] = [&by_calls, &by_window].map(|table| table.open_run_of(0).unwrap());
            assert_eq!(by_calls.frame(slot, 7), by_window.frame(same, 7));
        }
        assert!(sent_so > 30, "{sent_so}");
    }
}
