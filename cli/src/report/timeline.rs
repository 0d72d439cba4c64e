//! What each rank did when, from the events of traces.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::html::{Text, table};
use super::input::{Object, number, significant};
use super::time::{Pieces, Strip, legend, rates, strips};

/// Pieces that the time is cut into, for strips and for rates.
const PIECES: usize = 280;
const RATES: usize = 70;

/// Most ranks that have strips.
const MOST_RANKS: usize = 64;

/// What a rank is in, with its colour: a call that waits lies above what its threads do.
const WAITS: &str = "#c8553d";
const ROUNDS: &str = "#1b6ca8";
const ASLEEP: &str = "#999999";

/// A rank, or a relay.
#[derive(Default)]
struct Lane {
    name: String,
    waits: Vec<f64>,
    rounds: Vec<f64>,
    asleep: Vec<f64>,
    /// Microseconds of each, over all threads.
    us: [f64; 3],
    /// The longest call.
    longest: (f64, String),
    sent_batches: u64,
    sent_bytes: f64,
}

/// The section of the events; nothing where there is none that has a time.
pub fn write(out: &mut String, events: &[Object]) {
    let when = |event: &Object| {
        let begin = number(event, "ts").filter(|_| is(event, "ph", "X") || is_batch(event))?;
        Some((begin, begin + number(event, "dur").unwrap_or(0.0)))
    };
    let times = events.iter().filter_map(when);
    let bounds = times.fold(None, |bounds: Option<(f64, f64)>, (begin, end)| {
        let (first, last) = bounds.unwrap_or((begin, end));
        Some((first.min(begin), last.max(end)))
    });
    let Some((begin, end)) = bounds else { return };
    let (fine, coarse) = (
        Pieces::of(begin, end, PIECES),
        Pieces::of(begin, end, RATES),
    );
    let mut lanes = BTreeMap::<u64, Lane>::new();
    let [mut sent, mut received] = [vec![0.0; RATES], vec![0.0; RATES]];
    for event in events {
        let process = event.get("pid").and_then(|pid| pid.as_u64()).unwrap_or(0);
        let lane = lanes.entry(process).or_insert_with(|| Lane::new(process));
        lane.add(event, fine);
        if is_batch(event) {
            let bytes = bytes_of(event);
            let counts = if is(event, "cat", "sent") {
                &mut sent
            } else {
                &mut received
            };
            counts[coarse.at(number(event, "ts").unwrap_or(begin))] += bytes;
        }
    }
    let _ = writeln!(
        out,
        "<h2>timeline: {} ranks, {} ms</h2>",
        lanes.len(),
        Text(significant((end - begin) / 1e3))
    );
    let shown = lanes.values().take(MOST_RANKS);
    let title = match lanes.len() > MOST_RANKS {
        true => format!("what the first {MOST_RANKS} ranks did"),
        false => "what each rank did".to_owned(),
    };
    strips(
        out,
        &title,
        fine,
        &shown.flat_map(Lane::strips).collect::<Vec<_>>(),
    );
    legend(
        out,
        [
            (WAITS, "above: a call waits"),
            (ROUNDS, "below: rounds of progress that moved something"),
            (ASLEEP, "below: asleep"),
        ]
        .into_iter(),
    );
    rates(
        out,
        "bytes per second in batches between nodes, all ranks",
        coarse,
        &[("sealed to be sent", sent), ("arrived", received)],
    );
    let head = [
        "rank",
        "calls wait, ms",
        "rounds, ms",
        "asleep, ms",
        "longest call, ms",
        "which",
        "batches sent",
        "bytes sent",
    ];
    table(
        out,
        &head,
        &lanes.values().map(Lane::row).collect::<Vec<_>>(),
    );
}

fn is(event: &Object, name: &str, value: &str) -> bool {
    event.get(name).is_some_and(|is| is == value)
}

/// Whether a batch begins here: is sealed, or arrives.
fn is_batch(event: &Object) -> bool {
    is(event, "ph", "b") && (is(event, "cat", "sent") || is(event, "cat", "received"))
}

