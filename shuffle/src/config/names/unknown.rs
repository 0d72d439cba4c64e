//! Variables that begin as ours do and are no options: mistyped ones, and those of somebody else.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use trihop_transport::bootstrap;
use trihop_transport::notice;

use super::RENAMED;
use crate::config::Options;

/// The variables beside the options that a user sets, and may mistype.
const OTHERS: [&str; 2] = ["LOG", "LOG_FILE"];

/// Units at the end of a name, which are easily forgotten or mixed up.
const UNITS: [&str; 6] = ["_bytes", "_ms", "_us", "_s", "_kib", "_mib"];

/// What was warned of already: options are read several times in a process.
static TOLD: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// What somebody who wrote `key` (behind `TRIHOP_`) most likely meant; none where the names have
/// little in common.
pub(super) fn nearest(key: &str) -> Option<String> {
    let key = key.to_lowercase();
    let others = OTHERS.map(str::to_lowercase);
    let known = Options::NAMES
        .into_iter()
        .chain(others.iter().map(String::as_str));
    let known = known.map(|name| (name, name)).chain(RENAMED);
    let (distance, written, meant) = known
        .map(|(written, meant)| (distance(&key, written), written, meant))
        .min_by_key(|(distance, ..)| *distance)?;
    (distance <= typos(written)).then(|| meant.to_owned())
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
