//! Who has joined a job, as one endpoint knows it.
//!
//! Members are an input of the engine: its seat finds out who joins and who leaves, and says so. An
//! endpoint that has not joined, or has left, is *away*: what is sent to it waits at its sender.
//! One that has died is *lost* where the job goes on without it: what is sent to it is dropped.
//! Else its seat ends the job.

mod lost;

use std::sync::Arc;

use trihop_transport::link::Peer;
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::Bell;

use crate::route::EndpointId;
pub(crate) use lost::{Loss, Who};

/// The members of a job that an endpoint exchanges anything with: those of its node, and those at
/// the other ends of its links.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    /// By place on the node, this endpoint included.
    here: Box<[Option<Epoch>]>,
    /// By place on the node: what wakes those that are here.
    bells: Arc<[Option<Arc<Bell>>]>,
    /// Those that have ever joined, ascending by endpoint.
    ends: Vec<End>,
}

/// The other end of a link.
#[derive(Debug, Clone, Copy)]
struct End {
    endpoint: EndpointId,
    /// What the provider calls it while it is a member.
    peer: Peer,
    epoch: Option<Epoch>,
}

/// Stands where the provider has no name for an endpoint that is away.
const NOBODY: Peer = Peer(u32::MAX);

impl Members {
    /// `places` on the node and the other ends of links: all of them away.
    pub fn new(places: u32) -> Self {
        Self {
            here: vec![None; places as usize].into(),
            bells: vec![None; places as usize].into(),
            ends: Vec::new(),
        }
    }

    /// What wakes the members of the node, by place.
    pub fn bells(&self) -> &Arc<[Option<Arc<Bell>>]> {
        &self.bells
    }

    /// The epoch of the member at a place of the node, and what wakes it; `None` while it is away.
    pub fn at(&self, place: u32) -> Option<(Epoch, &Arc<Bell>)> {
        let place = place as usize;
        self.here[place].zip(self.bells[place].as_ref())
    }

    /// The epoch of the member at the other end of a link, and what the provider calls it; `None`
    /// while it is away, and where no link leads there.
    pub fn end(&self, endpoint: EndpointId) -> Option<(Epoch, Peer)> {
        let end = &self.ends[self.number_of(endpoint).ok()?];
        end.epoch.map(|epoch| (epoch, end.peer))
    }

    /// The member that the provider calls by this name.
    pub fn end_of(&self, peer: Peer) -> Option<EndpointId> {
        let joined = self.ends.iter().filter(|end| end.epoch.is_some());
        let mut of_name = joined.filter(|end| end.peer == peer);
        of_name.next().map(|end| end.endpoint)
    }

    /// Place of the other end of a link, or where it belongs.
    fn number_of(&self, endpoint: EndpointId) -> Result<usize, usize> {
        self.ends.binary_search_by_key(&endpoint, |e| e.endpoint)
    }

    /// Whether this endpoint has ever joined at the other end of a link.
    pub fn has_end(&self, endpoint: EndpointId) -> bool {
        self.number_of(endpoint).is_ok()
    }

    /// A member comes to a place of the node, or (`None`) goes.
    pub fn set_here(&mut self, place: u32, member: Option<(Epoch, Arc<Bell>)>) {
        let (epoch, bell) = member.unzip();
        self.here[place as usize] = epoch;
        Arc::make_mut(&mut self.bells)[place as usize] = bell;
    }

    /// A member comes to the other end of a link, or (`None`) goes.
    pub fn set_end(&mut self, endpoint: EndpointId, member: Option<(Epoch, Peer)>) {
        let (epoch, peer) = member.unzip();
        let end = End {
            endpoint,
            peer: peer.unwrap_or(NOBODY),
            epoch,
        };
        match self.number_of(endpoint) {
            Ok(number) => self.ends[number] = end,
            Err(number) => self.ends.insert(number, end),
        }
    }
}

#[cfg(test)]
mod tests {
    use trihop_transport::ring::Doorbell;

    use super::*;

    #[test]
    fn members_are_found_by_place_by_endpoint_and_by_the_providers_name() {
        let ends = [EndpointId(3), EndpointId(7)];
        let mut members = Members::new(2);
        assert!(members.at(1).is_none() && members.end(ends[1]).is_none());
        members.set_end(ends[0], Some((Epoch::FIRST, Peer(5))));
        assert!(members.has_end(ends[0]) && !members.has_end(ends[1]));
        let doorbell = Doorbell::private();
        members.set_here(1, Some((Epoch::FIRST, doorbell.bell())));
        members.set_end(ends[1], Some((Epoch::FIRST.next(), Peer(0))));
        let earlier = members.clone();
        assert_eq!(members.at(1).map(|(epoch, _)| epoch), Some(Epoch::FIRST));
        assert_eq!(members.end(ends[1]), Some((Epoch::FIRST.next(), Peer(0))));
        assert_eq!(members.end_of(Peer(0)), Some(ends[1]));
        members.set_here(1, None);
        members.set_end(ends[1], None);
        assert!(members.at(1).is_none() && members.end(ends[1]).is_none());
        assert_eq!(
            (members.end_of(Peer(0)), members.end_of(NOBODY)),
            (None, None)
        );
        assert!(members.bells()[1].is_none());
        assert!(earlier.at(1).is_some(), "a copy stays as it was");
    }
}
