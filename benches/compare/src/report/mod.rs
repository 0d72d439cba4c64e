//! The two reports, written from the same tables, and the figures as JSON.

mod html;
mod json;
mod markdown;
mod plot;

use std::path::Path;

use crate::goals::Judgement;
use crate::machine::Facts;
use crate::results::{Case, Results, System};
use crate::rows::Measure;

/// What both reports show.
pub struct Report<'a> {
    /// Machine, versions, commit, date.
    pub facts: &'a Facts,
    /// The goals.
    pub judgements: &'a [Judgement],
    /// All figures.
    pub results: &'a Results,
}

/// One line of the table of figures.
struct Line {
    /// Ours over theirs with its spread; a dash where there is none, or for ours itself.
    ratio: String,
    ratio_spread: String,
    ours: String,
    theirs: String,
    theirs_spread: String,
    measure: &'static str,
    system: String,
    way: String,
    crosses: &'static str,
    count: String,
}

impl Report<'_> {
    /// Writes `report.md`, `report.html` and `results.json` into `folder`.
    ///
    /// # Errors
    /// What could not be written, and why.
    pub fn write(&self, folder: &Path) -> Result<(), String> {
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text)
                .map_err(|error| format!("writing {}: {error}", path.display()))
        };
        write("report.md", self.markdown())?;
        write("report.html", self.html())?;
        let figures = self.json();
        write(
            "results.json",
            figures.map_err(|e| format!("writing JSON: {e}"))?,
        )
    }
}

/// What a work is compared by.
fn measures(case: &Case) -> &'static [Measure] {
    match case.work.bench {
        "ring" | "threads" => &[Measure::LatencyUs, Measure::Rate, Measure::CpuUs],
        "p2p" => &[Measure::LatencyUs, Measure::Bandwidth, Measure::CpuUs],
        "a2a" => &[Measure::Bandwidth, Measure::CpuUs],
        "client-node" | "client-hops" => &[Measure::LatencyUs, Measure::CpuUs],
        "round" => &[Measure::RoundUs, Measure::CpuUs],
        _ => &[Measure::Rate, Measure::CpuUs],
    }
}

/// The lines of a work: for each system, each measure that it has; or why it has none.
fn lines(case: &Case) -> Vec<Line> {
    let mut lines = Vec::new();
    for system in &case.systems {
        let mut any = false;
        for &measure in measures(case) {
            if let Some(line) = line(case, system, measure) {
                lines.push(line);
                any = true;
            }
        }
        if !any || system.missing.is_some() {
            lines.push(missing(case, system));
        }
    }
    lines
}

fn dash() -> String {
    "-".to_owned()
}

fn line(case: &Case, system: &System, measure: Measure) -> Option<Line> {
    let theirs = system.spread(measure)?;
    let ours = case.reference().and_then(|s| s.spread(measure));
    let is_reference = system.name == case.reference;
    let ratio = case.ratio(system, measure).filter(|_| !is_reference);
    Some(Line {
        ratio: ratio.map_or_else(dash, |r| format!("{:.2}", r.median)),
        ratio_spread: ratio.map_or_else(dash, |r| format!("{:.2} to {:.2}", r.min, r.max)),
        ours: ours.map_or_else(dash, |o| measure.show(o.median)),
        theirs: if is_reference {
            dash()
        } else {
            measure.show(theirs.median)
        },
        theirs_spread: format!(
            "{} to {}",
            measure.show(theirs.min),
            measure.show(theirs.max)
        ),
        measure: measure.text(),
        system: system.name.clone(),
        way: system.way.clone(),
        crosses: if system.crosses { "yes" } else { "no" },
        count: if system.count == 0 {
            dash()
        } else {
            system.count.to_string()
        },
    })
}

fn missing(case: &Case, system: &System) -> Line {
    let why = system
        .missing
        .as_deref()
        .unwrap_or("it gave no figure of this kind");
    let ours = measures(case)[0];
    let ours = case
        .reference()
        .and_then(|s| s.spread(ours))
        .map_or_else(dash, |o| ours.show(o.median));
    Line {
        ratio: dash(),
        ratio_spread: dash(),
        ours,
        theirs: "no figure".to_owned(),
        theirs_spread: why.to_owned(),
        measure: measures(case)[0].text(),
        system: system.name.clone(),
        way: system.way.clone(),
        crosses: if system.crosses { "yes" } else { "no" },
        count: dash(),
    }
}

