//! The row of a simulated job: a table for people, one JSON object for programs.

use serde::Serialize;
use trihop::Topology;
use trihop::route::{Rails, RouteName};

use super::super::{BenchArgs, Error, row};
use super::job::{Loads, Measured, ROUND_RANKS};
use crate::output;
use crate::topo::load::Load;

/// One row, as documented for scripts.
#[derive(Debug, Serialize)]
struct Row {
    /// `scale`.
    bench: &'static str,
    /// Ranks of the job.
    ranks: u32,
    /// Nodes of the job.
    nodes: u32,
    /// Route of the messages.
    route: String,
    /// Lanes and links that a run passed on average.
    hops: f64,
    /// `sim`: the fabric is simulated.
    provider: &'static str,
    /// Bytes of a message.
    size: usize,
    /// Messages of all ranks.
    messages: u64,
    /// Messages per second of the simulation, until all were delivered.
    msgs_per_s: f64,
    /// Payload bytes per second of the simulation.
    bytes_per_s: f64,
    /// User and system time per message until all were delivered, in microseconds.
    cpu_us_per_msg: f64,
    /// Peak resident memory of the simulation by ranks, in bytes.
    peak_rss_bytes_per_rank: u64,
    /// Resident memory that the job added, by ranks, in bytes: what was really touched.
    touched_bytes_per_rank: u64,
    /// Page tables that the job added, by ranks, in bytes; not part of the resident memory.
    page_table_bytes_per_rank: u64,
    /// Memory that a rank may take in a real job by the engine's formula, in bytes: the stream.
    bound_bytes_per_rank: usize,
    /// The same for the job's own stream, which carries collectives.
    system_bound_bytes_per_rank: usize,
    /// One-way links of a rank, on average.
    links_per_rank: f64,
    /// The most links that a rank has.
    most_links_per_rank: u32,
    /// Runs that a rank passed on, being neither end: on average, and most.
    relayed_runs_per_rank: f64,
    most_relayed_runs: u64,
    /// Bytes of these runs.
    relayed_bytes_per_rank: f64,
    most_relayed_bytes: u64,
    /// Batches that a rank sealed for other nodes: on average, and most.
    batches_per_rank: f64,
    most_batches: u64,
    /// Links and passed-on messages of three hops.
    three_hop: ThreeHop,
    /// Messages between nodes by all one-way links.
    msgs_per_link: f64,
    /// Messages between nodes per batch.
    msgs_per_batch: f64,
    /// Control messages per batch.
    controls_per_batch: f64,
    /// Bytes handed to the fabric per message between nodes, headers and control messages included.
    wire_bytes_per_msg: f64,
    /// Bytes that the busiest rank handed to the fabric, by the average of all ranks.
    busiest_representative: f64,
    /// Rounds of progress per message.
    rounds_per_msg: f64,
    /// Rounds of counting of the fence.
    fence_rounds: u32,
    /// User and system time of the fence per rank, in microseconds.
    fence_cpu_us_per_rank: f64,
    /// User and system time of a round per rank in which nobody sends, in microseconds; none above
    /// [`ROUND_RANKS`].
    round_cpu_us_per_rank: Option<f64>,
    /// Time to build the job, to send and deliver, and of the fence, in seconds.
    build_seconds: f64,
    /// Time to send and deliver everything, in seconds.
    seconds: f64,
    /// Time of the fence, in seconds.
    fence_seconds: f64,
    /// Whether every message was checked at its receiver (a wrong one is an error instead of a
    /// row).
    checked: bool,
    /// The same work at equal messages per link, where there is a smaller job to compare with.
    compared: Option<Compared>,
}

/// What three hops would ask for the same messages, were they spread evenly over all pairs:
/// counted, not simulated.
#[derive(Debug, Serialize)]
struct ThreeHop {
    links_per_rank: f64,
    most_links_per_rank: u64,
    relayed_msgs_per_rank: f64,
    most_relayed_msgs: f64,
}

