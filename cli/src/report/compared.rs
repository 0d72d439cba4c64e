//! What `make compare` has measured: all systems, on the same work in the same minute.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::chart::{Curve, bars, curves};
use super::html::{Text, table};
use super::input::{Object, number, text};

/// A section for each work, with what its systems are compared by.
pub fn write(out: &mut String, rows: &[&Object]) {
    let mut works = BTreeMap::<String, Vec<&Object>>::new();
    for row in rows {
        works.entry(work(row)).or_default().push(row);
    }
    for (work, rows) in works {
        let _ = writeln!(out, "<h2>compare {}</h2>", Text(&work));
        for (field, title) in [
            ("latency_us", "one-way latency, in us"),
            ("msgs_per_s", "messages per second"),
            ("bytes_per_s", "bytes per second"),
            ("cpu_us_per_msg", "CPU time per message, in us"),
            ("us_per_round", "time of a round, in us"),
        ] {
            let title = format!("{work}: {title}");
            if !by_size(out, &title, &rows, field, |row| text(row, "system")) {
                let bar = |row: &&Object| Some((text(row, "system"), number(row, field)?));
                let all: Vec<_> = rows.iter().filter_map(bar).collect();
                bars(out, &title, &all);
            }
        }
        let cells = |row: &&Object| COLUMNS.map(|name| text(row, name)).to_vec();
        let all: Vec<_> = rows.iter().map(cells).collect();
        table(out, &COLUMNS, &all);
    }
}

const COLUMNS: [&str; 11] = [
    "system",
    "size",
    "rounds",
    "latency_us",
    "msgs_per_s",
    "bytes_per_s",
    "cpu_us_per_msg",
    "wire_bytes_per_msg",
    "us_per_round",
    "way",
    "missing",
];

fn work(row: &Object) -> String {
    let mut work = format!(
        "{}: {} ranks on {} nodes",
        text(row, "compare"),
        text(row, "ranks"),
        text(row, "nodes")
    );
    if number(row, "items").is_some_and(|items| items > 0.0) {
        let _ = write!(work, ", {} items a rank", text(row, "items"));
    }
    work
}

/// Curves of a field over the size of messages, one for each name; nothing where all have one size.
/// Whether there are any.
pub fn by_size(
    out: &mut String,
    title: &str,
    rows: &[&Object],
    field: &str,
    name: impl Fn(&Object) -> String,
) -> bool {
    let mut series = BTreeMap::<String, Vec<(f64, f64)>>::new();
    for row in rows {
        if let Some(point) = number(row, "size").zip(number(row, field)) {
            series.entry(name(row)).or_default().push(point);
        }
    }
    series
        .values_mut()
        .for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let has_sizes =
        |points: &Vec<(f64, f64)>| points.first().map(|p| p.0) != points.last().map(|p| p.0);
    let is_drawn = series.values().any(has_sizes);
    if is_drawn {
        let series = series.into_iter();
        let all: Vec<Curve> = series
            .map(|(name, points)| Curve { name, points })
            .collect();
        curves(out, title, "bytes of a message", &all);
    }
    is_drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_curves_by_size_or_bars() {
        let row = |bench: &str, system: &str, size: u32, rate: f64| -> Object {
            let text = format!(
                r#"{{"compare":"{bench}","system":"{system}","ranks":4,"nodes":2,"items":0,
                "size":{size},"msgs_per_s":{rate},"missing":null}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let rows = [
            row("a2a", "trihop, typed", 8, 2e6),
            row("a2a", "trihop, typed", 64, 1e6),
            row("a2a", "MPICH <isend>", 8, 5e5),
            row("histo", "trihop, typed", 8, 3e6),
            row("histo", "MPICH aggregate", 8, 1e6),
        ];
        let mut out = String::new();
        write(&mut out, &rows.iter().collect::<Vec<_>>());
        for text in [
            "<h2>compare a2a: 4 ranks on 2 nodes</h2>",
            "a2a: 4 ranks on 2 nodes: messages per second",
            "<polyline",
            "MPICH &lt;isend&gt;",
            "<h2>compare histo: 4 ranks on 2 nodes</h2>",
            "MPICH aggregate</text>",
        ] {
            assert!(out.contains(text), "`{text}` in {out}");
        }
        assert_eq!(out.matches("<svg").count(), 2);
    }
}
