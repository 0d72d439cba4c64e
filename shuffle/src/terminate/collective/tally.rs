//! Tallies: a number that all ranks add to, each as often as it likes, until it has reached what
//! it is to reach. Every rank hears of that.
//!
//! What a rank adds goes up the tree at once, together with whatever still waits to leave for the
//! same tally, so no wave is needed and nobody asks again: a rank that adds nothing sends one
//! message, by which those above it compare what the tally is to reach.

use super::{Collectives, Operation, Outgoing, Ticket, message};
use crate::error::{Error, Result};
use trihop_transport::topology::Rank;

/// What a tally has on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    /// What it is to reach.
    wanted: u64,
    /// At the top of the tree all that has come; elsewhere what has not been passed on.
    sum: u64,
}

impl Collectives {
    /// Joins the next tally of a channel: every rank does, in the same order as it calls other
    /// collectives of the channel. Where another rank wants something else,
    /// [`Collectives::take_mismatch`] says so.
    pub fn begin_tally(&mut self, channel: u16, wanted: u64) -> Ticket {
        let ticket = self.next_ticket(channel);
        self.entry(ticket).began = true;
        if let Err(error) = self.tally(ticket, self.rank, wanted, 0) {
            self.mismatch = Some(error);
            return ticket;
        }
        match &self.entry(ticket).result {
            None => self.pass_up(ticket, true),
            Some(result) if result[..] == wanted.to_le_bytes() => {}
            Some(_) => self.mismatch = Some(differs(wanted)),
        }
        ticket
    }

    /// Adds to a tally that this rank has joined. Too much is told by
    /// [`Collectives::take_mismatch`], if not here then on another rank.
    pub fn add(&mut self, ticket: Ticket, more: u64) {
        let Some(Tally { wanted, .. }) = self.pending.get(&ticket).and_then(|p| p.tally) else {
            return;
        };
        match self.tally(ticket, self.rank, wanted, more) {
            Ok(()) => self.pass_up(ticket, false),
            Err(error) => self.mismatch = Some(error),
        }
    }

    /// What the rank `source`, below this one, passes on.
    pub(super) fn receive_tally(
        &mut self,
        source: Rank,
        ticket: Ticket,
        data: &[u8],
    ) -> Result<()> {
        let ([wanted, more], []) = data.as_chunks::<8>() else {
            let why = format!("a tally's message of {} bytes", data.len());
            return Err(Error::bad_peer(source.0, why));
        };
        let (wanted, more) = (u64::from_le_bytes(*wanted), u64::from_le_bytes(*more));
        let next = self.next.get(&ticket.channel).copied().unwrap_or(0);
        if ticket.number < next && !self.pending.contains_key(&ticket) {
            // Complete, and known here: who comes to it late has nothing to add.
            return match more {
                0 => Ok(()),
                _ => Err(too_much(source.0, wanted)),
            };
        }
        self.tally(ticket, source.0, wanted, more)?;
        self.pass_up(ticket, false);
        Ok(())
    }

    /// Refuses a result from above that is none of what this rank has called.
    pub(super) fn check_result(
        &self,
        source: Rank,
        ticket: Ticket,
        operation: Operation,
        data: &[u8],
    ) -> Result<()> {
        let Some(entry) = self.pending.get(&ticket) else {
            return Ok(());
        };
        let called = entry.operation.unwrap_or(operation);
        if called != operation {
            let why = format!("rank {source} has called {operation}, and this rank {called}");
            return Err(Error::mismatch("(collectives)", why));
        }
        match entry.tally {
            Some(tally) if data != tally.wanted.to_le_bytes() => Err(differs(tally.wanted)),
            _ => Ok(()),
        }
    }

