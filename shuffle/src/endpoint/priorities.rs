//! In which order the open streams make progress.

use super::{Engine, SYSTEM_STREAM, StreamId};

impl Engine {
    /// Puts a stream among the open ones, behind its equals; the collectives come first.
    pub(super) fn insert(&mut self, stream: usize) {
        let priority = self.streams[stream].priority;
        let later = |&other: &usize| {
            let other = &self.streams[other];
            other.id != SYSTEM_STREAM && other.priority < priority
        };
        let at = self.open.iter().position(later).unwrap_or(self.open.len());
        self.open.insert(at, stream);
        self.guard_what_is_shown();
    }

    /// Serves a stream with this priority from now on, or with that of its options.
    pub fn set_priority(&mut self, id: StreamId, priority: Option<u8>) {
        if !self.is_current(id) {
            return;
        }
        let state = &mut self.streams[id.stream];
        let priority = priority.unwrap_or(state.options.priority);
        if std::mem::replace(&mut state.priority, priority) == priority {
            return;
        }
        if let Some(at) = self.open.iter().position(|&at| at == id.stream) {
            self.open.remove(at);
            self.insert(id.stream);
        }
    }
}
