//! Large receive slots, which links share.

use trihop_transport::protocol::credit::Shared;

use super::Links;
use crate::engine::incoming::Incoming;
use crate::queue::remotes::Remotes;

impl Links {
    /// Grants large slots to the links that want them, one at a time in turn.
    pub(super) fn share_large(&mut self, remotes: &Remotes) {
        let (count, first) = (remotes.busy_len(), remotes.first_from(self.identity.own));
        let mut passed = 0;
        while self.free_large() > 0 && passed < count {
            let turn = (self.turn + passed) % count;
            passed += 1;
            let Some(index) = remotes.busy((first + turn) % count) else {
                continue;
            };
            let incoming = &mut self.incoming[index];
            let shared = &mut self.shared[incoming.pool];
            // A long record that has begun keeps others waiting: its link gets the last one.
            let may_grant = shared.may_grant() || incoming.must_go_on();
            if may_grant && shared.grant(&mut incoming.receiving) {
                incoming.news = true;
                incoming.recalled = false;
                self.turn = turn + 1;
                passed = 0;
            }
        }
    }

    /// Recalls slots from links that hold them unused, one for each link that waits for its first.
    pub(super) fn recall(&mut self, remotes: &mut Remotes) {
        for pool in 0..self.shared.len() {
            if self.shared[pool].may_grant() {
                continue;
            }
            let of_pool = |incoming: &&Incoming| incoming.pool == pool;
            let holds = |incoming: &Incoming| incoming.receiving.large_outstanding() > 0;
            let busy =
                (0..remotes.busy_len()).filter_map(|at| self.incoming.get(remotes.busy(at)?));
            let shared = &self.shared[pool];
            let waits =
                |i: &&Incoming| i.window.is_empty() && !holds(i) && shared.is_wanted(&i.receiving);
            let waiting = busy.filter(of_pool).filter(waits).count();
            // All links are looked at only where somebody waits.
            if waiting == 0 {
                continue;
            }
            let coming = self.incoming.iter().filter(of_pool);
            let coming = coming
                .filter(|i| i.recalled && holds(i) && !i.is_lost)
                .count();
            let links = self.incoming.iter_mut().enumerate();
            let idle = links.filter(|(_, incoming)| {
                incoming.pool == pool && !incoming.recalled && holds(incoming) && !incoming.is_lost
            });
            for (index, incoming) in idle.take(waiting.saturating_sub(coming)) {
                (incoming.recalled, incoming.must_recall) = (true, true);
                remotes.wake(index);
            }
        }
    }

    /// Large slots that nobody holds.
    pub fn free_large(&self) -> u32 {
        self.shared.iter().map(Shared::free_slots).sum()
    }
}
