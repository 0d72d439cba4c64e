//! What a program wants called at the ends of steps, on the inline seat.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// A call at the end of a step.
pub(crate) type AtEnd<'h> = Box<dyn FnOnce() + 'h>;

/// Those that are to come, by the numbers of their steps.
#[derive(Default)]
pub(super) struct AtEnds<'h> {
    kept: RefCell<HashMap<u64, (Arc<str>, AtEnd<'h>)>>,
    is_calling: Cell<bool>,
}

impl<'h> AtEnds<'h> {
    /// Keeps the call of a stream with this name.
    pub fn keep(&self, number: u64, name: &Arc<str>, call: AtEnd<'h>) {
        let kept = (Arc::clone(name), call);
        self.kept.borrow_mut().insert(number, kept);
    }

    /// What is to be called at the end of this step.
    pub fn take(&self, number: u64) -> Option<(Arc<str>, AtEnd<'h>)> {
        self.kept.borrow_mut().remove(&number)
    }

    /// Whether one is under way.
    pub fn is_calling(&self) -> bool {
        self.is_calling.get()
    }

    /// One is under way, or is no more.
    pub fn set_calling(&self, is_calling: bool) {
        self.is_calling.set(is_calling);
    }

    /// None is made any more.
    pub fn clear(&self) {
        // With nothing borrowed: they may own anything.
        let kept = self.kept.take();
        drop(kept);
    }
}
