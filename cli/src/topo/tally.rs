//! How often each value of something came.

use std::collections::BTreeMap;

use serde::Serialize;

/// Most rows that a histogram is shown in.
const ROWS: usize = 16;

/// Counts by value. Memory is that of the distinct values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<u64, u64>);

/// Values from the first to the last, both included, and how often they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Row {
    pub from: u64,
    pub to: u64,
    pub ranks: u64,
}

/// What a report has of a tally.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub min: u64,
    pub mean: f64,
    pub max: u64,
    pub total: u64,
    pub histogram: Vec<Row>,
}

impl Summary {
    /// How many times the mean the most is.
    pub fn max_by_mean(&self) -> f64 {
        self.max as f64 / self.mean.max(f64::MIN_POSITIVE)
    }
}

impl Tally {
    /// Another value.
    pub fn add(&mut self, value: u64) {
        *self.0.entry(value).or_default() += 1;
    }

    /// Least, mean, most, sum and histogram. Each distinct value is a row of its own where there
    /// are at most 16 of them; else there are 16 rows of equal width, without those that hold
    /// nothing.
    pub fn summary(&self) -> Summary {
        let count: u64 = self.0.values().sum();
        let total = self.0.iter().map(|(value, times)| value * times).sum();
        let min = self.0.first_key_value().map_or(0, |(value, _)| *value);
        let max = self.0.last_key_value().map_or(0, |(value, _)| *value);
        let width = match self.0.len() {
            0..=ROWS => 1,
            _ => (max - min) / ROWS as u64 + 1,
        };
        let mut histogram: Vec<Row> = Vec::new();
        for (&value, &times) in &self.0 {
            let from = min + (value - min) / width * width;
            match histogram.last_mut() {
                Some(row) if row.from == from => row.ranks += times,
                _ => histogram.push(Row {
                    from,
                    to: from + (width - 1),
                    ranks: times,
                }),
            }
        }
        Summary {
            min,
            mean: total as f64 / count.max(1) as f64,
            max,
            total,
            histogram,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(values: impl IntoIterator<Item = u64>) -> Summary {
        let mut tally = Tally::default();
        values.into_iter().for_each(|value| tally.add(value));
        tally.summary()
    }

    fn rows(summary: &Summary) -> Vec<(u64, u64, u64)> {
        let rows = summary.histogram.iter();
        rows.map(|row| (row.from, row.to, row.ranks)).collect()
    }

    #[test]
    fn few_values_have_a_row_each() {
        let few = summary([7, 3, 3, 1000]);
        assert_eq!((few.min, few.max, few.total), (3, 1000, 1013));
        assert!((few.mean - 253.25).abs() < 1e-9);
        assert_eq!(rows(&few), [(3, 3, 2), (7, 7, 1), (1000, 1000, 1)]);
    }

    #[test]
    fn many_values_share_rows_that_hold_them_all() {
        let many = summary((10..110).chain([500]));
        assert!(many.histogram.len() <= ROWS);
        assert_eq!(many.histogram.iter().map(|row| row.ranks).sum::<u64>(), 101);
        assert_eq!(rows(&many)[0], (10, 40, 31));
        for pair in many.histogram.windows(2) {
            assert!(pair[0].to < pair[1].from, "{pair:?}");
        }
        assert!(
            many.histogram
                .last()
                .is_some_and(|row| row.from <= 500 && 500 <= row.to)
        );
        assert!(summary([]).histogram.is_empty());
    }
}
