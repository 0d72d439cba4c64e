//! What a stream does with a run that is here: on to its next hop, into its copies, or delivered.

mod shared;

use std::collections::{HashMap, HashSet};

use trihop_transport::protocol::wire::{BadRun, RUN_HEADER_BYTES, Run, RunHeader, run_flags};
use trihop_transport::ring::census::COLOURS;
use trihop_transport::topology::{Rank, Topology};

use super::broadcasts::Copying;
use super::outbound::Outbound;
use super::outbox::Outbox;
use super::rounds::Rounds;
use super::sink::{Handlers, Sink};
use crate::deliver::{Assembled, Delivery, LongBytes, Reassembly, aligned};
use crate::queue::{Input, long_buffers};
use crate::route::{EndpointId, Stage};
use crate::stats::Stats;
use shared::InPieces;

/// Front runs that have moved on in part.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// Records that the handler has taken, where it paused inside the run.
    taken: HashMap<Input, usize>,
    /// Those whose front run could not be delivered when it was last tried.
    blocked: HashSet<Input>,
    /// Copies of broadcasts.
    copying: HashMap<Input, Copying>,
    /// Target and source of the long records that are passed on and have not ended.
    records: HashMap<Input, (u32, u32)>,
    /// Those of them that lay in memory which the node shares, and go on in pieces.
    in_pieces: HashMap<Input, InPieces>,
    /// Those of who is lost, from which nothing is taken any more.
    closed: Vec<Input>,
}

impl Begun {
    /// The first or last fragment of a long record goes on.
    fn passes_on(&mut self, input: Input, run: &Run<'_>) {
        let RunHeader { target, source, .. } = run.header;
        match run.is_last() {
            true => self.records.remove(&input),
            false => self.records.insert(input, (target, source)),
        };
    }

    /// Nothing is taken from an input any more.
    pub fn close(&mut self, input: Input) {
        self.closed.push(input);
        self.records.remove(&input);
        self.in_pieces.remove(&input);
        self.taken.remove(&input);
        self.copying.remove(&input);
        self.blocked.remove(&input);
    }

    fn is_closed(&self, input: Input) -> bool {
        !self.closed.is_empty() && self.closed.contains(&input)
    }

    /// What is to take the place of the rest of a long record that is passed on, where nothing more
    /// of it comes.
    pub fn cut(&self, input: Input) -> Option<RunHeader> {
        let (target, source) = *self.records.get(&input)?;
        Some(RunHeader {
            target,
            source,
            count: 0,
            flags: run_flags::CUT,
        })
    }
}

/// A stream while its runs move on: everything of it but where they lie.
pub(super) struct Forwarding<'a, H> {
    /// What all streams send, this one's being number `own`.
    pub outs: &'a mut [Outbound],
    pub own: usize,
    pub handlers: &'a mut H,
    pub reassembly: &'a mut Reassembly,
    pub begun: &'a mut Begun,
    pub rounds: &'a mut Rounds,
    /// The endpoint at the other end of the edge whose runs move.
    pub from: u32,
    pub sink: &'a mut Sink,
    pub stats: &'a mut Stats,
    pub taken: &'a mut u64,
    /// See [`StreamState::heard`](super::StreamState::heard).
    pub heard: &'a mut [u64; COLOURS],
    pub waits_for: &'a mut Option<usize>,
    pub topology: &'a Topology,
    /// Longest frame.
    pub frame_bytes: usize,
    /// Of the last fragment that came over a link and moved on: whether its record goes on.
    pub record: Option<bool>,
    /// See [`crate::ShimOptions::deliverq_discard`].
    pub discards: bool,
}

