//! What can come of a simulated job instead of its end.

use crate::error::Error;

/// Why a simulated job did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A send was refused, or options are impossible.
    #[error(transparent)]
    Engine(#[from] Error),
    /// A rank's engine failed.
    #[error("rank {rank}: {why}")]
    Rank {
        /// The rank.
        rank: u32,
        /// What it says.
        why: Error,
    },
    /// A rank broke a rule that a real provider punishes.
    #[error("the fabric saw a breach of its rules: {0}")]
    Violation(String),
    /// All ranks sleep, nothing is under way, and something is not done: a deadlock, or a wake-up
    /// was lost. Or time passes and nothing comes of it.
    #[error("{what}: {ranks} ranks are not done and nothing moves; one of them:\n{dump}")]
    Stuck {
        /// What was waited for.
        what: &'static str,
        /// Ranks that are not done.
        ranks: usize,
        /// State of one of them.
        dump: String,
    },
}
