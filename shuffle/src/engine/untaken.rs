//! What is said of records and messages that nobody took before their end.

use trihop_transport::notice;
use trihop_transport::sync::{PoisonError, StaticMutex};
use trihop_transport::topology::Rank;

/// Notices of this process.
static SAID: StaticMutex<u32> = StaticMutex::new(0);
const MOST_SAID: u32 = 8;

/// So many of these, records or messages, went with what `owner` names; says nothing of none.
pub(crate) fn warn(rank: Rank, what: &str, owner: &str, lost: u64) {
    if lost == 0 {
        return;
    }
    tracing::warn!(owner, lost, "{what} were not taken before the end");
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if *said < MOST_SAID {
        *said += 1;
        notice::unless_logged(format_args!(
            "rank {rank}: {lost} {what} of `{owner}` were not taken before its end"
        ));
    }
}
