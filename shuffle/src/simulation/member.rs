//! The ranks: an engine each, and what they sleep on.

use std::sync::Arc;

use trihop_transport::link::Link;
use trihop_transport::memory::segment::Segment;
use trihop_transport::protocol::wire::Epoch;
use trihop_transport::ring::Doorbell;
use trihop_transport::secret::Secret;
use trihop_transport::topology::{NodeId, Rank, Topology};

use super::awake::Awake;
use super::error::SimulationError;
use super::fabric::Fabric;
use super::options::SimulationOptions;
use crate::config::StreamOptions;
use crate::endpoint::{Engine, StreamId};
use crate::engine::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::sink::{Heard, Sink};
use crate::error::Error;
use crate::terminate::collective::Collectives;

/// Secret of all simulated jobs.
pub(crate) const SECRET: [u8; Secret::BYTES] = [42; Secret::BYTES];

/// A stream of a rank, and its inbox.
pub(super) type Opened = (StreamId, Arc<Segment>);

/// One rank of the job.
pub(crate) struct Member {
    pub engine: Engine,
    /// The stream that is used.
    pub id: StreamId,
    /// Its streams, that of the collectives first, and their inboxes.
    pub(super) streams: Box<[Opened]>,
    pub(super) epoch: Epoch,
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
        let links = fabric.links(topology.size());
        let addresses: Vec<Box<[u8]>> = links.iter().map(|link| link.address().into()).collect();
        let mut links = links.into_iter();
        for node in 0..topology.nodes() {
            let ranks: Vec<Rank> = topology.ranks_of(NodeId(node)).collect();
            let doorbells: Vec<_> = ranks.iter().map(|_| Doorbell::private()).collect();
            let mut engines = Vec::with_capacity(ranks.len());
            for (&rank, link) in ranks.iter().zip(&mut links) {
                let mut engine = new_engine(topology, rank, link, Epoch::FIRST)?;
                for (&other, doorbell) in ranks.iter().zip(&doorbells) {
                    engine.attach_here(other.into(), Epoch::FIRST, doorbell.bell());
                }
                engines.push(engine);
            }
            let mut opened = Vec::with_capacity(ranks.len());
            for engine in &mut engines {
                let rank = engine.topology.rank();
                opened.push(open_streams(engine, options, || sink(rank))?);
                for end in engine.ends() {
                    engine.attach_end(end, Epoch::FIRST, &addresses[end.0 as usize])?;
                }
            }
            for (engine, streams) in engines.iter_mut().zip(&opened) {
                for (&other, theirs) in ranks.iter().zip(&opened) {
                    for ((id, _), (_, inbox)) in streams.iter().zip(theirs) {
                        engine.attach_inbox(*id, other.into(), Arc::clone(inbox))?;
                    }
                }
            }
            let node = engines.into_iter().zip(opened).zip(doorbells);
            members.extend(node.map(|((engine, streams), doorbell)| Self {
                engine,
                id: streams[1].0,
                streams,
                epoch: Epoch::FIRST,
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

/// An engine of a rank for which all others are away.
pub(super) fn new_engine(
    topology: &Topology,
    rank: Rank,
    link: Box<dyn Link>,
    epoch: Epoch,
) -> Result<Engine, Error> {
    let topology = topology.seen_from(rank)?;
    let secret = Secret::from_bytes(SECRET);
    let mut engine = Engine::new(topology, secret, Some(link), epoch);
    engine.create_segment = Segment::private;
    Ok(engine)
}

/// Opens the job's own stream and those of the options on one rank; returns them with their
/// inboxes. Those of the node's other ranks are to be attached.
pub(super) fn open_streams(
    engine: &mut Engine,
    options: &SimulationOptions,
    sink: impl Fn() -> Sink,
) -> Result<Box<[Opened]>, Error> {
    let mut open = |options: &StreamOptions, item_bytes, sink| {
        let prepared = engine.prepare(engine.plan("simulated", options, item_bytes)?)?;
        let inbox = Arc::clone(&prepared.segment);
        let number = engine.take_number()?;
        let receives = engine.receives();
        Ok::<_, Error>((engine.connect(number, prepared, receives, sink)?, inbox))
    };
    let collectives = Sink::Collectives(Heard::default());
    let mut streams = vec![open(&Engine::system_options(), 0, collectives)?];
    for _ in 0..options.streams.max(1) {
        streams.push(open(&options.stream, options.item_bytes, sink())?);
    }
    Ok(streams.into())
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
                for route in RouteName::all() {
                    let options = SimulationOptions {
                        stream: StreamOptions {
                            route,
                            ..stream.clone()
                        },
                        ..SimulationOptions::default()
                    };
                    let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
                    let mut fabric = Fabric::Simulated(Net::new(SimOptions::default()));
                    let members =
                        Member::all(&mut fabric, &topology, &options, |_| Sink::Closed).unwrap();
                    for member in &members {
                        let limits = SimOptions::default().limits;
                        let engine = &member.engine;
                        let (state, out) = member.stream();
                        let need = Need::of(
                            &engine.topology,
                            &out.queues.route,
                            stream,
                            false,
                            Some(&limits),
                        );
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
