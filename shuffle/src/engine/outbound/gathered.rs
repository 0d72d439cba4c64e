//! What was sent before a moment and is still being gathered, for a flush: what is sent meanwhile
//! is not waited for.

use super::Outbound;

/// Where a flush stands with what was gathered before it.
pub(crate) struct Gathered {
    /// Runs and records that have left the spill when those of that moment have.
    spilled: u64,
    /// From when they have: the targets whose runs were open then, and the records sent by then.
    open: Option<(Vec<u32>, u64)>,
}

impl Outbound {
    /// What is gathered now.
    pub fn gathered(&self) -> Gathered {
        Gathered {
            spilled: self.spill.popped() + self.spill.len() as u64,
            open: None,
        }
    }

    /// Lets it leave; true once all of it has.
    pub fn has_left(&mut self, gathered: &mut Gathered) -> bool {
        self.retry();
        if self.spill.popped() < gathered.spilled {
            return false;
        }
        let (targets, sent) = gathered
            .open
            .get_or_insert_with(|| (self.runs.open_targets().collect(), self.sent));
        // A run that was opened for the same target since leaves once at most in its place.
        while let Some(&target) = targets.last() {
            match self.runs.open_run_of(target) {
                // Behind what handlers have spilled since: there it has a place, which is waited
                // for.
                Some(slot) if !self.emit(slot) => {
                    if self.spill.is_empty() || self.spill_run(slot).is_err() {
                        return false;
                    }
                    gathered.spilled = self.spill.popped() + self.spill.len() as u64;
                    targets.pop()
                }
                _ => targets.pop(),
            };
        }
        if self.spill.popped() < gathered.spilled {
            return false;
        }
        self.go_on() || self.waits_since >= *sent
    }
}
