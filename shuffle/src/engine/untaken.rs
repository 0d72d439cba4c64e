//! What is said of records, messages and items that come to nobody.

use std::fmt::Display;

use trihop_transport::notice;
use trihop_transport::sync::{PoisonError, StaticMutex};
use trihop_transport::topology::Rank;

/// Notices of this process.
static SAID: StaticMutex<u32> = StaticMutex::new(0);
const MOST_SAID: u32 = 8;

/// So many of these, records or messages, were not taken before the end of what `owner` names. Does
/// nothing where `lost` is 0.
pub(crate) fn warn(rank: Rank, what: &str, owner: &str, lost: u64) {
    if lost > 0 {
        tracing::warn!(owner, lost, "{what} were not taken before the end");
        say(format_args!(
            "rank {rank}: {what} of `{owner}` that were not taken before its end: {lost}"
        ));
    }
}

/// So many merged items go with their table. Does nothing where `held` is 0.
pub(crate) fn warn_of_merged(held: usize) {
    if held > 0 {
        tracing::warn!(held, "merged items go with their table");
        say(format_args!(
            "merged items that go with their table, which was not flushed, or whose ranks are gone: {held}"
        ));
    }
}

fn say(text: impl Display) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if *said < MOST_SAID {
        *said += 1;
        notice::unless_logged(text);
    }
}
