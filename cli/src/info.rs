//! `trihop info`: what this machine offers, what trihop would take, and why not the rest.

mod adapters;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use trihop::transport::bootstrap::{self, Launcher};
use trihop::transport::fabric::settings::{self, Setting};
use trihop::transport::fabric::{self, Candidate, Survey, Verdict};
use trihop::transport::link::Mover;
use trihop::transport::memory::hugepage::Plan;
use trihop::{Options, transport};

use self::adapters::Assignment;
use crate::number::whole;
use crate::output;

/// Size of the buffer pool that the report on pages is made for.
const EXAMPLE_POOL_BYTES: usize = 16 << 20;

/// Options of `trihop info`.
#[derive(Debug, Clone, Args)]
pub struct InfoArgs {
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Provider to ask for, as in TRIHOP_PROVIDER
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Show every candidate, with address, adapter, capabilities and limits
    #[arg(long, short)]
    pub verbose: bool,
    /// Ranks on this node, whose adapters are shown [default: one for each core]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1 << 16))]
    pub local_size: Option<u32>,
}

/// Why the report could not be given.
#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    /// libfabric could not be asked, or an option is impossible.
    #[error(transparent)]
    Transport(#[from] transport::Error),
    /// An option of the environment.
    #[error(transparent)]
    Options(#[from] trihop::Error),
    /// The report was printed, and nothing in it is usable.
    #[error("no candidate is usable{0}; the report says why not")]
    NothingUsable(String),
    /// Standard output is closed or full.
    #[error("writing the report: {0}")]
    Output(#[from] io::Error),
}

/// Prints the report.
///
/// # Errors
/// When libfabric cannot be asked, or, after the report, when no candidate is usable.
pub fn run(args: InfoArgs) -> Result<(), InfoError> {
    let mut options = Options::from_env()?;
    if args.provider.is_some() {
        options.provider = args.provider;
    }
    let survey = fabric::survey(&options.choice())?;
    let machine = Machine::gather();
    let local_size = args.local_size.unwrap_or(machine.cores as u32);
    let assignment = Assignment::new(&survey, local_size);
    let written = match args.json {
        true => write_json(&survey, &assignment, &machine),
        false => write_text(&survey, &assignment, &machine, args.verbose),
    };
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        other => other?,
    }
    if survey.chosen.is_none() {
        let asked = options
            .provider
            .map(|p| format!(" (provider {p} was asked for)"));
        return Err(InfoError::NothingUsable(asked.unwrap_or_default()));
    }
    Ok(())
}

/// What the report says beside the providers.
#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    memlock_bytes: Option<u64>,
    launcher: String,
    hugepages: Vec<Hugepages>,
    transparent_hugepages: String,
    transparent_hugepages_shared: String,
    pool_pages: String,
    pool_pages_why: Option<String>,
}

/// Reserved hugepages of one size.
#[derive(Debug, Serialize)]
struct Hugepages {
    page_bytes: u64,
    total: u64,
    free: u64,
}

impl Machine {
    fn gather() -> Self {
        let plan = Plan::of_this_machine(EXAMPLE_POOL_BYTES);
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memlock_bytes: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
            launcher: launcher(),
            hugepages: hugepages(),
            transparent_hugepages: selected("/sys/kernel/mm/transparent_hugepage/enabled"),
            transparent_hugepages_shared: selected(
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
            ),
            pool_pages: plan.first.to_string(),
            pool_pages_why: plan.why,
        }
    }
}

/// The launcher by the same rules as a job's start, or why there is none.
fn launcher() -> String {
    let forced = match std::env::var("TRIHOP_LAUNCHER")
        .ok()
        .filter(|v| !v.is_empty())
    {
        None => Ok(None),
        Some(name) => name.parse::<Launcher>().map(Some),
    };
    match forced.and_then(bootstrap::detect) {
        Ok(launcher) => launcher.name().to_owned(),
        Err(e) => format!("none: {e}"),
    }
}

