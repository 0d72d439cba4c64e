//! Jobs as tables for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use trihop::observe::Seen;

use super::rates::{Rates, Row, own_streams};
use crate::output::{self, folded, wrapped};

/// What a line stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// One for each rank
    Rank,
    /// One for each node, the sum of what is seen of it
    Node,
}

/// Sums over some endpoints.
#[derive(Debug, Default)]
struct Line {
    ends: usize,
    rates: Option<Rates>,
    queued_bytes: u64,
    waiting_records: u64,
    in_flight: u64,
    credits: u64,
    spill_bytes: u64,
    memory_bytes: u64,
    bound_bytes: u64,
    /// The longest wait, in nanoseconds, with what it is for.
    wait: Option<(u64, String)>,
}

impl Line {
    fn add(&mut self, row: &Row) {
        self.ends += 1;
        if let Some(rates) = &row.rates {
            self.rates.get_or_insert_default().add(rates);
        }
        let grow = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        let streams = row.seen.now.iter().flat_map(own_streams);
        for stream in streams {
            grow(&mut self.waiting_records, stream.waiting_records);
            grow(&mut self.spill_bytes, stream.used_bytes("spill"));
            for stage in &stream.stages {
                grow(&mut self.queued_bytes, stage.waiting_bytes);
                grow(&mut self.in_flight, stage.in_flight_batches);
                grow(&mut self.credits, stage.credits);
            }
        }
        let (used, most) = row.seen.memory();
        grow(&mut self.memory_bytes, used);
        grow(&mut self.bound_bytes, most);
        if let (Some(wait), Some(now)) = (row.seen.longest_wait(), &row.seen.now) {
            // It has gone on since that moment, for all that is known.
            let waited_ns = wait.waited_ns.saturating_add(now.age_ns);
            if self
                .wait
                .as_ref()
                .is_none_or(|(longest, _)| *longest < waited_ns)
            {
                self.wait = Some((waited_ns, wait.what.clone()));
            }
        }
    }

    fn cells(&self, name: [String; 3]) -> [String; 12] {
        let rate =
            |of: fn(&Rates) -> f64| self.rates.as_ref().map_or("-".to_owned(), |r| short(of(r)));
        let [end, node, process] = name;
        [
            end,
            node,
            process,
            rate(|r| r.sent_per_s),
            rate(|r| r.delivered_per_s),
            rate(|r| r.wire_bytes_per_s),
            short(self.queued_bytes as f64),
            short(self.waiting_records as f64),
            short(self.in_flight as f64),
            short(self.credits as f64),
            short(self.spill_bytes as f64),
            share(self.memory_bytes, self.bound_bytes),
        ]
    }
}

/// Each job with a line for each rank or node, and one for each stage.
pub fn write(rows: &[Row], by: By) -> String {
    let mut out = String::new();
    let mut jobs = BTreeMap::<&str, Vec<&Row>>::new();
    for row in rows {
        jobs.entry(&row.seen.about.job).or_default().push(row);
    }
    if jobs.is_empty() {
        return "no job of this user shows itself on this machine\n".to_owned();
    }
    for (number, (job, rows)) in jobs.into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        write_job(&mut out, job, &rows, by);
    }
    out
}

fn write_job(out: &mut String, job: &str, rows: &[&Row], by: By) {
    let about = &rows[0].seen.about;
    let relays = rows.iter().filter(|row| row.seen.about.is_relay).count();
    let relays = match relays {
        0 => String::new(),
        count => format!(" and {count} relays"),
    };
    let head = format!(
        "job {job} on {}: {} ranks on {} nodes; seen here: {} ranks{relays}",
        about.host,
        about.ranks,
        about.nodes,
        rows.iter().filter(|row| !row.seen.about.is_relay).count(),
    );
    let _ = writeln!(out, "{}", wrapped(&head, 0));
    let (names, lines) = lines(rows, by);
    out.push_str(&waits(&lines, by));
    // As wide as what stands below them can be, so that columns stay where they are.
    let names = [
        names[0], names[1], names[2], "sent/s", "recv/s", "wire/s", "queued", " undel", " infl",
        " cred", " spill", "memory",
    ];
    let cells = lines.iter().map(|(name, line)| line.cells(name.clone()));
    out.push_str(&output::table(names, &[], cells));
    write_stages(out, rows);
    rows.iter().for_each(|row| write_missing(out, &row.seen));
}

