//! The page: a section for each kind of result.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::chart::{MOST_SQUARES, bars, squares};
use super::compared::{self, by_size};
use super::html::{Text, table};
use super::input::{Object, number, significant, text};
use super::timeline;

/// Partitions, or ranks, of which each has a bar of its own at most.
const MOST_BARS: usize = 64;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;\
     padding:0 1rem;color:#222}h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.2rem;\
     border-bottom:1px solid #ccc}table{border-collapse:collapse;margin:1rem 0;font-size:13px;\
     display:block;overflow-x:auto}th,td{border:1px solid #ddd;padding:.15rem .5rem;text-align:left}\
     th{background:#f3f3f3}td.n{text-align:right;font-variant-numeric:tabular-nums}\
     figure{margin:1rem 0}figcaption{font-weight:600}svg{max-width:100%;height:auto}\
     svg text{font-size:11px;fill:#444}line.g{stroke:#e3e3e3}ul.legend{display:flex;flex-wrap:wrap;\
     gap:.2rem 1.6rem;padding-left:1.2rem;margin:.2rem 0}";

/// What a result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Bench,
    Compare,
    Exchange,
    Partition,
    Topo,
    Other,
}

impl Kind {
    fn of(object: &Object) -> Self {
        let is = |name: &str, value: &str| object.get(name).is_some_and(|is| is == value);
        if is("command", "partition") {
            Self::Partition
        } else if is("report", "topo") {
            Self::Topo
        } else if is("bench", "exchange") {
            Self::Exchange
        } else if object.contains_key("bench") {
            Self::Bench
        } else if object.contains_key("compare") {
            Self::Compare
        } else {
            Self::Other
        }
    }
}

/// The page of these results, and of the events of traces.
pub fn of(results: &[Object], events: &[Object]) -> String {
    let mut kinds = BTreeMap::<Kind, Vec<&Object>>::new();
    for result in results {
        kinds.entry(Kind::of(result)).or_default().push(result);
    }
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\
         <meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=viewport content='width=device-width'><title>trihop: results</title>\
         <style>{STYLE}</style></head><body>\n<h1>trihop {}: {} results</h1>\n",
        Text(trihop::VERSION),
        results.len()
    );
    if !events.is_empty() {
        let _ = writeln!(out, "<p>Beside them {} events of traces.</p>", events.len());
    }
    for (kind, results) in kinds {
        match kind {
            Kind::Bench => benches(&mut out, &results),
            Kind::Compare => compared::write(&mut out, &results),
            Kind::Exchange => results.iter().for_each(|result| exchange(&mut out, result)),
            Kind::Partition => results
                .iter()
                .for_each(|result| partition(&mut out, result)),
            Kind::Topo => results.iter().for_each(|result| topo(&mut out, result)),
            Kind::Other => others(&mut out, &results),
        }
    }
    timeline::write(&mut out, events);
    out.push_str("</body></html>\n");
    out
}

/// Each benchmark with its curves over the size, where there are several sizes, and its rows.
fn benches(out: &mut String, rows: &[&Object]) {
    let mut names = BTreeMap::<String, Vec<&Object>>::new();
    for row in rows {
        names.entry(text(row, "bench")).or_default().push(row);
    }
    for (name, rows) in names {
        let _ = writeln!(out, "<h2>bench {}</h2>", Text(&name));
        for (field, title) in [
            ("msgs_per_s", "messages per second"),
            ("bytes_per_s", "bytes per second"),
            ("cpu_us_per_msg", "CPU time per message, in us"),
        ] {
            by_size(out, &format!("{name}: {title}"), &rows, field, series_name);
        }
        rows_of(out, &rows);
    }
}

fn series_name(row: &Object) -> String {
    let mut name = format!(
        "{} ranks on {} nodes",
        text(row, "ranks"),
        text(row, "nodes")
    );
    for field in ["route", "api", "provider"] {
        if row.contains_key(field) {
            let _ = write!(name, ", {}", text(row, field));
        }
    }
    name
}

/// Fields that stand before all others, in this order.
const FIRST: [&str; 12] = [
    "bench",
    "rank",
    "api",
    "ranks",
    "nodes",
    "route",
    "provider",
    "size",
    "count",
    "msgs_per_s",
    "bytes_per_s",
    "cpu_us_per_msg",
];

/// The names of the plain fields of objects, those that any has.
fn fields<'a>(objects: impl Iterator<Item = &'a Object>) -> Vec<&'a str> {
    let mut fields: Vec<&str> = Vec::new();
    for (field, value) in objects.flatten() {
        let is_plain = !value.is_object() && !value.is_array();
        if is_plain && !fields.contains(&&**field) {
            fields.push(field);
        }
    }
    let place = |field: &&str| FIRST.iter().position(|first| first == field);
    fields.sort_by_key(|field| place(field).unwrap_or(FIRST.len()));
    fields
}

