//! Options of a job and of its streams: one name each, as a field, as `TRIHOP_<NAME>`, and in error texts.
//!
//! Unknown names and impossible values are refused with the reason; nothing is corrected silently.
//! Of the environment's variables only mistyped ones are refused, and others that begin as ours do
//! are named in a warning.

mod names;

use std::time::Duration;

use trihop_transport::bootstrap::Launcher;
use trihop_transport::fabric::Choice;
use trihop_transport::link::Mover;

use crate::error::{Error, Result};
use crate::route::RouteName;

/// Options of one stream. The defaults are meant to be left alone.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StreamOptions {
    /// Batches of the origin class that may be unconsumed per local queue, times `origin_buftarget_bytes`. Default 16,
    /// 1 to 65,535; where the queue is a link (`fabric-only`), no more than 1,024 count.
    pub origin_maxrpc: u32,
    /// Bytes after which an origin lane is shown to its consumer, or a batch of an origin link is sealed. Default 4,096; 1
    /// means at every run.
    pub origin_buftarget_bytes: usize,
    /// As `origin_maxrpc`, for relay queues. Default 16.
    pub relay_maxrpc: u32,
    /// As `origin_buftarget_bytes`, for relay queues. Default 4,096.
    pub relay_buftarget_bytes: usize,
    /// Batches per link to another node that may be in flight, unacknowledged. Default 4, 1 to 1,024.
    pub remote_maxrpc: u32,
    /// Bytes at which a batch is sealed. Default 65,536, up to 16 MiB; fewer where links are so many that `send_pool_bytes`
    /// does not hold two such batches for each. Memory: `links x (remote_maxrpc + 1) x` this, bounded by `send_pool_bytes`.
    pub remote_buftarget_bytes: usize,
    /// Bytes of this rank's own sends that may be unconsumed in all its origin lanes together, in units of
    /// `origin_buftarget_bytes`; 0, the default, for no limit but those of the single lanes. Up to 1,000,000. One frame
    /// always may. Each rank has its own.
    pub origin_sender_limit: u32,
    /// Batches with own sends of this rank that may be open or unacknowledged in all its remote queues together; 0, the
    /// default, for no limit but those of the single queues. Up to 1,000,000. What this rank relays is never kept by it.
    /// Each rank has its own.
    pub remote_sender_limit: u32,
    /// Records that may wait for a delivery thread, or for an application without a handler. Default 4,096 (one run always may).
    pub deliverq_max: usize,
    /// Bytes that may wait for a delivery thread, or for an application without a handler. Default 16 MiB (one run or record always may).
    pub deliverq_bytes: usize,
    /// For debugging: what arrives at this rank is counted (`Stats::discarded`) and dropped on purpose, without a call of the
    /// handler. Flushes and fences end as ever. Default no.
    pub deliverq_discard: bool,
    /// Records for which a delivery thread is woken; fewer are delivered after a millisecond, or by a flush. Default 0, for
    /// any; below `deliverq_max`.
    pub deliverq_threshold: usize,
    /// Streams of a higher priority are served first in each round of progress. Default 0, up to 255.
    pub priority: u8,
    /// Longest time in microseconds that a partial run or batch waits while its rank makes progress. Default 100.
    pub linger_us: u64,
    /// Size of a run, header included, in bytes. Default 1,024; at most a quarter of a lane.
    pub run_bytes: usize,
    /// Memory of short frames of open runs in bytes, and as much again for long ones. Default 262,144. The table itself
    /// takes 16 bytes for each short frame.
    pub run_table_bytes: usize,
    /// Memory that the lanes into a rank may take, in bytes. Default 2 MiB. A lane has 64 KiB where that affords it,
    /// less where many ranks share a node, never below 4 KiB.
    pub lane_budget_bytes: usize,
    /// Bound of what handlers' sends may spill, in bytes: what finds no room in a queue. 0, the default, for a share of the
    /// memory that the processes of a node may use: a quarter, divided by its ranks. Taken as it is needed, and given
    /// back. Beyond it a handler's send fails, and the job ends with [`crate::Error::SpillFull`].
    pub spill_bytes: usize,
    /// Spill from which on deliveries wait as long as it drains, in bytes. Default 1 MiB.
    pub spill_mark_bytes: usize,
    /// Longest record in bytes. Default 64 MiB.
    pub max_message_bytes: usize,
    /// Bytes of long records that a rank puts together at a time (one always may). Default 128 MiB.
    pub reassembly_bytes: usize,
    /// Memory for send batches of a rank in bytes. Default 4 MiB. Every link has two batches, which are shorter than
    /// `remote_buftarget_bytes` where links are many, never below `small_slot_bytes`.
    pub send_pool_bytes: usize,
    /// Memory for shared large receive slots of a rank in bytes. Default 4 MiB (one slot at least).
    pub receive_pool_bytes: usize,
    /// Size of the receive slot that every link always has, in bytes. Default 4,096, at least 192.
    pub small_slot_bytes: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            origin_maxrpc: 16,
            origin_buftarget_bytes: 4096,
            relay_maxrpc: 16,
            relay_buftarget_bytes: 4096,
            remote_maxrpc: 4,
            remote_buftarget_bytes: 65536,
            origin_sender_limit: 0,
            remote_sender_limit: 0,
            deliverq_max: 4096,
            deliverq_bytes: 16 << 20,
            deliverq_discard: false,
            deliverq_threshold: 0,
            priority: 0,
            linger_us: 100,
            run_bytes: 1024,
            run_table_bytes: 256 << 10,
            lane_budget_bytes: 2 << 20,
            spill_bytes: 0,
            spill_mark_bytes: 1 << 20,
            max_message_bytes: 64 << 20,
            reassembly_bytes: 128 << 20,
            send_pool_bytes: 4 << 20,
            receive_pool_bytes: 4 << 20,
            small_slot_bytes: 4096,
        }
    }
}

