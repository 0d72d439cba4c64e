//! The report as one page with its plots inside: nothing is loaded from anywhere.

use super::plot;
use super::{GOAL_HEADS, HEADS, NOTES, Report, cells, goal_cells, lines};

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:84em;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:.6em 0 1.6em}th,td{border-bottom:1px solid #ddd;padding:.2em .6em;text-align:left;vertical-align:top}\
    th{background:#f4f4f4}td:first-child{font-weight:600;white-space:nowrap}.met{color:#0a7a2f}.missed{color:#b00020}.not{color:#777}\
    svg{max-width:100%;height:auto;display:block;margin:.6em 0}h2{margin-top:2em}";

impl Report<'_> {
    /// The whole page.
    pub(super) fn html(&self) -> String {
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>trihop and its rivals</title>\
             <style>{STYLE}</style></head><body>\n<h1>trihop and its rivals, on the same work in the same minute</h1>\n"
        );
        let mut facts: Vec<[String; 2]> = self
            .facts
            .0
            .iter()
            .map(|(name, value)| [(*name).to_owned(), value.clone()])
            .collect();
        facts.push(["rounds".to_owned(), self.results.rounds.to_string()]);
        table(&mut page, &["fact", "value"], facts.into_iter());
        page.push_str("<ul>");
        for note in NOTES {
            page.push_str(&format!("<li>{}</li>", escaped(note)));
        }
        page.push_str("</ul>\n<h2>Goals</h2>\n");
        let goals = self.judgements.iter().map(goal_cells);
        table(&mut page, &GOAL_HEADS, goals);
        page.push_str("<h2>Plots</h2>\n");
        let cases: Vec<_> = self.results.cases().collect();
        for picture in plot::all(&cases) {
            match picture {
                Ok(svg) => page.push_str(&svg),
                Err(why) => page.push_str(&format!("<p>A plot is missing: {}</p>", escaped(&why))),
            }
        }
        for case in cases {
            let head = escaped(&case.work.text());
            page.push_str(&format!(
                "<h2>{head}</h2>\n<p>Compared with {}.</p>\n",
                escaped(case.reference)
            ));
            table(&mut page, &HEADS, lines(case).into_iter().map(cells));
        }
        page.push_str("</body></html>\n");
        page
    }
}

fn table<const N: usize>(
    page: &mut String,
    heads: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    page.push_str("<table><tr>");
    for head in heads {
        page.push_str(&format!("<th>{}</th>", escaped(head)));
    }
    page.push_str("</tr>\n");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let class = match cell.split([' ', ':']).next() {
                Some(word @ ("met" | "missed" | "not")) => format!(" class=\"{word}\""),
                _ => String::new(),
            };
            page.push_str(&format!("<td{class}>{}</td>", escaped(&cell)));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