/// A line for each object, a column for each field.
fn rows_of(out: &mut String, rows: &[&Object]) {
    let fields = fields(rows.iter().copied());
    let cells = |row: &&Object| fields.iter().map(|field| text(row, field)).collect();
    table(out, &fields, &rows.iter().map(cells).collect::<Vec<_>>());
}

/// A line for each field.
fn fields_of(out: &mut String, object: &Object) {
    let line = |name: &&str| vec![(*name).to_owned(), text(object, name)];
    let rows: Vec<Vec<String>> = fields([object].into_iter()).iter().map(line).collect();
    table(out, &["field", "value"], &rows);
}

/// Runs that a queue has taken.
fn runs(queue: &Value) -> f64 {
    let count = |name: &str| queue[name].as_f64().unwrap_or(0.0);
    count("own_runs") + count("forwarded_runs")
}

/// The stages of a rank's details by name, each with its queues.
fn stages(detail: &Object) -> impl Iterator<Item = (&str, &[Value])> {
    detail.iter().filter_map(|(name, stage)| {
        let queues = stage.get("queues")?.as_array()?;
        Some((&**name, &queues[..]))
    })
}

/// Who has sent to whom, where squares can be told apart.
fn traffic(out: &mut String, details: &[Value]) {
    let size = details.len();
    if size > MOST_SQUARES {
        let _ = writeln!(
            out,
            "<p>runs that went from one rank to the next: {size} ranks: too many to draw</p>"
        );
        return;
    }
    let mut matrix = vec![vec![0.0; size]; size];
    for detail in details.iter().filter_map(Value::as_object) {
        let rank = number(detail, "rank").unwrap_or(0.0);
        let queues = stages(detail).flat_map(|(_, queues)| queues);
        for queue in queues {
            let peer = queue["peer"].as_u64().unwrap_or(u64::MAX) as usize;
            let row = matrix.get_mut(rank as usize);
            if let Some(cell) = row.and_then(|row| row.get_mut(peer)) {
                *cell += runs(queue);
            }
        }
    }
    squares(
        out,
        "runs that went from one rank to the next",
        ("from rank", "to rank"),
        &matrix,
    );
}

/// Runs that the links of each rank have carried.
fn carried(details: &[Value]) -> Vec<(String, f64)> {
    let ranks = details.iter().filter_map(Value::as_object);
    let of_rank = |detail: &Object| {
        let rank = number(detail, "rank").unwrap_or(0.0);
        let links = stages(detail).filter(|(name, _)| *name == "remote");
        let queues = links.flat_map(|(_, queues)| queues);
        (format!("rank {rank}"), queues.map(runs).sum::<f64>())
    };
    ranks.map(of_rank).collect()
}