/// Options of a job; `stream` holds the defaults of its streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Defaults for every stream of the job.
    pub stream: StreamOptions,
    /// `TRIHOP_ROUTE` (`three-hop`, `direct` or `fabric-only`): how messages travel. `direct` has a link per rank of other
    /// nodes; `fabric-only` goes the ways of `three-hop`, with two links to each rank of the node in the place of lanes. Both
    /// are refused where `send_pool_bytes` does not hold two batches for each link.
    pub route: RouteName,
    /// `TRIHOP_LAUNCHER`: who started the job; detected when absent.
    pub launcher: Option<Launcher>,
    /// `TRIHOP_PROVIDER` (or `FI_PROVIDER`): libfabric provider; the best-scoring one when absent.
    pub provider: Option<String>,
    /// `TRIHOP_INTERFACE`: network interface, domain or address; the provider's own best when absent.
    pub interface: Option<String>,
    /// `TRIHOP_EAGER_BYTES`: longest message that is sent without asking; the provider's when absent.
    pub eager_bytes: Option<usize>,
    /// `TRIHOP_MOVER` (`read` or `segments`): how longer batches move; the provider's better one when absent.
    pub mover: Option<Mover>,
    /// `TRIHOP_LOOPBACK`: simulated nodes on one machine, so loopback only.
    pub loopback: bool,
    /// `TRIHOP_BOOTSTRAP_TIMEOUT_MS`: how long start-up waits for the others. Default 30,000.
    pub bootstrap_timeout_ms: u64,
    /// `TRIHOP_WATCH_TIMEOUT_MS`: how long another node may be out of reach, its link cut or its machine down, before
    /// its ranks count as dead. The kernels ask each other, in steps of whole seconds: how long a rank computes,
    /// blocks or is stopped does not matter. A process that ends is known at once. Default 5,000, 100 to 86,400,000.
    pub watch_timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stream: StreamOptions::default(),
            route: RouteName::default(),
            launcher: None,
            provider: None,
            interface: None,
            eager_bytes: None,
            mover: None,
            loopback: false,
            bootstrap_timeout_ms: 30_000,
            watch_timeout_ms: 5_000,
        }
    }
}

