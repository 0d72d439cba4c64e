//! Options of a job and of its streams: one name each, as a field, as `TRIHOP_<NAME>`, and in error texts.
//!
//! Unknown and impossible values are refused with the reason; nothing is corrected silently.

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
    /// Records for which a delivery thread is woken; fewer are delivered after a millisecond, or by a flush. Default 0, at
    /// once; below `deliverq_max`.
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
    /// Bound of what handlers' sends may spill, in bytes. Default 1 MiB.
    pub spill_bytes: usize,
    /// Spill that must be free before a handler is called, in bytes. Default 64 KiB, at most half the spill.
    pub handler_reserve_bytes: usize,
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
            spill_bytes: 1 << 20,
            handler_reserve_bytes: 64 << 10,
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
    /// `TRIHOP_PEER_TIMEOUT_MS`: how long a peer that owes an answer may be silent before it counts as dead.
    /// Default 120,000. With inline progress this is also how long a rank may compute without a call.
    pub peer_timeout_ms: u64,
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
            peer_timeout_ms: 120_000,
        }
    }
}

/// Variables that belong to the launcher, the command line or the logs, not to [`Options`].
const NOT_OPTIONS: [&str; 10] = [
    "BOOT_FD",
    "RANK",
    "SIZE",
    "NODE_SIZES",
    "IO",
    "SEED",
    "SCHEDULES",
    "LOG",
    "LOG_FILE",
    "TEST_PROVIDERS",
];

impl Options {
    /// Names of all options, as fields; upper-cased behind `TRIHOP_` they are the environment's.
    pub const NAMES: [&'static str; 33] = [
        "origin_maxrpc",
        "origin_buftarget_bytes",
        "relay_maxrpc",
        "relay_buftarget_bytes",
        "remote_maxrpc",
        "remote_buftarget_bytes",
        "origin_sender_limit",
        "remote_sender_limit",
        "deliverq_max",
        "deliverq_bytes",
        "deliverq_discard",
        "deliverq_threshold",
        "priority",
        "linger_us",
        "run_bytes",
        "run_table_bytes",
        "lane_budget_bytes",
        "spill_bytes",
        "handler_reserve_bytes",
        "max_message_bytes",
        "reassembly_bytes",
        "send_pool_bytes",
        "receive_pool_bytes",
        "small_slot_bytes",
        "route",
        "launcher",
        "provider",
        "interface",
        "eager_bytes",
        "mover",
        "loopback",
        "bootstrap_timeout_ms",
        "peer_timeout_ms",
    ];

    /// Defaults, overridden by the process's environment.
    ///
    /// # Errors
    /// An unknown `TRIHOP_*` variable (with the nearest name) or an impossible value.
    pub fn from_env() -> Result<Self> {
        let mut variables = Vec::new();
        for (name, value) in std::env::vars_os() {
            // Names of ours are plain text; a value that is not is refused, other people's are none of our business.
            let Some(name) = name
                .to_str()
                .filter(|n| n.starts_with("TRIHOP_") || *n == "FI_PROVIDER")
            else {
                continue;
            };
            let text = value
                .to_str()
                .ok_or_else(|| Error::config(name, "the value is not UTF-8"))?;
            variables.push((name.to_owned(), text.to_owned()));
        }
        Self::from_variables(variables)
    }

