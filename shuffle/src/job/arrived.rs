//! A process that knows the others of its node: by the launcher's store, or by its agent.

use trihop_transport::bootstrap::{Attachment, Bootstrap, Party, Welcome};
use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::memory::descriptors::{Accepted, DescriptorListener};
use trihop_transport::memory::limit::Limit;
use trihop_transport::random::random_bytes;
use trihop_transport::secret::Secret;
use trihop_transport::topology::{EndpointId, Rank, Topology};
use trihop_transport::watch::encode_addresses;

use super::budget::group_word;
use super::directory::{Arrival, Directory, Newcomer, arrive};
use super::lives::WatchStart;
use crate::config::Options;
use crate::error::Result;
use crate::node::{Hosts, Introduction, missed, socket_name};

/// What a process has once it knows the others of its node.
pub(super) struct Arrived {
    pub link: Option<Box<dyn Link>>,
    pub listener: DescriptorListener,
    pub watch: Option<WatchStart>,
    pub secret: Secret,
    /// The sockets of the node's other processes, each with the first endpoint that lives there.
    pub others: Vec<(EndpointId, String)>,
    /// Processes of the node in the same control group as this one, itself included.
    pub sharers: u32,
    /// None of a rank that has an agent.
    pub directory: Option<Directory>,
    /// Of the node's fabric, where that is open.
    pub provider: Option<String>,
    /// What others of the node have sent already.
    pub early: Vec<Accepted>,
}

/// Others of the node that may wait to be heard, at least.
const BACKLOG: u32 = 1024;

impl Arrived {
    /// As a process that the launcher knows, with so many other ends of links.
    pub fn at_launcher(
        bootstrap: &mut dyn Bootstrap,
        options: &Options,
        topology: &Topology,
        ends: usize,
        limits: &[Limit],
    ) -> Result<Self> {
        let processes = topology.processes();
        // A stream may have another route than the job's others, and links where these have none.
        let link = if ends == 0 && topology.nodes() == 1 {
            None
        } else {
            Some(fabric::open(&choice(options, &processes, ends))?)
        };
        let nonce = u64::from_le_bytes(random_bytes()?);
        let listener = DescriptorListener::listen(
            &socket_name(nonce, processes.rank()),
            // Ranks tell a stopped agent of each stream that they close.
            (2 * topology.places() + 8).max(BACKLOG),
        )?;
        let watch = WatchStart::listen(options, topology)?;
        let watch_addresses = watch.as_ref().map_or(&[][..], |w| w.listening.addresses());
        let address = link.as_ref().map_or(Vec::new(), |l| l.address().to_vec());
        let newcomer = Newcomer {
            introduction: Introduction {
                nonce,
                group: group_word(limits),
                hosts: Hosts::of(topology),
                address,
            },
            listener: &listener,
            watch: encode_addresses(watch_addresses),
            route: options.stream.route,
            timeout: options.bootstrap_timeout(),
        };
        let Arrival {
            secret,
            names,
            sharers,
            directory,
        } = arrive(bootstrap, &processes, newcomer).map_err(|error| {
            // Who is gone may have ended because of another, which the launcher knows.
            let asks = error.is_about_peer();
            let missed = asks.then(|| missed(bootstrap).ok().flatten());
            missed.flatten().unwrap_or(error)
        })?;
        let first = |process: Rank| topology.first_of_process(process.0).into();
        let here = processes.ranks_of(processes.node()).zip(names);
        let others = here.filter(|(process, _)| *process != processes.rank());
        Ok(Self {
            others: others
                .map(|(process, name)| (first(process), name))
                .collect(),
            provider: link.as_ref().map(|link| link.name().to_owned()),
            link,
            listener,
            watch,
            secret,
            sharers,
            directory: Some(directory),
            early: Vec::new(),
        })
    }

    /// As an agent that has arrived: learns who the ranks of its node are.
    pub fn meet(&mut self, guests: Guests<'_>, topology: &Topology) -> Result<()> {
        let welcome = match topology.endpoint() == topology.keeper() {
            true => self.welcome(guests, topology)?,
            false => self.hear_welcome(topology)?,
        };
        self.others = welcome.sockets(topology);
        self.sharers = topology.places();
        Ok(())
    }

