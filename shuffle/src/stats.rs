//! Counters of a stream; all are 64 bits wide and count from its opening.

use std::fmt;

/// What a stream has done on this rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Records that this rank sent, from the application and from handlers.
    pub sent: u64,
    /// Payload bytes of what this rank sent: records and items, and each copy of a broadcast.
    pub sent_bytes: u64,
    /// Broadcasts that this rank sent; their copies are in `sent`, one for each rank that gets it.
    pub broadcasts: u64,
    /// Copies of broadcasts that this rank put into its queues, of its own and as a representative. Records longer than a
    /// frame are not among them.
    pub broadcast_copies: u64,
    /// Records delivered here.
    pub delivered: u64,
    /// Records that arrived and were dropped on purpose (`deliverq_discard`).
    pub discarded: u64,
    /// Records that arrived and were never delivered because the job failed, or was dropped without being shut down.
    pub undelivered: u64,
    /// Runs delivered here.
    pub runs_delivered: u64,
    /// Runs of others that this rank forwarded to other nodes, as a source representative does.
    pub runs_to_fabric: u64,
    /// Runs of others that this rank forwarded to ranks of its node, as a target representative does.
    pub runs_from_fabric: u64,
    /// Frames put into queues by this rank, by stage of their edges.
    #[serde(flatten)]
    pub frames: StageFrames,
    /// Frames that came from ranks of this node: taken from lanes, and from the links that `fabric-only` has in their place.
    pub frames_received: u64,
    /// Batches sealed for other nodes.
    pub batches_sent: u64,
    /// Batches received from other nodes.
    pub batches_received: u64,
    /// Batches that came by rendezvous.
    pub announced: u64,
    /// Control messages sent.
    pub controls_sent: u64,
    /// Bytes handed to the fabric, headers and control messages included.
    pub wire_bytes: u64,
    /// Sends refused for want of room (a waiting send counts each try).
    pub would_block: u64,
    /// Frames that found their queue full.
    pub queue_waits: u64,
    /// Times that own sends met `origin_sender_limit` or `remote_sender_limit`.
    pub limit_hits: u64,
    /// Times that a delivery had to wait for the application.
    pub blocked_deliveries: u64,
    /// Messages dropped because they were broken, or none of this job's.
    pub bad_headers: u64,
}

/// Frames put into queues, by stage. As JSON `origin_frames`, `remote_frames`, and so on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StageFrames(Vec<(&'static str, u64)>);

impl StageFrames {
    /// Those of the stage with this name, 0 where the route has none.
    pub fn of(&self, stage: &str) -> u64 {
        let stages = self.0.iter().filter(|(name, _)| *name == stage);
        stages.map(|(_, frames)| frames).sum()
    }

    /// Name and frames of each stage, in the order of a run's way.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().copied()
    }

    /// More frames of a stage.
    pub fn add(&mut self, stage: &'static str, frames: u64) {
        match self.0.iter_mut().find(|(name, _)| *name == stage) {
            Some((_, sum)) => *sum += frames,
            None => self.0.push((stage, frames)),
        }
    }
}

impl serde::Serialize for StageFrames {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.iter()
                .map(|(name, frames)| (format!("{name}_frames"), frames)),
        )
    }
}

impl fmt::Display for StageFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter()
            .try_for_each(|(name, frames)| write!(f, "{frames} {name}, "))
    }
}

/// What one output queue has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct QueueStats {
    /// Rank at the other end.
    pub peer: u32,
    /// Runs of this rank's own (its application's and its handlers'): records for one rank that were gathered, or a single one.
    pub own_runs: u64,
    /// Runs that came over a lane or a link and go on.
    pub forwarded_runs: u64,
    /// Batches sealed; for a lane, times that it was shown to its consumer.
    pub sends: u64,
    /// Of these, because of age, or because nothing else moved.
    pub aged_sends: u64,
    /// Of these, because of a flush or a fence.
    pub flush_sends: u64,
    /// Times that the queue became full: runs that wait behind one that waits are not counted again.
    pub waits: u64,
    /// The longest of them in nanoseconds, as seen by rounds of progress.
    pub longest_wait_ns: u64,
    /// How long one has lasted that is not over, 0 where none is.
    pub waiting_ns: u64,
}

