//! The hand-over to a delivery thread as it ships; its bell wakes the model's sleeper.

#[path = "../../../../shuffle/src/deliver/delivery.rs"]
mod delivery;
#[path = "../../../../shuffle/src/deliver/handover.rs"]
mod handover;
#[path = "../../../../shuffle/src/deliver/queue.rs"]
mod queue;

use trihop_loom_tests::shuttled::BlockingSleeper;
use trihop_transport::ring::Shipped;
use trihop_transport::ring::doorbell;

pub(crate) use delivery::Delivery;
pub(crate) use handover::{Chunk, Handover};
pub(crate) use queue::DeliveryQueue;

/// As `trihop_transport::ring::Bell`.
pub struct Bell(pub BlockingSleeper);

impl Bell {
    pub fn ring(&self) {
        doorbell::call::<_, Shipped>(&self.0);
    }
}
