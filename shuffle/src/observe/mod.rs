//! Looking into jobs from outside: what each endpoint shows on a page of shared memory.
//!
//! An endpoint writes its counters there by itself, in rounds of progress and before it sleeps. So
//! a job is seen while it works, hangs or is stopped, and nothing is asked of it. [`find`] and
//! [`of_process`] read the pages of the processes of this user on this machine. `trihop top` and
//! `trihop dump` are made of them.
//!
//! ```
//! use trihop_shuffle::{Job, Options, observe};
//!
//! let job = Job::start(Options::default())?;
//! let seen = observe::of_process(std::process::id())?;
//! assert_eq!((seen[0].about.endpoint, seen[0].about.ranks), (0, 1));
//! job.shutdown()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod read;
mod show;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::stats::{QueueStats, Stats};
pub use read::{find, of_process};
pub(crate) use show::{Shown, WaitNote, clock_ns};

/// Bytes of a name of a host or stream, and of what is waited for, that a page has room for.
const NAME_BYTES: usize = 64;
/// Calls that wait at the same time, of which a page tells.
const MOST_WAITS: usize = 8;

/// What one endpoint shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// Its process, by the number that it was found under.
    pub process: u32,
    /// Who it is.
    #[serde(flatten)]
    pub about: About,
    /// Counters and waits; `None` where it has not come so far.
    pub now: Option<Moment>,
    /// A dump for people, and how old it is in nanoseconds: written when the endpoint sleeps, once
    /// in a second at most. Empty where it has not slept yet.
    #[serde(skip)]
    pub text: (String, u64),
}

/// Who shows a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct About {
    /// Number of the job, the same for all of its endpoints: 16 hexadecimal digits.
    pub job: String,
    /// Number of the endpoint: its rank, or that of a relay, behind all ranks.
    pub endpoint: u32,
    /// Whether it is a relay, which has no application.
    pub is_relay: bool,
    /// Ranks of the job.
    pub ranks: u32,
    /// The endpoint's node in the job.
    pub node: u32,
    /// Nodes of the job.
    pub nodes: u32,
    /// Name of its machine.
    pub host: String,
    /// When the job was started here, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The same by the clock that only grows.
    #[serde(skip)]
    started_ns: u64,
}

/// What an endpoint has counted, and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Nanoseconds from the start of the job to this moment.
    pub at_ns: u64,
    /// How long ago this moment was, in nanoseconds: an endpoint that sleeps writes anew every tenth
    /// of a second, one that computes without calling does not.
    pub age_ns: u64,
    /// Rounds of progress made so far.
    pub rounds: u64,
    /// Calls that wait.
    pub waits: Vec<Wait>,
    /// Streams that are open.
    pub open_streams: u64,
    /// Those of them that the page has room for; that of the job's collectives is the first.
    pub streams: Vec<StreamSeen>,
}

impl Moment {
    /// Open streams that the page has no room for: [`streams`](Self::streams) lacks them, and so
    /// does any sum over it.
    pub fn missing_streams(&self) -> u64 {
        self.open_streams.saturating_sub(self.streams.len() as u64)
    }
}

/// A call that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// What for.
    pub what: String,
    /// How long it has waited, until this moment, in nanoseconds.
    pub waited_ns: u64,
}

/// One stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamSeen {
    /// Its number.
    pub number: u64,
    /// Its name, cut where it is long.
    pub name: String,
    /// Records that wait for a delivery thread, or for the application to take them.
    pub waiting_records: u64,
    /// Its counters.
    pub totals: Stats,
    /// What it takes memory for.
    pub memory: Vec<PoolSeen>,
    /// The stages of its route, in the order of a run's way.
    pub stages: Vec<StageSeen>,
}

/// Memory of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolSeen {
    /// What it is for.
    pub name: &'static str,
    /// What is in use of it.
    pub used_bytes: u64,
    /// What may be.
    pub most_bytes: u64,
}

/// The queues of one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageSeen {
    /// Its name.
    pub name: String,
    /// Queues that are open.
    pub queues: u64,
    /// Sums over the queues (the longest wait is the longest of any); `peer` means nothing.
    pub all: QueueStats,
    /// Bytes that nobody has taken out of lanes, and those in open batches.
    pub waiting_bytes: u64,
    /// Batches that are sealed and wait for credit.
    pub ready_batches: u64,
    /// Batches that the other ends have not acknowledged.
    pub in_flight_batches: u64,
    /// Batches that could be sent at once: slots that the other ends have granted.
    pub credits: u64,
}

impl Seen {
    /// Memory that queues use and its bound, over all streams, in bytes. Spill and long records are
    /// not in it: of their bounds, which are far, nothing is used as a rule.
    pub fn memory(&self) -> (u64, u64) {
        let streams = self.now.iter().flat_map(|now| &now.streams);
        let pools = streams.flat_map(|stream| &stream.memory);
        let pools = pools.filter(|pool| !matches!(pool.name, "spill" | "long records"));
        pools.fold((0, 0), |(used, most): (u64, u64), pool| {
            (
                used.saturating_add(pool.used_bytes),
                most.saturating_add(pool.most_bytes),
            )
        })
    }

    /// The call that has waited longest.
    pub fn longest_wait(&self) -> Option<&Wait> {
        let now = self.now.as_ref()?;
        now.waits.iter().max_by_key(|wait| wait.waited_ns)
    }
}

impl StreamSeen {
    /// The memory of this name, in use.
    pub fn used_bytes(&self, name: &str) -> u64 {
        let of_name = self.memory.iter().find(|pool| pool.name == name);
        of_name.map_or(0, |pool| pool.used_bytes)
    }
}
