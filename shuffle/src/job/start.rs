//! The start of a job: from a launcher's store to endpoints that may send to each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::bootstrap::{self, Attachment, Bootstrap, Party, Shared, Welcome};
use trihop_transport::fabric;
use trihop_transport::link::Link;
use trihop_transport::memory::descriptors::{Accepted, DescriptorListener};
use trihop_transport::memory::limit::{self, Limit, Scope};
use trihop_transport::memory::page::Page;
use trihop_transport::park::spin_budget;
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::random::random_bytes;
use trihop_transport::ring::Doorbell;
use trihop_transport::secret::Secret;
use trihop_transport::topology::{EndpointId, Rank, Topology};
use trihop_transport::watch::{Neighbour, decode_addresses, encode_addresses};

use super::JobState;
use super::budget::{Budget, group_word};
use super::directory::{Arrival, Directory, Newcomer, arrive};
use super::lives::{Lives, WatchStart};
use super::open::SYSTEM_NAME;
use super::parked::Parked;
use super::patience::PATIENCE_NS;
use crate::config::Options;
use crate::endpoint::{Engine, Need, WIRE_LABEL, check_memory, is_on_demand};
use crate::error::{Error, Result};
use crate::node::{Hosts, Introduction, NodeExchange, Process, Unstarted, socket_name};
use crate::observe::Shown;
use crate::route::{JobRoute, ends_of};
use crate::signal::DumpOnSignal;
use crate::trace::Trace;

/// The launcher's bootstrap.
pub(crate) fn detect(options: &Options) -> Result<Box<dyn Bootstrap>> {
    options.check()?;
    Ok(bootstrap::start(
        options.launcher,
        options.bootstrap_timeout(),
    )?)
}

/// A job that its node's ranks have met in, and what it is waited with.
pub(crate) struct Started {
    pub state: JobState,
    pub doorbell: Doorbell,
    /// How long its waits spin.
    pub spin: Duration,
}

