//! Rows of figures: a table by default, JSON by request.

use std::fmt::Arguments;
use std::sync::Once;

use serde::Serialize;
use trihop::{Reduce, Topology};

use super::a2a::Api;
use super::agents;
use super::round::Reps;
use super::session::Team;
use super::{BenchArgs, Error, Seat, table};
use crate::output;

/// Whether it was said that system calls are not counted, and that agents are left out.
static UNCOUNTED: Once = Once::new();
static WITHOUT_AGENTS: Once = Once::new();

/// One row, as documented for scripts.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// `typed` or `bytes`; `a2a` also `threaded` or `deltafs`.
    pub api: &'static str,
    /// `inline`, `threaded`, `minirank` or `agent`.
    pub seat: String,
    /// Ranks of the job.
    pub ranks: u32,
    /// Nodes of the job.
    pub nodes: u32,
    /// Route of the messages.
    pub route: String,
    /// Most hops of a message.
    pub hops: u32,
    /// Provider between nodes, `-` on one node.
    pub provider: String,
    /// Message size in bytes.
    pub size: usize,
    /// Messages per rank.
    pub count: u64,
    /// Messages of all ranks per second of the slowest.
    pub msgs_per_s: f64,
    /// Payload bytes of all ranks per second of the slowest.
    pub bytes_per_s: f64,
    /// User and system time of all ranks and agents per message in microseconds.
    pub cpu_us_per_msg: f64,
    /// Largest peak resident memory of a rank in bytes.
    pub peak_rss_bytes_per_rank: u64,
    /// Bytes handed to the fabric per message that crosses it, by ranks and relays.
    pub wire_bytes_per_msg: f64,
    /// Wall time of the slowest rank, median of the repetitions.
    pub seconds: f64,
    /// Fastest and slowest repetition in seconds.
    pub seconds_range: [f64; 2],
    /// System calls of all ranks per 10^6 messages, in a round of its own; `None` where they cannot
    /// be counted.
    pub syscalls_per_1e6_msgs: Option<f64>,
    /// Page faults of all ranks in that round that needed no disk.
    pub minor_faults: u64,
    /// Switches of context of all ranks in that round.
    pub ctx_switches: u64,
    /// Whether every result was checked (a wrong one is an error instead of a row).
    pub checked: bool,
}

/// What a row is about.
pub struct Case {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// `typed` or `bytes`; `a2a` also `threaded` or `deltafs`.
    pub api: &'static str,
    /// Message size in bytes.
    pub size: usize,
    /// Messages per rank in a round.
    pub count: u64,
    /// Messages of all ranks in a round.
    pub messages: u64,
    /// Messages of this rank that crossed the fabric, in all rounds whose wire bytes are counted.
    pub crossing: u64,
    /// Bytes that this rank handed to the fabric in these rounds.
    pub wire_bytes: u64,
}

/// Peak resident memory of this process in bytes.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The row of a case from all ranks' figures; collective.
pub fn combine(args: &BenchArgs, job: &impl Team, case: &Case, reps: &Reps) -> Result<Row, Error> {
    let told = job.allgather(job.provider().unwrap_or_default().as_bytes())?;
    let provider = told.into_iter().find(|name| !name.is_empty());
    let provider = provider.unwrap_or_else(|| b"-".to_vec());
    with_provider(args, job, case, &String::from_utf8_lossy(&provider), reps)
}

