//! The spill that a handler on a delivery thread has overfilled: what it sends never waits, so its
//! next call does.

use std::cell::RefCell;
use std::sync::Arc;

use trihop_transport::park::Gauge;
use trihop_transport::sync::thread_local;

thread_local! {
    /// Spill that a send of this thread found or left above its mark, since somebody last took
    /// this. A thread that is ending has none: its handlers do not wait.
    static OVERFILLED: RefCell<Option<Arc<Gauge>>> = const { RefCell::new(None) };
}

/// A handler's send found or left this spill above its mark.
pub(crate) fn note_overfilled(gauge: &Arc<Gauge>) {
    let note = |overfilled: &RefCell<Option<Arc<Gauge>>>| {
        overfilled
            .borrow_mut()
            .get_or_insert_with(|| Arc::clone(gauge));
    };
    let _ = OVERFILLED.try_with(note);
}

/// The spill that handlers on this thread have overfilled since this was last asked: the delivery
/// thread lets its next call of a handler wait for it.
#[inline]
pub(crate) fn take_overfilled() -> Option<Arc<Gauge>> {
    OVERFILLED.try_with(RefCell::take).ok().flatten()
}
