//! Back-pressure first, memory last: when deliveries wait for a spill, and when they no longer do.

/// Longest time for which deliveries wait while nothing leaves the spill.
const STALL_NS: u64 = 1_000_000;

/// Whether handlers that send have filled a spill above a mark.
///
/// Above the mark deliveries wait as long as something leaves the spill. Where nothing does for a
/// while, everybody may be waiting for everybody: then the mark rises by half, deliveries go on,
/// and the spill grows. So a circle of ranks that wait for each other costs memory, up to the bound
/// of the spill, and never stands still. The mark sinks again each time the spill is empty.
#[derive(Debug)]
pub(crate) struct Pressure {
    low_bytes: usize,
    /// Never below `low_bytes`.
    mark_bytes: usize,
    is_pressed: bool,
    /// Since when deliveries wait and nothing has left.
    since_ns: u64,
    /// What had left then.
    popped: u64,
}

/// A spill, as one round of progress finds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    pub used_bytes: usize,
    /// Entries that have left since the start.
    pub popped: u64,
    /// What would leave next can do so only after a delivery here.
    pub waits_for_delivery: bool,
}

impl Pressure {
    /// No pressure yet; deliveries wait from `low_bytes` on.
    pub fn new(low_bytes: usize) -> Self {
        Self {
            low_bytes,
            mark_bytes: low_bytes,
            is_pressed: false,
            since_ns: 0,
            popped: 0,
        }
    }

    /// Whether deliveries of handlers that send here are to wait.
    pub fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// Something was added to the spill. True when deliveries are to wait from now on.
    pub fn added(&mut self, level: Level, now_ns: u64) -> bool {
        if self.is_pressed || level.used_bytes < self.mark_bytes {
            return false;
        }
        self.is_pressed = true;
        self.since_ns = now_ns;
        self.popped = level.popped;
        true
    }

    /// Whether there is nothing to look after.
    #[inline]
    pub fn rests(&self) -> bool {
        !self.is_pressed && self.mark_bytes == self.low_bytes
    }

    /// Looks at the spill once a round; `waited` says whether any delivery was kept waiting. True
    /// when deliveries go on.
    pub fn look(&mut self, level: Level, waited: bool, now_ns: u64) -> bool {
        if level.used_bytes == 0 {
            self.mark_bytes = (self.mark_bytes / 2).max(self.low_bytes);
        }
        if !self.is_pressed {
            return false;
        }
        let drains = std::mem::replace(&mut self.popped, level.popped) != level.popped;
        if level.used_bytes <= self.mark_bytes / 2 {
            self.is_pressed = false;
        } else if waited && level.waits_for_delivery {
            self.rise(level.used_bytes);
        } else if drains || !waited {
            self.since_ns = now_ns;
        } else if now_ns.saturating_sub(self.since_ns) >= STALL_NS {
            self.rise(level.used_bytes);
        }
        !self.is_pressed
    }

    fn rise(&mut self, used_bytes: usize) {
        self.mark_bytes = used_bytes.saturating_add(self.mark_bytes / 2 + 1);
        self.is_pressed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(used_bytes: usize, popped: u64) -> Level {
        Level {
            used_bytes,
            popped,
            waits_for_delivery: false,
        }
    }

    #[test]
    fn deliveries_wait_while_the_spill_drains_and_go_on_when_it_does_not() {
        let mut pressure = Pressure::new(1000);
        assert!(!pressure.added(level(999, 0), 5));
        assert!(pressure.added(level(1000, 0), 5) && !pressure.added(level(1100, 0), 5));
        // Something leaves now and then: no time is too long.
        for round in 1..100 {
            assert!(!pressure.look(level(1000, round), true, round * STALL_NS));
        }
        // Nothing leaves, but nobody waits either.
        assert!(!pressure.look(level(1000, 99), false, 200 * STALL_NS));
        assert!(!pressure.look(level(1000, 99), true, 201 * STALL_NS - 1));
        assert!(
            pressure.look(level(1000, 99), true, 201 * STALL_NS),
            "the mark rises"
        );
        assert!(!pressure.is_pressed() && !pressure.added(level(1400, 99), 1));
        assert!(pressure.added(level(1501, 99), 1), "by half");
        assert!(
            pressure.look(level(700, 100), true, 1),
            "half of it has left"
        );
        for popped in 0..10 {
            assert!(!pressure.look(level(0, popped), false, 1));
        }
        assert!(pressure.rests(), "the mark sinks again");
    }

    #[test]
    fn a_spill_that_waits_for_a_delivery_here_keeps_no_delivery_waiting() {
        let mut pressure = Pressure::new(1000);
        assert!(pressure.added(level(1000, 0), 1));
        let own = Level {
            waits_for_delivery: true,
            ..level(1000, 0)
        };
        assert!(
            !pressure.look(own, false, 2),
            "nothing was kept waiting yet"
        );
        assert!(pressure.look(own, true, 2));
    }

    #[test]
    fn the_mark_rises_for_ever_and_never_overflows() {
        let mut pressure = Pressure::new(usize::MAX / 2);
        for _ in 0..10 {
            pressure.added(level(usize::MAX, 0), 0);
            pressure.look(level(usize::MAX, 0), true, STALL_NS);
        }
        assert!(pressure.mark_bytes == usize::MAX);
    }
}
