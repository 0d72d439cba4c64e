//! The start of a job: from a launcher's store to endpoints that may send to each other.

use std::sync::Arc;
use std::time::Instant;

use trihop_transport::bootstrap::local::is_bound;
use trihop_transport::bootstrap::{self, Bootstrap, Launcher, Party, Shared};
use trihop_transport::cores::CoreShare;
use trihop_transport::memory::limit::{self, Limit, Scope};
use trihop_transport::memory::page::Page;
use trihop_transport::notice;
use trihop_transport::park::ProcessWatch;
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::Doorbell;
use trihop_transport::topology::{EndpointId, Topology};
use trihop_transport::watch::{Neighbour, decode_addresses};

use super::JobState;
use super::arrived::{Arrived, Guests};
use super::budget::Budget;
use super::lives::{Lives, WatchStart};
use super::lost::Lost;
use super::open::SYSTEM_NAME;
use super::parked::Parked;
use super::patience::{LongCalls, PATIENCE_NS};
use crate::config::{Options, minis};
use crate::endpoint::{Engine, Need, WIRE_LABEL, check_memory, is_on_demand};
use crate::error::{Error, Result};
use crate::node::{NodeExchange, Process, Unstarted};
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

/// As [`detect`], of a process that is one rank: where more are asked for, it says that they are
/// not there.
pub(crate) fn detect_as_rank(options: &Options) -> Result<Box<dyn Bootstrap>> {
    let is_alone = options.launcher == Some(Launcher::Single);
    if let (Ok(ranks @ 2..), false) = (minis::asked_for(), is_alone) {
        let why = format!(
            "{}={ranks} asks for {ranks} ranks in this process, and its program has started one: \
             one that hosts mini-ranks reads that itself",
            minis::ENV_RANKS
        );
        tracing::warn!("{why}");
        notice::unless_logged(why);
    }
    detect(options)
}

/// A job that its node's ranks have met in, and what it is waited with.
pub(crate) struct Started {
    pub state: JobState,
    pub doorbell: Doorbell,
    /// Cores that there are for each rank.
    pub cores: f64,
}

impl JobState {
    /// From the launcher's store to an engine without streams. See [`crate::Job::start_with`].
    pub fn start(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Started> {
        let topology = bootstrap.topology().clone();
        let mut started = Self::start_process(options, bootstrap, topology, None)?;
        Ok(started.pop().expect("a process has an endpoint"))
    }

    /// The same for an agent of a node with so many ranks; the first one of the node receives them
    /// once its fabric is up.
    pub fn start_agent(
        options: Options,
        mut bootstrap: Box<dyn Bootstrap>,
        ranks: u32,
        receive: &mut dyn FnMut(&[&str]) -> Result<Party>,
    ) -> Result<Started> {
        let ranks = bootstrap::ranks_of_nodes(&mut *bootstrap, ranks)?;
        let topology = bootstrap.topology().with_agents(&ranks)?;
        let topology = topology.seen_by(topology.relay_of(topology.process()))?;
        let guests = Guests {
            ranks_of_nodes: &ranks,
            receive,
        };
        let mut started = Self::start_process(options, bootstrap, topology, Some(guests))?;
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
    /// learns who its node's ranks are.
    fn start_process(
        options: Options,
        mut bootstrap: Box<dyn Bootstrap>,
        topology: Topology,
        guests: Option<Guests<'_>>,
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
                if let Some(guests) = guests {
                    arrived.meet(guests, &topology)?;
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
            // Agents are not bound.
            let is_bound = is_bound(launcher) && !topology.has_agents();
            let is_spread = options.loopback && !is_bound;
            let cores = core_share(&topology, &watches, is_spread).cores_each();
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
            // Simulated nodes share this machine's memory.
            let neighbours = if options.loopback {
                topology.endpoints()
            } else {
                topology.places()
            };
            let spill_share_bytes = spill_share_bytes(limits, neighbours, ends.len() as u32);
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
                    lost: Lost::default(),
                    failure: None,
                    rounds: 0,
                    left_out: 0,
                    none_left_out_from_ms: 0,
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
                    has_complained: false,
                    long_calls: LongCalls::default(),
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
                    cores,
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

/// The endpoints that share the cores of this process; `watches` are of the node's other processes.
/// Where those of other nodes are spread over the same cores, they share them as these do.
fn core_share(
    topology: &Topology,
    watches: &[(EndpointId, ProcessWatch)],
    is_spread: bool,
) -> CoreShare {
    // Between the ranks of one node nothing goes by a relay.
    let have_relays = topology.has_relays() && topology.nodes() > 1;
    let ends_with = |end: EndpointId| match topology.has_agents() {
        true => u32::from(have_relays || end.0 < topology.size()),
        false => {
            let ranks = topology.ranks_of_process(topology.process_of(end));
            ranks + u32::from(have_relays)
        }
    };
    let mut share = CoreShare::of(ends_with(topology.endpoint()));
    for (end, watch) in watches {
        share.add(watch.pid(), ends_with(*end));
    }
    if is_spread {
        share.grow(topology.endpoints(), topology.places());
    }
    share
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

#[cfg(test)]
mod tests {
    use trihop_transport::topology::Rank;

    use super::*;

    fn cores(topology: &Topology, watches: &[(EndpointId, ProcessWatch)], is_spread: bool) -> f64 {
        core_share(topology, watches, is_spread).cores_each()
    }

    #[test]
    fn ranks_of_simulated_nodes_share_the_cores_of_this_machine() {
        let nodes = Topology::from_node_sizes(&[1; 5000], Rank(7)).unwrap();
        let alone = cores(&nodes, &[], false);
        assert!(alone >= 1.0);
        assert_eq!(cores(&nodes, &[], true), alone / 5000.0);
    }

    #[test]
    fn all_endpoints_of_a_node_count_but_relays_that_have_nothing_to_do() {
        let here = || ProcessWatch::open(std::process::id()).unwrap();
        let other = |end| [(EndpointId(end), here())];
        let two = Topology::from_node_sizes(&[2], Rank(0)).unwrap();
        let alone = cores(&two, &[], false);
        assert_eq!(cores(&two, &other(1), false), alone / 2.0);
        // Two processes of three mini-ranks each, and their relays.
        for (nodes, ends) in [(1, 6.0), (2, 8.0)] {
            let processes = Topology::from_node_sizes(&vec![2; nodes], Rank(0)).unwrap();
            let minis = processes.with_relays(3).unwrap();
            assert_eq!(cores(&minis, &other(3), false), alone / ends);
        }
        for (nodes, relays) in [(1, 0.0), (2, 1.0)] {
            let agents = Topology::from_node_sizes(&vec![1; nodes], Rank(0)).unwrap();
            let job = agents.with_agents(&vec![1; nodes]).unwrap();
            let rank = job.seen_by(EndpointId(0)).unwrap();
            let agent = other(nodes as u32);
            assert_eq!(cores(&rank, &agent, false), alone / (1.0 + relays));
        }
    }
}
