//! The end of a flush, after which its caller goes to a barrier: of a library that may spin there,
//! and take the core from those who still send.

use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use crate::transport::sync::Mutex;

/// Part of the time since the last flush within which nothing may have passed.
const PART: u32 = 64;

/// Such parts that are too short to sleep for, and the longest.
const SHORTEST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(2);

/// The longest sleep in all.
const LIMIT: Duration = Duration::from_secs(1);

/// What of others passed a rank when its last flush ended, and when that was.
pub(super) struct Lull(Mutex<Passed>);

struct Passed {
    count: u64,
    since: Instant,
}

impl Lull {
    /// Nothing has passed yet.
    pub fn new() -> Self {
        Self(Mutex::new(Passed {
            count: 0,
            since: Instant::now(),
        }))
    }

    /// Sleeps until nothing more passes, or for as long as the time since the last flush was.
    /// `passed` counts what does; not at all where that stands still, or can not be told.
    pub fn wait(&self, passed: impl Fn() -> Option<u64>) {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, since) = {
            let last = lock();
            (last.count, last.since)
        };
        let Some(mut count) = passed() else { return };
        let (began, epoch) = (Instant::now(), since.elapsed());
        let pause = (epoch / PART).min(LONGEST);
        if count != before && pause >= SHORTEST {
            while began.elapsed() < epoch.min(LIMIT) {
                thread::sleep(pause);
                let before = count;
                match passed() {
                    Some(now) if now != before => count = now,
                    _ => break,
                }
            }
        }
        *lock() = Passed {
            count,
            since: Instant::now(),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The looks that a flush takes at `counts`, the last of which stays, this long after the last
    /// flush.
    fn looks(lull: &Lull, epoch: Duration, counts: &[u64]) -> usize {
        lull.0.lock().unwrap().since = Instant::now() - epoch;
        let at = Cell::new(0);
        lull.wait(|| {
            let look = at.replace(at.get() + 1);
            Some(counts[look.min(counts.len() - 1)])
        });
        at.get()
    }

    #[test]
    fn a_flush_lasts_as_long_as_something_passes() {
        let lull = Lull::new();
        let epoch = Duration::from_secs(1);
        assert_eq!(looks(&lull, epoch, &[5, 8, 9, 9]), 4);
        assert_eq!(looks(&lull, epoch, &[9]), 1, "nothing since the last flush");
        assert_eq!(looks(&lull, epoch, &[10, 10]), 2);
        let short = Duration::from_micros(10);
        assert_eq!(looks(&lull, short, &[11, 12]), 1, "not worth a sleep");
    }

    #[test]
    fn a_flush_does_not_wait_for_ever() {
        let count = Cell::new(1);
        let lull = Lull::new();
        lull.0.lock().unwrap().since = Instant::now() - Duration::from_millis(20);
        lull.wait(|| Some(count.replace(count.get() + 1)));
        assert!(count.get() > 2, "it has looked once");
    }
}
