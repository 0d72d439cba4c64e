//! Where tests get their randomness from: a seed that is printed, and that `TRIHOP_SEED` gives
//! again.

use std::time::{SystemTime, UNIX_EPOCH};

use proptest::test_runner::{Config, RngSeed};

/// The seed that `TRIHOP_SEED` asks for.
pub fn asked_for() -> Option<u64> {
    let text = std::env::var("TRIHOP_SEED").ok()?;
    Some(
        text.parse()
            .expect("TRIHOP_SEED is a whole number below 2^64"),
    )
}

/// The seed that is asked for, else one from the clock. Printed, so that it is seen where the test
/// fails.
pub fn seed() -> u64 {
    let seed = asked_for().unwrap_or_else(|| {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        now.as_nanos() as u64
    });
    eprintln!("replay with TRIHOP_SEED={seed}");
    seed
}

/// Configuration of property tests: the usual one with such a seed.
pub fn properties() -> Config {
    Config {
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    }
}
