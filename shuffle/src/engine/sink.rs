//! Where the deliveries of a stream go.

use std::collections::VecDeque;
use std::sync::Arc;

use trihop_transport::park::Gauge;
use trihop_transport::protocol::wire::BadRun;
use trihop_transport::topology::Rank;

use super::outbox::Outbox;
use crate::deliver::{Delivery, DeliveryQueue, Handover};

/// The handlers of a rank's streams. They belong to its seat, so that the engine may go to another
/// thread where they may not.
pub(crate) trait Handlers {
    /// Whether the handler of stream `stream` may be called by now.
    fn is_live(&self, stream: usize) -> bool;

    /// Calls the handler of stream `stream`: once per run, never once per record. Takes the number
    /// of records that are done already, returns the number that are done now: fewer than all where
    /// a spill that it has overfilled keeps the rest waiting.
    fn call(
        &mut self,
        stream: usize,
        delivery: Delivery<'_>,
        done: usize,
        outbox: &mut Outbox<'_>,
    ) -> Result<usize, BadRun>;
}

/// Where deliveries go.
pub(crate) enum Sink {
    /// The seat has a handler for the stream.
    Handler,
    Queue(DeliveryQueue),
    /// A delivery thread calls the handler.
    Thread(Arc<Handover>),
    /// The engine's own collectives.
    Collectives(Heard),
    /// The stream was shut down.
    Closed,
}

impl Sink {
    /// Way to the delivery thread, if there is one.
    pub fn handover(&self) -> Option<Arc<Handover>> {
        match self {
            Self::Thread(handover) => Some(Arc::clone(handover)),
            _ => None,
        }
    }

    /// What says to handlers on delivery threads whether the stream's spill is pressed.
    pub fn gauge(&self) -> Arc<Gauge> {
        self.handover()
            .map_or_else(Arc::default, |handover| Arc::clone(&handover.gauge))
    }
}

/// Messages of collectives that have arrived: source, kind and bytes.
#[derive(Debug, Default)]
pub(crate) struct Heard(VecDeque<(Rank, u32, Vec<u8>)>);

impl Heard {
    /// Keeps the messages of a delivery.
    pub fn hear(&mut self, delivery: &Delivery<'_>) -> Result<(), BadRun> {
        let source = Rank(delivery.source());
        match delivery {
            Delivery::Run(run) => {
                for record in run.records() {
                    let (kind, bytes) = record?;
                    self.0.push_back((source, kind, bytes.to_vec()));
                }
            }
            Delivery::Record { kind, bytes, .. } => {
                let bytes = bytes.as_slice().to_vec();
                self.0.push_back((source, *kind, bytes));
            }
        }
        Ok(())
    }

    /// The oldest.
    pub fn pop(&mut self) -> Option<(Rank, u32, Vec<u8>)> {
        self.0.pop_front()
    }
}
