//! Long records in memory that a node shares: to ranks of the node by where they lie, and over
//! links out of it.

use trihop_transport::memory::lent::Lender;
use trihop_transport::protocol::wire::{
    RUN_HEADER_BYTES, RunHeader, SHARED_RECORD_BYTES, SharedRecord, paint, run_flags,
};
use trihop_transport::ring::Block;
use trihop_transport::topology::Rank;

use super::Queues;
use crate::queue::Input;
use crate::queue::edge::Edge;
use crate::queue::lanes::Lending;
use crate::queue::offer::Offer;
use crate::queue::shared::{LEAST_BYTES, place_of};
use crate::route::{EndpointId, Next, Stage};

/// A run that says where a record lies.
pub(crate) const SHARED_RUN_BYTES: usize = RUN_HEADER_BYTES + SHARED_RECORD_BYTES;

/// What became of a record that is to pass an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// It has.
    Passed,
    /// There is no room now.
    Later,
    /// It can only pass in pieces.
    InPieces,
    /// No such record is there.
    Nothing,
}

impl Queues {
    /// The place of this endpoint on its node.
    pub fn place(&self) -> u32 {
        self.topology.place()
    }

    /// Whether a rank is one of this node's.
    pub fn is_local(&self, rank: Rank) -> bool {
        self.topology.is_local(rank)
    }

    /// Sends a record of so many bytes in a block that `fill` writes; false where the way to its
    /// target has no room. `None` where it is to go through queues itself.
    pub fn push_shared(
        &mut self,
        target: Rank,
        kind: u32,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        let is_local = self.topology.is_local(target);
        let lies_there = match is_local {
            true => bytes >= LEAST_BYTES,
            false => self.offers.contains(&bytes),
        };
        if !lies_there {
            return None;
        }
        let Next::To(end, stage) = self.route.next(Stage::SOURCE, target)? else {
            return None;
        };
        // What goes to a rank of the node through others may pass links on its way.
        if is_local && end != target.into() {
            return None;
        }
        let here = self.topology.endpoint();
        let header = RunHeader {
            target: target.0,
            source: here.0,
            count: 1,
            flags: run_flags::SHARED,
        };
        if !self.route.is_lane(end, stage) {
            if is_local {
                return None;
            }
            return self.push_offered((end, stage), header, kind, bytes, fill);
        }
        if !is_local
            && let Some(Edge::Lane(number)) = self.numbers.get(end, stage)
            && !self.lanes[number as usize].may_add_for_relay()
        {
            self.is_stirred = true;
            return Some(false);
        }
        let mut block = Some(self.lanes.take_block(bytes)?);
        let write = |space: &mut [u8]| {
            let mut block = block.take().expect("a frame is written once");
            fill(&mut block);
            header.write(SHARED_RUN_BYTES, space);
            say(here, kind, block, space);
        };
        let (flags, input) = (run_flags::SHARED, Input::APPLICATION);
        let pushed = self.push_to(end, stage, SHARED_RUN_BYTES, flags, input, write);
        if pushed && let Some(Edge::Lane(number)) = self.numbers.get(end, stage) {
            let lane = &mut self.lanes[number as usize];
            match is_local {
                true => lane.added_beside(bytes),
                false => lane.added_for_relay(bytes),
            }
        }
        Some(pushed)
    }

    /// As [`Queues::push_shared`], over a link of this endpoint's own.
    #[cold]
    fn push_offered(
        &mut self,
        edge: (EndpointId, Stage),
        header: RunHeader,
        kind: u32,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        let place = self.place();
        match self.may_offer(edge, place, Input::APPLICATION) {
            Passing::Passed => {}
            Passing::Later => return Some(false),
            Passing::InPieces | Passing::Nothing => return None,
        }
        let mut block = self.lanes.take_block(bytes)?;
        fill(&mut block);
        let mut run = [0; RUN_HEADER_BYTES];
        header.write(SHARED_RUN_BYTES, &mut run);
        // Its colour is that of the count which hiding takes note of.
        self.hide_census();
        let colour = self.census.as_ref().map_or(0, |census| census.colour());
        paint(&mut run, colour);
        let passed = self.offer(edge, place, run, kind, block, Input::APPLICATION);
        debug_assert_eq!(passed, Passing::Passed);
        Some(true)
    }

    /// A run for a queue stands for so many bytes, which lie elsewhere.
    fn note_beside(&mut self, (end, stage): (EndpointId, Stage), bytes: usize) {
        if let Some(Edge::Lane(number)) = self.numbers.get(end, stage) {
            self.lanes[number as usize].added_beside(bytes);
        }
    }

    /// Claims a record that was passed on to this endpoint; `None` for what cannot be.
    pub fn claim(&mut self, record: &SharedRecord) -> Option<Block> {
        let place = place_of(&self.topology, record)?;
        self.lanes.claim(place, record.place)
    }