impl<H: Handlers> Forwarding<'_, H> {
    /// What this stream sends.
    #[inline]
    pub fn out(&mut self) -> &mut Outbound {
        &mut self.outs[self.own]
    }

    /// Moves the first of `runs`, which came over a link; its length, or `None` when there is no
    /// room for it now.
    pub fn forward_arrived(
        &mut self,
        at: Stage,
        runs: &[u8],
        input: Input,
    ) -> std::result::Result<Option<usize>, BadRun> {
        let (run, _) = Run::split(runs, self.topology.size())?;
        if run.is_shared() {
            return Err(BadRun::Shared("it came over a link"));
        }
        let moved = self.forward(at, &run, input)?;
        if moved && run.is_fragment() {
            self.record = Some(!run.is_last());
        }
        Ok(moved.then_some(run.frame.len()))
    }

    /// Moves one run a hop further, or delivers it; false when there is no room for it now.
    pub fn forward(
        &mut self,
        at: Stage,
        run: &Run<'_>,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        // No source makes a longer one, and no batch has room for it.
        if run.frame.len() > self.frame_bytes {
            return Err(BadRun::Length {
                length: run.frame.len() as u32,
                present: self.frame_bytes,
            });
        }
        if self.rounds.holds(input) {
            return Ok(false); // it belongs to the next round
        }
        if self.begun.is_closed(input) {
            return Ok(true); // it is dropped
        }
        if run.is_special() {
            return match run.is_mark() {
                true => self.hear(at, run, input),
                false => self.spread(at, run, input),
            };
        }
        let target = Rank(run.header.target);
        if self.topology.endpoint() == target.into() {
            return self.deliver(at, run, input);
        }
        if run.is_shared() {
            return self.pass_shared(at, run, input);
        }
        let pushed = self
            .out()
            .queues
            .push(at, target, run.frame, run.header.flags, input);
        let pushed = pushed.ok_or(BadRun::Route(target.0))?;
        if pushed && run.is_fragment() && run.header.flags != run_flags::MORE {
            self.begun.passes_on(input, run);
        }
        Ok(pushed)
    }

    /// Takes a mark: what follows over this edge waits for the end of the round.
    #[cold]
    fn hear(
        &mut self,
        at: Stage,
        run: &Run<'_>,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        let RunHeader { source, target, .. } = run.header;
        let (here, from) = (self.topology.endpoint().0, self.from);
        let is_edge = match from == here {
            true => at == Stage::FIRST,
            false => self.out().queues.route.has_edge(at, EndpointId(from)),
        };
        if (source, target) != (from, here) || !is_edge {
            let source_rank = source;
            return Err(BadRun::Mark {
                source_rank,
                target,
            });
        }
        self.rounds.hear(at, input);
        Ok(true)
    }

    /// Copies a broadcast to its next hops and delivers it; false while there is no room for all of
    /// that. What is done is not done again.
    #[cold]
    fn spread(
        &mut self,
        at: Stage,
        run: &Run<'_>,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        let source = Rank(run.header.source);
        let mut copying = self.begun.copying.remove(&input).unwrap_or_default();
        let queues = &mut self.outs[self.own].queues;
        let route = &queues.route;
        if !route.passes(at, source) {
            return Err(BadRun::Broadcast {
                source_rank: source.0,
                why: "it arrived where no copy of it belongs",
            });
        }
        // One that comes back to its source, over its own lane, has its copies.
        let copies = match self.topology.endpoint() == source.into() {
            true => 0,
            false => route.copies(at, source),
        };
        if copying.next < copies {
            copying.next = queues.push_copies(at, source, copying.next, run.frame, input);
        }
        // To a relay it comes for its copies alone.
        copying.delivered =
            copying.delivered || self.topology.is_relay() || self.deliver(at, run, input)?;
        let done = copying.delivered && copying.next == copies;
        if !done {
            self.begun.copying.insert(input, copying);
        }
        Ok(done)
    }

    fn deliver(
        &mut self,
        at: Stage,
        run: &Run<'_>,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        self.heard[run.colour()] += 1;
        self.out().queues.hide_census();
        if run.is_shared() {
            return self.deliver_shared(at, run, input);
        }
        let records = usize::from(run.header.count).max(1);
        let is_plain = !run.is_fragment();
        if let Sink::Thread(handover) = &mut *self.sink
            && is_plain
            && !self.discards
        {
            let taken = handover.offer(&Delivery::Run(*run), records, run.frame.len())?;
            self.stats.runs_delivered += u64::from(taken);
            self.note_blocked(!taken, input);
            return Ok(taken);
        }
        let bytes = match is_plain {
            true => run.frame.len(),
            false => self.reassembly.record_bytes(input),
        };
        if !self.admits(records, bytes, input) {
            return Ok(false);
        }
        if is_plain {
            let taken = &mut self.begun.taken;
            let before = if taken.is_empty() {
                None
            } else {
                taken.remove(&input)
            };
            let all = usize::from(run.header.count);
            let done = self.hand_over(Delivery::Run(*run), before.unwrap_or(0), all)?;
            if done < all {
                self.begun.taken.insert(input, done);
                return Ok(false);
            }
            return Ok(true);
        }
        let head = match self.outs[self.own].item_bytes() {
            0 => 0,
            _ => RUN_HEADER_BYTES,
        };
        match self.reassembly.add(input, run, head)? {
            Assembled::Growing | Assembled::Cut => Ok(true),
            Assembled::Later => Ok(false),
            // A long item is a run of its own, as all others.
            Assembled::Whole(item) if head > 0 => {
                let frame = item.into_run(run.header.target);
                let frame = frame.ok_or(BadRun::Fragment("an item longer than a run can be"))?;
                let mut copy = Vec::new();
                let lies = aligned(&frame, &mut copy)?;
                let (run, _) = Run::split(lies, self.outs[self.own].size())?;
                self.hand_over(Delivery::Run(run), 0, 1)?;
                long_buffers::keep(frame);
                Ok(true)
            }
            Assembled::Whole(mut record) => {
                let (source, kind) = (record.source, record.kind);
                let delivery = Delivery::Record {
                    source,
                    kind,
                    bytes: LongBytes::Given(&mut record.bytes),
                };
                self.hand_over(delivery, 0, 1)?;
                long_buffers::keep(record.bytes);
                Ok(true)
            }
        }
    }

    /// Whether records of together so many bytes may be handed over now.
    fn admits(&mut self, records: usize, bytes: usize, input: Input) -> bool {
        let admitted = match &mut *self.sink {
            _ if self.discards => true,
            Sink::Handler => {
                self.handlers.is_live(self.own) && !waits_for_spill(self.waits_for, self.outs)
            }
            Sink::Queue(queue) => queue.admit(records, bytes),
            Sink::Thread(handover) => handover.admit(records, bytes),
            Sink::Collectives(_) | Sink::Closed => true,
        };
        self.note_blocked(!admitted, input);
        admitted
    }

    /// Hands records over from number `done` on; returns how many of `all` are done then.
    fn hand_over(
        &mut self,
        delivery: Delivery<'_>,
        done: usize,
        all: usize,
    ) -> std::result::Result<usize, BadRun> {
        let now = match &mut *self.sink {
            _ if self.discards => {
                self.stats.discarded += (all - done) as u64;
                all
            }
            Sink::Handler => {
                let (outs, waits_for) = (&mut *self.outs, &mut *self.waits_for);
                call_handler(self.handlers, outs, self.own, waits_for, delivery, done)?
            }
            Sink::Collectives(heard) => {
                heard.hear(&delivery)?;
                all
            }
            Sink::Queue(queue) => {
                queue.push(&delivery)?;
                all
            }
            Sink::Thread(handover) => {
                handover.push(&delivery)?;
                self.stats.runs_delivered += 1;
                return Ok(all);
            }
            Sink::Closed => all,
        };
        *self.taken += (now - done) as u64;
        if now == all {
            self.stats.runs_delivered += 1;
        }
        Ok(now)
    }

    /// Counts deliveries that have to wait, each once however often it is tried.
    #[inline]
    fn note_blocked(&mut self, blocked: bool, input: Input) {
        if blocked {
            self.stats.blocked_deliveries += u64::from(self.begun.blocked.insert(input));
        } else if !self.begun.blocked.is_empty() {
            self.begun.blocked.remove(&input);
        }
    }
}

/// Hands records to the handler of stream `own` from number `done` on; returns how many are done
/// then.
pub(super) fn call_handler(
    handlers: &mut impl Handlers,
    outs: &mut [Outbound],
    own: usize,
    waits_for: &mut Option<usize>,
    delivery: Delivery<'_>,
    done: usize,
) -> std::result::Result<usize, BadRun> {
    let mut overfilled = None;
    let mut outbox = Outbox::new(outs, own, &mut overfilled);
    let now = handlers.call(own, delivery, done, &mut outbox)?;
    if overfilled.is_some() {
        *waits_for = overfilled;
    }
    Ok(now)
}

/// Whether the next delivery has to wait for a spill that the handler has overfilled.
pub(super) fn waits_for_spill(waits_for: &mut Option<usize>, outs: &[Outbound]) -> bool {
    let Some(stream) = *waits_for else {
        return false;
    };
    let waits = outs[stream].keeps_deliveries_waiting();
    if !waits {
        *waits_for = None;
    }
    waits
}
