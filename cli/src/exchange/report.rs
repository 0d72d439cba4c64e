//! What all ranks measured together, as a table or as JSON.

use std::fmt::Write as _;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use trihop::route::RouteName;
use trihop::{Reduce, Stats};

use super::args::ExchangeArgs;
use super::detail::RankDetail;
use super::error::{Error, Result};
use super::seat::Seat;
use super::usage::RankUsage;

/// A clock of time and of processor time.
#[derive(Debug)]
pub struct Stopwatch {
    begun: Instant,
    cpu_ns: u64,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self {
            begun: Instant::now(),
            cpu_ns: cpu_ns(),
        }
    }

    /// Nanoseconds of time, and of user and system time of all threads, since the start.
    pub fn read(&self) -> (u64, u64) {
        (
            self.begun.elapsed().as_nanos() as u64,
            cpu_ns() - self.cpu_ns,
        )
    }
}

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Most memory that this process ever had resident.
fn peak_rss_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|source| Error::System {
        what: "reading /proc/self/status",
        source,
    })?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.unwrap_or(0) * 1024)
}

/// What one rank did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// Messages sent, a broadcast once for each rank that gets it.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages for other nodes.
    pub crossing: u64,
    /// Wrong or missing messages received.
    pub faults: u64,
    /// From the first message to the end of the last flush.
    pub elapsed_ns: u64,
    /// User and system time in it.
    pub cpu_ns: u64,
}

/// What all ranks did.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_number: Option<u64>,
    ranks: u32,
    nodes: u32,
    route: String,
    provider: String,
    seed: u64,
    size: String,
    /// Messages are copies of broadcasts.
    broadcast: bool,
    messages: u64,
    bytes: u64,
    seconds: f64,
    msgs_per_s: f64,
    bytes_per_s: f64,
    cpu_us_per_msg: f64,
    peak_rss_bytes_per_rank: u64,
    batches: u64,
    announced: u64,
    wire_bytes: u64,
    wire_bytes_per_msg: f64,
    queue_waits: u64,
    /// Sends that a limit over all queues of a stage kept.
    limit_hits: u64,
    blocked_deliveries: u64,
    faults: u64,
    checked: bool,
    /// What each rank used, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Vec<RankUsage>>,
    /// What each rank's queues and threads did, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Vec<RankDetail>>,
}

impl Report {
    /// Adds up the shares of all ranks; collective.
    ///
    /// # Errors
    /// The engine's.
    pub fn gather(
        job: &Seat,
        args: &ExchangeArgs,
        route: RouteName,
        seed: u64,
        share: Share,
        stats: &Stats,
    ) -> Result<Self> {
        let Share {
            messages,
            bytes,
            crossing,
            faults,
            elapsed_ns,
            cpu_ns,
        } = share;
        let mut sums = [
            messages,
            bytes,
            crossing,
            faults,
            cpu_ns,
            stats.batches_sent,
            stats.announced,
            stats.wire_bytes,
            stats.queue_waits,
            stats.limit_hits,
            stats.blocked_deliveries,
        ];
        job.allreduce(&mut sums, Reduce::Sum)?;
        let mut most = [elapsed_ns, peak_rss_bytes()?];
        job.allreduce(&mut most, Reduce::Max)?;
        let [
            messages,
            bytes,
            crossing,
            faults,
            cpu_ns,
            batches,
            announced,
            wire_bytes,
            queue_waits,
            limit_hits,
            blocked_deliveries,
        ] = sums;
        let seconds = most[0] as f64 / 1e9;
        let each = |total: f64, of: u64| if of == 0 { 0.0 } else { total / of as f64 };
        Ok(Self {
            bench: "exchange",
            run_number: args.run_number,
            ranks: job.size(),
            nodes: job.topology().nodes(),
            route: route.to_string(),
            provider: provider(job)?,
            seed,
            size: args.size.to_string(),
            broadcast: args.pattern.broadcast,
            messages,
            bytes,
            seconds,
            msgs_per_s: messages as f64 / seconds.max(1e-9),
            bytes_per_s: bytes as f64 / seconds.max(1e-9),
            cpu_us_per_msg: each(cpu_ns as f64 / 1e3, messages),
            peak_rss_bytes_per_rank: most[1],
            batches,
            announced,
            wire_bytes,
            wire_bytes_per_msg: each(wire_bytes as f64, crossing),
            queue_waits,
            limit_hits,
            blocked_deliveries,
            faults,
            checked: faults == 0,
            usage: None,
            detail: None,
        })
    }

    /// Wrong or missing messages of all ranks.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// One JSON object on a line.
    ///
    /// # Errors
    /// Never in practice: the serialiser's.
    pub fn json(&self) -> Result<String> {
        match serde_json::to_string(self) {
            Ok(text) => Ok(text + "\n"),
            Err(error) => Err(Error::System {
                what: "writing JSON",
                source: error.into(),
            }),
        }
    }

    /// Two columns for people.
    pub fn table(&self) -> String {
        let mut table = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(table, "{name:<12} {value}");
        };
        if let Some(number) = self.run_number {
            row("run", number.to_string());
        }
        row(
            "ranks",
            format!("{} on {} nodes, {}", self.ranks, self.nodes, self.route),
        );
        row("provider", self.provider.clone());
        row("seed", self.seed.to_string());
        let checked = if self.checked {
            ", each checked once"
        } else {
            ""
        };
        let broadcast = if self.broadcast { ", broadcast" } else { "" };
        row(
            "messages",
            format!(
                "{} of {} bytes{broadcast}{checked}",
                self.messages, self.size
            ),
        );
        row("bytes", self.bytes.to_string());
        row("seconds", format!("{:.3} (slowest rank)", self.seconds));
        row(
            "rate",
            format!(
                "{:.0} messages/s, {:.1} MB/s",
                self.msgs_per_s,
                self.bytes_per_s / 1e6
            ),
        );
        row(
            "CPU",
            format!(
                "{:.3} us per message (user and system, all ranks)",
                self.cpu_us_per_msg
            ),
        );
        row(
            "peak RSS",
            format!(
                "{:.1} MB (largest rank)",
                self.peak_rss_bytes_per_rank as f64 / 1e6
            ),
        );
        row(
            "batches",
            format!("{}, {} of them by rendezvous", self.batches, self.announced),
        );
        row(
            "wire bytes",
            format!(
                "{} ({:.1} per message between nodes)",
                self.wire_bytes, self.wire_bytes_per_msg
            ),
        );
        row("queue waits", self.queue_waits.to_string());
        row("limit hits", self.limit_hits.to_string());
        row("blocked", format!("{} deliveries", self.blocked_deliveries));
        if let Some(usage) = &self.usage {
            table += &RankUsage::table(usage);
        }
        if let Some(detail) = &self.detail {
            table += &crate::output::folded(&RankDetail::text(detail));
        }
        table
    }
}

/// What carries messages between nodes, as the ranks that represent nodes tell it.
fn provider(job: &Seat) -> Result<String> {
    let told = job.allgather(job.provider().as_bytes())?;
    let mut names: Vec<_> = told
        .iter()
        .map(|name| String::from_utf8_lossy(name))
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(if names.is_empty() {
        "none (one node)".to_owned()
    } else {
        names.join(", ")
    })
}
