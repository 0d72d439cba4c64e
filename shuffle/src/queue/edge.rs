//! Edges: one kind of output queue, whose records leave over a lane or over a link, and which of
//! them leads where.

use std::borrow::Borrow;

use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::Corrupt;

use super::counters::{QueueCounters, SendReason};
use super::lane::LaneQueue;
use super::remote::RemoteQueue;
use crate::route::{EndpointId, Stage};

/// A lane or a link: the queue itself, a loan of it, or its number among the others of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge<L, K> {
    Lane(L),
    Link(K),
}

/// Number of an edge's queue, in the order in which those of its kind were opened.
pub(crate) type EdgeNumber = Edge<u32, u32>;

/// What both kinds of queues do alike.
impl<L: Borrow<LaneQueue>, K: Borrow<RemoteQueue>> Edge<L, K> {
    /// The endpoint at the other end.
    pub fn peer(&self) -> EndpointId {
        match self {
            Edge::Lane(lane) => lane.borrow().peer,
            Edge::Link(link) => link.borrow().end,
        }
    }

    /// The epoch of the endpoint at the other end.
    pub fn epoch(&self) -> Epoch {
        match self {
            Edge::Lane(lane) => lane.borrow().epoch,
            Edge::Link(link) => link.borrow().epoch,
        }
    }

    /// What the queue has done.
    pub fn counters(&self) -> &QueueCounters {
        match self {
            Edge::Lane(lane) => &lane.borrow().counters,
            Edge::Link(link) => &link.borrow().counters,
        }
    }

    /// Position behind everything that was added and shown or sealed so far.
    pub fn position(&self) -> u64 {
        match self {
            Edge::Lane(lane) => lane.borrow().produced(),
            Edge::Link(link) => link.borrow().sealed(),
        }
    }
}

/// What changes them.
impl Edge<&mut LaneQueue, &mut RemoteQueue> {
    /// Shows the other end what was added, or has it sent.
    pub fn seal(&mut self, why: SendReason) {
        match self {
            Edge::Lane(lane) => lane.publish(why),
            Edge::Link(link) => link.seal(why),
        }
    }

    /// Position up to which the other end has taken everything.
    ///
    /// # Errors
    /// A position in shared memory that cannot be true.
    pub fn taken(&mut self) -> Result<u64, Corrupt> {
        match self {
            Edge::Lane(lane) => lane.consumed(),
            Edge::Link(link) if link.is_lost => Ok(u64::MAX),
            Edge::Link(link) => Ok(link.credit.accepted()),
        }
    }
}

/// The edges that are open, by their other end and stage: asked once for each run, and no larger
/// than what is open.
#[derive(Debug)]
pub(crate) struct EdgeTable {
    /// A power of two of them, at most half of which are taken; an edge is at the first place from
    /// its own on that was free.
    places: Vec<Place>,
    taken: usize,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    /// 0 for a free place: no edge has the stage 0.
    key: u64,
    edge: EdgeNumber,
}

impl EdgeTable {
    const FREE: Place = Place {
        key: 0,
        edge: Edge::Lane(0),
    };

    /// No edge yet.
    pub fn new() -> Self {
        Self {
            places: vec![Self::FREE; 8],
            taken: 0,
        }
    }

    #[inline]
    fn key(peer: EndpointId, stage: Stage) -> u64 {
        u64::from(stage.number()) << 32 | u64::from(peer.0)
    }

    /// Where the search for a key begins: the upper half of a product with an odd number near 2^64
    /// / 1.618.
    #[inline]
    fn place_of(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.places.len() - 1)
    }

    /// The edge of this stage to `peer`, if it is open.
    #[inline]
    pub fn get(&self, peer: EndpointId, stage: Stage) -> Option<EdgeNumber> {
        let key = Self::key(peer, stage);
        let mut at = self.place_of(key);
        loop {
            let place = &self.places[at];
            if place.key == key {
                return Some(place.edge);
            }
            if place.key == 0 {
                return None;
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    /// An edge was opened.
    #[cold]
    pub fn add(&mut self, peer: EndpointId, stage: Stage, edge: EdgeNumber) {
        debug_assert_eq!(self.get(peer, stage), None, "an edge is opened once");
        self.taken += 1;
        if 2 * self.taken > self.places.len() {
            let more = vec![Self::FREE; 2 * self.places.len()];
            let old = std::mem::replace(&mut self.places, more);
            old.into_iter()
                .filter(|place| place.key != 0)
                .for_each(|place| self.put(place));
        }
        let key = Self::key(peer, stage);
        self.put(Place { key, edge });
    }

    /// All edges to an endpoint are closed.
    #[cold]
    pub fn remove(&mut self, peer: EndpointId) {
        let len = self.places.len();
        let old = std::mem::replace(&mut self.places, vec![Self::FREE; len]);
        let stays = |place: &Place| place.key != 0 && place.key as u32 != peer.0;
        self.taken = 0;
        for place in old.into_iter().filter(stays) {
            self.taken += 1;
            self.put(place);
        }
    }

    fn put(&mut self, place: Place) {
        let mut at = self.place_of(place.key);
        while self.places[at].key != 0 {
            at = (at + 1) & (self.places.len() - 1);
        }
        self.places[at] = place;
    }
}

/// Adds to a list of which few may ever be needed: it grows by a quarter, since of hundreds half
/// the memory would lie idle otherwise.
pub(super) fn push_sparingly<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 4).max(4));
    }
    list.push(item);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn the_table_finds_what_was_added_and_nothing_else(
            edges in proptest::collection::hash_map((0u32..3000, 0usize..3), any::<bool>(), 0..300),
            asked in proptest::collection::vec((0u32..3000, 0usize..3), 100),
            removed in proptest::collection::vec(0u32..3000, 0..5),
        ) {
            let stages = crate::route::RouteName::default();
            let topology = trihop_transport::topology::Topology::from_node_sizes(&[1], 0.into()).unwrap();
            let stages: Vec<Stage> = crate::route::JobRoute::new(stages, &topology).unwrap().numbers().collect();
            let mut table = EdgeTable::new();
            let mut model = HashMap::new();
            for (number, (key, is_lane)) in (0u32..).zip(edges) {
                let edge = if is_lane { Edge::Lane(number) } else { Edge::Link(number) };
                table.add(EndpointId(key.0), stages[key.1], edge);
                model.insert(key, edge);
            }
            let first = model.keys().next().map(|&(peer, _)| peer);
            for peer in removed.into_iter().chain(first) {
                table.remove(EndpointId(peer));
                model.retain(|&(other, _), _| other != peer);
            }
            for key in asked.into_iter().chain(model.keys().copied().collect::<Vec<_>>()) {
                prop_assert_eq!(table.get(EndpointId(key.0), stages[key.1]), model.get(&key).copied());
            }
        }
    }
}
