//! Kills at random moments: how many there are, which, and how long it took until all was over.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Numbers that a seed gives again.
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        // The constants of Knuth's MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// As many kills as `TRIHOP_KILLS` says, or else so many; which ones says `TRIHOP_SEED`, or else
/// the clock. It is said how to replay them.
pub fn asked_for(quick: u64) -> (u64, Random) {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect(name))
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seed = number("TRIHOP_SEED").unwrap_or(now.as_millis() as u64);
    let kills = number("TRIHOP_KILLS").unwrap_or(quick);
    eprintln!("{kills} kills; replay with TRIHOP_KILLS={kills} TRIHOP_SEED={seed}");
    (kills, Random(seed))
}

/// How often something took how long.
#[derive(Default)]
pub struct Times(BTreeMap<u64, u64>);

impl Times {
    pub fn add(&mut self, time: Duration) {
        let below_ms = (time.as_millis() as u64).next_power_of_two();
        *self.0.entry(below_ms).or_default() += 1;
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = self.0.iter();
        rows.try_for_each(|(below_ms, count)| writeln!(f, "  up to {below_ms:>6} ms: {count}"))
    }
}
