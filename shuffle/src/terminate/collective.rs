//! Small collectives along a tree over the nodes: barrier, reduction of a few integers, gathering
//! of small byte strings.
//!
//! Their messages travel as records of a stream of their own (id 0), so that no launcher is needed
//! after start. A pure state machine: messages in, messages out.
//!
//! The tree is a route of its own ([`crate::route::Tree`]), over edges of its own, whatever the
//! routes of other streams are. Parent and child share an edge, so nobody relays a collective's
//! message, and a rank whose own messages have left is not needed by anybody (which the end of a
//! job relies on).

mod nodes;
mod tally;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use trihop_transport::topology::{Rank, Topology};

use super::reduce::{Kind, Reduce, bytes_of};
use crate::error::{Error, Result};
use crate::route::Tree;
use nodes::Count;
use tally::Tally;

/// What a collective does with the contributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Reduce(Reduce, Kind),
    Gather,
    /// A contribution is the root's rank, as 8 bytes, and behind it what the root has to say.
    Broadcast,
    /// A number that ranks add to until it has reached what all of them say; see [`tally`].
    Tally,
    /// A fence; see [`nodes`].
    Count,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reduce(Reduce::Sum, Kind::Unsigned) => {
                f.write_str("a reduction (Sum) or barrier")
            }
            Self::Reduce(Reduce::Min, Kind::Unsigned) => {
                f.write_str("a reduction (Min) or the opening of a stream")
            }
            Self::Reduce(reduce, kind) => write!(f, "a reduction ({reduce:?} of {kind})"),
            Self::Gather => f.write_str("a gathering"),
            Self::Broadcast => f.write_str("a broadcast to all"),
            Self::Tally => f.write_str("a count of contributors"),
            Self::Count => f.write_str("a fence"),
        }
    }
}

impl Operation {
    /// As barriers are.
    pub const SUM: Self = Self::Reduce(Reduce::Sum, Kind::Unsigned);

    fn code(self) -> u32 {
        match self {
            Self::Reduce(reduce, kind) => reduce as u32 | (kind as u32) << 4,
            Self::Gather => 8,
            Self::Broadcast => 9,
            Self::Tally => 10,
            Self::Count => 11,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        let is_it = |operation: &Self| operation.code() == code;
        let reductions = Kind::ALL
            .into_iter()
            .flat_map(|kind| Reduce::ALL.map(|reduce| Self::Reduce(reduce, kind)));
        reductions
            .chain([Self::Gather, Self::Broadcast, Self::Tally, Self::Count])
            .find(is_it)
    }
}

/// Name of one collective: the `number`-th on its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    channel: u16,
    number: u64,
}

impl Ticket {
    fn word(self) -> u64 {
        u64::from(self.channel) << 48 | self.number & ((1 << 48) - 1)
    }

    fn from_word(word: u64) -> Self {
        Self {
            channel: (word >> 48) as u16,
            number: word & ((1 << 48) - 1),
        }
    }
}

/// Message of a collective, to be sent as a record of stream 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub target: Rank,
    pub kind: u32,
    /// One memory for all that get the same.
    pub bytes: Arc<[u8]>,
}

/// Who has not come to a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub channel: u16,
    /// It is this rank, and others have.
    pub is_behind: bool,
    /// One hop away, and speak for others too: who has not come, or, where this rank is behind,
    /// who has.
    pub ranks: Vec<Rank>,
}

const DOWN: u32 = 1 << 8;

#[derive(Debug, Clone, Default)]
struct Pending {
    operation: Option<Operation>,
    began: bool,
    /// Children that have contributed.
    heard: Vec<Rank>,
    reduced: Option<Vec<u64>>,
    /// By contributor, where the order of a reduction matters.
    parts: BTreeMap<u32, Vec<u64>>,
    /// By rank; of a broadcast the root's.
    gathered: BTreeMap<u32, Vec<u8>>,
    up_sent: bool,
    tally: Option<Tally>,
    count: Option<Count>,
    result: Option<Vec<u8>>,
}

/// All collectives of a rank.
#[derive(Debug, Clone)]
pub(crate) struct Collectives {
    rank: u32,
    size: u32,
    parent: Option<Rank>,
    children: Vec<Rank>,
    /// Of the children those through which other nodes speak.
    far: Vec<Rank>,
    /// This rank speaks for its node.
    is_speaker: bool,
    next: BTreeMap<u16, u64>,
    /// Boxed: the map keeps room for eleven once it has had one.
    pending: BTreeMap<Ticket, Box<Pending>>,
    outgoing: VecDeque<Outgoing>,
    mismatch: Option<Error>,
}