impl Options {
    /// Checks every value and how they fit together.
    ///
    /// # Errors
    /// [`Error::Config`], with the option and the possible values.
    pub fn check(&self) -> Result<()> {
        self.stream.check()?;
        if self.loopback && self.interface.is_some() {
            let why = "simulated nodes use the loopback interface only; unset one of TRIHOP_INTERFACE and TRIHOP_LOOPBACK";
            return Err(Error::config("interface", why));
        }
        if let Some(bytes) = self.eager_bytes {
            range("eager_bytes", bytes, 192, 16 << 20)?;
        }
        range(
            "bootstrap_timeout_ms",
            self.bootstrap_timeout_ms as usize,
            1,
            86_400_000,
        )?;
        range(
            "watch_timeout_ms",
            self.watch_timeout_ms as usize,
            100,
            86_400_000,
        )
    }

    /// What these options ask of libfabric.
    pub fn choice(&self) -> Choice {
        Choice {
            provider: self.provider.clone(),
            interface: self.interface.clone(),
            eager_bytes: self.eager_bytes,
            mover: self.mover,
            loopback_only: self.loopback,
            ..Choice::default()
        }
    }

    /// `watch_timeout_ms` as a duration.
    pub fn watch_timeout(&self) -> Duration {
        Duration::from_millis(self.watch_timeout_ms)
    }

    /// `bootstrap_timeout_ms` as a duration.
    pub fn bootstrap_timeout(&self) -> Duration {
        Duration::from_millis(self.bootstrap_timeout_ms)
    }
}

fn range(key: &str, value: usize, low: usize, high: usize) -> Result<()> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(Error::config(
            key,
            format!("{value} is not between {low} and {high}"),
        ))
    }
}

impl StreamOptions {
    /// Checks every value and how they fit together.
    ///
    /// # Errors
    /// [`Error::Config`], with the option and the possible values.
    pub fn check(&self) -> Result<()> {
        range("origin_maxrpc", self.origin_maxrpc as usize, 1, 65535)?;
        range("relay_maxrpc", self.relay_maxrpc as usize, 1, 65535)?;
        range("remote_maxrpc", self.remote_maxrpc as usize, 1, 1024)?;
        range("origin_buftarget_bytes", self.origin_buftarget_bytes, 1, 1 << 20)?;
        range("relay_buftarget_bytes", self.relay_buftarget_bytes, 1, 1 << 20)?;
        range("remote_buftarget_bytes", self.remote_buftarget_bytes, 1, 16 << 20)?;
        range(
            "origin_sender_limit",
            self.origin_sender_limit as usize,
            0,
            1_000_000,
        )?;
        range(
            "remote_sender_limit",
            self.remote_sender_limit as usize,
            0,
            1_000_000,
        )?;
        range("deliverq_max", self.deliverq_max, 1, u32::MAX as usize)?;
        range("deliverq_bytes", self.deliverq_bytes, 1, 1 << 40)?;
        range(
            "deliverq_threshold",
            self.deliverq_threshold,
            0,
            self.deliverq_max - 1,
        )?;
        range("linger_us", self.linger_us as usize, 0, 10_000_000)?;
        range("run_bytes", self.run_bytes, 24, 16384)?;
        range("run_table_bytes", self.run_table_bytes, self.run_bytes, 1 << 30)?;
        range("lane_budget_bytes", self.lane_budget_bytes, 8192, 1 << 32)?;
        if self.spill_bytes > 0 {
            range("spill_bytes", self.spill_bytes, 1024, 1 << 40)?;
        }
        range("spill_mark_bytes", self.spill_mark_bytes, 1, 1 << 40)?;
        range("max_message_bytes", self.max_message_bytes, 0, u32::MAX as usize)?;
        range("reassembly_bytes", self.reassembly_bytes, 1, 1 << 40)?;
        range("send_pool_bytes", self.send_pool_bytes, 1, 1 << 32)?;
        range("receive_pool_bytes", self.receive_pool_bytes, 1, 1 << 32)?;
        range("small_slot_bytes", self.small_slot_bytes, 192, 65536)
    }
}
