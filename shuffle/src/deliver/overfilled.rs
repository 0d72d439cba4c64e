//! The spill that a handler has overfilled: what it sends never waits, so its next call does.

use std::cell::RefCell;
use std::sync::Arc;

use trihop_transport::park::Gauge;

thread_local! {
    /// Spill that a send of this thread found or left above its mark, since somebody last took this.
    static OVERFILLED: RefCell<Option<Arc<Gauge>>> = const { RefCell::new(None) };
}

/// A handler's send found or left this spill above its mark.
pub(crate) fn note_overfilled(gauge: &Arc<Gauge>) {
    OVERFILLED.with_borrow_mut(|overfilled| {
        overfilled.get_or_insert_with(|| Arc::clone(gauge));
    });
}

/// The spill that handlers on this thread have overfilled since this was last asked: whoever calls them lets the next call
/// wait for it.
#[inline]
pub(crate) fn take_overfilled() -> Option<Arc<Gauge>> {
    OVERFILLED.take()
}

/// As [`take_overfilled`], without taking it.
#[inline]
pub(crate) fn has_overfilled() -> bool {
    OVERFILLED.with_borrow(Option::is_some)
}