impl Collectives {
    pub fn new(topology: &Topology) -> Self {
        let tree = Tree::new(topology.clone());
        Self {
            rank: topology.rank().0,
            size: topology.size(),
            parent: tree.parent(),
            children: tree.children().to_vec(),
            far: tree.far().to_vec(),
            is_speaker: Tree::speaker(topology) == topology.rank(),
            next: BTreeMap::new(),
            pending: BTreeMap::new(),
            outgoing: VecDeque::new(),
            mismatch: None,
        }
    }

    fn entry(&mut self, ticket: Ticket) -> &mut Pending {
        self.pending.entry(ticket).or_default()
    }

    fn next_ticket(&mut self, channel: u16) -> Ticket {
        let next = self.next.entry(channel).or_insert(0);
        let number = *next;
        *next += 1;
        Ticket { channel, number }
    }

    /// Contributes to the next collective of a channel; every rank does so in the same order. Where
    /// another rank has called another one, [`Collectives::take_mismatch`] says so.
    pub fn begin(&mut self, channel: u16, operation: Operation, contribution: &[u8]) -> Ticket {
        let ticket = self.next_ticket(channel);
        let rank = self.rank;
        let entry = self.entry(ticket);
        entry.began = true;
        match merge(entry, operation, Rank(rank), true, contribution) {
            Ok(()) => self.advance(ticket),
            Err(error) => self.mismatch = Some(error),
        }
        ticket
    }

    /// Takes a message of a collective.
    ///
    /// # Errors
    /// It makes no sense: its sender is broken, or has called another collective than this rank.
    pub fn receive(&mut self, source: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        let (Some(operation), Some((word, data))) = (
            Operation::from_code(kind & 0xff),
            bytes.split_first_chunk::<8>(),
        ) else {
            let why = format!(
                "a collective's message of kind {kind:#x} and {} bytes",
                bytes.len()
            );
            return Err(Error::bad_peer(source.0, why));
        };
        let ticket = Ticket::from_word(u64::from_le_bytes(*word));
        if kind & DOWN != 0 {
            if self.parent != Some(source) {
                return Err(Error::bad_peer(
                    source.0,
                    "a collective's result, not from above",
                ));
            }
            self.check_result(source, ticket, operation, data)?;
            if operation == Operation::Count {
                return self.receive_said(source, ticket, data);
            }
            self.finish(ticket, operation, data.to_vec());
            return Ok(());
        }
        if !self.children.contains(&source) {
            return Err(Error::bad_peer(source.0, "a contribution, not from below"));
        }
        if operation == Operation::Tally {
            return self.receive_tally(source, ticket, data);
        }
        if ticket.number < self.begun(ticket.channel) && !self.pending.contains_key(&ticket) {
            let why = format!(
                "rank {source} calls {operation}, and others have called another collective"
            );
            return Err(Error::mismatch("(collectives)", why));
        }
        if self.entry(ticket).heard.contains(&source) {
            return Err(Error::bad_peer(
                source.0,
                "two contributions to one collective",
            ));
        }
        if operation == Operation::Count {
            return self.receive_count(source, ticket, data);
        }
        let entry = self.entry(ticket);
        entry.heard.push(source);
        merge(entry, operation, source, false, data)?;
        self.advance(ticket);
        Ok(())
    }

    /// Whether nothing is to be sent, and nothing to be said.
    #[inline]
    pub fn is_still(&self) -> bool {
        self.outgoing.is_empty() && self.mismatch.is_none()
    }

    /// Collectives of a channel that have begun here.
    pub fn begun(&self, channel: u16) -> u64 {
        self.next.get(&channel).copied().unwrap_or(0)
    }

    /// What this rank has called does not go with what others have, as is known from elsewhere.
    pub fn refuse(&mut self, mismatch: Error) {
        self.mismatch.get_or_insert(mismatch);
    }

    /// Why what this rank has called does not go with what had come from others.
    pub fn take_mismatch(&mut self) -> Option<Error> {
        self.mismatch.take()
    }

