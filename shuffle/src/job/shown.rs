//! What this endpoint shows to others on its machine: when, and of what.

use std::io::{self, Write};
use std::time::Duration;

use rustix::time::ClockId;

use super::{JobState, Patience};
use crate::observe::clock_ns;

/// Longest text that is made for a page; what the page has no room for is cut there.
const MOST_TEXT_BYTES: usize = 64 << 10;
/// Most reasons in it.
const MOST_REASONS: usize = 256;

/// Processor time of this thread.
fn spent_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// Memory for a text, up to a bound.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MOST_TEXT_BYTES.saturating_sub(self.0.len());
        let taken = bytes.len().min(room);
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken) // none ends the text
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl JobState {
    /// A round of a call that waits has moved nothing. Says once that the wait is long: for which
    /// ranks, and at which stage messages are kept.
    pub fn note_wait(&mut self, patience: &mut Patience, what: &'static str) {
        let now_ns = self.now_ns();
        // A call that has found no place before has waited for longer than this round.
        let since_ns = patience.since_ns.unwrap_or(now_ns);
        self.shown.begin_wait(&mut patience.note, what, since_ns);
        if patience.ends(now_ns, self.patience_ns) {
            self.warn_of_long_wait(what);
        }
    }

    /// The wait for `what` is over.
    pub fn end_wait(&mut self, patience: &mut Patience, what: &'static str) {
        if let Some(since_ns) = patience.since_ns {
            let waited_ns = self.now_ns().saturating_sub(since_ns);
            self.engine
                .trace
                .waited(Duration::from_nanos(waited_ns), what);
        }
        if self.shown.end_wait(&mut patience.note) {
            // This thread may go and compute: nobody else would take that back.
            let now_ns = self.now_ns();
            self.show(now_ns);
        }
    }

    /// Shows how things are before a sleep, where that is due: a job that hangs sleeps a tenth of a
    /// second at a time.
    pub(super) fn show_before_sleep(&mut self) {
        let now_ns = self.now_ns();
        if let Some(text) = self.shown.take_text(now_ns) {
            let begun_ns = spent_ns();
            let text = self.write_text(text, now_ns);
            self.shown.show_text(now_ns, text);
            // From here on: what the text took counts as the text's.
            let end_ns = self.now_ns();
            self.shown
                .rest_of_text(spent_ns().saturating_sub(begun_ns), end_ns);
            self.show(end_ns);
        } else if self.shown.is_due_asleep(now_ns) {
            self.show(now_ns);
        }
    }

    /// Shows the counters of this moment.
    #[cold]
    pub(super) fn show(&mut self, now_ns: u64) {
        let begun_ns = spent_ns();
        self.shown.show(now_ns, self.rounds, &self.engine);
        let end_ns = self.now_ns();
        self.shown.rest(spent_ns().saturating_sub(begun_ns), end_ns);
    }

    /// Why calls wait, and the dump.
    fn write_text(&self, text: Vec<u8>, now_ns: u64) -> Vec<u8> {
        let mut text = Bounded(text);
        // It ends where the page has no more room.
        let _ = self.write_waits(&mut text, now_ns);
        let _ = self.dump(&mut text);
        text.0
    }

    fn write_waits(&self, text: &mut Bounded, now_ns: u64) -> io::Result<()> {
        let mut waits = false;
        for (what, waited_ns) in self.shown.waits(now_ns) {
            waits = true;
            let seconds = waited_ns as f64 / 1e9;
            writeln!(text, "a call waits for {what}, {seconds:.1} s by now")?;
        }
        if waits {
            for reason in self.reasons(MOST_REASONS) {
                writeln!(text, "  {reason}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::job::detect;

    #[test]
    fn a_wait_that_gets_a_place_late_is_shown_in_its_full_length() {
        let options = Options::default();
        let bootstrap = detect(&options).unwrap();
        let mut state = JobState::start(options, bootstrap).unwrap().state;
        let mut waits: [Patience; 9] = Default::default();
        let shown = |state: &JobState| {
            let mut ages: Vec<u64> = state.shown.waits(u64::MAX).map(|wait| wait.1).collect();
            ages.sort_unstable();
            ages
        };
        for wait in &mut waits {
            state.note_wait(wait, "news");
        }
        assert_eq!(shown(&state).len(), 8, "there is no place for more");
        let [first, others @ ..] = &mut waits;
        state.end_wait(first, "news");
        state.note_wait(&mut others[7], "news");
        let of = |wait: &Patience| u64::MAX - wait.since_ns.unwrap();
        let mut ages: Vec<u64> = others.iter().map(of).collect();
        ages.sort_unstable();
        assert_eq!(shown(&state), ages);
    }
}
