//! Credits: a sender starts a batch only against a slot that its receiver has posted for it.
//!
//! Every link has one small slot of its own, unless links are too many for that. Large slots come
//! from a pool that a receiver shares among the peers that say they want more; an idle peer gives
//! back what it holds. The sum of what is granted never passes what is posted.

use crate::protocol::eager::Slot;
use crate::protocol::wire::Counters;

/// Sending side of one link.
#[derive(Debug, Clone)]
pub struct Sending {
    next_sequence: u64,
    accepted: u64,
    max_in_flight: u32,
    small_granted: u32,
    small_used: u32,
    large_granted: u32,
    large_used: u32,
    large_returned: u32,
}

/// Credit counters that cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCounters {
    /// More batches accepted than were sent.
    #[error("{accepted} batches accepted, only {sent} sent")]
    Accepted {
        /// By the peer.
        accepted: u64,
        /// By us.
        sent: u64,
    },
    /// More given back than was granted.
    #[error("{returned} large slots given back, {held} held")]
    Returned {
        /// By the peer, newly.
        returned: u32,
        /// What it held.
        held: u32,
    },
    /// A message came in a slot that was not granted.
    #[error("a message in a {0:?} slot that was not granted")]
    NotGranted(Slot),
}

/// `later - earlier` on counters modulo 2^32, `None` when `later` is really the earlier one.
fn ahead(later: u32, earlier: u32) -> Option<u32> {
    let distance = later.wrapping_sub(earlier);
    (distance < 1 << 31).then_some(distance)
}

impl Sending {
    /// Nothing granted yet; at most `max_in_flight` batches unacknowledged (`maxrpc`).
    pub fn new(max_in_flight: u32) -> Self {
        Self {
            next_sequence: 0,
            accepted: 0,
            max_in_flight,
            small_granted: 0,
            small_used: 0,
            large_granted: 0,
            large_used: 0,
            large_returned: 0,
        }
    }

    /// Batches that may be in flight (`maxrpc`).
    pub fn max_in_flight(&self) -> u32 {
        self.max_in_flight
    }

    /// Whether another batch may be in flight at all.
    pub fn may_start(&self) -> bool {
        self.in_flight() < u64::from(self.max_in_flight)
    }

    /// Whether a small slot is free for us.
    pub fn has_small(&self) -> bool {
        self.small_granted != self.small_used
    }

    /// Whether a large slot is free for us.
    pub fn has_large(&self) -> bool {
        self.large_held() > 0
    }

    /// Large slots that we hold unused.
    pub fn large_held(&self) -> u32 {
        self.large_granted
            .wrapping_sub(self.large_used)
            .wrapping_sub(self.large_returned)
    }

    /// Batches that may be sent now: slots that are granted and free, as far as the bound of those
    /// in flight lets them be used.
    pub fn free_slots(&self) -> u64 {
        let small = self.small_granted.wrapping_sub(self.small_used);
        let slots = u64::from(small) + u64::from(self.large_held());
        let room = u64::from(self.max_in_flight).saturating_sub(self.in_flight());
        slots.min(room)
    }

