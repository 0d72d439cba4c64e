//! The count of all nodes, by which fences end where there are several: each node has a
//! [census](trihop_transport::ring::census), and one rank speaks for it.
//!
//! What a node's ranks have sent and delivered together goes up the tree, once nothing waits on
//! any of them. The top says whether the fence is over: it is where as many records were delivered
//! as sent, and no node had got something, before it was counted, that another one had sent after
//! it was. Otherwise they are counted again. Of all streams together each node adds what it had
//! delivered at the last count, so that there are two at least: see [`crate::queue::census`]. Only
//! ranks through which other nodes speak hear of that: a node's others are told in shared memory.

use super::{Collectives, DOWN, Operation, Ticket, message};
use crate::error::{Error, Result};
use crate::queue::census::Share;
use trihop_transport::topology::Rank;

/// A count of all nodes on a rank that is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// What has come together.
    sums: Share,
    /// This rank has added its own.
    has_added: bool,
    /// What the top has said: whether the fence is over.
    said: Option<bool>,
}

impl Collectives {
    /// A fence of a channel begins: every rank calls that, in the same order as it calls other
    /// collectives of the channel. The ticket is for those that are in the count of all nodes.
    /// Where another rank has called something else, [`Collectives::take_mismatch`] says so.
    pub fn begin_count(&mut self, channel: u16) -> Option<Ticket> {
        let ticket = self.next_ticket(channel);
        if !self.is_speaker && self.far.is_empty() {
            return None;
        }
        self.entry(ticket).began = true;
        match self.count_of(ticket, Rank(self.rank)) {
            Ok(_) => Some(ticket),
            Err(error) => {
                self.mismatch = Some(error);
                None
            }
        }
    }

    /// Adds what this rank's node has, or nothing where another speaks for it; once at first, and
    /// once each time that it is to be counted again.
    pub fn count(&mut self, ticket: Ticket, share: Share) {
        if let Ok(count) = self.count_of(ticket, Rank(self.rank)) {
            count.sums.add(share);
            count.has_added = true;
            self.pass_on(ticket);
        }
    }

    /// Whether the fence is over, once that is known; if it is not, it is counted again.
    pub fn counted(&mut self, ticket: Ticket) -> Option<bool> {
        let is_over = self.pending.get_mut(&ticket)?.count.as_mut()?.said.take()?;
        if is_over {
            self.pending.remove(&ticket);
        }
        Some(is_over)
    }

    /// Whether a fence of a channel is counted here, and what the top says of it is not known.
    #[cfg(test)]
    pub fn is_counting(&self, channel: u16) -> bool {
        let mut of = self.pending.iter().filter(|(of, _)| of.channel == channel);
        of.any(|(_, pending)| {
            pending
                .count
                .as_ref()
                .is_some_and(|of| of.said != Some(true))
        })
    }

    /// What other nodes have, as `source` passes it on.
    pub(super) fn receive_count(
        &mut self,
        source: Rank,
        ticket: Ticket,
        data: &[u8],
    ) -> Result<()> {
        let ([sent, delivered, ahead], []) = data.as_chunks::<8>() else {
            let why = format!("a count of {} bytes", data.len());
            return Err(Error::bad_peer(source.0, why));
        };
        if !self.far.contains(&source) {
            return Err(Error::bad_peer(source.0, "a count, not of other nodes"));
        }
        let [sent, delivered, ahead] = [sent, delivered, ahead].map(|of| u64::from_le_bytes(*of));
        let share = Share {
            sent,
            delivered,
            ahead,
        };
        self.count_of(ticket, source)?.sums.add(share);
        self.entry(ticket).heard.push(source);
        self.pass_on(ticket);
        Ok(())
    }

    /// What the top says.
    pub(super) fn receive_said(&mut self, source: Rank, ticket: Ticket, data: &[u8]) -> Result<()> {
        let is_over = match data {
            [is_over @ (0 | 1)] => *is_over == 1,
            _ => {
                return Err(Error::bad_peer(
                    source.0,
                    "what a count has come to, of no sense",
                ));
            }
        };
        let waits = |count: &Count| count.said.is_none();
        match self.pending.get(&ticket) {
            Some(entry) if entry.up_sent && entry.count.as_ref().is_some_and(waits) => {}
            _ => return Err(Error::bad_peer(source.0, "what nothing was counted for")),
        }
        self.say(ticket, is_over);
        Ok(())
    }

    /// The count of this ticket, in which this rank and `source` are.
    fn count_of(&mut self, ticket: Ticket, source: Rank) -> Result<&mut Count> {
        let entry = self.entry(ticket);
        let known = *entry.operation.get_or_insert(Operation::Count);
        if known != Operation::Count {
            let why =
                format!("rank {source}, or one behind it, has called a fence, and others {known}");
            return Err(Error::mismatch("(collectives)", why));
        }
        Ok(entry.count.get_or_insert_default())
    }