    fn advance(&mut self, ticket: Ticket) {
        let children = self.children.len();
        let parent = self.parent;
        let entry = self.entry(ticket);
        let (true, true, false) = (entry.began, entry.heard.len() == children, entry.up_sent)
        else {
            return;
        };
        let operation = entry.operation.expect("set when it began");
        entry.up_sent = true;
        let data = match operation {
            Operation::Reduce(reduce, kind) => {
                for (_, values) in std::mem::take(&mut entry.parts) {
                    add_up(&mut entry.reduced, values, reduce, kind);
                }
                let values = entry.reduced.as_deref().unwrap_or_default();
                bytes_of(values.iter().copied())
            }
            Operation::Broadcast => {
                let root = entry.reduced.iter().flatten();
                let mut data: Vec<u8> = root.flat_map(|root| root.to_le_bytes()).collect();
                entry.gathered.values().for_each(|bytes| data.extend(bytes));
                data
            }
            Operation::Tally | Operation::Count => return,
            Operation::Gather => {
                let mut data = Vec::new();
                for (rank, bytes) in std::mem::take(&mut entry.gathered) {
                    data.extend_from_slice(&rank.to_le_bytes());
                    data.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                    data.extend_from_slice(&bytes);
                }
                data
            }
        };
        match parent {
            Some(target) => {
                self.outgoing
                    .push_back(message(target, operation.code(), ticket, &data))
            }
            None => self.finish(ticket, operation, data),
        }
    }

    fn finish(&mut self, ticket: Ticket, operation: Operation, data: Vec<u8>) {
        if let Some((&first, others)) = self.children.split_first() {
            let first = message(first, operation.code() | DOWN, ticket, &data);
            let others = others.iter().map(|&target| Outgoing {
                target,
                ..first.clone()
            });
            self.outgoing.extend(others);
            self.outgoing.push_back(first);
        }
        self.entry(ticket).result = Some(data);
    }

    /// The result, once it is there; it is given out once.
    pub fn result(&mut self, ticket: Ticket) -> Option<Vec<u8>> {
        self.pending.get(&ticket)?.result.as_ref()?;
        let pending = *self.pending.remove(&ticket)?;
        pending.result
    }

    /// What is missing of the collectives that are under way.
    pub fn missing(&self) -> impl Iterator<Item = Missing> {
        self.pending.iter().filter_map(|(ticket, pending)| {
            let is_behind = !pending.began;
            let ranks = match is_behind {
                true => pending.heard.clone(),
                false if pending.result.is_some() || pending.tally.is_some() => return None,
                false => {
                    let all = match &pending.count {
                        Some(_) if pending.up_sent => &[],
                        Some(_) => &self.far[..],
                        None => &self.children[..],
                    };
                    let missing = all.iter().filter(|child| !pending.heard.contains(child));
                    let missing = missing.copied();
                    missing
                        .chain(self.parent.filter(|_| pending.up_sent))
                        .collect()
                }
            };
            let channel = ticket.channel;
            (!ranks.is_empty()).then_some(Missing {
                channel,
                is_behind,
                ranks,
            })
        })
    }

    /// The oldest message to be sent.
    pub fn front(&self) -> Option<&Outgoing> {
        self.outgoing.front()
    }

    /// The oldest message has been sent.
    pub fn pop(&mut self) {
        self.outgoing.pop_front();
    }

    /// Contributions of all ranks out of a gathered result.
    pub fn contributions(&self, result: &[u8]) -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new(); self.size as usize];
        ungather(result, |rank, bytes| {
            if let Some(place) = all.get_mut(rank as usize) {
                *place = bytes.to_vec();
            }
        });
        all
    }
}

/// Adds a contribution: values, this rank's own bytes, or what `source` has gathered.
fn merge(
    entry: &mut Pending,
    operation: Operation,
    source: Rank,
    own: bool,
    data: &[u8],
) -> Result<()> {
    let known = *entry.operation.get_or_insert(operation);
    if known != operation {
        let why =
            format!("rank {source}, or one behind it, has called {operation}, and others {known}");
        return Err(Error::mismatch("(collectives)", why));
    }
    if let Operation::Broadcast = operation {
        let Some((root, bytes)) = data.split_first_chunk::<8>() else {
            return Err(Error::bad_peer(source.0, "a broadcast without a root"));
        };
        let root = u64::from_le_bytes(*root);
        let known = entry.reduced.get_or_insert_with(|| vec![root])[0];
        if known != root {
            let why =
                format!("rank {source} broadcasts what rank {root} has, and others {known}'s");
            return Err(Error::mismatch("(collectives)", why));
        }
        if !bytes.is_empty() {
            entry.gathered.insert(root as u32, bytes.to_vec());
        }
        return Ok(());
    }
    let Operation::Reduce(reduce, kind) = operation else {
        if own {
            entry.gathered.insert(source.0, data.to_vec());
            return Ok(());
        }
        let understood = ungather(data, |rank, bytes| {
            entry.gathered.insert(rank, bytes.to_vec());
        });
        return match understood {
            true => Ok(()),
            false => Err(Error::bad_peer(
                source.0,
                "gathered bytes that end in the middle",
            )),
        };
    };
    let values: Vec<u64> = data
        .chunks_exact(8)
        .map(|c| u64::from_le_bytes(c.try_into().expect("chunks of 8")))
        .collect();
    let before = entry.reduced.as_ref().or(entry.parts.values().next());
    if let Some(mine) = before.map(Vec::len).filter(|&mine| mine != values.len()) {
        let theirs = values.len();
        let barrier = match theirs.min(mine) {
            0 => " (0: a barrier, or a shutdown)",
            _ => "",
        };
        let why = format!(
            "rank {source}, or one behind it, reduces {theirs} values, and others {mine}{barrier}"
        );
        return Err(Error::mismatch("(collectives)", why));
    }
    match reduce.is_in_order(kind) {
        true => drop(entry.parts.insert(source.0, values)),
        false => add_up(&mut entry.reduced, values, reduce, kind),
    }
    Ok(())
}