    /// Passes a record on that lies in memory of this node's: `frame` says where, and has been
    /// checked.
    pub fn pass_on(
        &mut self,
        edge: (EndpointId, Stage),
        frame: &[u8],
        record: &SharedRecord,
        input: Input,
    ) -> Passing {
        let (end, stage) = edge;
        if self.route.is_lane(end, stage) {
            if self.lost.contains(&end) {
                // Nobody else gives it back.
                return match self.claim(record) {
                    Some(_) => Passing::Passed,
                    None => Passing::Nothing,
                };
            }
            let write = |space: &mut [u8]| space.copy_from_slice(frame);
            let pushed = self.push_to(end, stage, frame.len(), run_flags::SHARED, input, write);
            if pushed {
                self.note_beside(edge, record.place.bytes());
            }
            return match pushed {
                true => Passing::Passed,
                false => Passing::Later,
            };
        }
        let Some(place) = place_of(&self.topology, record) else {
            return Passing::Nothing;
        };
        match self.may_offer(edge, place, input) {
            Passing::Passed => {}
            other => return other,
        }
        let Some(block) = self.lanes.claim(place, record.place) else {
            return Passing::Nothing;
        };
        self.offer(edge, place, head_of(frame), record.kind, block, input)
    }

    /// Passes a record on that has come over a link, into memory of this endpoint's, if there is
    /// room, and takes it out of `block` then.
    pub fn pass_block(
        &mut self,
        edge: (EndpointId, Stage),
        head: [u8; RUN_HEADER_BYTES],
        kind: u32,
        block: &mut Option<Block>,
        input: Input,
    ) -> Passing {
        let (end, stage) = edge;
        let here = self.topology.endpoint();
        if self.route.is_lane(end, stage) {
            let bytes = block.as_ref().map_or(0, |block| block.len());
            let write = |space: &mut [u8]| {
                space[..RUN_HEADER_BYTES].copy_from_slice(&head);
                say(here, kind, block.take().expect("it is here"), space);
            };
            let flags = run_flags::SHARED;
            if !self.push_to(end, stage, SHARED_RUN_BYTES, flags, input, write) {
                return Passing::Later;
            }
            self.note_beside(edge, bytes);
            return Passing::Passed;
        }
        let place = self.place();
        match self.may_offer(edge, place, input) {
            Passing::Passed => {}
            other => return other,
        }
        let Some(block) = block.take() else {
            return Passing::Nothing;
        };
        self.offer(edge, place, head, kind, block, input)
    }

    /// Whether a record behind the inbox of an endpoint of the node may be offered over a link now.
    fn may_offer(
        &mut self,
        (end, stage): (EndpointId, Stage),
        place: u32,
        input: Input,
    ) -> Passing {
        let edge = self.numbers.get(end, stage);
        let Some(Edge::Link(number)) = edge.or_else(|| self.open(end, stage)) else {
            return Passing::Later; // it is away
        };
        let number = number as usize;
        if self.remotes[number].is_lost {
            return Passing::Passed; // it is dropped
        }
        if !self.remotes.takes_offers() {
            return Passing::InPieces;
        }
        match self.lanes.lending(place) {
            Lending::Refused => return Passing::InPieces,
            // The first ones do not wait for that.
            Lending::Unasked | Lending::Wanted => return Passing::InPieces,
            Lending::Registered(_) => {}
        }
        self.remotes.wake(number);
        let admits = input != Input::APPLICATION || self.remotes.admits_offer(number);
        match admits && self.remotes[number].may_offer(input) {
            true => Passing::Passed,
            false => {
                self.remotes[number].counters.refused(self.now_ns);
                Passing::Later
            }
        }
    }

    /// Offers a record over a link that [may](Queues::may_offer) take it.
    fn offer(
        &mut self,
        (end, stage): (EndpointId, Stage),
        place: u32,
        run: [u8; RUN_HEADER_BYTES],
        kind: u32,
        block: Block,
        input: Input,
    ) -> Passing {
        let Some(Edge::Link(number)) = self.numbers.get(end, stage) else {
            return Passing::Nothing;
        };
        let (number, bytes) = (number as usize, block.len());
        self.is_stirred = true;
        let is_lost = self.remotes[number].is_lost;
        if !is_lost {
            let Lending::Registered(registered) = self.lanes.lending(place) else {
                return Passing::Nothing;
            };
            let Ok(lender) = Lender::new(block, registered) else {
                return Passing::Nothing;
            };
            self.remotes[number].offer(Offer::new(lender, bytes, run, kind));
            if input == Input::APPLICATION {
                self.remotes.added_own(number);
            }
        }
        let counters = &mut self.remotes[number].counters;
        counters.added(input.is_own(), bytes, self.now_ns);
        if is_lost {
            counters.dropped();
        }
        Passing::Passed
    }
}

/// Writes where a record lies, and lets go of it, behind the header of its run.
fn say(here: EndpointId, kind: u32, block: Block, run: &mut [u8]) {
    let said = SharedRecord {
        end: here.0,
        kind,
        place: block.pass().place(),
    };
    said.write(&mut run[RUN_HEADER_BYTES..]);
}

/// The header of a run.
fn head_of(frame: &[u8]) -> [u8; RUN_HEADER_BYTES] {
    let mut head = [0; RUN_HEADER_BYTES];
    head.copy_from_slice(&frame[..RUN_HEADER_BYTES]);
    head
}
