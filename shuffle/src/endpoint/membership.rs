//! Members come and go: what that changes in an engine and its streams.

use std::sync::Arc;

use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::Bell;
use trihop_transport::ring::census::Counts;

use super::{Engine, SYSTEM_STREAM, StreamId};
use crate::engine::StreamState;
use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
use crate::member::{Loss, Members};
use crate::queue::Input;
use crate::queue::census::Part;
use crate::route::EndpointId;
use crate::terminate::collective::Collectives;

/// What an endpoint has done while it was a member: fences and collectives, which count what all
/// have done, go on from there when it joins again.
pub(crate) struct Legacy {
    /// Its counts, and its part in censuses, by stream.
    counts: Vec<(Counts, Part)>,
    /// Of closed streams.
    retired: Counts,
    collectives: Collectives,
}

impl Engine {
    /// A member of this node has joined, and `bell` wakes it. What is sent to it waits until its
    /// inbox of the stream has come too: [`Engine::attach_inbox`].
    ///
    /// # Panics
    /// When it is on another node.
    pub fn attach_here(&mut self, end: EndpointId, epoch: Epoch, bell: Arc<Bell>) {
        let place = self.place_of(end);
        self.change_members(|members| members.set_here(place, Some((epoch, bell))));
    }

    /// The inbox of a member of this node has come for a stream.
    ///
    /// # Errors
    /// The stream was shut down.
    ///
    /// # Panics
    /// When the member is on another node.
    pub fn attach_inbox(
        &mut self,
        id: StreamId,
        end: EndpointId,
        segment: Arc<Segment>,
    ) -> Result<()> {
        let place = self.place_of(end);
        self.out(id)?.queues.lanes.attach(place, segment);
        Ok(())
    }

    /// A member at the other end of a link has joined: the provider reaches it by this address.
    ///
    /// # Errors
    /// The address is not one of the link's kind.
    ///
    /// # Panics
    /// When this endpoint has no link.
    pub fn attach_end(&mut self, end: EndpointId, epoch: Epoch, address: &[u8]) -> Result<()> {
        let link = self.link.as_mut().expect("an end of a link has a link");
        let peer = link.connect(address)?;
        self.change_members(|members| members.set_end(end, Some((epoch, peer))));
        Ok(())
    }

    /// Whether nothing is under way to a member or from it. Streams that were closed have nothing.
    pub fn may_detach(&mut self, end: EndpointId) -> bool {
        let is_here = self.topology.is_here(end);
        let place = is_here.then(|| self.place_of(end));
        let (streams, outs) = (&mut self.streams, &mut self.outs);
        self.open.iter().all(|&at| {
            let (state, out) = (&mut streams[at], &mut outs[at]);
            place.is_none_or(|place| state.has_taken_all_from(out, place))
                && out.queues.lanes.are_taken_by(end)
                && state.is_link_quiet(out, end)
        })
    }

    /// A member has left. What is sent to it from now on waits until it joins again, in another
    /// epoch. What it sends all the same is nobody's.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing done, while something of it has not moved on: what was
    /// sent to it, or what it has sent. Try again after a round.
    pub fn detach(&mut self, end: EndpointId) -> Result<()> {
        if !self.may_detach(end) {
            return Err(Error::WouldBlock);
        }
        let is_here = self.topology.is_here(end);
        let place = is_here.then(|| self.place_of(end));
        let peer = self.members.end(end).map(|(_, peer)| peer);
        if let (Some(link), Some(peer)) = (&mut self.link, peer)
            && !link.disconnect(peer)?
        {
            return Err(Error::WouldBlock);
        }
        for (state, out) in self.streams.iter_mut().zip(&mut self.outs) {
            state.detach(out, end, place);
        }
        self.change_members(|members| {
            if let Some(place) = place {
                members.set_here(place, None);
            }
            if peer.is_some() {
                members.set_end(end, None);
            }
        });
        Ok(())
    }

    /// Members are lost, and the job goes on: `lost` says all that are out of reach now, and `ends`
    /// which endpoints that this one exchanges anything with have become so. What is sent to these
    /// is dropped; what had come from them moves on, over links for so long as until `from_ns`.
    pub fn lose(&mut self, lost: &Arc<[Loss]>, ends: &[EndpointId], from_ns: u64) {
        self.lost = Arc::clone(lost);
        self.lost_ends.extend_from_slice(ends);
        // A relay takes part in no round any more.
        self.joined.clear();
        for stream in 0..self.streams.len() {
            self.lose_in(stream, ends, from_ns);
        }
    }

    /// A stream is opened while members are lost.
    pub(super) fn lose_again(&mut self, stream: usize) {
        if !self.lost.is_empty() {
            let ends = self.lost_ends.clone();
            self.lose_in(stream, &ends, 0);
        }
    }

    fn lose_in(&mut self, stream: usize, ends: &[EndpointId], from_ns: u64) {
        let (state, out) = (&mut self.streams[stream], &mut self.outs[stream]);
        // What collectives have to say to who is lost is dropped on its way.
        if state.id != SYSTEM_STREAM {
            out.lose(&self.lost);
            // Whatever has hurried waits for ranks that are gone.
            state.urgent = 0;
        }
        state.rounds.give_up();
        let lanes = state.inbound.inbox.layout().lanes();
        for &end in ends {
            let links = &out.queues.remotes;
            let links = (0..links.len()).filter(|&number| links[number].end == end);
            for number in links {
                state
                    .inbound
                    .lost
                    .push((Input::link(lanes, number), from_ns));
                if let Some(links) = &mut state.inbound.links {
                    links.lose(number);
                }
            }
            if self.topology.is_here(end) {
                for lane in state.inbound.lanes_of(self.topology.place_of(end)) {
                    // It may have been killed before it could say that there is something.
                    state.inbound.list(lane);
                    state.inbound.lost.push((Input::lane(lane), 0));
                }
            }
            out.queues.lose(end);
        }
    }

