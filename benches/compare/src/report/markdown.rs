//! The report as Markdown tables.

use std::fmt::Write;

use super::{GOAL_HEADS, HEADS, NOTES, Report, cells, goal_cells, lines};

impl Report<'_> {
    /// The whole text.
    pub(super) fn markdown(&self) -> String {
        let mut text =
            String::from("# trihop and its rivals, on the same work in the same minute\n\n");
        table(
            &mut text,
            &["fact", "value"],
            self.facts
                .0
                .iter()
                .map(|(name, value)| [(*name).to_owned(), value.clone()]),
        );
        add(
            &mut text,
            &format!("| rounds | {} |\n\n", self.results.rounds),
        );
        for note in NOTES {
            add(&mut text, &format!("- {note}\n"));
        }
        add(&mut text, "\n## Goals\n\n");
        let goals = self.judgements.iter().map(goal_cells);
        table(&mut text, &GOAL_HEADS, goals);
        for case in self.results.cases() {
            add(
                &mut text,
                &format!(
                    "\n## {}\n\nCompared with {}.\n\n",
                    case.work.text(),
                    case.reference
                ),
            );
            table(&mut text, &HEADS, lines(case).into_iter().map(cells));
        }
        text
    }
}

fn table<const N: usize>(
    text: &mut String,
    heads: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    add(
        text,
        &format!("| {} |\n|{}\n", heads.join(" | "), " --- |".repeat(N)),
    );
    for row in rows {
        let cells = row.map(|cell| cell.replace('|', "\\|"));
        add(text, &format!("| {} |\n", cells.join(" | ")));
    }
}

fn add(text: &mut String, more: &str) {
    text.write_str(more).expect("a String takes everything");
}