    /// Passes on what has come together, once all have added theirs.
    fn pass_on(&mut self, ticket: Ticket) {
        let (all, parent) = (self.far.len(), self.parent);
        let entry = self.entry(ticket);
        let heard = entry.heard.len();
        let Some(count) = entry.count.as_mut() else {
            return;
        };
        if !count.has_added || heard < all {
            return;
        }
        count.has_added = false;
        let sums = std::mem::take(&mut count.sums);
        entry.heard.clear();
        match parent {
            Some(target) => {
                entry.up_sent = true;
                let data = [sums.sent, sums.delivered, sums.ahead];
                let data = data.map(u64::to_le_bytes).concat();
                let up = message(target, Operation::Count.code(), ticket, &data);
                self.outgoing.push_back(up);
            }
            None => self.say(ticket, sums.is_all()),
        }
    }

    /// Says to all below, and to this rank, whether the fence is over.
    fn say(&mut self, ticket: Ticket, is_over: bool) {
        let code = Operation::Count.code() | DOWN;
        let down = |&target: &Rank| message(target, code, ticket, &[u8::from(is_over)]);
        self.outgoing.extend(self.far.iter().map(down));
        let entry = self.entry(ticket);
        entry.up_sent = false;
        if let Some(count) = &mut entry.count {
            count.said = Some(is_over);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trihop_transport::topology::Topology;

    /// Two nodes of one rank each: the one above, and the one below.
    fn two() -> [Collectives; 2] {
        [0, 1]
            .map(|rank| Collectives::new(&Topology::from_node_sizes(&[1, 1], Rank(rank)).unwrap()))
    }

    fn sent(from: &mut Collectives) -> (u32, Vec<u8>) {
        let out = from.front().unwrap().clone();
        from.pop();
        (out.kind, out.bytes.to_vec())
    }

    #[test]
    fn it_is_over_when_all_is_delivered_and_nothing_came_too_early() {
        let [mut above, mut below] = two();
        let tickets = [&mut above, &mut below].map(|of| of.begin_count(7).unwrap());
        let mut count = |own: [u64; 3], other: [u64; 3]| {
            let share = |[sent, delivered, ahead]: [u64; 3]| Share {
                sent,
                delivered,
                ahead,
            };
            above.count(tickets[0], share(own));
            below.count(tickets[1], share(other));
            let (kind, bytes) = sent(&mut below);
            above.receive(Rank(1), kind, &bytes).unwrap();
            let (kind, bytes) = sent(&mut above);
            below.receive(Rank(0), kind, &bytes).unwrap();
            let said = [above.counted(tickets[0]), below.counted(tickets[1])];
            assert_eq!(said[0], said[1]);
            said[0].unwrap()
        };
        assert!(!count([3, 0, 0], [0, 2, 0]), "one is on its way");
        assert!(!count([3, 0, 0], [0, 2, 0]), "still");
        assert!(
            !count([3, 0, 1], [1, 4, 0]),
            "as many, of which one came early"
        );
        assert!(!count([3, 0, 0], [1, 4, 1]));
        assert!(count([4, 1, 0], [1, 4, 0]));
        assert!(above.pending.is_empty() && below.pending.is_empty());
    }

    #[test]
    fn who_calls_something_else_is_told() {
        let [mut above, mut below] = two();
        above.begin_count(7);
        below.begin(7, Operation::SUM, &[]);
        let (kind, bytes) = sent(&mut below);
        let told = above.receive(Rank(1), kind, &bytes);
        assert!(matches!(told, Err(Error::Mismatch { .. })), "{told:?}");
        // The other way round, whoever is first.
        for is_first in [true, false] {
            let [mut above, mut below] = two();
            let ticket = below.begin_count(7).unwrap();
            below.count(ticket, Share::default());
            let (kind, bytes) = sent(&mut below);
            let told = match is_first {
                true => {
                    above.begin(7, Operation::SUM, &[]);
                    above.receive(Rank(1), kind, &bytes)
                }
                false => {
                    above.receive(Rank(1), kind, &bytes).unwrap();
                    above.begin(7, Operation::SUM, &[]);
                    above.take_mismatch().map_or(Ok(()), Err)
                }
            };
            assert!(matches!(told, Err(Error::Mismatch { .. })), "{told:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let bad = |of: &mut Collectives, source: u32, kind: u32, bytes: &[u8]| {
            let told = of.receive(Rank(source), kind, bytes);
            assert!(matches!(told, Err(Error::BadPeer { .. })), "{told:?}");
        };
        let [mut above, mut below] = two();
        let ticket = below.begin_count(7).unwrap();
        below.count(ticket, Share::default());
        let (kind, bytes) = sent(&mut below);
        bad(&mut above, 1, kind, &bytes[..bytes.len() - 1]);
        bad(&mut above, 5, kind, &bytes);
        above.receive(Rank(1), kind, &bytes).unwrap();
        bad(&mut above, 1, kind, &bytes);
        let down = [&bytes[..8], &[2]].concat();
        bad(&mut below, 0, kind | DOWN, &down);
        // Of a fence that this rank has not come to, or has not counted for.
        let mut word = down;
        word[8] = 1;
        below.receive(Rank(0), kind | DOWN, &word).unwrap();
        bad(&mut below, 0, kind | DOWN, &word);
        word[0] ^= 1;
        bad(&mut below, 0, kind | DOWN, &word);
    }
}