/// A bar for each; where these are too many, for the largest.
fn largest_bars(out: &mut String, title: &str, mut all: Vec<(String, f64)>) {
    let count = all.len();
    if count <= MOST_BARS {
        return bars(out, title, &all);
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(MOST_BARS);
    bars(
        out,
        &format!("{title}: the largest {MOST_BARS} of {count}"),
        &all,
    );
}

/// A checked exchange; with `--detail` who has sent to whom, and what representatives have carried.
fn exchange(out: &mut String, result: &Object) {
    let (ranks, nodes) = (text(result, "ranks"), text(result, "nodes"));
    let _ = writeln!(
        out,
        "<h2>exchange: {} ranks on {} nodes</h2>",
        Text(ranks),
        Text(nodes)
    );
    let details = result.get("detail").and_then(Value::as_array);
    let details: &[Value] = details.map_or(&[], |details| details);
    traffic(out, details);
    largest_bars(
        out,
        "runs that each rank has carried to other nodes, as representative",
        carried(details),
    );
    let mut totals = Vec::new();
    for detail in details.iter().filter_map(Value::as_object) {
        let mut of_rank = detail.get("totals").and_then(Value::as_object).cloned();
        if let Some(of_rank) = &mut of_rank {
            of_rank.extend(
                detail
                    .get("rank")
                    .map(|rank| ("rank".to_owned(), rank.clone())),
            );
        }
        totals.extend(of_rank);
    }
    if !totals.is_empty() {
        rows_of(out, &totals.iter().collect::<Vec<_>>());
    }
    fields_of(out, result);
}

/// A table that was split, with the records of each part.
fn partition(out: &mut String, result: &Object) {
    let _ = writeln!(out, "<h2>partition: {}</h2>", Text(text(result, "out")));
    let parts = result.get("partitions").and_then(Value::as_array);
    let parts: Vec<&Object> = parts
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .collect();
    let records = |part: &&Object| (text(part, "file"), number(part, "records").unwrap_or(0.0));
    largest_bars(
        out,
        "records of each part",
        parts.iter().map(records).collect(),
    );
    fields_of(out, result);
}

/// What a route asks of ranks.
fn topo(out: &mut String, result: &Object) {
    let (route, ranks) = (text(result, "route"), text(result, "ranks"));
    let _ = writeln!(out, "<h2>topo: {}, {} ranks</h2>", Text(route), Text(ranks));
    for (field, title) in [
        ("links", "ranks by their links"),
        ("carried_pairs", "ranks by the pairs that their links carry"),
    ] {
        let histogram = result
            .get(field)
            .and_then(|summary| summary["histogram"].as_array());
        let bar = |row: &Value| {
            let (from, to) = (row["from"].as_u64()?, row["to"].as_u64()?);
            let name = match from == to {
                true => from.to_string(),
                false => format!("{from} - {to}"),
            };
            Some((name, row["ranks"].as_f64()?))
        };
        let all: Vec<(String, f64)> = histogram.into_iter().flatten().filter_map(bar).collect();
        bars(out, title, &all);
    }
    let mean = number(result, "mean_hops").map_or("-".into(), significant);
    let _ = writeln!(
        out,
        "<p>{} hops between two ranks in the mean.</p>",
        Text(mean)
    );
    fields_of(out, result);
}

/// Results that no drawing is known for.
fn others(out: &mut String, results: &[&Object]) {
    out.push_str("<h2>other results</h2>\n");
    for result in results {
        fields_of(out, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_results(results: &[Object]) -> String {
        of(results, &[])
    }

    fn object(text: &str) -> Object {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn every_result_is_on_the_page() {
        let row = |size, rate| {
            object(&format!(
                r#"{{"bench":"a2a","ranks":4,"nodes":2,"route":"direct","size":{size},"msgs_per_s":{rate}}}"#
            ))
        };
        let page = with_results(&[
            row(8, 100.0),
            row(64, 1000.0),
            object(
                r#"{"command":"partition","out":"<o>","partitions":[{"file":"p0","records":3}]}"#,
            ),
            object(
                r#"{"report":"topo","route":"direct","ranks":8,"mean_hops":1.5,"links":{"histogram":[{"from":1,"to":2,"ranks":8}]}}"#,
            ),
            object(
                r#"{"bench":"exchange","ranks":2,"nodes":1,"detail":[
                {"rank":0,"totals":{"sent":5},"remote":{"queues":[{"peer":1,"own_runs":3,"forwarded_runs":4}]}},
                {"rank":1,"totals":{"sent":6},"remote":{"queues":[{"peer":77,"own_runs":1,"forwarded_runs":0}]}}]}"#,
            ),
            object(r#"{"what":"ever"}"#),
        ]);
        for text in [
            "6 results",
            "<h2>bench a2a</h2>",
            "a2a: messages per second",
            "partition: &lt;o&gt;",
            "topo: direct, 8 ranks",
            "1.500 hops",
            "from rank 0, to rank 1: 7",
            "as representative",
            "other results",
            "<td>ever</td>",
        ] {
            assert!(page.contains(text), "`{text}` in {page}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.matches("<svg").count() >= 5);
        let outside = ["http://", "https://", "src=", "<script", "url("];
        assert!(outside.iter().all(|text| !page.contains(text)));
    }

    #[test]
    fn of_many_ranks_the_busiest_are_shown_and_no_squares() {
        let rank = |rank: usize| {
            format!(
                r#"{{"rank":{rank},"remote":{{"queues":[{{"peer":0,"own_runs":{rank},"forwarded_runs":1}}]}}}}"#
            )
        };
        let page = |ranks: usize| {
            let details: Vec<String> = (0..ranks).map(rank).collect();
            let details = details.join(",");
            with_results(&[object(&format!(
                r#"{{"bench":"exchange","ranks":{ranks},"nodes":{ranks},"detail":[{details}]}}"#
            ))])
        };
        let many = page(300);
        for text in [
            "300 ranks: too many to draw",
            "as representative: the largest 64 of 300",
            ">rank 299<",
            ">rank 236<",
        ] {
            assert!(many.contains(text), "`{text}` in {many}");
        }
        assert!(!many.contains(">rank 235<") && !many.contains("from rank 1,"));
        let few = page(64);
        assert!(few.contains("from rank 1, to rank 0: 2") && !few.contains("largest"));
    }
}