/// As [`combine`], where this rank knows what carries messages between nodes.
pub fn with_provider(
    args: &BenchArgs,
    job: &impl Team,
    case: &Case,
    provider: &str,
    reps: &Reps,
) -> Result<Row, Error> {
    let mut sums = [case.wire_bytes, case.crossing];
    job.allreduce(&mut sums, Reduce::Sum)?;
    let [wire_bytes, crossing] = sums;
    let route = args.route.unwrap_or_default();
    let route = route.for_job(&job.topology().processes()).unwrap_or(route);
    // The ranks of a process share what that takes.
    let mut peak = [peak_rss_bytes() / u64::from(job.topology().ranks_in_process())];
    job.allreduce(&mut peak, Reduce::Max)?;
    let mut seconds: Vec<f64> = reps.timed.iter().map(|r| r.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let mut cpu: Vec<f64> = reps.timed.iter().map(|r| r.cpu_seconds).collect();
    cpu.sort_by(f64::total_cmp);
    let (mut syscalls, mut minor_faults, mut ctx_switches) = (None, 0, 0);
    if let Some(kernel) = &reps.counted {
        (minor_faults, ctx_switches) = (kernel.minor_faults, kernel.ctx_switches);
        match &kernel.syscalls {
            Ok(number) => syscalls = Some(*number),
            Err(why) if job.rank().0 == 0 => {
                let what = format_args!("system calls are not counted: {why}");
                say_once(&UNCOUNTED, what);
            }
            Err(_) => {}
        }
    }
    let topology = job.topology();
    let agents = topology.endpoints() - topology.size();
    if job.rank().0 == 0 && topology.has_agents() && !agents::are_known(agents) {
        let what = format_args!("CPU per message leaves agents out: they have no counters_page");
        say_once(&WITHOUT_AGENTS, what);
    }
    let total = case.messages as f64;
    let median = seconds[seconds.len() / 2];
    Ok(Row {
        bench: case.bench,
        api: case.api,
        seat: super::text(seat(args.seat, case.api, job.topology())),
        ranks: job.topology().size(),
        nodes: job.topology().nodes(),
        route: route.to_string(),
        hops: super::hops(route, job.topology()),
        provider: provider.to_owned(),
        size: case.size,
        count: case.count,
        msgs_per_s: total / median,
        bytes_per_s: total * case.size as f64 / median,
        cpu_us_per_msg: cpu[cpu.len() / 2] * 1e6 / total,
        peak_rss_bytes_per_rank: peak[0],
        wire_bytes_per_msg: if crossing == 0 {
            0.0
        } else {
            wire_bytes as f64 / crossing as f64
        },
        seconds: median,
        seconds_range: [seconds[0], seconds[seconds.len() - 1]],
        syscalls_per_1e6_msgs: syscalls.map(|number| number as f64 * 1e6 / total),
        minor_faults,
        ctx_switches,
        checked: true,
    })
}

/// The seat of a row, which is not always asked for: the job that this process is in may have
/// agents, and two interfaces of `a2a` have threads.
fn seat(asked: Seat, api: &str, topology: &Topology) -> Seat {
    let has_threads = [Api::Threaded, Api::Deltafs].map(Api::name).contains(&api);
    match asked {
        Seat::Inline if topology.has_agents() => Seat::Agent,
        Seat::Inline if has_threads => Seat::Threaded,
        _ => asked,
    }
}

/// Says once what figures lack.
fn say_once(told: &Once, what: Arguments<'_>) {
    told.call_once(|| output::say("trihop bench", what));
}

/// A figure that may be missing, in a table.
pub fn or_dash(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or_else(|| "-".into(), |value| format!("{value:.decimals$}"))
}

/// Prints one JSON object on a line.
///
/// # Errors
/// Standard output's.
pub fn print_json(row: &impl Serialize) -> Result<(), Error> {
    Ok(output::json(row)?)
}

/// Prints what a table is about.
///
/// # Errors
/// Standard output's.
pub fn print_head(row: &Row) -> Result<(), Error> {
    output::line(format_args!(
        "# {}: {} ranks on {} nodes, {}, {} hops at most, provider {}",
        row.bench, row.ranks, row.nodes, row.route, row.hops, row.provider
    ))?;
    Ok(())
}

/// Prints a line of the table; `head` also prints what stands above it.
///
/// # Errors
/// Standard output's.
pub fn print_line(row: &Row, label: &str, head: bool) -> Result<(), Error> {
    if head {
        print_head(row)?;
    }
    let cells = [
        ("Size", 7, row.size.to_string()),
        ("Case", 10, label.to_owned()),
        ("Count", 8, row.count.to_string()),
        ("Rate M/s", 8, format!("{:.3}", row.msgs_per_s / 1e6)),
        ("BW MB/s", 8, format!("{:.1}", row.bytes_per_s / 1e6)),
        ("CPU us", 8, format!("{:.4}", row.cpu_us_per_msg)),
        ("Wire B", 7, format!("{:.1}", row.wire_bytes_per_msg)),
        (
            "RSS MB",
            6,
            format!("{:.1}", row.peak_rss_bytes_per_rank as f64 / 1e6),
        ),
        ("Sys/1e6", 9, or_dash(row.syscalls_per_1e6_msgs, 0)),
    ];
    table::print(&cells, head)
}