fn hugepages() -> Vec<Hugepages> {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else {
        return Vec::new();
    };
    let mut found: Vec<Hugepages> = sizes
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let number = |file: &str| -> Option<u64> {
                std::fs::read_to_string(entry.path().join(file))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            };
            Some(Hugepages {
                page_bytes: kib << 10,
                total: number("nr_hugepages")?,
                free: number("free_hugepages")?,
            })
        })
        .collect();
    found.sort_by_key(|size| size.page_bytes);
    found
}

/// The word in brackets of a file that lists alternatives.
fn selected(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let word = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    word.map_or_else(|| "not available".to_owned(), |(word, _)| word.to_owned())
}

fn mover_name(mover: Mover) -> &'static str {
    match mover {
        Mover::Read => "read",
        Mover::Segments => "segments",
    }
}

/// The word and the reason of a verdict.
fn verdict(candidate: &Candidate) -> (&'static str, &str) {
    match &candidate.verdict {
        Verdict::Chosen => ("chosen", candidate.remark),
        Verdict::Usable { why_not } => ("usable", why_not),
        Verdict::Rejected { why } => ("rejected", why),
    }
}

fn write_json(survey: &Survey, assignment: &Assignment<'_>, machine: &Machine) -> io::Result<()> {
    let candidates: Vec<serde_json::Value> = survey.candidates.iter().map(candidate_json).collect();
    let report = serde_json::json!({
        "trihop_version": env!("CARGO_PKG_VERSION"),
        "libfabric_version": survey.library_version,
        "libfabric_header_version": survey.header_version,
        "chosen": survey.chosen.map(|i| &candidates[i]),
        "candidates": candidates,
        "adapters": assignment.json(),
        "settings": settings::all().iter().map(setting_json).collect::<Vec<_>>(),
        "machine": machine,
    });
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &report)?;
    writeln!(out)
}

fn setting_json((setting, providers): &(Setting, Vec<&str>)) -> serde_json::Value {
    serde_json::json!({
        "variable": setting.variable,
        "value": setting.value_text,
        "providers": providers,
        "why": setting.why,
    })
}

fn candidate_json(candidate: &Candidate) -> serde_json::Value {
    let (word, why) = verdict(candidate);
    let limits = &candidate.limits;
    serde_json::json!({
        "provider": candidate.provider,
        "protocol": candidate.protocol,
        "endpoint": candidate.endpoint,
        "fabric": candidate.fabric,
        "domain": candidate.domain,
        "address_format": candidate.address_format,
        "source": candidate.source,
        "adapter": adapters::nic_json(&candidate.nic),
        "capabilities": candidate.capabilities.split_whitespace().collect::<Vec<_>>(),
        "mr_mode": candidate.mr_mode.split_whitespace().collect::<Vec<_>>(),
        "score": candidate.score,
        "verdict": word,
        "why": why,
        "remark": candidate.remark,
        "mover": mover_name(limits.mover),
        "eager_bytes": limits.eager_bytes,
        "inject_bytes": limits.inject_bytes,
        "max_message_bytes": limits.max_message_bytes,
        "transmit_depth": limits.transmit_depth,
        "receive_depth": limits.receive_depth,
        "tag_bits": limits.tag_bits,
        "mr_key_bytes": limits.mr_key_bytes,
    })
}

