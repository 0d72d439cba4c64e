//! The job's own stream, over which collectives travel.

use std::rc::Rc;

use trihop_transport::protocol::wire::BadRun;
use trihop_transport::topology::Rank;

use super::{Endpoint, SYSTEM_STREAM};
use crate::config::{Shares, StreamOptions};
use crate::deliver::Delivery;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::terminate::collective::{Operation, Ticket};

impl<'h> Endpoint<'h> {
    /// Options of the system stream: small, and nothing waits.
    pub fn system_options() -> StreamOptions {
        StreamOptions {
            remote_buftarget_bytes: 8192,
            remote_maxrpc: 2,
            linger_us: 0,
            run_bytes: 512,
            spill_bytes: 64 << 10,
            given_shares: Some(Shares {
                lane_budget_bytes: 512 << 10,
                send_pool_bytes: 64 << 10,
                receive_pool_bytes: 64 << 10,
                run_table_bytes: 16 << 10,
                small_slot_bytes: 512,
                spill_mark_bytes: 64 << 10,
                ..Shares::default()
            }),
            ..StreamOptions::default()
        }
    }

    /// Sink of the system stream: hands collectives' messages to the endpoint.
    pub fn system_sink(&self) -> Sink<'h> {
        let heard = Rc::clone(&self.heard);
        Sink::Handler(Box::new(move |delivery, _, _| {
            let mut records = 1;
            let source = Rank(delivery.source());
            match delivery {
                Delivery::Run(run) => {
                    records = usize::from(run.header.count);
                    for record in run.records() {
                        let (kind, bytes) = record?;
                        heard.borrow_mut().push_back((source, kind, bytes.to_vec()));
                    }
                }
                Delivery::Record { kind, bytes, .. } => {
                    heard.borrow_mut().push_back((source, kind, bytes.to_vec()));
                }
            }
            Ok::<usize, BadRun>(records)
        }))
    }

    /// Takes in and sends out messages of collectives.
    pub(super) fn pump_collectives(&self) -> Result<bool> {
        let mut collectives = self.collectives.borrow_mut();
        let mut worked = false;
        while let Some((source, kind, bytes)) = self.heard.borrow_mut().pop_front() {
            worked = true;
            if !collectives.receive(source, kind, &bytes) {
                tracing::error!(%source, kind, "a collective message that makes no sense was dropped");
            }
        }
        let streams = self.streams.borrow();
        let Some(system) = streams.first() else {
            return Ok(worked);
        };
        while let Some(message) = collectives.front() {
            match system
                .out
                .borrow_mut()
                .try_send(message.target, message.kind, &message.bytes)
            {
                Ok(()) => {
                    collectives.pop();
                    worked = true;
                }
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(worked)
    }

    /// Contributes to a collective on the job's own channel.
    pub fn begin_collective(&self, operation: Operation, contribution: &[u8]) -> Ticket {
        self.collectives
            .borrow_mut()
            .begin(SYSTEM_STREAM, operation, contribution)
    }

    /// Whether all results of collectives that others wait for have left this rank.
    pub fn has_passed_on_results(&self) -> bool {
        let streams = self.streams.borrow();
        let sent = streams.first().is_none_or(|system| {
            let out = system.out.borrow();
            !out.has_partial() && out.queues.remotes.iter_busy().all(|r| r.ready_batches() == 0)
        });
        sent && self.collectives.borrow().front().is_none()
    }

    /// As [`Endpoint::has_passed_on_results`], and the provider is done with sending them: no progress of this rank is
    /// needed for them to arrive, since nobody relays them and their receivers still wait.
    pub fn has_left_results(&self) -> bool {
        let streams = self.streams.borrow();
        self.has_passed_on_results()
            && streams
                .first()
                .is_none_or(|system| system.out.borrow().queues.remotes.has_left())
    }

    /// Result of a collective, once it is there.
    pub fn collective_result(&self, ticket: Ticket) -> Option<Vec<u8>> {
        self.collectives.borrow_mut().result(ticket)
    }
}