fn bytes_of(event: &Object) -> f64 {
    let bytes = event.get("args").and_then(|args| args["bytes"].as_f64());
    bytes.unwrap_or(0.0)
}

impl Lane {
    fn new(process: u64) -> Self {
        let none = || vec![0.0; PIECES];
        Self {
            name: format!("rank {process}"),
            waits: none(),
            rounds: none(),
            asleep: none(),
            ..Self::default()
        }
    }

    fn add(&mut self, event: &Object, pieces: Pieces) {
        let name = event
            .get("name")
            .and_then(|name| name.as_str())
            .unwrap_or("");
        if is(event, "ph", "M") && name == "process_name" {
            if let Some(name) = event.get("args").and_then(|args| args["name"].as_str()) {
                // `rank 0 (node 0)`
                self.name = name.split(" (").next().unwrap_or(name).to_owned();
            }
        } else if is_batch(event) && is(event, "cat", "sent") {
            self.sent_batches += 1;
            self.sent_bytes += bytes_of(event);
        }
        let span = number(event, "ts").zip(number(event, "dur"));
        let Some((begin, long)) = span.filter(|_| is(event, "ph", "X")) else {
            return;
        };
        let (shares, sum) = match name {
            "round" => (&mut self.rounds, 1),
            "asleep" => (&mut self.asleep, 2),
            _ => (&mut self.waits, 0),
        };
        pieces.add(shares, begin, begin + long);
        self.us[sum] += long;
        if sum == 0 && long > self.longest.0 {
            self.longest = (long, name.to_owned());
        }
    }

    fn strips(&self) -> [Strip; 3] {
        let strip = |colour, shares: &[f64], is_first| Strip {
            name: self.name.clone(),
            colour,
            shares: shares.to_vec(),
            is_first,
        };
        [
            strip(WAITS, &self.waits, true),
            strip(ROUNDS, &self.rounds, false),
            strip(ASLEEP, &self.asleep, false),
        ]
    }

    fn row(&self) -> Vec<String> {
        let ms = |us: f64| significant(us / 1e3);
        let [waits, rounds, asleep] = self.us.map(ms);
        vec![
            self.name.clone(),
            waits,
            rounds,
            asleep,
            ms(self.longest.0),
            self.longest.1.clone(),
            self.sent_batches.to_string(),
            self.sent_bytes.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_show_what_they_did() {
        let event = |text: &str| serde_json::from_str::<Object>(text).unwrap();
        let events = [
            event(
                r#"{"ph":"M","pid":3,"ts":1,"name":"process_name","args":{"name":"rank 3 (node 1)"}}"#,
            ),
            event(r#"{"ph":"X","pid":3,"ts":1000,"name":"a <fence>","dur":4000}"#),
            event(r#"{"ph":"X","pid":3,"ts":1500,"name":"round","dur":250}"#),
            event(r#"{"ph":"X","pid":0,"ts":3000,"name":"asleep","dur":2000}"#),
            event(
                r#"{"ph":"b","pid":0,"ts":2000,"cat":"sent","id":"x","name":"batch","args":{"bytes":700}}"#,
            ),
            event(
                r#"{"ph":"b","pid":3,"ts":2600,"cat":"received","id":"y","name":"batch","args":{"bytes":700}}"#,
            ),
            event(r#"{"ph":"I"}"#),
        ];
        let mut out = String::new();
        write(&mut out, &events);
        for text in [
            "timeline: 2 ranks, 4.000 ms",
            ">rank 3<",
            "bytes per second",
            "<td>a &lt;fence&gt;</td>",
            // Rank 3: waits, rounds, asleep, the longest call.
            "<td>rank 3</td><td class=n>4.000</td><td class=n>0.2500</td><td class=n>0</td><td class=n>4.000</td>",
            "<td class=n>1</td><td class=n>700</td>",
        ] {
            assert!(out.contains(text), "`{text}` in {out}");
        }
        assert!(!out.contains("NaN") && !out.contains("inf"), "{out}");
        let mut out = String::new();
        write(&mut out, &events[..1]);
        write(&mut out, &[]);
        assert_eq!(out, "");
    }
}