impl JobState {
    /// From the launcher's store to an engine without streams. See [`crate::Job::start_with`].
    pub fn start(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Started> {
        let topology = bootstrap.topology().clone();
        let mut started = Self::start_process(options, bootstrap, topology, None)?;
        Ok(started.pop().expect("a process has an endpoint"))
    }

    /// The same for an agent of so many ranks, which receives them once its fabric is up.
    pub fn start_agent(
        options: Options,
        bootstrap: Box<dyn Bootstrap>,
        ranks: u32,
        receive: &mut dyn FnMut() -> Result<Party>,
    ) -> Result<Started> {
        let topology = bootstrap.topology().with_agents(ranks)?;
        let topology = topology.seen_by(topology.relay_of(topology.process()))?;
        if topology.local_relays() > 1 {
            let why =
                "there is one agent on each node, and the launcher has started several on one";
            return Err(Error::config("agent", why));
        }
        let mut started = Self::start_process(options, bootstrap, topology, Some(receive))?;
        Ok(started.pop().expect("a process has an endpoint"))
    }

    /// The same for all endpoints of a process that hosts so many ranks: these, and behind them
    /// their relay.
    pub fn start_minis(
        options: Options,
        bootstrap: Box<dyn Bootstrap>,
        ranks: u32,
    ) -> Result<Vec<Started>> {
        let topology = bootstrap.topology().with_relays(ranks)?;
        let topology = topology.seen_by(topology.relay_of(topology.process()))?;
        let host = Shared::host(bootstrap);
        Self::start_process(options, Box::new(host), topology, None)
    }

    /// Of the endpoints of a process, by their numbers; `topology` is seen by its host. An agent
    /// receives its ranks.
    fn start_process(
        options: Options,
        mut bootstrap: Box<dyn Bootstrap>,
        topology: Topology,
        receive: Option<&mut dyn FnMut() -> Result<Party>>,
    ) -> Result<Vec<Started>> {
        options.check()?;
        let launcher = bootstrap.launcher();
        let route = JobRoute::new(options.stream.route, &topology)?;
        check_memory(&route, &options.stream)?;
        let tree = JobRoute::tree(&topology);
        let limits = limit::limits();
        let Arrived {
            link,
            listener,
            watch,
            secret,
            others,
            sharers,
            directory,
            provider,
            early,
        } = match bootstrap.attachment() {
            Some(attachment) => Arrived::at_agent(attachment, &topology),
            None => {
                let ends = ends_of(&[&route, &tree]);
                let mut arrived = Arrived::at_launcher(
                    &mut *bootstrap,
                    &options,
                    &topology,
                    ends.len(),
                    &limits,
                )?;
                if let Some(receive) = receive {
                    arrived.welcome(&receive()?, &topology)?;
                }
                arrived
            }
        };
        let operations = link.as_ref().map_or(0, |l| l.operations_bytes());
        let cookie = secret.derive(WIRE_LABEL);
        let process = Arc::new(Process::new(listener, others));
        let unstarted = Unstarted::new(&process, &topology, cookie);
        let start = || {
            let budget = Budget::new(
                limits.clone(),
                &topology,
                sharers,
                options.loopback,
                operations,
            );
            let link_limits = link.as_ref().map(|l| l.limits());
            let receives = link_limits.map_or(usize::MAX, |limits| limits.posted_receives);
            let need = |route, stream| {
                let shared = is_on_demand(route, stream, receives);
                Need::of(
                    &topology,
                    route,
                    stream,
                    &options.pools,
                    shared,
                    link_limits,
                )
            };
            let system = Engine::system_options();
            budget.admit(&[
                (SYSTEM_NAME, need(&tree, &system)?),
                ("a stream", need(&route, &options.stream)?),
            ])?;
            let ends: Vec<EndpointId> = topology.ends_of_process().collect();
            let doorbells = ends.iter().map(|_| Doorbell::create());
            let doorbells: Vec<Doorbell> = doorbells.collect::<Result<_, _>>()?;
            let deadline = Instant::now() + options.bootstrap_timeout();
            process.keep(&topology, cookie, early);
            let (met, watches) = process.meet(&topology, &doorbells, cookie, deadline)?;
            let host = NodeExchange::of(Arc::clone(&process), watches);
            let mut lives = Lives::new(met.clone(), &topology);
            // Whoever has met the others has fetched its share.
            if let Some((mut watch, directory)) = watch.zip(directory.as_ref()) {
                for node in WatchStart::nodes(&topology) {
                    let addresses = directory.watch_of(node, Some(&mut *bootstrap))?;
                    let addresses = decode_addresses(&addresses).ok_or_else(|| {
                        let rank = topology.rank_at(node, 0);
                        Error::bad_peer(rank.0, "a card with an impossible address of its watch")
                    })?;
                    watch.neighbours.push(Neighbour { node, addresses });
                }
                watch.start(&options, &topology, &secret, &host, &mut lives)?;
            }
            // Simulated nodes share this machine's cores.
            let neighbours = if options.loopback {
                topology.endpoints()
            } else {
                topology.places()
            };
            let spill_share_bytes = spill_share_bytes(limits, neighbours, ends.len() as u32);
            let spin = spin_budget(neighbours as usize);
            // The host holds what there is once in a process: fabric, launcher, directory, watch.
            let hosts_dump = Arc::<DumpOnSignal>::default();
            let guests: Vec<_> = ends.iter().map(|_| bootstrap.guest()).collect();
            let mut hosts = Some((link, bootstrap, directory, host, lives));
            let mut pages = pages(&options, ends.len()).into_iter();
            let start = |((end, doorbell), guest): ((EndpointId, Doorbell), _)| {
                let seen = topology.seen_by(end)?;
                let of_host = hosts.take_if(|_| end == topology.endpoint());
                let (link, bootstrap, directory, node, lives) = match of_host {
                    Some((link, bootstrap, directory, node, lives)) => {
                        (link, Some(bootstrap), directory, node, lives)
                    }
                    None => {
                        let node = NodeExchange::of(Arc::clone(&process), Vec::new());
                        (None, guest, None, node, Lives::new(met.clone(), &seen))
                    }
                };
                // All endpoints of a job join once, at its start.
                let epoch = Epoch::FIRST;
                let mut engine = Engine::new(seen.clone(), secret.clone(), link, epoch);
                for (end, bell) in seen.ends_here().zip(&met.bells) {
                    engine.attach_here(end, epoch, Arc::clone(bell));
                }
                engine.spill_share_bytes = spill_share_bytes;
                engine.trace = Trace::from_env(&seen);
                let state = Self {
                    engine,
                    options: options.clone(),
                    bootstrap,
                    launcher,
                    provider: provider.clone(),
                    node,
                    directory,
                    budget: budget.clone(),
                    epoch: Instant::now(),
                    closing: false,
                    fencing: false,
                    checked_ns: 0,
                    lives,
                    failure: None,
                    rounds: 0,
                    left_out: 0,
                    parked: Parked::default(),
                    dump_on_signal: match end == topology.endpoint() {
                        true => Arc::clone(&hosts_dump),
                        false => Arc::default(),
                    },
                    hosts_dump: Arc::clone(&hosts_dump),
                    told_records: 0,
                    timed_waits: 0,
                    // A relay has nothing to do but to wait.
                    patience_ns: if seen.is_relay() {
                        u64::MAX
                    } else {
                        PATIENCE_NS
                    },
                    bell: doorbell.bell(),
                    shown: match pages.next() {
                        Some(page) => Shown::on(page, &seen, &secret),
                        None => Shown::nothing(),
                    },
                    stop: None,
                };
                Ok(Started {
                    state,
                    doorbell,
                    spin,
                })
            };
            let all = ends.iter().copied().zip(doorbells).zip(guests);
            all.map(start).collect()
        };
        let started: Result<Vec<Started>> = start();
        match &started {
            Ok(_) => unstarted.has_started(),
            Err(error) => unstarted.has_failed(error),
        }
        started
    }

    /// Says in the log what was started.
    pub fn log_started(&self) {
        let (topology, route) = (&self.engine.topology, self.options.stream.route);
        tracing::debug!(
            target: "trihop_shuffle::route",
            neighbours = topology.local_size() - 1,
            other_nodes = topology.nodes() - 1,
            placement = topology.process_mapping(),
            "routed by this placement"
        );
        tracing::info!(
            size = topology.size(),
            nodes = topology.nodes(),
            launcher = %self.launcher,
            %route,
            provider = self.provider,
            "job started"
        );
    }
}

/// A page for each endpoint of this process, or none: a job goes on where it cannot be seen.
fn pages(options: &Options, count: usize) -> Vec<Page> {
    if !options.counters_page {
        return Vec::new();
    }
    Page::create(count).unwrap_or_else(|error| {
        tracing::warn!(%error, "`trihop top` and `trihop dump` will not see this process");
        Vec::new()
    })
}

/// What a process has once it knows the others of its node.
struct Arrived {
    link: Option<Box<dyn Link>>,
    listener: DescriptorListener,
    watch: Option<WatchStart>,
    secret: Secret,
    /// The sockets of the node's other processes, each with the first endpoint that lives there.
    others: Vec<(EndpointId, String)>,
    /// Processes of the node in the same control group as this one, itself included.
    sharers: u32,
    /// None of a rank that has an agent.
    directory: Option<Directory>,
    /// Of the node's fabric, where that is open.
    provider: Option<String>,
    /// What others of the node have sent already.
    early: Vec<Accepted>,
}

impl Arrived {
    /// As a process that the launcher knows, with so many other ends of links.
    fn at_launcher(
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
            2 * topology.places() + 8,
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
        } = arrive(bootstrap, &processes, newcomer)?;
        let first = |process: Rank| EndpointId(process.0 * topology.ranks_per_process());
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

