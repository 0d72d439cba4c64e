//! Counters of a stream; all are 64 bits wide and count from its opening.

/// What a stream has done on this rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Records that this rank sent, from the application and from handlers.
    pub sent: u64,
    /// Payload bytes of byte records that this rank sent (typed items are not counted one by one).
    pub sent_bytes: u64,
    /// Records delivered here.
    pub delivered: u64,
    /// Runs delivered here.
    pub runs_delivered: u64,
    /// Runs forwarded as source representative.
    pub runs_to_fabric: u64,
    /// Runs forwarded as target representative.
    pub runs_from_fabric: u64,
    /// Frames put on origin lanes by this rank.
    pub origin_frames: u64,
    /// Frames put on relay lanes by this rank.
    pub relay_frames: u64,
    /// Frames put into batches by this rank.
    pub remote_frames: u64,
    /// Frames taken from lanes by this rank.
    pub frames_received: u64,
    /// Batches sealed.
    pub batches_sent: u64,
    /// Batches received.
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
    /// Times that a delivery had to wait for the application.
    pub blocked_deliveries: u64,
    /// Messages dropped because they were none of this job's.
    pub bad_headers: u64,
}
