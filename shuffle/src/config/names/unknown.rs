//! Variables that begin as ours do and are no options: mistyped ones, and those of somebody else.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use trihop_transport::bootstrap;
use trihop_transport::notice;

use crate::config::{OptionRow, Options};

/// What has taken the place of an option that is gone.
#[derive(Debug, Clone, Copy)]
enum Now {
    /// Another option.
    Option(&'static str),
    /// A fixed share of `memory_bytes`.
    Share,
    /// A field of `struct shuffle_opts`, for clients of DeltaFS.
    Shim(&'static str),
}

/// Options that there were.
const GONE: [(&str, Now); 14] = [
    ("peer_timeout_ms", Now::Option("watch_timeout_ms")),
    ("handler_reserve_bytes", Now::Share),
    ("run_table_bytes", Now::Share),
    ("lane_budget_bytes", Now::Share),
    ("send_pool_bytes", Now::Share),
    ("receive_pool_bytes", Now::Share),
    ("small_slot_bytes", Now::Share),
    ("deliverq_bytes", Now::Share),
    ("spill_mark_bytes", Now::Share),
    ("reassembly_bytes", Now::Option("max_message_bytes")),
    ("origin_sender_limit", Now::Shim("localsenderlimit")),
    ("remote_sender_limit", Now::Shim("remotesenderlimit")),
    ("deliverq_threshold", Now::Shim("deliverq_threshold")),
    ("deliverq_discard", Now::Shim("deliverq_max below 0")),
];

impl Now {
    fn sentence(self) -> String {
        match self {
            Self::Option(name) => format!("its place has {}", named(name)),
            Self::Share => format!("it is a fixed share of {}", named("memory_bytes")),
            Self::Shim(field) => {
                format!("only clients of DeltaFS have it, as {field} of `struct shuffle_opts`")
            }
        }
    }
}

/// An option with its variable.
fn named(name: &str) -> String {
    format!("`{name}` (TRIHOP_{})", name.to_uppercase())
}

/// The variables beside the options that a user sets, and may mistype.
const OTHERS: [&str; 2] = ["LOG", "LOG_FILE"];

/// Units at the end of a name, which are easily forgotten or mixed up.
const UNITS: [&str; 6] = ["_bytes", "_ms", "_us", "_s", "_kib", "_mib"];

/// What was warned of already: options are read several times in a process.
static TOLD: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// What somebody who wrote `key` (behind `TRIHOP_`) most likely meant, as part of a sentence; none
/// where the names have little in common.
pub(super) fn nearest(key: &str) -> Option<String> {
    let key = key.to_lowercase();
    let others = OTHERS.map(str::to_lowercase);
    let options = Options::TABLE.iter().map(|row| row.name);
    let known = options.chain(others.iter().map(String::as_str));
    let known = known.map(|name| (name, None));
    let gone = GONE.iter().map(|(name, now)| (*name, Some(*now)));
    let (distance, written, now) = known
        .chain(gone)
        .map(|(written, now)| (distance(&key, written), written, now))
        .min_by_key(|(distance, ..)| *distance)?;
    let meant = || {
        now.map_or_else(
            || format!("the nearest is {}", named(written)),
            Now::sentence,
        )
    };
    (distance <= typos(written)).then(meant)
}

/// As [`nearest`], with names that have little more in common than how they begin.
pub(super) fn likest(key: &str) -> Option<String> {
    let likeness = |row: &&OptionRow| (strsim::jaro_winkler(row.name, key) * 1000.0) as u32;
    let likest = || Options::TABLE.iter().max_by_key(likeness);
    nearest(key).or_else(|| {
        let row = likest().filter(|row| likeness(row) > 800)?;
        Some(format!("the nearest is {}", named(row.name)))
    })
}

/// Letters that may be wrong in a name for it to count as mistyped. In a short one, most words are
/// a few letters away.
fn typos(name: &str) -> usize {
    match name.len() {
        0..4 => 0,
        4..8 => 1,
        _ => 2,
    }
}

/// Letters that are missing, too many, wrong or swapped; a unit does not count where the rest is
/// the same.
fn distance(key: &str, name: &str) -> usize {
    if stem(key) == stem(name) {
        return 0;
    }
    strsim::osa_distance(key, name)
}

fn stem(name: &str) -> &str {
    let stripped = UNITS.iter().find_map(|unit| name.strip_suffix(unit));
    stripped.unwrap_or(name)
}

/// Says once that these variables say nothing to us: a user may have meant one. One rank of a job
/// speaks for all.
pub(super) fn warn(names: &[String]) {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let told = told.get_or_insert_default();
    let new: Vec<&str> = names
        .iter()
        .filter(|name| told.insert((*name).clone()))
        .map(String::as_str)
        .collect();
    if new.is_empty() {
        return;
    }
    let list = new.join(", ").escape_debug().to_string();
    let text = format!("not options of trihop, and not used: {list}");
    if bootstrap::environment_rank().is_some_and(|rank| rank > 0) {
        tracing::debug!("{text}");
        return;
    }
    tracing::warn!("{text}");
    notice::unless_logged(text);
}
