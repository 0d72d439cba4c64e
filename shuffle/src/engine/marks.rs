//! What had arrived at a moment, and whether all of it has moved on since.

use super::StreamState;

/// What had arrived when a delivery flush began.
pub(crate) struct DeliveryMarks {
    /// Lanes that held something.
    lanes: Vec<LaneMark>,
    /// By link: the endpoints that had left, and the number of the batch behind the last one that
    /// had come.
    arrived: Vec<(u32, u64)>,
}

struct LaneMark {
    lane: u32,
    /// Times that the lane had been seen empty.
    drained: u64,
    /// Position that everything which was in the lane lies before.
    end: u64,
}

impl StreamState {
    /// What has arrived by now, for [`crate::terminate::flush`].
    pub(crate) fn marks(&mut self) -> DeliveryMarks {
        let inbound = self.inbound.take_active();
        let in_use = inbound.inbox.layout().max_in_use_bytes() as u64;
        let listed = 0..inbound.listed.len() as u32;
        let lanes = listed
            .filter(|&lane| inbound.listed[lane as usize])
            .map(|lane| LaneMark {
                lane,
                drained: inbound.drained[lane as usize],
                end: inbound.inbox.lane(lane).consumed() + in_use,
            })
            .collect();
        let links = inbound
            .links
            .iter_mut()
            .flat_map(|links| &mut links.incoming);
        let arrived = links.map(|incoming| {
            let window = &mut incoming.window;
            let next = window.next();
            let last = window.iter_mut().last();
            let end = last.map_or(next, |(number, _)| number + 1);
            (incoming.earlier, end)
        });
        DeliveryMarks {
            arrived: arrived.collect(),
            lanes,
        }
    }

    /// Whether everything that was here at the marks has moved on.
    pub(crate) fn passed(&mut self, marks: &DeliveryMarks) -> bool {
        let inbound = &mut self.inbound;
        let has_moved_on = |mark: &LaneMark| {
            inbound.drained[mark.lane as usize] > mark.drained
                || inbound.inbox.lane(mark.lane).consumed() >= mark.end
        };
        if !marks.lanes.iter().all(has_moved_on) {
            return false;
        }
        let incoming = inbound.links.iter().flat_map(|links| &links.incoming);
        let mut links = incoming.zip(&marks.arrived);
        links.all(|(incoming, &(earlier, arrived))| {
            incoming.earlier > earlier || incoming.receiving.accepted() >= arrived
        })
    }
}
