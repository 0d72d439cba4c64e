//! The ranks: an engine each, and what they sleep on.

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
use crate::endpoint::{Engine, Prepared, StreamId};
use crate::engine::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::sink::{Heard, Sink};
use crate::error::Error;
use crate::route::{JobRoute, ends_of};
use crate::terminate::collective::Collectives;

/// Secret of all simulated jobs.
pub(crate) const SECRET: [u8; Secret::BYTES] = [42; Secret::BYTES];

/// One rank of the job.
pub(crate) struct Member {
    pub engine: Engine,
    /// The stream of the options.
    pub id: StreamId,
    pub(super) doorbell: Doorbell,
    /// Nothing moved in its last round.
    pub(super) idle: bool,
}

impl Member {
    /// All ranks of a job in order, node after node, with the job's own stream and the one of the
    /// options open.
    pub fn all(
        fabric: &mut Fabric,
        topology: &Topology,
        options: &SimulationOptions,
        sink: impl Fn(Rank) -> Sink,
    ) -> Result<Vec<Self>, SimulationError> {
        let mut members = Vec::with_capacity(topology.size() as usize);
        let system = Engine::system_options();
        for node in 0..topology.nodes() {
            let node = NodeId(node);
            let doorbells: Vec<_> = topology
                .ranks_of(node)
                .map(|_| Doorbell::private())
                .collect();
            let bells: Arc<[Arc<Bell>]> = doorbells.iter().map(Doorbell::bell).collect();
            let mut engines = Vec::with_capacity(doorbells.len());
            for rank in topology.ranks_of(node) {
                let topology = topology.seen_from(rank).map_err(Error::from)?;
                let route = JobRoute::new(options.route, &topology);
                let ends = ends_of(&[&route, &JobRoute::tree(&topology)]);
                let (link, peers) = fabric.attach(&ends)?;
                let bells = Arc::clone(&bells);
                let mut engine = Engine::new(
                    topology,
                    route,
                    Secret::from_bytes(SECRET),
                    Some(link),
                    peers,
                    bells,
                );
                engine.create_segment = Segment::private;
                engines.push(engine);
            }
            open_stream(&mut engines, &system, 0, |_| {
                Sink::Collectives(Heard::default())
            })?;
            let ids = open_stream(
                &mut engines,
                &options.stream,
                options.item_bytes,
                |engine| sink(engine.topology.rank()),
            )?;
            let node = engines.into_iter().zip(ids).zip(doorbells);
            members.extend(node.map(|((engine, id), doorbell)| Self {
                engine,
                id,
                doorbell,
                idle: false,
            }));
        }
        Ok(members)
    }

    /// The stream of the options.
    pub fn stream(&self) -> (&StreamState, &Outbound) {
        self.engine.stream(self.id).expect("it stays open")
    }

    /// As [`Member::stream`], to use it, with the rank's collectives.
    pub fn stream_mut(&mut self) -> (&mut StreamState, &mut Outbound, &mut Collectives) {
        self.engine.stream_mut(self.id).expect("it stays open")
    }

    /// Goes to sleep as a job parks, unless there is something to do after all; `blind` ranks look
    /// again soon.
    pub(super) fn sleep(&mut self, awake: &mut Awake, rank: u32, blind: bool) -> bool {
        let timed = self.engine.prepare_to_sleep();
        self.doorbell.announce_sleep();
        if self.engine.must_stay_awake() {
            self.doorbell.awake();
            return false;
        }
        if blind || timed {
            awake.nap(rank);
        }
        true
    }
}

/// Opens the next stream on all ranks of a node.
fn open_stream(
    engines: &mut [Engine],
    options: &StreamOptions,
    item_bytes: usize,
    sink: impl Fn(&Engine) -> Sink,
) -> Result<Vec<StreamId>, Error> {
    let prepared = engines
        .iter()
        .map(|e| e.prepare(e.plan("simulated", options, item_bytes)?))
        .collect::<Result<Vec<Prepared>, _>>()?;
    let segments: Vec<Arc<Segment>> = prepared.iter().map(|p| Arc::clone(&p.segment)).collect();
    prepared
        .into_iter()
        .zip(engines)
        .map(|(prepared, engine)| {
            let number = engine.take_number()?;
            let sink = sink(engine);
            engine.connect(number, prepared, &segments, sink)
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
                    let members =
                        Member::all(&mut fabric, &topology, &options, |_| Sink::Closed).unwrap();
                    for member in &members {
                        let limits = SimOptions::default().limits;
                        let engine = &member.engine;
                        let need = Need::of(&engine.topology, &engine.route, stream, Some(&limits));
                        let (state, out) = member.stream();
                        let (need, bound) = (need.unwrap(), Bound::of(state, out));
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
