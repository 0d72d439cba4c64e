//! Waits that last long: once each, the log says what for.

use std::collections::{HashMap, HashSet};

use trihop_transport::notice;

use super::JobState;
use crate::endpoint::{FENCES, SYSTEM_STREAM};
use crate::engine::StreamState;
use crate::engine::reasons::{Reasons, at_a_glance};
use crate::observe::WaitNote;
use crate::terminate::collective::Missing;
use crate::terminate::flush::Fence;
use crate::terminate::round::Round;
use crate::terminate::step::Step;

/// The reason where there is none: who serves others may just have nothing to do.
const NOTHING_KEPT: &str = "nothing is kept on this rank: others have not come so far";
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

/// Handlers of other threads that have something for long.
#[derive(Debug, Default)]
pub(crate) struct LongCalls {
    looked_ns: u64,
    /// By number of a stream, and of its opening: what its handler has, and since when at the
    /// latest.
    seen: HashMap<(u16, u32), (u64, u64)>,
    /// Those that were named.
    pub told: HashSet<(u16, u32)>,
}

impl JobState {
    /// Says once of each stream that its handler is busy for long with what it was handed at once.
    /// To be called now and then by a thread that calls no handlers: nobody else may be left to say
    /// so.
    pub fn note_long_calls(&mut self) {
        let now_ns = self.now_ns();
        let calls = &mut self.long_calls;
        if now_ns.saturating_sub(calls.looked_ns) < self.patience_ns / 8 {
            return;
        }
        calls.looked_ns = now_ns;
        let before = std::mem::take(&mut calls.seen);
        let rank = self.engine.topology.rank().0;
        for (state, _) in self.engine.open_streams() {
            let of = (state.id, state.opened);
            let Some(has) = state.handover.as_ref().and_then(|of| of.under_way()) else {
                continue;
            };
            let seen = before.get(&of).filter(|(had, _)| *had == has);
            let since_ns = seen.map_or(now_ns, |(_, since_ns)| *since_ns);
            calls.seen.insert(of, (has, since_ns));
            let long_ns = now_ns - since_ns;
            if long_ns < self.patience_ns || !calls.told.insert(of) {
                continue;
            }
            let (stream, seconds) = (&state.name, long_ns / 1_000_000_000);
            tracing::warn!(
                rank,
                stream,
                seconds,
                "a handler is busy with what it was handed at once"
            );
            if calls.told.len() == 1 {
                notice::unless_logged(format_args!(
                    "rank {rank}: the handler of `{stream}` has been busy for {seconds} s with what \
                     it was handed at once: it is slow, or waits, perhaps for a lock that the \
                     program keeps across a send or the end of a step"
                ));
            }
        }
    }

    /// Why nothing moves that calls wait for: which ranks are awaited, and at which stage messages
    /// are kept. So many are written, and how many there are beside them.
    pub fn reasons(&self, most: usize) -> Vec<String> {
        let mut reasons = Reasons::at_most(most);
        for (state, out) in self.engine.open_streams() {
            state.add_reasons(out, &mut reasons);
        }
        for (state, out) in self.engine.open_streams() {
            // Who ends a step whose contributors are not done here is not behind.
            let is_behind = !self.is_in_fence(state.id);
            let fence = is_behind.then(|| Fence::ahead(state, out)).flatten();
            for ahead in Round::ahead(state, out).into_iter().chain(fence) {
                reasons.add(|| format!("{}: {ahead}", fenced(state)));
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
        let fences = self
            .parked
            .ends()
            .filter_map(|id| self.engine.stream(id).ok());
        let of_all = self.engine.open_streams().next();
        for (state, out) in fences.chain(of_all.filter(|_| self.parked.of_all.is_some())) {
            if let Some(missing) = Fence::awaited(state, out) {
                reasons.add(|| format!("{}: {missing}", fenced(state)));
            }
        }
        for missing in self.missing() {
            let what = self.engine.collectives_of(missing.channel);
            let ranks = missing.ranks.iter().map(|rank| format!("rank {}", rank.0));
            let who = format!("{}, or ranks behind, have", at_a_glance(ranks));
            reasons.add(|| match missing.is_behind {
                true => format!("{who} come to {what}, and this rank has not"),
                false => {
                    format!("{who} not come to {what}, or still have messages to send or to handle")
                }
            });
        }
        if reasons.is_empty() {
            reasons.add(|| NOTHING_KEPT.to_owned());
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
        // Two speak for all, since the first may be whom the others wait for, and those who have
        // come to something else than others.
        let says_more = why != NOTHING_KEPT || self.engine.topology.size() == 1;
        let speaks = rank < 2 && says_more || self.is_elsewhere();
        if speaks && !std::mem::replace(&mut self.has_complained, true) {
            notice::unless_logged(format_args!(
                "rank {rank} has waited for {what} for {seconds} s: {why}"
            ));
        }
    }

    /// What is missing of collectives. A rank that waits in a fence has not come to its collective
    /// while it has messages: it is not behind for that.
    fn missing(&self) -> impl Iterator<Item = Missing> {
        let all = self.engine.collectives.missing();
        all.filter(|missing| !(missing.is_behind && self.is_ending(missing.channel)))
    }

    /// Whether what ends by collectives of this number is under way here.
    fn is_ending(&self, channel: u16) -> bool {
        let mut ends = self.parked.ends();
        self.parked.of_all.is_some() && channel == FENCES
            || ends.any(|id| (self.engine.stream(id)).is_ok_and(|(state, _)| state.id == channel))
    }

    /// Whether a fence of the stream with this number is under way here, or the end of its step; of
    /// the job's own stream, a fence of all others.
    fn is_in_fence(&self, stream: u16) -> bool {
        match stream {
            SYSTEM_STREAM => self.parked.of_all.is_some(),
            _ => self.is_ending(stream),
        }
    }

    /// Whether this rank is at the end of a step or in a collective, and others are at another.
    fn is_elsewhere(&self) -> bool {
        let (behind, begun): (Vec<_>, Vec<_>) =
            self.missing().partition(|missing| missing.is_behind);
        let mut open = self.engine.open_streams();
        let is_behind = !behind.is_empty()
            || open.any(|(state, out)| {
                let mut ahead = out.queues.ahead_in_census();
                state.rounds.is_behind() || !self.is_in_fence(state.id) && ahead.next().is_some()
            });
        let parked = &self.parked;
        let ends = parked.ends().chain(parked.rounds()).next().is_some();
        is_behind && (ends || parked.of_all.is_some() || !begun.is_empty())
    }
}

/// What a fence is of, in words.
fn fenced(state: &StreamState) -> String {
    match state.id {
        SYSTEM_STREAM => "all streams".to_owned(),
        _ => format!("`{}`", state.name),
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