/// Adds values to what has been reduced so far.
fn add_up(reduced: &mut Option<Vec<u64>>, values: Vec<u64>, reduce: Reduce, kind: Kind) {
    let Some(reduced) = reduced else {
        *reduced = Some(values);
        return;
    };
    for (mine, theirs) in reduced.iter_mut().zip(values) {
        *mine = reduce.combine(kind, *mine, theirs);
    }
}

fn ungather(mut data: &[u8], mut take: impl FnMut(u32, &[u8])) -> bool {
    while !data.is_empty() {
        let Some((rank, rest)) = data.split_first_chunk::<4>() else {
            return false;
        };
        let Some((length, rest)) = rest.split_first_chunk::<4>() else {
            return false;
        };
        let Some((bytes, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        else {
            return false;
        };
        take(u32::from_le_bytes(*rank), bytes);
        data = rest;
    }
    true
}

fn message(target: Rank, kind: u32, ticket: Ticket, data: &[u8]) -> Outgoing {
    let bytes = [&ticket.word().to_le_bytes()[..], data].concat().into();
    Outgoing {
        target,
        kind,
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{JobRoute, Next, Stage};
    use proptest::prelude::*;
    use trihop_transport::topology::NodeId;

    /// The result of a reduction whose messages all come in the order of their sending.
    fn in_order(sizes: &[u32], operation: Operation, value: impl Fn(u32) -> u64) -> Vec<u8> {
        let total: u32 = sizes.iter().sum();
        let at = |r| Topology::from_node_sizes(sizes, Rank(r)).unwrap();
        let mut ranks: Vec<Collectives> = (0..total).map(|r| Collectives::new(&at(r))).collect();
        let contribute =
            |rank: &mut Collectives| rank.begin(0, operation, &value(rank.rank).to_le_bytes());
        let tickets: Vec<Ticket> = ranks.iter_mut().map(contribute).collect();
        while let Some(from) = ranks.iter().position(|rank| rank.front().is_some()) {
            let out = ranks[from].front().unwrap().clone();
            ranks[from].pop();
            let target = &mut ranks[out.target.0 as usize];
            target
                .receive(Rank(from as u32), out.kind, &out.bytes)
                .unwrap();
        }
        ranks[0].result(tickets[0]).unwrap()
    }

    #[test]
    fn operations_have_codes_of_their_own() {
        let all: Vec<Operation> = (0..=255).filter_map(Operation::from_code).collect();
        assert_eq!(all.len(), 4 + Reduce::ALL.len() * Kind::ALL.len());
        assert!(
            all.iter()
                .all(|operation| Operation::from_code(operation.code()) == Some(*operation))
        );
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn parent_and_child_know_each_other_and_are_one_hop_apart(
            sizes in proptest::collection::vec(1u32..6, 1..30), seed: u64,
        ) {
            // Ranks of a node need not be neighbours.
            let mut nodes: Vec<u32> = (0..).zip(&sizes).flat_map(|(n, s)| vec![n; *s as usize]).collect();
            let mut state = seed;
            for last in (1..nodes.len()).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                nodes.swap(last, (state >> 33) as usize % (last + 1));
            }
            let total = nodes.len() as u32;
            let at = |rank: Rank| Topology::from_node_of(&nodes, rank).unwrap();
            let first = at(at(Rank(0)).rank_at(NodeId(0), 0));
            let top = Tree::speaker(&first);
            for rank in (0..total).map(Rank) {
                let (topology, here) = (at(rank), Collectives::new(&at(rank)));
                prop_assert_eq!(here.parent.is_none(), rank == top);
                if let Some(parent) = here.parent {
                    prop_assert_eq!(Collectives::new(&at(parent)).children.iter().filter(|c| **c == rank).count(), 1);
                }
                let tree = JobRoute::tree(&topology);
                for &other in here.children.iter().chain(&here.parent) {
                    let is_next = matches!(tree.next(Stage::SOURCE, other), Some(Next::To(next, _)) if next == other.into());
                    prop_assert!(is_next, "{} from {}", other, rank);
                }
                for &child in &here.children {
                    prop_assert_eq!(Collectives::new(&at(child)).parent, Some(rank));
                }
            }
        }

        #[test]
        fn every_rank_gets_the_same_result(sizes in proptest::collection::vec(1u32..5, 1..12), seed: u64) {
            let total: u32 = sizes.iter().sum();
            let mut ranks: Vec<Collectives> = (0..total)
                .map(|r| Collectives::new(&Topology::from_node_sizes(&sizes, Rank(r)).unwrap()))
                .collect();
            let (mut state, root) = (seed | 1, (seed % u64::from(total)) as u32);
            let float_of = |rank: u32| (f64::from(rank) + 0.1).powi(9) * f64::from(1 - 2 * (rank as i32 % 2));
            let mut order: Vec<u32> = (0..total).collect();
            order.sort_by_key(|r| seed.rotate_left(*r % 64) ^ u64::from(*r).wrapping_mul(0x9e3779b97f4a7c15));
            let mut tickets = vec![None; total as usize];
            let mut flying: Vec<(Rank, Outgoing)> = Vec::new();
            let mut waiting = order;
            loop {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let joins = state >> 63 == 0 || flying.is_empty();
                if let Some(rank) = joins.then(|| waiting.pop()).flatten() {
                    let r = &mut ranks[rank as usize];
                    let sum = r.begin(3, Operation::SUM, &u64::from(rank + 1).to_le_bytes());
                    let floats = r.begin(4, Operation::Reduce(Reduce::Sum, Kind::Float), &float_of(rank).to_bits().to_le_bytes());
                    let mut news = u64::from(root).to_le_bytes().to_vec();
                    news.extend((rank == root).then_some(seed.to_le_bytes()).into_iter().flatten());
                    let news = r.begin(5, Operation::Broadcast, &news);
                    let all = r.begin(0, Operation::Gather, &vec![rank as u8; rank as usize % 3]);
                    tickets[rank as usize] = Some((sum, all, floats, news));
                } else if !flying.is_empty() {
                    let next = flying.swap_remove((state >> 33) as usize % flying.len());
                    let (from, next) = next;
                    prop_assert!(ranks[next.target.0 as usize].receive(from, next.kind, &next.bytes).is_ok());
                    let twice = ranks[next.target.0 as usize].receive(from, next.kind, &next.bytes);
                    prop_assert!(twice.is_err() || next.kind & DOWN != 0, "nobody contributes twice");
                } else {
                    break;
                }
                for rank in &mut ranks {
                    let from = Rank(rank.rank);
                    while let Some(out) = rank.front() {
                        flying.push((from, out.clone()));
                        rank.pop();
                    }
                }
            }
            let mut float_sums = Vec::new();
            for (rank, ticket) in ranks.iter_mut().zip(tickets) {
                let (sum, all, floats, news) = ticket.unwrap();
                float_sums.push(rank.result(floats).expect("complete"));
                prop_assert_eq!(&rank.result(news).expect("complete")[8..], &seed.to_le_bytes());
                let sum = rank.result(sum).expect("complete");
                prop_assert_eq!(u64::from_le_bytes(sum[..].try_into().unwrap()), u64::from(total) * u64::from(total + 1) / 2);
                let all = rank.result(all).expect("complete");
                for (r, bytes) in rank.contributions(&all).iter().enumerate() {
                    prop_assert_eq!(bytes, &vec![r as u8; r % 3]);
                }
                prop_assert!(rank.pending.is_empty());
            }
            // The same bits, whatever came first: they are those of another schedule.
            let again = in_order(&sizes, Operation::Reduce(Reduce::Sum, Kind::Float), |rank| float_of(rank).to_bits());
            for sum in float_sums {
                prop_assert_eq!(&sum, &again);
            }
        }
    }
}