    /// Uses up a slot for the next batch and returns the batch's number.
    ///
    /// # Panics
    /// When the slot was not granted: callers ask [`crate::protocol::eager::choose`] first.
    pub fn start(&mut self, slot: Slot) -> u64 {
        match slot {
            Slot::Small => {
                assert!(self.has_small(), "small slot used without credit");
                self.small_used = self.small_used.wrapping_add(1);
            }
            Slot::Large => {
                assert!(self.has_large(), "large slot used without credit");
                self.large_used = self.large_used.wrapping_add(1);
            }
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    /// Gives back all large slots that are held unused; returns how many.
    pub fn give_back_large(&mut self) -> u32 {
        let held = self.large_held();
        self.large_returned = self.large_returned.wrapping_add(held);
        held
    }

    /// Takes the peer's counters; older ones change nothing. Returns whether anything changed.
    ///
    /// # Errors
    /// [`BadCounters`] when more was accepted than sent.
    pub fn update(&mut self, counters: &Counters) -> Result<bool, BadCounters> {
        if counters.accepted > self.next_sequence {
            return Err(BadCounters::Accepted {
                accepted: counters.accepted,
                sent: self.next_sequence,
            });
        }
        let mut changed = false;
        if counters.accepted > self.accepted {
            self.accepted = counters.accepted;
            changed = true;
        }
        for (mine, theirs) in [
            (&mut self.small_granted, counters.small_granted),
            (&mut self.large_granted, counters.large_granted),
        ] {
            if ahead(theirs, *mine).is_some_and(|d| d > 0) {
                *mine = theirs;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Batches that the peer has taken.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Number of the next batch.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Batches sent and not yet accepted.
    pub fn in_flight(&self) -> u64 {
        self.next_sequence - self.accepted
    }

    /// Large slots given back since the start, for the header.
    pub fn large_returned(&self) -> u32 {
        self.large_returned
    }
}

/// Receiving side of one link.
#[derive(Debug, Clone, Default)]
pub struct Receiving {
    accepted: u64,
    small_granted: u32,
    small_received: u32,
    large_granted: u32,
    large_received: u32,
    large_returned: u32,
    wanted: u16,
    wanted_at: Place,
    told: Grants,
}

/// When a header of a link was written: control messages have the number of the batch that is the
/// next, and so are behind all earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place {
    sequence: u64,
    is_batch: bool,
}

impl Place {
    /// Of a control message before the batch `sequence`.
    pub fn before(sequence: u64) -> Self {
        let is_batch = false;
        Self { sequence, is_batch }
    }

    /// Of the batch `sequence`, or its announcement.
    pub fn of(sequence: u64) -> Self {
        let is_batch = true;
        Self { sequence, is_batch }
    }
}

/// Slots granted since the start, as a header said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grants {
    small: u32,
    large: u32,
}

impl Receiving {
    /// The peer is told of all grants so far; returns what it knew before, for
    /// [`Receiving::take_back`].
    pub fn announce(&mut self) -> Grants {
        let now = Grants {
            small: self.small_granted,
            large: self.large_granted,
        };
        std::mem::replace(&mut self.told, now)
    }

    /// What the peer knows of its grants.
    pub fn told(&self) -> Grants {
        self.told
    }

    /// The header that told was not sent: the peer knows what it knew before.
    pub fn take_back(&mut self, before: Grants) {
        self.told = before;
    }

    /// Whether the peer has used up every slot that it knows of.
    pub fn is_spent(&self) -> bool {
        let large_used = self.large_received.wrapping_add(self.large_returned);
        self.told.small == self.small_received && self.told.large == large_used
    }

    /// One small slot was posted for this peer: at the start, and each time one is posted again.
    pub fn grant_small(&mut self) {
        self.small_granted = self.small_granted.wrapping_add(1);
    }

    /// A message of this peer came in a slot of that class.
    ///
    /// # Errors
    /// [`BadCounters::NotGranted`] when the peer had no such slot.
    pub fn received(&mut self, slot: Slot) -> Result<(), BadCounters> {
        match slot {
            Slot::Small if self.small_granted != self.small_received => {
                self.small_received = self.small_received.wrapping_add(1);
            }
            Slot::Large if self.large_outstanding() > 0 => {
                self.large_received = self.large_received.wrapping_add(1);
            }
            _ => return Err(BadCounters::NotGranted(slot)),
        }
        Ok(())
    }

    /// Large slots that the peer holds or has used in messages that have not arrived yet.
    pub fn large_outstanding(&self) -> u32 {
        self.large_granted
            .wrapping_sub(self.large_received)
            .wrapping_sub(self.large_returned)
    }

    /// A batch was taken completely.
    pub fn accept(&mut self) {
        self.accepted += 1;
    }

    /// Takes the peer's demand and what it gives back; returns the number of large slots that came
    /// back. `place` says when the peer wrote that: the last of the demands counts, not the one that
    /// comes last, since batches and control messages overtake each other.
    ///
    /// # Errors
    /// [`BadCounters::Returned`] when it gives back what it does not hold.
    pub fn update(&mut self, counters: &Counters, place: Place) -> Result<u32, BadCounters> {
        if place >= self.wanted_at {
            (self.wanted, self.wanted_at) = (counters.wanted, place);
        }
        let Some(returned) = ahead(counters.large_returned, self.large_returned) else {
            return Ok(0);
        };
        let held = self.large_outstanding();
        if returned > held {
            return Err(BadCounters::Returned { returned, held });
        }
        self.large_returned = counters.large_returned;
        Ok(returned)
    }

    /// Batches taken since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Small slots granted since the start, for the header.
    pub fn small_granted(&self) -> u32 {
        self.small_granted
    }

    /// Large slots granted since the start, for the header.
    pub fn large_granted(&self) -> u32 {
        self.large_granted
    }

    /// Batches that wait at the peer, as it last said.
    pub fn wanted(&self) -> u16 {
        self.wanted
    }
}

/// The large slots of a receiver, shared by its peers.
#[derive(Debug, Clone)]
pub struct Shared {
    posted: u32,
    free: u32,
    per_peer: u32,
    kept: u32,
}

impl Shared {
    /// `posted` large slots, of which one peer holds at most `per_peer`; so many of them are kept
    /// for what must not wait.
    pub fn new(posted: u32, per_peer: u32, kept: u32) -> Self {
        Self {
            posted,
            free: posted,
            per_peer,
            kept,
        }
    }

    /// Whether there are more than those that are kept.
    pub fn may_grant(&self) -> bool {
        self.free > self.kept
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.posted == 0
    }

    /// A large slot is posted again, or came back unused.
    pub fn free(&mut self, slots: u32) {
        self.free += slots;
    }

    /// Large slots that nobody holds.
    pub fn free_slots(&self) -> u32 {
        self.free
    }

    /// Whether a peer has use for more slots than it holds.
    pub fn is_wanted(&self, peer: &Receiving) -> bool {
        peer.large_outstanding() < self.per_peer.min(u32::from(peer.wanted))
    }

    /// Grants one free slot to a peer that wants more than it holds; whether it did.
    pub fn grant(&mut self, peer: &mut Receiving) -> bool {
        if !self.is_wanted(peer) || self.free == 0 {
            return false;
        }
        peer.large_granted = peer.large_granted.wrapping_add(1);
        self.free -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Want(usize, u16),
        Send(usize),
        Arrive(usize),
        GiveBack(usize),
        TellReceiver(usize),
        TellSender(usize),
    }

    fn step(peers: usize) -> impl Strategy<Value = Step> {
        let p = 0..peers;
        prop_oneof![
            (p.clone(), 0u16..6).prop_map(|(p, w)| Step::Want(p, w)),
            p.clone().prop_map(Step::Send),
            p.clone().prop_map(Step::Arrive),
            p.clone().prop_map(Step::GiveBack),
            p.clone().prop_map(Step::TellReceiver),
            p.prop_map(Step::TellSender),
        ]
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Whatever is lost, late or repeated: granted large slots never pass the posted ones, and
        /// none is lost.
        #[test]
        fn granted_never_passes_posted(steps in proptest::collection::vec(step(3), 0..400), posted in 1u32..6) {
            let mut sending = vec![Sending::new(100); 3];
            let mut receiving = vec![Receiving::default(); 3];
            let mut wanted = [0u16; 3];
            let mut flying = [0u32; 3];
            let mut shared = Shared::new(posted, 4, 0);
            for step in steps {
                match step {
                    Step::Want(p, w) => wanted[p] = w,
                    Step::Send(p) => if sending[p].has_large() && sending[p].may_start() {
                        sending[p].start(Slot::Large);
                        flying[p] += 1;
                    },
                    Step::Arrive(p) => if flying[p] > 0 {
                        flying[p] -= 1;
                        receiving[p].received(Slot::Large).unwrap();
                        receiving[p].accept();
                        shared.free(1); // taken and posted again
                    },
                    Step::GiveBack(p) => { sending[p].give_back_large(); }
                    Step::TellReceiver(p) => {
                        let counters = Counters { large_returned: sending[p].large_returned(), wanted: wanted[p], ..Counters::default() };
                        let back = receiving[p].update(&counters, Place::before(0)).unwrap();
                        shared.free(back);
                        while receiving.iter_mut().any(|peer| shared.grant(peer)) {}
                    }
                    Step::TellSender(p) => {
                        let r = &receiving[p];
                        sending[p].update(&Counters { accepted: r.accepted(), large_granted: r.large_granted(), ..Counters::default() }).unwrap();
                    }
                }
                let outstanding: u32 = receiving.iter().map(Receiving::large_outstanding).sum();
                prop_assert_eq!(outstanding + shared.free_slots(), posted);
            }
        }
    }

    #[test]
    fn a_peer_is_spent_when_it_has_used_what_it_was_told_of() {
        let mut receiving = Receiving::default();
        receiving.grant_small();
        receiving.announce();
        assert!(!receiving.is_spent());
        receiving.received(Slot::Small).unwrap();
        assert!(receiving.is_spent());
        receiving.grant_small();
        assert!(receiving.is_spent(), "it does not know yet");
        let before = receiving.announce();
        assert!(!receiving.is_spent());
        receiving.take_back(before);
        assert!(receiving.is_spent(), "the header was not sent");
        receiving.announce();
        let mut shared = Shared::new(1, 1, 0);
        let wants = Counters {
            wanted: 1,
            ..Counters::default()
        };
        receiving.update(&wants, Place::before(0)).unwrap();
        assert!(shared.grant(&mut receiving));
        receiving.received(Slot::Small).unwrap();
        assert!(receiving.is_spent(), "of the large slot it has not heard");
    }

    /// Batches and control messages overtake each other.
    #[test]
    fn the_last_demand_counts_whenever_it_comes() {
        let mut receiving = Receiving::default();
        let mut hear = |wanted, place| {
            let counters = Counters {
                wanted,
                ..Counters::default()
            };
            receiving.update(&counters, place).unwrap();
            receiving.wanted()
        };
        assert_eq!(hear(3, Place::before(0)), 3);
        assert_eq!(hear(2, Place::before(0)), 2);
        assert_eq!(hear(1, Place::before(1)), 1);
        assert_eq!(
            hear(0, Place::of(0)),
            1,
            "before the batch came, it asked again"
        );
        assert_eq!(hear(0, Place::of(1)), 0);
        assert_eq!(hear(5, Place::before(1)), 0);
    }

    #[test]
    fn hostile_counters_are_refused() {
        let mut sending = Sending::new(4);
        assert_eq!(
            sending.update(&Counters {
                accepted: 1,
                ..Counters::default()
            }),
            Err(BadCounters::Accepted {
                accepted: 1,
                sent: 0
            })
        );
        let mut receiving = Receiving::default();
        assert_eq!(
            receiving.received(Slot::Small),
            Err(BadCounters::NotGranted(Slot::Small))
        );
        assert_eq!(
            receiving.received(Slot::Large),
            Err(BadCounters::NotGranted(Slot::Large))
        );
        assert_eq!(
            receiving.update(
                &Counters {
                    large_returned: 5,
                    ..Counters::default()
                },
                Place::of(0),
            ),
            Err(BadCounters::Returned {
                returned: 5,
                held: 0
            })
        );
    }

    #[test]
    fn counters_wrap() {
        let mut sending = Sending::new(4);
        sending.small_granted = u32::MAX;
        sending.small_used = u32::MAX;
        assert!(
            sending
                .update(&Counters {
                    small_granted: 0,
                    ..Counters::default()
                })
                .unwrap()
        );
        assert!(sending.has_small());
        assert!(
            !sending
                .update(&Counters {
                    small_granted: u32::MAX,
                    ..Counters::default()
                })
                .unwrap()
        );
    }

    #[test]
    fn a_peer_that_wants_many_large_slots_leaves_others_their_share() {
        let mut shared = Shared::new(10, 3, 0);
        let mut greedy = Receiving::default();
        let wants_many = Counters {
            wanted: 9,
            ..Counters::default()
        };
        greedy.update(&wants_many, Place::of(0)).unwrap();
        let granted = (0..10).take_while(|_| shared.grant(&mut greedy)).count();
        assert_eq!((granted, shared.free_slots()), (3, 7));
    }
}
