//! The hand-over to a delivery thread as it ships; its bell wakes the model's sleeper.

#[path = "../../../../shuffle/src/deliver/delivery.rs"]
mod delivery;
#[path = "../../../../shuffle/src/deliver/handover.rs"]
mod handover;
#[path = "../../../../shuffle/src/deliver/queue.rs"]
mod queue;

use std::cell::RefCell;
use std::sync::Arc;

use trihop_loom_tests::shuttled::BlockingSleeper;
use trihop_transport::park::Gauge;
use trihop_transport::ring::Shipped;
use trihop_transport::ring::doorbell;

pub(crate) use delivery::Delivery;
pub(crate) use handover::{Calls, Chunk, Handover};
pub(crate) use queue::DeliveryQueue;

shuttle::thread_local! {
    static OVERFILLED: RefCell<Option<Arc<Gauge>>> = const { RefCell::new(None) };
}

/// As that of `overfilled.rs`, for threads of a model.
pub fn note_overfilled(gauge: &Arc<Gauge>) {
    OVERFILLED.with(|overfilled| *overfilled.borrow_mut() = Some(Arc::clone(gauge)));
}

fn take_overfilled() -> Option<Arc<Gauge>> {
    OVERFILLED.with(RefCell::take)
}

/// As `trihop_transport::ring::Bell`.
pub struct Bell(pub BlockingSleeper);

impl Bell {
    pub fn ring(&self) {
        doorbell::call::<_, Shipped>(&self.0);
    }
}
