//! How a thread sleeps for a rank: on the doorbell, the fabric's news and the lives of the node's
//! ranks at once.

use std::time::Duration;

use trihop_transport::park::Parker;
use trihop_transport::ring::Doorbell;

use crate::error::Result;
use crate::job::{JobState, LOOK_AROUND};

/// Longest sleep while something waits that no descriptor announces.
pub(crate) const NAP: Duration = Duration::from_millis(1);
/// Mark of the link's descriptor in the parker; local peers have the number of an endpoint.
const LINK_MARK: u64 = 1 << 32;
/// Mark of the socket over which the node's processes hand descriptors to each other.
const LISTENER_MARK: u64 = LINK_MARK + 1;

/// What one thread sleeps with, where nobody rings.
pub(crate) struct Park {
    parker: Parker,
    woken: Vec<u64>,
}

impl Park {
    /// Sleeps on the doorbell, the link's news, the node's parcels and the lives of its ranks.
    pub fn new(doorbell: &Doorbell, job: &JobState) -> Result<Self> {
        let mut parker = Parker::new(doorbell)?;
        let link = job.engine.link.as_ref();
        if let Some(descriptor) = link.and_then(|l| l.wait_descriptor()) {
            parker.watch_news(descriptor, LINK_MARK)?;
        }
        if job.engine.topology.is_host() {
            job.node.watch_listener(&mut parker, LISTENER_MARK)?;
        }
        for (end, watch) in &job.node.watches {
            parker.watch(watch.descriptor(), u64::from(end.0))?;
        }
        Ok(Self {
            parker,
            woken: Vec::new(),
        })
    }

    /// Sleeps, unless `stay_awake`, asked once the sleep is announced, finds that something came in
    /// between; not for long where it is `timed`.
    pub fn sleep(
        &mut self,
        doorbell: &Doorbell,
        timed: bool,
        stay_awake: impl FnOnce() -> bool,
    ) -> Result<()> {
        let timeout = if timed { NAP } else { LOOK_AROUND };
        self.sleep_for(doorbell, timeout, stay_awake)
    }

    /// As [`sleep`](Self::sleep), for so long at most.
    pub fn sleep_for(
        &mut self,
        doorbell: &Doorbell,
        timeout: Duration,
        stay_awake: impl FnOnce() -> bool,
    ) -> Result<()> {
        self.woken.clear();
        Ok(self
            .parker
            .park(doorbell, timeout, stay_awake, &mut self.woken)?)
    }

    /// Looks after what has ended the sleep, but for the doorbell and the link.
    pub fn look_around(&mut self, job: &mut JobState) -> Result<()> {
        let arrived = self.woken.contains(&LISTENER_MARK);
        if self.woken.iter().any(|&mark| mark < LINK_MARK) {
            let now_ns = job.now_ns();
            let all = job.node.watches.iter();
            let ended = all.filter_map(|(end, watch)| watch.has_ended().then_some(*end));
            let ended: Vec<_> = ended.collect();
            job.look_after_peers(now_ns)?;
            // Those are known, and processes that have ended properly wake nobody again.
            for (_, watch) in job
                .node
                .watches
                .extract_if(.., |(end, _)| ended.contains(end))
            {
                self.parker.unwatch(watch.descriptor())?;
            }
        }
        for watch in job.node.ended.drain(..) {
            self.parker.unwatch(watch.descriptor())?;
        }
        if arrived {
            job.node
                .keep_arrived(&job.engine.topology, job.engine.cookie)?;
        }
        Ok(())
    }
}