fn write_text(
    survey: &Survey,
    assignment: &Assignment<'_>,
    machine: &Machine,
    verbose: bool,
) -> io::Result<()> {
    let mut out = Vec::new();
    writeln!(
        out,
        "trihop {}, libfabric {} (built with headers {})\n",
        env!("CARGO_PKG_VERSION"),
        survey.library_version,
        survey.header_version
    )?;
    let shown: Vec<&Candidate> = match verbose {
        true => survey.candidates.iter().collect(),
        false => one_per_provider(&survey.candidates),
    };
    write_table(&mut out, &shown)?;
    if verbose {
        for candidate in &shown {
            write_details(&mut out, candidate)?;
        }
        writeln!(out, "\nVariables that a job sets, unless they are set:")?;
        for (setting, providers) in settings::all() {
            let providers = providers.join(", ");
            let Setting {
                variable,
                value_text,
                why,
                ..
            } = setting;
            writeln!(
                out,
                "    {variable} ({providers}): {value_text}, since {why}"
            )?;
        }
    }
    writeln!(out)?;
    match survey.chosen.map(|i| &survey.candidates[i]) {
        Some(chosen) => {
            let Candidate {
                provider, remark, ..
            } = chosen;
            let text = format!("Chosen: {provider} on {} ({remark})", place(chosen));
            writeln!(out, "{}", output::wrapped(&text, 0))?
        }
        None => writeln!(out, "Chosen: none")?,
    }
    if survey.chosen.is_some() {
        assignment.write(&mut out)?;
        writeln!(out)?;
    }
    write_machine(&mut out, machine)?;
    let text = String::from_utf8(out).map_err(io::Error::other)?;
    io::stdout()
        .lock()
        .write_all(output::folded(&text).as_bytes())
}

/// The best candidate of each provider and protocol, in libfabric's order.
fn one_per_provider(candidates: &[Candidate]) -> Vec<&Candidate> {
    let rank = |c: &Candidate| (matches!(c.verdict, Verdict::Chosen), c.score != 0, c.score);
    let mut best: Vec<&Candidate> = Vec::new();
    for candidate in candidates {
        let same = |c: &&mut &Candidate| {
            (&c.provider, &c.protocol, &c.endpoint)
                == (
                    &candidate.provider,
                    &candidate.protocol,
                    &candidate.endpoint,
                )
        };
        match best.iter_mut().find(same) {
            Some(known) if rank(candidate) > rank(known) => *known = candidate,
            Some(_) => {}
            None => best.push(candidate),
        }
    }
    best
}

fn place(candidate: &Candidate) -> String {
    match &candidate.source {
        Some(address) => format!("{} {address}", candidate.domain),
        None => candidate.domain.clone(),
    }
}

