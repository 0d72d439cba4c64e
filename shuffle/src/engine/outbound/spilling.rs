//! What handlers sent and no queue had room for: into the spill, out of it, and how full it may
//! get.

use std::sync::Arc;

use trihop_transport::park::Gauge;
use trihop_transport::topology::Rank;

use super::Outbound;
use crate::engine::long::Targets;
use crate::error::{Error, Result};
use crate::queue::Input;
use crate::queue::audience::Audience;
use crate::queue::pressure::Level;
use crate::queue::spill::{Full, Spill, Spilled};
use crate::route::Stage;

impl Outbound {
    /// Moves an open run on, or into the spill.
    pub(super) fn emit_or_spill(&mut self, slot: usize) -> Result<()> {
        if self.emit(slot) {
            return Ok(());
        }
        let bytes = self.spill_run(slot);
        bytes.or_else(|bytes| self.overrun(bytes))
    }

    /// Moves an open run into the spill.
    ///
    /// # Errors
    /// No room for so many bytes; the run stays open.
    pub(super) fn spill_run(&mut self, slot: usize) -> Result<(), usize> {
        let (target, frame) = self.runs.frame(slot, self.rank);
        let pushed = self.spill.push_run(Rank(target), frame);
        pushed.map_err(|Full| frame.len())?;
        self.runs.close(slot);
        self.note_spilled();
        Ok(())
    }

    /// Puts the frame of a run into the spill, of `bytes` that `write` fills in.
    pub(super) fn spill_frame(
        &mut self,
        target: Rank,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        match self.spill.push_run_with(target, bytes, write) {
            Ok(()) => {
                self.note_spilled();
                Ok(())
            }
            Err(Full) => self.overrun(bytes),
        }
    }

    /// Puts a record that travels in no run into the spill.
    pub(super) fn spill_record(
        &mut self,
        audience: Audience,
        kind: u32,
        payload: &[u8],
    ) -> Result<()> {
        match self.spill.push_record(audience, kind, payload) {
            Ok(()) => {
                self.note_spilled();
                Ok(())
            }
            Err(Full) => self.overrun(payload.len()),
        }
    }

    fn note_spilled(&mut self) {
        if self.pressure.added(self.level(), self.queues.now_ns) {
            self.gauge.press();
        }
        self.overfilled |= self.pressure.is_pressed();
    }

    /// Whether a send has found or left the spill above its mark since this was last asked: the
    /// next call of the handler that sent waits.
    #[inline]
    pub fn take_overfilled(&mut self) -> bool {
        std::mem::take(&mut self.overfilled)
    }

    /// What those wait for who have overfilled the spill.
    pub fn gauge(&self) -> &Arc<Gauge> {
        &self.gauge
    }

    /// Whether deliveries of a handler that has overfilled the spill have to wait; the spill knows
    /// then that one does.
    pub fn keeps_deliveries_waiting(&self) -> bool {
        let waits = self.gauge.is_pressed();
        if waits {
            self.gauge.note_waiting();
        }
        waits
    }

    /// Neither a queue nor the spill has room: memory is bounded, so the send fails, and the job
    /// with it.
    #[cold]
    fn overrun<T>(&mut self, bytes: usize) -> Result<T> {
        let error = Error::SpillFull {
            stream: self.name.to_string(),
            bytes,
            used_bytes: self.spill.used_bytes(),
            limit_bytes: self.spill.limit_bytes(),
        };
        self.fail(&error);
        Err(error)
    }

    /// The job ends by this, whoever makes its next round of progress.
    pub fn fail(&mut self, error: &Error) {
        self.failed.get_or_insert_with(|| Box::new(error.clone()));
    }

    /// What a send has failed with that the job ends by, even if its handler ignored the error.
    pub fn failure(&self) -> Option<Error> {
        self.failed.as_deref().cloned()
    }

    /// Moves what was refused earlier: a long record, a broadcast, the spill. True when something
    /// moved.
    pub fn retry(&mut self) -> bool {
        let before = (self.long.moved_bytes(), self.queues.copies);
        let mut is_free = self.go_on();
        let mut moved = before != (self.long.moved_bytes(), self.queues.copies);
        if self.spill.is_empty() {
            return moved;
        }
        // Out of the way while the rest of `self` takes what it holds.
        let mut spill = std::mem::replace(&mut self.spill, Spill::new(0, 0));
        while is_free && let Some(spilled) = spill.front() {
            let taken = match spilled {
                Spilled::Run { target, frame } => {
                    let input = Input::APPLICATION;
                    self.queues.push(Stage::SOURCE, target, frame, 0, input) == Some(true)
                }
                Spilled::Record {
                    audience,
                    kind,
                    payload,
                } => {
                    // Whatever was to leave before it has been spilled before it. What waits of it
                    // has left the spill: for want of memory it is tried again.
                    let taken = match audience {
                        Audience::Many(to) => self.start_broadcast(to, kind, payload),
                        Audience::One(target) => {
                            let targets = Targets::one(target);
                            self.long.send(&mut self.queues, targets, kind, payload)
                        }
                    };
                    // It was counted when it was spilled.
                    self.waits_since = self.sent.saturating_sub(1);
                    taken.unwrap_or(false)
                }
            };
            if !taken {
                break;
            }
            spill.pop();
            moved = true;
            is_free = self.go_on();
        }
        self.spill = spill;
        moved
    }

    /// Looks once a round whether deliveries have to wait for the spill; true when some go on that
    /// waited.
    pub fn relieve(&mut self, now_ns: u64) -> bool {
        self.spill.rest(now_ns);
        if self.pressure.rests() {
            return false;
        }
        let waited = self.pressure.is_pressed() && self.gauge.take_waited();
        let goes_on = self.pressure.look(self.level(), waited, now_ns);
        if goes_on {
            self.gauge.relieve();
        }
        goes_on
    }

    fn level(&self) -> Level {
        Level {
            used_bytes: self.spill.used_bytes(),
            popped: self.spill.popped(),
            waits_for_delivery: self.spill.front_target() == Some(Rank(self.rank)),
        }
    }
}
