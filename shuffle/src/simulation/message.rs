//! Records or items: what a handler gets, and what it sends with.

use trihop_transport::topology::Rank;

use crate::deliver::{Delivery, Message};
use crate::engine::BadRun;
use crate::engine::outbox::Outbox;
use crate::error::Error;
use crate::face::shuffle::each_message;
use crate::queue::audience::BroadcastTo;

/// What a handler sends with: as [`Outbox`], for records and for items.
pub struct SimulationOutbox<'a, 'b> {
    pub(super) outbox: &'a mut Outbox<'b>,
    pub(super) item_bytes: usize,
}

impl SimulationOutbox<'_, '_> {
    /// Sends a record (or an item, whose `kind` is nothing), or spills it.
    ///
    /// # Errors
    /// [`Error::SpillFull`] when the spill is full too, and the errors of a bad rank or length.
    pub fn send(&mut self, target: Rank, kind: u32, bytes: &[u8]) -> Result<(), Error> {
        match self.item_bytes {
            0 => self.outbox.send(target, kind, bytes),
            item_bytes => {
                check_item(item_bytes, bytes)?;
                self.outbox.push_item(target, bytes)
            }
        }
    }

    /// Broadcasts a record or an item, or spills it.
    ///
    /// # Errors
    /// As [`SimulationOutbox::send`].
    pub fn broadcast(&mut self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<(), Error> {
        if self.item_bytes > 0 {
            check_item(self.item_bytes, bytes)?;
        }
        self.outbox.broadcast(kind, bytes, to)
    }
}

/// Refuses what is no item.
pub(super) fn check_item(item_bytes: usize, bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() == item_bytes {
        return Ok(());
    }
    let why = format!("{} bytes sent as an item of {item_bytes}", bytes.len());
    Err(Error::config("item_bytes", why))
}

/// Hands over records, or items, from number `done` on until `take` returns false or fails;
/// returns how many are done then.
pub(super) fn each(
    delivery: Delivery<'_>,
    item_bytes: usize,
    done: usize,
    mut take: impl FnMut(Message<'_>, bool) -> Result<bool, BadRun>,
) -> Result<usize, BadRun> {
    let run = match delivery {
        Delivery::Run(run) if item_bytes > 0 => run,
        records => return each_message(records, done, take),
    };
    let source = Rank(run.header.source);
    let count = usize::from(run.header.count);
    if run.payload.len() < count * item_bytes {
        return Err(BadRun::Records {
            count: run.header.count,
            bytes: run.payload.len(),
        });
    }
    let items = run.payload.chunks_exact(item_bytes).take(count);
    for (number, bytes) in items.enumerate().skip(done) {
        let message = Message {
            source,
            kind: 0,
            bytes,
        };
        if !take(message, number == done)? {
            return Ok(number);
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use trihop_transport::topology::Topology;

    use super::*;
    use crate::simulation::{Simulation, SimulationOptions};

    /// Half an item would shift all items behind it in its run.
    #[test]
    fn items_of_another_length_are_refused_from_the_application_and_from_handlers() {
        let topology = Topology::from_node_sizes(&[1, 1], Rank(0)).unwrap();
        let options = SimulationOptions {
            item_bytes: 8,
            ..SimulationOptions::default()
        };
        let (came, refused) = (Cell::new(0), Cell::new(0));
        let mut job = Simulation::new(&topology, options, |_, message, outbox| {
            came.set(came.get() + 1);
            assert_eq!(message.bytes.len(), 8);
            for bytes in [&[][..], &[1; 7], &[1; 9], &[1; 16]] {
                let error = outbox.send(Rank(0), 0, bytes).expect_err("no item");
                assert!(matches!(error, Error::Config { .. }), "{error}");
                refused.set(refused.get() + 1);
            }
        })
        .unwrap();
        for bytes in [&[][..], &[1; 7], &[1; 9], &[1; 16]] {
            let error = job
                .try_send(Rank(0), Rank(1), 0, bytes)
                .expect_err("no item");
            let text = error.to_string();
            let said = format!("{} bytes sent as an item of 8", bytes.len());
            assert!(text.contains(&said), "{text}");
        }
        job.try_send(Rank(0), Rank(1), 0, &[1; 8]).unwrap();
        job.fence().unwrap();
        drop(job);
        assert_eq!((came.get(), refused.get()), (1, 4));
    }
}
