//! What a stream does with a run that is here: on to its next hop, into its copies, or delivered.

use std::collections::{HashMap, HashSet};

use trihop_transport::protocol::wire::{BadRun, Run};
use trihop_transport::topology::Rank;

use super::Core;
use super::broadcasts::Copying;
use super::outbox::Outbox;
use super::sink::Sink;
use crate::deliver::{Assembled, Delivery, Reassembly, take_overfilled};
use crate::queue::Feeder;
use crate::route::{Place, Route};

/// Front runs that have moved on in part.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// Records that the handler has taken, where it paused inside the run.
    taken: HashMap<Feeder, usize>,
    /// Those whose front run could not be delivered when it was last tried.
    blocked: HashSet<Feeder>,
    /// Copies of broadcasts.
    copying: HashMap<Feeder, Copying>,
}

impl<'h> Core<'h> {
    /// Moves the first of `runs`, which came over a link; its length, or `None` when there is no room for it now.
    pub(super) fn forward_arrived(
        &self,
        at: Place,
        runs: &[u8],
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<Option<usize>, BadRun> {
        let (run, _) = Run::split(runs, self.topology.size())?;
        if run.frame.len() > self.frame_bytes {
            return Err(BadRun::Length {
                length: run.frame.len() as u32,
                present: self.frame_bytes,
            });
        }
        let moved = self.forward(at, &run, feeder, sink, reassembly, begun)?;
        Ok(moved.then_some(run.frame.len()))
    }

    /// Moves one run a hop further, or delivers it; false when there is no room for it now.
    pub(super) fn forward(
        &self,
        at: Place,
        run: &Run<'_>,
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<bool, BadRun> {
        if run.is_broadcast() {
            return self.spread(at, run, feeder, sink, reassembly, begun);
        }
        let target = Rank(run.header.target);
        if target == self.topology.rank() {
            return self.deliver(run, feeder, sink, reassembly, begun);
        }
        let pushed = self
            .out
            .borrow_mut()
            .queues
            .push(at, target, run.frame, run.header.flags, feeder);
        match pushed {
            Some(true) => {
                let mut stats = self.stats.borrow_mut();
                if at == Place::TargetRep {
                    stats.runs_from_fabric += 1;
                } else {
                    stats.runs_to_fabric += 1;
                }
                Ok(true)
            }
            Some(false) => Ok(false),
            None => Err(BadRun::Route(target.0)),
        }
    }

    /// Copies a broadcast to its next hops and delivers it; false while there is no room for all of that. What is done is
    /// not done again.
    #[cold]
    pub(super) fn spread(
        &self,
        at: Place,
        run: &Run<'_>,
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<bool, BadRun> {
        let source = Rank(run.header.source);
        let mut copying = begun.copying.remove(&feeder).unwrap_or_default();
        let mut out = self.out.borrow_mut();
        let route = &out.queues.route;
        if !route.passes(at, source) {
            return Err(BadRun::Broadcast {
                source_rank: source.0,
                why: "it arrived where no copy of it belongs",
            });
        }
        // One that comes back to its source, over its own lane, has its copies.
        let copies = match source == self.topology.rank() {
            true => 0,
            false => route.copies(at),
        };
        if copying.next < copies {
            let before = copying.next;
            copying.next = out.queues.push_copies(at, before, run.frame, feeder);
            let mut stats = self.stats.borrow_mut();
            let runs = if at == Place::TargetRep {
                &mut stats.runs_from_fabric
            } else {
                &mut stats.runs_to_fabric
            };
            *runs += u64::from(copying.next - before);
        }
        drop(out);
        copying.delivered = copying.delivered || self.deliver(run, feeder, sink, reassembly, begun)?;
        let done = copying.delivered && copying.next == copies;
        if !done {
            begun.copying.insert(feeder, copying);
        }
        Ok(done)
    }

    pub(super) fn deliver(
        &self,
        run: &Run<'_>,
        feeder: Feeder,
        sink: &mut Sink<'h>,
        reassembly: &mut Reassembly,
        begun: &mut Begun,
    ) -> std::result::Result<bool, BadRun> {
        let records = usize::from(run.header.count).max(1);
        let is_plain = !run.is_fragment();
        let admitted = match sink {
            _ if self.options.shim.deliverq_discard => true,
            Sink::Handler(_) => !self.waits_for_spill(),
            Sink::Queue(queue) => {
                let bytes = match run.is_fragment() {
                    true => reassembly.record_bytes(feeder),
                    false => run.frame.len(),
                };
                queue.admit(records, bytes)
            }
            Sink::Thread(handover) if is_plain => {
                let taken = handover.offer(&Delivery::Run(*run), records, run.frame.len())?;
                self.stats.borrow_mut().runs_delivered += u64::from(taken);
                self.note_blocked(!taken, feeder, begun);
                return Ok(taken);
            }
            Sink::Thread(handover) => handover.admit(records, reassembly.record_bytes(feeder)),
            Sink::Closed => true,
        };
        self.note_blocked(!admitted, feeder, begun);
        if !admitted {
            return Ok(false);
        }
        if is_plain {
            let taken = &mut begun.taken;
            let before = if taken.is_empty() {
                None
            } else {
                taken.remove(&feeder)
            };
            let all = usize::from(run.header.count);
            let done = self.hand_over(Delivery::Run(*run), before.unwrap_or(0), all, sink)?;
            if done < all {
                taken.insert(feeder, done);
                return Ok(false);
            }
            return Ok(true);
        }
        match reassembly.add(feeder, run)? {
            Assembled::Growing => Ok(true),
            Assembled::Later => Ok(false),
            Assembled::Whole(record) => {
                let (source, kind) = (record.source, record.kind);
                self.hand_over(
                    Delivery::Record {
                        source,
                        kind,
                        bytes: &record.bytes,
                    },
                    0,
                    1,
                    sink,
                )?;
                reassembly.give_back(record.bytes);
                Ok(true)
            }
        }
    }

    /// Hands records over from number `done` on; returns how many of `all` are done then.
    pub(super) fn hand_over(
        &self,
        delivery: Delivery<'_>,
        done: usize,
        all: usize,
        sink: &mut Sink<'h>,
    ) -> std::result::Result<usize, BadRun> {
        let now = match sink {
            _ if self.options.shim.deliverq_discard => {
                self.stats.borrow_mut().discarded += (all - done) as u64;
                all
            }
            Sink::Handler(handler) => {
                take_overfilled(); // by the application, outside of handlers
                let now = handler(delivery, done, &mut Outbox::new(&self.out))?;
                if let Some(gauge) = take_overfilled() {
                    *self.waits_for.borrow_mut() = Some(gauge);
                }
                now
            }
            Sink::Queue(queue) => {
                queue.push(&delivery)?;
                all
            }
            Sink::Thread(handover) => {
                handover.push(&delivery)?;
                self.stats.borrow_mut().runs_delivered += 1;
                return Ok(all);
            }
            Sink::Closed => all,
        };
        self.taken.set(self.taken.get() + (now - done) as u64);
        if now == all {
            self.stats.borrow_mut().runs_delivered += 1;
        }
        Ok(now)
    }

    /// Counts deliveries that have to wait, each once however often it is tried.
    #[inline]
    fn note_blocked(&self, blocked: bool, feeder: Feeder, begun: &mut Begun) {
        if blocked {
            self.stats.borrow_mut().blocked_deliveries += u64::from(begun.blocked.insert(feeder));
        } else if !begun.blocked.is_empty() {
            begun.blocked.remove(&feeder);
        }
    }
}
