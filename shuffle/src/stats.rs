//! Counters of a stream, out of one table (`stats/table.rs`); all are 64 bits wide and count from
//! its opening.

mod table;

use std::fmt;

use crate::counters_table;

/// One counter, as the table has it.
#[derive(Debug, Clone, Copy)]
pub struct CounterRow {
    /// Its name: that of the field, and the key in JSON.
    pub name: &'static str,
    /// What it counts.
    pub unit: &'static str,
    doc: &'static str,
}

impl CounterRow {
    /// All that there is to say of it.
    pub fn doc(&self) -> &'static str {
        self.doc.trim()
    }
}

/// Makes the structs of counters and what goes over all of them, out of the table.
macro_rules! declare {
    (
        stream { $($(#[doc = $doc:literal])+ $name:ident $unit:tt $text:tt;)+ }
        queue { $($(#[doc = $q_doc:literal])+ $q_whole:ident $q:ident $q_unit:tt $q_text:tt;)+ }
    ) => {
        /// What a stream has done on this rank.
        #[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Stats {
            /// All counters of a stream, in the order of the C struct.
            pub const TABLE: &'static [CounterRow] = &[
                $(CounterRow {
                    name: stringify!($name),
                    unit: $unit,
                    doc: concat!($($doc),+),
                },)+
            ];

            /// Each counter with its row, in the order of the table.
            pub fn rows(&self) -> impl Iterator<Item = (&'static CounterRow, u64)> {
                Self::TABLE.iter().zip([$(self.$name),+])
            }

            /// Of counters in the order of the table.
            pub(crate) fn of_rows(mut next: impl FnMut() -> Option<u64>) -> Option<Self> {
                Some(Self { $($name: next()?,)+ })
            }
        }

        impl fmt::Display for Stats {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(phrase(f, $text, self.$name)?;)+
                Ok(())
            }
        }

        /// What one output queue has done.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct QueueStats {
            /// Rank at the other end.
            pub peer: u32,
            $($(#[doc = $q_doc])+ pub $q: u64,)+
        }

        impl QueueStats {
            /// All counters of a queue, in the order of the C struct.
            pub const TABLE: &'static [CounterRow] = &[
                $(CounterRow {
                    name: stringify!($q),
                    unit: $q_unit,
                    doc: concat!($($q_doc),+),
                },)+
            ];

            /// Each counter with its row, in the order of the table.
            pub fn rows(&self) -> impl Iterator<Item = (&'static CounterRow, u64)> {
                Self::TABLE.iter().zip([$(self.$q),+])
            }

            /// Of counters in the order of the table, for no peer.
            pub(crate) fn of_rows(mut next: impl FnMut() -> Option<u64>) -> Option<Self> {
                Some(Self { peer: 0, $($q: next()?,)+ })
            }

            /// Takes the counters of another queue of the stage in.
            pub(crate) fn add(&mut self, other: &Self) {
                $(take_in!($q_whole self.$q, other.$q);)+
            }
        }

        impl fmt::Display for QueueStats {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(phrase(f, $q_text, self.$q)?;)+
                Ok(())
            }
        }
    };
}

/// Takes a counter of another queue into one of all.
macro_rules! take_in {
    (sum $all:expr, $one:expr) => {
        $all += $one
    };
    (max $all:expr, $one:expr) => {
        $all = $all.max($one)
    };
}

counters_table!(declare);

/// Writes a row's text with the counter in it.
fn phrase(f: &mut fmt::Formatter<'_>, text: &str, count: u64) -> fmt::Result {
    let text = match text.strip_prefix('?') {
        Some(_) if count == 0 => return Ok(()),
        Some(text) => text,
        None => text,
    };
    let (before, after) = text.split_once("{}").unwrap_or((text, ""));
    write!(f, "{before}{count}{after}")
}

/// What the queues of one stage have done.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct StageStats {
    /// Name of the stage: `origin`, `remote` and `relay` on the route of three hops.
    #[serde(skip)]
    pub name: &'static str,
    /// Sums over the queues (the longest wait is the longest of any); `peer` means nothing.
    pub all: QueueStats,
    /// Times that own sends met the stage's limit, which clients of DeltaFS set.
    pub limit_hits: u64,
    /// Each queue that was ever used.
    pub queues: Vec<QueueStats>,
}

impl StageStats {
    pub(crate) fn of(
        name: &'static str,
        queues: impl Iterator<Item = QueueStats>,
        limit_hits: u64,
    ) -> Self {
        let queues: Vec<_> = queues
            .filter(|q| q.own_runs + q.forwarded_runs + q.waits > 0)
            .collect();
        let mut all = QueueStats::default();
        for queue in &queues {
            all.add(queue);
        }
        Self {
            name,
            all,
            limit_hits,
            queues,
        }
    }
}

/// What a stream and each of its queues have done on this rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct DetailedStats {
    /// Name of the stream.
    pub stream: String,
    /// This rank.
    pub rank: u32,
    /// The stream's counters.
    pub totals: Stats,
    /// The queues of each stage of the route, in the order of a run's way; in JSON, each under its
    /// name. With three hops: `origin`, queues to representatives and to ranks of this node, into
    /// which nothing is forwarded; `remote`, queues to other nodes' representatives; `relay`,
    /// queues to ranks of this node for what came from other nodes, in which nothing is this rank's
    /// own.
    #[serde(flatten, serialize_with = "under_their_names")]
    pub stages: Vec<StageStats>,
}