impl ThreeHop {
    fn of(topology: &Topology, messages: u64) -> Result<Self, Error> {
        let load = Load::new(topology, RouteName::ThreeHop(Rails::default()));
        let load = load.map_err(Error::Shape)?;
        let per_pair = messages as f64 / f64::from(topology.size()).powi(2);
        let links = load.links.summary();
        let relayed = [load.source_relayed.summary(), load.target_relayed.summary()];
        Ok(Self {
            links_per_rank: links.mean,
            most_links_per_rank: links.max,
            relayed_msgs_per_rank: per_pair * relayed.iter().map(|of| of.mean).sum::<f64>(),
            // Of a rank that has most in both directions.
            most_relayed_msgs: per_pair * relayed.iter().map(|of| of.max as f64).sum::<f64>(),
        })
    }
}

/// The small job beside a large one.
#[derive(Debug, Serialize)]
struct Compared {
    ranks: u32,
    nodes: u32,
    /// Jobs that were run one after the other.
    jobs: u64,
    messages: u64,
    msgs_per_link: f64,
    msgs_per_batch: f64,
    cpu_us_per_msg: f64,
    /// Cost per message of the large job by that of the small ones.
    ratio: f64,
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

fn row(route: RouteName, large: &Measured, small: Option<&Measured>) -> Result<Row, Error> {
    let ranks = u64::from(large.topology.size());
    let Loads {
        relayed_runs,
        relayed_bytes,
        batches,
        wire_bytes,
    } = large.loads;
    Ok(Row {
        bench: "scale",
        ranks: large.topology.size(),
        nodes: large.topology.nodes(),
        route: route.to_string(),
        hops: ratio(large.counts.passages, large.counts.runs),
        provider: "sim",
        size: 8,
        messages: large.messages,
        msgs_per_s: large.messages as f64 / large.traffic.seconds,
        bytes_per_s: 8.0 * large.messages as f64 / large.traffic.seconds,
        cpu_us_per_msg: large.cpu_us_per_message(),
        peak_rss_bytes_per_rank: row::peak_rss_bytes() / ranks,
        touched_bytes_per_rank: large.memory.resident / ranks,
        page_table_bytes_per_rank: large.memory.page_tables / ranks,
        bound_bytes_per_rank: large.bound_bytes.0,
        system_bound_bytes_per_rank: large.bound_bytes.1,
        links_per_rank: ratio(large.links.total, ranks),
        most_links_per_rank: large.links.most,
        relayed_runs_per_rank: ratio(relayed_runs.total, ranks),
        most_relayed_runs: relayed_runs.most,
        relayed_bytes_per_rank: ratio(relayed_bytes.total, ranks),
        most_relayed_bytes: relayed_bytes.most,
        batches_per_rank: ratio(batches.total, ranks),
        most_batches: batches.most,
        three_hop: ThreeHop::of(&large.topology, large.messages)?,
        msgs_per_link: if large.crossing == 0 {
            0.0
        } else {
            large.messages_per_link()
        },
        msgs_per_batch: ratio(large.crossing, large.counts.batches),
        controls_per_batch: ratio(large.counts.controls, large.counts.batches),
        wire_bytes_per_msg: ratio(large.counts.wire_bytes, large.crossing),
        busiest_representative: ratio(wire_bytes.most * ranks, wire_bytes.total),
        rounds_per_msg: ratio(large.rounds, large.messages),
        fence_rounds: large.fence_rounds,
        fence_cpu_us_per_rank: large.fence.cpu_seconds * 1e6 / ranks as f64,
        round_cpu_us_per_rank: large
            .round
            .map(|round| round.cpu_seconds * 1e6 / ranks as f64),
        build_seconds: large.build.seconds,
        seconds: large.traffic.seconds,
        fence_seconds: large.fence.seconds,
        checked: true,
        compared: small.map(|small| Compared {
            ranks: small.topology.size(),
            nodes: small.topology.nodes(),
            jobs: small.jobs,
            messages: small.messages,
            msgs_per_link: small.messages_per_link(),
            msgs_per_batch: ratio(small.crossing, small.counts.batches),
            cpu_us_per_msg: small.cpu_us_per_message(),
            ratio: large.cpu_us_per_message() / small.cpu_us_per_message(),
        }),
    })
}

/// Prints the row.
///
/// # Errors
/// Standard output's; a job that is too large for three hops.
pub fn print(
    args: &BenchArgs,
    route: RouteName,
    large: &Measured,
    small: Option<&Measured>,
) -> Result<(), Error> {
    let row = row(route, large, small)?;
    if args.json {
        return row::print_json(&row);
    }
    output::line(format_args!(
        "# scale: {} ranks on {} nodes, {}, real engines over a simulated fabric,\n\
         # {} messages of 8 bytes, all checked",
        row.ranks, row.nodes, row.route, row.messages
    ))?;
    let lines: [(&str, String); 14] = [
        (
            "memory per rank, touched",
            format!(
                "{} B resident, {} B page tables besides",
                row.touched_bytes_per_rank, row.page_table_bytes_per_rank
            ),
        ),
        (
            "memory per rank, bound",
            format!(
                "{} B, and {} B for collectives (pools whole, as a real job registers them)",
                row.bound_bytes_per_rank, row.system_bound_bytes_per_rank
            ),
        ),
        ("hops per run", format!("{:.2}", row.hops)),
        (
            "links per rank",
            format!(
                "{:.2}, {} at most; by three hops {:.2}, {} at most",
                row.links_per_rank,
                row.most_links_per_rank,
                row.three_hop.links_per_rank,
                row.three_hop.most_links_per_rank
            ),
        ),
        (
            "relayed per rank",
            format!(
                "{:.2} runs, {} at most, {:.0} bytes, {} at most; by three hops {:.2} messages, \
                 {:.0} at most",
                row.relayed_runs_per_rank,
                row.most_relayed_runs,
                row.relayed_bytes_per_rank,
                row.most_relayed_bytes,
                row.three_hop.relayed_msgs_per_rank,
                row.three_hop.most_relayed_msgs
            ),
        ),
        (
            "batches per rank",
            format!("{:.2}, {} at most", row.batches_per_rank, row.most_batches),
        ),
        ("messages per link", format!("{:.4}", row.msgs_per_link)),
        (
            "messages per batch",
            format!(
                "{:.3}, with {:.2} control messages",
                row.msgs_per_batch, row.controls_per_batch
            ),
        ),
        (
            "wire bytes per message",
            format!("{:.1} between nodes", row.wire_bytes_per_msg),
        ),
        (
            "busiest representative",
            format!(
                "{:.2} x the average bytes to other nodes",
                row.busiest_representative
            ),
        ),
        (
            "cost per message",
            format!(
                "{:.3} us CPU, {:.2} rounds of progress",
                row.cpu_us_per_msg, row.rounds_per_msg
            ),
        ),
        (
            "fence",
            format!(
                "{} rounds, {:.1} us CPU per rank",
                row.fence_rounds, row.fence_cpu_us_per_rank
            ),
        ),
        (
            "round without messages",
            match row.round_cpu_us_per_rank {
                Some(us) => format!("{us:.1} us CPU per rank"),
                None => format!("not measured above {ROUND_RANKS} ranks: it touches every lane"),
            },
        ),
        (
            "seconds",
            format!(
                "{:.1} to build, {:.1} to send and deliver, {:.1} to fence",
                row.build_seconds, row.seconds, row.fence_seconds
            ),
        ),
    ];
    for (name, value) in lines {
        entry(name, &value)?;
    }
    if let Some(small) = &row.compared {
        let compared = format!(
            "{:.3} us CPU, {:.4} messages per link, {:.3} per batch ({} jobs, {} messages): here {:.2} x that",
            small.cpu_us_per_msg,
            small.msgs_per_link,
            small.msgs_per_batch,
            small.jobs,
            small.messages,
            small.ratio
        );
        let name = format!("{} ranks on {} nodes", small.ranks, small.nodes);
        entry(&name, &compared)?;
    }
    Ok(())
}

/// A name, and behind it what it stands for, in as many lines as that takes.
fn entry(name: &str, value: &str) -> Result<(), Error> {
    const BEHIND: usize = 27;
    let lines = output::wrapped(value, BEHIND);
    Ok(output::line(format_args!(
        "{name:<BEHIND$}{}",
        lines.trim_start()
    ))?)
}
