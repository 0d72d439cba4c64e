//! What one output queue has done, counted as it goes. No clock is read: times are those of the
//! last round of progress, since without one nothing that waits can go on.

use crate::stats::QueueStats;

/// Why a batch left, or a lane was shown to its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendReason {
    /// It holds as much as it should, or what comes next has no room.
    Full,
    /// It has waited long enough, or nothing else moves.
    Age,
    /// A flush or a fence.
    Flush,
}

/// Counters of one queue since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueCounters {
    /// Frames of this rank's own.
    own: u64,
    /// Frames that came over a lane or a link.
    forwarded: u64,
    /// Bytes of these.
    forwarded_bytes: u64,
    sends: u64,
    aged: u64,
    flushed: u64,
    waits: u64,
    longest_wait_ns: u64,
    wakes: u64,
    dropped: u64,
    /// Since when a frame waits, 0 while none does.
    waiting_since_ns: u64,
}

impl QueueCounters {
    /// A frame of so many bytes was added.
    #[inline]
    pub fn added(&mut self, own: bool, bytes: usize, now_ns: u64) {
        match own {
            true => self.own += 1,
            false => {
                self.forwarded += 1;
                self.forwarded_bytes += bytes as u64;
            }
        }
        if self.waiting_since_ns > 0 {
            self.end_wait(now_ns);
        }
    }

    /// A frame found no room.
    #[cold]
    pub fn refused(&mut self, now_ns: u64) {
        if self.waiting_since_ns == 0 {
            self.waits += 1;
            self.waiting_since_ns = now_ns.max(1);
        }
    }

    #[cold]
    fn end_wait(&mut self, now_ns: u64) {
        self.longest_wait_ns = self.longest_wait_ns.max(self.waiting_ns(now_ns));
        self.waiting_since_ns = 0;
    }

    /// A batch was sealed, or a lane shown.
    pub fn sent(&mut self, why: SendReason) {
        self.sends += 1;
        self.aged += u64::from(why == SendReason::Age);
        self.flushed += u64::from(why == SendReason::Flush);
    }

    /// A lane was shown, and its consumer was woken for that or not.
    #[inline]
    pub fn woke(&mut self, it_slept: bool) {
        self.wakes += u64::from(it_slept);
    }

    /// A frame was dropped, since the other end is lost.
    #[cold]
    pub fn dropped(&mut self) {
        self.dropped += 1;
    }

    /// Frames added that came over a lane or a link.
    pub fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Bytes of these.
    pub fn forwarded_bytes(&self) -> u64 {
        self.forwarded_bytes
    }

    /// Frames added.
    pub fn frames(&self) -> u64 {
        self.own + self.forwarded
    }

    /// Batches sealed, or times that a lane was shown.
    pub fn sends(&self) -> u64 {
        self.sends
    }

    /// Frames that found no room when they came.
    pub fn waits(&self) -> u64 {
        self.waits
    }

    /// How long a frame has waited, 0 where none does.
    pub fn waiting_ns(&self, now_ns: u64) -> u64 {
        match self.waiting_since_ns {
            0 => 0,
            since => now_ns.saturating_sub(since).max(1),
        }
    }

    /// As a user sees it.
    pub fn stats(&self, peer: u32, now_ns: u64) -> QueueStats {
        let waiting_ns = self.waiting_ns(now_ns);
        QueueStats {
            peer,
            own_runs: self.own,
            forwarded_runs: self.forwarded,
            sends: self.sends,
            aged_sends: self.aged,
            flush_sends: self.flushed,
            waits: self.waits,
            longest_wait_ns: self.longest_wait_ns.max(waiting_ns),
            waiting_ns,
            wakes: self.wakes,
            forwarded_bytes: self.forwarded_bytes,
            dropped_runs: self.dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lasts_from_the_first_refusal_to_the_next_frame() {
        let mut counters = QueueCounters::default();
        counters.added(true, 64, 5);
        for now_ns in [10, 20, 30] {
            counters.refused(now_ns);
        }
        assert_eq!((counters.waits(), counters.waiting_ns(50)), (1, 40));
        assert_eq!(
            counters.stats(7, 50).longest_wait_ns,
            40,
            "one that lasts counts"
        );
        counters.added(false, 40, 110);
        counters.refused(200);
        counters.added(false, 30, 201);
        counters.sent(SendReason::Full);
        counters.sent(SendReason::Age);
        counters.sent(SendReason::Flush);
        let stats = counters.stats(7, 1000);
        assert_eq!(
            (stats.peer, stats.own_runs, stats.forwarded_runs),
            (7, 1, 2)
        );
        assert_eq!(stats.forwarded_bytes, 70);
        assert_eq!(
            (stats.waits, stats.longest_wait_ns, stats.waiting_ns),
            (2, 100, 0)
        );
        assert_eq!(
            (stats.sends, stats.aged_sends, stats.flush_sends),
            (3, 1, 1)
        );
    }
}
