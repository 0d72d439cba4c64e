//! The output queues of all three classes, and which of them a run goes into.

use trihop_transport::protocol::wire::run_flags;
use trihop_transport::topology::Rank;

use crate::queue::Feeder;
use crate::queue::lane::LaneQueue;
use crate::queue::lanes::Lanes;
use crate::queue::remotes::Remotes;
use crate::route::{Chosen, Hop, LinkClass, Place, Route};

/// The queues of all three classes.
pub(crate) struct Queues {
    pub route: Chosen,
    /// Origin lanes; the own one carries messages to oneself.
    pub origin: Lanes,
    pub relay: Lanes,
    /// Queues of this rank's links.
    pub remotes: Remotes,
    /// Ranks of the job.
    pub size: u32,
    /// Copies of broadcasts' frames that this rank has added.
    pub copies: u64,
    /// Time of the last round of progress.
    pub now_ns: u64,
}

impl Queues {
    /// What users see of it counts from now on.
    pub fn begin_again(&mut self) {
        self.copies = 0;
        self.origin.begin_again();
        self.relay.begin_again();
        self.remotes.begin_again();
    }

    /// Adds a frame to the queue of its next hop. `None` when no route leads there from this place.
    pub fn push(
        &mut self,
        at: Place,
        target: Rank,
        frame: &[u8],
        flags: u16,
        feeder: Feeder,
    ) -> Option<bool> {
        self.push_with(at, target, frame.len(), flags, feeder, |space| {
            space.copy_from_slice(frame)
        })
    }

    /// Adds a frame that `write` fills in place.
    pub fn push_with(
        &mut self,
        at: Place,
        target: Rank,
        bytes: usize,
        flags: u16,
        feeder: Feeder,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        let hop = self.route.next_hop(at, target)?;
        self.push_over(hop, at, bytes, flags, feeder, write)
    }

    /// Adds copies of a broadcast's frame to its next hops from number `next` on; returns the number of the first that has no
    /// room. A copy that has left is complete: nothing is held for the others.
    pub fn push_copies(&mut self, at: Place, mut next: u32, frame: &[u8], feeder: Feeder) -> u32 {
        while next < self.route.copies(at) {
            let hop = self.route.copy(at, next);
            let write = |space: &mut [u8]| space.copy_from_slice(frame);
            if self.push_over(hop, at, frame.len(), run_flags::BROADCAST, feeder, write) != Some(true) {
                break;
            }
            self.copies += 1;
            next += 1;
        }
        next
    }

    /// Adds a frame to the queue of this hop.
    #[inline]
    fn push_over(
        &mut self,
        hop: Hop,
        at: Place,
        bytes: usize,
        flags: u16,
        feeder: Feeder,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        let own = feeder == Feeder::APPLICATION;
        match hop {
            Hop::Deliver => None,
            Hop::Local(local) => {
                let lanes = if at == Place::TargetRep {
                    &mut self.relay
                } else {
                    if !self.origin.admits(bytes) {
                        return Some(false);
                    }
                    &mut self.origin
                };
                // A damaged inbox takes nothing; `failure` says so.
                let Some(lane) = lanes.to(local) else {
                    return Some(false);
                };
                let added = lane.push_with(bytes, flags, feeder, write);
                match added {
                    true => lane.tally.added(own, self.now_ns),
                    false => lane.tally.refused(self.now_ns),
                }
                Some(added)
            }
            Hop::Fabric(link) => {
                let index = self.remotes.open(link, &self.route);
                self.remotes.wake(index);
                if own && !self.remotes.admits(index, bytes) {
                    return Some(false);
                }
                let needs = self.remotes[index].needs_buffer(bytes);
                let pool = if needs {
                    self.remotes.pool_for(index).cloned()
                } else {
                    None
                };
                let remote = &mut self.remotes[index];
                let added = remote.push_with(bytes, flags, feeder, pool.as_ref(), write);
                match added {
                    true => remote.tally.added(own, self.now_ns),
                    false => remote.tally.refused(self.now_ns),
                }
                if own && added {
                    self.remotes.added_own(index);
                }
                Some(added)
            }
        }
    }

    /// Number of the remote queue of the link of this class to `rank`, opened if need be; `None` where there is no such link.
    pub fn open_to(&mut self, rank: u32, class: u16) -> Option<usize> {
        if rank >= self.size {
            return None;
        }
        let link = self.route.link_to(Rank(rank), LinkClass::from_number(class)?)?;
        Some(self.remotes.open(link, &self.route))
    }

    /// Local rank whose inbox is damaged, and how.
    pub fn failure(&self) -> Option<(u32, String)> {
        self.origin.failure().or_else(|| self.relay.failure())
    }

    /// All lanes that are open.
    pub fn lanes_mut(&mut self) -> impl Iterator<Item = &mut LaneQueue> {
        self.origin.iter_mut().chain(self.relay.iter_mut())
    }
}
