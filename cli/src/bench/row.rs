//! Rows of figures: a table by default, JSON by request.

use serde::Serialize;
use trihop::{Job, Reduce, Stats};

use super::{Error, Measured};

/// One row, as documented for scripts.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// `typed` or `bytes`.
    pub api: &'static str,
    /// Ranks of the job.
    pub ranks: u32,
    /// Nodes of the job.
    pub nodes: u32,
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
    /// User and system time of all ranks per message in microseconds.
    pub cpu_us_per_msg: f64,
    /// Largest peak resident memory of a rank in bytes.
    pub peak_rss_bytes_per_rank: u64,
    /// Bytes handed to the fabric per message that crosses it.
    pub wire_bytes_per_msg: f64,
    /// Wall time of the slowest rank, median of the repetitions.
    pub seconds: f64,
    /// Fastest and slowest repetition in seconds.
    pub seconds_range: [f64; 2],
    /// Whether every result was checked (a wrong one is an error instead of a row).
    pub checked: bool,
}

/// What a row is about.
pub struct Case {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// `typed` or `bytes`.
    pub api: &'static str,
    /// Message size in bytes.
    pub size: usize,
    /// Messages per rank.
    pub count: u64,
    /// Messages of this rank that crossed the fabric, all repetitions and warm-up together.
    pub crossing: u64,
}

/// User and system time of this process in nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Peak resident memory of this process in bytes.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Most hops of a message in this job.
pub fn hops(job: &Job<'_>) -> u32 {
    match (job.topology().nodes(), job.size()) {
        (_, 1) => 0,
        (1, _) => 1,
        (nodes, size) if nodes == size => 1,
        _ => 3,
    }
}

/// Combines all ranks' figures into a row.
pub fn combine(job: &Job<'_>, case: &Case, reps: &[Measured], stats: &Stats) -> Result<Row, Error> {
    let mut sums = [stats.wire_bytes, case.crossing];
    job.allreduce(&mut sums, Reduce::Sum)?;
    let providers = job.allgather(job.provider().unwrap_or_default().as_bytes())?;
    let provider = providers
        .into_iter()
        .find(|p| !p.is_empty())
        .unwrap_or_else(|| b"-".to_vec());
    let provider = String::from_utf8_lossy(&provider).into_owned();
    let messages = case.count * u64::from(job.size());
    let wire = ratio(sums[0], sums[1]);
    assemble(job, case, messages, provider, wire, reps)
}

/// The row of one stream from one rank to another; `wire_bytes` is what this rank handed to the fabric in all `reps`.
pub fn one_way(
    job: &Job<'_>,
    case: &Case,
    provider: &str,
    wire_bytes: u64,
    reps: &[Measured],
) -> Result<Row, Error> {
    let mut sum = [wire_bytes];
    job.allreduce(&mut sum, Reduce::Sum)?;
    let wire = ratio(sum[0], case.crossing);
    assemble(job, case, case.count, provider.to_owned(), wire, reps)
}

fn ratio(bytes: u64, messages: u64) -> f64 {
    if messages == 0 {
        0.0
    } else {
        bytes as f64 / messages as f64
    }
}

fn assemble(
    job: &Job<'_>,
    case: &Case,
    messages: u64,
    provider: String,
    wire_bytes_per_msg: f64,
    reps: &[Measured],
) -> Result<Row, Error> {
    let mut peak = [peak_rss_bytes()];
    job.allreduce(&mut peak, Reduce::Max)?;
    let mut seconds: Vec<f64> = reps.iter().map(|r| r.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let mut cpu: Vec<f64> = reps.iter().map(|r| r.cpu_seconds).collect();
    cpu.sort_by(f64::total_cmp);
    let total = messages as f64;
    let median = seconds[seconds.len() / 2];
    Ok(Row {
        bench: case.bench,
        api: case.api,
        ranks: job.size(),
        nodes: job.topology().nodes(),
        hops: hops(job),
        provider,
        size: case.size,
        count: case.count,
        msgs_per_s: total / median,
        bytes_per_s: total * case.size as f64 / median,
        cpu_us_per_msg: cpu[cpu.len() / 2] * 1e6 / total,
        peak_rss_bytes_per_rank: peak[0],
        wire_bytes_per_msg,
        seconds: median,
        seconds_range: [seconds[0], seconds[seconds.len() - 1]],
        checked: true,
    })
}

/// Prints a row on rank 0; `first` also prints the table's head.
#[allow(clippy::print_stdout, reason = "the report is this command's output")]
pub fn print(job: &Job<'_>, row: &Row, json: bool, first: bool) {
    if job.rank().0 != 0 {
        return;
    }
    if json {
        println!(
            "{}",
            serde_json::to_string(row).expect("a row has nothing that JSON cannot say")
        );
        return;
    }
    if first {
        println!(
            "# {}: {} ranks on {} nodes, {} hops at most, provider {}",
            row.bench, row.ranks, row.nodes, row.hops, row.provider
        );
        println!(
            "# {:>8} {:>6} {:>10} {:>12} {:>12} {:>10} {:>10} {:>10}",
            "Size", "API", "Count", "Rate (M/s)", "BW (MB/s)", "CPU (us)", "Wire (B)", "RSS (MB)"
        );
    }
    println!(
        "{:>10} {:>6} {:>10} {:>12.3} {:>12.1} {:>10.4} {:>10.1} {:>10.1}",
        row.size,
        row.api,
        row.count,
        row.msgs_per_s / 1e6,
        row.bytes_per_s / 1e6,
        row.cpu_us_per_msg,
        row.wire_bytes_per_msg,
        row.peak_rss_bytes_per_rank as f64 / 1e6
    );
}