/// What is waited for, the longest first, each once: a job that hangs waits on all its ranks.
fn waits(lines: &[([String; 3], Line)], by: By) -> String {
    let mut longest: Vec<_> = lines
        .iter()
        .filter_map(|(name, line)| line.wait.as_ref().map(|(ns, what)| (*ns, &name[0], what)))
        .collect();
    longest.sort_by_key(|(ns, ..)| std::cmp::Reverse(*ns));
    let mut of_each = Vec::<(u64, &str, &str, usize)>::new();
    for (ns, name, what) in longest {
        match of_each.iter_mut().find(|(_, _, same, _)| same == what) {
            Some((.., others)) => *others += 1,
            None => of_each.push((ns, name, what, 0)),
        }
    }
    let mut out = String::new();
    for (ns, name, what, others) in of_each {
        let who = match (by, name.strip_prefix('r')) {
            (By::Node, _) => format!("node {name}"),
            (By::Rank, None) => format!("rank {name}"),
            (By::Rank, Some(relay)) => format!("relay {relay}"),
        };
        let others = match others {
            0 => String::new(),
            others => format!(", and {others} more"),
        };
        let wait = format!("{who} waits {} for {what}{others}", seconds(ns));
        out.push_str(&folded(&wait));
    }
    out
}

/// The names of the first columns, and the lines behind what stands in those.
fn lines(rows: &[&Row], by: By) -> ([&'static str; 3], Vec<([String; 3], Line)>) {
    match by {
        By::Rank => {
            let lines = rows.iter().map(|row| {
                let mut line = Line::default();
                line.add(row);
                (name(&row.seen), line)
            });
            ([" rank", "node", "    pid"], lines.collect())
        }
        By::Node => {
            let mut nodes = BTreeMap::<u32, Line>::new();
            for row in rows {
                nodes.entry(row.seen.about.node).or_default().add(row);
            }
            let lines = nodes.into_iter().map(|(node, line)| {
                let name = [node.to_string(), line.ends.to_string(), String::new()];
                (name, line)
            });
            ([" node", "ranks", ""], lines.collect())
        }
    }
}

/// Says where sums lack streams.
fn write_missing(out: &mut String, seen: &Seen) {
    let now = seen.now.as_ref().filter(|now| now.missing_streams() > 0);
    let Some(now) = now else { return };
    let kind = if seen.about.is_relay { "relay" } else { "rank" };
    let _ = writeln!(
        out,
        "({kind} {}: {} of {} streams have no room on its page and are not counted)",
        seen.about.endpoint,
        now.missing_streams(),
        now.open_streams
    );
}

fn name(seen: &Seen) -> [String; 3] {
    let about = &seen.about;
    let end = match about.is_relay {
        true => format!("r{}", about.endpoint),
        false => about.endpoint.to_string(),
    };
    [end, about.node.to_string(), seen.process.to_string()]
}

fn write_stages(out: &mut String, rows: &[&Row]) {
    let mut rates = Rates::default();
    rows.iter()
        .filter_map(|row| row.rates.as_ref())
        .for_each(|of_row| rates.add(of_row));
    let mut lines = Vec::new();
    let moments = rows.iter().filter_map(|row| row.seen.now.as_ref());
    let streams: Vec<_> = moments.flat_map(own_streams).collect();
    let mut names: Vec<&str> = Vec::new();
    for stage in streams.iter().flat_map(|stream| &stream.stages) {
        if !names.contains(&&*stage.name) {
            names.push(&stage.name);
        }
    }
    for name in names {
        let stages = streams.iter().flat_map(|stream| &stream.stages);
        let stages: Vec<_> = stages.filter(|stage| stage.name == name).collect();
        let sum = |of: fn(&trihop::observe::StageSeen) -> u64| {
            let counts = stages.iter().map(|stage| of(stage) as f64);
            short(counts.sum())
        };
        if stages.iter().all(|stage| stage.queues == 0) {
            continue;
        }
        let rate = rates.stages.iter().find(|stage| stage.name == name);
        let rate = |of: fn(&super::rates::StageRates) -> f64| {
            rate.map_or("-".to_owned(), |rates| short(of(rates)))
        };
        let waited = stages.iter().map(|stage| stage.all.waiting_ns).max();
        lines.push([
            name.to_owned(),
            sum(|stage| stage.queues),
            rate(|stage| stage.runs_per_s),
            rate(|stage| stage.sends_per_s),
            rate(|stage| stage.waits_per_s),
            sum(|stage| stage.waiting_bytes),
            sum(|stage| stage.ready_batches),
            sum(|stage| stage.in_flight_batches),
            sum(|stage| stage.credits),
            seconds(waited.unwrap_or(0)),
        ]);
    }
    if !lines.is_empty() {
        let names = [
            "stage", "queues", "runs/s", "sends/s", "waits/s", "queued", " ready", " infl",
            " cred", "waited",
        ];
        out.push_str(&output::table(names, &[0], lines));
    }
}

/// A number in 6 characters at most.
pub fn short(number: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let mut number = number;
    let mut unit = 0;
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    let decimals = match number {
        _ if unit == 0 && (number.fract() == 0.0 || number >= 99.95) => 0,
        0.0..9.995 => 2,
        0.0..99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}{}", UNITS[unit])
}

fn share(used: u64, most: u64) -> String {
    match most {
        0 => "-".to_owned(),
        _ => format!("{:.1}%", 100.0 * used as f64 / most as f64),
    }
}

/// A time in 6 characters at most.
pub fn seconds(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match seconds {
        0.0 => "-".to_owned(),
        0.0..0.0995 => format!("{:.1}ms", seconds * 1e3),
        0.0..99.95 => format!("{seconds:.1}s"),
        0.0..9999.5 => format!("{seconds:.0}s"),
        _ => format!("{:.0}h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::prometheus;
    use super::super::rates::compare;
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [
            (0.0, "0"),
            (0.5, "0.50"),
            (12.0, "12"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (123_456_789.0, "123M"),
            (1e18, "1000P"),
        ];
        for (number, text) in texts {
            assert_eq!(short(number), text);
        }
        let times = [(0, "-"), (1_500_000, "1.5ms"), (2_340_000_000, "2.3s")];
        for (ns, text) in times {
            assert_eq!(seconds(ns), text);
        }
        assert_eq!((share(1, 0), share(1, 8)), ("-".into(), "12.5%".into()));
    }

    #[test]
    fn waits_are_told_once_for_all_that_have_them() {
        let line = |name: &str, wait: Option<(u64, &str)>| {
            let line = Line {
                wait: wait.map(|(seconds, what)| (seconds * 1_000_000_000, what.to_owned())),
                ..Line::default()
            };
            ([name.to_owned(), String::new(), String::new()], line)
        };
        let lines = [
            line("0", Some((1, "room to send"))),
            line("1", None),
            line("r2", Some((3, "all ranks"))),
            line("3", Some((2, "room to send"))),
            line("4", Some((1, "room to send"))),
        ];
        let told =
            "relay 2 waits 3.0s for all ranks\nrank 3 waits 2.0s for room to send, and 2 more\n";
        assert_eq!(waits(&lines, By::Rank), told);
        let told = "node 0 waits 1.0s for room to send\n";
        assert_eq!(waits(&lines[..2], By::Node), told);
        assert_eq!(waits(&lines[1..2], By::Rank), "");
    }

    #[test]
    fn streams_that_a_page_has_no_room_for_are_told() {
        let job = trihop::Job::start(trihop::Options::default()).unwrap();
        let open = |number: u32| job.shuffle(&format!("many {number}")).open().unwrap();
        let streams: Vec<_> = (0..100).map(open).collect();
        let begun = std::time::Instant::now();
        let seen = loop {
            job.progress().unwrap();
            let all = trihop::observe::of_process(std::process::id()).unwrap();
            // Other tests of this process have jobs, too.
            let has_all =
                |seen: &Seen| seen.now.as_ref().is_some_and(|now| now.open_streams == 101);
            if let Some(seen) = all.into_iter().find(has_all) {
                break seen;
            }
            assert!(begun.elapsed().as_secs() < 120, "the page stays as it is");
        };
        let shown = seen.now.as_ref().unwrap().streams.len();
        assert!((1..101).contains(&shown), "{shown} streams");
        let missing = 101 - shown;
        let all = [seen];
        let series = prometheus::text(&all);
        let [seen] = all;
        let text = write(&compare(&[], vec![seen]), By::Rank);
        let line = format!(
            "(rank 0: {missing} of 101 streams have no room on its page and are not counted)\n"
        );
        assert!(text.ends_with(&line), "{text}");
        for (gauge, count) in [("open", 101), ("missing", missing)] {
            let is_it = |line: &str| {
                line.starts_with(&format!("trihop_{gauge}_streams{{"))
                    && line.ends_with(&format!("}} {count}"))
            };
            assert!(series.lines().any(is_it), "{gauge}: {series}");
        }
        drop(streams);
        job.shutdown().unwrap();
    }
}
