//! Waits that last long: once each, the log says what for.

use trihop_transport::notice;

use super::JobState;
use crate::engine::reasons::Reasons;
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
    /// are kept. So many are written, and how many there are beside them.
    pub fn reasons(&self, most: usize) -> Vec<String> {
        let mut reasons = Reasons::at_most(most);
        for (state, out) in self.engine.open_streams() {
            state.add_reasons(out, &mut reasons);
        }
        for (state, _) in self.engine.open_streams() {
            if let Some(ahead) = Round::ahead(state) {
                reasons.add(|| format!("`{}`: {ahead}", state.name));
            }
        }
        let under_way = self.parked.rounds();
        for (state, out) in under_way.filter_map(|id| self.engine.stream(id).ok()) {
            if let Some(missing) = Round::awaited(state, out) {
                reasons.add(|| format!("`{}`: {missing}", state.name));
            }
        }
        let steps = self.parked.steps();
        for (state, out) in steps.filter_map(|id| self.engine.stream(id).ok()) {
            if let Some(missing) = Step::awaited(out) {
                reasons.add(|| format!("`{}`: {missing}", state.name));
            }
        }
        for missing in self.engine.collectives.missing() {
            let what = self.engine.collectives_of(missing.channel);
            let ranks: Vec<u32> = missing.ranks.iter().map(|rank| rank.0).collect();
            let who = format!("ranks {ranks:?}, or ranks behind them, have");
            reasons.add(|| match missing.is_behind {
                true => format!("{who} come to {what}, and this rank has not"),
                false => format!("{who} not come to {what}"),
            });
        }
        if reasons.is_empty() {
            reasons.add(|| "nothing is kept on this rank: others have not come so far".to_owned());
        }
        reasons.into_texts()
    }

    /// Says that a call waits for long, and why.
    #[cold]
    pub(super) fn warn_of_long_wait(&mut self, what: &str) {
        let seconds = self.patience_ns / 1_000_000_000;
        let rank = self.engine.topology.rank().0;
        let why = self.reasons(MOST_REASONS).join("; ");
        tracing::warn!(rank, seconds, why, "waiting for {what}; a dump says more");
        // One speaks for all, and those who have come to something else than others.
        if (rank == 0 || self.is_elsewhere()) && !std::mem::replace(&mut self.has_complained, true)
        {
            notice::unless_logged(format_args!(
                "rank {rank} has waited for {what} for {seconds} s: {why}"
            ));
        }
    }

    /// Whether this rank is at the end of a step or in a collective, and others are at another.
    fn is_elsewhere(&self) -> bool {
        let (behind, begun): (Vec<_>, Vec<_>) =
            (self.engine.collectives.missing()).partition(|missing| missing.is_behind);
        let mut open = self.engine.open_streams();
        let is_behind = !behind.is_empty() || open.any(|(state, _)| state.rounds.is_behind());
        is_behind && !(begun.is_empty() && self.parked.is_empty())
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