    /// As an agent that has arrived: tells its ranks, which have come, of each other.
    fn welcome(&mut self, party: &Party, topology: &Topology) -> Result<()> {
        let welcome = Welcome {
            processes: topology.processes(),
            secret: self.secret.clone(),
            agent: self.listener.name().to_owned(),
            ranks: party.nonces().to_vec(),
            provider: self.provider.clone().unwrap_or_default(),
        };
        self.listener.keep_reserve()?;
        party.welcome(&welcome, &self.listener)?;
        self.others = welcome.sockets(topology);
        self.sharers = topology.places();
        Ok(())
    }

    /// As a rank whose agent has received it.
    fn at_agent(attachment: Attachment, topology: &Topology) -> Self {
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

/// Part of the memory that this process and its neighbours may use together, of which the spill of
/// one stream may take a rank's share: handlers that send need it only where no queue has room.
const SPILL_PART: u64 = 4;

fn spill_share_bytes(limits: Vec<Limit>, sharers: u32, process_ends: u32) -> usize {
    let limit = limit::available_of(limits);
    let sharers = match limit.scope {
        Scope::Process => u64::from(process_ends),
        Scope::Group(_) | Scope::Machine => u64::from(sharers),
    };
    usize::try_from(limit.bytes / SPILL_PART / sharers).unwrap_or(usize::MAX)
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
    use crate::route::{Rails, RouteName};

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