impl DetailedStats {
    /// The queues of the stage with this name, if the route has one.
    pub fn stage(&self, name: &str) -> Option<&StageStats> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

fn under_their_names<S: serde::Serializer>(
    stages: &[StageStats],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(stages.iter().map(|stage| (stage.name, stage)))
}

impl fmt::Display for StageStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} limit hits", self.all, self.limit_hits)
    }
}

impl fmt::Display for DetailedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stream `{}` on rank {}", self.stream, self.rank)?;
        writeln!(f, "  {}", self.totals)?;
        for stage in &self.stages {
            writeln!(f, "  {} queues: {stage}", stage.name)?;
            for queue in &stage.queues {
                writeln!(f, "    to rank {}: {queue}", queue.peer)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_sentences_of_all_counters() {
        let stats = Stats {
            sent: 7,
            sent_bytes: 70,
            undelivered: 3,
            ..Stats::default()
        };
        let text = stats.to_string();
        assert!(
            text.starts_with("7 records sent (70 bytes), 0 delivered (0 runs); "),
            "{text}"
        );
        assert!(
            text.ends_with(", 3 undelivered; 0 bytes forwarded"),
            "{text}"
        );
        let numbers = |text: &str| {
            text.split(|c: char| !c.is_ascii_digit())
                .filter(|n| !n.is_empty())
                .count()
        };
        assert_eq!(numbers(&text), Stats::TABLE.len());
        let mut queue = QueueStats {
            sends: 2,
            ..QueueStats::default()
        };
        assert_eq!(
            queue.to_string(),
            "0 runs own, 0 forwarded; 2 sends (0 by age, 0 by flush); 0 waits, longest 0 ns"
        );
        queue.waiting_ns = 5;
        assert!(queue.to_string().ends_with(", one for 5 ns by now"));
    }

    #[test]
    fn a_stage_is_the_sum_of_its_queues_and_their_longest_wait() {
        let queue = |waits, longest_wait_ns| QueueStats {
            waits,
            longest_wait_ns,
            ..QueueStats::default()
        };
        let stage = StageStats::of(
            "origin",
            [queue(2, 50), queue(0, 0), queue(3, 40)].into_iter(),
            1,
        );
        assert_eq!((stage.all.waits, stage.all.longest_wait_ns), (5, 50));
        assert_eq!((stage.queues.len(), stage.limit_hits), (2, 1));
    }
}