    /// Nothing that has hurried the streams comes to an end.
    pub fn calm_all(&mut self) {
        let all = self.streams.iter_mut();
        all.filter(|state| state.id != SYSTEM_STREAM)
            .for_each(|state| state.urgent = 0);
    }

    /// Whether all that had come from members that are lost has moved on. Nothing of streams that
    /// are closed does, or will.
    pub fn has_drained_lost(&self) -> bool {
        let mut open = self.open.iter();
        open.all(|&at| self.streams[at].inbound.lost.is_empty())
    }

    /// Whether this endpoint exchanges anything with another: on its node, or over a link.
    pub fn knows(&self, end: EndpointId) -> bool {
        self.topology.is_here(end) || self.members.has_end(end)
    }

    /// Whether this endpoint may leave: nothing waits here that it has sent or relays, and the others
    /// are in the middle of nothing that they have told it of.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while something waits: try again after a round. [`Error::Misuse`] in a
    /// round, from the first mark that has come here on, and in a step of contributors: what has
    /// been heard of them would be lost. Where others are in a round of which nothing has come
    /// here, they wait, as for an endpoint that is late.
    pub fn check_may_leave(&self) -> Result<()> {
        for &at in &self.open {
            let (state, out) = (&self.streams[at], &self.outs[at]);
            if state.rounds.is_ending() {
                let why = "leaving in the middle of a round: end it first";
                return Err(Error::misuse(&state.name, why));
            }
            out.check_no_step("leaving")?;
            if !state.is_quiet(out) {
                return Err(Error::WouldBlock);
            }
        }
        Ok(())
    }

    /// What an endpoint that leaves hands to itself for when it joins again.
    ///
    /// # Errors
    /// As [`Engine::check_may_leave`], with nothing done.
    pub fn legacy(&mut self) -> Result<Legacy> {
        self.check_may_leave()?;
        let streams = self.streams.iter().zip(&self.outs);
        let counts = streams.map(|(state, out)| (state.counts(out), out.queues.part()));
        let counts = counts.collect();
        let collectives = Collectives::new(&self.topology);
        Ok(Legacy {
            counts,
            retired: self.retired,
            collectives: std::mem::replace(&mut self.collectives, collectives),
        })
    }

    /// This endpoint joins again, with the same streams open and nothing sent or delivered yet.
    pub fn inherit(&mut self, legacy: Legacy) {
        self.collectives = legacy.collectives;
        self.retired = legacy.retired;
        let streams = self.streams.iter_mut().zip(&mut self.outs);
        for ((state, out), (counts, part)) in streams.zip(legacy.counts) {
            (out.sent, state.taken) = (counts.sent, counts.delivered);
            state.heard = counts.heard;
            out.queues.join_again(part);
        }
    }

    /// # Panics
    /// When the endpoint is on another node.
    fn place_of(&self, end: EndpointId) -> u32 {
        assert!(self.topology.is_here(end), "endpoint {end} is not here");
        self.topology.place_of(end)
    }

    fn change_members(&mut self, change: impl FnOnce(&mut Members)) {
        change(Arc::make_mut(&mut self.members));
        for (state, out) in self.streams.iter_mut().zip(&mut self.outs) {
            out.queues.members = Arc::clone(&self.members);
            let lanes = out.queues.route.lanes_per_rank();
            let bells = Arc::clone(self.members.bells());
            state.inbound.inbox.set_bells(bells, lanes);
        }
    }
}

impl StreamState {
    /// Whether all that the endpoint at a place of the node has shown in its lanes has moved on,
    /// and no record of it is to be continued.
    fn has_taken_all_from(&mut self, out: &Outbound, place: u32) -> bool {
        let lanes = self.inbound.lanes_of(place);
        let inbound = &mut self.inbound;
        let mut lanes = lanes.into_iter();
        lanes.all(|lane| {
            let is_empty = !inbound.is_listed(lane) && inbound.inbox.lane(lane).is_empty();
            is_empty && !inbound.is_in_record(out, Input::lane(lane))
        })
    }

    /// Whether nothing goes over links to or from an endpoint, and nothing of it is kept.
    fn is_link_quiet(&self, out: &Outbound, end: EndpointId) -> bool {
        let remotes = &out.queues.remotes;
        let Some(links) = &self.inbound.links else {
            return true;
        };
        let mut numbers = (0..remotes.len()).filter(|&number| remotes[number].end == end);
        let lanes = self.inbound.inbox.layout().lanes();
        let mut is_done = |number| {
            let input = Input::link(lanes, number);
            links.is_idle(number) && !self.inbound.is_in_record(out, input)
        };
        remotes.are_idle_towards(end) && numbers.all(&mut is_done)
    }

    /// An endpoint has left, with nothing under way.
    fn detach(&mut self, out: &mut Outbound, end: EndpointId, place: Option<u32>) {
        let queues = &mut out.queues;
        queues.forget(end);
        if let Some(place) = place {
            queues.lanes.detach(end, place);
        }
        for number in queues.remotes.detach(end) {
            let maxrpc = queues.remotes[number].credit.max_in_flight();
            if let Some(links) = &mut self.inbound.links {
                links.detach(number, maxrpc);
            }
        }
    }
}