/// Heads of the table of figures, in the order of [`cells`].
const HEADS: [&str; 10] = [
    "ours / theirs",
    "spread of the ratio",
    "ours",
    "theirs",
    "measure",
    "system",
    "its spread",
    "how its ranks reach each other",
    "crosses nodes",
    "messages a rank",
];

fn cells(line: Line) -> [String; 10] {
    [
        line.ratio,
        line.ratio_spread,
        line.ours,
        line.theirs,
        line.measure.to_owned(),
        line.system,
        line.theirs_spread,
        line.way,
        line.crosses.to_owned(),
        line.count,
    ]
}

/// Heads of the table of goals, in the order of [`goal_cells`].
const GOAL_HEADS: [&str; 6] = ["goal", "what", "figure", "bound", "verdict", "spread"];

fn goal_cells(judgement: &Judgement) -> [String; 6] {
    [
        judgement.goal.to_owned(),
        judgement.what.to_owned(),
        judgement.figure.clone(),
        judgement.bound.clone(),
        judgement.verdict.clone(),
        judgement.spread.clone(),
    ]
}

/// Sentences that a reader needs before the tables.
const NOTES: [&str; 8] = [
    "Every figure is the median over the rounds; each round launches every program once, ours first in odd rounds and last in even ones, and each launch warms up once and takes the median of its own repetitions.",
    "Ratios are ours / theirs, formed within each round: above 1 is better for rates and bandwidths, below 1 for latencies and CPU.",
    "Every program checks its results; a wrong one would be a row without a figure.",
    "Rivals over tcp have one hop and no shared memory between any two ranks, unless two simulated nodes are named; ours crosses two simulated nodes, with lanes inside of each and a link for each rank. MPI ranks are kept on cores; ours are where there are as many cores as ranks.",
    "fi_pingpong has no stream: its bandwidth is size / (half a round trip), one message at a time; ours is that of a stream with up to 64 messages or 4 MiB under way. F2 is the smallest of ours / theirs over the powers of two from 8 B to 1 MiB, so at small sizes it says little more than that a window helps. Of our protocols only the one counts that the engine would choose at that size.",
    "Between threads rtrb, crossbeam-channel and iceoryx2 publish each message; ours writes frames and publishes 16 KiB of them at once, and in round trips each one.",
    "`ring` and our queue between threads use a lane of 1 MiB and publish per 16 KiB; the engine's lanes hold 64 KiB at most and publish per 4 KiB, so its streams get less out of a ring than these rows.",
    "UCX and MPI receive into memory of the receiver (as our `copy` does). A best of several rivals is that of those that gave a figure; the verdict names the others.",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts(vec![
            ("commit", "abc123".into()),
            ("kernel", "Linux | <6>".into()),
        ])
    }

    fn written() -> (String, String) {
        let results = crate::results::tests::sample();
        let judgements = crate::goals::judge(&results, &[]);
        let report = Report {
            facts: &facts(),
            judgements: &judgements,
            results: &results,
        };
        let folder = tempfile::tempdir().expect("a folder");
        report
            .write(folder.path())
            .expect("a folder that can be written");
        let read =
            |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a report");
        (read("report.md"), read("report.html"))
    }

    #[test]
    fn markdown_has_goals_ratios_and_who_is_missing() {
        let (markdown, _) = written();
        assert!(
            markdown.contains(
                "| S1 | histo / aggregation by hand over the best MPI, P=2 on one node | 3.00 x |"
            ),
            "{markdown}"
        );
        assert!(
            markdown.contains(
                "| 3.00 | 1.00 to 3.00 | 300.0 M/s | 200.0 M/s | rate | MPICH aggregate |"
            ),
            "{markdown}"
        );
        assert!(
            markdown
                .contains("| no figure | rate | UCX | round 1: ucx_perftest is not installed |"),
            "{markdown}"
        );
        assert!(
            markdown.contains("Linux \\| <6>"),
            "a bar would end the cell"
        );
        let columns: Vec<usize> = markdown
            .lines()
            .filter(|l| l.starts_with("| 3.00"))
            .map(|l| l.matches('|').count())
            .collect();
        assert_eq!(columns, [HEADS.len() + 1]);
    }

    #[test]
    fn html_stands_alone() {
        let (_, html) = written();
        assert!(
            html.contains("<svg") && html.contains("MPICH aggregate") && html.contains("&lt;6&gt;")
        );
        for outside in ["http:", "https:", "<script", "<link", "src=", "url("] {
            assert!(!html.contains(outside), "{outside} leads outside");
        }
    }
}
