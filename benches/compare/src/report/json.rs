//! The figures as JSON, a line for each system in each work, which `trihop report` takes.

use serde::Serialize;

use super::Report;
use crate::results::{Case, System};
use crate::rows::Measure;
use crate::statistics::Spread;

/// What a system gave in a work: medians over the rounds, in the units of `trihop bench --json`.
#[derive(Serialize)]
struct Line<'a> {
    compare: &'a str,
    system: &'a str,
    ours: bool,
    /// The system that the others of this work are compared with.
    reference: &'a str,
    way: &'a str,
    ranks: u32,
    nodes: u32,
    items: u64,
    size: usize,
    rounds: usize,
    latency_us: Option<f64>,
    msgs_per_s: Option<f64>,
    bytes_per_s: Option<f64>,
    cpu_us_per_msg: Option<f64>,
    wire_bytes_per_msg: Option<f64>,
    us_per_round: Option<f64>,
    /// Least and most of the rates.
    msgs_per_s_range: Option<[f64; 2]>,
    /// Why it gave nothing, or nothing in some round.
    missing: Option<&'a str>,
}

impl Report<'_> {
    /// All lines.
    ///
    /// # Errors
    /// A figure that JSON has no number for.
    pub(super) fn json(&self) -> Result<String, serde_json::Error> {
        let mut text = String::new();
        for case in self.results.cases() {
            for system in &case.systems {
                text += &serde_json::to_string(&line(case, system, self.results.rounds))?;
                text.push('\n');
            }
        }
        Ok(text)
    }
}

fn line<'a>(case: &'a Case, system: &'a System, rounds: usize) -> Line<'a> {
    let median = |measure| system.spread(measure).map(|spread: Spread| spread.median);
    let rates = system.spread(Measure::Rate);
    Line {
        compare: case.work.bench,
        system: &system.name,
        ours: system.ours,
        reference: case.reference,
        way: &system.way,
        ranks: case.work.ranks,
        nodes: case.work.nodes,
        items: case.work.items,
        size: case.work.size,
        rounds,
        latency_us: median(Measure::LatencyUs),
        msgs_per_s: rates.map(|rates| rates.median),
        bytes_per_s: median(Measure::Bandwidth),
        cpu_us_per_msg: median(Measure::CpuUs),
        wire_bytes_per_msg: median(Measure::WireBytes),
        us_per_round: median(Measure::RoundUs),
        msgs_per_s_range: rates.map(|rates| [rates.min, rates.max]),
        missing: system.missing.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Facts;

    #[test]
    fn each_system_has_a_line_with_its_medians() {
        let results = crate::results::tests::sample();
        let report = Report {
            facts: &Facts(Vec::new()),
            judgements: &[],
            results: &results,
        };
        let text = report.json().unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of = |system: &str| lines.iter().find(|line| line["system"] == system).unwrap();
        let ours = of("trihop, typed");
        assert_eq!(
            (&ours["compare"], &ours["size"]),
            (&"histo".into(), &8.into())
        );
        assert_eq!(ours["msgs_per_s"], 300e6);
        assert_eq!(ours["msgs_per_s_range"], serde_json::json!([200e6, 300e6]));
        assert_eq!(of("MPICH aggregate")["ours"], false);
        let missing = lines.iter().filter(|line| line["missing"].is_string());
        assert!(missing.count() >= 1, "{text}");
        assert!(lines.iter().all(|line| line["latency_us"].is_null()));
    }
}
