//! Tables of the documents that say what the tables of the source say. `HEADER=write` writes them
//! anew (`make header`).

use std::fs;

use trihop::transport::fabric::quirks;
use trihop::transport::fabric::settings::{self, Setting};
use trihop::{CounterRow, OptionRow, Options, QueueStats, Shares, Stats, StreamOptions};

/// Replaces what stands between the marks of this name, and the marks stay.
fn between_marks(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (
        format!("<!-- {name} -->\n"),
        format!("<!-- end of {name} -->"),
    );
    let (before, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no mark {begin}"));
    let (_, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("no mark {end}"));
    format!("{before}{begin}\n{table}\n{end}{after}")
}

/// The document has these tables, or is given them.
fn check(document: &str, tables: &[(&str, String)]) {
    let path = format!("{}/docs/{document}", env!("CARGO_MANIFEST_DIR"));
    let committed = fs::read_to_string(&path).unwrap_or_else(|e| panic!("reading {path}: {e}"));
    let fresh = tables
        .iter()
        .fold(committed.clone(), |text, (name, table)| {
            between_marks(&text, name, table)
        });
    if std::env::var("HEADER").is_ok_and(|what| what == "write") {
        fs::write(&path, fresh).unwrap_or_else(|e| panic!("writing {path}: {e}"));
        return;
    }
    assert!(
        fresh == committed,
        "docs/{document} is not what the tables of the source say; run `make header` and commit it"
    );
}

/// A text of several lines of source as one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn options(of_stream: bool) -> String {
    let row = |row: &OptionRow| {
        let ranks = if row.agreed { "same" } else { "own" };
        format!(
            "| `{}` | {} | {} | {} | {ranks} | {} |\n",
            row.name,
            row.default_text(),
            row.values(),
            row.unit,
            one_line(row.doc())
        )
    };
    let head =
        "| option | default | values | in | ranks | |\n| --- | --- | --- | --- | --- | --- |\n";
    let rows = Options::TABLE
        .iter()
        .filter(|row| row.of_stream == of_stream);
    head.to_owned() + &rows.map(row).collect::<String>()
}

fn shares() -> String {
    let whole = StreamOptions::default().memory_bytes;
    let row = |(name, part, doc): &(&str, usize, &str)| {
        let bytes = whole / part;
        let size = match bytes {
            0..1_048_576 => format!("{} KiB", bytes >> 10),
            _ => format!("{} MiB", bytes >> 20),
        };
        format!("| `{name}` | 1 / {part} | {size} | {} |\n", one_line(doc))
    };
    let head = "| share | of `memory_bytes` | by default | |\n| --- | --- | --- | --- |\n";
    head.to_owned() + &Shares::TABLE.iter().map(row).collect::<String>()
}

#[test]
fn the_options_in_the_documents_are_those_of_the_table() {
    let tables = [
        ("options of streams", options(true)),
        ("shares of memory", shares()),
        ("options of jobs", options(false)),
    ];
    check("OPTIONS.md", &tables);
}

fn counters(table: &[CounterRow]) -> String {
    let row = |row: &CounterRow| {
        format!(
            "| `{}` | {} | {} |\n",
            row.name,
            row.unit,
            one_line(row.doc())
        )
    };
    let head = "| counter | in | |\n| --- | --- | --- |\n";
    head.to_owned() + &table.iter().map(row).collect::<String>()
}

#[test]
fn the_counters_in_the_documents_are_those_of_the_table() {
    let tables = [
        ("counters of streams", counters(Stats::TABLE)),
        ("counters of queues", counters(QueueStats::TABLE)),
    ];
    check("DIAGNOSTICS.md", &tables);
}

fn settings() -> String {
    let row = |(setting, providers): &(Setting, Vec<&str>)| {
        let Setting {
            variable,
            value_text,
            why,
            ..
        } = setting;
        let providers = providers.join("`, `");
        format!("| `{variable}` | {value_text} | `{providers}` | {why} |\n")
    };
    let head = "| variable | value | for | because |\n| --- | --- | --- | --- |\n";
    head.to_owned() + &settings::all().iter().map(row).collect::<String>()
}

fn limits() -> String {
    let or_none = |number: usize, none: usize| match number == none {
        true => "none".to_owned(),
        false => number.to_string(),
    };
    let row = |(name, ..): &(&str, &str, &str)| {
        let row = quirks::simulated(name).expect("it is in the list");
        let limits = row.limits();
        format!(
            "| `{name}` | {} | {} | {} | {} | {} | {} | {} |\n",
            limits.posted_receives,
            or_none(row.inject_bytes, 0),
            or_none(limits.max_message_bytes, usize::MAX),
            limits.tag_bits,
            match &row.mr_rules()[..] {
                [] => "none".to_owned(),
                rules => rules.join(" "),
            },
            if row.wait_descriptor { "yes" } else { "no" },
            row.source
        )
    };
    let head = "| name | receives | copied at once | longest | tag bits | registration | descriptor | from |\n\
                | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    head.to_owned() + &quirks::SIMULATED.iter().map(row).collect::<String>()
}

#[test]
fn the_providers_in_the_documents_are_those_of_the_table() {
    let tables = [("settings", settings()), ("limits", limits())];
    check("NETWORKS.md", &tables);
}

#[test]
fn another_table_is_noticed() {
    let text = "before\n<!-- rows -->\n\n| a |\n\n<!-- end of rows -->\nafter\n";
    assert_eq!(between_marks(text, "rows", "| a |\n"), text);
    assert_ne!(between_marks(text, "rows", "| b |\n"), text);
}