/// What the queues of one stage have done.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct StageStats {
    /// Name of the stage: `origin`, `remote` and `relay` on the route of three hops.
    #[serde(skip)]
    pub name: &'static str,
    /// Sums over the queues (the longest wait is the longest of any); `peer` means nothing.
    pub all: QueueStats,
    /// Times that own sends met the stage's limit (`origin_sender_limit`, `remote_sender_limit`).
    pub limit_hits: u64,
    /// Each queue that was ever used.
    pub queues: Vec<QueueStats>,
}

impl StageStats {
    pub(crate) fn of(name: &'static str, queues: impl Iterator<Item = QueueStats>, limit_hits: u64) -> Self {
        let queues: Vec<_> = queues
            .filter(|q| q.own_runs + q.forwarded_runs + q.waits > 0)
            .collect();
        let mut all = QueueStats::default();
        for queue in &queues {
            all.own_runs += queue.own_runs;
            all.forwarded_runs += queue.forwarded_runs;
            all.sends += queue.sends;
            all.aged_sends += queue.aged_sends;
            all.flush_sends += queue.flush_sends;
            all.waits += queue.waits;
            all.longest_wait_ns = all.longest_wait_ns.max(queue.longest_wait_ns);
            all.waiting_ns = all.waiting_ns.max(queue.waiting_ns);
        }
        Self {
            name,
            all,
            limit_hits,
            queues,
        }
    }
}

/// What a stream and each of its queues have done on this rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct DetailedStats {
    /// Name of the stream.
    pub stream: String,
    /// This rank.
    pub rank: u32,
    /// The stream's counters.
    pub totals: Stats,
    /// The queues of each stage of the route, in the order of a run's way; in JSON, each under its name. With three hops:
    /// `origin`, queues to representatives and to ranks of this node, into which nothing is forwarded; `remote`, queues to
    /// other nodes' representatives; `relay`, queues to ranks of this node for what came from other nodes, in which nothing
    /// is this rank's own.
    #[serde(flatten, serialize_with = "under_their_names")]
    pub stages: Vec<StageStats>,
}

impl DetailedStats {
    /// The queues of the stage with this name, if the route has one.
    pub fn stage(&self, name: &str) -> Option<&StageStats> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

fn under_their_names<S: serde::Serializer>(stages: &[StageStats], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(stages.iter().map(|stage| (stage.name, stage)))
}

impl fmt::Display for QueueStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs own, {} forwarded; {} sends ({} by age, {} by flush); {} waits, longest {} ns",
            self.own_runs,
            self.forwarded_runs,
            self.sends,
            self.aged_sends,
            self.flush_sends,
            self.waits,
            self.longest_wait_ns
        )?;
        match self.waiting_ns {
            0 => Ok(()),
            wait_ns => write!(f, ", one for {wait_ns} ns by now"),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            sent_bytes,
            broadcasts,
            broadcast_copies,
            delivered,
            discarded,
            undelivered,
            runs_delivered,
            runs_to_fabric,
            runs_from_fabric,
            frames,
            frames_received,
            batches_sent,
            batches_received,
            announced,
            controls_sent,
            wire_bytes,
            would_block,
            queue_waits,
            limit_hits,
            blocked_deliveries,
            bad_headers,
        } = self;
        write!(
            f,
            "{sent} records sent ({sent_bytes} bytes), {delivered} delivered ({runs_delivered} runs), {discarded} discarded, {undelivered} undelivered; \
             {broadcasts} broadcasts, {broadcast_copies} copies; \
             {runs_to_fabric} runs forwarded to other nodes, {runs_from_fabric} from them; \
             frames: {frames}{frames_received} received; \
             {batches_sent} batches sent, {batches_received} received, {announced} by rendezvous; \
             {controls_sent} control messages; {wire_bytes} bytes on the wire; \
             {would_block} sends refused for want of room, {queue_waits} waits, {limit_hits} limit hits, \
             {blocked_deliveries} deliveries blocked, {bad_headers} bad headers"
        )
    }
}

impl fmt::Display for StageStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} limit hits", self.all, self.limit_hits)
    }
}

impl fmt::Display for DetailedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stream `{}` on rank {}", self.stream, self.rank)?;
        writeln!(f, "  {}", self.totals)?;
        for stage in &self.stages {
            writeln!(f, "  {} queues: {stage}", stage.name)?;
            for queue in &stage.queues {
                writeln!(f, "    to rank {}: {queue}", queue.peer)?;
            }
        }
        Ok(())
    }
}
