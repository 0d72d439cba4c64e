//! Counters of a stream for C: a struct that may grow, and JSON.

use std::ffi::c_char;

use super::argument;
use super::sized::{check_size, store_sized};
use super::status::{Failure, trihop_status_t};
use crate::Stats;
use crate::route::stage;

/// What a stream has done on this rank since it was opened. Later versions add fields at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct trihop_stats_t {
    /// Bytes of this struct as the caller knows it; set by the library.
    pub size: usize,
    /// Records that this rank sent, from the application and from handlers.
    pub sent: u64,
    /// Payload bytes of what this rank sent: records and items, and each copy of a broadcast.
    pub sent_bytes: u64,
    /// Records delivered here.
    pub delivered: u64,
    /// Runs delivered here.
    pub runs_delivered: u64,
    /// Runs of others that this rank forwarded to other nodes, as a source representative does.
    pub runs_to_fabric: u64,
    /// Runs of others that this rank forwarded to ranks of its node, as a target representative does.
    pub runs_from_fabric: u64,
    /// Frames put into origin queues by this rank.
    pub origin_frames: u64,
    /// Frames put into relay queues by this rank.
    pub relay_frames: u64,
    /// Frames put into remote queues by this rank.
    pub remote_frames: u64,
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
    /// Times that a delivery had to wait for the application.
    pub blocked_deliveries: u64,
    /// Messages dropped because they were broken, or none of this job's.
    pub bad_headers: u64,
    /// Frames that came from ranks of this node: taken from lanes, and from the links that `fabric-only` has in their place.
    pub frames_received: u64,
    /// Broadcasts that this rank sent; their copies are in `sent`, one for each rank that gets it.
    pub broadcasts: u64,
    /// Copies of broadcasts that this rank put into its queues, of its own and as a representative.
    pub broadcast_copies: u64,
    /// Records that arrived and were dropped on purpose (`deliverq_discard`).
    pub discarded: u64,
    /// Times that own sends met `origin_sender_limit` or `remote_sender_limit`.
    pub limit_hits: u64,
    /// Records that arrived and were never delivered because the job failed, or was dropped without being shut down.
    pub undelivered: u64,
}

impl trihop_stats_t {
    fn from_rust(stats: &Stats) -> Self {
        // The list is complete: a new counter of the library is missed by no field here.
        let &Stats {
            sent,
            sent_bytes,
            delivered,
            runs_delivered,
            runs_to_fabric,
            runs_from_fabric,
            ref frames,
            batches_sent,
            batches_received,
            announced,
            controls_sent,
            wire_bytes,
            would_block,
            queue_waits,
            blocked_deliveries,
            bad_headers,
            frames_received,
            broadcasts,
            broadcast_copies,
            discarded,
            limit_hits,
            undelivered,
        } = stats;
        Self {
            size: size_of::<Self>(),
            sent,
            sent_bytes,
            delivered,
            runs_delivered,
            runs_to_fabric,
            runs_from_fabric,
            origin_frames: frames.of(stage::ORIGIN),
            relay_frames: frames.of(stage::RELAY),
            remote_frames: frames.of(stage::REMOTE),
            batches_sent,
            batches_received,
            announced,
            controls_sent,
            wire_bytes,
            would_block,
            queue_waits,
            blocked_deliveries,
            bad_headers,
            frames_received,
            broadcasts,
            broadcast_copies,
            discarded,
            limit_hits,
            undelivered,
        }
    }
}

/// Why there are no counters now.
pub(crate) fn busy() -> Failure {
    let why = "the engine is in use and does not come free; try again";
    Failure::new(trihop_status_t::TRIHOP_ERR_WOULD_BLOCK, why)
}

/// Fills the caller's struct, as much of it as both know.
///
/// # Safety
/// `place` is null, or points to `size` bytes that nobody else uses.
pub(crate) unsafe fn fill(stats: &Stats, place: *mut trihop_stats_t, size: usize) -> Result<(), Failure> {
    check_size(size)?;
    let mut filled = trihop_stats_t::from_rust(stats);
    filled.size = size;
    // SAFETY: as the caller promises; all fields have eight bytes, so that there is no padding.
    unsafe { store_sized(&filled, place, size, "stats") }
}

/// As [`fill`], with counters that may not have been to be had.
///
/// # Safety
/// As [`fill`].
pub(crate) unsafe fn give(
    stats: Option<Stats>,
    place: *mut trihop_stats_t,
    size: usize,
) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    unsafe { fill(&stats.ok_or_else(busy)?, place, size) }
}

const _: () = assert!(size_of::<trihop_stats_t>().is_multiple_of(8) && size_of::<usize>() == 8);

/// Writes the counters as one JSON object into the caller's buffer.
///
/// # Safety
/// As [`argument::give_json`].
pub(crate) unsafe fn give_json(
    stats: Option<Stats>,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    let stats = stats.ok_or_else(busy)?;
    // SAFETY: as the caller promises.
    unsafe { argument::give_json(&stats, text, capacity, length) }
}
