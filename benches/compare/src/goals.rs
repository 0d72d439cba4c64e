//! The goals that a comparison can judge, and whether they are met.

mod round;
mod table;

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::Serialize;

use self::round::Round;
use self::table::{GOALS, Goal};
use crate::results::Results;
use crate::statistics::Spread;

/// Where a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// A goal as it stands after the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    /// Its name, as in the list of goals.
    pub goal: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// Figure over the rounds, as text with its unit; a dash where there is none.
    pub figure: String,
    /// Smallest and largest of the rounds.
    pub spread: String,
    /// Bound, as text.
    pub bound: String,
    /// `met`, `missed`, either with `without` and the rivals that gave no figure, or `not judged:
    /// why`.
    pub verdict: String,
}

/// All goals of a benchmark that was run, or all.
pub fn judge(results: &Results, wanted: &[String]) -> Vec<Judgement> {
    let chosen =
        |goal: &&Goal| wanted.is_empty() || wanted.iter().any(|w| goal.0.eq_ignore_ascii_case(w));
    let by_name: Vec<Judgement> = GOALS
        .iter()
        .filter(chosen)
        .map(|goal| judged(results, goal))
        .collect();
    if !by_name.is_empty() {
        return by_name;
    }
    // The words were benchmarks: what can be judged of them.
    let all = GOALS.iter().map(|goal| judged(results, goal));
    all.filter(|judgement| !judgement.verdict.starts_with(NOT_JUDGED))
        .collect()
}

/// How a verdict begins that is none.
const NOT_JUDGED: &str = "not judged";

fn judged(results: &Results, (goal, what, figure, bound, unit): &Goal) -> Judgement {
    let mut without = BTreeSet::new();
    let one = |number| {
        let round = Round {
            results,
            number,
            without: RefCell::default(),
        };
        let value = figure(&round);
        without.extend(round.without.into_inner());
        value
    };
    let values: Vec<Result<f64, String>> = (0..results.rounds).map(one).collect();
    let spread = Spread::of(values.iter().filter_map(|v| v.as_ref().ok().copied()));
    let show = |value: f64| unit.map_or_else(|| format!("{value:.2} x"), |unit| unit.show(value));
    let (met, bound) = match *bound {
        Bound::AtMost(most) => (
            spread.map(|s| s.median <= most),
            format!("<= {}", show(most)),
        ),
        Bound::AtLeast(least) => (
            spread.map(|s| s.median >= least),
            format!(">= {}", show(least)),
        ),
    };
    // A round without a figure, whatever the cause, does not meet the goal.
    let failed = values.iter().filter(|value| value.is_err()).count();
    let why = values.iter().find_map(|value| value.as_ref().err());
    let verdict = match (met, why) {
        (None, None) => format!("{NOT_JUDGED}: no round was run"),
        (_, Some(why)) => format!(
            "{NOT_JUDGED}: in {failed} of {} rounds, {why}",
            values.len()
        ),
        (Some(met), None) => {
            let word = if met { "met" } else { "missed" };
            match without.is_empty() {
                true => word.to_owned(),
                false => format!("{word} without {}", Vec::from_iter(without).join(" and ")),
            }
        }
    };
    Judgement {
        goal,
        what,
        figure: spread.map_or_else(|| "-".into(), |s| show(s.median)),
        spread: spread.map_or_else(
            || "-".into(),
            |s| format!("{} to {}", show(s.min), show(s.max)),
        ),
        bound,
        verdict,
    }
}

#[cfg(test)]
#[path = "goals_tests.rs"]
mod tests;
