//! Long records in memory that a node shares: on to their next hop, or delivered.

use trihop_transport::protocol::wire::{BadRun, RUN_HEADER_BYTES, Run, RunHeader, SharedRecord};
use trihop_transport::ring::Block;
use trihop_transport::topology::Rank;

use super::Forwarding;
use crate::deliver::{Delivery, LongBytes, Whole};
use crate::engine::inbound::Pulled;
use crate::engine::long::{Cutting, Record};
use crate::engine::queues::Passing;
use crate::engine::sink::{Handlers, Sink};
use crate::queue::Input;
use crate::route::{EndpointId, Next, Stage};

/// A record that goes on in pieces, and how much of it has.
#[derive(Debug)]
pub(super) struct InPieces {
    block: Block,
    /// The application's 32 bits.
    kind: u32,
    moved: usize,
}

const NOWHERE: BadRun = BadRun::Shared("nothing lies where it is said to");

impl<H: Handlers> Forwarding<'_, H> {
    /// Passes a record on that lies in memory of this node's; false while there is no room for
    /// that.
    #[cold]
    pub(super) fn pass_shared(
        &mut self,
        at: Stage,
        run: &Run<'_>,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        if self.begun.in_pieces.contains_key(&input) {
            return self.go_on_in_pieces(at, run, input);
        }
        let record = self.record_of(at, run)?;
        let (bytes, out) = (record.place.bytes(), self.out());
        if out.item_bytes() == 0 && bytes > out.most_bytes() {
            return Err(BadRun::Shared("it is too long"));
        }
        if bytes <= self.frame_bytes || self.out().item_bytes() > 0 {
            return Err(BadRun::Shared("it is none that is passed on"));
        }
        let edge = self.edge(at, run.header.target)?;
        let queues = &mut self.out().queues;
        match queues.pass_on(edge, run.frame, &record, input) {
            Passing::Passed => Ok(true),
            Passing::Later => Ok(false),
            Passing::Nothing => Err(NOWHERE),
            Passing::InPieces => {
                let block = queues.claim(&record).ok_or(NOWHERE)?;
                self.begin_in_pieces(block, record.kind, input);
                self.go_on_in_pieces(at, run, input)
            }
        }
    }

    /// Moves a record on that has come over a link as a whole; false while there is no room for
    /// that.
    #[cold]
    pub fn forward_record(
        &mut self,
        at: Stage,
        record: &mut Pulled,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        if self.rounds.holds(input) {
            return Ok(false); // it belongs to the next round
        }
        if self.begun.is_closed(input) {
            return Ok(true); // it is dropped
        }
        let (frame, kind) = (record.frame(), record.kind());
        let (run, _) = Run::split(&frame, self.topology.size())?;
        let RunHeader { source, target, .. } = run.header;
        if self.topology.endpoint() == Rank(target).into() {
            self.heard[run.colour()] += 1;
            self.out().queues.hide_census();
            if !self.admits(1, record.bytes(), input) {
                return Ok(false);
            }
            if self.out().item_bytes() > 0 {
                return Err(BadRun::Shared("it is no item"));
            }
            let block = record.block().take().ok_or(NOWHERE)?;
            return self.hand_block(block, Whole::Record { source, kind });
        }
        if self.begun.in_pieces.contains_key(&input) {
            return self.go_on_in_pieces(at, &run, input);
        }
        let edge = self.edge(at, target)?;
        let mut head = [0; RUN_HEADER_BYTES];
        head.copy_from_slice(&frame[..RUN_HEADER_BYTES]);
        let queues = &mut self.out().queues;
        match queues.pass_block(edge, head, kind, record.block(), input) {
            Passing::Passed => Ok(true),
            Passing::Later => Ok(false),
            Passing::Nothing => Err(NOWHERE),
            Passing::InPieces => {
                let block = record.block().take().ok_or(NOWHERE)?;
                self.begin_in_pieces(block, kind, input);
                self.go_on_in_pieces(at, &run, input)
            }
        }
    }

    /// The edge that leads on towards a rank.
    fn edge(&mut self, at: Stage, target: u32) -> std::result::Result<(EndpointId, Stage), BadRun> {
        match self.out().queues.route.next(at, Rank(target)) {
            Some(Next::To(end, stage)) => Ok((end, stage)),
            Some(Next::Deliver) | None => Err(BadRun::Route(target)),
        }
    }

    /// Where a run says that a record lies: where it comes from its source itself, in memory of
    /// that one; else in memory of whomever it has come to this node by.
    fn record_of(&self, at: Stage, run: &Run<'_>) -> std::result::Result<SharedRecord, BadRun> {
        let record = SharedRecord::read(run.payload).ok_or(NOWHERE)?;
        let source = run.header.source;
        match at != Stage::FIRST || (record.end, source) == (self.from, self.from) {
            true => Ok(record),
            false => Err(BadRun::Shared("it is another rank's")),
        }
    }

    fn begin_in_pieces(&mut self, block: Block, kind: u32, input: Input) {
        let record = InPieces {
            block,
            kind,
            moved: 0,
        };
        self.begun.in_pieces.insert(input, record);
    }

    /// Goes on with a record for which an edge is ready in pieces only; true when none is left.
    fn go_on_in_pieces(
        &mut self,
        at: Stage,
        run: &Run<'_>,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        let Some(mut record) = self.begun.in_pieces.remove(&input) else {
            return Err(NOWHERE);
        };
        let RunHeader { source, target, .. } = run.header;
        let total = record.block.len();
        let cutting = Cutting {
            at,
            target: Rank(target),
            source,
            colour: run.colour(),
            kind: record.kind,
            total,
            frame_bytes: self.frame_bytes,
            input,
        };
        let left = Record::of(&record.block).last(total - record.moved);
        let moved = cutting.go_on(&mut self.out().queues, left);
        if record.moved == 0 && moved > 0 {
            self.begun.records.insert(input, (target, source));
        }
        record.moved += moved;
        let is_done = record.moved == total;
        if is_done {
            self.begun.records.remove(&input);
        } else {
            self.begun.in_pieces.insert(input, record);
        }
        Ok(is_done)
    }

    /// Delivers a record that lies in memory which the node shares.
    #[cold]
    pub(super) fn deliver_shared(
        &mut self,
        at: Stage,
        run: &Run<'_>,
        input: Input,
    ) -> std::result::Result<bool, BadRun> {
        let record = self.record_of(at, run)?;
        let RunHeader { source, target, .. } = run.header;
        if !self.admits(1, record.place.bytes(), input) {
            return Ok(false);
        }
        let out = &mut self.outs[self.own];
        let (is_item, most, size) = (out.item_bytes() > 0, out.most_bytes(), out.size());
        let block = out.queues.claim(&record).ok_or(NOWHERE)?;
        let whole = if is_item {
            let item = RunHeader {
                source,
                target,
                count: 1,
                flags: 0,
            };
            let (run, rest) = Run::split(&block, size)?;
            if run.header != item || !rest.is_empty() {
                return Err(BadRun::Shared("it is no item of that rank's"));
            }
            Whole::Item(item)
        } else {
            if block.len() > most {
                return Err(BadRun::Shared("it is too long"));
            }
            let kind = record.kind;
            Whole::Record { source, kind }
        };
        self.hand_block(block, whole)
    }

    /// Hands a record over that lies in a block.
    fn hand_block(&mut self, block: Block, whole: Whole) -> std::result::Result<bool, BadRun> {
        if let Sink::Thread(handover) = &mut *self.sink
            && !self.discards
        {
            handover.keep(block, whole);
            self.stats.runs_delivered += 1;
            return Ok(true);
        }
        let mut block = Some(block);
        let delivery = match whole {
            Whole::Record { source, kind } => Delivery::Record {
                source,
                kind,
                bytes: LongBytes::Shared(&mut block),
            },
            Whole::Item(_) => whole.delivery(block.as_deref().unwrap_or_default()),
        };
        self.hand_over(delivery, 0, 1)?;
        Ok(true)
    }
}
