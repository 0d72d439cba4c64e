//! Where the deliveries of a stream go.

use std::sync::Arc;

use trihop_transport::protocol::wire::BadRun;

use super::outbox::Outbox;
use crate::deliver::{Delivery, DeliveryQueue, Handover};

/// A handler as the engine calls it: once per run, never once per record. Takes the number of records that are done
/// already, returns the number that are done now: fewer than all where a spill that it has overfilled keeps the rest waiting.
pub(crate) type Handler<'h> =
    Box<dyn FnMut(Delivery<'_>, usize, &mut Outbox<'_>) -> Result<usize, BadRun> + 'h>;

/// Where deliveries go.
pub(crate) enum Sink<'h> {
    Handler(Handler<'h>),
    Queue(DeliveryQueue),
    /// A delivery thread calls the handler.
    Thread(Arc<Handover>),
    /// The stream was shut down.
    Closed,
}
