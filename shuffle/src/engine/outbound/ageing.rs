//! When what is private leaves: by age, in a dialogue, or because nothing else is to be done; and
//! what is still private.

use super::Outbound;
use crate::queue::counters::SendReason;
use crate::queue::remote::RemoteQueue;

/// How much longer than others a run may wait to which something is added all the time.
const GROWING: u64 = 10;

/// As many records are a part of a dialogue at most.
const FEW: u64 = 16;

impl Outbound {
    /// Closes all open runs; true when none is left.
    pub fn close_runs(&mut self) -> bool {
        let mut at = 0;
        while let Some(slot) = self.runs.open_slot(at) {
            if !self.emit(slot) {
                at += 1; // `emit` removes a run that left, so the next one takes its place
            }
        }
        if self.runs.open_runs() == 0 {
            self.runs_since_ns = 0;
        }
        self.runs.open_runs() == 0 && self.go_on()
    }

    /// Closes the open runs to which nothing was added since this last looked.
    fn close_resting_runs(&mut self) {
        let mut at = 0;
        while let Some(slot) = self.runs.open_slot(at) {
            if !self.runs.is_resting(slot) || !self.emit(slot) {
                at += 1; // as in `close_runs`
            }
        }
    }

    /// A round of progress begins. What looks like a part of a dialogue leaves before anything is
    /// looked at.
    #[inline]
    pub fn begin_round(&mut self, now_ns: u64) {
        self.queues.now_ns = now_ns;
        if self.is_dialogue() {
            self.close_runs();
            self.publish(SendReason::Age);
        }
    }

    /// Whether little was sent since the last round, and nothing between the two before it: a request
    /// or a reply, which nothing more may follow. A program that sends and makes progress by turns
    /// has sent before the last round too.
    #[inline]
    fn is_dialogue(&self) -> bool {
        self.pushed && !self.fresh && self.sent - self.sent_before <= FEW
    }

    /// Moves on what has waited long enough: at once in a dialogue and while the application only
    /// polls, by age while it sends. A run that grows is soon full by itself: it has more time than
    /// one that rests.
    pub fn age(&mut self, now_ns: u64, idle: bool, why: SendReason) {
        self.calls = 0;
        if self.runs.open_runs() > 0 {
            if self.runs_since_ns == 0 {
                self.runs_since_ns = now_ns.max(1);
            }
            let since = |then_ns| now_ns.saturating_sub(then_ns);
            let aged = since(self.runs_since_ns) >= GROWING * self.linger_ns;
            if aged || (!self.pushed && idle) || self.is_dialogue() {
                self.close_runs();
            } else if since(self.runs_looked_at_ns) >= self.linger_ns {
                self.runs_looked_at_ns = now_ns;
                self.close_resting_runs();
            }
        } else {
            self.runs_since_ns = 0;
        }
        self.fresh = std::mem::take(&mut self.pushed);
        self.sent_before = self.sent;
        self.publish(why);
        for at in 0..self.queues.remotes.busy_len() {
            let Some(number) = self.queues.remotes.busy(at) else {
                break;
            };
            self.queues.remotes[number].age(now_ns, idle, self.linger_ns, why);
        }
    }

    /// Whether something was sent between the last two rounds of progress: the next one, without
    /// more, sends it on.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Shows the consumers of all lanes what was added.
    pub fn publish(&mut self, why: SendReason) {
        self.queues.is_stirred = false;
        self.queues.lanes_mut().for_each(|lane| lane.publish(why));
    }

    /// Whether a round of progress would find nothing to do here, but over links.
    #[inline]
    pub fn is_still(&self) -> bool {
        !self.fresh
            && !self.pushed
            && !self.queues.is_stirred
            && self.runs.open_runs() == 0
            && self.long.is_empty()
            && self.broadcasting.is_empty()
            && self.spill.rests()
            && self.pressure.rests()
    }

    /// Whether anything is still private: open runs, a long record, spilled records, open batches.
    pub fn has_partial(&self) -> bool {
        self.runs.open_runs() > 0
            || !self.long.is_empty()
            || !self.broadcasting.is_empty()
            || !self.spill.is_empty()
            || self.queues.remotes.iter_busy().any(RemoteQueue::has_open)
    }

    /// Whether nothing waits before the lanes and the wire, and the wire owes nothing.
    pub fn is_quiet(&self) -> bool {
        !self.has_partial() && self.queues.remotes.iter_busy().all(RemoteQueue::is_idle)
    }
}
