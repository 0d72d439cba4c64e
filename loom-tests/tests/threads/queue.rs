//! What the delivery queue keeps its buffers in, as it ships.

#[path = "../../../shuffle/src/queue/spare.rs"]
pub mod spare;
