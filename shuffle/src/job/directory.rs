//! How a rank finds the others of its job: from a launcher's store to the addresses of the links'
//! other ends.
//!
//! The first rank of a node leaves one card for all of them. A card of another node is fetched by
//! one rank of a node, and read by all in the node's book.

use std::time::{Duration, Instant};

use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::memory::descriptors::DescriptorListener;
use trihop_transport::random::random_bytes;
use trihop_transport::secret::Secret;
use trihop_transport::topology::{NodeId, Rank, Topology};
use trihop_transport::watch::neighbours;

use super::card::{Card, Greeting};
use crate::error::{Error, Result};
use crate::node::{Door, Hosts, Introduction, Member, NodeBook, Roster, socket_name};
use crate::route::{EndpointId, JobRoute, RouteName};

/// A launcher's store, which the job may have taken leave of already.
pub(super) type Store<'a> = Option<&'a mut (dyn Bootstrap + 'a)>;

/// What a rank brings to the start of its job.
pub(super) struct Newcomer<'a> {
    pub introduction: Introduction,
    /// Listens under the name that the introduction gives.
    pub listener: &'a DescriptorListener,
    /// Where the node's watch listens, encoded; of the first rank of a node.
    pub watch: Vec<u8>,
    /// The route of the job's options.
    pub route: RouteName,
    /// Bound of each wait for ranks of its node.
    pub timeout: Duration,
}

/// What it knows when the ranks of its node have met.
pub(super) struct Arrival {
    pub secret: Secret,
    /// Sockets of the node's ranks, by local rank.
    pub names: Vec<String>,
    /// Ranks of the node in the same control group as this one, itself included.
    pub sharers: u32,
    pub directory: Directory,
}

/// Meets the ranks of the node, publishes their card and fetches this rank's part of those of other
/// nodes; collective, two fences of the launcher. The other parts are there once the ranks of the
/// node have heard of each other again.
pub(super) fn arrive(
    bootstrap: &mut dyn Bootstrap,
    topology: &Topology,
    newcomer: Newcomer<'_>,
) -> Result<Arrival> {
    let Introduction { group, hosts, .. } = newcomer.introduction;
    let route = newcomer.route;
    let book = match topology.local_rank() {
        0 => receive(bootstrap, topology, newcomer)?,
        _ => introduce(bootstrap, topology, newcomer)?,
    };
    let roster = book.roster(topology)?;
    roster.check_hosts(topology, hosts)?;
    let Roster {
        secret, members, ..
    } = roster;
    let ranks = topology.ranks_of(topology.node());
    let names = ranks.zip(&members);
    let directory = Directory {
        book,
        topology: topology.clone(),
        hosts,
    };
    if topology.nodes() > 1 {
        directory.fetch_share(&wanted(topology, route)?, bootstrap)?;
    }
    Ok(Arrival {
        secret,
        names: names
            .map(|(rank, member)| socket_name(member.nonce, rank))
            .collect(),
        sharers: members.iter().filter(|other| other.group == group).count() as u32,
        directory,
    })
}

/// As the first rank of the node: greets, receives the others, leaves their card.
fn receive(
    bootstrap: &mut dyn Bootstrap,
    topology: &Topology,
    newcomer: Newcomer<'_>,
) -> Result<NodeBook> {
    let Newcomer {
        introduction,
        listener,
        watch,
        timeout,
        ..
    } = newcomer;
    let door = Door {
        nonce: introduction.nonce,
        password: u64::from_le_bytes(random_bytes()?),
    };
    let mut secret = Secret::random()?;
    let greeting = Greeting {
        door,
        secret: secret.clone(),
    };
    greeting.leave(bootstrap)?;
    bootstrap.fence()?;
    // Rank 0 is the first of its node.
    if topology.rank() != Rank(0) {
        secret = Greeting::of(topology, Rank(0), bootstrap)?.secret;
    }
    let deadline = Instant::now() + timeout;
    let known = door.receive_all(listener, topology, introduction, bootstrap, deadline)?;
    let addresses: Vec<Vec<u8>> = known.iter().map(|one| one.address.clone()).collect();
    let card = Card::encode(known[0].hosts, &watch, &addresses);
    let member = |one: &Introduction| Member {
        nonce: one.nonce,
        group: one.group,
        hosts: one.hosts,
    };
    let roster = Roster {
        secret,
        members: known.iter().map(member).collect(),
    };
    // Other nodes' cards are as long as this one, or somewhat longer.
    let book = NodeBook::create(topology, &roster, 2 * card.len())?;
    // There are routes with links inside of a node.
    book.keep_card(topology.node(), &card);
    if topology.nodes() > 1 {
        Card::leave(&card, bootstrap)?;
    }
    let others = topology.ranks_of(topology.node()).zip(&known).skip(1);
    for (rank, one) in others {
        let to = socket_name(one.nonce, rank);
        door.hand_over(&book, &to, topology.named(rank), deadline)?;
    }
    bootstrap.fence()?;
    Ok(book)
}

