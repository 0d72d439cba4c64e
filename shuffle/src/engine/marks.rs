//! What had arrived at a moment, and whether all of it has moved on since.

use super::Core;

/// What had arrived when a delivery flush began.
pub(crate) struct DeliveryMarks {
    drained: Vec<u64>,
    consumed: Vec<u64>,
    arrived: Vec<u64>,
}

impl Core {
    /// Times that every lane was seen empty, and positions of lanes and links, for [`crate::terminate::flush`].
    pub(crate) fn marks(&mut self) -> DeliveryMarks {
        let inbound = &mut self.inbound;
        let lanes = inbound.listed.len() as u32;
        let in_use = inbound.inbox.layout().max_in_use_bytes() as u64;
        let drained = inbound.drained.clone();
        let consumed = (0..lanes)
            .map(|lane| inbound.inbox.lane(lane).consumed() + in_use)
            .collect();
        let links = inbound.links.as_mut();
        let arrived = links.map_or(Vec::new(), |l| {
            l.incoming
                .iter_mut()
                .map(|i| i.window.next() + i.window.iter_mut().count() as u64)
                .collect()
        });
        DeliveryMarks {
            drained,
            consumed,
            arrived,
        }
    }

    /// Whether everything that was here at the marks has moved on.
    pub(crate) fn passed(&mut self, marks: &DeliveryMarks) -> bool {
        let inbound = &mut self.inbound;
        for lane in 0..inbound.listed.len() {
            let unseen = !inbound.listed[lane] && !inbound.inbox.any_active();
            let drained = inbound.drained[lane] > marks.drained[lane];
            if !unseen && !drained && inbound.inbox.lane(lane as u32).consumed() < marks.consumed[lane] {
                return false;
            }
        }
        let Some(links) = &inbound.links else { return true };
        links
            .incoming
            .iter()
            .zip(&marks.arrived)
            .all(|(i, &arrived)| i.receiving.accepted() >= arrived)
    }
}
