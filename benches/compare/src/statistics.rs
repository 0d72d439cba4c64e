//! Middle, least and most of a figure over the rounds.

use serde::Serialize;

/// A figure over all rounds in which it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Median; the upper one of two.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Rounds that gave a value.
    pub rounds: usize,
}

impl Spread {
    /// Over all values; none where there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        Some(Self {
            median: *values.get(values.len() / 2)?,
            min: *values.first()?,
            max: *values.last()?,
            rounds: values.len(),
        })
    }
}

/// Middle value; the upper one of two.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values.iter().copied()).map(|s| s.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_has_the_middle_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, f64::NAN, 2.0]).expect("three values");
        assert_eq!(
            (spread.median, spread.min, spread.max, spread.rounds),
            (2.0, 1.0, 3.0, 3)
        );
        assert_eq!(median(&[4.0, 1.0]), Some(4.0));
        assert_eq!(Spread::of([f64::INFINITY]), None);
    }
}
