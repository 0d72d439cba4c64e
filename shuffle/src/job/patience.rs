//! Waits that last long: once each, the log says what for.

use super::JobState;
use crate::observe::WaitNote;
use crate::terminate::round::Round;
use crate::terminate::step::Step;

/// Reasons that one line in the log names at most.
const MOST_REASONS: usize = 8;
/// A wait that lasts longer than this is logged.
pub(super) const PATIENCE_NS: u64 = 10_000_000_000;

/// How long a call has waited.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    pub(super) since_ns: Option<u64>,
    ended: bool,
    /// What the page says of it.
    pub(super) note: WaitNote,
}

impl Patience {
    /// Whether the wait was noted at all.
    pub fn has_waited(&self) -> bool {
        self.since_ns.is_some()
    }

    /// Whether the wait has just become a long one; asked while it lasts, and true once at most.
    pub fn ends(&mut self, now_ns: u64, limit_ns: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let is_long = !self.ended && now_ns.saturating_sub(since_ns) >= limit_ns;
        self.ended |= is_long;
        is_long
    }
}

impl JobState {
    /// Why nothing moves that calls wait for: which ranks are awaited, and at which stage messages
    /// are kept.
    pub(super) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for (state, out) in self.engine.open_streams() {
            let of_stream = state.reasons(out).into_iter();
            reasons.extend(of_stream.map(|reason| format!("`{}`: {reason}", state.name)));
        }
        let under_way = self.parked.rounds();
        let rounds = under_way.filter_map(|id| self.engine.stream(id).ok());
        reasons.extend(rounds.filter_map(|(state, out)| {
            let missing = Round::awaited(state, out)?;
            Some(format!("`{}`: {missing}", state.name))
        }));
        let steps = self
            .parked
            .steps()
            .filter_map(|id| self.engine.stream(id).ok());
        reasons.extend(steps.filter_map(|(state, out)| {
            let missing = Step::awaited(out)?;
            Some(format!("`{}`: {missing}", state.name))
        }));
        let awaited = self.engine.collectives.awaited();
        if !awaited.is_empty() {
            let ranks: Vec<u32> = awaited.iter().map(|rank| rank.0).collect();
            reasons.push(format!(
                "collectives: ranks {ranks:?}, or ranks behind them, have not joined (a fence, a barrier, the opening \
                 of a stream or the end of the job)"
            ));
        }
        if reasons.is_empty() {
            reasons.push("nothing is kept on this rank: others have not come so far".to_owned());
        }
        reasons
    }

    /// Says that a call waits for long, and why.
    #[cold]
    pub(super) fn warn_of_long_wait(&self, what: &str) {
        let seconds = self.patience_ns / 1_000_000_000;
        let rank = self.engine.topology.rank().0;
        let mut reasons = self.reasons();
        let more = reasons.len().saturating_sub(MOST_REASONS);
        reasons.truncate(MOST_REASONS);
        if more > 0 {
            reasons.push(format!("and {more} more"));
        }
        let why = reasons.join("; ");
        tracing::warn!(rank, seconds, why, "waiting for {what}; a dump says more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_once() {
        let mut patience = Patience::default();
        assert!(!patience.ends(100, 50) && !patience.ends(149, 50));
        assert!(patience.ends(150, 50));
        assert!(
            !patience.ends(151, 50) && !patience.ends(1000, 50),
            "a wait is long once"
        );
    }
}
