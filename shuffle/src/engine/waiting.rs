//! What a stream waits for, and whether its rank may sleep meanwhile.

use super::Core;
use crate::queue::remote::RemoteQueue;

impl Core<'_> {
    /// Whether nothing of this stream moves or waits on this rank.
    pub fn is_quiet(&self) -> bool {
        let (out, inbound) = (self.out.borrow(), self.inbound.borrow());
        let links = inbound.links.as_ref();
        out.is_quiet()
            && !inbound.has_backlog()
            && !links.is_some_and(|links| links.has_backlog(&out.queues.remotes))
            && self.handover.as_ref().is_none_or(|h| h.has_done_all())
    }

    /// Whether a sleeping rank has to wake up at once: a lane has news, or room (or, for a flush, a release) came.
    pub fn must_stay_awake(&self) -> bool {
        if self.inbound.borrow().inbox.any_active() || self.handover.as_ref().is_some_and(|h| h.is_freed()) {
            return true;
        }
        let mut out = self.out.borrow_mut();
        let releases_too = self.urgent.get() > 0 || out.queues.origin.is_limited();
        out.queues
            .lanes_mut()
            .any(|lane| lane.space_came() || (releases_too && lane.release_came()))
    }

    /// Whether room is waited for that no consumer was asked for.
    pub fn has_unasked_wish(&self) -> bool {
        let mut out = self.out.borrow_mut();
        out.queues.lanes_mut().any(|lane| lane.has_unasked_wish())
    }

    /// Before sleeping: asks the consumers of full lanes to ring.
    pub fn want_space(&self, releases_too: bool) {
        let mut out = self.out.borrow_mut();
        let releases_too = releases_too || out.queues.origin.is_limited();
        for lane in out.queues.lanes_mut() {
            if releases_too && lane.in_use_bytes() > 0 {
                lane.want_release();
            } else {
                lane.want_space();
            }
        }
    }

    /// Whether something waits that only time moves: partial runs or batches, or news for a peer.
    pub fn waits_for_time(&self) -> bool {
        let (out, inbound) = (self.out.borrow(), self.inbound.borrow());
        let links = inbound.links.as_ref();
        // A provider that refused a post says by nothing but taking it that it has room again.
        out.has_partial()
            || out.queues.remotes.iter_busy().any(RemoteQueue::may_post)
            || links.is_some_and(|links| links.owes_news(&out.queues.remotes) || links.may_post())
    }
}