    /// As [`Options::from_env`], from any list of variables.
    ///
    /// # Errors
    /// As [`Options::from_env`].
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut options = Self::default();
        let mut fi_provider = None;
        for (name, value) in variables {
            if value.is_empty() {
                continue; // as if it were not set
            }
            if name == "FI_PROVIDER" {
                // A list or an exclusion filters inside libfabric, and the scores decide among what is left.
                fi_provider = (!value.starts_with('^') && !value.contains(',')).then_some(value);
                continue;
            }
            let Some(key) = name.strip_prefix("TRIHOP_") else {
                continue;
            };
            if NOT_OPTIONS.contains(&key) {
                continue;
            }
            options
                .set(&key.to_lowercase(), &value)
                .map_err(|error| match error {
                    Error::Config { why, .. } => Error::config(&name, why),
                    other => other,
                })?;
        }
        if options.provider.is_none() {
            options.provider = fi_provider;
        }
        options.check()?;
        Ok(options)
    }

    /// Sets one option by name.
    ///
    /// # Errors
    /// An unknown name (with the nearest one) or a value that does not parse.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
            value
                .trim()
                .parse()
                .map_err(|_| Error::config(key, format!("`{value}` is not a whole number in range")))
        }
        let stream = &mut self.stream;
        match key {
            "origin_maxrpc" => stream.origin_maxrpc = number(key, value)?,
            "origin_buftarget_bytes" => stream.origin_buftarget_bytes = number(key, value)?,
            "relay_maxrpc" => stream.relay_maxrpc = number(key, value)?,
            "relay_buftarget_bytes" => stream.relay_buftarget_bytes = number(key, value)?,
            "remote_maxrpc" => stream.remote_maxrpc = number(key, value)?,
            "remote_buftarget_bytes" => stream.remote_buftarget_bytes = number(key, value)?,
            "origin_sender_limit" => stream.origin_sender_limit = number(key, value)?,
            "remote_sender_limit" => stream.remote_sender_limit = number(key, value)?,
            "deliverq_max" => stream.deliverq_max = number(key, value)?,
            "deliverq_bytes" => stream.deliverq_bytes = number(key, value)?,
            "deliverq_discard" => stream.deliverq_discard = switch(key, value)?,
            "deliverq_threshold" => stream.deliverq_threshold = number(key, value)?,
            "priority" => stream.priority = number(key, value)?,
            "linger_us" => stream.linger_us = number(key, value)?,
            "run_bytes" => stream.run_bytes = number(key, value)?,
            "run_table_bytes" => stream.run_table_bytes = number(key, value)?,
            "lane_budget_bytes" => stream.lane_budget_bytes = number(key, value)?,
            "spill_bytes" => stream.spill_bytes = number(key, value)?,
            "handler_reserve_bytes" => stream.handler_reserve_bytes = number(key, value)?,
            "max_message_bytes" => stream.max_message_bytes = number(key, value)?,
            "reassembly_bytes" => stream.reassembly_bytes = number(key, value)?,
            "send_pool_bytes" => stream.send_pool_bytes = number(key, value)?,
            "receive_pool_bytes" => stream.receive_pool_bytes = number(key, value)?,
            "small_slot_bytes" => stream.small_slot_bytes = number(key, value)?,
            "route" => self.route = value.parse().map_err(|why: String| Error::config(key, why))?,
            "launcher" => {
                let parsed = value.parse::<Launcher>();
                self.launcher = Some(parsed.map_err(|e| match e {
                    trihop_transport::Error::Config { why, .. } => Error::config(key, why),
                    other => Error::config(key, other.to_string()),
                })?);
            }
            "provider" => self.provider = Some(value.to_owned()),
            "interface" => self.interface = Some(value.to_owned()),
            "eager_bytes" => self.eager_bytes = Some(number(key, value)?),
            "mover" => {
                self.mover = Some(match value {
                    "read" => Mover::Read,
                    "segments" => Mover::Segments,
                    _ => {
                        return Err(Error::config(
                            key,
                            format!("`{value}` is neither `read` nor `segments`"),
                        ));
                    }
                });
            }
            "loopback" => self.loopback = switch(key, value)?,
            "bootstrap_timeout_ms" => self.bootstrap_timeout_ms = number(key, value)?,
            "peer_timeout_ms" => self.peer_timeout_ms = number(key, value)?,
            _ => {
                let likeness = |name: &&str| (strsim::jaro_winkler(name, key) * 1000.0) as u32;
                let nearest = Self::NAMES
                    .into_iter()
                    .max_by_key(likeness)
                    .filter(|n| likeness(n) > 800);
                let why = match nearest {
                    Some(name) => {
                        format!(
                            "no such option; the nearest is `{name}` (TRIHOP_{})",
                            name.to_uppercase()
                        )
                    }
                    None => "no such option; `Options` lists them all".to_owned(),
                };
                return Err(Error::config(key, why));
            }
        }
        Ok(())
    }

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
        range("peer_timeout_ms", self.peer_timeout_ms as usize, 1, usize::MAX)
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

    /// `bootstrap_timeout_ms` as a duration.
    pub fn bootstrap_timeout(&self) -> Duration {
        Duration::from_millis(self.bootstrap_timeout_ms)
    }
}

