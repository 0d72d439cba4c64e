//! Loads and maps as text or as JSON.

use std::cell::Cell;
use std::io::{self, BufWriter, Write};

use serde::ser::{Serialize, Serializer};
use trihop::Topology;
use trihop::route::{Rails, RouteName};

use super::advise::Advice;
use super::load::Load;
use super::maps::Maps;
use super::tally::Summary;
use crate::output;

/// Longest bar of a histogram.
const BAR: u64 = 34;

#[derive(serde::Serialize)]
struct Report<M: Serialize> {
    report: &'static str,
    ranks: u32,
    nodes: u32,
    fewest_ranks_per_node: u32,
    most_ranks_per_node: u32,
    placement: String,
    route: String,
    links: Summary,
    local_peers: Summary,
    carried_pairs: Summary,
    source_relayed_pairs: Summary,
    target_relayed_pairs: Summary,
    mean_hops: f64,
    hops: Vec<Hops>,
    maps: M,
}

/// Ordered pairs that are so many hops apart.
#[derive(serde::Serialize)]
struct Hops {
    hops: u64,
    pairs: u64,
}

/// Maps that are made while they are written, one after the other: those of all ranks of a large
/// job fit no memory.
struct OneByOne<I>(Cell<Option<I>>);

impl<I: Iterator<Item = Maps>> Serialize for OneByOne<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}

impl<M: Serialize> Report<M> {
    fn new(topology: &Topology, route: RouteName, load: &Load, maps: M) -> Self {
        let hops = (0..)
            .zip(load.hops.iter().copied())
            .map(|(hops, pairs)| Hops { hops, pairs });
        Self {
            report: "topo",
            ranks: topology.size(),
            nodes: topology.nodes(),
            fewest_ranks_per_node: topology.fewest_local(),
            most_ranks_per_node: topology.most_local(),
            placement: topology.process_mapping(),
            route: route.to_string(),
            links: load.links.summary(),
            local_peers: load.local_peers.summary(),
            carried_pairs: load.carried.summary(),
            source_relayed_pairs: load.source_relayed.summary(),
            target_relayed_pairs: load.target_relayed.summary(),
            mean_hops: load.mean_hops(),
            hops: hops.collect(),
            maps,
        }
    }
}

/// One JSON object on a line.
///
/// # Errors
/// Standard output's.
pub fn write_json(
    topology: &Topology,
    route: RouteName,
    load: &Load,
    maps: impl Iterator<Item = Maps>,
) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let report = Report::new(topology, route, load, OneByOne(Cell::new(Some(maps))));
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    out.flush()
}

/// Routes compared, as one JSON object on a line.
///
/// # Errors
/// Standard output's.
pub fn write_advice(topology: &Topology, routes: &[Advice]) -> io::Result<()> {
    #[derive(serde::Serialize)]
    struct Report<'a> {
        report: &'static str,
        ranks: u32,
        nodes: u32,
        routes: &'a [Advice],
    }
    let mut out = io::stdout().lock();
    let report = Report {
        report: "advice",
        ranks: topology.size(),
        nodes: topology.nodes(),
        routes,
    };
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    out.flush()
}

/// The maps, then tables for people.
///
/// # Errors
/// Standard output's.
pub fn write_text(
    topology: &Topology,
    route: RouteName,
    load: &Load,
    maps: impl Iterator<Item = Maps>,
) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for map in maps {
        map.write(&mut out)?;
    }
    let report = Report::new(topology, route, load, ());
    let each = match (report.fewest_ranks_per_node, report.most_ranks_per_node) {
        (fewest, most) if fewest == most => fewest.to_string(),
        (fewest, most) => format!("{fewest} to {most}"),
    };
    writeln!(
        out,
        "ranks       {} on {} nodes, {each} on each",
        report.ranks, report.nodes
    )?;
    writeln!(out, "route       {}", report.route)?;
    // One tuple for each block of equal nodes: many where nodes differ, and then nobody reads them.
    if report.placement.len() <= 200 {
        writeln!(out, "placement   {}", report.placement)?;
    }
    writeln!(
        out,
        "\n# hops between two ranks, mean {:.3}",
        report.mean_hops
    )?;
    let pairs = report
        .hops
        .iter()
        .map(|row| (row.hops, row.hops, row.pairs));
    write_histogram(&mut out, "pairs", &pairs.collect::<Vec<_>>())?;
    for (what, summary) in [
        ("links per rank", &report.links),
        ("other ranks of the node per rank", &report.local_peers),
        ("pairs per rank on its links", &report.carried_pairs),
        (
            "pairs relayed per rank as source representative",
            &report.source_relayed_pairs,
        ),
        (
            "pairs relayed per rank as target representative",
            &report.target_relayed_pairs,
        ),
    ] {
        write_summary(&mut out, what, "ranks", summary)?;
    }
    let by_mean = report.carried_pairs.max_by_mean();
    if let RouteName::ThreeHop(_) = route
        && by_mean > Rails::SHARED_OUT
        && let Ok(other) = RouteName::default().for_job(topology)
        && let Ok(load) = Load::new(topology, other)
        && load.carried.summary().max_by_mean() < 0.95 * by_mean
    {
        writeln!(
            out,
            "\nThe busiest rank has {by_mean:.2} times the mean on its links; with `{other}` \
             it would have {:.2} times.",
            load.carried.summary().max_by_mean()
        )?;
    }
    out.flush()
}

/// The table of what was counted of each.
///
/// # Errors
/// The writer's.
pub fn write_summary(
    out: &mut impl Write,
    what: &str,
    of: &str,
    summary: &Summary,
) -> io::Result<()> {
    let Summary {
        min,
        mean,
        max,
        total,
        ..
    } = summary;
    writeln!(
        out,
        "\n# {what}\n#   min {min}, mean {mean:.3}, max {max} ({:.2} of the mean), total {total}",
        summary.max_by_mean()
    )?;
    let rows = summary
        .histogram
        .iter()
        .map(|row| (row.from, row.to, row.ranks));
    write_histogram(out, of, &rows.collect::<Vec<_>>())
}

fn write_histogram(out: &mut impl Write, of: &str, rows: &[(u64, u64, u64)]) -> io::Result<()> {
    let most = rows.iter().map(|row| row.2).max().unwrap_or(0).max(1);
    let rows = rows.iter().map(|&(from, to, count)| {
        let range = match from == to {
            true => from.to_string(),
            false => format!("{from} - {to}"),
        };
        let length = (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(most));
        [range, count.to_string(), "#".repeat(length as usize)]
    });
    out.write_all(output::table(["from - to", of, ""], &[2], rows).as_bytes())
}