/// A row for each candidate, and below it why it is chosen or not. An address that would not fit
/// the lines stands there too.
fn write_table(out: &mut impl Write, candidates: &[&Candidate]) -> io::Result<()> {
    let header = [
        "PROVIDER",
        "PROTOCOL",
        "TYPE",
        "INTERFACE",
        "SCORE",
        "EAGER",
        "MOVER",
        "VERDICT",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for candidate in candidates {
        let rejected = matches!(candidate.verdict, Verdict::Rejected { .. });
        let unless_rejected = |text: String| if rejected { "-".to_owned() } else { text };
        rows.push([
            candidate.provider.clone(),
            candidate.protocol.clone(),
            candidate.endpoint.clone(),
            place(candidate),
            unless_rejected(candidate.score.to_string()),
            unless_rejected(candidate.limits.eager_bytes.to_string()),
            unless_rejected(mover_name(candidate.limits.mover).to_owned()),
            verdict(candidate).0.to_owned(),
        ]);
    }
    let aside = aside(&rows);
    for (row, candidate) in rows[1..].iter_mut().zip(candidates) {
        if row[PLACE].len() > aside {
            row[PLACE].clone_from(&candidate.domain);
        }
    }
    let mut lines = columns(&rows).into_iter();
    writeln!(out, "{}", lines.next().unwrap_or_default())?;
    for (line, candidate) in lines.zip(candidates) {
        writeln!(out, "{line}")?;
        let why = verdict(candidate).1;
        let why = match &candidate.source {
            Some(address) if place(candidate).len() > aside => format!("{address}: {why}"),
            _ => why.to_owned(),
        };
        if !why.is_empty() {
            writeln!(out, "{}", output::wrapped(&why, 4))?;
        }
    }
    Ok(())
}

/// Column of the interface.
const PLACE: usize = 3;

/// Letters that lines leave to the column of the interface.
fn aside<const N: usize>(rows: &[[String; N]]) -> usize {
    let others = (0..N).filter(|&column| column != PLACE);
    let widths = others.map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    output::COLUMNS.saturating_sub(widths.sum::<usize>() + 2 * (N - 1))
}

/// Writes rows so that their cells stand below each other.
fn write_columns<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> io::Result<()> {
    columns(rows)
        .iter()
        .try_for_each(|row| writeln!(out, "{row}"))
}

/// Rows whose cells stand below each other.
fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let widths: [usize; N] =
        std::array::from_fn(|c| rows.iter().map(|row| row[c].len()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn write_details(out: &mut impl Write, candidate: &Candidate) -> io::Result<()> {
    let limits = &candidate.limits;
    let or_none = |text: &str| {
        if text.is_empty() {
            "none".to_owned()
        } else {
            text.to_owned()
        }
    };
    writeln!(
        out,
        "\n{} ({}, {}) on {}",
        candidate.provider,
        candidate.protocol,
        candidate.endpoint,
        place(candidate)
    )?;
    writeln!(
        out,
        "    fabric {}, addresses {}",
        candidate.fabric, candidate.address_format
    )?;
    adapters::write_nic(out, &candidate.nic)?;
    writeln!(
        out,
        "    capabilities: {}",
        or_none(&candidate.capabilities)
    )?;
    writeln!(
        out,
        "    memory registration: {}, keys of {} B",
        or_none(&candidate.mr_mode),
        limits.mr_key_bytes
    )?;
    writeln!(
        out,
        "    inject {} B, message {} B, depth {} / {}, tags of {} bits",
        limits.inject_bytes,
        limits.max_message_bytes,
        limits.transmit_depth,
        limits.receive_depth,
        limits.tag_bits
    )?;
    // What the table says is about datagram endpoints.
    match candidate.endpoint == "RDM" {
        true => writeln!(out, "    {}", candidate.remark),
        false => Ok(()),
    }
}

fn write_machine(out: &mut impl Write, machine: &Machine) -> io::Result<()> {
    writeln!(out, "Launcher: {}", machine.launcher)?;
    writeln!(out, "Cores: {}", machine.cores)?;
    match machine.memlock_bytes {
        Some(bytes) => writeln!(out, "Memlock limit: {} KiB", bytes >> 10)?,
        None => writeln!(out, "Memlock limit: none")?,
    }
    for size in &machine.hugepages {
        writeln!(
            out,
            "Hugepages of {} KiB: {} free of {}",
            size.page_bytes >> 10,
            size.free,
            size.total
        )?;
    }
    writeln!(
        out,
        "Transparent hugepages: {}, for shared memory: {}",
        machine.transparent_hugepages, machine.transparent_hugepages_shared
    )?;
    let why = machine.pool_pages_why.as_ref();
    let text = format!(
        "A pool of {} MiB would get {}{}",
        EXAMPLE_POOL_BYTES >> 20,
        machine.pool_pages,
        why.map_or(String::new(), |why| format!(" ({why})"))
    );
    writeln!(out, "{}", output::wrapped(&text, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_one_per_provider_with_the_chosen_one_in_front_of_its_twins() {
        let survey = fabric::survey(&fabric::Choice::default()).expect("libfabric answers");
        let rows = one_per_provider(&survey.candidates);
        for (i, row) in rows.iter().enumerate() {
            let twin = rows[..i].iter().any(|other| {
                (&other.provider, &other.protocol, &other.endpoint)
                    == (&row.provider, &row.protocol, &row.endpoint)
            });
            assert!(!twin, "{} twice", row.provider);
        }
        if let Some(chosen) = survey.chosen {
            assert!(rows.contains(&&survey.candidates[chosen]));
        }
    }

    #[test]
    fn every_verdict_is_told_with_its_reason() {
        let survey = fabric::survey(&fabric::Choice::default()).expect("libfabric answers");
        for candidate in &survey.candidates {
            let json = candidate_json(candidate);
            assert!(
                ["chosen", "usable", "rejected"]
                    .contains(&json["verdict"].as_str().unwrap_or_default())
            );
            assert!(
                json["why"].as_str().is_some_and(|why| !why.is_empty()),
                "{json}"
            );
        }
    }
}
