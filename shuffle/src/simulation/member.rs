//! The ranks: an engine each, and what they sleep on.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use trihop_transport::memory::segment::Segment;
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::secret::Secret;
use trihop_transport::topology::{NodeId, Rank, Topology};

use super::awake::Awake;
use super::error::SimulationError;
use super::fabric::Fabric;
use super::options::SimulationOptions;
use crate::config::StreamOptions;
use crate::endpoint::{Endpoint, Prepared};
use crate::engine::Core;
use crate::engine::sink::Sink;
use crate::error::Error;
use crate::route::Chosen;

/// Secret of all simulated jobs.
pub(crate) const SECRET: [u8; Secret::BYTES] = [42; Secret::BYTES];

/// One rank of the job.
pub(crate) struct Member<'h> {
    pub endpoint: Endpoint<'h>,
    pub core: Rc<Core<'h>>,
    pub(super) doorbell: Doorbell,
    /// Nothing moved in its last round.
    pub(super) idle: Cell<bool>,
}

impl<'h> Member<'h> {
    /// All ranks of a job in order, node after node, with the job's own stream and the one of the options open.
    pub fn all(
        fabric: &mut Fabric,
        topology: &Topology,
        options: &SimulationOptions,
        sink: impl Fn(Rank) -> Sink<'h>,
    ) -> Result<Vec<Self>, SimulationError> {
        let mut members = Vec::with_capacity(topology.size() as usize);
        let system = Endpoint::<'h>::system_options();
        for node in 0..topology.nodes() {
            let node = NodeId(node);
            let doorbells: Vec<_> = topology.ranks_of(node).map(|_| Doorbell::private()).collect();
            let bells: Arc<[Arc<Bell>]> = doorbells.iter().map(Doorbell::bell).collect();
            let mut endpoints = Vec::with_capacity(doorbells.len());
            for rank in topology.ranks_of(node) {
                let topology = topology.seen_from(rank).map_err(Error::from)?;
                let route = Chosen::new(options.route, &topology);
                let (link, peers) = fabric.attach(&route)?;
                let bells = Arc::clone(&bells);
                let mut endpoint = Endpoint::new(
                    topology,
                    route,
                    Secret::from_bytes(SECRET),
                    Some(link),
                    peers,
                    bells,
                );
                endpoint.create_segment = Segment::private;
                endpoints.push(endpoint);
            }
            open_stream(&endpoints, &system, 0, |endpoint| endpoint.system_sink())?;
            let cores = open_stream(&endpoints, &options.stream, options.item_bytes, |endpoint| {
                sink(endpoint.topology.rank())
            })?;
            let node = endpoints.into_iter().zip(cores).zip(doorbells);
            members.extend(node.map(|((endpoint, core), doorbell)| Self {
                endpoint,
                core,
                doorbell,
                idle: Cell::new(false),
            }));
        }
        Ok(members)
    }

    /// Goes to sleep as a job parks, unless there is something to do after all; `blind` ranks look again soon.
    pub(super) fn sleep(&self, awake: &mut Awake, rank: u32, blind: bool) -> bool {
        let streams = self.endpoint.streams.borrow();
        for core in streams.iter() {
            core.want_space(core.urgent.get() > 0);
        }
        self.doorbell.announce_sleep();
        let mut link = self.endpoint.link.borrow_mut();
        let news = link.as_deref_mut().is_some_and(|l| !l.try_wait());
        if news || streams.iter().any(|s| s.must_stay_awake()) {
            self.doorbell.awake();
            return false;
        }
        if blind || streams.iter().any(|s| s.waits_for_time()) {
            awake.nap(rank);
        }
        true
    }
}

/// Opens the next stream on all ranks of a node.
fn open_stream<'h>(
    endpoints: &[Endpoint<'h>],
    options: &StreamOptions,
    item_bytes: usize,
    sink: impl Fn(&Endpoint<'h>) -> Sink<'h>,
) -> Result<Vec<Rc<Core<'h>>>, Error> {
    let prepared = endpoints
        .iter()
        .map(|e| e.prepare(e.plan("simulated", options, item_bytes)?))
        .collect::<Result<Vec<Prepared>, _>>()?;
    let segments: Vec<Arc<Segment>> = prepared.iter().map(|p| Arc::clone(&p.segment)).collect();
    prepared
        .into_iter()
        .zip(endpoints)
        .map(|(prepared, endpoint)| {
            let id = endpoint.take_number()?;
            endpoint.connect(id, prepared, &segments, sink(endpoint))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use trihop_transport::sim::{Net, SimOptions};

    use super::*;
    use crate::config::Shares;
    use crate::dump::Bound;
    use crate::endpoint::Need;
    use crate::route::RouteName;

    /// What `Need` says before a stream is opened is what it then takes.
    #[test]
    fn what_a_stream_needs_is_known_before_it_is_opened() {
        let tiny = StreamOptions {
            remote_buftarget_bytes: 300,
            remote_maxrpc: 1,
            run_bytes: 64,
            given_shares: Some(Shares {
                run_table_bytes: 256,
                lane_budget_bytes: 8192,
                receive_pool_bytes: 1,
                send_pool_bytes: 64 << 10,
                small_slot_bytes: 256,
                ..Shares::default()
            }),
            ..StreamOptions::default()
        };
        for sizes in [&[1u32][..], &[3], &[1, 1], &[2, 5, 1], &[1; 40]] {
            for stream in [&tiny, &StreamOptions::default()] {
                for route in [RouteName::ThreeHop, RouteName::FabricOnly] {
                    let options = SimulationOptions {
                        route,
                        stream: stream.clone(),
                        ..SimulationOptions::default()
                    };
                    let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
                    let mut fabric = Fabric::Simulated(Net::new(SimOptions::default()));
                    let members = Member::all(&mut fabric, &topology, &options, |_| Sink::Closed).unwrap();
                    for Member { endpoint, core, .. } in &members {
                        let limits = SimOptions::default().limits;
                        let need = Need::of(&endpoint.topology, &endpoint.route, stream, Some(&limits));
                        let (need, bound) = (need.unwrap(), Bound::of(core).unwrap());
                        assert_eq!(
                            need.bytes(),
                            bound.fixed(),
                            "{route} on {sizes:?}: {need}; {bound}"
                        );
                    }
                }
            }
        }
    }
}