fn switch(key: &str, value: &str) -> Result<bool> {
    match value {
        "1" | "true" => Ok(true),
        "0" | "false" | "" => Ok(false),
        _ => Err(Error::config(key, format!("`{value}` is neither `1` nor `0`"))),
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
        range("spill_bytes", self.spill_bytes, 1024, 1 << 32)?;
        range(
            "handler_reserve_bytes",
            self.handler_reserve_bytes,
            0,
            self.spill_bytes / 2,
        )?;
        range("max_message_bytes", self.max_message_bytes, 0, u32::MAX as usize)?;
        range("reassembly_bytes", self.reassembly_bytes, 1, 1 << 40)?;
        range("send_pool_bytes", self.send_pool_bytes, 1, 1 << 32)?;
        range("receive_pool_bytes", self.receive_pool_bytes, 1, 1 << 32)?;
        range("small_slot_bytes", self.small_slot_bytes, 192, 65536)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Options> {
        Options::from_variables(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn every_name_can_be_set_and_is_known() {
        for name in Options::NAMES {
            let refused = Options::default().set(name, "no such value at all");
            let text = refused.map_err(|e| e.to_string()).err().unwrap_or_default();
            assert!(!text.contains("no such option"), "{name}: {text}");
        }
        assert!(
            Options::NAMES.len() <= 34,
            "a knob more than DeltaFS Shuffle's users need"
        );
    }

    #[test]
    fn environment_names_are_field_names() {
        let options = from(&[
            ("TRIHOP_REMOTE_MAXRPC", "9"),
            ("TRIHOP_MOVER", "read"),
            ("HOME", "/"),
        ])
        .unwrap();
        assert_eq!(
            (options.stream.remote_maxrpc, options.mover),
            (9, Some(Mover::Read))
        );
        let options = from(&[("FI_PROVIDER", "shm"), ("TRIHOP_PROVIDER", "")]).unwrap();
        assert_eq!(options.provider.as_deref(), Some("shm"));
        assert_eq!(
            from(&[("FI_PROVIDER", "^shm")]).unwrap().provider,
            None,
            "left to libfabric"
        );
        assert_eq!(
            from(&[("FI_PROVIDER", "net,tcp")]).unwrap().provider,
            None,
            "left to libfabric"
        );
        assert!(from(&[("TRIHOP_LOOPBACK", "1"), ("TRIHOP_INTERFACE", "eth0")]).is_err());
        let text = from(&[("TRIHOP_FOO", "1")]).unwrap_err().to_string();
        assert!(!text.contains("nearest"), "{text}");
    }

    #[test]
    fn unknown_and_impossible_values_are_refused_with_the_reason() {
        let text = from(&[("TRIHOP_REMOTE_MAXRCP", "9")]).unwrap_err().to_string();
        assert!(
            text.contains("TRIHOP_REMOTE_MAXRCP") && text.contains("remote_maxrpc"),
            "{text}"
        );
        let text = from(&[("TRIHOP_REMOTE_MAXRPC", "0")]).unwrap_err().to_string();
        assert!(text.contains("remote_maxrpc") && text.contains("1024"), "{text}");
        assert!(from(&[("TRIHOP_RUN_BYTES", "many")]).is_err());
        assert!(from(&[("TRIHOP_HANDLER_RESERVE_BYTES", "1000000")]).is_err());
    }
}