/// As another rank of the node.
fn introduce(
    bootstrap: &mut dyn Bootstrap,
    topology: &Topology,
    newcomer: Newcomer<'_>,
) -> Result<NodeBook> {
    bootstrap.fence()?;
    let first = topology.rank_at(topology.node(), 0);
    let door = Greeting::of(topology, first, bootstrap)?.door;
    let deadline = Instant::now() + newcomer.timeout;
    door.introduce(topology, topology.rank(), &newcomer.introduction, deadline)?;
    // Behind this fence the book is on its way.
    bootstrap.fence()?;
    door.receive_book(
        newcomer.listener,
        topology,
        Instant::now() + newcomer.timeout,
    )
}

/// Where the ends of links are, as far as anybody of the node has asked.
pub(crate) struct Directory {
    book: NodeBook,
    topology: Topology,
    /// Of this process.
    hosts: Hosts,
}

impl Directory {
    /// Fetches this rank's part of the cards of `wanted`: each is fetched by one rank of the node.
    fn fetch_share(&self, wanted: &[NodeId], bootstrap: &mut dyn Bootstrap) -> Result<()> {
        let (mine, sharers) = (self.topology.local_rank(), self.topology.local_size());
        let others = wanted.iter().filter(|node| **node != self.topology.node());
        for &node in others.filter(|node| node.0 % sharers == mine) {
            self.card_of(node, Some(&mut *bootstrap))?;
        }
        Ok(())
    }

    /// The fabric addresses of ends of links, all of them on `node`.
    pub fn addresses_of(
        &self,
        node: NodeId,
        ends: &[EndpointId],
        store: Store<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        let bytes = self.card_of(node, store)?;
        let card = self.parse(node, &bytes)?;
        let address = |end: &EndpointId| {
            let rank = self.topology.rank_of(*end);
            let address = card.addresses.get(self.topology.local_rank_of(rank));
            address.ok_or_else(|| self.invalid(node))
        };
        ends.iter().map(address).collect()
    }

    /// Where the watch of a node listens, encoded.
    pub fn watch_of(&self, node: NodeId, store: Store<'_>) -> Result<Vec<u8>> {
        let bytes = self.card_of(node, store)?;
        Ok(self.parse(node, &bytes)?.watch.to_vec())
    }

    /// Out of the node's book, else out of the launcher's store and then into the book.
    fn card_of(&self, node: NodeId, store: Store<'_>) -> Result<Vec<u8>> {
        if let Some(card) = self.book.card(node) {
            return Ok(card);
        }
        let Some(bootstrap) = store else {
            return Err(Error::config("stream", "the job is being shut down"));
        };
        let card = Card::fetch(&self.topology, node, bootstrap)?;
        let theirs = self.parse(node, &card)?.hosts;
        self.hosts.check_same(self.first_of(node), theirs)?;
        self.book.keep_card(node, &card);
        Ok(card)
    }

    /// Another process has written it.
    fn parse<'c>(&self, node: NodeId, card: &'c [u8]) -> Result<Card<'c>> {
        let ranks = self.topology.local_size_of(node);
        Card::parse(card, ranks).ok_or_else(|| self.invalid(node))
    }

    fn invalid(&self, node: NodeId) -> Error {
        let first = self.topology.named(self.first_of(node));
        Error::bad_peer(first.0, "a start-up card with an impossible address")
    }

    fn first_of(&self, node: NodeId) -> Rank {
        self.topology.rank_at(node, 0)
    }

    /// Bytes of shared memory that this node has filled.
    #[cfg(test)]
    pub fn used_bytes(&self) -> usize {
        self.book.used_bytes()
    }
}

/// The nodes whose cards this node needs to start, ascending: those that its ranks have links to by
/// the route of the job's options or by the tree of collectives, and the neighbours of its watch.
fn wanted(topology: &Topology, route: RouteName) -> Result<Vec<NodeId>> {
    let mut is_wanted = vec![false; topology.nodes() as usize];
    let mut others = topology.nodes() - 1;
    let mut mark = |node: NodeId| {
        let marked = std::mem::replace(&mut is_wanted[node.0 as usize], true);
        others -= u32::from(!marked && node != topology.node());
        others
    };
    neighbours(topology.node(), topology.nodes())
        .into_iter()
        .for_each(|node| {
            mark(node);
        });
    'all: for rank in topology.ranks_of(topology.node()) {
        let seen = topology.seen_from(rank)?;
        for route in [JobRoute::tree(&seen), JobRoute::new(route, &seen)?] {
            for (end, _) in route.each_link() {
                if mark(topology.node_of_endpoint(end)) == 0 {
                    break 'all;
                }
            }
        }
    }
    let nodes = (0..).map(NodeId).zip(is_wanted);
    Ok(nodes
        .filter_map(|(node, wanted)| wanted.then_some(node))
        .collect())
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