    fn tally(&mut self, ticket: Ticket, source: u32, wanted: u64, more: u64) -> Result<()> {
        let is_top = self.parent.is_none();
        let entry = self.entry(ticket);
        let known = *entry.operation.get_or_insert(Operation::Tally);
        if known != Operation::Tally {
            let why = format!("rank {source} counts contributors, and others call {known}");
            return Err(Error::mismatch("(collectives)", why));
        }
        let tally = entry.tally.get_or_insert(Tally { wanted, sum: 0 });
        if tally.wanted != wanted {
            let why = format!(
                "rank {source} counts {wanted} contributors of all ranks, and others {}",
                tally.wanted
            );
            return Err(Error::mismatch("(collectives)", why));
        }
        let sum = tally.sum.checked_add(more).filter(|&sum| sum <= wanted);
        let is_complete = entry.result.is_some();
        let Some(sum) = sum.filter(|_| !is_complete || more == 0) else {
            return Err(too_much(source, wanted));
        };
        tally.sum = sum;
        if is_top && sum == wanted && !is_complete {
            self.finish(ticket, Operation::Tally, wanted.to_le_bytes().to_vec());
        }
        Ok(())
    }

    /// Passes on what has come together for a tally; `always`, although it is nothing.
    fn pass_up(&mut self, ticket: Ticket, always: bool) {
        let Some(target) = self.parent else {
            return;
        };
        let Some(tally) = &mut self.entry(ticket).tally else {
            return;
        };
        let (wanted, more) = (tally.wanted, std::mem::take(&mut tally.sum));
        if more == 0 && !always {
            return;
        }
        let data = |more: u64| [wanted.to_le_bytes(), more.to_le_bytes()].concat();
        let kind = Operation::Tally.code();
        let waiting =
            |out: &&mut Outgoing| out.kind == kind && out.bytes[..8] == ticket.word().to_le_bytes();
        let Some(waiting) = self.outgoing.iter_mut().find(waiting) else {
            self.outgoing
                .push_back(message(target, kind, ticket, &data(more)));
            return;
        };
        let (before, _) = waiting.bytes[16..]
            .split_first_chunk()
            .expect("as written here");
        let sum = u64::from_le_bytes(*before).checked_add(more);
        match sum.filter(|&sum| sum <= wanted) {
            Some(sum) => *waiting = message(target, kind, ticket, &data(sum)),
            None => self.mismatch = Some(too_much(self.rank, wanted)),
        }
    }
}

fn too_much(rank: u32, wanted: u64) -> Error {
    let why = format!(
        "more contributors are done than the {wanted} of all ranks, \
         by what rank {rank} or a rank behind it says"
    );
    Error::mismatch("(collectives)", why)
}

fn differs(wanted: u64) -> Error {
    let why = format!("{wanted} contributors of all ranks here, another number elsewhere");
    Error::mismatch("(collectives)", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trihop_transport::topology::Topology;

    /// Rank 0, which is above, has all that it wants; rank 1 calls something else.
    fn differs_from(calls: impl Fn(&mut Collectives) -> Ticket) {
        let at = |rank| Topology::from_node_sizes(&[2], Rank(rank)).unwrap();
        let (mut above, mut below) = (Collectives::new(&at(0)), Collectives::new(&at(1)));
        let ticket = above.begin_tally(7, 3);
        above.add(ticket, 3);
        assert!(above.result(ticket).is_some());
        calls(&mut below);
        let (down, up) = (
            above.front().unwrap().clone(),
            below.front().unwrap().clone(),
        );
        let told = below.receive(Rank(0), down.kind, &down.bytes);
        assert!(matches!(told, Err(Error::Mismatch { .. })), "{told:?}");
        // What comes too late makes no entry that stays for ever.
        let _ = above.receive(Rank(1), up.kind, &up.bytes);
        assert!(above.pending.is_empty());
    }

    #[test]
    fn who_comes_late_with_something_else_is_told() {
        differs_from(|below| below.begin_tally(7, 5));
        differs_from(|below| below.begin(7, Operation::SUM, &[]));
    }

    #[test]
    fn more_than_is_wanted_is_told() {
        let at = |rank| Topology::from_node_sizes(&[2], Rank(rank)).unwrap();
        let mut above = Collectives::new(&at(0));
        let ticket = above.begin_tally(7, 3);
        above.add(ticket, 4);
        assert!(above.take_mismatch().is_some());
        let mut below = Collectives::new(&at(1));
        let ticket = below.begin_tally(7, 3);
        below.add(ticket, u64::MAX);
        assert!(below.take_mismatch().is_some());
    }
}