    /// As the first agent of a node: tells the ranks, once they have come, and the other agents of
    /// each other.
    fn welcome(&mut self, guests: Guests<'_>, topology: &Topology) -> Result<Welcome> {
        let others: Vec<&str> = self.others.iter().map(|(_, name)| name.as_str()).collect();
        let party = (guests.receive)(&others)?;
        let agents = std::iter::once(self.listener.name()).chain(others);
        let welcome = Welcome {
            processes: topology.processes(),
            ranks_of_nodes: guests.ranks_of_nodes.to_vec(),
            secret: self.secret.clone(),
            agents: agents.map(str::to_owned).collect(),
            ranks: party.nonces().to_vec(),
            provider: self.provider.clone().unwrap_or_default(),
        };
        // First those that are known to be there: no rank begins without all of its agents.
        let reserved = self.listener.keep_reserve();
        if let Err(error) = reserved.and_then(|()| welcome.tell_agents()) {
            party.refuse(&error.to_string());
            return Err(error.into());
        }
        party.welcome(&welcome, &self.listener)?;
        Ok(welcome)
    }

    /// As another agent of the node: hears it from the first one.
    fn hear_welcome(&mut self, topology: &Topology) -> Result<Welcome> {
        self.listener.keep_reserve()?;
        let first = self
            .others
            .iter()
            .find(|(end, _)| topology.process_of(*end) == topology.process_of(topology.keeper()));
        let (_, first) = first.expect("the first agent of the node is another one");
        let (welcome, early) = Welcome::of_first_agent(&self.listener, first, &self.secret)?;
        self.early = early;
        Ok(welcome)
    }

    /// As a rank whose agent has received it.
    pub fn at_agent(attachment: Attachment, topology: &Topology) -> Self {
        let Attachment {
            listener,
            welcome,
            early,
        } = attachment;
        Self {
            link: None,
            listener,
            watch: None,
            others: welcome.sockets(topology),
            sharers: topology.places(),
            directory: None,
            provider: Some(welcome.provider).filter(|name| !name.is_empty()),
            secret: welcome.secret,
            early,
        }
    }
}

/// The ranks of an agent's node, which have not come yet.
pub(super) struct Guests<'a> {
    pub ranks_of_nodes: &'a [u32],
    /// Waits for them, at the first agent of the node, as long as its other agents live, which
    /// have sockets of these names.
    pub receive: &'a mut dyn FnMut(&[&str]) -> Result<Party>,
}

/// Peers that the universe given to libfabric has room for at least: a job of two nodes costs
/// little.
const LEAST_UNIVERSE: usize = 16;

/// What is asked of libfabric for links with so many peers. Providers size their queues by the
/// peers of one endpoint (rxm its completion queue, by so many times the depth of a connection),
/// and those are the other ends of this rank's links, however many nodes the job has.
fn choice(options: &Options, topology: &Topology, peers: usize) -> fabric::Choice {
    fabric::Choice {
        universe: Some(peers.max(LEAST_UNIVERSE)),
        local_rank: topology.local_rank(),
        ..options.choice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{JobRoute, Rails, RouteName, ends_of};

    #[test]
    fn the_universe_given_to_libfabric_is_the_peers_of_this_rank_not_the_nodes() {
        let universe = |route, sizes: &[u32], rank| {
            let topology = Topology::from_node_sizes(sizes, Rank(rank)).unwrap();
            let route = JobRoute::new(route, &topology).unwrap();
            let routes = [route, JobRoute::tree(&topology)];
            let ends = ends_of(&[&routes[0], &routes[1]]);
            choice(&Options::default(), &topology, ends.len()).universe
        };
        // Ranks of 200 nodes with 4 ranks each have 50 links at most, alone on their nodes 199.
        assert_eq!(universe(RouteName::default(), &[4; 200], 6), Some(50));
        assert_eq!(universe(RouteName::default(), &[1; 200], 5), Some(199));
        // On two nodes, each rank of the other one.
        assert_eq!(universe(RouteName::Direct, &[20, 48], 5), Some(48));
        let one = RouteName::ThreeHop(Rails::ONE);
        assert_eq!(universe(one, &[20, 48], 5), Some(16));
    }
}
