//! How many ranks a process is to host.

use crate::error::{Error, Result};

/// Most ranks of one process.
pub const MOST_RANKS: u32 = 1024;

/// Says how many ranks each process hosts: see [`asked_for`].
pub const ENV_RANKS: &str = "TRIHOP_MINIS_PER_RANK";

/// Ranks of each process that the environment asks for: `TRIHOP_MINIS_PER_RANK`, which
/// `trihop run --minis-per-rank` sets; 1 where it says nothing.
///
/// # Errors
/// [`Error::Config`]: it is no number from 1 to [`MOST_RANKS`].
pub fn asked_for() -> Result<u32> {
    let Some(text) = std::env::var_os(ENV_RANKS).filter(|text| !text.is_empty()) else {
        return Ok(1);
    };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number
        .filter(|ranks| (1..=MOST_RANKS).contains(ranks))
        .ok_or_else(|| {
            let why = format!("{text:?} is no number of ranks of a process from 1 to {MOST_RANKS}");
            Error::config(ENV_RANKS, why)
        })
}
