//! What a stream waits for, and whether its rank may sleep meanwhile.

use super::StreamState;
use super::outbound::Outbound;
use crate::queue::lane::LaneQueue;
use crate::queue::remote::RemoteQueue;

impl StreamState {
    /// Whether nothing of this stream moves or waits on this rank.
    pub fn is_quiet(&self, out: &Outbound) -> bool {
        let inbound = &self.inbound;
        let links = inbound.links.as_ref();
        out.is_quiet()
            && !inbound.has_backlog()
            && !links.is_some_and(|links| links.has_backlog(&out.queues.remotes))
            && self.handover.as_ref().is_none_or(|h| h.has_done_all())
    }

    /// Whether a round of progress would find nothing to do. A stream with links or a delivery
    /// thread is not asked.
    #[inline]
    pub fn is_still(&self, out: &Outbound) -> bool {
        out.is_still()
            && self.inbound.links.is_none()
            && self.handover.is_none()
            && !self.inbound.has_backlog()
    }

    /// Whether a sleeping rank has to wake up at once: a lane has news, or room (or, for a flush, a
    /// release) came, or a fence has come further.
    pub fn must_stay_awake(&self, out: &mut Outbound) -> bool {
        if self.inbound.inbox.any_active() || self.handover.as_ref().is_some_and(|h| h.is_freed()) {
            return true;
        }
        if out.queues.has_census_news() {
            return true;
        }
        let releases_too = self.urgent > 0 || out.queues.lanes.is_limited();
        // Asked of each lane: what one has told once, it does not tell again.
        let came = |lane: &mut LaneQueue| {
            let released = releases_too && lane.release_came();
            lane.space_came() || released
        };
        out.queues
            .lanes_mut()
            .filter_map(|lane| came(lane).then_some(()))
            .count()
            > 0
    }

    /// Before sleeping: asks the consumers of full lanes to ring.
    pub fn want_space(&self, out: &mut Outbound) {
        let releases_too = self.urgent > 0 || out.queues.lanes.is_limited();
        for lane in out.queues.lanes_mut() {
            if releases_too && lane.in_use_bytes() > 0 {
                lane.want_release();
            } else {
                lane.want_space();
            }
        }
    }

    /// Whether something waits that only time moves: partial runs or batches, news for a peer, or
    /// shared slots.
    pub fn waits_for_time(&self, out: &Outbound) -> bool {
        let inbound = &self.inbound;
        let links = inbound.links.as_ref();
        // A provider that has refused a post does not announce room: the post is tried again.
        let waits = |queue: &RemoteQueue| queue.may_post() || queue.waits_for_slots();
        out.has_partial()
            || out.queues.is_census_paused()
            || out.queues.remotes.iter_busy().any(waits)
            || links.is_some_and(|links| links.owes_news(&out.queues.remotes) || links.may_post())
    }
}
